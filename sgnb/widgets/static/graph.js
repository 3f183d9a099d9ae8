// Graph: the program, each pass, what it did and why it was allowed (ui.md §7). Its data (`sgnb.explain_data`, or a run's
// `run_data`) come with the widget; no engine is needed. The frame and the keys are view.js's, the layout graph_data.js's.
// Nodes are elements in source order: the picture is its own list for readers without sight.

import { segmented } from "./controls.js";
import { button, el, fill, on, refocus, setText } from "./dom.js";
import { count, seconds } from "./format.js";
import { diffLines, diffNodes, layoutGraph, HEIGHT, merged, nodeOf, progressOf } from "./graph_data.js";
import { trans } from "./trans.js";
import { View } from "./view.js";

const SVG = "http://www.w3.org/2000/svg";
const SHOWN_LINES = 12;

function nodesWords(before, after) {
  return before === after ? trans.__("%1 nodes", count(after)) : trans.__("%1 to %2 nodes", count(before), count(after));
}

export class GraphView extends View {
  static kind = "graph";
  static get title() {
    return trans.__("Graph");
  }
  static follows = false;

  constructor(host, store, options = {}) {
    const ownState = view => (view.options.data?.stages ? null : { words: trans.__("Nothing has run yet."), button: null, cover: true });
    super(host, store, { ...options, ownState });
  }

  build() {
    this.pass = -1;
    this.mode = "both";
    this.chosen = "";
    this.playhead.element.remove();
    this.drawer.remove();
    const modes = [
      ["both", trans.__("Side by side")],
      ["one", trans.__("One graph")],
      ["code", trans.__("Instructions")],
    ];
    this.show = segmented(trans.__("Show"), modes, this.mode, mode => {
      this.mode = mode;
      this.changed();
    });
    const word = text => el("span", "sgnb-word", {}, text);
    this.back = button(["◂", word(trans.__(" Previous pass"))], () => this._step(-1), { "aria-label": trans.__("Previous pass") });
    this.next = button([word(trans.__("Next pass ")), "▸"], () => this._step(1), { "aria-label": trans.__("Next pass") });
    this.tools.append(this.show.element, this.back, this.next, this.helpButton);
    this.list = el("div", "sgnb-passes", { role: "listbox", "aria-label": trans.__("Passes"), tabindex: 0 });
    this.stageNode = el("div", "sgnb-stages");
    this.body.append(this.list, this.stageNode);
    this.didNode = el("div", "sgnb-graph-words");
    this.whyNode = el("div", "sgnb-graph-words");
    this.codeNode = el("div", "sgnb-graph-words sgnb-graph-code");
    this.lineNode = el("div", "sgnb-graph-line", { hidden: true });
    this.footNode = el("div", "sgnb-graph-foot", {}, this.didNode, this.whyNode, this.codeNode);
    fill(this.foot, this.lineNode, this.footNode);
    on(this.list, "click", event => {
      const row = event.target.closest("[data-pass]");
      if (row) this._choose(Number(row.dataset.pass));
    });
  }

  get data() {
    return this.options.data ?? {};
  }

  get passes() {
    return this.data.passes ?? [];
  }

  facts() {
    const { passes } = this;
    if (!passes.length) return "";
    const name = this.data.cell ? trans.__("cell [%1]", this.data.cell) : this.data.name;
    const spent = passes.reduce((sum, pass) => sum + (pass.seconds ?? 0), 0);
    const words = [trans.__("%1 · %2 passes, %3", name, count(passes.length - 2), nodesWords(passes[0].after, passes.at(-1).after))];
    if (passes.some(pass => pass.seconds !== null)) words.push(trans.__("%1 in all", seconds(spent, true)));
    if (this.data.compiled === false && this.data.reason) words.push(trans.__("runs without a graph: %1", this.data.reason));
    return words.join(", ");
  }

  sentence() {
    const pass = this.passes[this.pass];
    return pass ? trans.__("Graph, pass %1, %2: %3.", this.pass, pass.name, pass.note) : GraphView.title;
  }

