// The batch timeline's index, lanes, figures and sentences; with Node's own test runner.

import assert from "node:assert/strict";
import test from "node:test";

import { Store } from "../../sgnb/widgets/static/store.js";
import { History, requestCalled } from "../../sgnb/widgets/static/history.js";
import { burstStart, columnsOf, lanesIn, percentile, ratesOf, ticksOf, TimelineIndex, waitsOf, windowFigures } from "../../sgnb/widgets/static/timeline_data.js";
import { barsOf } from "../../sgnb/widgets/static/timeline_overview.js";
import { runsOf } from "../../sgnb/widgets/static/timeline_steps.js";
import { TimelineView } from "../../sgnb/widgets/static/timeline.js";
import { aheadWords, decisionsOf, endReason, endWord, failedWords, knobWords, modesWords, placeOf, plain, policyAt, rowWords, stateWord, waitWords } from "../../sgnb/widgets/static/timeline_words.js";
import { Script } from "./scenario.mjs";
import { batch, long } from "./timeline_scenario.mjs";

function filled(script) {
  const store = new Store("test/timeline");
  store.load(script.picture);
  assert.ok(store.feedEvents(script.events, { time: script.time }));
  const index = new TimelineIndex(store.history);
  index.sync();
  return { store, index, history: store.history, find: rid => store.history.requests.get(rid) ?? { rid } };
}

const eventsOf = (script, t) => script.events.map(({ event }) => event).filter(event => event.t === t);
const sentences = ({ history }, event) => decisionsOf(event, history, { before: event.time - 0.008 }).map(plain);

test("lanes hold every row of every step, once", () => {
  const script = batch();
  const { index } = filled(script);
  const steps = eventsOf(script, "step");
  assert.equal(index.steps.length, steps.length);
  const expected = new Map();
  for (const step of steps) for (const row of step.rows) expected.set(row.rid, [...(expected.get(row.rid) ?? []), `${step.step} ${row.kind} ${row.tokens}`]);
  for (const [rid, rows] of expected) {
    const found = [];
    for (const piece of index.lanes.get(rid).pieces) {
      for (let place = piece.first; place <= piece.last; place++) found.push(`${index.at(place).step} ${piece.kind} ${piece.kind === "decode" ? 1 : piece.tokens}`);
    }
    assert.deepEqual(found, rows, rid);
  }
});

test("steps never overlap on the model, and begin when they were planned or the one before had ended", () => {
  const script = batch();
  const { index } = filled(script);
  let end = 0;
  for (const step of index.steps) {
    assert.ok(step.from >= end - 1e-12 && step.from >= step.event.time - 1e-12);
    assert.ok(step.from === step.event.time || step.from === end);
    end = step.sampled;
  }
});

test("reuse is a notch once a turn, chunks that go on have none", () => {
  const { index } = filled(batch());
  const notches = rid => index.lanes.get(rid).pieces.filter(piece => piece.reused).map(piece => piece.reused);
  assert.deepEqual(notches("c1.s"), []);
  assert.deepEqual(notches("c1.v"), [312]);
  assert.deepEqual(notches("c1.t0"), [312, 440]);
  assert.deepEqual(index.lanes.get("c1.s").pieces.filter(piece => piece.kind === "prefill").map(piece => piece.tokens), [512, 512, 436]);
});

test("waiting has its reason in words", () => {
  const { index, store, find, history } = filled(batch());
  const words = rid => waitsOf({ record: history.requests.get(rid), ...index.lanes.get(rid) }, store.now).map(wait => waitWords(wait, find));
  assert.deepEqual(words("c1.x"), ["compiling grammar"]);
  assert.deepEqual(words("c1.a1"), ["same prefix as 12.0"]);
  assert.deepEqual(words("c1.w"), ["short of KV: needs 680, has 412"]);
  assert.deepEqual(words("c1.t0"), ["", "retracted"]);
  const other = (reason, more = {}) => waitWords({ wait: { reason, needs: 1900, has: 0, ...more }, why: "" }, find);
  assert.equal(other("rows"), "no row is free");
  assert.equal(other("chunk"), "the step's chunk is full");
  assert.equal(other("input"), "too much input: needs 1\u2009900, has 0");
  assert.equal(waitWords({ wait: null, why: "quantum" }, find), "its time slice is over");
  assert.equal(waitWords({ wait: null, why: "priority" }, find), "made way for a higher priority");
  assert.equal(waitWords({ wait: { reason: "kv", needs: 9, has: 3 }, why: "kv_full" }, find), "retracted, short of KV: needs 9, has 3");
});

