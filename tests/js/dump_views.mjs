// What the views would say of a log of events, as JSON: node dump_views.mjs FILE. For tests/engine/test_views_truth.py.
// FILE: {snapshot, events: [{seq, event}], moments: [seconds], mutations: [{index, event | null}]}. The answer: `said` at
// each moment and of the lists, and for each mutation what it changed right after it: "gap" (the store refuses it and asks
// for history), "changed" (a view says something else) or "unnoticed".

import { readFileSync } from "node:fs";

import { reasonOf, reasonOfTurn } from "../../sgnb/widgets/static/causes.js";
import { CACHED, DECODE, FREE, PREFILL, SCORE } from "../../sgnb/widgets/static/fold.js";
import { nameIn, nameOf } from "../../sgnb/widgets/static/history.js";
import { bandsOf, cellWord, changesOf, holdersOf, scanRuns } from "../../sgnb/widgets/static/kv_data.js";
import { Store } from "../../sgnb/widgets/static/store.js";
import { lanesIn, TimelineIndex, waitsOf, windowFigures } from "../../sgnb/widgets/static/timeline_data.js";
import { aheadWords, decisionsOf, endWord, failedWords, knobWords, modesWords, plain, rowWords, stepWords, waitWords } from "../../sgnb/widgets/static/timeline_words.js";
import { pathFacts, recentlyGone } from "../../sgnb/widgets/static/tree_data.js";

const KINDS = { [FREE]: "free", [PREFILL]: "prefill", [DECODE]: "decode", [CACHED]: "cached", [SCORE]: "score" };

function moment(store) {
  const state = store.shown;
  const { history } = store;
  const runs = scanRuns(state);
  const slots = [];
  for (let slot = 0; slot < state.slots; slot++) {
    const kind = KINDS[state.kinds[slot]];
    const written = kind === "prefill" || kind === "decode" || kind === "score" ? state.written[slot] : 0;
    const owner = state.ownerNames[state.owners[slot]];
    const last = slots.at(-1);
    if (last && last[2] === owner && last[3] === kind && last[4] === written) last[1]++;
    else slots.push([slot, 1, owner, kind, written]);
  }
  const nodes = [...state.nodes.values()].sort((a, b) => a.id - b.id);
  return {
    seq: state.seq,
    step: state.step,
    time: state.time,
    nodes: nodes.map(n => [n.id, n.parent, n.start, n.length, n.locks, n.hits, n.pins, n.used, n.edge, n.rid, n.children.slice()]),
    tree: [state.treeTokens, state.lockedTokens, state.next],
    gone: recentlyGone(state, store.time).map(n => [n.id, n.start, n.length, n.time, n.forRid, n.policy]),
    slots,
    counts: [state.counts[FREE], state.counts[PREFILL], state.counts[DECODE], state.counts[CACHED], state.counts[SCORE]],
    cached: [state.lockedSlots, state.evictable],
    free: [runs.freeRuns, runs.largestFree],
    live: [...state.live].sort(),
    holds: [...state.holds].sort(),
    holders: holdersOf(state, history, runs).map(h => [h.rid, h.name, h.state, h.own, h.shared, h.prefill, h.decode, h.runs]),
    paths: [...state.holds].sort().map(([rid, id]) => [rid, pathFacts(state, state.path(id), rid, other => nameIn(history, other))]),
    cells: slots.map(([slot]) => cellWord(state, history, slot)),
    stats: state.stats,
    settings: state.settings,
  };
}