  key(event) {
    const node = event.target.closest?.(".sgnb-node");
    if (node) return this._nodeKey(event, node);
    const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!step) return false;
    this._step(step);
    return true;
  }

  _nodeKey(event, node) {
    const nodes = [...node.parentElement.querySelectorAll(".sgnb-node")];
    const at = nodes.indexOf(node);
    const step = { ArrowUp: -1, ArrowLeft: -1, ArrowDown: 1, ArrowRight: 1 }[event.key];
    if (step) {
      nodes[Math.max(0, Math.min(nodes.length - 1, at + step))].focus();
      return true;
    }
    if (event.key !== "Enter") return false;
    node.click();
    return true;
  }

  copy() {
    const stage = this._stage(this.pass);
    return (this.data.instructions?.[stage] ?? []).map(line => line.filter(Boolean).join("  ")).join("\n");
  }

  _step(by) {
    this._choose(Math.max(0, Math.min(this.passes.length - 1, this.pass + by)));
  }

  _choose(pass) {
    this.pass = pass;
    this.region.say(this.sentence());
    this.changed();
  }

  /** The stage that a pass leaves; the last entry is the lowering, which changes no node. */
  _stage(pass) {
    return Math.max(0, Math.min((this.data.stages ?? []).length - 1, pass));
  }

  _nodes(stage) {
    return (this.data.stages?.[stage] ?? []).map(nodeOf);
  }

  // ---------------------------------------------------------------- drawing

  draw() {
    if (!this.passes.length) return;
    if (this.pass < 0 || this.pass >= this.passes.length) {
      const first = this.passes.findIndex((pass, index) => index > 0 && index < this.passes.length - 1 && pass.changed);
      this.pass = first > 0 ? first : 0;
    }
    this._forget();
    this._drawList();
    const after = this._stage(this.pass);
    const before = Math.max(0, this.pass === this.passes.length - 1 ? after : after - 1);
    const nodes = { before: this._nodes(before), after: this._nodes(after) };
    const marks = diffNodes(nodes.before, nodes.after);
    const narrow = this.width < 900;
    const mode = this.mode === "both" && narrow ? "one" : this.mode;
    this.show.offer("both", narrow ? trans.__("Side by side needs a width of 900 px.") : "");
    this.show.show(mode);
    this.host.dataset.mode = mode;
    const room = this.stageNode.clientWidth || this.width - 206;
    const panels =
      mode === "code"
        ? [this._code(before, after)]
        : mode === "one"
          ? [this._stagePanel(GraphView.title, merged(nodes.before, nodes.after), room, marks, "one", nodes)]
          : [this._stagePanel(trans.__("Before"), nodes.before, room / 2, marks, "before", nodes), this._stagePanel(trans.__("After"), nodes.after, room / 2, marks, "after", nodes)];
    refocus(this.stageNode, () => fill(this.stageNode, panels)); // it is made anew with each tick of a run
    this._drawFoot(before, after);
  }

  /** Of another program nothing is chosen yet. */
  _forget() {
    if (this._known === this.data) return;
    this._known = this.data;
    const { name, cell, source } = this.data;
    const key = JSON.stringify([name, cell, source]);
    if (key === this._program) return;
    this._program = key;
    this.chosen = "";
    this.lineNode.hidden = true;
  }

  _drawList() {
    const key = JSON.stringify([this.passes, this.pass]);
    if (key === this._listKey) return;
    this._listKey = key;
    fill(
      this.list,
      this.passes.map((pass, index) =>
        el(
          "div",
          `sgnb-pass${index === this.pass ? " sgnb-pass-chosen" : ""}${pass.changed ? " sgnb-pass-changed" : ""}`,
          { role: "option", id: `${this._id()}-${index}`, "aria-selected": String(index === this.pass), "data-pass": index },
          el("span", "sgnb-pass-number", {}, String(index)),
          el("span", "sgnb-pass-name", {}, pass.name.split(/(?<=_)/).flatMap(part => [part, el("wbr")])),
          el("span", "sgnb-pass-time", {}, pass.seconds === null ? "" : seconds(pass.seconds, true)),
          el("span", "sgnb-pass-note", {}, pass.note)
        )
      )
    );
    this.list.setAttribute("aria-activedescendant", `${this._id()}-${this.pass}`);
    this.back.disabled = this.pass <= 0;
    this.next.disabled = this.pass >= this.passes.length - 1;
  }

  _id() {
    this.id ??= `sgnb-graph-${Math.random().toString(36).slice(2, 8)}`;
    return this.id;
  }

  _stagePanel(title, nodes, width, marks, side, both) {
    const { boxes, lines, height } = layoutGraph(nodes, Math.max(220, width - 24));
    const field = el("div", "sgnb-field", { role: "list", "aria-label": trans.__("%1, %2 nodes", title, nodes.length) });
    field.style.height = `${height + 4}px`;
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("aria-hidden", "true");
    svg.setAttribute("width", String(Math.max(220, width - 24)));
    svg.setAttribute("height", String(height + 4));
    for (const points of lines) {
      const line = document.createElementNS(SVG, "polyline");
      line.setAttribute("points", points.map(value => Math.round(value) + 0.5).join(" "));
      svg.append(line);
    }
    field.append(svg, ...boxes.map(box => this._node(box, marks, side, both)));
    return el("section", "sgnb-stage", {}, el("h3", "sgnb-stage-head", {}, title, el("span", "sgnb-dim", {}, this._count(side, both)), el("span", "sgnb-space"), this._changes(marks, side)), field);
  }

  _count(side, both) {
    const [before, after] = side === "one" ? [both.before, both.after] : [both[side], both[side]];
    return ` ${nodesWords(before.length, after.length)}`;
  }

  _changes(marks, side) {
    const out = [];
    if (side !== "after" && marks.removed) out.push(el("span", "sgnb-minus", {}, trans.__("− %1 removed", count(marks.removed))));
    if (side !== "before" && marks.added) out.push(el("span", "sgnb-plus", {}, trans.__("+ %1 added", count(marks.added))));
    if (side !== "before" && marks.changed) out.push(el("span", "sgnb-plus", {}, trans.__("%1 changed", count(marks.changed))));
    return out;
  }

  _node({ node, x, y, width, label }, marks, side, both) {
    const mark = side === "one" ? (marks.after.get(node.key) ?? marks.before.get(node.key) ?? "") : (marks[side].get(node.key) ?? "");
    const sign = { removed: "− ", added: "+ ", changed: "± " }[mark] ?? "";
    const progress = progressOf(node, this.data.progress ?? {});
    const error = (this.data.errors ?? []).find(one => one.line && one.line === node.line && ["Generate", "Select", "Text", "Host", "Fork", "Join"].includes(node.op));
    const group = node.lanes.length > 1;
    const called = node.name ? `${node.op} ${node.name}` : node.op;
    const title = group ? trans.__("%1, group of %2", called, node.lanes.length) : called;
    const args = el("code", "sgnb-node-args");
    const old = mark === "changed" ? both.before.find(one => one.key === node.key) : null;
    const struck = old && side !== "before" && old.text !== node.text ? el("s", "", {}, old.text) : null;
    args.append(label && !group ? `${label} · ` : "", node.text, ...(struck ? [" ", struck] : []));
    const at = [node.chars && width > 180 ? trans.__("%1 chars", count(node.chars)) : "", node.line ? trans.__("L%1", node.line) : ""].filter(Boolean).join(", ");
    const box = el(
      "div",
      `sgnb-node${mark ? ` sgnb-node-${mark}` : ""}${error ? " sgnb-node-error" : ""}${this.chosen === node.key ? " sgnb-node-chosen" : ""}`,
      {
        role: "listitem",
        tabindex: 0,
        "data-op": node.op,
        "data-line": node.line,
        "data-progress": progress.state,
        title: [title, node.text, at, error?.text].filter(Boolean).join("\n"),
        onclick: () => this._chooseNode(node),
      },
      el("span", "sgnb-node-title", {}, progress.state === "done" ? el("span", "sgnb-tick", {}, "✓ ") : null, sign, title),
      el("span", "sgnb-node-at", {}, at),
      error ? el("span", "sgnb-node-args sgnb-minus", {}, error.text) : args
    );
    if (progress.state === "running") {
      const bar = el("span", "sgnb-node-bar", { "aria-label": trans.__("%1 of at most %2 tokens", progress.tokens, progress.limit) });
      bar.style.width = `${progress.limit ? Math.max(2, Math.round((100 * progress.tokens) / progress.limit)) : 2}%`;
      box.append(bar);
    }
    Object.assign(box.style, { left: `${Math.round(x)}px`, top: `${y}px`, width: `${Math.round(width)}px`, height: `${HEIGHT}px` });
    return box;
  }

  /** Go to the source line: shown below, and told to the notebook, which marks it where it can. */
  _chooseNode(node) {
    this.chosen = this.chosen === node.key ? "" : node.key;
    const text = this.chosen && node.line ? (this.data.source?.[node.line] ?? "") : "";
    this.lineNode.hidden = !text;
    fill(this.lineNode, text ? [el("span", "sgnb-dim", {}, trans.__("line %1", node.line)), el("code", "", {}, text)] : []);
    if (node.line) this.host.dispatchEvent(new CustomEvent("sgnb:line", { bubbles: true, detail: { line: node.line, cell: this.data.cell ?? "" } }));
    this.changed();
  }

  // ---------------------------------------------------------------- words and instructions

  _drawFoot(before, after) {
    const pass = this.passes[this.pass];
    const errors = (this.data.errors ?? []).map(error => (error.line ? trans.__("Line %1: %2", error.line, error.text) : error.text));
    const did = pass.did || (this.pass === 0 ? trans.__("The program was read into %1 nodes.", count(pass.after)) : trans.__("Nothing. %1.", pass.note[0].toUpperCase() + pass.note.slice(1)));
    fill(this.didNode, el("h3", "", {}, trans.__("What it did")), el("p", "", {}, did), errors.map(text => el("p", "sgnb-minus", {}, text)));
    fill(this.whyNode, pass.why ? [el("h3", "", {}, trans.__("Why it is allowed")), el("p", "", {}, pass.why)] : []);
    const lines = this._diff(before, after).filter(([sign]) => sign !== " ");
    const rest = lines.length - SHOWN_LINES;
    fill(
      this.codeNode,
      lines.length ? [el("h3", "", {}, trans.__("Instructions")), this._table(lines.slice(0, SHOWN_LINES)), rest > 0 ? el("p", "sgnb-dim", {}, trans.__("%1 more lines differ; see Instructions.", count(rest))) : null] : []
    );
    this.footNode.dataset.parts = String([this.didNode, this.whyNode, this.codeNode].filter(node => node.childElementCount).length);
  }

  _diff(before, after) {
    const { instructions = [] } = this.data;
    return diffLines(instructions[before] ?? [], instructions[after] ?? []);
  }

  _code(before, after) {
    return el("section", "sgnb-stage", {}, el("h3", "sgnb-stage-head", {}, trans.__("Instructions")), this._table(this._diff(before, after)));
  }

  _table(lines) {
    const rows = lines.map(([sign, number, line]) =>
      el(
        "tr",
        { "-": "sgnb-line-minus", "+": "sgnb-line-plus" }[sign] ?? "",
        {},
        [sign === " " ? "" : sign === "-" ? "−" : "+", line[0] ? count(number) : "", ...line].map((cell, index) => el("td", index === 1 ? "sgnb-num" : "", { title: index > 4 && cell ? cell : null }, cell))
      )
    );
    return el("table", "sgnb-instructions", { "aria-label": trans.__("Instructions") }, el("tbody", "", {}, rows));
  }

  details() {
    setText(this.engineName, "");
  }
}
