// The graph view's layout and differences: nodes by depth, arms as columns, what a pass removed, added or changed. Pure.

import { trans } from "./trans.js";

export const ROW = 42; // px from one row to the next
export const HEIGHT = 32;
const GAP = 10;
const MAX_WIDTH = 346;
const FOLD_FROM = 12; // more arms than this fold
const SHOWN_ARMS = 3;

/** A node of `sgnb.lang.stages` as an object. */
export function nodeOf([key, op, name, text, line, lanes, rids, arms, chars]) {
  return { key, op, name, text, line, lanes, rids, arms, chars };
}

/** `[key → mark]` on both sides: "removed", "added", "changed", or "" — by key, then by argument. */
export function diffNodes(before, after) {
  const old = new Map(before.map(node => [node.key, node]));
  const fresh = new Map(after.map(node => [node.key, node]));
  const marks = { before: new Map(), after: new Map(), removed: 0, added: 0, changed: 0 };
  for (const node of before) {
    const now = fresh.get(node.key);
    if (!now) {
      marks.before.set(node.key, "removed");
      marks.removed++;
    } else if (now.text !== node.text || now.op !== node.op || now.lanes.length !== node.lanes.length) {
      marks.before.set(node.key, "changed");
      marks.after.set(node.key, "changed");
      marks.changed++;
    }
  }
  for (const node of after) {
    if (old.has(node.key)) continue;
    marks.after.set(node.key, "added");
    marks.added++;
  }
  return marks;
}

/** Both stages in one list: what was removed stands where it was. */
export function merged(before, after) {
  const fresh = new Set(after.map(node => node.key));
  const out = [];
  let at = 0;
  for (const node of after) {
    const place = before.findIndex((one, index) => index >= at && one.key === node.key);
    if (place >= 0) {
      for (; at < place; at++) if (!fresh.has(before[at].key)) out.push(before[at]);
      at = place + 1;
    }
    out.push(node);
  }
  for (; at < before.length; at++) if (!fresh.has(before[at].key)) out.push(before[at]);
  return out;
}

/** Arms of a wide fork that are not drawn: the later ones of equal shape. Returns arm → the arm that stands for it. */
export function foldArms(nodes) {
  const shapes = new Map();
  for (const node of nodes) for (const lane of node.lanes) shapes.set(lane, `${shapes.get(lane) ?? ""}${node.op} ${node.name}\n`);
  const stands = new Map();
  const labels = new Map();
  for (const node of nodes) {
    if (node.arms.length <= FOLD_FROM) continue;
    let at = SHOWN_ARMS;
    while (at < node.arms.length) {
      let end = at;
      while (end + 1 < node.arms.length && shapes.get(node.arms[end + 1]) === shapes.get(node.arms[at])) end++;
      for (let arm = at + 1; arm <= end; arm++) stands.set(node.arms[arm], node.arms[at]);
      if (end > at) labels.set(node.arms[at], trans.__("arms %1–%2, same shape", at, end));
      at = end + 1;
    }
  }
  return { stands, labels };
}

/**
 * Places for `nodes` in `width` px: `{boxes: [{node, x, y, width, label}], lines: [[x, y, x, y, …]], height}`.
 * A row down for each node of a state, the arms of a fork beside each other, what follows them below the longest.
 */
