// Radix tree: which prefixes are cached, who holds them, what goes next, why a prompt was not reused (ui.md §5). The frame is
// view.js's; layout is tree_data.js's, drawing tree_draw.js's, what stands beside it tree_side.js's.

import { segmented } from "./controls.js";
import { el, fill, on, sharpCanvas } from "./dom.js";
import { count, counted, oneLine, seconds } from "./format.js";
import { nameIn, nameOf } from "./history.js";
import { NodeTexts } from "./node_texts.js";
import { RunningTexts } from "./running_texts.js";
import { trans } from "./trans.js";
import { flightsOf, layoutLinks, layoutTree, reach, recentlyGone } from "./tree_data.js";
import { AXIS, LINK_ROW, drawAxis, drawBlock, drawLinks, drawSelected, paintOf } from "./tree_draw.js";
import { TreeSide } from "./tree_side.js";
import { View } from "./view.js";

const ROW = 19;
const MAX_HEIGHT = 400;
const CLEAR_MS = 650;
const HITS_SHOWN = 100;

export class TreeView extends View {
  static kind = "tree";
  static get title() {
    return trans.__("Radix tree");
  }

  build() {
    this.mode = "icicle";
    this.blocks = []; // of the icicle, in reading order
    this.gone = []; // nodes evicted in the last ten seconds
    this.hits = null; // ids that the search found
    this._open = new Set();
    this._domain = null; // [from, to] tokens when zoomed
    this.texts = new NodeTexts(this.store, () => this.changed());
    this._running = new RunningTexts(this.store, () => this.changed());
    const modes = [
      ["icicle", trans.__("Icicle")],
      ["links", trans.__("Tree")],
      ["table", trans.__("Table")],
    ];
    this._switch = segmented(trans.__("Form"), modes, "icicle", mode => {
      this.mode = mode;
      this.changed();
    });
    this.tools.prepend(this.findBox(trans.__("Find text or request")), this._switch.element);
    this._map = sharpCanvas("sgnb-tree-canvas", TreeView.title);
    this._spacer = el("div", "sgnb-tree-spacer");
    this._scroll = el("div", "sgnb-tree-scroll", {}, this._spacer, this._map.canvas);
    this._legendNode = this.legend([
      ["tree-locked", trans.__("locked, with count")],
      ["tree-age", trans.__("evictable, recent to old")],
      ["prefill", trans.__("prefill")],
      ["tree-decode", trans.__("decoding")],
      ["tree-gone", trans.__("evicted, last 10 s")],
      ["tree-next", trans.__("evicted next")],
    ]);
    this.tools.append(this.legendButton(this._legendNode));
    this.panel = new TreeSide(this);
    fill(this.body, this._scroll, this.panel.twin, this._legendNode);
    fill(this.side, this.panel.path);
    fill(this.foot, el("div", "sgnb-tree-foot", {}, this.panel.prompts, this.panel.reason));
    this._listen();
  }

  _listen() {
    const { canvas } = this._map;
    on(canvas, "pointermove", event => {
      const block = this._blockAt(event);
      canvas.style.cursor = block ? "pointer" : "";
      if (!block) return this.tip.hide();
      const box = this.host.getBoundingClientRect();
      this.tip.show(event.clientX - box.left, event.clientY - box.top, this._words(block));
    });
    on(canvas, "pointerleave", () => this.tip.hide());
    on(canvas, "click", event => {
      canvas.focus({ preventScroll: true });
      const block = this._blockAt(event);
      if (!block) return;
      if (block.kind === "fold") {
        this._open.add(block.id);
        this.changed();
      } else this.store.select({ kind: block.kind === "flight" ? "request" : "node", id: block.id });
    });
    on(canvas, "dblclick", event => {
      const block = this._blockAt(event);
      if (block?.kind === "node") this._zoomTo(block.node);
    });
    on(canvas, "wheel", event => {
      if (document.activeElement !== canvas || !this._scale) return;
      if (!event.ctrlKey && !event.shiftKey && this._spacer.offsetHeight > this._scroll.clientHeight) return; // rows scroll
      event.preventDefault();
      const x = event.clientX - canvas.getBoundingClientRect().left;
      this._zoomBy((event.deltaY || event.deltaX) < 0 ? 1.25 : 0.8, (this._domain?.[0] ?? 0) + x / this._scale);
    }, { passive: false });
    on(this._scroll, "scroll", () => this.changed());
  }

