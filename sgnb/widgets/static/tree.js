// Radix tree: which prefixes are cached, who holds them, what goes next, why a prompt was not reused (ui.md §5).
// Frame and keys are view.js's; layout is tree_data.js's, words of causes are causes.js's.

import { reasonOf } from "./causes.js";
import { segmented } from "./controls.js";
import { el, fill, setText, sharpCanvas, table } from "./dom.js";
import { nameOf } from "./fold.js";
import { count, oneLine, plural, seconds } from "./format.js";
import { css, fit, hatch, mix, over, rgba } from "./paint.js";
import { ageShare, flightsOf, layoutLinks, layoutTree, reach, recentlyGone, tickStep } from "./tree_data.js";
import { View } from "./view.js";

const AXIS = 20;
const ROW = 19;
const MAX_HEIGHT = 400;
const TEXT_WIDTH = 52;
const EDGE_SECONDS = 0.6;
const ASK_EVERY = 500;
const ASK_NODES = 128;
const TWIN_ROWS = 200;
const PROMPTS = 50;

export class TreeView extends View {
  static kind = "tree";
  static title = "Radix tree";

  build() {
    this.mode = "icicle";
    this.open = new Set();
    this._texts = new Map(); // node id → {key, text}
    this._partings = new Map(); // rid → answer of `prompt`
    this._domain = null; // [from, to] tokens when zoomed
    this.hits = null;
    this.why = "";
    this._askedAt = -Infinity;
    const modes = [
      ["icicle", "Icicle"],
      ["links", "Tree"],
      ["table", "Table"],
    ];
    this._switch = segmented("Form", modes, "icicle", mode => {
      this.mode = mode;
      this.changed();
    });
    this.tools.prepend(this.findBox("Find text or request"), this._switch.element);
    this._map = sharpCanvas("sgnb-tree-canvas", "Radix tree");
    this._spacer = el("div", "sgnb-tree-spacer", {});
    this._scroll = el("div", "sgnb-tree-scroll", {}, this._spacer, this._map.canvas);
    this.twin = el("div", "sgnb-tree-twin", { role: "tree", "aria-label": "Nodes of the radix tree", tabindex: -1 });
    this._legendNode = this.legend([
      ["tree-locked", "locked, with count"],
      ["tree-age", "evictable, recent to old"],
      ["prefill", "prefill"],
      ["tree-decode", "decoding"],
      ["tree-gone", "evicted, last 10 s"],
      ["tree-next", "evicted next"],
    ]);
    fill(this.body, this._scroll, this.twin, this._legendNode);
    this._pathNode = el("div", "", {});
    fill(this.side, this._pathNode);
    this._promptsNode = el("div", "sgnb-tree-prompts", {});
    this._whyNode = el("div", "sgnb-tree-why", {});
    fill(this.foot, el("div", "sgnb-tree-foot", {}, this._promptsNode, this._whyNode));
    this._listen();
  }

  _listen() {
    const { canvas } = this._map;
    canvas.addEventListener("pointermove", event => {
      const block = this._blockAt(event);
      canvas.style.cursor = block ? "pointer" : "";
      if (!block) return this.tip.hide();
      const box = this.host.getBoundingClientRect();
      this.tip.show(event.clientX - box.left, event.clientY - box.top, this._words(block));
    });
    canvas.addEventListener("pointerleave", () => this.tip.hide());
    canvas.addEventListener("click", event => {
      canvas.focus({ preventScroll: true });
      const block = this._blockAt(event);
      if (!block) return;
      if (block.kind === "fold") {
        this.open.add(block.id);
        this.changed();
      } else if (block.kind === "flight") this.store.select({ kind: "request", id: block.id });
      else if (block.kind === "node") this.store.select({ kind: "node", id: block.id });
    });
    canvas.addEventListener("dblclick", event => {
      const block = this._blockAt(event);
      if (block?.kind === "node") this._zoomTo(block.node);
    });
    canvas.addEventListener("wheel", event => {
      if (document.activeElement !== canvas || !this._scale) return;
      if (!event.ctrlKey && !event.shiftKey && this._spacer.offsetHeight > this._scroll.clientHeight) return; // rows scroll
      event.preventDefault();
      const x = event.clientX - canvas.getBoundingClientRect().left;
      this._zoomBy(event.deltaY < 0 ? 1.25 : 0.8, this._from() + x / this._scale);
    }, { passive: false });
    this._scroll.addEventListener("scroll", () => this.changed());
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
    if (selection?.kind === "request") return this.store.shown.holds.get(selection.id) ?? 0;
    return 0;
  }

