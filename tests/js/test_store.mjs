// Folds, the store's past, gaps; with Node's own test runner: node --test tests/js

import assert from "node:assert/strict";
import test from "node:test";

import { CACHED, DECODE, EngineState, FREE } from "../../sgnb/widgets/static/fold.js";
import { History } from "../../sgnb/widgets/static/history.js";
import { decode } from "../../sgnb/widgets/static/msgpack.js";
import { registry } from "../../sgnb/widgets/static/registry.js";
import { Slices, drain } from "../../sgnb/widgets/static/slices.js";
import { Store, storeOf } from "../../sgnb/widgets/static/store.js";
import { Tape } from "../../sgnb/widgets/static/tape.js";
import { Script, cast, large } from "./scenario.mjs";

function filled(script, each = script.events.length) {
  const store = new Store("test/x");
  store.load(script.picture);
  for (let from = 0; from < script.events.length; from += each) assert.ok(store.feedEvents(script.events.slice(from, from + each), { time: script.time }));
  return store;
}

/** The same by brute force: who owns each slot, what a tree of the script holds. */
function owners(script) {
  const out = new Array(script.slots).fill("");
  for (const { event } of script.events) {
    if (event.t !== "kv") continue;
    for (const [, owner, start, count] of event.runs) out.fill(owner, start, start + count);
  }
  return out;
}

test("slots and tree agree with a recount of the events", () => {
  const script = cast();
  const { live } = filled(script);
  const expected = owners(script);
  for (let slot = 0; slot < live.slots; slot++) assert.equal(live.ownerNames[live.owners[slot]], expected[slot]);
  assert.equal(live.counts.reduce((a, b) => a + b), live.slots);
  assert.equal(live.counts[FREE], expected.filter(owner => !owner).length);
  assert.equal(live.counts[CACHED], expected.filter(owner => owner.startsWith("node:")).length);
  assert.equal(live.nodes.size, script.nodes.size);
  for (const node of script.nodes.values()) {
    const { parent, start, length } = live.nodes.get(node.id);
    assert.deepEqual([parent, start, length], [node.parent, node.start, node.length]);
    assert.equal(live.owned(`node:${node.id}`), node.length);
  }
  assert.equal(live.treeTokens, [...script.nodes.values()].reduce((sum, node) => sum + node.length, 0));
});

test("no moment of the past lies between a node and its slots", () => {
  const script = new Script({ slots: 100 });
  const made = [];
  for (let i = 0; i < 5; i++) {
    const parts = [script.insert(1, `a${i}`, 8)];
    script.later(0.001);
    if (i === 3) script.evict(made[0], "c1.r1");
    script.later(0.001).flush().later(1);
    made.push(...parts);
  }
  const store = filled(script);
  for (const { event } of script.events) {
    for (const time of [event.time, event.time + 0.0004]) {
      const state = store.tape.at(time);
      assert.equal(state.counts[CACHED], state.treeTokens);
      assert.ok(!state.halfTold);
    }
  }
  const before = filled(script).tape.at(script.began + 0.5);
  assert.deepEqual([before.nodes.size, before.counts[CACHED]], [1, 8]);
});

test("a lock counts on the whole path, and its tokens are locked once", () => {
  const script = cast();
  const { live } = filled(script);
  const path = live.path(live.holds.get("c1.r11")).map(id => live.nodes.get(id));
  assert.deepEqual(path.map(node => [node.length, node.locks]), [[17, 3], [318, 3], [28, 1]]);
  let locked = 0;
  for (const node of live.nodes.values()) if (node.locks) locked += node.length;
  assert.equal(live.lockedTokens, locked);
});

test("a split keeps the cut node's identity, locks and place", () => {
  const script = new Script({ slots: 100 });
  const first = script.insert(1, "a", 10);
  const second = script.insert(1, "b", 10);
  script.lock(first);
  const upper = script.split(first, 4, "a", "a");
  script.flush();
  const { live } = filled(script);
  assert.deepEqual(live.roots.get(1), [upper, second]);
  assert.deepEqual(live.path(first), [upper, first]);
  assert.deepEqual([live.nodes.get(upper).locks, live.nodes.get(first).locks, live.nodes.get(first).start], [1, 1, 4]);
  script.lock(first, "unlock");
  live.apply(script.seq, script.events.at(-1).event);
  assert.equal(live.lockedTokens, 0);
});