export function layoutGraph(nodes, width) {
  const { stands, labels } = foldArms(nodes);
  const lanes = new Map(); // lane → left edge, width, next free row, foot of its last node
  const lane = number => {
    if (!lanes.has(number)) lanes.set(number, { left: 0, width, row: 0, foot: null });
    return lanes.get(number);
  };
  const boxes = [];
  const lines = [];
  const children = new Map();
  const descend = number => [number, ...(children.get(number) ?? []).flatMap(descend)];
  nodes.forEach((node, index) => place(node, index));
  return { boxes, lines, height: boxes.length ? Math.max(...boxes.map(box => box.y)) + HEIGHT : 0 };

  function place(node, index) {
    const shown = [...new Set(node.lanes.map(one => stands.get(one) ?? one))];
    if (node.lanes.every(one => stands.has(one)) && shown.every(one => !node.lanes.includes(one))) return;
    const states = shown.map(lane);
    const below = shown.flatMap(number => descend(number).slice(1)).map(lane);
    const row = Math.max(...states.map(one => one.row), ...below.map(one => one.row));
    const from = Math.min(...states.map(one => one.left));
    const to = Math.max(...states.map(one => one.left + one.width));
    const wide = Math.min(to - from - GAP, shown.length > 1 ? Infinity : MAX_WIDTH);
    const box = { node, x: (from + to - wide) / 2, y: row * ROW, width: wide, label: shown.map(one => labels.get(one)).find(Boolean) ?? "" };
    boxes.push(box);
    const heads = new Map();
    states.forEach((state, at) => {
      const x = shown.length > 1 ? state.left + state.width / 2 : box.x + box.width / 2;
      const feet = below.length ? below.filter(one => one.foot && one.row > state.row) : [];
      for (const foot of feet.length ? feet : [state]) if (foot.foot) lines.push(elbow(foot.foot, [x, box.y]));
      heads.set(shown[at], x);
    });
    for (const [number, x] of heads) Object.assign(lane(number), { row: row + 1, foot: [x, box.y + HEIGHT] });
    for (const one of below) Object.assign(one, { row: Math.max(one.row, row + 1), foot: null });
    if (node.arms.length) fork(node, shown[0], index);
  }

  function fork(node, number, index) {
    const above = lane(number);
    const arms = node.arms.filter(arm => !stands.has(arm));
    // An arm that is forked and goes on while its arms do is one more column beside them (hoist_prefix and share_generations
    // make such); all else that goes on waits for them, below.
    const later = nodes.slice(index + 1);
    const goesOn = later.findIndex(({ lanes: own }) => own.length === 1 && own[0] === number);
    const owner = [...children.keys()].find(one => children.get(one).includes(number));
    const beside = owner !== undefined && goesOn >= 0 && later.slice(goesOn).some(({ lanes: [first] }) => arms.includes(first)) ? 1 : 0;
    const parent = beside ? owner : number;
    const each = above.width / (arms.length + beside);
    children.set(parent, [...(children.get(parent) ?? []), ...arms]);
    arms.forEach((arm, at) => {
      lanes.set(arm, { left: above.left + (at + beside) * each, width: each, row: above.row, foot: above.foot });
    });
    if (beside) above.width = each;
  }
}

/** A straight orthogonal line from a node's foot to a node's head. */
function elbow([x1, y1], [x2, y2]) {
  if (Math.abs(x1 - x2) < 1) return [x1, y1, x2, y2];
  const middle = y2 - 5;
  return [x1, y1, x1, middle, x2, middle, x2, y2];
}

/** Lines of two lists with `-`, `+` or ` `: the longest common part stays; very long lists are compared as wholes. */
export function diffLines(before, after) {
  const a = before.map(line => line.join("\t"));
  const b = after.map(line => line.join("\t"));
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head++;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail++;
  const out = before.slice(0, head).map((line, index) => [" ", index, line]);
  const [n, m] = [a.length - head - tail, b.length - head - tail];
  if (n * m > 250000) {
    for (let i = head; i < a.length - tail; i++) out.push(["-", i, before[i]]);
    for (let j = head; j < b.length - tail; j++) out.push(["+", j, after[j]]);
  } else {
    const best = Array.from({ length: n + 1 }, () => new Uint32Array(m + 1));
    for (let i = n - 1; i >= 0; i--) for (let j = m - 1; j >= 0; j--) best[i][j] = a[head + i] === b[head + j] ? best[i + 1][j + 1] + 1 : Math.max(best[i + 1][j], best[i][j + 1]);
    let [i, j] = [0, 0];
    while (i < n || j < m) {
      if (i < n && j < m && a[head + i] === b[head + j]) out.push([" ", head + j++, before[head + i++]]);
      else if (i < n && (j >= m || best[i + 1][j] >= best[i][j + 1])) out.push(["-", head + i, before[head + i++]]);
      else out.push(["+", head + j, after[head + j++]]);
    }
  }
  for (let i = 0; i < tail; i++) out.push([" ", b.length - tail + i, after[b.length - tail + i]]);
  return out;
}

/** How far a node is: "done", "running", "failed" or "", with tokens and limit of all its requests. */
export function progressOf(node, progress) {
  const told = node.rids.map(rid => progress[rid]).filter(Boolean);
  if (!told.length) return { state: "", tokens: 0, limit: 0 };
  const states = told.map(([state]) => state);
  const tokens = told.reduce((sum, [, count]) => sum + count, 0);
  const limit = told.reduce((sum, [, , most]) => sum + most, 0);
  if (states.includes("failed")) return { state: "failed", tokens, limit };
  if (states.every(state => state === "done")) return { state: "done", tokens, limit };
  return { state: states.some(state => state !== "queued") ? "running" : "", tokens, limit };
}
