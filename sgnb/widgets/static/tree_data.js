// Layout of the radix tree: rows and blocks of the icicle, folds, ages. Pure: no page.

import { count } from "./format.js";
import { trans } from "./trans.js";

export const IDLE_SHOWN = 12;
const NAMES = 6; // of requests, before the rest is counted
export const EVICTED_SECONDS = 10;
const MAX_ROWS = 2000; // what is beyond stands in folds: a reader scrolls through less, and a frame must end
const MAX_DEPTH = 500;
const LARGE = 20000; // nodes; from there on the tree is not measured anew for each change
const REST = 20; // then so many times as long as a measuring took, nothing is measured

/**
 * Blocks of the icicle. `scale`: px a token. A block is {kind, id, start, length, row, rows, …}; kinds: node, flight (a
 * request's own tokens), gone (just evicted), fold (`171 more nodes, 3 762 tok`). `open`: folds that the reader opened; `keep`:
 * nodes that stand in none. However large the tree is, there are about MAX_ROWS rows.
 */
export function layoutTree(state, scale, { open = new Set(), keep = new Set(), gone = [], flights = [] } = {}) {
  const sizes = measure(state);
  const blocks = [];
  const order = [];
  let row = 0;
  const placed = new Set();
  const flightsAt = groupBy(flights, flight => flight.node);
  const goneAt = groupBy(gone, node => (state.nodes.has(node.parent) ? node.parent : 0));

  const place = (at, depth) => {
    const id = sizes.ids[at];
    const node = state.nodes.get(id);
    if (!node) return; // it went since a large tree was measured
    const block = { kind: "node", id, node, start: node.start, length: node.length, row, rows: 0, depth };
    blocks.push(block);
    order.push(block);
    const first = row;
    children(id, sizes.first[at], sizes.inner[at], depth + 1, node.start + node.length);
    if (row === first) row++;
    block.rows = row - first;
  };

  // Of `parent`: the nodes at `count` places from `first` on.
  const children = (parent, first, count, depth, start) => {
    const whole = open.has(parent);
    const shown = new Set();
    const folded = [];
    const idle = []; // the newest, newest first
    const newer = (a, b) => sizes.used[a] > sizes.used[b] || (sizes.used[a] === sizes.used[b] && sizes.ids[a] < sizes.ids[b]);
    for (let at = first; at < first + count; at++) {
      if (whole || sizes.busy[at] || keep.has(sizes.ids[at])) shown.add(at);
      else if ((sizes.end[at] - start) * scale < 2) folded.push(at);
      else {
        let rank = idle.length;
        while (rank && newer(at, idle[rank - 1])) rank--;
        if (rank < IDLE_SHOWN) idle.splice(rank, 0, at);
        else folded.push(at);
        if (idle.length > IDLE_SHOWN) folded.push(idle.pop());
      }
    }
    for (const at of idle) shown.add(at);
    const room = at => keep.has(sizes.ids[at]) || (row < MAX_ROWS && depth < MAX_DEPTH);
    for (let at = first; shown.size && at < first + count; at++) {
      if (!shown.has(at)) continue;
      if (room(at)) place(at, depth);
      else folded.push(at);
    }
    for (const flight of flightsAt.get(parent) ?? []) {
      blocks.push({ kind: "flight", id: flight.rid, start, length: flight.prefill + flight.decode, ...flight, row, rows: 1, depth });
      order.push(blocks.at(-1));
      row++;
    }
    for (const node of goneAt.get(parent) ?? []) {
      blocks.push({ kind: "gone", id: node.id, node, start: node.start, length: node.length, row, rows: 1, depth });
      placed.add(node.id);
      row++;
    }
    if (folded.length) {
      let nodes = 0;
      let tokens = 0;
      for (const at of folded) {
        nodes += sizes.nodes[at];
        tokens += sizes.tokens[at];
      }
      blocks.push({ kind: "fold", id: parent, start, length: 0, prefixes: folded.length, nodes, tokens, row, rows: 1, depth });
      order.push(blocks.at(-1));
      row++;
    }
  };

  children(0, 0, sizes.tops, 1, 0);
  for (const node of gone) {
    if (placed.has(node.id)) continue; // its parent is folded
    blocks.push({ kind: "gone", id: node.id, node, start: node.start, length: node.length, row, rows: 1, depth: 1 });
    row++;
  }
  return { blocks, order, rows: row };
}

const measured = new WeakMap(); // state → what `measure` said of it, and of which version of its tree

/**
 * The nodes by rows of the tree, so that the children of one stand side by side from its `first` on; and of the subtree of
 * each: whether something is locked, nodes, tokens, the last use, where it ends. Lists of numbers, and kept while the tree
 * stays: most frames bring new tokens, few another tree.
 */
