// The program view's document: deltas, layout of branches, shading, offsets of tokens; with Node's own test runner.

import assert from "node:assert/strict";
import test from "node:test";

import {
  errorParts, grammarWords, logprobWords, tokenWords,
  applyDelta, barWidth, breakAt, fromSnapshot, layoutOf, marksAtEnd, pieces, prefillWords, RUN_CHARS, sentence, shadeOf, stretches, tokenAt, tokenCount, tokenEnds,
} from "../../sgnb/widgets/static/program_data.js";
import { Inspector } from "../../sgnb/widgets/static/program_inspector.js";
import { programKey } from "../../sgnb/widgets/static/program_keys.js";
import { Lanes } from "../../sgnb/widgets/static/program_lanes.js";
import { momentOf, Past } from "../../sgnb/widgets/static/program_past.js";
import { foldAll } from "../../sgnb/widgets/static/program_row.js";
import { ProgramView } from "../../sgnb/widgets/static/program_view.js";

const row = (segs, more = {}) => ({ kind: "turn", role: "user", lane: 0, segs, costs: [], error: [], arms: [], state: "ok", ...more });
const seg = (text, ...tokens) => ({ model: true, name: "x", text, marks: tokens.flat() });

test("deltas add text, marks and branches to the document, or ask for a snapshot", () => {
  const doc = fromSnapshot({ seq: 3, head: { state: "running" }, rows: [row([{ model: false, text: "a" }])], lanes: [{ fork: -1 }] });
  const delta = { from: 3, seq: 4, head: { state: "running" }, rows: [[0, row([{ model: false }])], [1, row([{ model: true }])]], text: [[0, 0, "b"], [1, 0, "c"]], marks: [[1, 0, [1, 0.5, 0]]], lanes: [[1, { fork: 0 }]] };
  assert.deepEqual(applyDelta(doc, structuredClone(delta)), [0, 1]);
  assert.deepEqual(doc.rows.map(one => one.segs[0].text), ["ab", "c"]);
  assert.equal(tokenCount(doc.rows[1].segs[0]), 1);
  assert.deepEqual(applyDelta(doc, structuredClone(delta)), [], "contained already");
  assert.equal(applyDelta(doc, { ...delta, from: 9, seq: 10 }), null, "one is missing");
  applyDelta(doc, { from: 4, seq: 5, head: {}, rows: [[1, row([{ model: true }])]], text: [], marks: [[1, 0, [2, 0.1, 1]]] });
  assert.deepEqual(doc.rows[1].segs[0].marks, [1, 0.5, 0, 2, 0.1, 1]);
});

test("branches stand side by side where each has 220 px, up to three; nested ones are tabs; nine are a table", () => {
  assert.equal(layoutOf(3, 660), "columns");
  assert.equal(layoutOf(3, 659), "tabs");
  assert.equal(layoutOf(2, 440), "columns");
  assert.equal(layoutOf(4, 2000), "tabs");
  assert.equal(layoutOf(2, 2000, true), "tabs");
  assert.equal(layoutOf(8, 2000), "tabs");
  assert.equal(layoutOf(9, 2000), "table");
  assert.equal(layoutOf(9, 300, true), "table");
});

test("tokens are found by offsets, in UTF-16 units", () => {
  const one = seg("Hi \u{1F600}!", [2, 0.9, 0], [3, 0.6, 0], [0, 0.6, 0], [1, 0.05, 0]);
  const ends = tokenEnds(one);
  assert.deepEqual(ends, [2, 5, 5, 6]);
  assert.deepEqual([0, 1, 2, 4, 5, 6].map(at => tokenAt(ends, at)), [0, 0, 1, 1, 3, -1]);
  one.marks.push(4, 0.5, 0);
  assert.deepEqual(tokenEnds(one, ends), [2, 5, 5, 6, 10], "counted on from where it was");
});

