// Loads the side panel's TypeScript in Node: types are dropped, nothing is checked (`npm run check` does that).
// Registered by test_panel.mjs before it imports the modules of labextension/src.

import { existsSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";

const require = createRequire(new URL("../../labextension/package.json", import.meta.url));
const ts = require("typescript");

export async function resolve(specifier, context, next) {
  if (specifier.startsWith(".") && context.parentURL?.endsWith(".ts")) {
    const url = new URL(`${specifier}.ts`, context.parentURL);
    if (existsSync(fileURLToPath(url))) return { url: url.href, shortCircuit: true };
  }
  return next(specifier, context);
}

export async function load(url, context, next) {
  if (url.endsWith(".ts")) {
    const options = { module: ts.ModuleKind.ESNext, target: ts.ScriptTarget.ES2022, verbatimModuleSyntax: false };
    const { outputText } = ts.transpileModule(readFileSync(fileURLToPath(url), "utf8"), { compilerOptions: options });
    return { format: "module", source: outputText, shortCircuit: true };
  }
  if (url.includes("/widgets/static/")) return next(url, { ...context, format: "module" });
  return next(url, context);
}
