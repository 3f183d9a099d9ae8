// Layouts, words of causes, formats, and the contrast of the palette; with Node's own test runner.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

import { equalAgain, reasonOf } from "../../sgnb/widgets/static/causes.js";
import { refocus } from "../../sgnb/widgets/static/dom.js";
import { EngineState } from "../../sgnb/widgets/static/fold.js";
import { before, count, cutAt, memory, oneLine, seconds, share } from "../../sgnb/widgets/static/format.js";
import { bandsOf, cellWord, changesOf, codesOf, holdersOf, layoutMap, LOCKED, reportOf, scanRuns, SELECTED, slotTo } from "../../sgnb/widgets/static/kv_data.js";
import { KVMapView } from "../../sgnb/widgets/static/kv.js";
import { History } from "../../sgnb/widgets/static/history.js";
import { NodeTexts } from "../../sgnb/widgets/static/node_texts.js";
import { RunningTexts } from "../../sgnb/widgets/static/running_texts.js";
import { Store } from "../../sgnb/widgets/static/store.js";
import { TreeView } from "../../sgnb/widgets/static/tree.js";
import { ageShare, flightsOf, layoutTree, pathFacts, reach, recentlyGone, runsOf, tickStep } from "../../sgnb/widgets/static/tree_data.js";
import { cast, large, Script } from "./scenario.mjs";

function stateOf(script) {
  const store = new Store("test/views");
  store.load(script.picture);
  assert.ok(store.feedEvents(script.events, { time: script.time }));
  return store;
}

// ---------------------------------------------------------------- words

const RECORDS = {
  "c1.r7": { rid: "c1.r7", label: { cell: "9", branch: "1", name: "finding" } },
  "c1.r8": { rid: "c1.r8", label: { cell: "12", branch: "0", name: "label" } },
};
const why = (match, record = {}) =>
  reasonOf({ prompt: 335, cached: match.matched, admitted: 100, ...record, match }, { find: rid => RECORDS[rid] ?? null, stepAt: () => 1389, from: "8", pageSize: 16 });

test("every cause has its exact words", () => {
  const cases = [
    [{ cause: "short", matched: 312 }, {}, "new text", ["Nothing after token 312 was ever computed."], ""],
    [{ cause: "cold", matched: 0 }, {}, "new text", ["Nothing after token 0 was ever computed."], ""],
    [{ cause: "diverged", matched: 312, diverged_at: 312, equal_again: 2 }, {}, "new text", ["Nothing after token 312 was ever computed."], ""],
    [
      { cause: "diverged", matched: 17, diverged_at: 17, equal_again: 314 }, {}, "changed at token 18",
      [
        "It is the same as the nearest cached path, from cell [8], up to token 17 of 335. Then they differ.",
        "After the difference 314 tokens are equal again, but a prefix cache cannot reuse them.",
      ],
      "Put text that changes (times, ids, names) after text that stays.",
    ],
    [
      { cause: "diverged", matched: 0, diverged_at: 0, equal_again: 23 }, {}, "changed at token 1",
      [
        "It differs from the nearest cached path, from cell [8], from its first token on.",
        "After the difference 23 tokens are equal again, but a prefix cache cannot reuse them.",
      ],
      "Put text that changes (times, ids, names) after text that stays.",
    ],
    [
      { cause: "evicted", matched: 143, gone_at: 95.8, gone_for: "c1.r7", gone_tokens: 38, gone_policy: "lru" }, {}, "evicted 4.20 s before",
      ["38 tokens were cached and evicted at step 1\u2009389 for 9.1 finding (least recently used)."], "Enlarge the cache, or pin the prefix.",
    ],
    [
      { cause: "short", matched: 248, waited_for: "c1.r8", waited: 0.031 }, {}, "new text, waited 31 ms for 12.0 label",
      ["The same prefix was being computed. It waited 31 ms, then reused 248.", "Nothing after token 248 was ever computed."], "",
    ],
    [{ cause: "short", matched: 0 }, { twice: 40 }, "new text, computed twice", ["Nothing after token 0 was ever computed.", "Both computed it; one copy was freed."], ""],
    [{ cause: "hit", matched: 334 }, {}, "last token", ["The last token of a prompt is always computed."], ""],
    [{ cause: "page", matched: 320, half_page: 7 }, {}, "page of 16", ["7 tokens do not fill a page."], ""],
    [
      { cause: "logprobs", matched: 12 }, {}, "logprobs from token 12",
      ["Prompt logprobs were asked for; from there on nothing can be reused."], "Ask for them only where needed.",
    ],
    [{ cause: "namespace", matched: 0 }, {}, "other name space", ["Cached under another cache salt or adapter."], ""],
    [
      { cause: "retokenized", matched: 20 }, {}, "tokens differ, text equal",
      ["Same text, cut into other tokens at the join of two parts."], "Do not end a part with a space.",
    ],
    [{ cause: "flushed", matched: 20 }, {}, "flushed", ["The rest was cached until the cache was flushed."], ""],
    [{ cause: "disabled", matched: 0 }, {}, "cache off", ["The engine keeps no prefix cache."], ""],
  ];
  for (const [match, record, word, sentences, advice] of cases) {
    assert.deepEqual(why(match, record), { word, sentences, advice });
  }
});

