// What stands beside and below the picture of the radix tree: the selected path, the prompts and what they reused, why one
// was not cached, the twin of real elements. Gets the view (tree.js); draws nothing.

import { equalAgain, reasonOf } from "./causes.js";
import { button, el, fill, refill, table } from "./dom.js";
import { count, counted, oneLine, seconds } from "./format.js";
import { nameOf } from "./history.js";
import { trans } from "./trans.js";
import { pathFacts } from "./tree_data.js";

const TWIN_ROWS = 200;
const PROMPTS = 50;

const dim = text => el("span", "sgnb-dim", {}, text);
const line = (...parts) => el("p", "", {}, ...parts);
const heading = text => el("h3", "", {}, text);
const buttons = (...list) => el("div", "sgnb-buttons", {}, ...list);

export class TreeSide {
  constructor(view) {
    this.view = view;
    this.store = view.store;
    this.path = el("div", "");
    this.prompts = el("div", "sgnb-tree-prompts");
    this.reason = el("div", "sgnb-tree-why");
    this.twin = el("div", "sgnb-tree-twin", { role: "tree", "aria-label": trans.__("Nodes of the radix tree"), tabindex: -1 });
    this._why = ""; // the request that is asked about
    this._followed = ""; // the selected request that was looked at last
    this._partings = new Map(); // rid → answer of `prompt`
    this._id = `sgnb-tree-${Math.random().toString(36).slice(2, 8)}`;
  }

  update() {
    this._showPath();
    this._follow();
    this._showPrompts();
    this._showWhy();
    this._showTwin();
  }

  // ---------------------------------------------------------------- the selected path

  _showPath() {
    const { store, view } = this;
    const state = store.shown;
    const { selection } = store;
    const ids = state.path(view.selectedNode);
    const path = ids.map(id => state.nodes.get(id));
    const rid = selection?.kind === "request" && state.live.has(selection.id) ? selection.id : "";
    const gone = path.length || rid ? null : state.evicted.find(node => selection?.kind === "node" && node.id === selection.id);
    if (!path.length && !rid) return refill(this.path, [heading(trans.__("Selected path")), ...(gone ? this._goneNodes(gone) : [el("p", "sgnb-dim", {}, trans.__("Click a node, or use the arrow keys."))])]);
    view.texts.want(path);
    const end = path.at(-1);
    const { prefill, decode } = rid ? state.flight(rid) : { prefill: 0, decode: 0 };
    const flight = prefill + decode;
    const parts = path.map(node => this._part(node, view.use(node), node.locks ? "sgnb-is-locked" : ""));
    if (flight) parts.push(partOf(flight, decode ? trans.__("decoding, not in the tree yet") : trans.__("prefill, not in the tree yet"), view.runningText(rid), "sgnb-is-decode"));
    const facts = pathFacts(state, ids, rid, other => view.name(other));
    const acts = buttons(button(trans.__("Copy text"), () => view.copySelected()));
    if (view.options.open) acts.append(button(trans.__("Show in KV map"), () => view.options.open("kv")));
    return refill(this.path, [
      heading(trans.__("Selected path")),
      el("p", "sgnb-dim", {}, trans.__("%1 tokens, %2", count((end ? end.start + end.length : 0) + flight), counted.nodes(path.length))),
      ...parts,
      el("dl", "sgnb-pairs", {}, facts.flatMap(([name, value]) => [el("dt", "", {}, name), el("dd", "", {}, value)])),
      acts,
    ]);
  }

  _part(node, words, className) {
    return partOf(node.length, words, this.view.texts.of(node), className);
  }

  _goneNodes(node) {
    const told = trans._n("From token %3. %2 request had reused it.", "From token %3. %2 requests had reused it.", node.hits, count(node.hits), count(node.start));
    return [this._part(node, this.view.goneWords(node), "sgnb-is-gone"), el("p", "sgnb-dim", {}, told)];
  }

  // ---------------------------------------------------------------- prompts, and why

  _find(rid) {
    return this.store.history.requests.get(rid) ?? null;
  }

  /** The cell that the nearest cached path was computed for; "" when it is not known. */
  _cellOf(parting) {
    const near = this.store.shown.nodes.get(parting?.cached_node);
    return this._find(near?.rid)?.label?.cell ?? parting?.by ?? ""; // a view that came later knows no node's maker
  }

  _reason(record) {
    const { store } = this;
    const stepAt = time => store.history.steps[store.stepIndexAt(time)]?.step ?? 0;
    return reasonOf(record, { find: rid => this._find(rid), stepAt, from: this._cellOf(this._partings.get(record.rid)), pageSize: store.live.pageSize });
  }

  _showPrompts() {
    const time = this.store.time + 0.001;
    this._listed = this.store.history.prompts.filter(record => record.admitted <= time && !record.label?.name?.startsWith("@")).slice(-PROMPTS).reverse();
    const rows = this._listed.map(record => [nameOf(record), count(record.prompt), count(record.cached), this._reason(record).word]);
    const key = JSON.stringify(rows) + this._why;
    if (key === this._promptsKey) return;
    this._promptsKey = key;
    const columns = [{ name: trans.__("request") }, { name: trans.__("prompt"), number: true }, { name: trans.__("reused"), number: true }, { name: trans.__("the rest was") }];
    const focused = this.prompts.contains(document.activeElement);
    fill(
      this.prompts,
      heading(trans.__("Prompts and what they reused")),
      rows.length
        ? table(columns, rows, { selected: this._listed.findIndex(record => record.rid === this._why), onrow: index => this._ask(this._listed[index]) })
        : el("p", "sgnb-dim", {}, trans.__("No prompt was computed yet."))
    );
    if (focused) this.prompts.querySelector("tr.sgnb-chosen")?.focus();
  }

