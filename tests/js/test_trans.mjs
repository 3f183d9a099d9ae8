// The views' words in the reader's language: what stands in for JupyterLab's bundle does as it does.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

import { filled, parts, PLACES, trans } from "../../sgnb/widgets/static/trans.js";

const SLOT = Symbol.for("sgnb.trans");

/** JupyterLab's own class, without the packages around it. */
async function jupyterLab() {
  const source = readFileSync(new URL("../../labextension/node_modules/@jupyterlab/translation/lib/gettext.js", import.meta.url), "utf8");
  const around = 'const DEFAULT_LANGUAGE_CODE = "en"; const normalizeDomain = domain => domain.replace("-", "_");';
  const { Gettext } = await import(`data:text/javascript,${encodeURIComponent(`${around}\n${source.replace(/^import .*$/gm, "")}`)}`);
  globalThis.document = { documentElement: { getAttribute: () => "de" } };
  return options => new Gettext({ domain: "sgnb", locale: "de", ...options });
}

const CALLS = [
  words => words.__("Nothing has run yet."),
  words => words.__("%1 of %2 slots used", "1 024", 16384),
  words => words.__("%2 before %1, %2", "b", "a"),
  words => words.__("%1 is data", "%2 and 100% of %1"),
  words => words.__("50 %% of %1", "it"),
  words => words.__("%1%1", 0),
  words => words.__("%1 of %2", ...PLACES),
  ...[0, 1, 2].map(n => words => words._n("%2 slot", "%2 slots", n, `<${n}>`)),
  ...[0, 1, 2].map(n => words => words._n("%1 row of %2 is out", "%1 rows of %2 are out", n, "them")),
];

test("without a bundle, words are put together as JupyterLab puts them", async () => {
  const lab = (await jupyterLab())({});
  const both = CALLS.map(call => [call(trans), call(lab)]);
  for (const [ours, theirs] of both) assert.equal(ours, theirs);
  assert.deepEqual(both.slice(1, 4).map(([ours]) => ours), ["1 024 of 16384 slots used", "a before b, a", "%2 and 100% of %1 is data"]);
  assert.deepEqual(both.slice(7, 10).map(([ours]) => ours), ["<0> slots", "<1> slot", "<2> slots"]);
  delete globalThis.document;
});

test("a bundle that comes later is used from then on", async () => {
  const messages = { "%1 of %2 slots used": ["von %2 Plätzen %1 belegt"], "%2 slot": ["%2 Platz", "%2 Plätze"], "Write %1 to %2": ["Nach %2 %1 schreiben"] };
  const before = trans.__("%1 of %2 slots used", 3, 9);
  globalThis[SLOT] = (await jupyterLab())({ messages, pluralForms: "nplurals=2; plural=(n != 1);" });
  try {
    assert.equal(before, "3 of 9 slots used");
    assert.equal(trans.__("%1 of %2 slots used", 3, 9), "von 9 Plätzen 3 belegt");
    assert.deepEqual([1, 2].map(n => trans._n("%2 slot", "%2 slots", n, n)), ["1 Platz", "2 Plätze"]);
    assert.equal(trans.__("not translated, %1", "as it is"), "not translated, as it is");
    const input = {};
    assert.deepEqual(parts(trans.__("Write %1 to %2", ...PLACES), "all", input), ["Nach ", input, " ", "all", " schreiben"]);
  } finally {
    delete globalThis[SLOT];
    delete globalThis.document;
  }
});

test("a template is filled once: what is put in is not looked through again", () => {
  assert.deepEqual(parts("%1: %2.", "%2", ["a", null, "b"]), ["%2", ": ", "a", null, "b", "."]);
  assert.equal(filled("%1 tok of %2", "%2", "it"), "%2 tok of it");
});
