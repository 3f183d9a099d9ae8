// Drawing of the KV map on a canvas: a small picture a cell, numbers of slots, the cursor; and the slots of the last minute.
// Reads a layout and codes of kv_data.js; knows no events. `KVPainter` keeps what is the same from one picture to the next.

import { CACHED, FREE } from "./fold.js";
import { count } from "./format.js";
import { bandsOf } from "./kv_data.js";
import { hatch, mix, over, rgba } from "./paint.js";
import { trans } from "./trans.js";

export const GUTTER = 46;
const PAST_SECONDS = 60;
const PAST_HEIGHT = 96;
const HUES = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"];

export class KVPainter {
  /** Draw the cells. `map`: a sharp canvas, `view`: {top, left, mode, cursor}; `layout`, `codes`: of kv_data.js. */
  draw(map, state, layout, codes, c, { top, left, mode, cursor }) {
    const { cols, rows, pitch, width, height, group } = layout;
    const context = map.size(GUTTER + width, height);
    const ratio = window.devicePixelRatio || 1;
    const W = Math.round(width * ratio);
    const H = Math.round(height * ratio);
    if (this._image?.width !== W || this._image.height !== H) this._image = context.createImageData(W, H);
    const pixels = new Uint32Array(this._image.data.buffer);
    const sprites = this._spritesOf(pitch * ratio, mode, c);
    const window_ = {
      first: Math.floor(top / pitch),
      last: Math.min(rows - 1, Math.ceil((top + height) / pitch)),
      firstCol: Math.floor(left / pitch),
      lastCol: Math.min(cols - 1, Math.ceil((left + width) / pitch)),
    };
    if (sprites.size === 1 && group === 1 && pitch * ratio === 1) drawDots(pixels, W, H, sprites, codes, state, layout, { ...window_, top: Math.round(top), left: Math.round(left) });
    else drawCells(pixels, W, H, sprites, codes, state, layout, { ...window_, top, left, ratio });
    context.clearRect(0, 0, GUTTER + width, height);
    context.putImageData(this._image, Math.round(GUTTER * ratio), 0);
    drawNumbers(context, layout, c, top);
    if (cursor >= 0) drawCursor(context, layout, c, cursor, top, left);
  }

  /** One small picture a code, in device pixels; the gap is part of it. */
  _spritesOf(pitch, mode, c) {
    const key = `${pitch} ${mode} ${c.ground} ${c.locked} ${c.decode} ${c.forcedColors}`;
    if (this.look === key) return this._sprites;
    this.look = key;
    return (this._sprites = spritesOf(pitch, c));
  }

  /** Cells of a code as a CSS background: what the legend shows is what was drawn last. */
  swatch(code) {
    const { size, of } = this._sprites;
    const tile = Object.assign(document.createElement("canvas"), { width: size, height: size });
    tile.getContext("2d").putImageData(new ImageData(new Uint8ClampedArray(of[code].buffer), size, size), 0, 0);
    const pitch = size / (window.devicePixelRatio || 1);
    return `url(${tile.toDataURL()}) 0 0 / ${pitch}px ${pitch > 7 ? "no-repeat" : ""}`; // one large cell, or some small ones
  }
}