  _from() {
    return this._domain ? this._domain[0] : 0;
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
    if (direction === 0) {
      this._domain = null;
      this.changed();
      return;
    }
    const node = this.store.shown.nodes.get(this.selectedNode);
    this._zoomBy(direction > 0 ? 1.5 : 1 / 1.5, node ? node.start : this._from());
  }

  find(text) {
    const wanted = text.trim().toLowerCase();
    this.hits = wanted ? new Set() : null;
    if (wanted) {
      for (const node of this.store.shown.nodes.values()) {
        const known = this._texts.get(node.id);
        if (String(node.id) === wanted || known?.text?.toLowerCase().includes(wanted)) this.hits.add(node.id);
      }
      for (const [rid, id] of this.store.shown.holds) {
        const record = this.store.history.requests.get(rid);
        if (!record || !nameOf(record).toLowerCase().startsWith(wanted)) continue;
        for (const above of this.store.shown.path(id)) this.hits.add(above);
      }
      this.region.say(`${plural(this.hits.size, "node")} found.`);
    }
    this.changed();
  }

  key(event) {
    const { target } = event;
    if (target !== this._map.canvas && target !== this.twin && target !== this.host) return false;
    const state = this.store.shown;
    const here = state.nodes.get(this.selectedNode);
    const go = id => {
      if (id) {
        this.store.select({ kind: "node", id });
        this._reveal(id);
      }
      return true;
    };
    const tops = () => [...state.roots.values()].flat();
    if (!here) return ["ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp"].includes(event.key) && go(tops()[0]);
    const siblings = state.nodes.has(here.parent) ? state.nodes.get(here.parent).children : tops();
    const place = siblings.indexOf(here.id);
    switch (event.key) {
      case "ArrowLeft":
        return go(state.nodes.has(here.parent) ? here.parent : 0);
      case "ArrowRight":
        return go(here.children[0]);
      case "ArrowDown":
        return go(siblings[place + 1]);
      case "ArrowUp":
        return go(siblings[place - 1]);
      case "Enter":
        this._zoomTo(here);
        return true;
      default:
        return false;
    }
  }

  _reveal(id) {
    requestAnimationFrame(() => {
      const block = this._layout?.blocks.find(other => other.kind === "node" && other.id === id);
      if (!block) return;
      const y = block.row * this._rowHeight;
      const height = this._scroll.clientHeight - AXIS;
      if (y < this._scroll.scrollTop || y + this._rowHeight > this._scroll.scrollTop + height) this._scroll.scrollTop = y - height / 3;
    });
  }

  _blockAt(event) {
    const box = this._map.canvas.getBoundingClientRect();
    const x = event.clientX - box.left;
    const y = event.clientY - box.top;
    return this._places?.findLast(place => x >= place.x && x <= place.x + place.w && y >= place.y && y < place.y + place.h)?.block;
  }

  _words(block) {
    if (block.kind === "fold") return [`${plural(block.nodes, "more node")}, ${count(block.tokens)} tok`, "Click to show them."];
    if (block.kind === "flight") {
      const lines = [this._name(block.id), "not in the tree yet"];
      if (block.prefill) lines.push(`prefill ${count(block.prefill)} tok`);
      if (block.decode) lines.push(`decode ${count(block.decode)} tok`);
      return lines;
    }
    const { node } = block;
    const lines = [`node ${node.id}  ${count(node.length)} tok, from token ${count(node.start)}`];
    if (block.kind === "gone") return [...lines, `evicted ${seconds(this.store.time - node.time)} ago for ${this._name(node.forRid)}`];
    lines.push(this._use(node));
    const text = this._textOf(node);
    if (text !== null) lines.push(oneLine(text, 80));
    return lines;
  }