test("any moment can be shown again, in any order", () => {
  const script = cast();
  const store = new Store("test/scrub");
  store.load(script.picture);
  const moments = [];
  for (const numbered of script.events) {
    store.feedEvents([numbered], { time: numbered.event.time });
    moments.push([numbered.seq, numbered.event.time, store.live.nodes.size, store.live.counts.slice()]);
  }
  // The last event of each instant stands for it.
  const instants = moments.filter(([, time], i) => moments[i + 1]?.[1] !== time);
  for (const [seq, time, nodes, counts] of [...instants].reverse().concat(instants)) {
    const state = store.tape.at(time);
    assert.deepEqual([state.seq, state.nodes.size, state.counts], [seq, nodes, counts]);
  }
});

/** A long life of a small engine: prompts come, split what is there, are locked, decode, end; old leaves go. */
function life(rounds) {
  const s = new Script({ slots: 3000 });
  let seed = 11;
  const random = limit => (seed = (seed * 1103515245 + 12345) % 2147483648) % limit;
  const running = [];
  const leaves = () => [...s.nodes.values()].filter(node => ![...s.nodes.values()].some(other => other.parent === node.id) && !running.some(run => run.leaf === node.id));
  for (let i = 0; i < rounds; i++) {
    s.later(0.05);
    while (s.pool.length < 200) s.evict(leaves()[0].id, `c1.r${i}`);
    const all = [...s.nodes.values()];
    if (running.length < 4) {
      const rid = `c1.r${i}`;
      let above = all.length ? all[random(all.length)] : null;
      if (above && above.length > 8 && random(3) === 0) above = s.nodes.get(s.split(above.id, 1 + random(above.length - 1), "a", "b"));
      s.request(rid, "1", String(i), "x", 50).admit(rid, "1", String(i), "x", 50, { matched: above ? above.start + above.length : 0, node: above?.id ?? 0, cause: "short" });
      const leaf = s.insert(above?.id ?? 1, "text", 5 + random(30), rid);
      s.lock(leaf);
      running.push({ rid, leaf, slots: [], left: 5 + random(40) });
    }
    const rows = running.map(run => ({ rid: run.rid, kind: "decode", tokens: 1, prefix: 9 }));
    s.pass(rows);
    running.forEach((run, index) => run.slots.push(...rows[index].slots));
    for (const run of running.filter(each => --each.left === 0)) {
      s.lock(run.leaf, "unlock");
      s.give("", run.slots).flush();
      s.pool.push(...run.slots);
      s.state(run.rid, "1", "0", "x", "finished", { label: undefined, reason: "stop" });
      s.events.at(-1).event.label = s.events.find(({ event }) => event.rid === run.rid).event.label;
      running.splice(running.indexOf(run), 1);
    }
  }
  return s;
}

/** All that a state says, without the numbers it gives for itself. */
function told(state) {
  const nodes = [...state.nodes.values()].sort((a, b) => a.id - b.id).map(({ turn, ...node }) => node);
  const slots = [...state.owners].map((place, slot) => [state.ownerNames[place], state.kinds[slot], state.written[slot]]);
  const owned = [...state._places.keys()].sort().map(name => [name, state.owned(name), state.flight(name)]);
  const { seq, time, step, lockedTokens, treeTokens, next, evicted, counts, odd } = state;
  return { nodes, slots, owned, seq, time, step, lockedTokens, treeTokens, next, counts, odd, evicted: evicted.map(({ turn, ...node }) => node), roots: [...state.roots], live: [...state.live].sort(), holds: [...state.holds].sort() };
}

