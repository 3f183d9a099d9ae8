// KV map: every slot of the pool, who holds it, how scattered, what changed (ui.md §4). Frame and keys are view.js's.

import { segmented } from "./controls.js";
import { el, fill, setText, sharpCanvas, table } from "./dom.js";
import { CACHED, DECODE, FREE, PREFILL, SCORE, nameOf } from "./fold.js";
import { before, count, oneLine, plural, share } from "./format.js";
import { mix, over, rgba } from "./paint.js";
import { cellWord, changesOf, codesOf, holdersOf, layoutMap, scanRuns } from "./kv_data.js";
import { View } from "./view.js";

const GUTTER = 46;
const PAST_SECONDS = 60;
const PAST_HEIGHT = 96;
const ZOOMS = [1, 2, 4, 6, 8, 12];
const HUES = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"];
const ASK_EVERY = 2000;

export class KVMapView extends View {
  static kind = "kv";
  static title = "KV map";

  build() {
    this.mode = "state";
    this.zoomLevel = 0;
    this.range = null;
    this.kept = [];
    this._asked = -Infinity;
    const modes = [
      ["state", "State"],
      ["request", "Request"],
      ["age", "Age"],
      ["table", "Table"],
    ];
    this.switch = segmented("Colour by", modes, "state", mode => {
      this.mode = mode;
      this.changed();
    });
    this.tools.prepend(el("span", "sgnb-dim sgnb-kv-by", {}, "Colour by"), this.switch.element, this.findBox("Slot or request"));

    this.map = sharpCanvas("sgnb-kv-canvas", "KV map");
    this.spacer = el("div", "sgnb-kv-spacer", {});
    this.scroll = el("div", "sgnb-kv-scroll", {}, this.spacer, this.map.canvas);
    this.legendNode = this.legend([
      ["free", "free"],
      ["evictable", "cached, evictable"],
      ["locked", "cached, locked"],
      ["prefill", "prefill"],
      ["decode", "decode"],
      ["selected", "selected"],
    ]);
    this.names = el("ul", "sgnb-legend sgnb-kv-names", { hidden: true });
    this.twin = el("div", "sgnb-kv-twin", { hidden: true, tabindex: 0, role: "group", "aria-label": "Runs of slots" });
    this.past = sharpCanvas("sgnb-kv-past", "Slots over the last 60 s");
    const pastHead = el("div", "sgnb-kv-head", {}, el("h3", "", {}, "Slots over the last 60 s"), el("span", "sgnb-kv-marks", {}, el("span", "sgnb-trouble", {}, "▾"), " eviction  ", el("span", "sgnb-trouble", {}, "✕"), " retraction"));
    fill(this.body, this.scroll, this.twin, this.legendNode, this.names, pastHead, this.past.canvas);

    this.big = el("div", "sgnb-kv-big", {});
    this.bar = el("div", "sgnb-kv-bar", { role: "img" });
    this.states = el("div", "", {});
    this.invariant = el("p", "sgnb-kv-invariant", {});
    this.pairs = el("dl", "sgnb-pairs sgnb-ruled", {});
    this.about = el("div", "sgnb-kv-about", {});
    this.changes = el("div", "sgnb-ruled", {});
    fill(this.side, this.big, this.bar, this.states, this.invariant, this.pairs, this.about, this.changes);
    this.holders = el("div", "sgnb-kv-holders", {});
    fill(this.foot, this.holders);
    this._listen();
  }