test("shades begin at .75, .5, .25 and .1, and leave a token's leading blanks out", () => {
  const names = [0.75, 0.74, 0.5, 0.49, 0.25, 0.24, 0.1, 0.09, -1].map(chance => shadeOf(seg("x", [1, chance, 0]), 0, "probability"));
  assert.deepEqual(names, ["", "sgnb-unsure1", "sgnb-unsure1", "sgnb-unsure2", "sgnb-unsure2", "sgnb-unsure3", "sgnb-unsure3", "sgnb-unsure4", ""]);
  assert.equal(shadeOf(seg("x", [1, 0.01, 3]), 0, "forced"), "sgnb-forced");
  assert.equal(shadeOf(seg("x", [1, 0.01, 2]), 0, "forced"), "");
  const one = seg("a  bc d", [1, 0.9, 0], [4, 0.4, 0], [2, 0.9, 0]);
  assert.deepEqual(stretches(one, tokenEnds(one), "probability", 0, 7), [
    { from: 0, to: 3, name: "" },
    { from: 3, to: 5, name: "sgnb-unsure2" },
    { from: 5, to: 7, name: "" },
  ]);
  assert.deepEqual(stretches(one, tokenEnds(one), "none", 2, 7), [{ from: 2, to: 7, name: "" }], "unshaded text is one run");
  assert.deepEqual(stretches(one, tokenEnds(one), "probability", 4, 7)[0], { from: 4, to: 5, name: "sgnb-unsure2" }, "from the middle of a token");
});

test("long text is cut into blocks behind a line end", () => {
  assert.equal(breakAt("x".repeat(100), 0), 0);
  assert.equal(breakAt(`${"x".repeat(RUN_CHARS)}\nmore`, 0), RUN_CHARS + 1);
  assert.equal(breakAt("ab\ncd", RUN_CHARS), 3);
  assert.equal(breakAt("ab cd", RUN_CHARS), 0, "no line end yet");
  assert.equal(breakAt("ab cd", 16000), 3, "at worst behind a blank");
});

test("bars show both kinds where both are there", () => {
  assert.deepEqual([barWidth(0, 10), barWidth(10, 10), barWidth(1, 1000), barWidth(999, 1000), barWidth(5, 10)], [0, 48, 2, 46, 24]);
});

test("what draws nothing is a box with its name", () => {
  assert.deepEqual(pieces("a\u202eb"), [{ text: "a", box: false }, { text: "U+202E", box: true, length: 1 }, { text: "b", box: false }]);
  assert.deepEqual(pieces("\u{E0041}"), [{ text: "U+E0041", box: true, length: 2 }]);
  const pile = "\u0301\u0323".repeat(200);
  assert.deepEqual(pieces(`a${pile}b`), [{ text: `a${pile.slice(0, 8)}`, box: false }, { text: "+392 marks", box: true, length: 392 }, { text: "b", box: false }]);
  assert.deepEqual(pieces(`a${pile.slice(0, 8)}`), [{ text: `a${pile.slice(0, 8)}`, box: false }]);
  // As it comes, mark by mark: no more than eight stand on the letter.
  assert.deepEqual([0, 7, 8, 30].map(had => pieces("\u0301", false, had)[0].box), [false, false, true, true]);
  assert.deepEqual([marksAtEnd("a"), marksAtEnd(""), marksAtEnd(`a${pile.slice(0, 3)}`), marksAtEnd(`a${pile}`)], [0, 0, 3, 16]);
});

test("the live region speaks in sentences", () => {
  assert.equal(sentence({ word: "Finished", facts: ["4 gen, 3 select"], cell: "7" }), "Run [7] finished, 4 gen, 3 select.");
});

