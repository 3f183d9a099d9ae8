// Helpers for canvases: colours as numbers, mixing, hatches. Reads no data.

import { cutAt, lettersOf } from "./format.js";

/** [r, g, b, a] (0–255) of a CSS colour that the browser knows. */
export function rgba(colour) {
  const canvas = (rgba.canvas ??= Object.assign(document.createElement("canvas"), { width: 1, height: 1 }));
  const context = (rgba.context ??= canvas.getContext("2d", { willReadFrequently: true }));
  context.clearRect(0, 0, 1, 1);
  context.fillStyle = colour || "#888";
  context.fillRect(0, 0, 1, 1);
  return [...context.getImageData(0, 0, 1, 1).data];
}

/** `top` over `below`, as an opaque [r, g, b]. */
export function over(top, below) {
  const a = top[3] / 255;
  return [0, 1, 2].map(i => Math.round(top[i] * a + below[i] * (1 - a)));
}

/** Between two colours: 0 gives the first. */
export function mix(first, second, share) {
  return [0, 1, 2].map(i => Math.round(first[i] + (second[i] - first[i]) * share));
}

export function css([r, g, b]) {
  return `rgb(${r}, ${g}, ${b})`;
}

/** A 45° hatch, 5 px pitch, for fillStyle. */
export function hatch(context, ground, line) {
  const tile = document.createElement("canvas");
  const ratio = window.devicePixelRatio || 1;
  const size = Math.max(5, Math.round(7 * ratio));
  tile.width = tile.height = size;
  const c = tile.getContext("2d");
  c.fillStyle = ground;
  c.fillRect(0, 0, size, size);
  c.strokeStyle = line;
  c.lineWidth = 1.4 * ratio;
  c.beginPath();
  for (const shift of [-size, 0, size]) {
    c.moveTo(shift, size);
    c.lineTo(shift + size, 0);
  }
  c.stroke();
  const pattern = context.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix().scale(1 / ratio));
  return pattern;
}

/** Cut text to a width with `…`; `""` when nothing fits. */
function fit(context, text, width) {
  if (width < 12) return "";
  const each = context.measureText("n").width || 6;
  const head = cutAt(text, Math.ceil(width / each) + 2);
  if (head.length === text.length && context.measureText(head).width <= width) return head;
  const shown = lettersOf(head);
  while (shown.length && context.measureText(`${shown.join("")}…`).width > width) shown.pop();
  return shown.length ? `${shown.join("")}…` : "";
}

const MOST_TEXTS = 2000; // remembered texts, before all are forgotten
let cuts = new Map(); // font, room and text → the text that fits, and its width

/** A text cut to `room` px and its width: {text, width}. A font is measured once for each text. */
export function fitted(context, font, text, room) {
  const key = `${font} ${Math.round(room)} ${text}`;
  let found = cuts.get(key);
  context.font = font;
  if (!found) {
    if (cuts.size >= MOST_TEXTS) cuts = new Map();
    const cut = room === Infinity ? text : fit(context, text, room);
    cuts.set(key, (found = { text: cut, width: context.measureText(cut).width }));
  }
  return found;
}