  _use(node) {
    const parts = [];
    if (node.locks) parts.push(`lock ${count(node.locks)}`);
    if (node.pins) parts.push("pinned");
    parts.push(plural(node.hits, "hit"));
    const ago = this.store.time - node.used;
    parts.push(node.locks ? "in use" : !node.used ? "last use unknown" : ago < 0.5 ? "used now" : `used ${seconds(ago)} ago`);
    return parts.join(", ");
  }

  _name(rid) {
    return nameOf(this.store.history.requests.get(rid) ?? { rid });
  }

  copy() {
    return this.store.shown.path(this.selectedNode).map(id => this._textOf(this.store.shown.nodes.get(id)) ?? "").join("");
  }

  // ---------------------------------------------------------------- text, by request

  _textOf(node) {
    const known = node && this._texts.get(node.id);
    if (!known) return null;
    if (known.length === node.length && known.start === node.start) return known.text;
    // A split: what was known of the whole edge is cut by share until the new text is here.
    return null;
  }

  _wantTexts(nodes) {
    if (!["idle", "running"].includes(this.store.engineState)) return;
    const missing = nodes.filter(node => {
      const known = this._texts.get(node.id);
      return !known || known.length !== node.length || known.start !== node.start;
    });
    if (!missing.length) return;
    const now = performance.now();
    const wait = this._askedAt + ASK_EVERY - now;
    if (wait > 0) {
      this._askLater ||= setTimeout(() => {
        this._askLater = 0;
        this.changed();
      }, wait);
      return;
    }
    this._askedAt = now;
    const asked = missing.slice(0, ASK_NODES);
    this.store.ask("nodes", { ids: asked.map(node => node.id) }).then(
      answer => {
        for (const { id, start, length } of asked) {
          const about = answer.nodes[id];
          if (about && about.tokens !== length) continue; // it was split meanwhile
          this._texts.set(id, { start, length, text: about ? (about.text ?? null) : null });
        }
        if (this._texts.size > 20000) for (const id of [...this._texts.keys()].slice(0, 5000)) this._texts.delete(id);
        this.changed();
      },
      () => {}
    );
  }

  // ---------------------------------------------------------------- drawing

  draw() {
    const shown = this.mode !== "table";
    this._scroll.hidden = !shown;
    this._legendNode.hidden = !shown;
    this.twin.classList.toggle("sgnb-hidden-twin", shown);
    this.twin.tabIndex = shown ? -1 : 0;
    if (this.mode === "icicle") this._drawIcicle();
    else if (this.mode === "links") this._drawLinks();
  }

  _drawIcicle() {
    const state = this.store.shown;
    const time = this.store.time;
    const width = Math.max(120, this.body.clientWidth - 20);
    const [from, to] = this._domain ?? [0, reach(state)];
    this._scale = width / (to - from);
    const path = new Set(state.path(this.selectedNode));
    const began = performance.now();
    this._layout = layoutTree(state, this._scale, { open: this.open, keep: path, gone: recentlyGone(state, time), flights: flightsOf(state) });
    const rows = this._layout.rows;
    this._rowHeight = rows * ROW > MAX_HEIGHT ? Math.max(14, Math.min(ROW, MAX_HEIGHT / rows)) : ROW;
    const whole = Math.max(3 * ROW, rows * this._rowHeight);
    const height = Math.min(MAX_HEIGHT, whole) + AXIS;
    this._spacer.style.height = `${whole + AXIS}px`;
    this._scroll.style.height = `${height}px`;
    const inner = whole + AXIS > height ? width - 12 : width;
    const context = this._map.size(inner, height);
    context.clearRect(0, 0, inner, height);
    const c = this.colours;
    const top = this._scroll.scrollTop;
    const H = this._rowHeight;
    const paint = {
      context,
      c,
      path,
      time,
      prefill: hatch(context, c.prefill, c.prefillEdge),
      ground: over(rgba(c.ground), [255, 255, 255]),
      evictable: null,
      next: new Map(state.next.map((id, index) => [id, index + 1])),
      quiet: matchMedia("(prefers-reduced-motion: reduce)").matches,
    };
    paint.evictable = over(rgba(c.evictable), paint.ground);
    this._places = [];
    const wanted = [];
    context.save();
    context.beginPath();
    context.rect(0, AXIS, inner, height - AXIS);
    context.clip();
    for (const block of this._layout.blocks) {
      const x = (block.start - from) * this._scale;
      const w = block.kind === "fold" ? Math.max(60, inner - x) : block.length * this._scale;
      const y = AXIS + block.row * H - top;
      const h = block.rows * H;
      if (y + h < AXIS || y > height || x > inner || x + w < 0) continue;
      const place = { block, x: Math.max(0, x), y: Math.max(AXIS, y), w: Math.min(inner, x + w) - Math.max(0, x), h: Math.min(height, y + h) - Math.max(AXIS, y) };
      if (place.h <= 0) continue;
      this._places.push(place);
      if (block.kind === "node" && w >= TEXT_WIDTH) wanted.push(block.node);
      this._drawBlock(paint, block, x, y, w, h, inner);
    }
    this._drawSelected(paint, from, top);
    context.restore();
    this._drawAxis(context, from, inner);
    this.host.dataset.treeMs = (performance.now() - began).toFixed(2);
    this._wantTexts(wanted);
    this._map.canvas.setAttribute("aria-label", this.sentence());
  }