  // ---------------------------------------------------------------- selection and zoom

  _told(what) {
    super._told(what);
    if (what === "selection" && this.selectedNode) this._reveal(this.selectedNode);
  }

  /** The node that is selected, by itself or through a request. */
  get selectedNode() {
    const { selection } = this.store;
    if (selection?.kind === "node") return selection.id;
    return selection?.kind === "request" ? (this.store.shown.holds.get(selection.id) ?? 0) : 0;
  }

  /** Select the first of these nodes and outline the paths to all of them. */
  showNodes(ids) {
    const { shown } = this.store;
    this.hits = ids.length > 1 ? new Set(ids.flatMap(id => shown.path(id))) : null;
    this.store.select({ kind: "node", id: ids[0] });
    this.changed();
  }

  _zoomTo(node) {
    const span = Math.max(20, node.length * 1.6);
    this._domain = [Math.max(0, node.start - span * 0.15), node.start + span];
    this.changed();
  }

  _zoomBy(factor, at) {
    const end = reach(this.store.shown);
    const [from, to] = this._domain ?? [0, end];
    const span = Math.min(end, Math.max(10, (to - from) / factor));
    const start = Math.max(0, Math.min(end - span, at - ((at - from) * span) / (to - from)));
    this._domain = span >= end ? null : [start, start + span];
    this.changed();
  }

  zoom(direction) {
    const node = this.store.shown.nodes.get(this.selectedNode);
    if (direction) return this._zoomBy(direction > 0 ? 1.5 : 1 / 1.5, node?.start ?? this._domain?.[0] ?? 0);
    this._domain = null;
    return this.changed();
  }

  /** Outline the nodes with this text or number, and those of this request; texts not known yet are asked for first. */
  find(text) {
    const wanted = (this._wanted = text.trim().toLowerCase());
    this._revealed = 0;
    this._hit(wanted ? this._found(wanted) : null);
    if (!wanted) return;
    const say = left => {
      const found = counted.nodes(this.hits.size);
      this.region.say(left ? trans.__("%1 found, %2 still to be read.", found, counted.nodes(left)) : trans.__("%1 found.", found));
    };
    const over = () => this._wanted !== wanted || this._closed;
    const search = async () => {
      await this.texts.all([...this.store.shown.nodes.values()], over, left => {
        if (over()) return;
        this._hit(this._found(wanted));
        say(left);
      });
    };
    say(0);
    clearTimeout(this._searchLater);
    this._searchLater = setTimeout(() => search().catch(() => {}), 250); // while one types, nothing is asked
  }

  /** These are outlined; the first of them comes into view. */
  _hit(hits) {
    this.hits = hits;
    this.changed();
    const first = hits?.values().next().value;
    if (first && first !== this._revealed) this._reveal((this._revealed = first));
  }

  _found(wanted) {
    const { shown: state, history } = this.store;
    const hits = new Set();
    for (const node of state.nodes.values()) if (String(node.id) === wanted || this.texts.of(node)?.toLowerCase().includes(wanted)) hits.add(node.id);
    for (const [rid, id] of state.holds) {
      const record = history.requests.get(rid);
      if (record && nameOf(record).toLowerCase().startsWith(wanted)) for (const above of state.path(id)) hits.add(above);
    }
    return hits;
  }

  key(event) {
    const { target, key } = event;
    if (key === "Escape" && this.hits) {
      this.hits = null;
      this.changed();
    }
    if (![this._map.canvas, this.panel.twin, this.host].includes(target)) return false;
    const state = this.store.shown;
    const here = state.nodes.get(this.selectedNode);
    const tops = [...state.roots.values()].flat();
    if (key === "Enter" && here) {
      this._zoomTo(here);
      return true;
    }
    if (!key.startsWith("Arrow")) return false;
    const siblings = state.nodes.get(here?.parent)?.children ?? tops;
    const place = siblings.indexOf(here?.id);
    const id = here ? { ArrowLeft: state.nodes.has(here.parent) ? here.parent : 0, ArrowRight: here.children[0], ArrowDown: siblings[place + 1], ArrowUp: siblings[place - 1] }[key] : tops[0];
    if (id) {
      this.store.select({ kind: "node", id });
      this._reveal(id);
    }
    return true;
  }

