// The side panel's words in every state of ui.md section 8, and how it reads the kernel's messages.

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { createRequire, register } from "node:module";
import { test } from "node:test";

register("./ts_loader.mjs", import.meta.url);
const { look, phaseOf } = await import("../../labextension/src/states.ts");
const { announcement, statusWords } = await import("../../labextension/src/announce.ts");
const { startRows } = await import("../../labextension/src/start_steps.ts");
const { readAnswer, readKnobs, readLog, readMarks, readState, readView } = await import("../../labextension/src/protocol.ts");
const { formatCount, formatSpan, shortLogLine } = await import("../../labextension/src/format.ts");

const put = (text, args) => text.replace(/%(\d)/g, (_, place) => String(args[place - 1]));
const trans = { __: (text, ...args) => put(text, args), _n: (one, many, n, ...args) => put(n === 1 ? one : many, [n, ...args]) };

const ENGINE = {
  name: "main", state: "running", key: "k/main.7", model: "Qwen3-0.6B", dtype: "bf16", device: "cuda:0", attention: "triton",
  slots: 16384, since: 1, owner: true, paused: false, policy: "lpm", error: "", trouble: "", steps: [],
};
const STATS = { tokens_per_s: 604.2, running: 6, waiting: 2, kv_used: 15892, kv_locked: 9000, kv_total: 16384, reused: 0.9 };
const noon = new Date(2026, 10, 29, 10, 52, 7).getTime();

function facts(phase, { engine = {}, ...state } = {}, more = {}) {
  const whole = {
    seq: 1, engine: { ...ENGINE, ...engine }, stats: STATS, requests: [], more: 0, full: null, lost: 0, engines: [], log: [],
    message: "", ...state,
  };
  return {
    phase, title: "review.ipynb", state: whole, kernelBusy: false, silent: false, seconds: 2460, sinceMillis: noon, goneAt: noon, survivor: "", replay: null,
    ...more,
  };
}
const labels = shown => shown.buttons.map(one => one.label);

test("no kernel", () => {
  const shown = look(facts("no-kernel", {}, { title: "", state: null }), trans);
  assert.equal(shown.title, "No notebook is open");
  assert.equal(shown.text, "This panel follows the notebook or console you work in.");
  assert.deepEqual(labels(shown), ["Open recording…"]);
  assert.equal(shown.views, "none");
  const open = look(facts("no-kernel", {}, { state: null }), trans);
  assert.equal(open.title, "No kernel is running");
  assert.equal(open.text, "Start a kernel for review.ipynb to use sgnb there.");
});

test("kernel busy, not reachable", () => {
  const shown = look(facts("busy", {}, { state: null }), trans);
  assert.equal(shown.title, "Waiting for the running cell");
  assert.equal(shown.text, "This kernel answers the panel between cells only.");
  assert.deepEqual(labels(shown), []);
});

test("not loaded", () => {
  const shown = look(facts("not-loaded", {}, { state: null }), trans);
  assert.equal(shown.title, "sgnb is not loaded here");
  assert.equal(shown.text, "The kernel runs, without the extension.");
  assert.ok(shown.code);
  assert.equal(shown.after, "");
  assert.deepEqual(labels(shown), ["Load extension", "Open recording…"]);
  const busy = look(facts("not-loaded", {}, { state: null, kernelBusy: true }), trans);
  assert.equal(busy.after, "The kernel is busy. Loading starts after the current cell.");
});

test("no engine", () => {
  const shown = look(facts("no-engine", { engine: null }), trans);
  assert.equal(shown.title, "No engine is running.");
  assert.deepEqual(labels(shown), ["Start engine", "Open recording…"]);
  assert.equal(shown.views, "graph");
});