test("what was decided is told in exact sentences", () => {
  const script = batch();
  const all = filled(script);
  const steps = eventsOf(script, "step");
  const said = steps.map(step => sentences(all, step));
  const of = words => said.find(list => list.some(sentence => sentence.includes(words)));
  assert.equal(of("15.1")[0], "Admitted 15.0 and 15.1: longest cached prefix, 312 of 432.");
  assert.match(of("15.1")[1], /^Not admitted 14: its grammar is compiling, \d+ ms so far\.$/);
  assert.deepEqual(of("12.1"), ["Not admitted 12.1, 12.2 and 12.3: 12.0 is computing the same prefix."]);
  assert.deepEqual(of("Policy"), ["Policy is now fcfs."]);
  assert.deepEqual(of("Retracted"), [
    "Not admitted 17: short of KV, needs 680 slots, has 412.",
    "Retracted 15.0: short of KV, decoding needs 9 slots, has 3.",
    "Evicted 212 tokens in 1 node for 13 (least recently used).",
  ]);
});

test("every reason of a note has its sentence", () => {
  const script = new Script();
  for (const rid of ["a", "b"]) script.request(rid, rid === "a" ? "5" : "6", "", "x", 40);
  script.admit("a", "5", "", "x", 40, { matched: 0, node: 0, cause: "cold" });
  const note = (what, reason, more = {}) => ({ rid: "a", what, reason, unit: "slots", needs: 20, has: 10, ...more });
  const told = (notes, policy = "fcfs") => {
    const { history } = filled(script);
    history.firstPolicy = policy;
    return decisionsOf({ time: script.time, step: 1, notes }, history, { before: script.time - 1 }).map(plain);
  };
  assert.deepEqual(told([note("deferred", "rows")]), ["Not admitted 5: no row is free, as many requests run as may."]);
  assert.deepEqual(told([note("deferred", "chunk", { unit: "tokens" })]), ["Not admitted 5: the step's chunk is full, needs 20 tokens, has 10."]);
  assert.deepEqual(told([note("deferred", "input", { unit: "tokens" })]), ["Not admitted 5: too much input for one step, needs 20 tokens, has 10."]);
  assert.deepEqual(told([note("suspended", "quantum", { needs: 0, has: 88 })]), ["Suspended 5: its time slice is over, its 88 slots can be evicted."]);
  assert.deepEqual(told([note("suspended", "priority", { needs: 0, has: 1 })]), ["Suspended 5: a request of higher priority came, its 1 slot can be evicted."]);
  assert.deepEqual(told([note("suspended", "memory", { needs: 0, has: 3 })]), ["Suspended 5: its step ran out of memory and is tried again in parts, its 3 slots can be evicted."]);
  assert.deepEqual(told([note("deferred", "leader", { leader: "b" })]), ["Not admitted 5: 6 is computing the same prefix."]);
  assert.deepEqual(told([note("joined", "copied", { unit: "tokens", needs: 60, has: 52 })]), ["Joined 5: 52 of 60 tokens copied from its branches."]);
  assert.deepEqual(told([note("recomputed", "join", { unit: "tokens", needs: 60, has: 0 })]), ["Computed anew 5: 60 copied tokens were evicted."]);
  assert.deepEqual(told([note("evicted", "lru")]), [], "the tree's events tell it, with the nodes");
  const orders = { lpm: "longest cached prefix, 0 of 40 cached", fcfs: "first come, 0 of 40 cached", lof: "most new tokens allowed, 0 of 40 cached", "dfs-weight": "its branch has most waiting, 0 of 40 cached", random: "drawn at random, 0 of 40 cached", priority: "highest priority, 0 of 40 cached", "": "0 of 40 cached" };
  for (const [policy, words] of Object.entries(orders)) assert.deepEqual(told([note("admitted", "fits")], policy), [`Admitted 5: ${words}.`]);
});

