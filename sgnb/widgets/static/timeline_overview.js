// Draws the timeline's overview: tokens a second and KV used over the whole time, with the window in it.

import { ratesOf } from "./timeline_data.js";
import { clip, label, X } from "./timeline_paint.js";
import { trans } from "./trans.js";

export const OVERVIEW = { top: 4, bars: 40, height: 64 };

/** Tokens a second and KV used over the whole time that is drawn, with the window in it; `c`: brushes. */
export function drawOverview(context, c, g, { index, figures, window, slots, ends }) {
  const { top, bars, height } = OVERVIEW;
  context.clearRect(0, 0, g.left + g.width + 20, height);
  context.fillStyle = c.soft;
  context.globalAlpha = 0.5;
  context.fillRect(g.left, top, g.width, bars);
  context.globalAlpha = 1;
  const each = 4;
  const { prefill, decode } = ratesOf(index, g.from, g.to, Math.max(1, Math.floor(g.width / each)));
  const boxes = barsOf(prefill, decode, bars - 2);
  const foot = top + bars;
  context.fillStyle = c.decode;
  boxes.forEach(({ low }, i) => low && context.fillRect(g.left + i * each, foot - low, each - 1, low));
  context.fillStyle = c.prefillThin;
  boxes.forEach(({ high, low }, i) => high > low && context.fillRect(g.left + i * each, foot - high, each - 1, high - low));
  clip(context, g, height);
  context.strokeStyle = c.locked;
  context.lineWidth = 1.5;
  context.beginPath();
  let drawn = false;
  for (const figure of figures) {
    const y = top + bars - (bars - 3) * Math.min(1, ((figure.num_used_tokens ?? 0) + (figure.num_cached_tokens ?? 0)) / (slots || 1));
    if (drawn) context.lineTo(X(g, figure.time), y);
    else context.moveTo(X(g, figure.time), y);
    drawn = true;
  }
  context.stroke();
  const x0 = X(g, window.from);
  const x1 = Math.max(x0 + 6, X(g, window.to));
  context.fillStyle = c.choice;
  context.globalAlpha = 0.14;
  context.fillRect(x0, top - 2, x1 - x0, bars + 4);
  context.globalAlpha = 1;
  context.strokeStyle = c.choice;
  context.strokeRect(x0 + 0.75, top - 1.25, x1 - x0 - 1.5, bars + 2.5);
  if (window.playhead !== null) {
    context.fillStyle = c.strong;
    context.fillRect(X(g, window.playhead) - 0.75, top - 2, 1.5, bars + 4);
  }
  context.restore();
  context.font = `11px ${c.ui}`;
  context.fillStyle = c.text2;
  context.textBaseline = "top";
  const shown = g.width < 420 ? 3 : 7;
  for (let i = 0; i < shown; i++) {
    const part = i / (shown - 1);
    const time = g.from + part * (g.to - g.from);
    context.textAlign = i === 0 ? "left" : i === shown - 1 ? "right" : "center";
    context.fillText(ends(time, i === shown - 1), g.left + part * g.width, top + bars + 5);
  }
  overviewKey(context, c, g, top);
}

/** Heights in px for each bar: of all its tokens, and of the part that was decoded. The whole bar is on a square root. */
export function barsOf(prefill, decode, room) {
  const all = prefill.map((rate, i) => Math.sqrt(rate + decode[i]));
  const most = all.reduce((high, rate) => Math.max(high, rate), 1);
  return Array.from(all, (rate, i) => {
    const high = rate ? Math.max(1, (rate / most) * room) : 0;
    return { high, low: rate ? (high * decode[i]) / (prefill[i] + decode[i]) : 0 };
  });
}

function overviewKey(context, c, g, top) {
  if (g.left > 100) {
    context.fillStyle = c.decode;
    context.fillRect(g.left - 102, top + 11, 8, 5);
    context.fillStyle = c.prefillThin;
    context.fillRect(g.left - 102, top + 6, 8, 5);
  }
  label(context, c, g, g.left > 100 ? trans.__("tokens/s (√)") : trans.__("tokens/s"), top + 11);
  if (g.left > 100) {
    context.strokeStyle = c.locked;
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(g.left - 102, top + 34);
    context.lineTo(g.left - 94, top + 26);
    context.stroke();
  }
  label(context, c, g, trans.__("KV used"), top + 30);
}