test("of a prompt what was reused is shaded, then what was computed, without the blank between", () => {
  const one = { model: false, text: "one two", reused: 3 };
  assert.deepEqual(stretches(one, [], "cached", 0, 7), [
    { from: 0, to: 3, name: "sgnb-reused-text" },
    { from: 3, to: 4, name: "" },
    { from: 4, to: 7, name: "sgnb-computed-text" },
  ]);
  assert.deepEqual(stretches(one, [], "cached", 5, 7), [{ from: 5, to: 7, name: "sgnb-computed-text" }]);
  assert.deepEqual(stretches({ model: false, text: "one" }, [], "cached", 0, 3), [{ from: 0, to: 3, name: "" }], "nothing is known of it");
  assert.deepEqual(stretches({ model: true, text: "one", reused: 3 }, [], "cached", 0, 3), [{ from: 0, to: 3, name: "" }], "model text is no prompt");
});

test("blanks are signs of their own where the reader wants to see them", () => {
  assert.deepEqual(pieces("a b\n", true), [
    { text: "a", box: false },
    { text: " ", box: false, sign: "·" },
    { text: "b", box: false },
    { text: "\n", box: false, sign: "⏎" },
  ]);
  assert.equal(pieces("a b\t\u202e", true).map(piece => piece.text).join(""), "a b\tU+202E");
});

test("a prompt of several chunks says how far it is", () => {
  const step = (prefix, tokens, rid = "r") => ({ rows: [{ rid, kind: "prefill", prefix, tokens }] });
  const record = { rid: "r", prompt: 1460 };
  assert.equal(prefillWords(record, [step(0, 512), step(512, 512), step(0, 9, "other")]), "prefill 1\u2009024 of 1\u2009460");
  assert.equal(prefillWords(record, [step(0, 1460)]), "");
  assert.equal(prefillWords(record, []), "");
});

test("a moment: tokens drawn by the steps that had ended, requests that had finished", () => {
  const row = (rid, kind, prefix, tokens) => ({ rid, kind, prefix, tokens });
  const history = {
    requests: new Map([
      ["a", { queued: 1, prompt: 10, finished: 4.5 }],
      ["b", { queued: 3.5, prompt: 4, finished: 0 }],
      ["late", { queued: 9, prompt: 4, finished: 0 }],
    ]),
    steps: [
      { time: 2, forward_seconds: 0.1, rows: [row("a", "prefill", 0, 6)] },
      { time: 2.5, forward_seconds: 0.1, rows: [row("a", "prefill", 6, 4)] },
      { time: 3, forward_seconds: 0.1, rows: [row("a", "decode", 10, 1), row("other", "decode", 5, 1)] },
      { time: 4, forward_seconds: 0.5, sample_seconds: 0.1, rows: [row("a", "decode", 11, 1), row("b", "prefill", 0, 4)] },
    ],
  };
  const rids = ["a", "b", "late", "unknown"];
  assert.deepEqual(momentOf(history, rids, 2.2), { time: 2.2, tokens: { a: 0 }, ended: [] }, "the first chunk draws nothing");
  assert.deepEqual(momentOf(history, rids, 3.2).tokens, { a: 2 });
  assert.deepEqual(momentOf(history, rids, 4.2).tokens, { a: 2, b: 0 }, "the last step goes on");
  assert.deepEqual(momentOf(history, rids, 4.7), { time: 4.7, tokens: { a: 3, b: 1 }, ended: ["a"] });
  const before = { get rows() { throw new Error("read"); } };
  history.steps.unshift(...Array.from({ length: 999 }, (_, i) => Object.assign(Object.create(before), { time: i / 1000 })));
  assert.deepEqual(momentOf(history, rids, 4.7).tokens, { a: 3, b: 1 }, "steps before the run's first request are not read");
});

test("texts fold in three rounds: the page is laid out once for all of them", () => {
  const said = [];
  const row = (name, cut, stale = false) => ({ stale, shut: () => said.push(`shut ${name}`), isCut: () => (said.push(`measure ${name}`), cut), offer: more => said.push(`offer ${name} ${more}`) });
  foldAll([row("a", true), row("hidden", true, true), row("b", false)]);
  assert.deepEqual(said, ["shut a", "shut b", "measure a", "measure b", "offer a true", "offer b false"]);
});

