// The graph's layout and differences; with Node's own test runner.

import assert from "node:assert/strict";
import test from "node:test";

import { GraphView } from "../../sgnb/widgets/static/graph.js";
import { diffLines, diffNodes, foldArms, HEIGHT, layoutGraph, merged, nodeOf, progressOf, ROW } from "../../sgnb/widgets/static/graph_data.js";

const node = (key, op, lanes, more = {}) => nodeOf([key, op, more.name ?? "", more.text ?? "", more.line ?? 1, lanes, more.rids ?? [], more.arms ?? [], 0]);
const review = arms => [
  node("t", "Text", [0]),
  node("f", "Fork", [0], { arms: arms.map(arm => arm) }),
  ...arms.map(arm => node(`t${arm}`, "Text", [arm])),
  ...arms.map(arm => node(`g${arm}`, "Generate", [arm], { name: "x" })),
  node("j", "Join", [0]),
];
const overlap = boxes => boxes.some((a, i) => boxes.some((b, j) => j > i && a.y === b.y && a.x < b.x + b.width && b.x < a.x + a.width));

test("arms are columns, and what follows stands below the longest of them", () => {
  const { boxes, lines, height } = layoutGraph(review([1, 2, 3]), 480);
  const at = key => boxes.find(box => box.node.key === key);
  assert.deepEqual(["t", "f", "t1", "g1", "j"].map(key => at(key).y), [0, ROW, 2 * ROW, 3 * ROW, 4 * ROW]);
  assert.deepEqual([at("t1").y, at("t2").y, at("t3").y], [2 * ROW, 2 * ROW, 2 * ROW]);
  assert.ok(at("t1").x < at("t2").x && at("t2").x < at("t3").x);
  assert.equal(overlap(boxes), false);
  assert.ok(boxes.every(box => box.x >= 0 && box.x + box.width <= 480));
  assert.equal(lines.length, 1 + 3 + 3 + 3, "one to the fork, one to each arm, one inside each, one from each to the join");
  assert.equal(height, 4 * ROW + HEIGHT);
  for (const points of lines) for (let i = 2; i < points.length; i += 2) assert.ok(points[i] === points[i - 2] || points[i + 1] === points[i - 1], "straight and orthogonal");
});

test("a group is one box over its arms", () => {
  const nodes = [...review([1, 2, 3]).slice(0, 5), node("g", "Generate", [1, 2, 3], { name: "x" }), node("e1", "Text", [1])];
  const { boxes } = layoutGraph(nodes, 480);
  const group = boxes.find(box => box.node.key === "g");
  assert.ok(group.width > 400);
  assert.equal(boxes.find(box => box.node.key === "e1").y, group.y + ROW);
});

test("a parent that goes on before its arms have ended pushes them down, so that nothing overlaps", () => {
  const nodes = [node("f", "Fork", [0], { arms: [1, 2] }), node("a", "Text", [1]), node("p", "Text", [0]), node("b", "Text", [2]), node("c", "Text", [1])];
  const { boxes } = layoutGraph(nodes, 480);
  assert.equal(overlap(boxes), false);
  const y = key => boxes.find(box => box.node.key === key).y;
  assert.ok(y("b") > y("p") && y("c") > y("p"));
});

test("an arm that is forked again and goes on stands beside its arms", () => {
  const hoisted = [node("f", "Fork", [0], { arms: [1] }), node("h", "Text", [1]), node("g", "Fork", [1], { arms: [2, 3] })];
  const nodes = [...hoisted, ...[1, 2, 3].map(arm => node(`t${arm}`, "Text", [arm])), node("j", "Join", [0])];
  const { boxes } = layoutGraph(nodes, 480);
  const at = key => boxes.find(box => box.node.key === key);
  assert.equal(overlap(boxes), false);
  assert.deepEqual(["t1", "t2", "t3"].map(key => at(key).y), [3 * ROW, 3 * ROW, 3 * ROW]);
  assert.ok(at("t1").x < at("t2").x && at("t2").x < at("t3").x);
  assert.equal(at("j").y, 4 * ROW);
  assert.equal(at("j").x + at("j").width / 2, 240, "the join is over the whole width again");
  const shared = [node("f", "Fork", [0], { arms: [1] }), node("g", "Fork", [1], { arms: [2] }), ...[2, 1, 2].map((arm, i) => node(`s${i}`, "Text", [arm]))];
  const row = layoutGraph(shared, 480).boxes;
  assert.deepEqual(row.slice(2).map(box => box.y), [2 * ROW, 2 * ROW, 3 * ROW]);
  const waits = [...shared.slice(0, 3), node("s3", "Text", [2]), node("p", "Text", [1])];
  assert.equal(layoutGraph(waits, 480).boxes.at(-1).y, 4 * ROW, "what stands behind its arms waits for them");
});

