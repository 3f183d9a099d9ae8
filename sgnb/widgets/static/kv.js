// KV map: every slot of the pool, who holds it, how scattered, what changed (ui.md §4). The frame is view.js's; what is computed
// is kv_data.js's, drawing kv_draw.js's, the numbers beside and below the map kv_side.js's.

import { segmented } from "./controls.js";
import { el, fill, on, setText, sharpCanvas } from "./dom.js";
import { CACHED, DECODE, FREE, PREFILL } from "./fold.js";
import { count, memory, share } from "./format.js";
import { nameIn, requestCalled } from "./history.js";
import { cellWord, codesOf, FIRST_AGE, FIRST_HUE, layoutMap, LOCKED, OTHER, SELECTED, slotTo } from "./kv_data.js";
import { GUTTER, KVPainter, drawPast, pastOf } from "./kv_draw.js";
import { KVSide } from "./kv_side.js";
import { NodeTexts } from "./node_texts.js";
import { parts, PLACES, trans } from "./trans.js";
import { View } from "./view.js";

const KEPT_TOKENS = 500;
const states = () => [[CACHED, trans.__("cached, evictable")], [LOCKED, trans.__("cached, locked")], [PREFILL, trans.__("prefill")], [DECODE, trans.__("decode")]];
const ages = () => [[FIRST_AGE, trans.__("just used")], [FIRST_AGE + 3, trans.__("10 s ago")], [FIRST_AGE + 5, trans.__("1 min ago")], [FIRST_AGE + 7, trans.__("over 4 min ago")]];
const ZOOMS = [1, 2, 4, 6, 8, 12];

export class KVMapView extends View {
  static kind = "kv";
  static get title() {
    return trans.__("KV map");
  }

  build() {
    this.mode = "state";
    this.range = null; // [first, last] slot that were dragged over
    this.cursor = undefined; // the slot that keys move
    this._zoomLevel = 0;
    this._tokens = new Map(); // slot, owner and step → which token it holds
    this._painter = new KVPainter();
    this.texts = new NodeTexts(this.store, () => this.changed());
    const modes = [
      ["state", trans.__("State")],
      ["request", trans.__("Request")],
      ["age", trans.__("Age")],
      ["table", trans.__("Table")],
    ];
    this._switch = segmented(trans.__("Colour by"), modes, "state", mode => {
      this.mode = mode;
      this.changed();
    });
    this.tools.prepend(el("span", "sgnb-dim sgnb-kv-by", {}, trans.__("Colour by")), this._switch.element, this.findBox(trans.__("Slot or request")));
    this._map = sharpCanvas("sgnb-kv-canvas", KVMapView.title);
    this._spacer = el("div", "sgnb-kv-spacer");
    this._scroll = el("div", "sgnb-kv-scroll", {}, this._spacer, this._map.canvas);
    this._legendNode = this.legend([]);
    this.tools.append(this.legendButton(this._legendNode));
    this._pastTitle = el("h3", "");
    this._past = sharpCanvas("sgnb-kv-past", "");
    const mark = sign => el("span", "sgnb-trouble", {}, sign);
    const pastHead = el("div", "sgnb-kv-head", {}, this._pastTitle, el("span", "sgnb-kv-marks", {}, parts(trans.__("%1 eviction  %2 retraction", ...PLACES), mark("▾"), mark("✕"))));
    this.panel = new KVSide(this);
    fill(this.body, this._scroll, this.panel.twin, this._legendNode, pastHead, this._past.canvas);
    fill(this.side, this.panel.nodes);
    fill(this.foot, this.panel.holders);
    this._listen();
  }

