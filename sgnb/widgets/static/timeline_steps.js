// Draws the timeline's axis and steps: their tokens, and when each was planned, computed and sampled.

import { columnsOf, ticksOf } from "./timeline_data.js";
import { band, clip, drawPlayhead, hatched, label, outline, widthOf, X } from "./timeline_paint.js";
import { knobWords } from "./timeline_words.js";
import { trans } from "./trans.js";

export const ROWS = { axis: 22, step: 28, stepHeight: 19, tokens: 54, tokensHeight: 42, schedule: 104, forward: 118, sample: 131, phase: 9, height: 146 };
export const NARROW = 3; // px a step: below it pieces join

/** Axis, steps, tokens, phases. `marks` of what is chosen: {step, playhead}. */
export function drawSteps(context, b, g, { index, knobs, say, chosen, playhead, live }) {
  const height = ROWS.height;
  context.clearRect(0, 0, g.left + g.width + 20, height);
  grid(context, b, g, height, say);
  label(context, b, g, trans.__("step"), ROWS.step + ROWS.stepHeight / 2, { bold: true, dim: false });
  label(context, b, g, trans.__("tokens (√)"), ROWS.tokens + ROWS.tokensHeight / 2);
  const phases = { schedule: trans.__("schedule"), forward: trans.__("forward"), sample: trans.__("sample") };
  for (const [name, words] of Object.entries(phases)) label(context, b, g, words, ROWS[name] + ROWS.phase / 2);
  clip(context, g, height);
  if (chosen) band(context, b, g, chosen.from, chosen.sampled, ROWS.axis, height);
  const first = index.indexAfter(g.from);
  const last = index.indexAfter(g.to);
  const count = last - first + 1;
  const scale = Math.sqrt(Math.max(4, mostTokens(index, first, last)));
  if (count * NARROW > g.width) joinedSteps(context, b, g, index, scale);
  else wholeSteps(context, b, g, index.steps.slice(first, last + 1), scale, chosen);
  for (const knob of knobs) knobLine(context, b, g, knob, height);
  context.restore();
  drawPlayhead(context, b, g, playhead, height, { handle: ROWS.axis, live });
}

function mostTokens(index, first, last) {
  let most = 0;
  for (let i = first; i <= last && i < index.steps.length; i++) most = Math.max(most, index.steps[i].prefill + index.steps[i].decode);
  return most;
}

function grid(context, b, g, height, say) {
  const { step, times, after } = ticksOf(g.from, g.to, g.width);
  context.strokeStyle = b.line;
  context.lineWidth = 1;
  context.font = `12px ${b.ui}`;
  context.fillStyle = b.text2;
  context.textBaseline = "middle";
  context.textAlign = "left";
  let end = -Infinity;
  times.forEach((tick, i) => {
    const x = Math.round(X(g, tick)) + 0.5;
    context.beginPath();
    context.moveTo(x, ROWS.axis - 4);
    context.lineTo(x, height);
    context.stroke();
    const text = i === 0 ? say(tick, step) : after[i];
    const wide = context.measureText(text).width;
    const at = Math.min(Math.max(g.left - 20, x - wide / 2), g.left + g.width - wide);
    if (at < end + 8) return;
    context.fillText(text, at, 9);
    end = at + wide;
  });
}

