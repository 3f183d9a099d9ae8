// Editing help in `%%sgl` cells, without an editor: what is code of a text, where a mistake stands, what a word means.

import assert from "node:assert/strict";
import { createRequire, register } from "node:module";
import { test } from "node:test";

register("./ts_loader.mjs", import.meta.url);
const { hasMagic, isCell, placeOf, sameMarks } = await import("../../labextension/src/editor.ts");
const { aboutWord, codeOf, isAsked, wordAt } = await import("../../labextension/src/editor_words.ts");
const { Text } = createRequire(new URL("../../labextension/package.json", import.meta.url))("@codemirror/state");

const LANGUAGE = {
  names: { gen: { signature: "gen(…)", text: "A generation." }, user: { signature: "user(…)", text: "A turn." } },
  methods: { fork: { signature: "fork(size)", text: "Branches." } },
  parameters: { gen: { max_tokens: { signature: "gen(… max_tokens: int)", text: "At most so many." } } },
};
const docOf = text => Text.of(text.split("\n"));

/** What is said of the word at `|`. */
function said(marked) {
  const at = marked.indexOf("|");
  const doc = docOf(marked.replace("|", ""));
  const line = doc.lineAt(at);
  const code = codeOf(doc.toString());
  const found = wordAt(code.slice(line.from, line.to), at - line.from);
  if (!found) return null;
  return aboutWord({ word: found.word, before: code.slice(0, line.from + found.from) }, line.text.slice(found.to), LANGUAGE)?.signature ?? null;
}

test("words of the language are explained where they are code", () => {
  assert.equal(said('%%sgl\ns += ge|n("x")'), "gen(…)");
  assert.equal(said('%%sgl\ns += sgl.ge|n("x")'), "gen(…)");
  assert.equal(said("%%sgl\nforks = s.fo|rk(3)"), "fork(size)");
  assert.equal(said('%%sgl\ns += gen("x", max_to|kens=3)'), "gen(… max_tokens: int)");
  assert.equal(said('%%sgl\ns += gen(\n    "a (",\n    max_to|kens=3,\n)'), "gen(… max_tokens: int)");
  assert.equal(said('%%sgl\nmax_to|kens=3'), null);
  assert.equal(said('%%sgl\ns += user("a us|er asks")'), null);
  assert.equal(said('%%sgl\ns += user("""one\nus|er\n""")'), null);
  assert.equal(said("%%sgl\n# ge|n"), null);
  assert.equal(said("%%sgl\nx.ge|n()"), null);
});

test("strings and comments are blank, and all stays in its place", () => {
  const text = "a = 'it\\'s' # b 'c\nd = \"\"\"e\nf 'g\n\"\"\" + h + 'open\ni";
  const code = codeOf(text);
  assert.equal(code.length, text.length);
  assert.equal(code.replace(/\s+/g, " "), "a = d = + h + 'open i");
});

test("a mistake behind characters of two units has its place", () => {
  const doc = docOf("%%sgl\ns += user('é😀漢') + gen(x=1)");
  const { from, to } = placeOf({ line: 2, col: 23, end_col: 26 }, doc);
  assert.equal(doc.sliceString(from, to), "x=1");
  const end = placeOf({ line: 9, col: 99, end_col: 99 }, doc);
  assert.ok(end.from < end.to && end.to === doc.length, "one beyond the text is shown at its end");
});

test("only a cell that begins with the magic is meant", () => {
  assert.ok(isCell(docOf("\n  %%sgl -o x\ns")));
  for (const other of ["s += gen('x')", "x = 1\n%%sgl", "%%sglx", "# %%sgl", ""]) assert.ok(!isCell(docOf(other)));
  assert.ok(hasMagic(docOf("x = 1\n%%sgl\ns")) && !hasMagic(docOf("# %%sgl")), "below other lines the kernel is asked");
});

test("lines of the other magic are asked about, and the rest of their cell is not", () => {
  assert.ok(hasMagic(docOf("x = 1\n  %sgl view tree")) && !hasMagic(docOf("x = 1 # %sgl\n%sglx\n%time %sgl")));
  const doc = docOf("x = 1\n%sgl view tree\ny = 2");
  assert.deepEqual([0, 6, 20, 21].map(at => isAsked(doc, at)), [false, true, true, false]);
  assert.ok(isAsked(docOf("%%sgl\ns += 'a'"), 8) && !isAsked(docOf("x = 1\n%%sgl\ns"), 12));
});

test("marks that are shown already are known", () => {
  const one = { from: 1, to: 3, severity: "error", message: "a" };
  const other = { from: 5, to: 6, severity: "warning", message: "b" };
  assert.ok(sameMarks([one, other], [{ ...other }, { ...one, source: "sgnb" }]));
  assert.ok(!sameMarks([one], [one, other]) && !sameMarks([one], [{ ...one, message: "c" }]) && !sameMarks([one], [{ ...one, to: 4 }]));
});
