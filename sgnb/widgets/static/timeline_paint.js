// What the timeline's three pictures share: the geometry, brushes, boxes, hatches, text that is measured once. Reads no data.
//
// `g` is the geometry: {left, width, from, to}: the plot begins at `left` px and shows [from, to] over `width` px.

import { fitted, hatch } from "./paint.js";

/** Where a moment lies, in px. */
export const X = (g, time) => g.left + ((time - g.from) / (g.to - g.from)) * g.width;

/** Brushes for one canvas and theme. */
export function brushes(context, c) {
  const forced = c.forcedColors;
  return {
    ...c,
    prefillFill: hatch(context, c.prefill, c.prefillEdge),
    prefillThin: forced ? stripes(context, c.prefill, c.prefillEdge) : c.prefill, // where a hatch has no room
    line: forced ? c.text : c.rule,
    grey: c.text2,
  };
}

/** Lines of 1 px, one apart: a fill of two colours that tells itself from a solid one at any width. */
function stripes(context, ground, line) {
  const tile = Object.assign(document.createElement("canvas"), { width: 1, height: 2 });
  const c = tile.getContext("2d");
  c.fillStyle = ground;
  c.fillRect(0, 0, 1, 2);
  c.fillStyle = line;
  c.fillRect(0, 0, 1, 1);
  return context.createPattern(tile, "repeat");
}

/** The width of a text in px. */
export function widthOf(context, font, text) {
  return fitted(context, font, text, Infinity).width;
}

export function clip(context, g, height) {
  context.save();
  context.beginPath();
  context.rect(g.left - 8, 0, g.width + 16, height);
  context.clip();
}

/** A label in the gutter, right-aligned before the plot. */
export function label(context, c, g, text, y, { bold = false, dim = true } = {}) {
  const shown = fitted(context, `${bold ? "600 " : ""}12px ${c.ui}`, text, g.left - 18);
  context.fillStyle = dim ? c.text2 : c.text;
  context.textAlign = "right";
  context.textBaseline = "middle";
  context.fillText(shown.text, g.left - 10, y);
}

export function band(context, b, g, from, to, top, height) {
  context.fillStyle = b.choice;
  context.globalAlpha = 0.13;
  context.fillRect(X(g, from), top, Math.max(1, X(g, to) - X(g, from)), height - top);
  context.globalAlpha = 1;
}

/** A prefill block: hatched, with an edge where there is room for one. */
export function hatched(context, b, x, y, width, height) {
  context.fillStyle = width < 3 ? b.prefillThin : b.prefillFill;
  context.fillRect(x, y, width, height);
  if (width < 4) return;
  context.strokeStyle = b.prefillEdge;
  context.lineWidth = 1;
  context.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
}

export function outline(context, b, x, y, width, height) {
  context.strokeStyle = b.strong;
  context.lineWidth = 2;
  context.strokeRect(x, y, width, height);
}

/** The playhead: a line, with its handle at the axis `handle` px down. Live it is not drawn. */
export function drawPlayhead(context, b, g, time, height, { handle = 0, live = false } = {}) {
  if (live || time < g.from || time > g.to) return;
  const x = X(g, time);
  context.fillStyle = b.strong;
  context.fillRect(x - 0.75, handle ? handle - 4 : 0, 1.5, height);
  if (!handle) return;
  context.beginPath();
  context.moveTo(x - 5, handle - 8);
  context.lineTo(x + 5, handle - 8);
  context.lineTo(x + 5, handle - 1);
  context.lineTo(x, handle + 4);
  context.lineTo(x - 5, handle - 1);
  context.fill();
}
