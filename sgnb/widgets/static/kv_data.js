// What the KV map computes from a state: layout, codes of cells, runs, holders, changes. Pure: no page.

import { CACHED, DECODE, FREE, PREFILL } from "./fold.js";
import { count, oneLine } from "./format.js";
import { nameIn, nameOf } from "./history.js";
import { trans } from "./trans.js";

export const MAX_HEIGHT = 440;
const SMALL_HEIGHT = 160; // a pool that needs no more is drawn in larger cells
export const LOCKED = 5;
export const SELECTED = 6;
export const FIRST_HUE = 8;
export const OTHER = 14;
export const FIRST_AGE = 15;
const waiting = () => trans.__("waiting");
const WAITING = { queued: waiting, waiting, compiling: () => trans.__("compiling grammar"), compiled: waiting };

/** Cells: `cols × rows` of `pitch` px, `group` slots each; the window on them is `width × height`. */
export function layoutMap(slots, pageSize, width, zoom = 0, maxHeight = MAX_HEIGHT) {
  const group = slots > 1 << 20 ? Math.max(pageSize, Math.ceil(slots / (1 << 20))) : 1;
  const cells = Math.ceil(slots / group);
  const colsFor = pitch => {
    const most = Math.floor(width / pitch);
    const nice = most >= 200 ? 50 : 10;
    return Math.max(10, Math.floor(most / nice) * nice);
  };
  const fits = pitch => Math.ceil(cells / colsFor(pitch)) * pitch <= maxHeight;
  const small = pitch => Math.ceil(cells / colsFor(pitch)) * pitch <= SMALL_HEIGHT;
  const base = [12, 8, 6].find(small) ?? [4, 2, 1].find(fits) ?? (slots > 65536 ? 1 : 2);
  const pitch = zoom || base;
  const cols = colsFor(base); // zooming keeps the rows as they are
  const rows = Math.ceil(cells / cols);
  return { group, cols, rows, pitch, width: Math.min(width, cols * pitch), height: Math.max(40, Math.min(maxHeight, rows * pitch)) };
}

/** The slot that a key leads to from `here`: the next cell, row or page, an end of the map; undefined: another key. */
export function slotTo(here, { key, shiftKey }, { cols, pitch, height, group }, slots) {
  const row = cols * group;
  const page = Math.max(1, Math.floor(height / pitch)) * row;
  const side = shiftKey ? row : group;
  const by = { ArrowLeft: -side, ArrowRight: side, ArrowUp: -row, ArrowDown: row, PageUp: -page, PageDown: page, Home: -here, End: slots }[key];
  return by === undefined ? by : Math.max(0, Math.min(slots - 1, here + by));
}

/** Codes by owner: `cached` for slots of the tree, `flight` for a request's (0: by its kind). */
export function codesOf(state, store, mode, range = null) {
  const size = state.ownerNames.length;
  const cached = new Uint8Array(size);
  const flight = new Uint8Array(size);
  const { selection } = store;
  const chosen = new Set();
  if (selection?.kind === "node") chosen.add(`node:${selection.id}`);
  if (selection?.kind === "request") {
    chosen.add(selection.id);
    for (const id of state.path(state.holds.get(selection.id))) chosen.add(`node:${id}`);
  }
  const hues = mode === "request" ? largest(state, 6) : [];
  const hueOf = new Map(hues.map((rid, index) => [rid, FIRST_HUE + index]));
  const nodeHue = new Map();
  for (const rid of hues) {
    for (const id of state.path(state.holds.get(rid))) if (!nodeHue.has(id)) nodeHue.set(id, hueOf.get(rid));
  }
  for (let owner = 1; owner < size; owner++) {
    if (!state.ownerCount[owner]) continue;
    const id = state.ownerNode[owner];
    const node = id ? state.nodes.get(id) : null;
    if (mode === "request") {
      cached[owner] = nodeHue.get(id) ?? OTHER;
      flight[owner] = hueOf.get(state.ownerNames[owner]) ?? OTHER;
    } else if (mode === "age") {
      const age = node ? Math.max(0, store.time - node.used) : 0;
      cached[owner] = FIRST_AGE + Math.min(7, Math.floor((8 * Math.log(1 + age)) / Math.log(601)));
      flight[owner] = FIRST_AGE;
    } else {
      cached[owner] = node && node.locks > 0 ? LOCKED : CACHED;
    }
    if (chosen.has(state.ownerNames[owner])) cached[owner] = flight[owner] = SELECTED;
  }
  const names = mode === "request" ? hues.map(rid => nameIn(store.history, rid)) : null;
  return { cached, flight, names, from: range ? range[0] : -1, to: range ? range[1] : -1 };
}