  /** A request that is selected, here or in another view, is the one that is asked about; it stays so without it. */
  _follow() {
    const { selection } = this.store;
    const rid = selection?.kind === "request" ? selection.id : "";
    if (rid === this._followed) return;
    const record = this._find(rid);
    if (rid && !record?.admitted) return; // its events are still to come
    this._followed = rid;
    if (rid && !record.label?.name?.startsWith("@")) this._ask(record);
  }

  _ask({ rid }) {
    this._why = rid;
    this.store.select({ kind: "request", id: rid });
    if (!this._partings.has(rid)) {
      const put = answer => {
        this._partings.set(rid, answer);
        this.view.changed();
      };
      this.store.ask("prompt", { rid }).then(put, () => put(null));
    }
    this.view.changed();
  }

  _showWhy() {
    const record = this._find(this._why) ?? this._listed[0];
    if (!record) return refill(this.reason, []);
    const { sentences, advice } = this._reason(record);
    const parting = this._partings.get(record.rid);
    const children = [heading(trans.__("Why was %1 not cached?", nameOf(record))), line(sentences[0])];
    if (parting?.prompt || parting?.cached) children.push(aligned(parting, this._cellOf(parting)));
    for (const sentence of sentences.slice(1)) children.push(line(sentence));
    const computed = record.prompt - record.cached;
    if (record.first && computed > 0) children.push(line(trans._n("%2 token was computed in %3.", "%2 tokens were computed in %3.", computed, count(computed), seconds(record.first - record.admitted))));
    if (advice) children.push(line(el("b", "", {}, trans.__("To reuse them: ")), `${advice[0].toLowerCase()}${advice.slice(1)}`));
    const { nodes } = this.store.shown;
    const both = [record.match?.node, parting?.cached_node].filter(id => nodes.has(id));
    const { cell = "", line: at = 0 } = record.label ?? {};
    const acts = [];
    if (both.length) acts.push(button(both.length > 1 ? trans.__("Show both paths") : trans.__("Show where they part"), () => this.view.showNodes(both)));
    if (cell && at) acts.push(button(trans.__("Go to cell [%1], line %2", cell, at), () => this.view.host.dispatchEvent(new CustomEvent("sgnb:line", { bubbles: true, detail: { line: at, cell } }))));
    if (acts.length) children.push(buttons(...acts));
    return refill(this.reason, children);
  }

  // ---------------------------------------------------------------- the twin

  _showTwin() {
    const { view } = this;
    const state = this.store.shown;
    const selected = view.selectedNode;
    const blocks = view.blocks.filter(block => block.kind === "node" && state.nodes.has(block.id)).slice(0, TWIN_ROWS);
    const items = [...blocks, ...view.gone.map(node => ({ id: node.id, node, depth: 1, gone: true }))].map(({ id, node, depth, gone }) => {
      const place = state.next.indexOf(id) + 1;
      const text = view.texts.of(node);
      const words = [trans.__("node %1", id), trans.__("%1 tok from %2", count(node.length), count(node.start)), gone ? view.goneWords(node) : view.use(node), place && trans.__("evicted next, place %1", place), text && oneLine(text, 60)];
      return { id, depth, inner: node.children.length, words: words.filter(Boolean).join(" · ") };
    });
    const key = selected + JSON.stringify(items);
    if (key === this._twinKey) return;
    this._twinKey = key;
    fill(
      this.twin,
      items.map(({ id, depth, inner, words }) => {
        const item = el("div", "sgnb-tree-item", { role: "treeitem", id: `${this._id}-${id}`, "aria-level": depth, "aria-selected": String(id === selected), "aria-expanded": inner ? "true" : null, onclick: () => this.store.select({ kind: "node", id }) }, words);
        item.style.paddingLeft = `${(depth - 1) * 14 + 10}px`;
        return item;
      })
    );
    this.twin.setAttribute("aria-activedescendant", selected ? `${this._id}-${selected}` : "");
  }
}

/** A part of the path: its tokens, what is known of it, its text (null: another notebook's; undefined: not known yet). */
function partOf(tokens, words, text, className) {
  const shown = typeof text === "string" ? oneLine(text, 280) : dim(text === null ? trans.__("Another notebook's text.") : "…");
  return el("div", `sgnb-tree-part ${className}`, {}, el("div", "", {}, el("b", "", {}, trans.__("%1 tok", count(tokens))), dim(`  ${words}`)), el("div", "sgnb-tree-text", {}, shown));
}

/** Both texts, aligned where they part; what is equal again behind the difference is hatched. `cell`: of the cached one. */
function aligned({ same, prompt, cached }, cell) {
  const [mine, its] = [prompt.slice(0, 160), cached.slice(0, 160)];
  const [i, j] = equalAgain(mine, its) ?? [mine.length, its.length];
  const row = (name, text, end) => [
    dim(name),
    el(
      "span",
      "sgnb-tree-text sgnb-tree-line",
      {},
      el("span", "sgnb-same", {}, oneLine(same, 60).slice(-60)),
      text ? (end ? el("span", "sgnb-different", {}, oneLine(text.slice(0, end))) : "") : dim(trans.__(" nothing")),
      end < text.length ? el("span", "sgnb-again", {}, oneLine(text.slice(end))) : ""
    ),
  ];
  return el("div", "sgnb-tree-aligned", {}, row(cell ? trans.__("cached, [%1]", cell) : trans.__("cached"), its, j), row(trans.__("this prompt"), mine, i));
}