function spritesOf(pitch, c) {
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
  const text2 = solid("text2");
  const unit = Math.max(1, Math.round(ratio));
  const middle = (v, inner) => Math.floor(v / unit) === Math.floor((inner - 1) / 2 / unit);
  const small = size - gap < 3;
  const edge = (x, y, inner) => x < unit || y < unit || x >= inner - unit || y >= inner - unit;
  const chequer = (x, y) => (Math.floor(x / unit) + Math.floor(y / unit)) % 2 === 0;
  // With forced colours a fill says nothing: evictable cells are striped, and where cells are too small, a mean of both.
  const forced = c.forcedColors;
  const pale = () => (forced ? (small ? mix(ground, solid("text"), 0.4) : null) : solid("evictable"));
  const stripe = y => (forced && !small && Math.floor(y / unit) % 2 === 0 ? solid("text") : pale());
  const prefill = solid(forced ? "text" : "prefill");
  const of = [
    make((x, y, inner) => (small ? mix(ground, text2, 0.07) : middle(x, inner) && middle(y, inner) ? mix(ground, text2, 0.75) : null)),
    make((x, y) => (small || chequer(x, y) ? prefill : null)),
    make((x, y, inner) => (small || edge(x, y, inner) ? solid("decode") : null)),
    make((x, y) => stripe(y)),
    make((x, y) => (small || chequer(x, y) ? solid("forced") : null)),
    make(() => solid("locked")),
    make(() => solid("strong")),
    make(() => solid("strong")),
  ];
  HUES.forEach(hue => of.push(make(() => over(rgba(hue), ground))));
  of.push(make(() => mix(ground, text2, 0.35))); // 14: other requests
  const old = mix(solid("evictable"), ground, 0.5);
  for (let step = 0; step < 8; step++) of.push(make(() => mix(solid("locked"), old, step / 7))); // 15–22
  return { size, ground: word(ground), of };
}

function drawCells(pixels, W, H, sprites, codes, state, { cols, pitch, group }, { first, last, firstCol, lastCol, top, left, ratio }) {
  const { size } = sprites;
  const { owners, kinds } = state;
  const { cached, flight, from, to } = codes;
  pixels.fill(sprites.ground);
  for (let row = first; row <= last; row++) {
    const y0 = Math.round((row * pitch - top) * ratio);
    for (let col = firstCol; col <= lastCol; col++) {
      const slot = (row * cols + col) * group;
      if (slot >= kinds.length) break;
      const kind = kinds[slot];
      const owner = owners[slot];
      let code = kind === FREE ? 0 : kind === CACHED ? cached[owner] : flight[owner] || kind;
      if (group > 1) code = majority(state, codes, slot, group);
      if (from >= 0 && slot >= from && slot <= to) code = 7;
      const x0 = Math.round((col * pitch - left) * ratio);
      const sprite = sprites.of[code];
      for (let y = 0; y < size; y++) {
        const py = y0 + y;
        if (py < 0 || py >= H) continue;
        const line = py * W + x0;
        for (let x = 0; x < size; x++) if (x0 + x >= 0 && x0 + x < W) pixels[line + x] = sprite[y * size + x];
      }
    }
  }
}