function largest(state, most) {
  return [...state.live.keys()]
    .map(rid => [rid, state.owned(rid) + state.shared(rid)])
    .filter(([, size]) => size)
    .sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1))
    .slice(0, most)
    .map(([rid]) => rid);
}

/** One pass over the slots: runs by owner, free runs, the largest. */
export function scanRuns(state) {
  const runs = new Uint32Array(state.ownerNames.length);
  let freeRuns = 0;
  let largestFree = 0;
  let length = 0;
  let last = -1;
  const { owners } = state;
  for (let slot = 0; slot < owners.length; slot++) {
    const owner = owners[slot];
    if (owner === last) {
      length++;
      continue;
    }
    if (last === 0 && length > largestFree) largestFree = length;
    runs[owner]++;
    if (owner === 0) freeRuns++;
    last = owner;
    length = 1;
  }
  if (last === 0 && length > largestFree) largestFree = length;
  return { runs, freeRuns, largestFree };
}

/** Who holds slots, largest first: requests, then states that the notebook keeps (`kept`: the engine's `holders`). */
export function holdersOf(state, history, { runs }, kept = [], textOf = () => "", most = 12) {
  const out = [];
  for (const [rid, word] of state.live) {
    const { prefill, decode } = state.flight(rid);
    const shared = state.shared(rid);
    const own = prefill + decode;
    if (!own && !shared) continue;
    const record = history.requests.get(rid);
    // How far: chunks that were computed may be the tree's already. One that came again computes its answer anew too.
    const fresh = record?.turns.length === 1 ? record.prompt - record.cached : 0;
    const done = shared + prefill - (record?.cached ?? 0);
    const chunk = prefill && done > 0 && done <= fresh ? trans.__("prefill, %1 of %2 new", count(done), count(fresh)) : trans.__("prefill");
    const doing = WAITING[word] ? WAITING[word]() : decode || word === "first_token" ? trans.__("decode") : chunk;
    out.push({ rid, name: nameOf(record ?? { rid }), state: doing, own, shared, prefill, decode, runs: runsOf(state, runs, rid), text: textOf(state.nodes.get(state.holds.get(rid))) });
  }
  out.sort((a, b) => b.own + b.shared - a.own - a.shared || (a.rid < b.rid ? -1 : 1));
  const states = kept
    .filter(session => !session.active && session.cached)
    .sort((a, b) => b.cached - a.cached)
    .map(session => ({ rid: "", sid: session.sid, name: stateName(session.sid.split(".").at(-1), session.cell), state: trans.__("idle, kept by the notebook"), own: 0, shared: session.cached, prefill: 0, decode: 0, runs: null, text: session.text }));
  return [...out, ...states].slice(0, most);
}

function stateName(sid, cell) {
  return cell ? trans.__("state %1 of [%2]", sid, cell) : trans.__("state %1", sid);
}

function runsOf(state, runs, rid) {
  const place = state.placeOf(rid);
  let sum = place === undefined ? 0 : runs[place];
  for (const id of state.path(state.holds.get(rid))) {
    const node = state.placeOf(`node:${id}`);
    if (node !== undefined) sum += runs[node];
  }
  return sum;
}

/** All that is shown of the slots, for a report: numbers and names, no text. */
export function reportOf({ shown: state, history, time, step }) {
  const slots = [];
  for (let slot = 0, end = 0; slot < state.slots; slot = end) {
    while (end < state.slots && state.owners[end] === state.owners[slot] && state.kinds[end] === state.kinds[slot]) end++;
    slots.push([slot, end - slot, state.ownerNames[state.owners[slot]], state.kinds[slot]]);
  }
  const { counts, treeTokens, lockedTokens, stats, seq, pageSize } = state;
  return { time, step, seq, pageSize, counts, treeTokens, lockedTokens, stats, nodes: [...state.nodes.values()], requests: [...state.live], steps: history.steps.slice(-20), slots };
}