test("starting", () => {
  const steps = [
    { step: "process", done: 1, total: 1, seconds: 0.3 },
    { step: "tokenizer", done: 1, total: 1, seconds: 0.6 },
    { step: "weights", done: 0.71e9, total: 1.19e9, seconds: 2.2 },
    { step: "graphs", done: 0, total: 12, seconds: 0 },
  ];
  const shown = look(facts("starting", { engine: { state: "starting", steps, slots: 0, attention: "" } }, { seconds: 3.1 }), trans);
  assert.equal(shown.words, "starting, 3.1 s");
  assert.equal(shown.details, "bf16, cuda:0");
  assert.equal(shown.glyph, "◡");
  assert.deepEqual(labels(shown), ["Cancel start", "Open log"]);
  assert.equal(shown.after, "Cells that need the engine wait for it.");
  assert.equal(shown.views, "graph");
  const { rows, share } = startRows(steps.slice(0, 3), trans);
  assert.deepEqual(rows.map(row => row.words), ["process started", "tokenizer", "weights, 0.71 of 1.19 GB", "KV slots"]);
  assert.deepEqual(rows.map(row => row.time), ["0.3 s", "0.6 s", "2.2 s", ""]);
  assert.deepEqual(rows.map(row => row.state), ["done", "done", "current", "waiting"]);
  assert.ok(share > 0.6 && share < 0.7);
  assert.equal(startRows(steps, trans).rows.at(-1).words, "CUDA graphs, 0 of 12");
});

test("idle and running", () => {
  const idle = look(facts("idle"), trans);
  assert.deepEqual([idle.glyph, idle.words, idle.numbers, idle.controls, idle.views], ["○", "idle", "live", true, "all"]);
  const running = look(facts("running"), trans);
  assert.deepEqual([running.glyph, running.words], ["●", "running, 41 min"]);
  assert.equal(running.details, "bf16, cuda:0, triton, 16\u202f384\u00a0slots");
  const paused = look(facts("running", { engine: { paused: true } }), trans);
  assert.deepEqual([paused.glyph, paused.words], ["❚❚", "paused"]);
});

test("KV is full", () => {
  const full = { waiting: 14, oldest: 6.2, holder: "13 summary", slots: 5210, cell: "13", rids: ["c1.r7"] };
  const stats = { ...STATS, kv_locked: 16371 };
  const shown = look(facts("full", { full, stats }), trans);
  assert.deepEqual([shown.glyph, shown.words, shown.tone], ["▲", "KV is full", "warn"]);
  assert.equal(shown.sentence, "14 requests wait, the oldest for 6.2\u00a0s. 13 summary holds 5\u202f210 slots.");
  assert.equal(shown.details, "16\u202f371 of 16\u202f384 slots in use or locked");
  assert.deepEqual(labels(shown), ["Show holders", "Abort 13"]);
  assert.equal(shown.text, "");
  const kept = look(facts("full", { full, stats: { ...stats, kv_locked: 820 } }), trans);
  assert.equal(kept.text, "The other slots are kept for what the running requests may still write.");
  const one = look(facts("full", { full: { ...full, waiting: 1, rids: [] }, stats }), trans);
  assert.ok(one.sentence.startsWith("1 request waits, for 6.2\u00a0s."));
  assert.equal(one.buttons[1].why, "Another notebook runs it.");
});

test("F76: figures that are not of now are marked", () => {
  const quiet = facts("running", {}, { silent: true });
  assert.deepEqual([look(quiet, trans).words, look(quiet, trans).numbers], ["no news from the kernel", "last"]);
  assert.equal(statusWords(quiet, trans), "sgnb main: no news");
  assert.equal(look(facts("died"), trans).numbers, "none", "of an engine that is gone there are none");
  for (const phase of ["starting", "failed", "no-engine", "restarting", "kernel-gone", "not-loaded", "connecting", "busy"]) {
    assert.equal(look(facts(phase), trans).numbers, "none", phase);
    assert.equal(statusWords(facts(phase), trans), "", phase);
  }
});

test("stuck", () => {
  const trouble = "No step for 12 s, 3 requests running. The scheduler answers. The forward thread does not.";
  const shown = look(facts("stuck", { engine: { state: "stuck", trouble } }), trans);
  assert.deepEqual([shown.glyph, shown.words, shown.tone, shown.numbers], ["❚❚", "stuck", "trouble", "last"]);
  assert.equal(shown.sentence, "The scheduler answers. The forward thread does not.");
  assert.deepEqual(labels(shown), ["Abort all", "Restart engine", "Open log", "Save report…"]);
  assert.equal(shown.after, "Restart clears the cache. Variables in the notebook stay.");
  assert.equal(statusWords(facts("stuck", { engine: { state: "stuck", trouble } }), trans), "sgnb main: stuck");
});