test("a moment restored from points says what a fold from the beginning says, forwards, backwards and at random", () => {
  const script = life(900);
  const store = filled(script);
  assert.ok(script.events.length > 2000 && store.tape._points.filter(point => point.change).length > 6);
  const times = Array.from({ length: 30 }, (_, i) => script.began + ((i * 13) % 30) * 1.5 + 0.01);
  for (const time of [...times, ...[...times].sort(), ...[...times].sort().reverse()]) {
    const plain = EngineState.fromSnapshot(script.picture);
    for (const { seq, event } of script.events) if (event.time <= time) plain.apply(seq, event);
    assert.deepEqual(told(store.tape.at(time)), told(plain));
  }
  const end = EngineState.fromSnapshot(script.picture);
  for (const { seq, event } of script.events) end.apply(seq, event);
  assert.deepEqual(told(store.live), told(end)); // the newest state is untouched by what was restored beside it
  // At most a point's events are folded for a moment: that is what makes it quick.
  for (let at = 1; at < store.tape._points.length; at++) assert.ok(store.tape._points[at].seq - store.tape._points[at - 1].seq <= 200);
});

test("points keep to their bytes: old moments are the first to take longer, none is lost", () => {
  const store = filled(life(300));
  const { tape } = store;
  const before = tape._points.length;
  for (let i = 0; i < 12; i++) tape._thin();
  assert.ok(tape._points.length < before && tape._points[0].state);
  const bytes = tape._points.reduce((sum, point) => sum + point.weight, 0);
  assert.equal(tape._pointBytes, bytes);
  const time = store.live.time - 0.5;
  const shown = told(tape.at(time));
  const other = filled(life(300));
  assert.deepEqual(shown, told(other.tape.at(time)));
});

/** The state at `time` by a fold of all events from the beginning. */
function folded(script, time) {
  const plain = EngineState.fromSnapshot(script.picture);
  for (const { seq, event } of script.events) if (event.time <= time) plain.apply(seq, event);
  return told(plain);
}

test("what is cut leaves the oldest moment whole: it is shown as a fold from the beginning says, and so is all after it", () => {
  const script = life(900);
  const { tape, live } = filled(script, 30); // as frames come
  tape.at(live.time - 44); // a moment that is let go must not be the ground of a later one
  let bytes = Infinity;
  for (const keep of [43, 30, 12, 5, 0.5, 0]) {
    tape.keepOnly(keep);
    assert.ok(Math.abs(tape.oldest - (live.time - keep)) < 1e-9, `${keep} s`);
    assert.ok(tape._points[0].state && tape.bytes <= bytes);
    bytes = tape.bytes;
    for (const time of [tape.oldest, tape.oldest + keep / 3, live.time, tape.oldest]) assert.deepEqual(told(tape.at(time)), folded(script, time));
  }
  assert.equal(tape._pointBytes, tape._points.reduce((sum, point) => sum + point.weight, 0));
  assert.equal(tape._heldBytes, tape._held.reduce((sum, entry) => sum + entry.size, 0));
  tape.keepOnly(600); // what was let go does not come back of itself
  assert.ok(tape.oldest > live.time - 5 && tape.oldest <= live.time);
  assert.deepEqual(told(tape.at(tape.oldest)), folded(script, tape.oldest));
});

test("fed with a short history, thinned or not, the oldest moment stays a real one before now", () => {
  const script = life(600);
  const store = new Store("test/short");
  store.load(script.picture);
  store.tape.keepOnly(8);
  for (let from = 0; from < script.events.length; from += 25) {
    assert.ok(store.feedEvents(script.events.slice(from, from + 25)));
    if (from % 500 === 475) store.tape._thin();
    const { oldest, live } = store;
    assert.ok(from === 0 || oldest < live.time, "there are events, so there is a past");
    assert.ok(live.time - oldest <= 8 + 1e-9);
    if (from % 200 === 0) assert.deepEqual(told(store.tape.at(oldest)), folded({ picture: script.picture, events: script.events.slice(0, from + 25) }, oldest));
  }
});

/** The user's settings, as the panel publishes them; without `minutes` as if there were no panel. */
function publish(minutes) {
  globalThis[Symbol.for("sgnb.settings")] = minutes === undefined ? undefined : { historyMinutes: minutes };
  globalThis.document?.dispatchEvent(new Event("sgnb-settings"));
}