test("behind a difference texts are aligned where they are equal again", () => {
  assert.deepEqual(equalAgain("1:07. You review", "0:52. You review"), [4, 4]);
  assert.deepEqual(equalAgain("a name. The rest of it", "The rest of it and more"), [8, 0]);
  assert.deepEqual(equalAgain("nothing", "of it at all"), null);
  assert.deepEqual(equalAgain("", "cached only"), null);
});

test("numbers and times are written as everywhere", () => {
  assert.deepEqual([0, 999, 1171, 1234567, null].map(count), ["0", "999", "1\u2009171", "1\u2009234\u2009567", "–"]);
  assert.deepEqual([0.0091, 0.031, 0.38, 41.26, 2460].map(value => seconds(value)), ["9 ms", "31 ms", "0.38 s", "41.3 s", "41 min"]);
  assert.equal(seconds(0.0091, true), "9.1 ms");
  assert.deepEqual([0, 400, 1 << 20, 1.75 * 2 ** 30, 1000 * 2 ** 20, 139 * 2 ** 30].map(memory), ["0.00 KiB", "0.391 KiB", "1.00 MiB", "1.75 GiB", "1000 MiB", "139 GiB"]);
  assert.deepEqual([before(2.41), share(9, 10), share(0, 0)], ["−2.41 s", "90 %", "–"]);
  assert.equal(oneLine("a\nb\u202Ec\u0007"), "a⏎b[U+202E]c[U+0007]");
  assert.equal(oneLine(`a${"\u0301".repeat(100)}b`), `a${"\u0301".repeat(8)}[+92 marks]b`);
});

// ---------------------------------------------------------------- tree

test("blocks do not overlap, children touch their parent, nothing is lost", () => {
  const store = stateOf(cast());
  const state = store.live;
  const scale = 800 / reach(state);
  const { blocks, rows } = layoutTree(state, scale, { flights: flightsOf(state), gone: recentlyGone(state, store.live.time) });
  const taken = new Map();
  let shown = 0;
  let folded = 0;
  for (const block of blocks) {
    if (block.kind === "fold") folded += block.nodes;
    if (block.kind !== "node") continue;
    shown++;
    for (let row = block.row; row < block.row + block.rows; row++) {
      for (const other of taken.get(row) ?? []) assert.ok(block.start >= other.start + other.length || other.start >= block.start + block.length);
      taken.set(row, [...(taken.get(row) ?? []), block]);
    }
    const parent = blocks.find(other => other.kind === "node" && other.id === block.node.parent);
    if (parent) assert.ok(parent.start + parent.length === block.start && block.row >= parent.row && block.row < parent.row + parent.rows);
  }
  assert.equal(shown + folded, state.nodes.size);
  assert.ok(blocks.every(block => block.row + block.rows <= rows));
  assert.equal(blocks.filter(block => block.kind === "gone").length, 2);
  assert.ok(blocks.some(block => block.kind === "flight" && block.id === "c1.r11" && block.decode === 25));
});