  _reveal(id) {
    requestAnimationFrame(() => {
      const block = this.blocks.find(other => other.kind === "node" && other.id === id);
      if (!block) return;
      this._panTo(block.node);
      const y = block.row * this._rowHeight;
      const height = this._scroll.clientHeight - AXIS;
      if (y < this._scroll.scrollTop || y + this._rowHeight > this._scroll.scrollTop + height) this._scroll.scrollTop = y - height / 3;
    });
  }

  /** Where x is zoomed, a node beyond its edge comes into the picture. */
  _panTo({ start, length }) {
    const [from, to] = this._domain ?? [0, Infinity];
    if (this.mode !== "icicle" || (start < to && start + length > from)) return;
    const first = Math.max(0, start - (to - from) * 0.15);
    this._domain = [first, first + to - from];
    this.changed();
  }

  _blockAt(event) {
    const box = this._map.canvas.getBoundingClientRect();
    const x = event.clientX - box.left;
    const y = event.clientY - box.top;
    return this._places?.findLast(place => x >= place.x && x <= place.x + place.w && y >= place.y && y < place.y + place.h)?.block;
  }

  // ---------------------------------------------------------------- words

  _words(block) {
    if (block.kind === "fold") return [trans._n("%2 more node, %3 tok", "%2 more nodes, %3 tok", block.nodes, count(block.nodes), count(block.tokens)), trans.__("Click to show them.")];
    if (block.kind === "flight") {
      const { id, prefill, decode } = block;
      return [this.name(id), trans.__("not in the tree yet"), prefill && trans.__("prefill %1 tok", count(prefill)), decode && trans.__("decode %1 tok", count(decode))].filter(Boolean);
    }
    const { node } = block;
    const text = this.texts.of(node);
    return [trans.__("node %1  %2 tok, from token %3", node.id, count(node.length), count(node.start)), block.kind === "gone" ? this.goneWords(node) : this.use(node), ...(text ? [oneLine(text, 80)] : [])];
  }

  goneWords(node) {
    const ago = seconds(this.store.time - node.time);
    return node.forRid ? trans.__("evicted %1 ago for %2", ago, this.name(node.forRid)) : trans.__("evicted %1 ago", ago);
  }

  use(node) {
    const ago = this.store.time - node.used;
    const last = node.locks ? trans.__("in use") : !node.used ? trans.__("last use unknown") : ago < 0.5 ? trans.__("used now") : trans.__("used %1 ago", seconds(ago));
    const hits = trans._n("%2 hit", "%2 hits", node.hits, count(node.hits));
    return [node.locks && trans.__("lock %1", count(node.locks)), node.pins && trans.__("pinned"), hits, last].filter(Boolean).join(", ");
  }

  name(rid) {
    return nameIn(this.store.history, rid);
  }

  /** The text of a request's tokens that are not in the tree yet: see RunningTexts. */
  runningText(rid) {
    const { shown } = this.store;
    const { prefill, decode } = shown.flight(rid);
    return prefill + decode ? this._running.of(rid, shown.shared(rid), prefill + decode) : "";
  }

  copy() {
    const { shown, selection } = this.store;
    const beyond = selection?.kind === "request" ? (this.runningText(selection.id) ?? "") : "";
    return shown.path(this.selectedNode).map(id => this.texts.of(shown.nodes.get(id)) ?? "").join("") + beyond;
  }

  facts() {
    const { treeTokens, lockedTokens, nodes } = this.store.shown;
    return trans.__("%1 tokens in %2, %3 locked, %4 evictable", count(treeTokens), counted.nodes(nodes.size), count(lockedTokens), count(treeTokens - lockedTokens));
  }

  sentence() {
    const { shown: state } = this.store;
    const node = state.nodes.get(this.selectedNode);
    if (node) return trans.__("Node %1, %2 from token %3, %4.", node.id, counted.tokens(node.length), count(node.start), this.use(node));
    return trans.__("Radix tree: %1 tokens in %2, %3 locked.", count(state.treeTokens), counted.nodes(state.nodes.size), count(state.lockedTokens));
  }

  details() {
    this.panel.update();
  }

  // ---------------------------------------------------------------- drawing

