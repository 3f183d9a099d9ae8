// Makes the widgets' scripts small: node minify.mjs [FOLDER]. Minified, then packed (deflate): a saved notebook holds one copy of
// the script a view, and a page unpacks it in a millisecond. Run by the build. sgnb/widgets/bundle.py says which there are,
// and takes the small form from FOLDER (sgnb/labextension/widgets) while the modules are those that it was made of.
//
// Names that begin with "_" are a module's own and are shortened. But the page has one store, made by the first widget's
// script and used by all others: what other modules say of it (`store._speaker`) keeps its name. So does `_n`, which is
// JupyterLab's (sgnb/widgets/static/trans.js).

import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { deflateRawSync } from 'node:zlib';
import { rspack } from '@rspack/core';
import { minify } from 'terser';

const here = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2] ?? join(here, '../sgnb/labextension/widgets');
const statics = join(here, '../sgnb/widgets/static');
const OWN = ['store.js', 'tape.js', 'fold.js', 'history.js'];

const sources = Object.fromEntries(readdirSync(statics).filter(name => name.endsWith('.js')).map(name => [name, readFileSync(join(statics, name), 'utf8')]));
const others = [...Object.entries(sources).filter(([name]) => !OWN.includes(name)).map(([, text]) => text), ...panelSources()].join('\n');
const reserved = [...new Set(OWN.flatMap(name => sources[name].match(/\b_[A-Za-z]\w*/g)))].filter(
  name => new RegExp(`(?<!this)\\.${name}\\b`).test(others) || OWN.some(own => new RegExp(`["']${name}["']`).test(sources[own]))
);

function panelSources() {
  const folder = join(here, 'src');
  return readdirSync(folder).filter(name => name.endsWith('.ts')).map(name => readFileSync(join(folder, name), 'utf8'));
}

/** All modules of a widget in one scope, without what it does not use. */
function bundle(name) {
  const folder = mkdtempSync(join(tmpdir(), 'sgnb-'));
  const compiler = rspack({
    mode: 'production',
    context: statics,
    entry: join(statics, name),
    devtool: false,
    experiments: { outputModule: true },
    output: { path: folder, filename: name, module: true, library: { type: "modern-module" } },
    optimization: { minimize: false, concatenateModules: true }
  });
  return new Promise((resolve, reject) =>
    compiler.run((error, stats) => {
      const failed = error ?? (stats.hasErrors() ? new Error(stats.toString('errors-only')) : null);
      const script = failed ? '' : readFileSync(join(folder, name), 'utf8');
      rmSync(folder, { recursive: true, force: true });
      compiler.close(() => (failed ? reject(failed) : resolve(script)));
    })
  );
}

/** A module that unpacks the other one and is in its place. */
function packed(code) {
  const data = deflateRawSync(code, { level: 9 }).toString('base64');
  return [
    `const packed = "${data}";`,
    'const bytes = Uint8Array.from(atob(packed), char => char.charCodeAt(0));',
    'const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));',
    'const script = new Blob([await new Response(stream).arrayBuffer()], { type: "text/javascript" });',
    'const place = URL.createObjectURL(script);',
    'const { default: widget } = await import(place);',
    'URL.revokeObjectURL(place);',
    'export default widget;'
  ].join('\n');
}

rmSync(out, { recursive: true, force: true });
mkdirSync(out, { recursive: true });
execFileSync(process.env.PYTHON ?? 'python3', ['-I', join(here, '../sgnb/widgets/bundle.py'), out], { stdio: 'inherit' });
for (const name of readdirSync(out).filter(file => file.endsWith('.js'))) {
  const joined = readFileSync(join(out, name), 'utf8');
  const small = await minify(await bundle(name), {
    module: true,
    ecma: 2020,
    compress: { passes: 3, ecma: 2020, unsafe: true, unsafe_arrows: true, unsafe_methods: true, keep_fargs: false, pure_getters: true },
    mangle: { properties: { regex: /^_[A-Za-z]/, reserved: [...reserved, '_n'] } },
    format: { comments: false }
  });
  const mark = createHash('sha256').update(joined).digest('hex');
  writeFileSync(join(out, name), `// ${mark}\n${packed(small.code)}\n`);
}