/** Each step by itself. One colour after the other: a canvas is quick while its brush stays. */
function wholeSteps(context, b, g, steps, scale, chosen) {
  const foot = ROWS.tokens + ROWS.tokensHeight;
  const shapes = steps.map(step => {
    const x0 = X(g, step.from);
    const x1 = Math.max(x0 + 1, X(g, step.sampled));
    const all = step.prefill + step.decode;
    const high = all ? Math.max(2, (Math.sqrt(all) / scale) * ROWS.tokensHeight) : 0;
    const cut = !step.decode ? 1 : step.prefill ? 0.46 : 0;
    const low = step.decode ? Math.max(2, (high * step.decode) / all) : 0;
    return { step, x0, wide: Math.max(1, x1 - x0 - (x1 - x0 > 3 ? 1 : 0.4)), high, low, cut: cut * ROWS.stepHeight, computed: X(g, step.computed) };
  });
  context.fillStyle = b.decode;
  for (const { step, x0, wide, low, cut } of shapes) {
    if (!step.decode) continue;
    context.fillRect(x0, ROWS.step + cut, wide, ROWS.stepHeight - cut);
    context.fillRect(x0, foot - low, wide, low);
  }
  for (const { step, x0, wide, high, low, cut } of shapes) {
    if (!step.prefill) continue;
    hatched(context, b, x0, ROWS.step, wide, cut);
    hatched(context, b, x0, foot - high, wide, Math.max(2, high - low));
  }
  context.fillStyle = b.text;
  for (const { step, computed } of shapes) {
    const planned = X(g, step.planFrom);
    context.fillRect(planned, ROWS.schedule, Math.max(1.2, X(g, step.time) - planned), ROWS.phase);
    context.fillRect(computed, ROWS.sample, Math.max(1.2, X(g, step.sampled) - computed), ROWS.phase);
  }
  context.fillStyle = b.grey;
  context.globalAlpha = 0.8;
  for (const { x0, wide, computed } of shapes) context.fillRect(x0, ROWS.forward, Math.max(0.8, computed - x0 - (wide > 3 ? 0.6 : 0)), ROWS.phase);
  context.globalAlpha = 1;
  const picked = chosen && shapes.find(({ step }) => step.step === chosen.step);
  if (picked) outline(context, b, picked.x0 - 1, ROWS.step - 1, picked.wide + 2, ROWS.stepHeight + 2);
}

/** Steps narrower than 3 px: a column is the mean of its steps, and columns that look alike are one box. */
function joinedSteps(context, b, g, index, scale) {
  const runs = runsOf(columnsOf(index, g.from, g.to, g.width, 2), scale);
  const foot = ROWS.tokens + ROWS.tokensHeight;
  context.fillStyle = b.decode;
  for (const { x, wide, cut, low } of runs) {
    if (cut < 1) context.fillRect(g.left + x, ROWS.step + cut * ROWS.stepHeight, wide, (1 - cut) * ROWS.stepHeight);
    context.fillRect(g.left + x, foot - low, wide, low);
  }
  context.fillStyle = b.prefillThin;
  for (const { x, wide, cut, high, low } of runs) {
    if (!cut) continue;
    context.fillRect(g.left + x, ROWS.step, wide, cut * ROWS.stepHeight);
    context.fillRect(g.left + x, foot - high, wide, high - low);
  }
  context.globalAlpha = 0.8;
  context.fillStyle = b.grey;
  for (const { x, wide } of runs) context.fillRect(g.left + x, ROWS.forward, wide, ROWS.phase);
  context.globalAlpha = 0.18;
  context.fillStyle = b.text;
  for (const { x, wide } of runs) {
    context.fillRect(g.left + x, ROWS.schedule, wide, ROWS.phase);
    context.fillRect(g.left + x, ROWS.sample, wide, ROWS.phase);
  }
  context.globalAlpha = 1;
}

/** Columns as boxes {x, wide, cut, high, low}: the share of prefill in the step's row, and heights by the root of tokens. */
export function runsOf(columns, scale) {
  const runs = [];
  for (const { x, end, prefill, decode } of columns) {
    const all = prefill + decode;
    const cut = prefill && decode ? Math.max(0.15, Math.min(0.8, Math.sqrt(prefill / all))) : prefill ? 1 : 0;
    const high = Math.max(1, (Math.sqrt(all) / scale) * ROWS.tokensHeight);
    const low = (high * decode) / (all || 1);
    const last = runs.at(-1);
    const alike = last && x - (last.x + last.wide) < 0.5 && last.cut === cut && Math.abs(last.high - high) < 0.5 && Math.abs(last.low - low) < 0.5;
    if (alike) last.wide = Math.max(last.wide, end - last.x);
    else runs.push({ x, wide: Math.max(1, end - x), cut, high, low });
  }
  return runs;
}

function knobLine(context, b, g, knob, height) {
  const x = Math.round(X(g, knob.time)) + 0.5;
  context.strokeStyle = b.text;
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(x, ROWS.axis - 4);
  context.lineTo(x, height);
  context.stroke();
  const words = knobWords(knob).join(", ");
  const wide = widthOf(context, `11px ${b.ui}`, words) + 8;
  const at = x + wide > g.left + g.width ? x - wide : x;
  context.fillStyle = b.ground;
  context.fillRect(at + 1, ROWS.tokens - 3, wide, 14);
  context.fillStyle = b.text;
  context.textAlign = "left";
  context.textBaseline = "top";
  context.fillText(words, at + 4, ROWS.tokens - 2);
}