function measure(state) {
  const known = measured.get(state);
  const began = performance.now();
  if (known?.version === state.treeVersion || (known?.ids.length > LARGE && began < known.again)) return known;
  const size = state.nodes.size;
  // All name spaces as one forest, by first use.
  const firsts = [...state.roots.values()].flat().map(id => [state.nodes.get(id).order, id]);
  const ids = firsts.sort((a, b) => a[0] - b[0]).map(([, id]) => id);
  const [first, inner, busy, nodes, tokens, used, end] = [Uint32Array, Uint32Array, Uint8Array, Uint32Array, Uint32Array, Float64Array, Uint32Array].map(List => new List(size));
  const above = new Int32Array(size).fill(-1);
  const tops = ids.length;
  for (let at = 0; at < ids.length; at++) {
    const node = state.nodes.get(ids[at]);
    first[at] = ids.length;
    inner[at] = node.children.length;
    busy[at] = node.locks > 0;
    nodes[at] = 1;
    tokens[at] = node.length;
    used[at] = node.used;
    end[at] = node.start + node.length;
    for (const child of node.children) {
      above[ids.length] = at;
      ids.push(child);
    }
  }
  for (let at = ids.length - 1; at >= tops; at--) {
    const up = above[at];
    busy[up] |= busy[at];
    nodes[up] += nodes[at];
    tokens[up] += tokens[at];
    if (used[at] > used[up]) used[up] = used[at];
    if (end[at] > end[up]) end[up] = end[at];
  }
  let reach = 0;
  for (let at = 0; at < tops; at++) if (end[at] > reach) reach = end[at];
  const again = performance.now() + REST * (performance.now() - began);
  const made = { version: state.treeVersion, again, ids, tops, first, inner, busy, nodes, tokens, used, end, reach };
  measured.set(state, made);
  return made;
}

function groupBy(list, keyOf) {
  const out = new Map();
  for (const item of list) {
    const key = keyOf(item);
    if (!out.has(key)) out.set(key, []);
    out.get(key).push(item);
  }
  return out;
}

/** Tokens of requests that are not in the tree yet, by the node they hang on. */
export function flightsOf(state) {
  const out = [];
  for (const rid of state.live.keys()) {
    const { prefill, decode } = state.flight(rid);
    if (prefill + decode) out.push({ rid, node: state.nodes.has(state.holds.get(rid)) ? state.holds.get(rid) : 0, prefill, decode });
  }
  return out;
}

/** In how many runs of neighbouring slots these owners' slots lie, taken together. */
export function runsOf(state, owners) {
  const places = new Set(owners.map(owner => state.placeOf(owner)));
  places.delete(undefined);
  places.delete(0);
  if (!places.size) return 0;
  let runs = 0;
  let inside = false;
  let last = -1;
  for (const place of state.owners) {
    if (place !== last) {
      last = place;
      const now = places.has(place);
      if (now && !inside) runs++;
      inside = now;
    }
  }
  return runs;
}

/** Who holds a path, and its slots: pairs of words. `ids`: its nodes; `rid`: the request that it is of, or "". */
export function pathFacts(state, ids, rid, name) {
  const facts = [];
  const path = ids.map(id => state.nodes.get(id));
  const end = path.at(-1);
  const holders = [...state.holds].map(([other, id]) => [other, state.path(id)]);
  const names = list => [...list.slice(0, NAMES).map(([other]) => name(other)), ...(list.length > NAMES ? [trans.__("%1 more", count(list.length - NAMES))] : [])].join(", ");
  const locked = holders.filter(([, held]) => held.includes(end?.id));
  if (locked.length) facts.push([trans.__("Locked by"), names(locked)]);
  // The longest part of the path that somebody else reads too.
  const others = node => holders.filter(([other, held]) => other !== rid && held.includes(node.id) && !held.includes(end.id));
  const shared = path.findLast(node => node !== end && others(node).length);
  if (shared) facts.push([trans.__("First %1 tok also by", count(shared.start + shared.length)), names(others(shared))]);
  const owners = [...ids.map(id => `node:${id}`), ...(rid ? [rid] : [])]; // free slots are nobody's: ""
  const slots = count(owners.reduce((sum, owner) => sum + state.owned(owner), 0));
  const runs = runsOf(state, owners);
  facts.push([trans.__("Slots"), trans._n("%3 in %2 run", "%3 in %2 runs", runs, count(runs), slots)]);
  return facts;
}

/** Which nodes went in the last ten seconds before `time`. */
export function recentlyGone(state, time) {
  return state.evicted.filter(node => node.time > time - EVICTED_SECONDS && node.time <= time + 0.001 && !state.nodes.has(node.id)).slice(-12);
}

/** 0 for just used … 1 for ten minutes and more, on a log scale from one second. */
export function ageShare(seconds) {
  return Math.max(0, Math.min(1, Math.log(Math.max(1, seconds)) / Math.log(600)));
}

/** The last token position that anything reaches, rounded up to a number people read. */
export function reach(state) {
  let end = Math.max(10, measure(state).reach);
  for (const flight of flightsOf(state)) {
    const node = state.nodes.get(flight.node);
    end = Math.max(end, (node ? node.start + node.length : 0) + flight.prefill + flight.decode);
  }
  return end * 1.02;
}

/** Ticks of the token axis: a step of 1, 2 or 5 times a power of ten, at least 70 px apart. */
export function tickStep(scale) {
  for (let power = 1; ; power *= 10) for (const step of [1, 2, 5]) if (step * power * scale >= 70) return step * power;
}

/** Boxes and lines of the node-link form: x by depth, y by leaves; at most `most` nodes. */
export function layoutLinks(state, top, most = 300) {
  const out = [];
  let row = 0;
  const walk = (id, depth, parent) => {
    if (out.length >= most) return null;
    const node = state.nodes.get(id);
    const box = { id, node, depth, row: 0, parent };
    out.push(box);
    const first = row;
    for (const child of node.children) {
      if (out.length >= most) break;
      walk(child, depth + 1, box);
    }
    if (row === first) row++;
    box.row = (first + row - 1) / 2;
    return box;
  };
  const tops = top && state.nodes.has(top) ? [[top]] : state.roots.values();
  for (const ids of tops) {
    for (const id of ids) {
      if (out.length >= most) break;
      walk(id, 0, null);
    }
  }
  return { boxes: out, rows: row, left: state.nodes.size - out.length };
}