  _drawBlock(paint, block, x, y, w, h, inner) {
    const { context, c } = paint;
    const dim = this.hits && !(block.kind === "node" && this.hits.has(block.id));
    context.globalAlpha = dim ? 0.4 : 1;
    context.textBaseline = "middle";
    const head = Math.min(Math.max(y, AXIS), y + h - this._rowHeight); // the words stay in sight while a block is
    const middle = head + this._rowHeight / 2 - 0.5;
    if (block.kind === "node") {
      this._drawNode(paint, block, x, y, w, h, middle);
    } else if (block.kind === "flight") {
      const cut = block.prefill * this._scale;
      context.fillStyle = paint.prefill;
      if (cut) context.fillRect(x, y, Math.max(1, cut - 1), h - 1);
      context.strokeStyle = c.prefillEdge;
      context.lineWidth = 1;
      if (cut > 3) context.strokeRect(x + 0.5, y + 0.5, cut - 2, h - 2);
      context.fillStyle = c.decode;
      if (block.decode) context.fillRect(x + cut, y, Math.max(2, block.decode * this._scale), h - 1);
    } else if (block.kind === "gone") {
      context.strokeStyle = c.trouble;
      context.lineWidth = 1;
      context.setLineDash([4, 2]);
      context.strokeRect(x + 0.5, y + 1.5, Math.max(6, w - 1), h - 3);
      context.setLineDash([]);
      context.font = `12px ${c.code}`;
      context.fillStyle = c.troubleText;
      const known = this._texts.get(block.id)?.text;
      const words = `−${seconds(paint.time - block.node.time)}${known ? `: ${oneLine(known, 60)}` : ""}`;
      if (w >= TEXT_WIDTH) context.fillText(fit(context, words, w - 10), x + 5, middle);
    } else {
      context.font = `11px ${c.ui}`;
      context.fillStyle = c.text2;
      context.fillRect(x, y + 2, 1, h - 4);
      const what = block.id ? plural(block.nodes, "more node") : `${plural(block.prefixes, "more prefix", "more prefixes")}, ${plural(block.nodes, "node")}`;
      context.fillText(fit(context, `${what}, ${count(block.tokens)} tok ▸`, inner - x - 8), x + 6, middle);
    }
    context.globalAlpha = 1;
  }