test("the setting of minutes bounds what is kept, at once", t => {
  globalThis.document = new EventTarget();
  t.after(() => {
    publish(undefined);
    delete globalThis.document;
  });
  const script = new Script({ slots: 64 });
  for (let i = 0; i < 420; i++) script.later(1).put({ t: "stats", num_used_tokens: i, max_total_num_tokens: 64 });
  const store = filled(script, 1);
  const heard = [];
  store.subscribe(what => heard.push(what));
  const [whole, now] = [store.pastBytes, store.live.time];
  assert.equal(store.oldest, script.began);
  store.goTo(now - 300);
  publish(1);
  assert.equal(store.oldest, now - 60);
  assert.ok(store.history.figures[0].time >= now - 60);
  assert.equal(store.playhead, now - 60); // no view stands where nothing is kept
  assert.equal(store.shown.stats.num_used_tokens, 359);
  assert.ok(store.pastBytes < 0.6 * whole, `${store.pastBytes} of ${whole}`);
  assert.deepEqual(heard, ["playhead", "playhead", "data"]);
  store.goTo(now - 100);
  assert.equal(store.playhead, now - 60);
  assert.equal(new Store("test/new").tape.keep, 60); // and one made later
  for (const [minutes, seconds] of [[3, 180], [60, 600], [0, 60], ["x", 600], [undefined, 600]]) {
    publish(minutes);
    assert.equal(store.tape.keep, seconds);
  }
  const recording = new Store("test/recording");
  recording.replaying = { span: [0, 1], file: "a", end: "" };
  recording.load(script.picture);
  assert.ok(recording.feedEvents(script.events));
  publish(1);
  assert.equal(recording.oldest, script.began); // a recording is shown whole
  assert.ok(recording.history.figures[0].time < script.began + 2);
});

test("the lists of steps, marks and knobs are those of the minutes that are kept; a rest of the engine does not empty them", () => {
  const script = new Script({ slots: 64 });
  const tape = new Tape({ keep: 60 });
  tape.load(script.picture);
  script.later(1).put({ t: "knob", step: 1, objective: "", knobs: { schedule_policy: "fcfs" } });
  for (let i = 0; i < 200; i++) {
    script.later(1).pass([{ rid: "c1.r1", kind: "decode", tokens: 1, prefix: i }]);
    script.put({ t: "request", rid: `c1.r${i}`, state: "finished", client: 1, reason: "stop" });
  }
  assert.ok(tape.feed(script.events));
  const { history } = tape;
  const worked = history.steps.at(-1).time;
  assert.ok(history.steps.length <= 62 && history.steps[0].time >= worked - 60, `${history.steps.length} steps`);
  assert.equal(history.rows, history.steps.length);
  assert.ok(history.marks.length <= 62 && history.marks[0].time >= worked - 60);
  assert.deepEqual([history.knobs.length, history.firstPolicy], [0, "fcfs"]);
  assert.equal(history.requests.size, 200); // nodes are called after them
  const [seq, { length }] = [tape.live.seq, history.steps];
  assert.ok(tape.feed([{ seq: seq + 1, event: { t: "stats", time: worked + 900, num_used_tokens: 0, max_total_num_tokens: 64 } }]));
  assert.equal(history.steps.length, length);
  tape.keepOnly(10);
  assert.ok(history.steps.length <= 12 && history.steps.length > 5);
});