test("at most twelve idle siblings are drawn; opened folds and the selected path always", () => {
  const store = stateOf(cast());
  const labels = [...store.live.nodes.values()].find(node => node.length === 248);
  const drawn = options => layoutTree(store.live, 2, options).blocks.filter(block => block.kind === "node" && block.node.parent === labels.id);
  assert.equal(drawn({}).filter(block => !block.node.locks).length, 12);
  assert.equal(drawn({ open: new Set([labels.id]) }).length, labels.children.length);
  const hidden = labels.children.find(id => !drawn({}).some(block => block.id === id));
  assert.ok(drawn({ keep: new Set([hidden]) }).some(block => block.id === hidden));
});

test("a layout is of the tree as it is now, not as it was", () => {
  const script = cast();
  const store = stateOf(script);
  const seen = () => layoutTree(store.live, 1).blocks.filter(block => block.kind === "node").map(block => block.id);
  const hidden = [...store.live.nodes.keys()].filter(id => !seen().includes(id));
  const next = () => store.feedEvents(script.events.slice(-1), { time: script.time });
  script.lock(hidden[0]);
  next();
  assert.ok(seen().includes(hidden[0]), "what is locked leaves its fold");
  script.lock(hidden[0], "unlock");
  next();
  script.later(1).insert(1, "newest", 90);
  next();
  assert.ok(seen().includes(script.ids));
  const { time } = script;
  script.later(1).evict(script.ids, "c1.r9");
  next();
  assert.ok(!seen().includes(script.ids));
  store.goTo(time);
  assert.ok(layoutTree(store.shown, 1).blocks.some(block => block.id === script.ids), "of another moment: its own");
});

test("ten thousand nodes are laid out in rows that fit a scroll", () => {
  const store = stateOf(large(10000, 400000));
  const began = process.cpuUsage();
  const { blocks } = layoutTree(store.live, 800 / reach(store.live));
  assert.ok(process.cpuUsage(began).user < 1e6); // a bound against a wrong order of growth, not a benchmark
  assert.ok(blocks.length < 8000);
});

/** `size` nodes of three tokens, each below the one that `parentOf(number)` names (0: below the root), used one after another. */
function grown(size, parentOf) {
  const nodes = [];
  for (let number = 0; number < size; number++) {
    const above = nodes[parentOf(number) - 2];
    nodes.push([number + 2, above ? above[0] : 1, above ? above[2] + above[3] : 0, 3, 0, 0, 0, 0, number / 1000, 1]);
  }
  return EngineState.fromSnapshot({ slots: 9, page_size: 1, seq: 5, time: size, step: 1, nodes, runs: [], requests: [] });
}

test("F77: of a hundred thousand nodes a bounded number is laid out, and none is lost", () => {
  const size = 100000;
  let seed = 7;
  const random = limit => (seed = (seed * 1103515245 + 12345) % 2147483648) % limit;
  const shapes = { bushy: number => (number < 50 ? 0 : 2 + random(number)), flat: () => 0, deep: number => (number ? number + 1 : 0) };
  for (const [shape, parentOf] of Object.entries(shapes)) {
    const state = grown(size, parentOf);
    const lay = (options = {}) => layoutTree(state, 800 / reach(state), { flights: flightsOf(state), ...options });
    const { blocks, rows } = lay();
    assert.ok(rows < 2100 && blocks.length < 5000, `${shape}: ${rows} rows, ${blocks.length} blocks`);
    const shown = blocks.filter(block => block.kind === "node");
    const folded = blocks.filter(block => block.kind === "fold").reduce((sum, block) => sum + block.nodes, 0);
    assert.equal(shown.length + folded, size, shape);
    const leaf = shown.findLast(block => !block.node.children.length)?.node;
    if (leaf) {
      // So large a tree is not measured anew at once: what went meanwhile is not drawn.
      const { id, parent, start, length } = leaf;
      state.apply(6, { t: "radix", kind: "evict", node: id, parent, start, length, time: size });
      assert.ok(!state.odd && !lay().blocks.some(block => block.kind === "node" && block.id === id), shape);
    }
    const far = shape === "flat" ? [size] : state.path(shape === "deep" ? 400 : size);
    const kept = lay({ keep: new Set(far) }).blocks;
    for (const id of far) assert.ok(kept.some(block => block.id === id), `${shape}: what is selected is shown`);
  }
});

