// No words for people stand bare in the sources of the views and of the side panel: they are arguments of `trans`. What is
// drawn in a pseudo-locale (tests/browser/test_browser_words.py) shows the same of all that its scenes reach.

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import test from "node:test";

const require = createRequire(new URL("../../labextension/package.json", import.meta.url));
const ts = require("typescript");

const ROOT = new URL("../../", import.meta.url);
const STATIC = "sgnb/widgets/static/";
const PANEL = "labextension/src/";
/** Its words are those of a file, the same as `sgnb export` writes. */
const FILES = ["perfetto.ts"];
const isPanel = path => path.startsWith(PANEL);
const sources = [
  ...readdirSync(new URL(STATIC, ROOT)).filter(name => name.endsWith(".js")).map(name => STATIC + name),
  ...readdirSync(new URL(PANEL, ROOT)).filter(name => name.endsWith(".ts") && !name.endsWith(".d.ts") && !FILES.includes(name)).map(name => PANEL + name),
];

/** What looks like words and is none: units, commands, names that others gave, and the kernel's words where they are asked for. */
const NO_WORDS = new Set([
  "… ms",
  "… min",
  "… h … min",
  "%load_ext sgnb",
  "kernel subshells", // JupyterLab's name of a feature
  "The sgnb side panel, docked views and editing help: the notebook’s engine at work.", // of the plugin, before any language is known
  "main", // the name of the first engine
  "Starting engine",
  "Not started",
]);
/** Attributes and properties that are read out or shown. */
const SHOWN_NAMES = new Set(["title", "aria-label", "aria-valuetext", "placeholder", "label", "caption", "ariaLabel", "textContent", "word", "words", "name", "alt"]);
/** Calls with words among their arguments: from which on. */
const SHOWN_CALLS = { el: 3, button: 0, setText: 1, say: 0, tell: 0, fillText: 0, heading: 0, line: 0, dim: 0, createTextNode: 0, append: 0, findBox: 0 };
const SHOWN_IN_PANEL = { say: 0, append: 0, createTextNode: 0, setText: 1 };
/** Calls whose arguments are no words. */
const SILENT_CALLS = new Set(["on", "addEventListener", "removeEventListener", "querySelector", "querySelectorAll", "closest", "matches", "add", "toggle", "remove", "setProperty", "matchMedia"]);
const SILENT_ERRORS = new Set(["RangeError", "TypeError"]);

const isTrans = ({ expression: called }) => ts.isPropertyAccessExpression(called) && /^(__|_n|_p|_np)$/.test(called.name.text) && /(^|\.)_?trans$/.test(called.expression.getText());
const nameOfCall = ({ expression: called }) => (ts.isPropertyAccessExpression(called) ? called.name.text : called.getText());
const looksLikeWords = text => /\p{L}[.,:;)…]* \p{L}|^ ?\p{Lu}\p{Ll}+( |[.…]|$)|(^| )\p{Ll}{3,} ?$|(^|[ ,])\p{L}{2,} \u0000|\u0000 \p{L}{2,}/u.test(text);

/** The text of a string, `…` where a template has a value; null: another node. */
function textOf(node) {
  if (ts.isStringLiteral(node) || ts.isNoSubstitutionTemplateLiteral(node)) return node.text;
  if (ts.isTemplateExpression(node)) return [node.head.text, ...node.templateSpans.map(span => span.literal.text)].join("\u0000");
  return null;
}

/** [text, place] of the bare words in a source. */
function bareWords(path, source) {
  const file = ts.createSourceFile(path, source, ts.ScriptTarget.Latest, true, path.endsWith(".ts") ? ts.ScriptKind.TS : ts.ScriptKind.JS);
  const out = [];
  const visit = (node, shown) => {
    const text = textOf(node);
    if (text !== null && isBare(text, shown)) out.push([text.replaceAll("\u0000", "…"), file.getLineAndCharacterOfPosition(node.getStart()).line + 1]);
    if (ts.isImportDeclaration(node) || ts.isExportDeclaration(node) || ts.isTypeNode(node)) return;
    if (ts.isCallExpression(node)) {
      if (isTrans(node)) return node.arguments.slice(node.expression.name.text === "__" ? 1 : 2).forEach(one => visit(one, false));
      const name = nameOfCall(node);
      if (SILENT_CALLS.has(name)) return node.arguments.filter(one => textOf(one) === null).forEach(one => visit(one, false));
      const from = (isPanel(path) ? SHOWN_IN_PANEL : SHOWN_CALLS)[name] ?? Infinity;
      visit(node.expression, false);
      return node.arguments.forEach((one, index) => (name === "el" && index < 2 ? undefined : visit(one, index >= from)));
    }
    if (ts.isNewExpression(node) && SILENT_ERRORS.has(node.expression.getText())) return;
    if (ts.isPropertyAssignment(node)) return visit(node.initializer, SHOWN_NAMES.has(node.name.text ?? ""));
    if (ts.isBinaryExpression(node)) {
      const assigned = node.operatorToken.kind === ts.SyntaxKind.EqualsToken && ts.isPropertyAccessExpression(node.left) && SHOWN_NAMES.has(node.left.name.text);
      const compared = /^[=!]==$/.test(node.operatorToken.getText());
      return [node.left, node.right].forEach(one => (compared && textOf(one) !== null ? undefined : visit(one, shown || assigned)));
    }
    if (ts.isConditionalExpression(node)) {
      visit(node.condition, false);
      return [node.whenTrue, node.whenFalse].forEach(one => visit(one, shown));
    }
    const passes = ts.isArrayLiteralExpression(node) || ts.isParenthesizedExpression(node) || ts.isTemplateExpression(node) || ts.isTemplateSpan(node) || ts.isSpreadElement(node);
    ts.forEachChild(node, child => visit(child, passes && shown));
    return undefined;
  };
  visit(file, false);
  return out;
}