/** One pixel a slot: the tight form of the loop above, for pools of a million. */
function drawDots(pixels, W, H, sprites, { cached, flight, from, to }, state, { cols }, { first, last, firstCol, lastCol, top, left }) {
  const { owners, kinds } = state;
  const colour = Uint32Array.from(sprites.of, sprite => sprite[0]);
  // A colour an owner and a colour a kind: no decision a slot but which of the two.
  const ofCached = Uint32Array.from(cached, code => colour[code]);
  const used = (Math.min(last, top + H - 1) - top + 1) * W;
  if (lastCol - firstCol + 1 < W || used < pixels.length) pixels.fill(sprites.ground);
  for (let row = Math.max(first, top); row <= last && row - top < H; row++) {
    const base = row * cols;
    const line = (row - top) * W - left;
    const end = base + Math.min(lastCol, kinds.length - base - 1, left + W - 1);
    const shift = line - base;
    for (let slot = base + firstCol; slot <= end; slot++) {
      const kind = kinds[slot];
      pixels[slot + shift] = kind === CACHED ? ofCached[owners[slot]] : kind === FREE ? colour[0] : colour[flight[owners[slot]] || kind];
    }
  }
  for (let slot = from; from >= 0 && slot <= to; slot++) {
    const row = Math.floor(slot / cols);
    const x = (slot % cols) - left;
    if (row >= first && row <= last && row >= top && row - top < H && x >= 0 && x < W) pixels[(row - top) * W + x] = colour[7];
  }
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

function drawCursor(context, { cols, pitch, group }, c, cursor, top, left) {
  const cell = Math.floor(cursor / group);
  context.strokeStyle = c.choice;
  context.lineWidth = 2;
  context.strokeRect(GUTTER + (cell % cols) * pitch - left - 2, Math.floor(cell / cols) * pitch - top - 2, pitch + 3, pitch + 3);
}

function drawNumbers(context, { cols, pitch, rows, group, height }, c, top) {
  context.font = `11px ${c.ui}`;
  context.fillStyle = c.text2;
  context.textAlign = "right";
  context.textBaseline = "middle";
  let step = 1;
  while ((step / (cols * group)) * pitch < 34) step *= String(step)[0] === "2" ? 2.5 : 2;
  for (let slot = 0; slot < rows * cols * group; slot += step) {
    const y = Math.floor(slot / (cols * group)) * pitch - top + pitch / 2;
    if (y >= 0 && y < height - 4) context.fillText(count(slot), GUTTER - 6, Math.max(6, y));
  }
}

/** The time of the strip below the map: the last minute, or the whole of a recording. */
export function pastOf({ replaying, oldest, now, live }) {
  return replaying ? { from: oldest, to: Math.max(oldest + 0.01, live.time) } : { from: now - PAST_SECONDS, to: now };
}

/** Slots over that time as three bands, cached and locked, in flight, cached and evictable; the playhead, ▾ evictions and ✕ retractions. */
export function drawPast(canvas, width, store, c) {
  const context = canvas.size(width, PAST_HEIGHT + 20);
  const { from, to } = pastOf(store);
  const slots = store.live.slots || 1;
  const W = width - GUTTER - 1;
  const X = time => GUTTER + (W * (time - from)) / (to - from);
  const Y = value => PAST_HEIGHT - (PAST_HEIGHT - 8) * Math.min(1, value / slots);
  context.clearRect(0, 0, width, PAST_HEIGHT + 20);
  const figures = store.history.figures.filter(figure => figure.time >= from - 1 && figure.time <= to);
  const area = (values, colour) => {
    if (!figures.length) return;
    context.fillStyle = colour;
    context.beginPath();
    context.moveTo(Math.max(GUTTER, X(figures[0].time)), PAST_HEIGHT);
    figures.forEach((figure, index) => context.lineTo(Math.max(GUTTER, X(figure.time)), Y(values[index])));
    context.lineTo(GUTTER + W, Y(values.at(-1)));
    context.lineTo(GUTTER + W, PAST_HEIGHT);
    context.fill();
    context.strokeStyle = c.text;
    if (c.forcedColors) context.stroke();
  };
  // Each band from the bottom up; those above lie behind. With forced colours full and in flight are one colour: one is hatched.
  const bands = figures.map(bandsOf);
  area(bands.map(({ locked, flight, evictable }) => locked + flight + evictable), c.evictable);
  area(bands.map(({ locked, flight }) => locked + flight), c.forcedColors ? hatch(context, c.ground, c.text) : c.decode);
  area(bands.map(({ locked }) => locked), c.locked);
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
  const parts = W < 420 ? 3 : 6;
  for (let part = 0; part <= parts; part++) {
    const time = from + ((to - from) * part) / parts;
    context.textAlign = part === 0 ? "left" : part === parts ? "right" : "center";
    const words = store.replaying ? `${(time - from).toFixed(to - from < 20 ? 1 : 0)} s` : part === parts ? trans.__("now") : `−${Math.round(to - time)} s`;
    context.fillText(words, X(time), PAST_HEIGHT + 5);
  }
  context.font = `14px ${c.ui}`;
  context.fillStyle = c.trouble;
  context.textAlign = "center";
  for (const mark of store.history.marks) {
    if (mark.time < from || (mark.kind !== "evict" && mark.kind !== "retract")) continue;
    context.fillText(mark.kind === "evict" ? "▾" : "✕", X(mark.time), 8);
  }
  if (store.isLive) return;
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