test("one question about the past at a time; the newest moment wins, and live needs no answer", async () => {
  const asked = [];
  const shown = [];
  const past = new Past(moment => new Promise(done => asked.push([moment.time, done])), doc => shown.push(doc), () => []);
  const at = time => past.follow({ isLive: time === null, time, visible: () => undefined, history: { requests: new Map(), steps: [] } });
  const settled = () => new Promise(done => setTimeout(done, 0));
  at(1);
  at(2);
  at(3);
  assert.deepEqual(asked.map(([time]) => time), [1]);
  asked[0][1]("one");
  await settled();
  assert.deepEqual([asked.map(([time]) => time), shown], [[1, 3], ["one"]]);
  at(null);
  asked[1][1]("three");
  await settled();
  assert.deepEqual(shown, ["one", null], "what comes late is not shown");
  at(4);
  asked[2][1]("four");
  await settled();
  assert.deepEqual(shown, ["one", null, "four"]);
  at(4);
  assert.equal(asked.length, 3, "what is shown already is not asked again");
});

test("a program view that nobody sees asks nothing of an earlier moment until it is seen", () => {
  const followed = [];
  const store = { isLive: false, time: 3 };
  const view = { store, live: {}, head: { drawPlayhead: () => {} }, past: { follow: () => followed.push(store.time) } };
  for (const name of ["see", "_followPlayhead"]) view[name] = ProgramView.prototype[name];
  view.see(false);
  for (store.time of [4, 5, 6]) view._followPlayhead();
  assert.deepEqual(followed, []);
  view.see(true);
  assert.deepEqual(followed, [6]);
  view.see(false);
  store.isLive = true;
  view._followPlayhead();
  assert.equal(followed.length, 2, "back to live costs no question");
});

test("what the grammar ruled out was the first choice only where it was likelier than all it allowed", () => {
  const seen = { allowed: 3, vocabulary: 151936, ruled_out: 9, ruled_out_text: "The", ruled_out_logprob: -0.97 };
  assert.equal(grammarWords({ ...seen, top: [[-0.97, 9], [-1.2, 4]] }), "The grammar allowed 3 of 151\u2009936 tokens. Without it the first choice was The (0.38), not allowed here.");
  assert.equal(grammarWords({ ...seen, top: [[-0.34, 4], [-0.97, 9]] }), "The grammar allowed 3 of 151\u2009936 tokens. The best token it ruled out was The (0.38).");
  assert.equal(grammarWords({ allowed: 1, vocabulary: 151936 }), "The grammar allowed this token alone, of 151\u2009936.");
  assert.equal(grammarWords({ allowed: 2, vocabulary: 0, ruled_out: 9, ruled_out_text: "x", ruled_out_logprob: null }), "The grammar allowed 2 tokens. The best token it ruled out was x.");
  assert.equal(grammarWords({ ...seen, ruled_out_text: "\uFFFD\uFFFD", top: [] }), "The grammar allowed 3 of 151\u2009936 tokens. The best token it ruled out was ▯ (0.38).");
});

test("tokens that are parts of characters, blanks and log-probabilities are written for readers", () => {
  assert.deepEqual(["", "\uFFFD", "\uFFFD\uFFFDa", "a b", " ", "\n"].map(tokenWords), ["▯", "▯", "▯a", "a b", "·", "⏎"]);
  assert.deepEqual([-0.341, -0.004, 0, -12].map(one => logprobWords(one)), ["−0.34", "0.00", "0.00", "−12.00"]);
  assert.equal(logprobWords(-0.0004, 3), "0.000");
});