test("a request that comes back says what was still cached, and where the rest went", () => {
  const script = new Script();
  const told = match => {
    script.request("a", "5", "", "x", 40);
    script.admit("a", "5", "", "x", 40, { matched: 0, node: 0, cause: "cold" });
    const all = filled(script);
    const record = all.history.requests.get("a");
    Object.assign(record, { turns: [record.turns[0], { from: script.time, to: 0, end: "", why: "", match }] });
    const notes = [{ rid: "a", what: "admitted", reason: "fits", unit: "slots", needs: 30, has: 90 }];
    return decisionsOf({ time: script.time, step: 1, notes }, all.history, { before: script.time - 1 }).map(plain);
  };
  assert.deepEqual(told({ matched: 48, cause: "hit", node: 0 }), ["Admitted 5: longest cached prefix, resumed, 48 tokens still cached."]);
  const evicted = told({ matched: 12, cause: "evicted", node: 0, gone_at: script.time - 1.5, gone_for: "", gone_tokens: 28, gone_policy: "lru" });
  assert.deepEqual(evicted, ["Admitted 5: longest cached prefix, resumed, 12 tokens still cached, the rest was evicted 1.50 s before."]);
});

test("a step says why it was not planned ahead, and that it failed", () => {
  for (const why of ["grammar", "penalty", "scores", "slots", "nothing"]) assert.match(aheadWords({ no_overlap: why }), /^Not planned ahead: .+\.$/, why);
  for (const how of ["memory", "skipped", "error"]) assert.match(failedWords({ failed: how }), /^The step .+\.$/, how);
  assert.equal(aheadWords({}) + failedWords({}), "");
});

test("the policy at a step is that of the last switch before it", () => {
  const { history } = filled(batch());
  const { step } = history.knobs[0];
  assert.equal(policyAt(history, step - 1), "lpm");
  assert.equal(policyAt(history, step), "fcfs");
  assert.deepEqual(knobWords({ knobs: { chunked_prefill_size: 64, enable_mixed_chunk: false, objective: "latency" } }), ["chunked_prefill_size is now 64", "enable_mixed_chunk is now off", "Objective is now latency"]);
  history.firstPolicy = "";
  assert.equal(policyAt(history, 1), "");
});

test("a search means the request whose name begins so, before one that only has it", () => {
  const history = new History();
  for (const [rid, cell, name] of [["c1.r1", "17", "answer"], ["c1.r2", "7", "verdict"]]) history.requests.set(rid, { rid, label: { cell, name } });
  assert.deepEqual(["7", "17", "Verdict", "SWER", "nobody"].map(text => requestCalled(history, text)?.rid), ["c1.r2", "c1.r1", "c1.r2", "c1.r1", undefined]);
});

test("ends, rows, modes and places have their words", () => {
  assert.deepEqual(["stop", "length", "eos", "grammar", "abort", "context", "bad_logits"].map(endWord), ["finished", "finished", "finished", "finished", "aborted", "finished, context full", "failed"]);
  assert.deepEqual(["stop", "length", "eos", "grammar", "abort", "context", "bad_logits", undefined].map(endReason), ["stop", "token limit", "end of text", "grammar complete", "", "", "bad_logits", ""]);
  assert.deepEqual(["queued", "compiling", "admitted", "first_token", "retracted"].map(stateWord), ["queued", "compiling", "prefill", "decode", "retracted"]);
  const record = { prompt: 400, match: { matched: 312 } };
  assert.deepEqual(rowWords({ kind: "prefill", tokens: 88, prefix: 312 }, record), ["prefill", "88 new, 312 reused"]);
  assert.deepEqual(rowWords({ kind: "prefill", tokens: 88, prefix: 200 }, record), ["prefill", "88 new, 200 before"]);
  assert.deepEqual(rowWords({ kind: "decode", tokens: 1, prefix: 410 }, record), ["decode", "token 11"]);
  assert.deepEqual(rowWords({ kind: "score", tokens: 3, prefix: 0 }, record), ["score", "3 scored"]);
  assert.equal(modesWords({ decode: 41, mixed: 11, extend: 1 }), "41 decode, 11 mixed, 1 extend step");
  assert.equal(modesWords({ decode: 2 }), "2 decode steps");
  assert.equal(modesWords({ decode: 1 }), "1 decode step");
  assert.equal(modesWords({}), "no step");
  assert.equal(placeOf({ label: { cell: "7", branch: "1", name: "x" } }), "7.1");
  assert.equal(placeOf({ rid: "c1.r9" }), "c1.r9");
});