  _listen() {
    const canvas = this._map.canvas;
    let from = -1;
    on(canvas, "pointermove", event => {
      const slot = this._slotAt(event);
      if (from >= 0 && slot >= 0) {
        this.range = from === slot ? null : [Math.min(from, slot), Math.min(Math.max(from, slot) + this._layout.group, this.store.shown.slots) - 1];
        this.changed();
      }
      this._under = slot;
      this._pointer = event;
      if (slot < 0) return this.tip.hide();
      this._showTip();
    });
    on(canvas, "pointerleave", () => {
      this._under = -1;
      this.tip.hide();
    });
    on(canvas, "pointerdown", event => {
      from = this._slotAt(event);
      canvas.focus({ preventScroll: true });
      if (from >= 0) canvas.setPointerCapture(event.pointerId);
    });
    on(canvas, "pointerup", event => {
      const slot = this._slotAt(event);
      if (from >= 0 && slot === from) this._choose(slot);
      from = -1;
    });
    on(canvas, "pointercancel", () => (from = -1));
    on(canvas, "wheel", event => {
      if (document.activeElement !== canvas) return; // the page scrolls until the map was chosen
      event.preventDefault();
      this._zoomAt(event.deltaY < 0 ? 1 : -1, this._slotAt(event), event);
    }, { passive: false });
    on(this._scroll, "scroll", () => this.changed());
    const past = this._past.canvas;
    const seek = event => {
      const x = event.clientX - past.getBoundingClientRect().left - GUTTER;
      const width = past.clientWidth - GUTTER;
      const { from, to } = pastOf(this.store);
      this.store.goTo(from + (to - from) * Math.max(0, Math.min(1, x / width)));
    };
    on(past, "pointerdown", event => {
      past.setPointerCapture(event.pointerId);
      seek(event);
    });
    on(past, "pointermove", event => event.buttons && seek(event));
    on(past, "keydown", event => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step) return;
      event.preventDefault();
      event.stopPropagation();
      this.store.stepBy(step);
    });
  }

  // ---------------------------------------------------------------- selection

  _choose(slot) {
    this.range = null;
    const { owners, ownerNames, ownerNode, kinds } = this.store.shown;
    this.cursor = slot;
    if (kinds[slot] === FREE) this.store.select({ kind: "slot", id: slot });
    else if (kinds[slot] === CACHED) this.store.select({ kind: "node", id: ownerNode[owners[slot]], slot });
    else this.store.select({ kind: "request", id: ownerNames[owners[slot]], slot });
    this.changed();
  }

  find(text) {
    const wanted = text.trim();
    if (!wanted) return this.store.select(null);
    const number = Number(wanted.replace(/\s/g, ""));
    if (Number.isInteger(number) && number >= 0 && number < this.store.shown.slots && !wanted.includes(".")) {
      this._choose(number);
      this._reveal(number);
      return undefined;
    }
    const record = requestCalled(this.store.history, wanted);
    if (!record) return this.region.say(trans.__("No slot and no request is called %1.", wanted));
    return this.store.select({ kind: "request", id: record.rid });
  }

  key(event) {
    if (event.key === "Escape") {
      this.range = null;
      this.cursor = undefined;
      this.changed();
    }
    if (document.activeElement !== this._map.canvas) return false;
    const here = this.cursor ?? 0;
    const next = slotTo(here, event, this._layout, this.store.shown.slots);
    if (next !== undefined) {
      this.cursor = next;
      this._reveal(this.cursor);
      this.region.say(this.words(this.cursor).join(", "));
      this.changed();
      return true;
    }
    if (event.key !== "Enter") return false;
    this._choose(here);
    return true;
  }

  zoom(direction) {
    this._zoomAt(direction, this.cursor ?? -1);
  }

  /** `at`: the pointer, under which `slot` stays. */
  _zoomAt(direction, slot, at = null) {
    if (direction === 0) this._zoomLevel = 0;
    else {
      const now = this._layout.pitch;
      const levels = ZOOMS.filter(pitch => (direction > 0 ? pitch > now : pitch < now));
      this._zoomLevel = (direction > 0 ? levels[0] : levels.at(-1)) ?? now;
    }
    this.changed();
    if (slot >= 0) requestAnimationFrame(() => (at ? this._keepUnder(at, slot) : this._reveal(slot)));
  }

  /** Scroll so far that `slot` lies where the pointer is. */
  _keepUnder({ clientX, clientY }, slot) {
    const box = this._map.canvas.getBoundingClientRect();
    const { cols, pitch, group } = this._layout;
    const cell = Math.floor(slot / group);
    this._scroll.scrollLeft = ((cell % cols) + 0.5) * pitch - (clientX - box.left - GUTTER);
    this._scroll.scrollTop = (Math.floor(cell / cols) + 0.5) * pitch - (clientY - box.top);
  }

  _reveal(slot) {
    const { cols, pitch, height } = this._layout;
    const y = Math.floor(slot / this._layout.group / cols) * pitch;
    if (y < this._scroll.scrollTop || y > this._scroll.scrollTop + height - pitch) this._scroll.scrollTop = y - height / 2;
    const x = (Math.floor(slot / this._layout.group) % cols) * pitch;
    if (x < this._scroll.scrollLeft || x > this._scroll.scrollLeft + this._layout.width - pitch) this._scroll.scrollLeft = x - this._layout.width / 2;
  }

  _slotAt(event) {
    const box = this._map.canvas.getBoundingClientRect();
    const x = event.clientX - box.left - GUTTER + this._scroll.scrollLeft;
    const y = event.clientY - box.top + this._scroll.scrollTop;
    const { cols, pitch, group } = this._layout ?? {};
    if (!pitch || x < 0 || x >= cols * pitch || y < 0) return -1;
    const slot = (Math.floor(y / pitch) * cols + Math.floor(x / pitch)) * group;
    return slot < this.store.shown.slots ? slot : -1;
  }

  /** What a slot is, in lines; which token it holds the engine says, and then the view is drawn anew. */
  words(slot) {
    const state = this.store.shown;
    return cellWord(state, this.store.history, slot, this._tokenOf(state, slot));
  }

  _tokenOf(state, slot) {
    const owner = state.ownerNames[state.owners[slot]];
    const key = `${slot} ${owner} ${state.written[slot]}`;
    if (!owner || this._tokens.has(key)) return this._tokens.get(key);
    this._tokens.set(key, undefined);
    if (this._tokens.size > KEPT_TOKENS) this._tokens.delete(this._tokens.keys().next().value);
    const put = token => {
      this._tokens.set(key, token);
      this.changed();
      if (this._under === slot) this._showTip();
    };
    this.store.ask("slot", { slot, owner }).then(put, () => {});
    return undefined;
  }

  _showTip() {
    const box = this.host.getBoundingClientRect();
    this.tip.show(this._pointer.clientX - box.left, this._pointer.clientY - box.top, this.words(this._under));
  }

  copy() {
    const { selection, shown } = this.store;
    if (this.range) return this.panel.rangeWords;
    const { kind = "", id, slot = kind ? undefined : this.cursor } = selection ?? {};
    if (kind === "request" && slot === undefined) return this.panel.holderWords(id);
    const place = kind === "node" ? shown.placeOf(`node:${id}`) : undefined;
    const one = slot ?? (kind === "slot" ? id : place ? shown.owners.indexOf(place) : -1);
    return one >= 0 ? this.words(one).join("\n") : "";
  }

  // ---------------------------------------------------------------- drawing

  draw() {
    const state = this.store.shown;
    const table = this.mode === "table";
    this._scroll.hidden = this._legendNode.hidden = table;
    this.panel.twin.hidden = !table;
    const inner = this.room.width - 20;
    this._layout = layoutMap(state.slots, state.pageSize, Math.max(120, inner - GUTTER), this._zoomLevel);
    if (!table && state.slots) this._drawMap(state);
    if (inner < 100) return;
    drawPast(this._past, inner, this.store, this.colours);
    const past = this.store.replaying ? trans.__("Slots over the recording") : trans.__("Slots over the last 60 s");
    setText(this._pastTitle, past);
    this._past.canvas.setAttribute("aria-label", trans.__("%1: %2", past, this.sentence()));
  }

  _drawMap(state) {
    const { cols, rows, pitch, width, height } = this._layout;
    this._spacer.style.width = `${GUTTER + cols * pitch}px`;
    this._spacer.style.height = `${rows * pitch}px`;
    this._scroll.style.height = `${height + (cols * pitch > width ? 14 : 0)}px`;
    const { canvas } = this._map;
    const view = { top: this.room.top, left: this.room.left, mode: this.mode, cursor: document.activeElement === canvas ? (this.cursor ?? -1) : -1 };
    const { colours: c, range } = this;
    const key = [state.kvVersion, state.lockVersion, state.treeVersion, this.store.playhead, JSON.stringify(this.store.selection), ...Object.values(view), pitch, width, height, range, c.ground, c.locked, c.forcedColors, window.devicePixelRatio].join(" ");
    if (key === this._mapKey && this.mode !== "age") return;
    this._mapKey = key;
    const codes = codesOf(state, this.store, this.mode, range);
    this._painter.draw(this._map, state, this._layout, codes, c, view);
    this._showLegend(codes.names);
    canvas.setAttribute("aria-label", this.sentence());
  }

  /** What the cells mean in the way they are coloured now; `names`: of the requests with a hue. */
  _showLegend(names) {
    const { selection } = this.store;
    const selected = selection?.kind === "request" ? trans.__("selected request, %1", nameIn(this.store.history, selection.id)) : trans.__("selected");
    const named = names && [...names.map((name, index) => [FIRST_HUE + index, name]), [OTHER, trans.__("other requests")]];
    const entries = [[FREE, trans.__("free")], ...(named ?? (this.mode === "age" ? ages() : states())), [SELECTED, selected]];
    const key = [entries.join("\n"), this._painter.look].join();
    if (key === this._legendKey) return;
    this._legendKey = key;
    fill(this._legendNode, ...this.legend(entries).childNodes);
    entries.forEach(([code], index) => (this._legendNode.children[index].firstChild.style.background = this._painter.swatch(code)));
  }

  facts() {
    const state = this.store.live;
    const [slots, page] = [count(state.slots), count(state.pageSize)];
    return state.slotBytes ? trans.__("%1 slots, page %2, %3", slots, page, memory(state.slots * state.slotBytes)) : trans.__("%1 slots, page %2", slots, page);
  }

  sentence() {
    const state = this.store.shown;
    const used = state.slots - state.counts[FREE];
    return trans.__("KV map: %1 of %2 slots used, %3 locked, %4 in flight, %5 evictable.", share(used, state.slots), count(state.slots), count(state.lockedSlots), count(used - state.counts[CACHED]), count(state.evictable));
  }

  details() {
    this.panel.update();
  }

  destroy() {
    this.texts.close();
    super.destroy();
  }
}