/** A store that looked late, on a line to an engine that remembers: it answers `past` and `events` as the kernel does. */
function late(script, cut, { pictureAt = 0, firstKept = 1 } = {}) {
  const asked = [];
  let listener;
  const answer = ({ verb, args }) => {
    asked.push([verb, args]);
    if (verb === "past") {
      if (firstKept > pictureAt + 1) return [{ error: "nothing of that time is kept" }, []];
      const early = filledUntil(script, pictureAt);
      return [{ data: { seq: pictureAt } }, [encode(pictureOf(script, early))]];
    }
    const events = script.events.filter(({ seq }) => seq >= args.from_seq).slice(0, 150);
    return [{ data: { last_seq: script.seq } }, [encode({ incarnation: "", last_seq: script.seq, time: 1, events, past: true })]];
  };
  const store = new Store("test/late");
  store.engineState = "running";
  store.attach({
    send(content) {
      if (content.k !== "ask") return;
      const [body, buffers] = answer(content);
      queueMicrotask(() => listener({ k: "answer", id: content.id, ...body }, buffers));
    },
    onMessage: f => {
      listener = f;
      return () => {};
    },
  });
  store.load(pictureOf(script, filledUntil(script, cut)));
  for (const numbered of script.events.slice(cut)) assert.ok(store.feedEvents([numbered], { time: numbered.event.time }));
  return { store, asked };
}

function filledUntil(script, seq) {
  const state = EngineState.fromSnapshot(script.picture);
  for (const numbered of script.events.slice(0, seq)) state.apply(numbered.seq, numbered.event);
  return state;
}

/** A state as the engine's answer to `picture`. */
function pictureOf(script, state) {
  const nodes = [...state.nodes.values()].map(n => [n.id, n.parent, n.start, n.length, n.locks, n.hits, n.pins, n.soft ?? 0, n.used, n.root]);
  const runs = [];
  state.owners.forEach((place, slot) => place && runs.push([state.ownerNames[place], slot, 1, { 1: "prefill", 2: "decode" }[state.kinds[slot]] ?? ""]));
  const requests = [...state.live.keys()].map(rid => {
    const { label } = script.events.find(({ event }) => event.rid === rid && event.t === "request").event;
    return { rid, client: 1, label, state: "running", prompt_tokens: 50, cached_tokens: 0, completion_tokens: 0, time_queued: 1, time_admitted: 1, node: state.holds.get(rid) ?? 0, match: null };
  });
  return { ...script.picture, seq: state.seq, time: state.time || script.began, step: state.step, nodes, runs, requests, next: state.next };
}

const settled = async store => {
  while (store.fetching !== null) await new Promise(done => setTimeout(done, 1));
};

test("a view that opened late shows the minutes before: they are asked for, once, and the newest moment stays", async () => {
  const script = life(300);
  const cut = Math.floor(script.events.length * 0.7);
  const { store, asked } = late(script, cut);
  const opened = store.oldest;
  const wanted = script.began + 3.01;
  store.goTo(wanted);
  assert.equal(store.phase, "gap"); // "Catching up …", while the old picture stays
  assert.equal(store.playhead, opened);
  await settled(store);
  assert.deepEqual(asked.map(([verb]) => verb).slice(0, 2), ["past", "events"]);
  assert.deepEqual([store.playhead, store.phase, store.isLive], [wanted, "ok", false]);
  const plain = EngineState.fromSnapshot(script.picture);
  for (const { seq, event } of script.events) if (event.time <= wanted) plain.apply(seq, event);
  assert.deepEqual(told(store.shown), told(plain));
  assert.deepEqual(told(store.live), told(filledUntil(script, script.seq)));
  assert.equal(store.history.steps[0].step, 1); // the lists begin there too: steps can be walked back
  const count = asked.length;
  store.goTo(wanted + 1);
  assert.equal(asked.length, count);
  // Events go on coming, and follow.
  const from = script.events.length;
  script.later(1).pass([{ rid: "c1.r9999", kind: "decode", tokens: 1, prefix: 1 }]);
  assert.ok(store.feedEvents(script.events.slice(from), { time: script.time }));
});

test("no more is asked for than the setting allows; a longer one asks for more", async t => {
  globalThis.document = new EventTarget();
  t.after(() => {
    publish(undefined);
    delete globalThis.document;
  });
  publish(1);
  const script = new Script({ slots: 64 });
  for (let i = 0; i < 420; i++) script.later(1).put({ t: "stats", num_used_tokens: i, max_total_num_tokens: 64 });
  const { store, asked } = late(script, 400, { pictureAt: 100 });
  const now = store.live.time;
  store.goTo(now - 150);
  await settled(store);
  assert.deepEqual(asked[0], ["past", { time: now - 60 }]);
  assert.deepEqual([store.playhead, store.oldest, store.shown.stats.num_used_tokens], [now - 60, now - 60, 359]);
  const count = asked.length;
  store.goTo(now - 150);
  assert.deepEqual([asked.length, store.fetching], [count, null]); // all that is allowed is there
  publish(10);
  store.goTo(now - 150);
  await settled(store);
  assert.deepEqual([asked[count][0], store.playhead, store.shown.stats.num_used_tokens], ["past", now - 150, 269]);
});