test("figures of a window agree with a recount", () => {
  const script = batch();
  const { index } = filled(script);
  const [from, to] = [index.steps[250].from, index.steps[280].sampled];
  const inside = index.steps.filter(step => step.sampled > from && step.from < to);
  const figures = windowFigures(index, from, to);
  assert.equal(figures.steps, inside.length);
  const gaps = [];
  const last = {};
  let busy = 0;
  for (const step of inside) {
    busy += step.sampled - step.from;
    for (const row of step.event.rows) {
      if (row.kind === "decode" && last[row.rid]) gaps.push(step.sampled - last[row.rid]);
      last[row.rid] = step.sampled;
    }
  }
  gaps.sort((a, b) => a - b);
  assert.equal(figures.gaps, gaps.length);
  assert.equal(figures.p50, gaps[Math.floor(0.5 * gaps.length)]);
  assert.equal(figures.p95, gaps[Math.floor(0.95 * gaps.length)]);
  assert.ok(Math.abs(figures.idle - (1 - busy / (to - from))) < 1e-9);
  assert.equal(windowFigures(index, 0, 1).idle, null);
});

test("percentiles by selection are those of sorting", () => {
  let seed = 5;
  const random = () => (seed = (seed * 1103515245 + 12345) % 2147483648) / 2147483648;
  for (let size = 1; size < 60; size++) {
    const values = Array.from({ length: size }, () => Math.round(random() * 9));
    const sorted = [...values].sort((a, b) => a - b);
    for (const share of [0, 0.5, 0.95, 1]) assert.equal(percentile([...values], share), sorted[Math.min(size - 1, Math.floor(share * size))]);
  }
  assert.equal(percentile([], 0.5), null);
});

test("columns hold the mean of their steps, and all tokens of the window", () => {
  const { index } = filled(long(2000));
  const [from, to] = [index.steps[0].from, index.steps[1999].sampled];
  const columns = columnsOf(index, from, to, 400);
  assert.ok(columns.length <= 201 && columns.length > 150);
  assert.equal(columns.reduce((sum, one) => sum + one.steps, 0), 2000);
  const tokens = columns.reduce((sum, one) => sum + one.steps * (one.prefill + one.decode), 0);
  const all = index.steps.reduce((sum, step) => sum + step.prefill + step.decode, 0);
  assert.ok(Math.abs(tokens - all) < 1e-6);
  // Columns that look alike are one box; together they reach as far, and a column that differs keeps a box of its own.
  const alike = columns.map((column, i) => ({ ...column, prefill: i === 40 ? 300 : 0, decode: 8 }));
  const runs = runsOf(alike, 20);
  assert.equal(runs.length, 3);
  assert.equal(runs[0].x, columns[0].x);
  assert.ok(Math.abs(runs[1].x - columns[40].x) < 1e-9 && runs[1].cut > 0 && runs[0].cut === 0);
  assert.ok(runs[1].high > runs[0].high && runs[0].high === runs[0].low);
  assert.equal(runs[2].x + runs[2].wide, columns.at(-1).end);
  const gap = [{ x: 0, end: 2, prefill: 0, decode: 4 }, { x: 10, end: 12, prefill: 0, decode: 4 }];
  assert.equal(runsOf(gap, 20).length, 2, "the model was idle between them");
  const { prefill, decode } = ratesOf(index, from - 1, to + 1, 50);
  const whole = rates => rates.reduce((sum, rate) => sum + rate * ((to - from + 2) / 50), 0);
  assert.ok(Math.abs(whole(prefill) - index.steps.reduce((sum, step) => sum + step.prefill, 0)) < 1e-6);
  assert.ok(Math.abs(whole(prefill) + whole(decode) - all) < 1e-6);
  assert.deepEqual(barsOf(new Float64Array([0, 30, 0]), new Float64Array([0, 70, 25]), 20), [{ high: 0, low: 0 }, { high: 20, low: 14 }, { high: 10, low: 10 }]);
});

test("ticks stand apart and are round", () => {
  for (const span of [0.001, 0.037, 0.6, 9, 600]) {
    const { step, times } = ticksOf(1000, 1000 + span, 750, 88);
    assert.ok((step / span) * 750 >= 87.9, `${span}`);
    assert.ok(times.length >= 2 && times.length <= 9);
    assert.match(step.toExponential(), /^[1250]/);
  }
  const ms = ticksOf(1780000000.0001, 1780000000.0011, 780).after; // the clock of an engine; the shortest window
  assert.deepEqual(ms.slice(1, 4), ["+0.2 ms", "+0.4 ms", "+0.6 ms"]);
  assert.deepEqual(ticksOf(1780000000, 1780000009, 780).after.slice(0, 3), ["+0 ms", "+2 s", "+4 s"]);
});