  draw() {
    const table = this.mode === "table";
    this._scroll.hidden = this._legendNode.hidden = table;
    this.panel.twin.classList.toggle("sgnb-hidden-twin", !table);
    this.panel.twin.tabIndex = table ? 0 : -1;
    const { shown: state, time, selection } = this.store;
    const width = Math.max(120, this.room.width - 20);
    const [from, to] = this._domain ?? [0, reach(state)];
    this._scale = width / (to - from);
    const path = new Set(state.path(this.selectedNode));
    const keep = new Set(path); // never in a fold: what is selected, and what was found as far as it is not half of the tree
    for (const id of [...(this.hits ?? [])].slice(0, HITS_SHOWN)) for (const above of state.path(id)) keep.add(above);
    this.gone = recentlyGone(state, time);
    const wanted = [];
    const more = { path, keep, hits: this.hits, rid: selection?.kind === "request" ? selection.id : "", scale: this._scale, rowHeight: ROW, textOf: node => this.texts.of(node), next: new Map(state.next.map((id, index) => [id, index + 1])) };
    if (this.mode === "links") this._drawLinks(state, more, width, wanted);
    else this._drawIcicle(state, more, width, from, wanted);
    this.texts.want(this.store.replaying ? [...wanted, ...this.gone] : wanted); // an engine has forgotten what is gone, a recording has not
    this._map.canvas.setAttribute("aria-label", this.sentence());
  }

  /** A canvas as high as its rows, at most MAX_HEIGHT: then it scrolls. */
  _sized(whole, width) {
    const height = Math.min(MAX_HEIGHT + AXIS, whole);
    this._spacer.style.height = `${whole}px`;
    this._scroll.style.height = `${height}px`;
    const inner = whole > height ? width - 12 : width;
    const context = this._map.size(inner, height);
    context.clearRect(0, 0, inner, height);
    return { context, inner, height, top: this.room.top };
  }

  /** Boxes of the node-link form: blocks as those of the icicle are. */
  _laidOut(state) {
    const layout = layoutLinks(state, this.selectedNode ? state.path(this.selectedNode)[0] : 0);
    this._rowHeight = LINK_ROW;
    this.blocks = layout.boxes.map(box => ({ ...box, kind: "node", depth: box.depth + 1 }));
    return layout;
  }

  _drawLinks(state, more, width, wanted) {
    const layout = this._laidOut(state);
    const { context, inner, height, top } = this._sized(Math.max(3, layout.rows) * LINK_ROW + 20, width);
    this._places = drawLinks(paintOf(context, this.colours, this.store.time, { ...more, counted: true }), layout, inner, height, top);
    wanted.push(...this._places.map(place => place.block.node));
  }

  _drawIcicle(state, more, width, from, wanted) {
    const { blocks, order, rows } = layoutTree(state, this._scale, { open: this._open, keep: more.keep, gone: this.gone, flights: flightsOf(state) });
    this.blocks = order;
    if (this.mode === "table") return;
    const H = (this._rowHeight = more.rowHeight = rows * ROW > MAX_HEIGHT ? Math.max(14, Math.min(ROW, MAX_HEIGHT / rows)) : ROW);
    const { context, inner, height, top } = this._sized(Math.max(3 * ROW, rows * H) + AXIS, width);
    const paint = paintOf(context, this.colours, this.store.time, more);
    this._places = [];
    let edges = false;
    context.save();
    context.beginPath();
    context.rect(0, AXIS, inner, height - AXIS);
    context.clip();
    for (const block of blocks) {
      const y = AXIS + block.row * H - top;
      const h = block.rows * H;
      if (y + h <= AXIS || y > height) continue;
      const x = (block.start - from) * this._scale;
      const w = block.kind === "fold" ? Math.max(60, inner - x) : block.length * this._scale;
      if (x > inner || x + w < 0) continue;
      const left = Math.max(0, x);
      const above = Math.max(AXIS, y);
      this._places.push({ block, x: left, y: above, w: Math.min(inner, x + w) - left, h: Math.min(height, y + h) - above });
      if (block.kind === "node") wanted.push(block.node);
      edges = drawBlock(paint, block, x, y, w, h, inner) || edges;
    }
    drawSelected(paint, blocks, from, top);
    context.restore();
    drawAxis(paint, from, inner);
    clearTimeout(this._clearLater);
    if (edges) this._clearLater = setTimeout(() => this.changed(), CLEAR_MS);
  }

  destroy() {
    clearTimeout(this._clearLater);
    clearTimeout(this._searchLater);
    this.texts.close();
    super.destroy();
  }
}