test("F77: a label of any length ends behind a whole letter", () => {
  const family = "👨‍👩‍👧‍👦";
  assert.equal(cutAt(`ab${family}c`, 2 + family.length), `ab${family}`);
  assert.equal(cutAt(`ab${family}c`, 1 + family.length), "ab", "never half of a family");
  assert.equal(cutAt("e\u0301e\u0301", 3), "e\u0301");
  assert.equal(cutAt("😀😀", 3), "😀");
  assert.equal(cutAt("short", 5), "short");
  const flood = `a${"\u0301".repeat(100000)}`;
  assert.equal(cutAt(flood, 40).length, 40, "a flood of marks is cut where it is");
  const shown = oneLine("😀".repeat(50000), 160);
  assert.ok(shown.length <= 160 && shown.endsWith("😀…") && !shown.includes("U+"));
});

test("age is a log scale from one second to ten minutes", () => {
  assert.deepEqual([0, 1, 600, 6000].map(ageShare), [0, 0, 1, 1]);
  assert.ok(ageShare(10) > 0.3 && ageShare(10) < 0.4);
  assert.deepEqual([tickStep(1.6), tickStep(8), tickStep(0.1)], [50, 10, 1000]);
});

// ---------------------------------------------------------------- map

test("the map fits its place and shows every slot", () => {
  for (const [slots, width, pitch] of [[16384, 812, 4], [16384, 640, 4], [65536, 812, 2], [1 << 20, 812, 1], [100, 300, 12], [700, 812, 12], [2048, 812, 6], [6000, 812, 4]]) {
    const layout = layoutMap(slots, 1, width);
    assert.equal(layout.pitch, pitch);
    assert.ok(layout.cols * layout.rows * layout.group >= slots && layout.width <= width && layout.height <= 440);
  }
  assert.ok(layoutMap(4 << 20, 16, 812).group >= 4);
});

test("codes: locked, evictable, selected; runs and holders", () => {
  const store = stateOf(cast());
  const state = store.live;
  store.selection = { kind: "request", id: "c1.r11" };
  const codes = codesOf(state, store, "state");
  const of = name => codes.cached[state.placeOf(name)];
  for (const id of state.path(state.holds.get("c1.r11"))) assert.equal(of(`node:${id}`), SELECTED);
  const other = [...state.nodes.values()].find(node => node.locks && !state.path(state.holds.get("c1.r11")).includes(node.id));
  assert.equal(of(`node:${other.id}`), LOCKED);
  const found = scanRuns(state);
  assert.equal(found.freeRuns, 1);
  const holders = holdersOf(state, store.history, found, [{ sid: "c1.s7", cell: "5", cached: 510, active: "", text: "x" }], node => `node ${node.id}`);
  const finding = holders.find(holder => holder.name === "9.1 finding");
  assert.deepEqual([finding.own, finding.shared, finding.state, finding.text], [25, 363, "decode", `node ${state.holds.get("c1.r11")}`]);
  assert.equal(holders.find(holder => holder.name === "12.3 label").state, "prefill, 20 of 20 new");
  assert.deepEqual([holders.at(-1).sid, holders.at(-1).name], ["c1.s7", "state s7 of [5]"]);
});

test("what a step changed names the chunk of a prompt in pieces", () => {
  const script = new Script({ slots: 64 }).request("c1.r1", "4", "", "x", 20).admit("c1.r1", "4", "", "x", 20, { matched: 0, node: 0, cause: "short" });
  for (const prefix of [0, 8, 16]) script.later(0.1).pass([{ rid: "c1.r1", kind: "prefill", tokens: Math.min(8, 20 - prefix), prefix }]);
  script.request("c1.r2", "5", "", "y", 3).admit("c1.r2", "5", "", "y", 3, { matched: 0, node: 0, cause: "short" });
  script.later(0.1).pass([{ rid: "c1.r2", kind: "prefill", tokens: 3, prefix: 0 }]);
  const { history } = stateOf(script);
  const at = index => changesOf({ history, isLive: false, stepIndexAt: () => index, time: history.steps[index].time })[0].join(" ");
  assert.deepEqual([0, 1, 2, 3].map(at), ["+8 prefill 4 x, chunk 1, after 0 reused or computed before", "+8 prefill 4 x, chunk 2, after 8 reused or computed before", "+4 prefill 4 x, chunk 3, after 16 reused or computed before", "+3 prefill 5 y, after 0 reused or computed before"]);
});