  _drawNode(paint, block, x, y, w, h, middle) {
    const { context, c } = paint;
    const { node } = block;
    const locked = node.locks > 0;
    const drawn = Math.max(1, w - 1);
    const shade = ageShare(Math.max(0, paint.time - node.used));
    context.fillStyle = locked ? c.lockedFill : css(mix(paint.evictable, paint.ground, 0.1 + 0.7 * shade));
    context.fillRect(x, y, drawn, h - 1);
    if (c.forcedColors) {
      context.strokeStyle = c.text;
      context.strokeRect(x + 0.5, y + 0.5, drawn - 1, h - 2);
    }
    let left = x + 5;
    if (locked) {
      context.fillStyle = c.locked;
      context.fillRect(x, y, Math.min(4, drawn), h - 1);
      left += 3;
      if (drawn > 34) {
        drawLock(context, left, middle, c.text);
        left += 11;
      }
      if (drawn > 18) {
        context.font = `600 11px ${c.ui}`;
        context.fillStyle = c.text;
        const number = String(node.locks);
        context.textAlign = "left";
        context.fillText(number, left, middle);
        left += context.measureText(number).width + 4;
      }
    }
    const next = paint.next.get(node.id);
    const right = x + drawn - (next ? 20 : 3);
    if (drawn >= TEXT_WIDTH) {
      const text = this._textOf(node);
      context.font = `${this._rowHeight < 17 ? 11 : 12}px ${c.code}`;
      context.textAlign = "left";
      const start = Math.max(left, 4);
      if (text) {
        context.fillStyle = c.text;
        context.fillText(fit(context, oneLine(text, 160), right - start), start, middle);
      } else if (!locked) {
        context.font = `11px ${c.ui}`;
        context.fillStyle = c.text2;
        context.fillText(fit(context, `${count(node.length)} tok`, right - start), start, middle);
      }
    }
    if (next) drawNext(context, Math.min(x + drawn + 8, Math.max(x + 9, x + drawn - 11)), middle, next, c);
    if (!paint.quiet && node.edge && paint.time - node.edge < EDGE_SECONDS) {
      context.strokeStyle = c.choice;
      context.lineWidth = 1;
      context.strokeRect(x + 0.5, y + 0.5, drawn - 1, h - 2);
    }
  }

  _drawSelected(paint, from, top) {
    const { context, c } = paint;
    context.strokeStyle = c.strong;
    context.lineWidth = 2;
    const rid = this.store.selection?.kind === "request" ? this.store.selection.id : "";
    for (const block of this._layout.blocks) {
      const chosen = (block.kind === "node" && (paint.path.has(block.id) || this.hits?.has(block.id))) || (block.kind === "flight" && block.id === rid);
      if (!chosen) continue;
      const x = (block.start - from) * this._scale;
      const y = AXIS + block.row * this._rowHeight - top;
      context.strokeRect(x + 1, y + 1, Math.max(2, block.length * this._scale - 2), block.rows * this._rowHeight - 3);
    }
  }

  _drawAxis(context, from, width) {
    const c = this.colours;
    const step = tickStep(this._scale);
    context.font = `11px ${c.ui}`;
    context.fillStyle = c.text2;
    context.strokeStyle = c.rule;
    context.textBaseline = "alphabetic";
    for (let token = Math.ceil(from / step) * step; ; token += step) {
      const x = (token - from) * this._scale;
      if (x > width - 8) break;
      context.textAlign = x < 30 ? "left" : "center";
      context.fillText(token === 0 ? "token 0" : count(token), x, 12);
      context.fillRect(Math.round(x), 15, 1, 4);
    }
    context.textAlign = "left";
  }