test("what the engine no longer has is not waited for; live is a way out", async () => {
  const script = life(60);
  const { store, asked } = late(script, 100, { pictureAt: 40, firstKept: 60 });
  const opened = store.oldest;
  store.goTo(opened - 1);
  await settled(store);
  assert.deepEqual([store.playhead, store.phase], [opened, "ok"]);
  store.goTo(opened - 2);
  assert.equal(asked.length, 1);
  const other = late(script, 100).store;
  other.goTo(script.began);
  other.goLive();
  assert.deepEqual([other.fetching, other.isLive, other.phase], [null, true, "ok"]);
});

test("a missing event is noticed, and asked for", () => {
  const script = cast();
  const store = new Store("test/gap");
  store.load(script.picture);
  const said = [];
  store.attach({ send: content => said.push(content), onMessage: () => () => {} });
  store.visible({}, true);
  assert.deepEqual([said.at(-1).k, said.at(-1).from], ["sub", 0]);
  assert.ok(store.feedEvents(script.events.slice(0, 10)));
  assert.equal(store.feedEvents(script.events.slice(11, 14)), false);
  assert.equal(store.live.seq, 10);
  // A frame with the hole makes the store say what it knows.
  drain(store._frame(encode({ incarnation: "a", last_seq: 14, time: 1, events: [{ seq: 12, event: { t: "stats", time: 1 } }] })));
  assert.ok(store.gap);
  assert.deepEqual([said.at(-1).k, said.at(-1).from], ["sub", 10]);
  // So does a heartbeat whose last number it never saw.
  const other = filled(new Script());
  other.attach({ send: content => said.push(content), onMessage: () => () => {} });
  other.visible({}, true);
  drain(other._frame(encode({ incarnation: "a", last_seq: 3, time: 1, events: [] })));
  assert.ok(other.gap);
  for (const each of [store, other]) for (const view of [...each._visible]) each.visible(view, false);
});

test("nothing visible: nothing is subscribed", () => {
  const said = [];
  const store = new Store("test/visible");
  const detach = store.attach({ send: content => said.push(content.k), onMessage: () => () => {} });
  assert.deepEqual(said, []);
  const view = {};
  store.visible(view, true);
  store.visible(view, false);
  detach();
  assert.deepEqual(said, ["sub", "unsub"]);
});

test("the past is bounded, and no older than what can be shown", () => {
  const script = new Script({ slots: 4096 });
  const store = filled(script);
  for (let i = 0; i < 4000; i++) {
    const from = script.events.length;
    script.pool.length || script.pool.push(...Array(64).keys());
    script.later(0.2).put({ t: "stats", num_used_tokens: i, max_total_num_tokens: 4096 });
    assert.ok(store.feedEvents(script.events.slice(from)));
  }
  assert.equal(store.oldest, store.live.time - 600);
  assert.ok(store.live.time - store.tape._held[0].time <= 600 + 0.2 * 200 + 1); // and what leads there from a point
  assert.ok(store.history.figures.length <= 2600);
  assert.ok(store.pastBytes < 97 << 20);
  const big = filled(large(2000, 300000));
  for (let i = 0; i < 50; i++) big.tape._point(big.live.time + i);
  assert.ok(big.tape._pointBytes <= 48 << 20);
});

