// Makes the widgets' scripts small: node minify.mjs [FOLDER]. What two or more widgets need is the core, a script of its own that a
// kernel and a page have once; a widget's script is the rest. Each is minified, then packed (deflate): a page unpacks it in a
// millisecond (sgnb/widgets/static/loader.js). Run by the build; sgnb/widgets/bundle.py takes the small form from FOLDER
// (sgnb/labextension/widgets) while the modules are those that it was made of.
//
// Names that begin with "_" are a module's own and are shortened, in the core and in all widgets alike. But the page has one
// store, made by the first widget's script and used by all others, also those of another sgnb: what other modules say of it
// (`store._speaker`) keeps its name. So does `_n`, which is JupyterLab's (sgnb/widgets/static/trans.js).

import { createHash } from 'node:crypto';
import { mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { deflateRawSync } from 'node:zlib';
import { rspack } from '@rspack/core';
import { minify } from 'terser';

const here = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2] ?? join(here, '../sgnb/labextension/widgets');
const statics = join(here, '../sgnb/widgets/static');
const OWN = ['store.js', 'moments.js', 'tape.js', 'fold.js', 'history.js'];
const CORE = 'sgnb:core';

const names = readdirSync(statics).filter(name => name.endsWith('.js')).sort();
const sources = Object.fromEntries(names.map(name => [name, readFileSync(join(statics, name), 'utf8')]));
const entries = names.filter(name => /^export default /m.test(sources[name]));
const others = [...names.filter(name => !OWN.includes(name)).map(name => sources[name]), ...panelSources()].join('\n');
const reserved = [...new Set(OWN.flatMap(name => sources[name].match(/\b_[A-Za-z]\w*/g)))].filter(
  name => new RegExp(`(?<!this)\\.${name}\\b`).test(others) || OWN.some(own => new RegExp(`["']${name}["']`).test(sources[own]))
);
const core = coreExports();
const nameCache = { props: {} }; // a part of the core that a view extends has one short name in both

function panelSources() {
  const folder = join(here, 'src');
  return readdirSync(folder).filter(name => name.endsWith('.ts')).map(name => readFileSync(join(folder, name), 'utf8'));
}

/** [names, module] of each import of a module. */
function importsOf(name) {
  return Array.from(sources[name].matchAll(/^import \{([^}]*)\} from "\.\/([a-z_]+\.js)";$/gm), ([, list, from]) => [
    list.split(',').map(one => one.trim().split(' as ')[0]).filter(Boolean),
    from
  ]);
}

/** The modules of the core, those that two or more entries need; and of each the names that others take. */
function coreExports() {
  const users = new Map(); // module → how many entries
  for (const entry of entries) {
    const needed = new Set([entry]);
    for (const name of needed) for (const [, from] of importsOf(name)) needed.add(from);
    for (const name of needed) users.set(name, (users.get(name) ?? 0) + 1);
  }
  const shared = new Map([...users].filter(([, count]) => count > 1).map(([name]) => [name, new Set()]));
  for (const name of users.keys()) {
    if (!shared.has(name)) for (const [list, from] of importsOf(name)) for (const one of list) shared.get(from)?.add(one);
  }
  const all = [...shared.values()].flatMap(set => [...set]);
  const double = all.find((one, index) => all.indexOf(one) !== index);
  if (double) throw new Error(`two modules of the core export ${double}`);
  return shared;
}

/** All modules of an entry in one scope, without what it does not use; those of the core stay outside a view. */
async function bundle(entry, { whole }) {
  const folder = mkdtempSync(join(tmpdir(), 'sgnb-'));
  const compiler = rspack({
    mode: 'production',
    context: statics,
    entry: entry.startsWith('export') ? `data:text/javascript,${encodeURIComponent(entry)}` : join(statics, entry),
    devtool: false,
    experiments: { outputModule: true },
    externalsType: 'module',
    externals: whole ? [] : [({ request }, done) => (core.has(basename(request)) ? done(null, CORE) : done())],
    output: { path: folder, filename: 'made.js', module: true, library: { type: 'modern-module' } },
    optimization: { minimize: false, concatenateModules: true }
  });
  const script = await new Promise((resolve, reject) =>
    compiler.run((error, stats) => {
      const failed = error ?? (stats.hasErrors() ? new Error(stats.toString('errors-only')) : null);
      compiler.close(() => (failed ? reject(failed) : resolve(readFileSync(join(folder, 'made.js'), 'utf8'))));
    })
  );
  rmSync(folder, { recursive: true, force: true });
  return script;
}

async function small(code) {
  const made = await minify(code, {
    module: true,
    ecma: 2020,
    compress: { passes: 3, ecma: 2020, unsafe: true, unsafe_arrows: true, unsafe_methods: true, keep_fargs: false, pure_getters: true },
    mangle: { properties: { regex: /^_[A-Za-z]/, reserved: [...reserved, '_n'] } },
    nameCache,
    format: { comments: false }
  });
  delete nameCache.vars; // variables are each script's own
  return made.code;
}

const packed = code => deflateRawSync(code, { level: 9 }).toString('base64');
const hash = text => createHash('sha256').update(text).digest('hex');

rmSync(out, { recursive: true, force: true });
mkdirSync(out, { recursive: true });
const mark = hash(names.map(name => `${name}\n${sources[name]}`).join(''));
const write = (name, text) => writeFileSync(join(out, name), `// ${mark}\n${text}\n`);
const shared = [...core].map(([name, list]) => `export { ${[...list].join(', ')} } from ${JSON.stringify(join(statics, name))};`);
const coreScript = await small(await bundle(shared.join('\n'), { whole: true }));
const loader = await small(await bundle('loader.js', { whole: true }));
const coreName = hash(coreScript).slice(0, 16);
write('core.packed', packed(coreScript));
for (const entry of entries) {
  const view = await small(await bundle(entry, { whole: false }));
  const made = `export default $1("${coreName}", "${hash(view).slice(0, 16)}", packed);`;
  write(entry, `const packed = "${packed(view)}";\n${loader.replace(/export\{(\w+) as loaderOf\};?$/, made)}`);
}