/** What a slot is, in words, in lines: state, holder, place in the tree. `token`: the engine's word on what it holds, if it is known. */
export function cellWord(state, history, slot, token = null) {
  const kind = state.kinds[slot];
  const head = trans.__("slot %1  %2", count(slot), slotWord(state, slot));
  const known = token?.position !== undefined;
  if (kind === FREE) return [head];
  if (kind === CACHED) {
    const node = nodeAt(state, slot);
    if (!node) return [head];
    const line = [trans.__("node %1, tokens %2 to %3", node.id, count(node.start), count(node.start + node.length))];
    if (node.rid) line.push(trans.__("first computed for %1", nameIn(history, node.rid)));
    if (known) line.push(trans.__("here token %1%2", count(token.position + 1), quoted(token)));
    return [head, line.join(", "), trans._n("reused by %2 request", "reused by %2 requests", node.hits, count(node.hits))];
  }
  const line = [nameIn(history, state.ownerNames[state.owners[slot]])];
  if (known) line.push(token.output ? trans.__("token %1%2", count(token.output), quoted(token)) : trans.__("prompt token %1%2", count(token.position + 1), quoted(token)));
  return [head, line.join(", "), trans.__("not in the tree yet")];
}

function nodeAt(state, slot) {
  return state.nodes.get(state.ownerNode[state.owners[slot]]);
}

/** The state of a slot, in words. */
export function slotWord(state, slot) {
  const kind = state.kinds[slot];
  if (kind === FREE) return trans.__("free");
  if (kind === CACHED) {
    const node = nodeAt(state, slot);
    if (!node) return trans.__("cached");
    return node.locks ? trans._n("cached, locked by %2 request", "cached, locked by %2 requests", node.locks, count(node.locks)) : trans.__("cached, evictable");
  }
  const word = kind === PREFILL ? trans.__("prefill") : kind === DECODE ? trans.__("decode") : trans.__("scoring");
  return state.written[slot] ? trans.__("%1, written in step %2", word, count(state.written[slot])) : word;
}

function quoted({ text }) {
  return text ? ` "${oneLine(text, 40)}"` : "";
}

/** `chunk 2`: which piece of its prompt a row is; "" of a prompt in one piece. */
function chunkWords({ steps, requests }, index, { rid, kind, prefix, tokens }) {
  const record = requests.get(rid);
  const from = record?.turns.findLast(turn => turn.from <= steps[index].time)?.from ?? Infinity;
  let chunk = 1;
  for (let at = index - 1; at >= 0 && steps[at].time >= from; at--) if (steps[at].rows.some(row => row.rid === rid && row.kind === kind)) chunk++;
  return kind === "prefill" && (chunk > 1 || prefix + tokens < record?.prompt) ? trans.__("chunk %1", chunk) : "";
}

/** What the shown step changed: pairs of a number and words. */
export function changesOf(store) {
  const index = store.isLive ? store.history.steps.length - 1 : store.stepIndexAt(store.time);
  const step = store.history.steps[index];
  if (!step) return [];
  const before = store.history.steps[index - 1]?.time ?? 0;
  const name = rid => nameIn(store.history, rid);
  const out = [];
  const decodes = step.rows.filter(row => row.kind === "decode");
  if (decodes.length) out.push([`+${count(decodes.length)}`, decodes.length === 1 ? trans.__("decode %1", name(decodes[0].rid)) : trans.__("decode, one for each of %1 requests", count(decodes.length))]);
  for (const row of step.rows) {
    if (row.kind === "decode") continue;
    const what = row.kind === "score" ? trans.__("score %1", name(row.rid)) : trans.__("prefill %1", name(row.rid));
    const after = trans.__("after %1 reused or computed before", count(row.prefix));
    out.push([`+${count(row.tokens)}`, [what, chunkWords(store.history, index, row), after].filter(Boolean).join(", ")]);
  }
  for (const mark of store.history.marks) {
    if (mark.time <= before || mark.time > step.time + 1) continue;
    if (mark.time > (store.history.steps[index + 1]?.time ?? Infinity)) continue;
    if (mark.kind === "evict") out.push([`−${count(mark.tokens)}`, trans.__("evicted for %1", name(mark.rid))]);
    if (mark.kind === "retract") out.push(["", trans.__("retracted %1", name(mark.rid))]);
    if (mark.kind === "finish") out.push(["", trans.__("%1 finished", name(mark.rid))]);
  }
  return out.slice(0, 8);
}

/** Slots of a figure of the engine: {locked, flight, evictable}. An old recording does not tell the first two apart: all is locked. */
export function bandsOf({ num_used_tokens: used = 0, num_cached_tokens: evictable = 0, num_locked_tokens: told }) {
  const locked = told ?? used;
  return { locked, flight: used - locked, evictable };
}