  _drawLinks() {
    const state = this.store.shown;
    const width = Math.max(120, this.body.clientWidth - 20);
    const { boxes, rows, left } = layoutLinks(state, this.selectedNode ? state.path(this.selectedNode)[0] : 0);
    const depth = Math.max(1, ...boxes.map(box => box.depth + 1));
    const column = Math.max(90, width / depth);
    const H = 26;
    const whole = Math.max(3, rows) * H + 20;
    const height = Math.min(MAX_HEIGHT + AXIS, whole);
    this._spacer.style.height = `${whole}px`;
    this._scroll.style.height = `${height}px`;
    const inner = whole > height ? width - 12 : width;
    const context = this._map.size(inner, height);
    const c = this.colours;
    const top = this._scroll.scrollTop;
    context.clearRect(0, 0, inner, height);
    const path = new Set(state.path(this.selectedNode));
    this._places = [];
    const wanted = [];
    const X = box => box.depth * column + 1;
    const Y = box => box.row * H - top + 4;
    const w = Math.min(column - 24, 260);
    context.strokeStyle = c.text2;
    context.lineWidth = 1;
    for (const box of boxes) {
      if (!box.parent) continue;
      context.beginPath();
      context.moveTo(X(box.parent) + w, Y(box.parent) + 10);
      context.lineTo(X(box), Y(box) + 10);
      context.stroke();
    }
    context.textBaseline = "middle";
    for (const box of boxes) {
      const x = X(box);
      const y = Y(box);
      if (y < -H || y > height) continue;
      wanted.push(box.node);
      context.fillStyle = box.node.locks ? c.lockedFill : c.evictable;
      context.fillRect(x, y, w, 20);
      if (box.node.locks) {
        context.fillStyle = c.locked;
        context.fillRect(x, y, 4, 20);
      }
      if (path.has(box.id)) {
        context.strokeStyle = c.strong;
        context.lineWidth = 2;
        context.strokeRect(x + 1, y + 1, w - 2, 18);
      }
      context.font = `12px ${c.code}`;
      context.fillStyle = c.text;
      const text = this._textOf(box.node);
      context.fillText(fit(context, `${count(box.node.length)} ${text ? oneLine(text, 80) : "tok"}`, w - 14), x + 8, y + 10);
      this._places.push({ block: { kind: "node", id: box.id, node: box.node }, x, y, w, h: 20 });
    }
    if (left > 0) {
      context.font = `11px ${c.ui}`;
      context.fillStyle = c.text2;
      context.fillText(`${plural(left, "node")} not drawn. Select a node to see its tree.`, 4, height - 8);
    }
    this._wantTexts(wanted);
  }

  // ---------------------------------------------------------------- numbers and words

  facts() {
    const state = this.store.shown;
    return `${count(state.treeTokens)} tokens in ${plural(state.nodes.size, "node")}, ${count(state.lockedTokens)} locked, ${count(state.treeTokens - state.lockedTokens)} evictable`;
  }

  sentence() {
    const state = this.store.shown;
    const node = state.nodes.get(this.selectedNode);
    if (node) return `Node ${node.id}, ${plural(node.length, "token")} from token ${count(node.start)}, ${this._use(node)}.`;
    return `Radix tree: ${count(state.treeTokens)} tokens in ${plural(state.nodes.size, "node")}, ${count(state.lockedTokens)} locked.`;
  }

  details() {
    this._path();
    this._prompts();
    this._why();
    this._twin();
  }

  _path() {
    const state = this.store.shown;
    const { selection } = this.store;
    const path = state.path(this.selectedNode).map(id => state.nodes.get(id));
    const rid = selection?.kind === "request" && state.live.has(selection.id) ? selection.id : "";
    if (!path.length && !rid) {
      fill(this._pathNode, el("h3", "", {}, "Selected path"), el("p", "sgnb-dim", {}, "Click a node, or use the arrow keys."));
      return;
    }
    this._wantTexts(path);
    const end = path.at(-1);
    const flight = rid ? state.flight(rid) : { prefill: 0, decode: 0 };
    const tokens = (end ? end.start + end.length : 0) + flight.prefill + flight.decode;
    const parts = path.map(node =>
      el("div", `sgnb-tree-part${node.locks ? " sgnb-is-locked" : ""}`, {}, el("div", "", {}, el("b", "", {}, `${count(node.length)} tok`), el("span", "sgnb-dim", {}, `  ${this._use(node)}`)), el("div", "sgnb-tree-text", {}, this._shownText(node)))
    );
    if (flight.prefill + flight.decode) {
      parts.push(el("div", "sgnb-tree-part sgnb-is-decode", {}, el("div", "", {}, el("b", "", {}, `${count(flight.prefill + flight.decode)} tok`), el("span", "sgnb-dim", {}, `  ${flight.decode ? "decoding" : "prefill"}, not in the tree yet`))));
    }
    const facts = [];
    const holders = [...state.holds].filter(([, id]) => state.path(id).includes(end?.id)).map(([other]) => this._name(other));
    if (holders.length) facts.push(["Locked by", holders.slice(0, 6).join(", ")]);
    const first = path[0];
    const also = [...state.holds].filter(([other, id]) => state.path(id).includes(first?.id) && !state.path(id).includes(end?.id) && other !== rid).map(([other]) => this._name(other));
    if (first && also.length) facts.push([`First ${count(first.length)} tok also by`, also.slice(0, 6).join(", ")]);
    const slots = path.reduce((sum, node) => sum + state.owned(`node:${node.id}`), 0) + flight.prefill + flight.decode;
    facts.push(["Slots", count(slots)]);
    const buttons = el("div", "sgnb-buttons", {}, el("button", "sgnb-button", { type: "button", onclick: () => this._copyPath() }, "Copy text"));
    if (this.options.open) buttons.append(el("button", "sgnb-button", { type: "button", onclick: () => this.options.open("kv") }, "Show in KV map"));
    fill(
      this._pathNode,
      el("h3", "", {}, "Selected path"),
      el("p", "sgnb-dim", {}, `${count(tokens)} tokens, ${plural(path.length, "node")}`),
      parts,
      el("dl", "sgnb-pairs", {}, facts.flatMap(([name, value]) => [el("dt", "", {}, name), el("dd", "", {}, value)])),
      buttons
    );
  }