  _listen() {
    const canvas = this.map.canvas;
    let from = -1;
    canvas.addEventListener("pointermove", event => {
      const slot = this._slotAt(event);
      if (from >= 0 && slot >= 0) {
        this.range = from === slot ? null : [Math.min(from, slot), Math.max(from, slot)];
        this.changed();
      }
      if (slot < 0) return this.tip.hide();
      const box = this.host.getBoundingClientRect();
      this.tip.show(event.clientX - box.left, event.clientY - box.top, this._words(slot));
    });
    canvas.addEventListener("pointerleave", () => this.tip.hide());
    canvas.addEventListener("pointerdown", event => {
      from = this._slotAt(event);
      canvas.focus({ preventScroll: true });
      if (from >= 0) canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointerup", event => {
      const slot = this._slotAt(event);
      if (from >= 0 && slot === from) this._choose(slot);
      from = -1;
    });
    canvas.addEventListener("wheel", event => {
      if (document.activeElement !== canvas) return; // the page scrolls until the map was chosen
      event.preventDefault();
      this._zoomAt(event.deltaY < 0 ? 1 : -1, this._slotAt(event));
    }, { passive: false });
    this.scroll.addEventListener("scroll", () => this.changed());
    const past = this.past.canvas;
    const seek = event => {
      const x = event.clientX - past.getBoundingClientRect().left - GUTTER;
      const width = past.clientWidth - GUTTER;
      this.store.goTo(this.store.now - PAST_SECONDS * (1 - Math.max(0, Math.min(1, x / width))));
    };
    past.addEventListener("pointerdown", event => {
      past.setPointerCapture(event.pointerId);
      seek(event);
    });
    past.addEventListener("pointermove", event => event.buttons && seek(event));
    past.addEventListener("keydown", event => {
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
    if (Number.isInteger(number) && number < this.store.shown.slots && !wanted.includes(".")) {
      this._choose(number);
      this._reveal(number);
      return undefined;
    }
    for (const record of this.store.history.requests.values()) {
      if (!nameOf(record).startsWith(wanted)) continue;
      this.store.select({ kind: "request", id: record.rid });
      return undefined;
    }
    return undefined;
  }

  key(event) {
    if (document.activeElement !== this.map.canvas) return false;
    const { cols, rows } = this.layout;
    const page = Math.max(1, Math.floor(this.layout.height / this.layout.pitch)) * cols;
    const here = this.cursor ?? 0;
    const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -cols, ArrowDown: cols, PageUp: -page, PageDown: page, Home: -here, End: cols * rows };
    let move = moves[event.key];
    if (event.shiftKey && (event.key === "ArrowLeft" || event.key === "ArrowRight")) move *= cols;
    if (move) {
      this.cursor = Math.max(0, Math.min(this.store.shown.slots - 1, here + move));
      this._reveal(this.cursor);
      this.region.say(this._words(this.cursor).join(", "));
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

  _zoomAt(direction, slot) {
    if (direction === 0) this.zoomLevel = 0;
    else {
      const now = this.layout.pitch;
      const levels = ZOOMS.filter(pitch => (direction > 0 ? pitch > now : pitch < now));
      this.zoomLevel = (direction > 0 ? levels[0] : levels.at(-1)) ?? now;
    }
    this.changed();
    if (slot >= 0) requestAnimationFrame(() => this._reveal(slot));
  }

  _reveal(slot) {
    const { cols, pitch, height } = this.layout;
    const y = Math.floor(slot / this.layout.group / cols) * pitch;
    if (y < this.scroll.scrollTop || y > this.scroll.scrollTop + height - pitch) this.scroll.scrollTop = y - height / 2;
    const x = (Math.floor(slot / this.layout.group) % cols) * pitch;
    if (x < this.scroll.scrollLeft || x > this.scroll.scrollLeft + this.layout.width - pitch) this.scroll.scrollLeft = x - this.layout.width / 2;
  }

  _slotAt(event) {
    const box = this.map.canvas.getBoundingClientRect();
    const x = event.clientX - box.left - GUTTER + this.scroll.scrollLeft;
    const y = event.clientY - box.top + this.scroll.scrollTop;
    const { cols, pitch, group } = this.layout ?? {};
    if (!pitch || x < 0 || x >= cols * pitch || y < 0) return -1;
    const slot = (Math.floor(y / pitch) * cols + Math.floor(x / pitch)) * group;
    return slot < this.store.shown.slots ? slot : -1;
  }

  _words(slot) {
    return cellWord(this.store.shown, this.store.history, slot);
  }

  copy() {
    const { selection } = this.store;
    if (!selection) return "";
    return this._words(selection.slot ?? this.cursor ?? 0).join("\n");
  }

  // ---------------------------------------------------------------- drawing

  draw() {
    const state = this.store.shown;
    const began = performance.now();
    const shown = this.mode !== "table";
    this.scroll.hidden = this.legendNode.hidden = !shown;
    this.twin.hidden = shown;
    const width = Math.max(120, this.body.clientWidth - 20 - GUTTER);
    this.layout = layoutMap(state.slots, state.pageSize, width, this.zoomLevel);
    if (shown && state.slots) this._drawMap(state);
    this.host.dataset.mapMs = (performance.now() - began).toFixed(2);
    this._drawPast();
  }

  _drawMap(state) {
    const { cols, rows, pitch, width, height, group } = this.layout;
    this.spacer.style.width = `${GUTTER + cols * pitch}px`;
    this.spacer.style.height = `${rows * pitch}px`;
    this.scroll.style.height = `${height + (cols * pitch > width ? 14 : 0)}px`;
    const key = [state.seq && state.kvVersion, state.lockVersion, state.treeVersion, this.store.playhead, JSON.stringify(this.store.selection), this.mode, this.scroll.scrollTop, this.scroll.scrollLeft, pitch, width, height, this.range, this.cursor, document.activeElement === this.map.canvas, this.colours.ground, this.colours.locked, window.devicePixelRatio].join(" ");
    if (key === this._mapKey && this.mode !== "age") return;
    this._mapKey = key;
    const context = this.map.size(GUTTER + width, height);
    const ratio = window.devicePixelRatio || 1;
    const W = Math.round(width * ratio);
    const H = Math.round(height * ratio);
    if (!this._image || this._image.width !== W || this._image.height !== H) this._image = context.createImageData(W, H);
    const pixels = new Uint32Array(this._image.data.buffer);
    const sprites = this._sprites(pitch * ratio);
    pixels.fill(sprites.ground);
    const codes = codesOf(state, this.store, this.mode, this.range);
    if (codes.names) this._showNames(codes.names);
    else this.names.hidden = true;
    const top = this.scroll.scrollTop;
    const left = this.scroll.scrollLeft;
    const first = Math.floor(top / pitch);
    const last = Math.min(rows - 1, Math.ceil((top + height) / pitch));
    const firstCol = Math.floor(left / pitch);
    const lastCol = Math.min(cols - 1, Math.ceil((left + width) / pitch));
    const size = sprites.size;
    const { owners, kinds } = state;
    const { cached, flight } = codes;
    if (size === 1 && group === 1 && pitch * ratio === 1) {
      this._drawDots(pixels, W, sprites, codes, state, { first, last, firstCol, lastCol, top: Math.round(top), left: Math.round(left), H });
      return this._finishMap(context, top, left, height, group, ratio);
    }
    for (let row = first; row <= last; row++) {
      const y0 = Math.round((row * pitch - top) * ratio);
      for (let col = firstCol; col <= lastCol; col++) {
        const slot = (row * cols + col) * group;
        if (slot >= kinds.length) break;
        const kind = kinds[slot];
        const owner = owners[slot];
        let code = kind === FREE ? 0 : kind === CACHED ? cached[owner] : flight[owner] || kind;
        if (group > 1) code = majority(state, codes, slot, group);
        if (codes.from >= 0 && slot >= codes.from && slot <= codes.to) code = 7;
        const x0 = Math.round((col * pitch - left) * ratio);
        if (size === 1) {
          if (x0 >= 0 && x0 < W && y0 >= 0 && y0 < H) pixels[y0 * W + x0] = sprites.of[code][0];
          continue;
        }
        const sprite = sprites.of[code];
        for (let y = 0, at = 0; y < size; y++) {
          const py = y0 + y;
          if (py < 0 || py >= H) {
            at += size;
            continue;
          }
          const line = py * W + x0;
          for (let x = 0; x < size; x++, at++) if (x0 + x >= 0 && x0 + x < W) pixels[line + x] = sprite[at];
        }
      }
    }
    return this._finishMap(context, top, left, height, group, ratio);
  }

  /** One pixel a slot: the tight form of the loop above, for pools of a million. */
  _drawDots(pixels, W, sprites, { cached, flight, from, to }, state, { first, last, firstCol, lastCol, top, left, H }) {
    const { owners, kinds } = state;
    const { cols } = this.layout;
    const colour = new Uint32Array(sprites.of.length);
    sprites.of.forEach((sprite, code) => {
      colour[code] = sprite[0];
    });
    for (let row = first; row <= last && row - top < H; row++) {
      const base = row * cols;
      const line = (row - top) * W - left;
      if (row < top) continue;
      const end = Math.min(lastCol, kinds.length - base - 1, left + W - 1);
      for (let col = firstCol; col <= end; col++) {
        const kind = kinds[base + col];
        const owner = owners[base + col];
        pixels[line + col] = colour[kind === CACHED ? cached[owner] : kind === FREE ? 0 : flight[owner] || kind];
      }
    }
    for (let slot = from; from >= 0 && slot <= to; slot++) {
      const row = Math.floor(slot / cols);
      const x = (slot % cols) - left;
      if (row >= first && row <= last && row >= top && row - top < H && x >= 0 && x < W) pixels[(row - top) * W + x] = colour[7];
    }
  }

  _finishMap(context, top, left, height, group, ratio) {
    context.clearRect(0, 0, GUTTER + this.layout.width, height);
    context.putImageData(this._image, Math.round(GUTTER * ratio), 0);
    this._drawNumbers(context, top, height, group);
    if (this.cursor !== undefined && document.activeElement === this.map.canvas) this._drawCursor(context, top, left);
    this.map.canvas.setAttribute("aria-label", this.sentence());
  }

  _drawCursor(context, top, left) {
    const { cols, pitch, group } = this.layout;
    const cell = Math.floor(this.cursor / group);
    context.strokeStyle = this.colours.choice;
    context.lineWidth = 2;
    context.strokeRect(GUTTER + (cell % cols) * pitch - left - 2, Math.floor(cell / cols) * pitch - top - 2, pitch + 3, pitch + 3);
  }

  _drawNumbers(context, top, height, group) {
    const { cols, pitch, rows } = this.layout;
    context.font = `11px ${this.colours.ui}`;
    context.fillStyle = this.colours.text2;
    context.textAlign = "right";
    context.textBaseline = "middle";
    let step = 1;
    while ((step / (cols * group)) * pitch < 34) step *= String(step)[0] === "2" ? 2.5 : 2;
    for (let slot = 0; slot < rows * cols * group; slot += step) {
      const y = Math.floor(slot / (cols * group)) * pitch - top + pitch / 2;
      if (y >= 0 && y < height - 4) context.fillText(count(slot), GUTTER - 6, Math.max(6, y));
    }
  }

  /** One small picture a code, in device pixels; the gap is part of it. */
  _sprites(pitch) {
    const c = this.colours;
    const key = `${pitch} ${this.mode} ${c.ground} ${c.locked} ${c.decode} ${c.forcedColors}`;
    if (this._spriteKey === key) return this._spriteSet;
    const size = Math.max(1, Math.round(pitch));
    const ratio = window.devicePixelRatio || 1;
    const gap = pitch / ratio >= 3 ? Math.max(1, Math.round(ratio)) : 0;
    const ground = over(rgba(c.ground), [255, 255, 255]);
    const solid = name => over(rgba(c[name]), ground);
    const word = ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
    const make = paint => {
      const out = new Uint32Array(size * size).fill(word(ground));
      const inner = size - gap;
      for (let y = 0; y < inner; y++) for (let x = 0; x < inner; x++) {
        const colour = paint(x, y, inner);
        if (colour) out[y * size + x] = word(colour);
      }
      return out;
    };
    const dot = mix(ground, solid("text2"), 0.75);
    const unit = Math.max(1, Math.round(ratio));
    const middle = (v, inner) => Math.floor(v / unit) === Math.floor((inner - 1) / 2 / unit);
    const small = size - gap < 3;
    const edge = (x, y, inner) => x < unit || y < unit || x >= inner - unit || y >= inner - unit;
    const chequer = (x, y) => (Math.floor(x / unit) + Math.floor(y / unit)) % 2 === 0;
    const faint = mix(ground, solid("text2"), 0.07);
    const of = [
      make((x, y, inner) => (small ? faint : middle(x, inner) && middle(y, inner) ? dot : null)),
      make((x, y) => (small || chequer(x, y) ? solid("prefill") : null)),
      make((x, y, inner) => (small || edge(x, y, inner) ? solid("decode") : null)),
      make(() => solid("evictable")),
      make((x, y) => (small || chequer(x, y) ? solid("forced") : null)),
      make(() => solid("locked")),
      make(() => solid("strong")),
      make(() => solid("strong")),
    ];
    const other = mix(ground, solid("text2"), 0.35);
    HUES.forEach(hue => of.push(make(() => over(rgba(hue), ground))));
    of.push(make(() => other)); // 14: other requests
    const old = solid("evictable");
    const fresh = solid("locked");
    for (let step = 0; step < 8; step++) of.push(make(() => mix(fresh, mix(old, ground, 0.5), step / 7))); // 15–22
    this._spriteKey = key;
    this._spriteSet = { size, ground: word(ground), of };
    return this._spriteSet;
  }

  _showNames(names) {
    const key = names.join("\n");
    this.names.hidden = false;
    if (key === this._namesKey) return;
    this._namesKey = key;
    fill(this.names, names.map((name, index) => {
      const swatch = el("span", "sgnb-swatch", {});
      swatch.style.background = HUES[index];
      return el("li", "", {}, swatch, name);
    }));
  }

  _drawPast() {
    const width = this.body.clientWidth - 20;
    if (width < 100) return;
    const context = this.past.size(width, PAST_HEIGHT + 20);
    const { store, colours: c } = this;
    const now = store.now;
    const slots = store.live.slots || 1;
    context.clearRect(0, 0, width, PAST_HEIGHT + 20);
    const W = width - GUTTER - 1;
    const X = time => GUTTER + W * (1 - (now - time) / PAST_SECONDS);
    const Y = value => PAST_HEIGHT - (PAST_HEIGHT - 8) * Math.min(1, value / slots);
    const figures = store.history.figures.filter(figure => figure.time >= now - PAST_SECONDS - 1 && figure.time <= now);
    const area = (value, colour) => {
      if (!figures.length) return;
      context.fillStyle = colour;
      context.beginPath();
      context.moveTo(Math.max(GUTTER, X(figures[0].time)), PAST_HEIGHT);
      let last = 0;
      for (const figure of figures) {
        last = Y(value(figure));
        context.lineTo(Math.max(GUTTER, X(figure.time)), last);
      }
      context.lineTo(GUTTER + W, last);
      context.lineTo(GUTTER + W, PAST_HEIGHT);
      context.fill();
    };
    area(f => (f.num_used_tokens ?? 0) + (f.num_cached_tokens ?? 0), c.evictable);
    area(f => f.num_used_tokens ?? 0, c.locked);
    context.strokeStyle = c.rule;
    context.lineWidth = 1;
    context.strokeRect(GUTTER + 0.5, 8.5, W, PAST_HEIGHT - 8);
    context.font = `11px ${c.ui}`;
    context.fillStyle = c.text2;
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillText(count(store.live.slots), GUTTER - 6, 12);
    context.fillText("0", GUTTER - 6, PAST_HEIGHT - 4);
    context.textBaseline = "top";
    const stride = W < 420 ? 20 : 10;
    for (let s = PAST_SECONDS; s >= 0; s -= stride) {
      context.textAlign = s === PAST_SECONDS ? "left" : s === 0 ? "right" : "center";
      context.fillText(s ? `−${s} s` : "now", X(now - s), PAST_HEIGHT + 5);
    }
    context.fillStyle = c.trouble;
    context.textAlign = "center";
    for (const mark of store.history.marks) {
      if (mark.time < now - PAST_SECONDS || (mark.kind !== "evict" && mark.kind !== "retract")) continue;
      context.fillText(mark.kind === "evict" ? "▾" : "✕", X(mark.time), 9);
    }
    if (!store.isLive) {
      const x = Math.max(GUTTER, X(store.time));
      context.fillStyle = c.strong;
      context.fillRect(x - 0.75, 4, 1.5, PAST_HEIGHT - 4);
      context.beginPath();
      context.moveTo(x - 5, 0);
      context.lineTo(x + 5, 0);
      context.lineTo(x + 5, 6);
      context.lineTo(x, 11);
      context.lineTo(x - 5, 6);
      context.fill();
    }
    this.past.canvas.setAttribute("aria-label", `Slots over the last 60 s: ${this.sentence()}`);
  }

  // ---------------------------------------------------------------- numbers

  facts() {
    const state = this.store.live;
    return `${count(state.slots)} slots, page ${count(state.pageSize)}`;
  }

  sentence() {
    const state = this.store.shown;
    const used = state.slots - state.counts[FREE];
    return `KV map: ${share(used, state.slots)} of ${count(state.slots)} slots used, ${count(state.lockedSlots)} locked, ${count(state.evictable)} evictable.`;
  }

  details() {
    const state = this.store.shown;
    if (!state.slots) return;
    const used = state.slots - state.counts[FREE];
    const flight = state.counts[PREFILL] + state.counts[SCORE];
    const rows = [
      ["locked", "cached, locked", state.lockedSlots],
      ["prefill", "prefill, in flight", flight],
      ["decode", "decode, in flight", state.counts[DECODE]],
      ["evictable", "cached, evictable", state.evictable],
      ["free", "free", state.counts[FREE]],
    ];
    const held = state.lockedSlots + flight + state.counts[DECODE];
    const tight = held > 0.95 * state.slots;
    fill(this.big, el("b", tight ? "sgnb-trouble-text" : "", {}, share(used, state.slots)), ` used, ${count(used)} of ${count(state.slots)} slots`);
    this.bar.setAttribute("aria-label", rows.map(([, words, number]) => `${words} ${count(number)}`).join(", "));
    fill(this.bar, rows.map(([name, , number]) => {
      const part = el("span", `sgnb-fill-${name}`, {});
      part.style.flexGrow = String(number);
      part.hidden = !number;
      return part;
    }));
    fill(this.states, el("table", "sgnb-kv-states", {}, el("tbody", "", {}, rows.map(([name, words, number]) =>
      el("tr", "", {}, el("td", "", {}, el("span", `sgnb-swatch sgnb-swatch-${name}`, { "aria-hidden": "true" })), el("th", "", { scope: "row" }, words), el("td", "sgnb-num", {}, count(number)), el("td", "sgnb-num sgnb-dim", {}, share(number, state.slots)))))));
    const lost = state.slots - state.counts.reduce((sum, number) => sum + number, 0) + Math.max(0, state.treeTokens - state.counts[CACHED]);
    this.invariant.classList.toggle("sgnb-trouble-text", lost !== 0);
    setText(this.invariant, lost ? `✕ ${plural(Math.abs(lost), "slot")} unaccounted for.` : `✓ free + cached + in use = ${count(state.slots)}`);
    const runs = scanRuns(state);
    const half = state.pageSize > 1 ? Math.max(0, state.counts[CACHED] - state.treeTokens) : 0;
    fill(this.pairs, [["Free runs", count(runs.freeRuns)], ["Largest free run", plural(runs.largestFree, "slot")], ["Lost to half-filled pages", state.pageSize > 1 ? count(half) : "0, page is 1"]].flatMap(([name, value]) => [el("dt", "", {}, name), el("dd", "", {}, value)]));
    this._about(state);
    this._changes();
    this._holders(state, runs);
    if (this.mode === "table") this._table(state);
    this._askKept();
  }

  _about(state) {
    const { selection } = this.store;
    if (this.range) {
      const owners = new Map();
      for (let slot = this.range[0]; slot <= this.range[1]; slot++) {
        const name = state.ownerNames[state.owners[slot]];
        owners.set(name, (owners.get(name) ?? 0) + 1);
      }
      const lines = [...owners].sort((a, b) => b[1] - a[1]).slice(0, 8);
      fill(this.about, el("h3", "", {}, `Slots ${count(this.range[0])} to ${count(this.range[1])}`), table([{ name: "holder" }, { name: "slots", number: true }], lines.map(([name, number]) => [this._holderName(name), count(number)])));
      return;
    }
    const slot = selection?.slot ?? (selection?.kind === "slot" ? selection.id : undefined);
    if (slot === undefined || slot >= state.slots) return fill(this.about, []);
    fill(this.about, this._words(slot).map((line, index) => el("div", index ? "sgnb-dim" : "", {}, line)));
    return undefined;
  }

  _holderName(owner) {
    if (!owner) return "free";
    if (owner.startsWith("node:")) return `node ${owner.slice(5)} of the tree`;
    return nameOf(this.store.history.requests.get(owner) ?? { rid: owner });
  }

  _changes() {
    const { store } = this;
    const rows = changesOf(store);
    fill(this.changes, el("h3", "", {}, `Changed in step ${count(store.step)}`), rows.length ? el("dl", "sgnb-kv-changes", {}, rows.flatMap(([number, words]) => [el("dt", "", {}, number), el("dd", "", {}, words)])) : el("p", "sgnb-dim", {}, "Nothing."));
  }

  _holders(state, runs) {
    const list = holdersOf(state, this.store.history, runs, this.kept);
    const most = Math.max(1, ...list.map(holder => holder.own + holder.shared));
    const columns = [{ name: "holder" }, { name: "state" }, { name: "own slots", number: true }, { name: "shared", number: true }, { name: "runs", number: true }, { name: "own, shared" }, { name: "text", code: true }, { name: "" }];
    const rows = list.map(holder => [
      holder.name,
      holder.state,
      count(holder.own),
      count(holder.shared),
      holder.runs === null ? "–" : count(holder.runs),
      ownBar(holder, most),
      oneLine(holder.text ?? "", 60),
      holder.sid ? el("button", "sgnb-button", { type: "button", onclick: event => this._release(event, holder) }, "Release") : "",
    ]);
    const chosen = list.findIndex(holder => this.store.selection?.kind === "request" && holder.rid === this.store.selection.id);
    if (!list.length) fill(this.holders, el("p", "sgnb-dim sgnb-pad", {}, "Nobody holds slots."));
    else if (!this.holders.contains(document.activeElement) || this._holderKey !== list.length) {
      this._holderKey = list.length;
      fill(this.holders, table(columns, rows, { selected: chosen, onrow: index => list[index].rid && this.store.select({ kind: "request", id: list[index].rid }) }));
    }
  }

  _release(event, holder) {
    event.stopPropagation();
    this.store.ask("release", { sids: [holder.sid] }).then(
      () => {
        this.region.say(`Released ${plural(holder.shared, "slot")}.`);
        this._asked = -Infinity;
        this.changed();
      },
      error => this.region.say(error.message)
    );
  }

  _askKept() {
    const now = performance.now();
    if (now - this._asked < ASK_EVERY || !["idle", "running"].includes(this.store.engineState)) return;
    this._asked = now;
    this.store.ask("holders").then(
      answer => {
        this.kept = answer.sessions ?? [];
      },
      () => {
        this.kept = [];
      }
    );
  }

  _table(state) {
    const rows = [];
    for (let slot = 0; slot < state.slots && rows.length < 500; ) {
      const owner = state.owners[slot];
      const kind = state.kinds[slot];
      let end = slot + 1;
      while (end < state.slots && state.owners[end] === owner && state.kinds[end] === kind) end++;
      rows.push([count(slot), count(end - slot), cellWord(state, this.store.history, slot)[0].replace(/^slot [^ ]*  /u, ""), this._holderName(state.ownerNames[owner])]);
      slot = end;
    }
    fill(this.twin, table([{ name: "from slot", number: true }, { name: "slots", number: true }, { name: "state" }, { name: "holder" }], rows, { caption: rows.length === 500 ? "The first 500 runs." : "" }));
  }
}

function ownBar(holder, most) {
  const bar = el("span", "sgnb-kv-own", { "aria-hidden": "true" });
  for (const [name, number] of [["prefill", holder.prefill], ["decode", holder.decode], ["locked", holder.shared]]) {
    const part = el("span", `sgnb-fill-${name}`, {});
    part.style.width = `${(100 * number) / most}%`;
    bar.append(part);
  }
  return bar;
}

function majority(state, codes, slot, group) {
  const seen = new Uint8Array(32);
  let best = 0;
  for (let i = slot; i < slot + group && i < state.slots; i++) {
    const kind = state.kinds[i];
    const code = kind === FREE ? 0 : kind === CACHED ? codes.cached[state.owners[i]] : codes.flight[state.owners[i]] || kind;
    if (++seen[code] > seen[best]) best = code;
  }
  return best;
}