test("died", () => {
  const error = "The engine was killed (signal 9). The machine was low on memory.\nlog";
  const log = ["0", "10:52:06 prefill 13: 512 tokens", "10:52:07 end of log"];
  const shown = look(facts("died", { engine: { state: "died", error }, lost: 3, log }), trans);
  assert.deepEqual([shown.glyph, shown.words, shown.numbers], ["✕", "ended 10:52:07", "none"]);
  assert.equal(shown.sentence, "The engine was killed (signal 9). The machine was low on memory.");
  assert.equal(shown.text, "3 requests failed. Their cells keep the text so far.");
  assert.deepEqual(shown.lines, log.slice(1));
  const told = [...log, `10:52:07 ▲ ${error.split("\n")[0]}`, "10:52:07 ending: fault"];
  const lines = look(facts("died", { engine: { state: "died", error }, log: told }), trans).lines;
  assert.deepEqual(lines, ["10:52:07 end of log", "10:52:07 ending: fault"], "what the sentence says is not said again");
  assert.deepEqual(labels(shown), ["Start again", "Open log", "Save report…", "Open recording…"]);
  assert.equal(shown.foot, "The views show the last state before the end.");
  assert.equal(look(facts("died", { lost: 1 }), trans).text, "1 request failed. Its cell keeps the text so far.");
  assert.equal(look(facts("died", { lost: 0 }), trans).text, "");
});

test("did not start", () => {
  const shown = look(facts("failed", { engine: { state: "failed", error: "The engine did not start: KeyError.\nlog" } }), trans);
  assert.equal(shown.words, "did not start");
  assert.equal(shown.sentence, "The engine did not start: KeyError.");
  assert.deepEqual(labels(shown), ["Start again", "Open log", "Save report…"]);
});

test("restarting, gone, connecting", () => {
  const title = phase => look(facts(phase, {}, { state: null }), trans).title;
  assert.equal(title("restarting"), "The kernel is restarting. Its engine ends with it.");
  const attached = look(facts("restarting", {}, { state: null, survivor: "big" }), trans);
  assert.equal(attached.title, "The kernel is restarting. Engine big runs on in its own notebook.");
  assert.equal(title("kernel-gone"), "The kernel ended at 10:52:07.");
  assert.equal(look(facts("connecting", {}, { state: null }), trans).text, "Asking the kernel …");
});

test("replay", () => {
  const replay = { file: "crash.sgnb", model: "Qwen3-0.6B", seconds: 58.2, steps: 6014, step: 2466, position: 23.9, playing: false, speed: 1 };
  const shown = look(facts("replay", {}, { state: null, replay }), trans);
  assert.equal(`${shown.name}, ${shown.words}`, "Recording, no engine");
  assert.equal(shown.model, "Qwen3-0.6B, 58.2 s, 6\u202f014 steps");
  assert.deepEqual(labels(shown), ["Close recording", "Export Perfetto…"]);
  assert.equal(shown.views, "all");
});

test("views that cannot be opened say why", () => {
  const why = (phase, more = {}) => look(facts(phase, {}, { state: null, ...more }), trans).viewsWhy;
  assert.equal(why("no-kernel", { title: "" }), "No notebook is open.");
  assert.equal(why("no-kernel"), "No kernel is running.");
  assert.equal(why("busy"), "The kernel has not answered yet.");
  assert.equal(why("not-loaded"), "sgnb is not loaded here.");
  assert.equal(look(facts("starting", { engine: { state: "starting" } }), trans).viewsWhy, "The engine is starting.");
  assert.equal(look(facts("no-engine", { engine: null }), trans).viewsWhy, "No engine is running.");
  assert.equal(why("restarting"), "The kernel has ended, and its engine with it.");
  assert.equal(look(facts("running"), trans).viewsWhy, "");
});

test("a state of the kernel is one phase of the panel", () => {
  const phase = (state, more = {}) => phaseOf(facts("idle", { engine: { state }, stats: { ...STATS, running: 0 }, ...more }).state);
  assert.equal(phase("idle"), "idle");
  assert.equal(phase("running"), "running");
  assert.equal(phase("idle", { stats: STATS }), "running");
  assert.equal(phase("running", { full: { waiting: 1 } }), "full");
  for (const same of ["starting", "stuck", "died", "failed"]) assert.equal(phase(same), same);
  assert.equal(phase("stopped"), "no-engine");
});