  _shownText(node) {
    const known = this._texts.get(node.id);
    const text = this._textOf(node);
    if (text !== null) return oneLine(text, 280);
    return el("span", "sgnb-dim", {}, known && known.length === node.length ? "Another notebook's text." : "…");
  }

  _copyPath() {
    navigator.clipboard?.writeText(this.copy()).then(() => this.region.say("Copied."), () => this.region.say("The browser refused to copy."));
  }

  _find(rid) {
    return this.store.history.requests.get(rid) ?? null;
  }

  _reason(record) {
    const parting = this._partings.get(record.rid);
    const near = parting ? this.store.shown.nodes.get(parting.cached_node) : null;
    const from = near?.rid ? (this._find(near.rid)?.label?.cell ?? "") : "";
    const stepAt = time => this.store.history.steps[this.store.stepIndexAt(time)]?.step ?? 0;
    return reasonOf(record, { find: rid => this._find(rid), stepAt, from, pageSize: this.store.live.pageSize });
  }

  _prompts() {
    const time = this.store.time + 0.001;
    this._listed = this.store.history.prompts.filter(record => record.admitted <= time && !record.label?.name?.startsWith("@")).slice(-PROMPTS).reverse();
    const rows = this._listed.map(record => [nameOf(record), count(record.prompt), count(record.cached), this._reason(record).word]);
    const key = JSON.stringify(rows) + this.why;
    if (key === this._promptsKey) return;
    this._promptsKey = key;
    const columns = [{ name: "request" }, { name: "prompt", number: true }, { name: "reused", number: true }, { name: "the rest was" }];
    const chosen = this._listed.findIndex(record => record.rid === this.why);
    const focused = this._promptsNode.contains(document.activeElement);
    fill(
      this._promptsNode,
      el("h3", "", {}, "Prompts and what they reused"),
      rows.length
        ? table(columns, rows, { selected: chosen, onrow: index => this._ask(this._listed[index]) })
        : el("p", "sgnb-dim", {}, "No prompt was computed yet.")
    );
    if (focused) this._promptsNode.querySelector("tr.sgnb-chosen")?.focus();
  }

  _ask(record) {
    this.why = record.rid;
    this.store.select({ kind: "request", id: record.rid });
    if (!this._partings.has(record.rid)) {
      this.store.ask("prompt", { rid: record.rid }).then(
        answer => {
          this._partings.set(record.rid, answer);
          this.changed();
        },
        () => this._partings.set(record.rid, null)
      );
    }
    this.changed();
  }