test("a snapshot goes on as the events would have", () => {
  const picture = {
    seq: 7, time: 5, step: 3, slots: 50, page_size: 1, next: [3],
    nodes: [[2, 1, 0, 10, 1, 4, 0, 0, 4.5, 1], [3, 2, 10, 5, 0, 0, 0, 0, 4, 1]],
    runs: [["node:2", 0, 10, ""], ["node:3", 10, 5, ""], ["c1.r1", 20, 3, "decode"]],
    requests: [{ rid: "c1.r1", client: 1, label: { cell: "4", name: "x" }, state: "running", prompt_tokens: 10, cached_tokens: 10, completion_tokens: 3, time_queued: 4, time_admitted: 4.2, node: 2, match: null }],
    past: [],
  };
  const state = EngineState.fromSnapshot(picture);
  assert.deepEqual(state.path(3), [2, 3]);
  assert.deepEqual([state.lockedSlots, state.evictable, state.counts[DECODE], state.shared("c1.r1")], [10, 5, 3, 10]);
  assert.deepEqual(state.flight("c1.r1"), { prefill: 0, decode: 3 });
  const history = new History();
  history.fromSnapshot(picture);
  assert.equal(history.requests.get("c1.r1").turns.length, 1);
});

test("the page has one store for a key", () => {
  assert.equal(storeOf("k/a"), storeOf("k/a"));
  assert.notEqual(storeOf("k/a"), storeOf("k/b"));
});

test("MessagePack: all that the engine sends", () => {
  const value = { a: 1, b: -5, c: 1.5, d: "ä⏎", e: [true, false, null, 70000, -70000, 2 ** 40, "x".repeat(300)], f: new Uint8Array([1, 2]) };
  assert.deepEqual(decode(encode(value)), value);
  assert.throws(() => decode(new Uint8Array([0x92, 1])), RangeError);
  assert.throws(() => decode(new Uint8Array([1, 2])), RangeError);
  assert.throws(() => decode(new Uint8Array([0xc1])), RangeError);
});

/** The other direction, for tests only. */
export function encode(value) {
  const out = [];
  const put = v => {
    if (v === null) out.push(0xc0);
    else if (typeof v === "boolean") out.push(v ? 0xc3 : 0xc2);
    else if (typeof v === "number" && Number.isInteger(v) && Math.abs(v) < 2 ** 31) {
      if (v >= 0 && v < 128) out.push(v);
      else out.push(0xd2, (v >> 24) & 255, (v >> 16) & 255, (v >> 8) & 255, v & 255);
    } else if (typeof v === "number") {
      const bytes = new Uint8Array(8);
      new DataView(bytes.buffer).setFloat64(0, v);
      out.push(0xcb, ...bytes);
    } else if (v === undefined) {
      out.push(0xc0);
    } else if (typeof v === "string") {
      const bytes = new TextEncoder().encode(v);
      out.push(0xda, bytes.length >> 8, bytes.length & 255, ...bytes);
    } else if (v instanceof Uint8Array) out.push(0xc4, v.length, ...v);
    else if (Array.isArray(v)) {
      out.push(0xdc, v.length >> 8, v.length & 255);
      v.forEach(put);
    } else {
      const keys = Object.keys(v);
      out.push(0xde, keys.length >> 8, keys.length & 255);
      for (const key of keys) {
        put(key);
        put(v[key]);
      }
    }
  };
  put(value);
  return new Uint8Array(out);
}

test("views draw in turn: what is urgent in the next frame, the others as far as there is time", () => {
  const { now } = performance;
  let clock = 0;
  let frames = [];
  const seen = [];
  performance.now = () => clock;
  globalThis.requestAnimationFrame = run => frames.push(run);
  const view = (name, cost) => Object.assign(() => {
    seen.push(name);
    clock += cost;
  }, { measure: () => seen.push(`measure ${name}`), after: () => seen.push(`after ${name}`) });
  const frame = () => {
    const [run, ...more] = frames;
    frames = [];
    assert.equal(more.length, 0); // one frame is asked for, whoever wants it
    run();
    return seen.splice(0);
  };
  const [tree, kv, text] = [view("tree", 4), view("kv", 4), view("text", 20)];
  const { draw, undraw } = registry();
  try {
    for (const one of [tree, kv, tree, text]) draw(one);
    draw(text, true);
    const sizes = ["measure text", "measure tree", "measure kv"];
    assert.deepEqual(frame(), [...sizes, "text", "after text"]); // it took all the time
    draw(text, true);
    assert.deepEqual(frame(), [...sizes, "text", "tree", "after text", "after tree"]); // nobody waits for ever
    draw(tree, true);
    assert.deepEqual(frame(), ["measure tree", "measure kv", "tree", "kv", "after tree", "after kv"]);
    for (const one of [tree, kv, text]) draw(one, true);
    undraw(text);
    assert.deepEqual(frame(), ["measure tree", "measure kv", "tree", "kv", "after tree", "after kv"]); // where the reader is
    assert.equal(frames.length, 0);
  } finally {
    performance.now = now;
    delete globalThis.requestAnimationFrame;
  }
});