test("status bar and live region", () => {
  assert.equal(statusWords(facts("running"), trans), "sgnb main: 604 tok/s, KV 97 %");
  assert.equal(statusWords(facts("died"), trans), "");
  const running = facts("running");
  assert.equal(announcement(running, look(running, trans), trans), "Engine main: running");
});

test("messages of any shape are read without an exception", () => {
  for (const bad of [null, 3, "x", [], {}, { kind: "state" }, { kind: "state", engine: 5, requests: [null, 7], full: [] }]) {
    readState(bad), readLog(bad), readAnswer(bad), readView(bad), readMarks(bad), readKnobs(bad);
  }
  const state = readState({ kind: "state", engine: { state: "idle", paused: true }, requests: [{ name: "7 x" }], engines: ["a", { name: "b" }] });
  assert.deepEqual(state.engines.map(one => one.name), ["a", "b"]);
  assert.ok(state.engine.paused && state.engine.owner);
  assert.deepEqual(state.requests, [{ rid: "", name: "7 x", words: "" }]);
  assert.deepEqual(readAnswer({ kind: "answer", id: 3, data: 5 }), { id: 3, data: 5, error: "" });
  assert.equal(readView({ k: "frames", key: "k/main.7" }).key, "k/main.7");
  assert.equal(readMarks([{ line: 0, col: 2, end_col: 4, message: "m" }])[0].line, 1);
});

test("numbers, spans and log lines", () => {
  assert.equal(formatCount(1234567), "1\u202f234\u202f567");
  assert.deepEqual([3.14, 41, 2460, 7500].map(formatSpan), ["3.1 s", "41 s", "41 min", "2 h 5 min"]);
  assert.equal(shortLogLine("2026-11-29 10:41:09,123 77 WARNING short of slots"), "10:41:09 ▲ short of slots");
  assert.equal(shortLogLine("plain"), "plain");
});

test("whatever the panel says goes through the translation", () => {
  const ts = createRequire(new URL("../../labextension/package.json", import.meta.url))("typescript");
  const folder = new URL("../../labextension/src/", import.meta.url);
  // Not for readers of the panel: Perfetto's names, what describes a command's arguments and the plugin to programs.
  const exempt = new Set(["perfetto.ts"]);
  const inside = (node, test) => {
    for (let above = node.parent; above; above = above.parent) if (test(above)) return true;
    return false;
  };
  const translated = node => ts.isCallExpression(node) && /(^|\.)(__|_n)$/.test(node.expression.getText());
  const apart = node =>
    (ts.isPropertyAssignment(node) && ["description", "describedBy"].includes(node.name.getText())) ||
    (ts.isCallExpression(node) && (/^(console|text)\b/.test(node.expression.getText()) || ts.isImportDeclaration(node)));
  const found = [];
  for (const name of readdirSync(folder).filter(one => one.endsWith(".ts") && !one.endsWith(".d.ts") && !exempt.has(one))) {
    const source = ts.createSourceFile(name, readFileSync(new URL(name, folder), "utf8"), ts.ScriptTarget.ES2022, true);
    const visit = node => {
      const text = ts.isStringLiteral(node) || ts.isNoSubstitutionTemplateLiteral(node) ? node.text : ts.isTemplateHead(node) ? node.text : "";
      if (/^[A-Z][a-z]+[ .,:…]/.test(text) && !inside(node, translated) && !inside(node, apart)) found.push(`${name}: ${text}`);
      ts.forEachChild(node, visit);
    };
    visit(source);
  }
  assert.deepEqual(found, []);
});

test("a message to the control channel does not wait behind the main shell's", async () => {
  const { hurry } = await import("../../labextension/src/channel.ts");
  const sent = [];
  const make = more => ({ connectionStatus: "connected", _pendingMessages: ["history", "ours"], _sendMessage: (message, queue) => sent.push([message, queue]), ...more });
  const kernel = make({});
  hurry(kernel, "ours");
  assert.deepEqual(sent, [["ours", false]]);
  assert.deepEqual(kernel._pendingMessages, ["history"]);
  hurry(kernel, "ours"); // gone already
  for (const other of [make({ connectionStatus: "connecting" }), make({ _sendMessage: undefined }), make({ _pendingMessages: undefined })]) {
    hurry(other, "ours"); // no way to send it sooner: it keeps its place
    assert.ok(!other._pendingMessages || other._pendingMessages.includes("ours"));
  }
  assert.equal(sent.length, 1);
});