function lists(store) {
  const { history } = store;
  const stepAt = time => history.steps[store.stepIndexAt(time)]?.step ?? 0;
  const find = rid => history.requests.get(rid) ?? null;
  const whyOf = (record, turn) => reasonOfTurn(record, turn, { find, stepAt, pageSize: store.live.pageSize });
  const index = new TimelineIndex(history);
  index.sync();
  const { figures } = history;
  return {
    timeline: timeline(index, history, find),
    steps: history.steps.map(s => ({
      step: s.step,
      time: s.time,
      mode: s.mode,
      rows: s.rows.map(r => [r.rid, r.kind, r.tokens, r.prefix ?? 0]),
      notes: (s.notes ?? []).map(n => [n.rid, n.what, n.reason, n.unit ?? "", n.needs ?? 0, n.has ?? 0, n.leader ?? ""]),
      times: [s.schedule_seconds, s.forward_seconds, s.sample_seconds, s.process_seconds, s.exposed_host_seconds].map(v => v ?? 0),
      under: s.schedule_under ?? 0,
      figures: [s.free, s.evictable, s.running, s.queued, s.new_token_ratio, s.drawn, s.bad_rows, s.wasted_rows].map(v => v ?? 0),
      words: [aheadWords(s), failedWords(s)],
    })),
    requests: [...history.requests.values()].map(r => ({
      rid: r.rid,
      client: r.client,
      name: nameOf(r),
      line: r.label?.line ?? 0,
      state: r.state,
      queued: r.queued,
      prompt: r.prompt,
      cached: r.cached,
      completed: r.completed,
      finished: r.finished,
      reason: r.reason,
      first: r.first,
      twice: r.twice ?? 0,
      turns: r.turns.map(t => [t.from, t.to, t.end, t.why, t.match ? [t.match.matched, t.match.cause, t.match.diverged_at ?? -1, whyOf(r, t).word] : null]),
      again: r.turns.slice(1).map(t => (t.match ? whyOf(r, t).sentences : null)),
      compiling: r.compiling ? [r.compiling, r.compiled ?? 0, r.compilingWords] : null,
      waits: r.waits ? [r.waits.reason, r.waits.step, r.waits.leader ?? ""] : null,
    })),
    prompts: history.prompts.map(r => {
      const reason = reasonOf(r, { find, stepAt, pageSize: store.live.pageSize });
      return [nameOf(r), r.prompt, r.cached, reason.word, reason.sentences, r.match.node ?? 0];
    }),
    marks: history.marks.map(m => [m.time, m.kind, m.rid, m.tokens, m.nodes, m.policy ?? ""]),
    knobs: history.knobs.map(k => [k.time, k.step, knobWords(k)]),
    figures: figures.map(f => [f.time, f.gen_throughput ?? 0, f.num_running_reqs ?? 0, f.num_queue_reqs ?? 0, f.num_used_tokens ?? 0, f.num_cached_tokens ?? 0, f.cache_hit_rate ?? 0, bandsOf(f)]),
  };
}

/** What the timeline says: of steps, of lanes, of the whole as one window. */
function timeline(index, history, find) {
  const known = rid => find(rid) ?? { rid };
  const latest = index.end;
  const [from, to] = [index.steps[0]?.from ?? 0, latest];
  const whole = windowFigures(index, from, to);
  return {
    steps: index.steps.map((s, at) => ({
      step: s.step,
      words: stepWords(s),
      rows: s.event.rows.map(row => rowWords(row, known(row.rid))),
      decided: decisionsOf(s.event, history, { before: index.steps[at - 1]?.time ?? s.time - 1 }).map(plain),
    })),
    lanes: lanesIn(index, from, to, latest).map(lane => ({
      rid: lane.record.rid,
      end: lane.record.finished ? endWord(lane.record.reason) : lane.record.state,
      waits: waitsOf(lane, latest).map(wait => [wait.to - wait.from, waitWords(wait, known)]),
      pieces: lane.pieces.map(p => [p.kind, index.at(p.first).step, index.at(p.last).step, p.tokens, p.reused]),
    })),
    whole: [modesWords(whole.modes), whole.gaps, whole.p50, whole.p95, whole.idle, whole.waited],
    bins: [...index.bins].sort((a, b) => a[0] - b[0]).map(([bin, t]) => [bin, t.prefill, t.decode]),
  };
}

function filled(snapshot, events) {
  const store = new Store("truth/x");
  store.load(snapshot);
  // As they come: in frames of some events.
  for (let at = 0; at < events.length; at += 50) {
    const part = events.slice(at, at + 50);
    if (!store.feedEvents(part, { time: part.at(-1).event.time })) return null;
  }
  return store;
}

function shownAt(store, time) {
  store.goTo(time);
  const out = moment(store);
  store.goLive();
  return out;
}

const { snapshot, events, moments, mutations } = JSON.parse(readFileSync(process.argv[2], "utf8"));
const store = filled(snapshot, events);
const changesAt = time => {
  store.goTo(time);
  const out = changesOf(store);
  store.goLive();
  return out;
};
const said = { moments: moments.map(time => shownAt(store, time)), last: moment(store), changes: moments.map(changesAt), ...lists(store) };

const all = each => JSON.stringify([moment(each), changesOf(each), lists(each)]);
const honest = new Map(); // place of an event → what is said right after it
const noticed = mutations.map(({ index, event }) => {
  // Right after the event, and one more: a hole shows at the next number.
  const before = events.slice(0, index);
  if (event === null) return filled(snapshot, [...before, events[index + 1]]) === null ? "gap" : "unnoticed";
  const lied = filled(snapshot, [...before, { seq: events[index].seq, event }]);
  if (lied === null) return "gap";
  if (!honest.has(index)) honest.set(index, all(filled(snapshot, events.slice(0, index + 1))));
  return all(lied) === honest.get(index) ? "unnoticed" : "changed";
});
process.stdout.write(JSON.stringify({ said, noticed }));