test("more than twelve arms fold to those of another shape", () => {
  const arms = Array.from({ length: 20 }, (_, i) => i + 1);
  const nodes = [...review(arms), node("extra", "Select", [15])];
  const { stands, labels } = foldArms(nodes);
  assert.deepEqual([...labels.values()], ["arms 3–13, same shape", "arms 15–19, same shape"]);
  assert.equal(stands.size, 10 + 4);
  const { boxes } = layoutGraph(nodes, 900);
  assert.equal(boxes.filter(box => box.node.op === "Generate").length, 6);
  assert.equal(overlap(boxes), false);
  assert.equal(foldArms(review(arms.slice(0, 12))).stands.size, 0);
});

test("marks of a pass: removed, added, changed; in one graph the removed stand where they were", () => {
  const before = [node("a", "Text", [0], { text: "x" }), node("b", "Text", [0]), node("c", "Generate", [0])];
  const after = [node("a", "Text", [0], { text: "xy" }), node("c", "Generate", [0]), node("d", "Commit", [0])];
  const marks = diffNodes(before, after);
  assert.deepEqual([marks.removed, marks.added, marks.changed], [1, 1, 1]);
  assert.deepEqual([...marks.before], [["a", "changed"], ["b", "removed"]]);
  assert.deepEqual([...marks.after], [["a", "changed"], ["d", "added"]]);
  assert.deepEqual(merged(before, after).map(one => one.key), ["a", "b", "c", "d"]);
});

test("instructions differ line by line", () => {
  const a = [["Init"], ["Decode", "x"], ["Decode", "y"], ["Commit"]];
  const b = [["Init"], ["Decode", "z"], ["Decode", "y"], ["Extend"], ["Commit"]];
  assert.deepEqual(diffLines(a, b).map(([sign, , line]) => sign + line.join(" ")), [" Init", "-Decode x", "+Decode z", " Decode y", "+Extend", " Commit"]);
  const long = Array.from({ length: 900 }, (_, i) => [`a${i}`]);
  const other = Array.from({ length: 900 }, (_, i) => [`b${i}`]);
  assert.equal(diffLines(long, other).length, 1800, "far apart: all old, all new");
});

test("a node is as far as its requests", () => {
  const group = node("g", "Generate", [1, 2], { rids: ["r1", "r2"] });
  assert.equal(progressOf(group, {}).state, "");
  assert.deepEqual(progressOf(group, { r1: ["done", 9, 10], r2: ["queued", 0, 10] }), { state: "running", tokens: 9, limit: 20 });
  assert.equal(progressOf(group, { r1: ["done", 9, 10], r2: ["done", 4, 10] }).state, "done");
  assert.equal(progressOf(group, { r1: ["failed", 9, 10], r2: ["done", 4, 10] }).state, "failed");
});

test("of another program no node is chosen, and no line of it shown; of the same one that goes on they stay", () => {
  const view = Object.create(GraphView.prototype, Object.getOwnPropertyDescriptors({ options: {}, chosen: "", lineNode: {} }));
  const show = data => ((view.options.data = data), view._forget());
  const source = { 1: "s += gen('x')" };
  show({ name: "a", source, progress: {} });
  Object.assign(view, { chosen: "n1", lineNode: { hidden: false } });
  show({ name: "a", source: { ...source }, progress: { r1: ["running", 1, 9] } });
  assert.deepEqual([view.chosen, view.lineNode.hidden], ["n1", false]);
  show({ name: "b", source });
  assert.deepEqual([view.chosen, view.lineNode.hidden], ["", true]);
});