test("a slot is told with its token, once the engine has said which", () => {
  const store = stateOf(cast());
  const state = store.live;
  const slot = state.owners.findIndex((place, index) => state.ownerNames[place] === "c1.r11" && state.kinds[index] === 2);
  assert.deepEqual(cellWord(state, store.history, slot).slice(1), ["9.1 finding", "not in the tree yet"]);
  assert.deepEqual(cellWord(state, store.history, slot, { position: 389, output: 27, text: " under" }).slice(1), ['9.1 finding, token 27 " under"', "not in the tree yet"]);
  assert.equal(cellWord(state, store.history, slot, { position: 3, output: 0, text: "" })[1], "9.1 finding, prompt token 4");
  assert.equal(cellWord(state, store.history, slot, {})[1], "9.1 finding"); // it is no longer its
  const cached = state.owners.findIndex(place => state.ownerNames[place].startsWith("node:"));
  assert.match(cellWord(state, store.history, cached, { position: 2, output: 0, text: "\u202e" })[1], /, here token 3 "\[U\+202E\]"$/);
});

test("runs of a path are counted over all its owners together", () => {
  const state = new EngineState(20);
  for (const [owner, start, length] of [["node:2", 0, 4], ["node:3", 4, 2], ["c1.r1", 10, 1], ["node:2", 12, 2]]) state._run(owner, start, length, "", 0);
  assert.deepEqual([["node:2"], ["node:2", "node:3"], ["node:2", "node:3", "c1.r1"], ["gone"], []].map(owners => runsOf(state, owners)), [2, 2, 3, 0, 0]);
});

test("the slots of a node's path are its own, and never the free ones too", () => {
  const store = stateOf(cast());
  const { live } = store;
  const [id, node] = [...live.nodes].find(([, { start, length }]) => start && length);
  const slots = new Map(pathFacts(live, live.path(id), "", String)).get("Slots");
  assert.match(slots, new RegExp(`^${count(node.start + node.length)} in `));
  assert.ok(live.owned("") > 0, "some are free");
});

test("the map's head says how much memory the pool is, where that is known", () => {
  const store = stateOf(cast());
  const head = () => KVMapView.prototype.facts.call({ store });
  assert.equal(head(), "16\u2009384 slots, page 1");
  store.load({ ...cast().picture, slot_bytes: 114688 });
  assert.equal(head(), "16\u2009384 slots, page 1, 1.75 GiB");
});

test("a report holds every slot once, and no text", () => {
  const store = stateOf(cast());
  const report = reportOf(store);
  assert.equal(report.slots.reduce((sum, [, length]) => sum + length, 0), store.live.slots);
  assert.equal(report.nodes.length, store.live.nodes.size);
  assert.ok(!JSON.stringify(report).includes("pull requests"));
});

test("an empty engine gives an empty picture", () => {
  const state = new EngineState(10);
  assert.deepEqual(layoutTree(state, 1), { blocks: [], order: [], rows: 0 });
  assert.deepEqual([scanRuns(state).freeRuns, scanRuns(state).largestFree], [1, 10]);
});

// ---------------------------------------------------------------- palette

