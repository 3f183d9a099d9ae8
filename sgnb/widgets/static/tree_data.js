// Layout of the radix tree: rows and blocks of the icicle, folds, ages. Pure: no page.

export const IDLE_SHOWN = 12;
export const EVICTED_SECONDS = 10;

/**
 * Blocks of the icicle. `scale`: px a token. A block is {kind, id, start, length, row, rows, …}; kinds: node, flight (a
 * request's own tokens), gone (just evicted), fold (`171 more nodes, 3 762 tok`). `open`: folds that the reader opened.
 */
export function layoutTree(state, scale, { open = new Set(), keep = new Set(), gone = [], flights = [] } = {}) {
  const sizes = new Map();
  measure(state, sizes);
  const blocks = [];
  const order = [];
  let row = 0;
  const placed = new Set();
  const flightsAt = groupBy(flights, flight => flight.node);
  const goneAt = groupBy(gone, node => (state.nodes.has(node.parent) ? node.parent : 0));

  const place = (id, depth) => {
    const node = state.nodes.get(id);
    const block = { kind: "node", id, node, start: node.start, length: node.length, row, rows: 0, depth };
    blocks.push(block);
    order.push(block);
    const first = row;
    children(id, node.children, depth + 1, node.start + node.length);
    if (row === first) row++;
    block.rows = row - first;
  };

  const children = (parent, ids, depth, start) => {
    const shown = [];
    const folded = [];
    const idle = [];
    for (const id of ids) {
      const size = sizes.get(id);
      if (keep.has(id) || size.busy) shown.push(id);
      else if ((size.end - start) * scale < 2) folded.push(id);
      else idle.push(id);
    }
    if (idle.length > IDLE_SHOWN && !open.has(parent)) {
      const recent = new Set([...idle].sort((a, b) => sizes.get(b).used - sizes.get(a).used || a - b).slice(0, IDLE_SHOWN));
      for (const id of idle) (recent.has(id) ? shown : folded).push(id);
    } else {
      shown.push(...idle);
    }
    const isShown = new Set(open.has(parent) ? ids : shown);
    for (const id of ids) if (isShown.has(id)) place(id, depth);
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
    if (folded.length && !open.has(parent)) {
      let nodes = 0;
      let tokens = 0;
      for (const id of folded) {
        nodes += sizes.get(id).nodes;
        tokens += sizes.get(id).tokens;
      }
      blocks.push({ kind: "fold", id: parent, start, length: 0, prefixes: folded.length, nodes, tokens, row, rows: 1, depth });
      order.push(blocks.at(-1));
      row++;
    }
  };

  // All name spaces as one forest, by first use.
  const tops = [...state.roots.values()].flat().sort((a, b) => state.nodes.get(a).order - state.nodes.get(b).order);
  children(0, tops, 1, 0);
  for (const node of gone) {
    if (placed.has(node.id)) continue; // its parent is folded
    blocks.push({ kind: "gone", id: node.id, node, start: node.start, length: node.length, row, rows: 1, depth: 1 });
    row++;
  }
  return { blocks, order, rows: row };
}

/** For each node: whether something in its subtree is locked, nodes and tokens, the last use, where it ends. */
function measure(state, sizes) {
  const stack = [...state.roots.values()].flat();
  const inOrder = [];
  while (stack.length) {
    const id = stack.pop();
    inOrder.push(id);
    for (const child of state.nodes.get(id).children) stack.push(child);
  }
  for (let i = inOrder.length - 1; i >= 0; i--) {
    const node = state.nodes.get(inOrder[i]);
    const size = { busy: node.locks > 0, nodes: 1, tokens: node.length, used: node.used, end: node.start + node.length };
    for (const id of node.children) {
      const child = sizes.get(id);
      size.busy ||= child.busy;
      size.nodes += child.nodes;
      size.tokens += child.tokens;
      if (child.used > size.used) size.used = child.used;
      if (child.end > size.end) size.end = child.end;
    }
    sizes.set(node.id, size);
  }
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
  let end = 10;
  for (const node of state.nodes.values()) if (node.start + node.length > end) end = node.start + node.length;
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
    for (const child of node.children) walk(child, depth + 1, box);
    if (row === first) row++;
    box.row = (first + row - 1) / 2;
    return box;
  };
  const tops = top && state.nodes.has(top) ? [top] : [...state.roots.values()].flat();
  for (const id of tops) walk(id, 0, null);
  return { boxes: out, rows: row, left: state.nodes.size - out.length };
}