function isBare(text, shown) {
  if (!/[A-Za-z]{2}/.test(text) || NO_WORDS.has(text.replaceAll("\u0000", "…"))) return false;
  if (/^\.?sgnb|^jp-| sgnb-|px\b|^\[|^#|^data-/.test(text)) return false; // classes, selectors, styles
  return shown || looksLikeWords(text) && / |\.$|…$/.test(text);
}

const places = text => [...text.matchAll(/%\d/g)].map(([place]) => place).sort().join();

test("no words stand bare in the sources", () => {
  const found = sources.flatMap(path => bareWords(path, readFileSync(new URL(path, ROOT), "utf8")).map(([text, line]) => `${path}:${line}: ${text}`));
  assert.deepEqual(found, []);
  assert.ok(sources.length > 70);
});

test("a bare word is found where it stands, and what is none is not", () => {
  const found = (source, path = `${STATIC}x.js`) => bareWords(path, source).map(([text]) => text);
  const bare = {
    'el("p", "sgnb-dim", {}, "free")': ["free"],
    'el("p", "some class", { title: "Free" }, x ? "free" : [trans.__("used"), "both"])': ["Free", "free", "both"],
    "setText(node, `${n} slots`)": ["… slots"],
    'const WORDS = { kv: "KV map", tree: "Radix tree" }': ["KV map", "Radix tree"],
    'node.title = "now"': ["now"],
    "return `${a} of ${b} used`": ["… of … used"],
    'throw new Error("The kernel does not answer.")': ["The kernel does not answer."],
    'view.region.say(`${trans.__("%1 found", n)}, that is all`)': ["…, that is all"],
  };
  for (const [source, words] of Object.entries(bare)) assert.deepEqual(found(source), words, source);
  for (const source of [
    'import { a } from "./some words.js"; el("p", "sgnb-a sgnb-b", { id: "that-one" }, trans.__("Free slots"), count(3))',
    'trans._n("%2 slot is free", "%2 slots are free", n, "x")',
    'on(node, "some event", f); node.classList.add("open"); if (state === "running so") x = "idle";',
    'throw new RangeError("too many bytes"); context.font = `600 ${size}px sans-serif`; const modes = [["both", trans.__("Both")]]',
  ]) assert.deepEqual(found(source), [], source);
  assert.deepEqual(found("node.textContent = 'now'; const label = `${n} requests run`;", `${PANEL}x.ts`), ["now", "… requests run"]);
});

test("what is looked up is written out, so that JupyterLab's tools find it, and looked up when it is shown", () => {
  const wrong = [];
  for (const path of sources) {
    const file = ts.createSourceFile(path, readFileSync(new URL(path, ROOT), "utf8"), ts.ScriptTarget.Latest, true);
    const visit = node => {
      if (ts.isCallExpression(node) && isTrans(node)) {
        const texts = node.arguments.slice(0, node.expression.name.text === "__" ? 1 : 2);
        const known = texts.map(textOf);
        const line = file.getLineAndCharacterOfPosition(node.getStart()).line + 1;
        if (texts.some(one => !ts.isStringLiteral(one) && !ts.isNoSubstitutionTemplateLiteral(one))) wrong.push(`${path}:${line}: put together`);
        if (!ts.findAncestor(node, ts.isFunctionLike)) wrong.push(`${path}:${line}: when the module is loaded`);
        else if (known.length === 2 && places(known[0]) !== places(known[1])) wrong.push(`${path}:${line}: other places in the plural`);
      }
      ts.forEachChild(node, visit);
    };
    if (path !== `${STATIC}trans.js`) visit(file);
  }
  assert.deepEqual(wrong, []);
});