function luminance([r, g, b]) {
  const [x, y, z] = [r, g, b].map(v => v / 255).map(v => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * x + 0.7152 * y + 0.0722 * z;
}
const hex = text => [1, 3, 5].map(i => parseInt(text.slice(i, i + 2), 16));
const contrast = (a, b) => {
  const [x, y] = [luminance(hex(a)), luminance(hex(b))].sort((m, n) => n - m);
  return (x + 0.05) / (y + 0.05);
};

test("text has 4.5:1 on its ground; marks have 3:1, or an edge that has it", () => {
  const css = readFileSync(new URL("../../sgnb/widgets/static/theme.css", import.meta.url), "utf8");
  const tokens = block => Object.fromEntries([...block.matchAll(/--sgnb-([\w-]+): (#\w{6})/g)].map(([, name, value]) => [name, value]));
  const [light, dark] = css.split("@media")[0].split('[data-jp-theme-light="false"]').map(tokens);
  for (const [theme, ground, text] of [[light, "#ffffff", "#212121"], [{ ...light, ...dark }, "#111111", "#e0e0e0"]]) {
    for (const name of ["reused-text", "trouble-text", "good-text"]) assert.ok(contrast(theme[name], ground) >= 4.5, name);
    for (const name of ["locked", "decode", "trouble", "prefill-edge", "reused-edge"]) assert.ok(contrast(theme[name], ground) >= 3, `${name} ${contrast(theme[name], ground)}`);
    assert.ok(contrast(text, theme["locked-fill"]) >= 4.5, "text on locked");
    assert.ok(contrast(text, theme.evictable) >= 4.5, "text on evictable");
  }
});

test("what a side column calls of its view is there", () => {
  for (const [file, View] of [["tree_side.js", TreeView], ["kv_side.js", KVMapView]]) {
    const source = readFileSync(new URL(`../../sgnb/widgets/static/${file}`, import.meta.url), "utf8");
    const called = new Set([...source.matchAll(/\bview\.(\w+)\(/g)].map(([, name]) => name));
    assert.ok(called.size, file);
    for (const name of called) assert.equal(typeof View.prototype[name], "function", `${file}: ${name}`);
  }
});

test("text of a request beyond the tree is asked for as it grows, and as it was at an earlier moment", async () => {
  const asked = [];
  const store = { engineState: "running", ask: (verb, { spans }) => (asked.push([verb, ...spans]), Promise.resolve({ texts: { a: `${spans[0][2]} tokens` } })) };
  let changes = 0;
  const texts = new RunningTexts(store, () => changes++);
  assert.equal(texts.of("a", 60, 25), undefined);
  assert.equal(texts.of("a", 60, 26), undefined); // one question at a time
  await new Promise(setImmediate);
  assert.equal(texts.of("a", 60, 25), "25 tokens");
  assert.deepEqual([changes, asked], [1, [["running", ["a", 60, 25]]]]);
  texts.of("a", 85, 3); // what was decoded is the tree's now
  await new Promise(setImmediate);
  assert.equal(texts.of("a", 85, 3), "3 tokens");
  store.engineState = "died";
  assert.equal(texts.of("b", 0, 3), undefined);
  assert.equal(asked.length, 2);
  store.engineState = "running";
  store.ask = () => Promise.resolve({ texts: {} });
  texts.of("b", 0, 3);
  await new Promise(setImmediate);
  assert.equal(texts.of("b", 0, 3), null, "another notebook's");
});

test("the text of a request is that of its path and of what it has beyond it", () => {
  const store = stateOf(cast());
  const rid = [...store.shown.live.keys()].find(one => store.shown.flight(one).decode);
  const { prefill, decode } = store.shown.flight(rid);
  const parts = { store, texts: { of: node => `<${node.id}>` }, _running: { of: (...span) => `[${span}]` } };
  const view = Object.create(TreeView.prototype, Object.getOwnPropertyDescriptors(parts));
  store.select({ kind: "request", id: rid });
  const path = store.shown.path(store.shown.holds.get(rid));
  assert.equal(view.copy(), `${path.map(id => `<${id}>`).join("")}[${rid},${store.shown.shared(rid)},${prefill + decode}]`);
  store.select({ kind: "node", id: path[0] });
  assert.equal(view.copy(), `<${path[0]}>`);
});

test("keys move by cells, rows and pages, also where a cell is some slots", () => {
  const layout = { cols: 100, pitch: 2, height: 40, group: 1 };
  const to = (key, here, { shiftKey = false, group = 1, slots = 9000 } = {}) => slotTo(here, { key, shiftKey }, { ...layout, group }, slots);
  assert.deepEqual(["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "PageUp", "PageDown", "Home", "End"].map(key => to(key, 4000)), [3999, 4001, 3900, 4100, 2000, 6000, 0, 8999]);
  assert.equal(to("ArrowRight", 4000, { shiftKey: true }), 4100);
  assert.deepEqual([to("ArrowLeft", 0), to("Home", 0), to("End", 8999), to("a", 4000)], [0, 0, 8999, undefined]);
  const large = { group: 4, slots: 4_000_000 };
  assert.deepEqual(["ArrowRight", "ArrowDown", "PageDown", "End"].map(key => to(key, 4000, large)), [4004, 4400, 12000, 3_999_999], "the next cell, not a slot of the same one");
});

test("an engine that does not answer is not asked for the same texts again meanwhile", async () => {
  const asked = [];
  let refuse;
  const store = { engineState: "running", ask: verb => (asked.push(verb), new Promise((_, reject) => (refuse = reject))) };
  const { now } = performance;
  let time = 0;
  performance.now = () => time;
  try {
    const nodes = new NodeTexts(store, () => {});
    const running = new RunningTexts(store, () => {});
    for (time of [0, 1000, 2000, 3000]) nodes.want([{ id: 1, start: 0, length: 4 }]);
    assert.deepEqual(asked, ["nodes"]);
    refuse(new Error("no answer"));
    await new Promise(setImmediate);
    nodes.want([{ id: 1, start: 0, length: 4 }]);
    assert.equal(asked.length, 2);
    for (time of [4000, 5000, 6000]) running.of("r", 0, time);
    assert.deepEqual(asked.slice(2), ["running"]);
    refuse(new Error("no answer"));
    await new Promise(setImmediate);
    running.of("r", 0, 7);
    assert.equal(asked.length, 4);
  } finally {
    performance.now = now;
  }
});

test("of a snapshot with many requests two hundred prompts are kept, the newest", () => {
  const history = new History();
  const requests = Array.from({ length: 300 }, (_, i) => ({ rid: `r${i}`, client: 1, label: {}, state: "running", prompt_tokens: 9, cached_tokens: 0, completion_tokens: 0, time_queued: i, time_admitted: i, match: { matched: 0 } }));
  history.fromSnapshot({ settings: {}, requests });
  assert.deepEqual([history.prompts.length, history.prompts[0].rid, history.prompts.at(-1).rid], [200, "r100", "r299"]);
});

test("in the form of a tree what is selected is looked for where it is drawn", () => {
  const store = stateOf(cast());
  const view = Object.create(TreeView.prototype, Object.getOwnPropertyDescriptors({ store, blocks: [], _rowHeight: 19 }));
  const layout = view._laidOut(store.shown);
  assert.deepEqual(view.blocks.map(block => [block.id, block.row]), layout.boxes.map(box => [box.id, box.row]));
  assert.ok(view.blocks.length && view.blocks.every(block => block.kind === "node" && block.depth >= 1 && store.shown.nodes.has(block.id)));
  assert.ok(view._rowHeight > 19);
});

test("a picture that is made anew keeps the focus at its place", () => {
  const focused = [];
  const stop = name => {
    const made = { focus: () => focused.push(name) && (document.activeElement = made) };
    return made;
  };
  let list = [stop("a"), stop("b")];
  globalThis.document = { activeElement: list[1] };
  try {
    const node = { contains: other => list.includes(other), querySelectorAll: () => list, focus: () => focused.push("node") };
    refocus(node, () => (list = [stop("a2"), stop("b2")]));
    assert.deepEqual(focused, ["b2"]);
    refocus(node, () => (list = [stop("a3")]));
    assert.deepEqual(focused, ["b2", "node"], "there is one stop less");
    focused.pop();
    document.activeElement = list[0];
    refocus(node, () => (list = []));
    assert.deepEqual(focused, ["b2", "node"], "what had it is gone: keys go on in the part around it");
  } finally {
    delete globalThis.document;
  }
});

test("slots over time: locked, in flight and evictable are told apart, but not in an old recording", () => {
  const used = { num_used_tokens: 50, num_cached_tokens: 20, max_total_num_tokens: 100 };
  assert.deepEqual(bandsOf({ ...used, num_locked_tokens: 30 }), { locked: 30, flight: 20, evictable: 20 });
  assert.deepEqual(bandsOf({ ...used, num_locked_tokens: 0 }), { locked: 0, flight: 50, evictable: 20 }, "0 is a figure");
  assert.deepEqual(bandsOf(used), { locked: 50, flight: 0, evictable: 20 });
  assert.deepEqual(bandsOf({}), { locked: 0, flight: 0, evictable: 0 }, "an engine at rest leaves zeros out");
});