  _why() {
    const record = this._find(this.why) ?? this._listed[0];
    if (!record) return fill(this._whyNode, []);
    const reason = this._reason(record);
    const parting = this._partings.get(record.rid);
    const children = [el("h3", "", {}, `Why was ${nameOf(record)} not cached?`), el("p", "", {}, reason.sentences[0])];
    if (parting && (parting.prompt || parting.cached)) children.push(this._aligned(parting));
    for (const sentence of reason.sentences.slice(1)) children.push(el("p", "", {}, sentence));
    const computed = record.prompt - record.cached;
    if (record.first && computed > 0) children.push(el("p", "", {}, `${plural(computed, "token was", "tokens were")} computed in ${seconds(record.first - record.admitted)}.`));
    if (reason.advice) children.push(el("p", "", {}, el("b", "", {}, "To reuse them: "), `${reason.advice[0].toLowerCase()}${reason.advice.slice(1)}`));
    if (record.match?.node && this.store.shown.nodes.has(record.match.node)) {
      children.push(el("div", "sgnb-buttons", {}, el("button", "sgnb-button", { type: "button", onclick: () => this.store.select({ kind: "node", id: record.match.node }) }, "Show where they part")));
    }
    const key = children.map(child => child.textContent).join("\n");
    if (key === this._whyKey && this._whyNode.childElementCount) return undefined;
    this._whyKey = key;
    return fill(this._whyNode, children);
  }

  /** Both texts, aligned where they part. */
  _aligned({ same, prompt, cached }) {
    const line = (name, text) => [
      el("span", "sgnb-dim", {}, name),
      el("span", "sgnb-tree-text sgnb-tree-line", {}, el("span", "sgnb-same", {}, oneLine(same, 60).slice(-60)), text ? el("span", "sgnb-different", {}, oneLine(text, 160)) : el("span", "sgnb-dim", {}, " nothing")),
    ];
    return el("div", "sgnb-tree-aligned", {}, line("cached", cached), line("this prompt", prompt));
  }

  _twin() {
    if (this.mode === "links") return;
    const state = this.store.shown;
    const width = Math.max(120, this.body.clientWidth - 20);
    const layout = this._layout ?? layoutTree(state, width / reach(state));
    const selected = this.selectedNode;
    const items = [];
    for (const block of layout.order) {
      if (items.length >= TWIN_ROWS) break;
      if (block.kind !== "node" || !state.nodes.has(block.id)) continue;
      const { node } = block;
      const text = this._textOf(node);
      const words = [`node ${node.id}`, `${count(node.length)} tok from ${count(node.start)}`, this._use(node)];
      const place = state.next.indexOf(node.id);
      if (place >= 0) words.push(`evicted next, place ${place + 1}`);
      if (text) words.push(oneLine(text, 60));
      items.push([block, words]);
    }
    const key = `${selected} ${items.map(([, words]) => words.join("|")).join("\n")}`;
    if (key === this._twinKey) return;
    this._twinKey = key;
    fill(
      this.twin,
      items.map(([block, words]) => {
        const item = el("div", "sgnb-tree-item", { role: "treeitem", id: `${this._id()}-${block.id}`, "aria-level": block.depth, "aria-selected": String(block.id === selected) }, words.join(" · "));
        if (block.node.children.length) item.setAttribute("aria-expanded", "true");
        item.style.paddingLeft = `${(block.depth - 1) * 14 + 10}px`;
        item.addEventListener("click", () => this.store.select({ kind: "node", id: block.id }));
        return item;
      })
    );
    this.twin.setAttribute("aria-activedescendant", selected ? `${this._id()}-${selected}` : "");
  }

  destroy() {
    clearTimeout(this._askLater);
    super.destroy();
  }

  _id() {
    return (this._idText ??= `sgnb-tree-${Math.random().toString(36).slice(2, 8)}`);
  }
}

function drawLock(context, x, middle, colour) {
  context.fillStyle = colour;
  context.strokeStyle = colour;
  context.lineWidth = 1.4;
  context.fillRect(x, middle - 1, 8, 6);
  context.beginPath();
  context.arc(x + 4, middle - 1.5, 2.6, Math.PI, 0);
  context.stroke();
}

function drawNext(context, x, middle, number, c) {
  context.strokeStyle = c.trouble;
  context.fillStyle = c.ground;
  context.lineWidth = 1;
  context.beginPath();
  context.arc(x, middle, 7, 0, 2 * Math.PI);
  context.fill();
  context.stroke();
  context.font = `11px ${c.ui}`;
  context.fillStyle = c.troubleText;
  context.textAlign = "center";
  context.fillText(String(number), x, middle + 0.5);
  context.textAlign = "left";
}