test("a branch says what the engine's events know of its waiting; only one that lost its slots is retracted", () => {
  const said = (record, state = "queued") => {
    const requests = new Map([["r", record], ["first", { label: { cell: "7", branch: "0" } }]]);
    const view = { store: { history: { requests, steps: [] } }, running: true, isPast: false };
    return Lanes.prototype.waits.call({ view, _costs: () => [{ state, rid: "r" }] }, 1)?.words ?? "";
  };
  assert.equal(said({ state: "queued", waits: { reason: "kv" } }), "", "the kernel's word holds: queued");
  assert.equal(said({ state: "queued", waits: { reason: "leader", leader: "first" } }), "waits for 7.0 (same prefix)");
  assert.equal(said({ state: "compiling" }), "compiling grammar");
  assert.equal(said({ state: "retracted" }, "running"), "retracted, waits for slots");
  assert.equal(said({ state: "admitted", first: 3 }, "running"), "");
});

test("a generation that says nothing for a second is looked after", () => {
  const view = { heard: new Map() };
  const silent = (state, words) => ProgramView.prototype._isSilent.call(view, { rid: "r", state, parts: [words] });
  const { now } = performance;
  let time = 0;
  performance.now = () => time;
  try {
    assert.ok(silent("queued", "queued"));
    assert.ok(!silent("running", "1 of ≤ 9 tok"));
    time = 900;
    assert.ok(!silent("running", "1 of ≤ 9 tok"));
    time = 1100;
    assert.ok(silent("running", "1 of ≤ 9 tok"));
    assert.ok(!silent("running", "2 of ≤ 9 tok"));
    assert.ok(!silent("done", "9 tok"));
  } finally {
    performance.now = now;
  }
});

test("what an error points at is marked in its line of source, and the carets go", () => {
  const lines = ["Line 4, column 9: Gone.", "    b += gen('story')", "         ^^^^^^^^^^^^", "Start again: %sgl restart"];
  assert.deepEqual(errorParts(lines), [
    ["Line 4, column 9: Gone.", false], ["\n", false], ["    b += ", false], ["gen('story')", true], ["\n", false], ["Start again: %sgl restart", false],
  ]);
  assert.deepEqual(errorParts(["A pattern:", "^^"]), [["A pattern:", false], ["\n", false], ["^^", false]]);
});

test("an inspector that goes with its view asks for the engine's events no more", () => {
  const seen = new Set();
  const told = new Set();
  const store = { visible: (view, is) => (is ? seen.add(view) : seen.delete(view)) };
  const inspector = Object.create(Inspector.prototype);
  Object.assign(inspector, { view: { store }, open: true, at: { text: { views: [] }, index: 0 }, dialog: {}, marks: { replaceChildren: () => {} } });
  store.visible(inspector, true);
  globalThis.document = { removeEventListener: name => told.add(name) };
  try {
    inspector.destroy();
  } finally {
    delete globalThis.document;
  }
  assert.deepEqual([seen.size, inspector.open, [...told]], [0, false, ["pointerdown", "scroll"]]);
});

test("keys move the playhead where no other view has asked for the engine's events: they are asked for, until live", () => {
  const moved = [];
  const seen = new Set();
  const heard = new Set();
  const store = {
    isLive: true,
    history: { steps: [] },
    visible: (view, on) => (on ? seen.add(view) : seen.delete(view)),
    subscribe: f => (heard.add(f), () => heard.delete(f)),
    stepBy(count) {
      moved.push(count);
      this.isLive = count > 0;
    },
    eventBy() {},
    goLive() {},
    select() {},
  };
  const past = new Past(() => new Promise(() => undefined), () => undefined, () => []);
  const view = { store, past };
  const press = key => programKey(view, { key, target: { matches: () => false } });
  assert.equal(press(","), true);
  assert.deepEqual([moved, seen.size, heard.size], [[], 1, 1], "its events come first");
  for (const f of heard) f("data");
  assert.deepEqual([moved, heard.size], [[], 1]);
  store.history.steps.push({ step: 1 });
  for (const f of [...heard]) f("data");
  assert.deepEqual([moved, heard.size, seen.size], [[-1], 0, 1], "asked for as long as an earlier moment is shown");
  press(",");
  press(".");
  assert.deepEqual([moved, seen.size], [[-1, -1, 1], 0]);
  assert.equal(programKey({ store: null, past }, { key: ",", target: { matches: () => false } }), false);
});