test("lanes leave when they are out of view, in order of arrival", () => {
  const script = long(1200);
  const { index, history } = filled(script);
  const [from, to] = [index.steps[500].from, index.steps[600].from];
  const shown = lanesIn(index, from, to, index.end);
  assert.deepEqual(shown.map(lane => lane.record.queued), shown.map(lane => lane.record.queued).sort((a, b) => a - b));
  for (const record of history.requests.values()) {
    const seen = record.queued <= to && !(record.finished && record.finished < from);
    assert.equal(shown.some(lane => lane.record === record), seen);
  }
});

test("ten minutes at 100 steps a second stay bounded, and equal a fresh index", () => {
  const script = long(66000, 4);
  const store = new Store("test/long");
  store.load(script.picture);
  const index = new TimelineIndex(store.history);
  for (let at = 0; at < script.events.length; at += 5000) {
    assert.ok(store.feedEvents(script.events.slice(at, at + 5000), { time: script.time }));
    index.sync();
  }
  assert.equal(store.history.steps.length, 60000);
  assert.ok(index.steps.length < 62100, `${index.steps.length}`);
  assert.ok(index.bins.size < 6300);
  assert.ok(index.lanes.size <= store.history.requests.size + 40);
  const fresh = new TimelineIndex(store.history);
  fresh.sync();
  const [from, to] = [index.end - 30, index.end];
  assert.deepEqual(windowFigures(index, from, to).p95, windowFigures(fresh, from, to).p95);
  assert.equal(index.byNumber(script.step).step, script.step);
  const piece = [...index.lanes.values()].at(-1).pieces.at(-1);
  assert.equal(index.at(piece.last).step, index.steps.at(-1).step);
});

test("a burst reaches back over requests that overlap", () => {
  const { history, index } = filled(batch());
  const first = history.requests.get("c1.v");
  assert.equal(burstStart(history, index.end), first.queued);
});

test("a request that still runs is of the burst, also when one that came later ended long ago", () => {
  const script = new Script();
  script.request("old", "3", "", "story", 20).later(0.1).request("new", "4", "", "label", 20).later(0.2);
  script.state("new", "4", "", "label", "finished", { reason: "stop" }).later(5);
  script.pass([]);
  const { history } = filled(script);
  assert.equal(burstStart(history, script.time), script.began);
  assert.equal(burstStart(history, script.began + 0.05), script.began, "of an earlier moment, what was there then");
});

test("going to a step shows that step, however short it was, and stepping visits each", () => {
  const script = new Script({ slots: 64 });
  for (let i = 0; i < 40; i++) script.put({ t: "step", step: ++script.step, mode: "decode", rows: [], schedule_seconds: 0.004, forward_seconds: i % 3 ? 0.0001 : 0.02, sample_seconds: 0, process_seconds: 0.0003 }).later(0.0005);
  const { store } = filled(script);
  for (let step = 1; step < 40; step++) {
    store.goToStep(step);
    assert.equal(store.step, step);
  }
  for (let step = 38; step > 0; step--) {
    store.stepBy(-1);
    assert.equal(store.step, step);
  }
  for (let step = 2; step < 40; step++) {
    store.stepBy(1);
    assert.equal(store.step, step);
  }
  store.stepBy(1);
  store.stepBy(1);
  assert.ok(store.isLive);
});

test("policy, chunk and mixed batches in the head are those of the moment that is shown", () => {
  const script = new Script();
  script.later(1).put({ t: "step", step: 1, mode: "decode", rows: [], time: script.time });
  const before = script.time;
  script.later(1).put({ t: "knob", step: 2, objective: "", knobs: { chunked_prefill_size: -1, enable_mixed_chunk: false } });
  script.later(1).put({ t: "knob", step: 2, objective: "", knobs: { schedule_policy: "fcfs" } });
  for (let i = 0; i < 450; i++) script.later(0.01).put({ t: "step", step: 2 + i, mode: "decode", rows: [], time: script.time });
  const { store } = filled(script);
  const facts = () => TimelineView.prototype.facts.call({ store });
  assert.equal(facts(), "Policy fcfs · No chunking · Mixed batches off");
  store.goTo(before);
  assert.equal(facts(), "Policy lpm · Chunk 512 · Mixed batches on");
  store.goTo(before + 1.5);
  assert.equal(facts(), "Policy lpm · No chunking · Mixed batches off");
  store.goTo(script.time - 0.1); // folded on from a later point
  assert.equal(facts(), "Policy fcfs · No chunking · Mixed batches off");
  store.goTo(before);
  assert.equal(facts(), "Policy lpm · Chunk 512 · Mixed batches on");
});