test("a store that no view uses can forget its data, and gets them again", () => {
  const script = cast();
  const store = filled(script);
  assert.ok(!store.inUse && store.pastBytes > 0);
  const view = {};
  const said = [];
  const detach = store.attach({ send: content => said.push(content), onMessage: () => () => {} });
  assert.ok(store.inUse);
  store.visible(view, true);
  detach();
  assert.ok(store.inUse, "it is seen");
  store.visible(view, false);
  assert.ok(!store.inUse);
  store.reset();
  assert.equal(store.pastBytes, 0);
  store.attach({ send: content => said.push(content), onMessage: () => () => {} });
  store.visible(view, true);
  assert.deepEqual([said.at(-1).k, said.at(-1).from], ["sub", 0]);
  store.visible(view, false);
});

test("a large snapshot and its frames are taken in slices, in their order, while the old picture stays", async () => {
  const script = large(3000, 60000);
  const cut = script.events.length - 500;
  const early = filled(Object.assign(Object.create(script), { events: script.events.slice(0, cut) })).live;
  const nodes = [...early.nodes.values()].map(n => [n.id, n.parent, n.start, n.length, n.locks, n.hits, n.pins, n.soft, n.used, n.root]);
  const runs = [];
  for (let slot = 0; slot < early.slots; slot++) if (early.owners[slot]) runs.push([early.ownerNames[early.owners[slot]], slot, 1, ""]);
  const picture = { ...script.picture, seq: early.seq, time: early.time, step: early.step, nodes: nodes.sort((a, b) => a[2] - b[2]), runs };
  const whole = filled(script);
  const store = filled(cast());
  const before = store.live;
  let heard;
  store.attach({ send: () => {}, onMessage: listener => ((heard = listener), () => {}) });
  const { now } = performance;
  let clock = 0;
  performance.now = () => (clock += 1); // every look at it costs a millisecond
  try {
    heard({ k: "snapshot", page: store.page, n: 1 }, [encode(picture)]);
    heard({ k: "frames", page: store.page, n: 2 }, [encode({ incarnation: "", last_seq: script.seq, time: script.time, events: script.events.slice(cut) })]);
    assert.ok(store.live === before && store.phase === "gap" && store.received === 0);
    for (let rounds = 0; store.received < 2; rounds++) {
      assert.ok(rounds < 1e5);
      await new Promise(done => setTimeout(done));
    }
  } finally {
    performance.now = now;
  }
  assert.equal(store.live.seq, whole.live.seq);
  assert.deepEqual([...store.live.nodes.keys()].sort(), [...whole.live.nodes.keys()].sort());
  assert.deepEqual(store.live.counts, whole.live.counts);
  assert.ok(!store.gap);
});

test("what a message makes a page ask waits for its turn", () => {
  const slices = new Slices();
  const done = [];
  const job = function* (name, more) {
    yield;
    more?.();
    yield;
    done.push(name);
  };
  slices.put(job("first", () => slices.put(job("second"))));
  slices.put(job("third"));
  assert.deepEqual(done, ["first", "second", "third"]);
  const { error } = console;
  console.error = () => {};
  try {
    slices.put(job("fails", () => assert.fail()));
  } finally {
    console.error = error;
  }
  slices.put(job("last"));
  assert.deepEqual(done, ["first", "second", "third", "last"]);
});
