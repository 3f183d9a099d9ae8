// Draws the batch timeline on canvases: overview, axis and steps, lanes. Reads an index and a window; changes nothing.
//
// `g` is the geometry: {left, width, from, to}: the plot begins at `left` px and shows [from, to] over `width` px.

import { nameOf } from "./fold.js";
import { fit, hatch } from "./paint.js";
import { columnsOf, ratesOf, ticksOf, waitsOf } from "./timeline_data.js";
import { endWord, knobWords, placeOf, shortWords, waitWords } from "./timeline_words.js";

export const LANE = 22;
export const OVERVIEW = { top: 4, bars: 40, height: 64 };
export const ROWS = { axis: 22, step: 28, stepHeight: 19, tokens: 54, tokensHeight: 42, schedule: 104, forward: 118, sample: 131, phase: 9, height: 146 };
const NARROW = 3; // px a step: below it pieces join

const X = (g, time) => g.left + ((time - g.from) / (g.to - g.from)) * g.width;

/** Brushes for one canvas and theme. */
export function brushes(context, c) {
  const forced = c.forcedColors;
  return {
    ...c,
    prefillFill: hatch(context, c.prefill, c.prefillEdge),
    line: forced ? c.text : c.rule,
    grey: c.text2,
  };
}

function clip(context, g, height) {
  context.save();
  context.beginPath();
  context.rect(g.left - 8, 0, g.width + 16, height);
  context.clip();
}

/** A label in the gutter, right-aligned before the plot. */
function label(context, c, g, text, y, { bold = false, dim = true } = {}) {
  context.font = `${bold ? "600 " : ""}12px ${c.ui}`;
  context.fillStyle = dim ? c.text2 : c.text;
  context.textAlign = "right";
  context.textBaseline = "middle";
  context.fillText(fit(context, text, g.left - 18), g.left - 10, y);
}

// ---------------------------------------------------------------- overview

/** Tokens a second and KV used over the whole time that is drawn, with the window in it. */
export function drawOverview(context, c, g, { index, figures, window, slots, ends }) {
  const { top, bars, height } = OVERVIEW;
  context.clearRect(0, 0, g.left + g.width + 20, height);
  context.fillStyle = c.soft;
  context.globalAlpha = 0.5;
  context.fillRect(g.left, top, g.width, bars);
  context.globalAlpha = 1;
  const each = 4;
  const rates = ratesOf(index, g.from, g.to, Math.max(1, Math.floor(g.width / each))).map(Math.sqrt);
  const most = Math.max(1, ...rates);
  context.fillStyle = c.decode;
  rates.forEach((rate, i) => {
    if (rate) context.fillRect(g.left + i * each, top + bars - Math.max(1, (rate / most) * (bars - 2)), each - 1, Math.max(1, (rate / most) * (bars - 2)));
  });
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
  const ticks = 7;
  const shown = g.width < 420 ? 3 : ticks;
  for (let i = 0; i < shown; i++) {
    const part = i / (shown - 1);
    const time = g.from + part * (g.to - g.from);
    context.textAlign = i === 0 ? "left" : i === shown - 1 ? "right" : "center";
    context.fillText(ends(time, i === shown - 1), g.left + part * g.width, top + bars + 5);
  }
  overviewKey(context, c, g, top);
}

function overviewKey(context, c, g, top) {
  context.fillStyle = c.decode;
  if (g.left > 100) context.fillRect(g.left - 102, top + 7, 8, 8);
  label(context, c, g, "tokens/s (√)", top + 11);
  if (g.left > 100) {
    context.strokeStyle = c.locked;
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(g.left - 102, top + 34);
    context.lineTo(g.left - 94, top + 26);
    context.stroke();
  }
  label(context, c, g, "KV used", top + 30);
}

// ---------------------------------------------------------------- axis and steps

/** Axis, steps, tokens, phases. `marks` of what is chosen: {step, playhead}. */
export function drawSteps(context, b, g, { index, knobs, say, chosen, playhead, live }) {
  const height = ROWS.height;
  context.clearRect(0, 0, g.left + g.width + 20, height);
  grid(context, b, g, height, say);
  label(context, b, g, "step", ROWS.step + ROWS.stepHeight / 2, { bold: true, dim: false });
  label(context, b, g, "tokens (√)", ROWS.tokens + ROWS.tokensHeight / 2);
  for (const name of ["schedule", "forward", "sample"]) label(context, b, g, name, ROWS[name] + ROWS.phase / 2);
  clip(context, g, height);
  if (chosen) band(context, b, g, chosen.from, chosen.sampled, ROWS.axis, height);
  const first = index.indexAfter(g.from);
  const last = index.indexAfter(g.to);
  const count = last - first + 1;
  const scale = Math.sqrt(Math.max(4, mostTokens(index, first, last)));
  if (count * NARROW > g.width) joinedSteps(context, b, g, index, scale);
  else for (let i = first; i <= last && i < index.steps.length; i++) wholeStep(context, b, g, index.steps[i], scale, chosen);
  for (const knob of knobs) knobLine(context, b, g, knob, height);
  context.restore();
  drawPlayhead(context, b, g, playhead, height, { handle: true, live });
}

function mostTokens(index, first, last) {
  let most = 0;
  for (let i = first; i <= last && i < index.steps.length; i++) most = Math.max(most, index.steps[i].prefill + index.steps[i].decode);
  return most;
}

function grid(context, b, g, height, say) {
  const { step, times } = ticksOf(g.from, g.to, g.width);
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
    const text = i === 0 ? say(tick, step) : `+${tickWords(tick - times[0])}`;
    const wide = context.measureText(text).width;
    const at = Math.min(Math.max(g.left - 20, x - wide / 2), g.left + g.width - wide);
    if (at < end + 8) return;
    context.fillText(text, at, 9);
    end = at + wide;
  });
}

function tickWords(value) {
  return value < 0.9995 ? `${Number((value * 1000).toPrecision(4))} ms` : `${Number(value.toPrecision(4))} s`;
}

function band(context, b, g, from, to, top, height) {
  context.fillStyle = b.choice;
  context.globalAlpha = 0.13;
  context.fillRect(X(g, from), top, Math.max(1, X(g, to) - X(g, from)), height - top);
  context.globalAlpha = 1;
}

function wholeStep(context, b, g, step, scale, chosen) {
  const x0 = X(g, step.from);
  const x1 = Math.max(x0 + 1, X(g, step.sampled));
  const wide = Math.max(1, x1 - x0 - (x1 - x0 > 3 ? 1 : 0.4));
  const all = step.prefill + step.decode;
  const y = ROWS.step;
  const mixed = step.prefill && step.decode;
  const cut = !step.decode ? 1 : mixed ? 0.46 : 0;
  if (step.decode) fillBox(context, b.decode, x0, y + cut * ROWS.stepHeight, wide, (1 - cut) * ROWS.stepHeight);
  if (step.prefill) hatched(context, b, x0, y, wide, cut * ROWS.stepHeight);
  if (chosen?.step === step.step) outline(context, b, x0 - 1, y - 1, wide + 2, ROWS.stepHeight + 2);
  const high = all ? Math.max(2, (Math.sqrt(all) / scale) * ROWS.tokensHeight) : 0;
  const low = step.decode ? Math.max(2, (high * step.decode) / all) : 0;
  const foot = ROWS.tokens + ROWS.tokensHeight;
  if (step.decode) fillBox(context, b.decode, x0, foot - low, wide, low);
  if (step.prefill) hatched(context, b, x0, foot - high, wide, Math.max(2, high - low));
  const planned = X(g, step.planFrom);
  context.fillStyle = b.text;
  context.fillRect(planned, ROWS.schedule, Math.max(1.2, X(g, step.time) - planned), ROWS.phase);
  context.fillRect(X(g, step.computed), ROWS.sample, Math.max(1.2, X(g, step.sampled) - X(g, step.computed)), ROWS.phase);
  context.fillStyle = b.grey;
  context.globalAlpha = 0.8;
  context.fillRect(x0, ROWS.forward, Math.max(0.8, X(g, step.computed) - x0 - (wide > 3 ? 0.6 : 0)), ROWS.phase);
  context.globalAlpha = 1;
}

/** Steps narrower than 3 px: a column is the mean of its steps. */
function joinedSteps(context, b, g, index, scale) {
  const columns = columnsOf(index, g.from, g.to, g.width, 2);
  for (const column of columns) {
    const x = g.left + column.x;
    const wide = Math.max(1, Math.min(column.end - column.x, 4096));
    const all = column.prefill + column.decode;
    const part = all ? Math.sqrt(column.prefill / all) : 0;
    const cut = column.prefill && column.decode ? Math.max(0.15, Math.min(0.8, part)) : column.prefill ? 1 : 0;
    if (cut < 1) fillBox(context, b.decode, x, ROWS.step + cut * ROWS.stepHeight, wide, (1 - cut) * ROWS.stepHeight);
    if (cut) fillBox(context, b.prefill, x, ROWS.step, wide, cut * ROWS.stepHeight);
    const high = Math.max(1, (Math.sqrt(all) / scale) * ROWS.tokensHeight);
    const low = (high * column.decode) / (all || 1);
    const foot = ROWS.tokens + ROWS.tokensHeight;
    fillBox(context, b.decode, x, foot - low, wide, low);
    if (column.prefill) fillBox(context, b.prefill, x, foot - high, wide, high - low);
  }
  context.globalAlpha = 0.8;
  context.fillStyle = b.grey;
  for (const column of columns) context.fillRect(g.left + column.x, ROWS.forward, Math.max(1, column.end - column.x), ROWS.phase);
  context.globalAlpha = 0.35;
  context.fillStyle = b.text;
  for (const column of columns) {
    context.fillRect(g.left + column.x, ROWS.schedule, 1, ROWS.phase);
    context.fillRect(g.left + column.x, ROWS.sample, 1, ROWS.phase);
  }
  context.globalAlpha = 1;
}

function fillBox(context, colour, x, y, width, height) {
  context.fillStyle = colour;
  context.fillRect(x, y, width, height);
}

/** A prefill block: hatched, with an edge where there is room for one. */
function hatched(context, b, x, y, width, height) {
  context.fillStyle = width < 3 ? b.prefill : b.prefillFill;
  context.fillRect(x, y, width, height);
  if (width < 4) return;
  context.strokeStyle = b.prefillEdge;
  context.lineWidth = 1;
  context.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
}

function outline(context, b, x, y, width, height) {
  context.strokeStyle = b.strong;
  context.lineWidth = 2;
  context.strokeRect(x, y, width, height);
}

function knobLine(context, b, g, knob, height) {
  const x = Math.round(X(g, knob.time)) + 0.5;
  context.strokeStyle = b.text;
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(x, ROWS.axis - 4);
  context.lineTo(x, height);
  context.stroke();
  context.font = `11px ${b.ui}`;
  const words = knobWords(knob).join(", ");
  const wide = context.measureText(words).width + 8;
  const at = x + wide > g.left + g.width ? x - wide : x;
  context.fillStyle = b.ground;
  context.fillRect(at + 1, ROWS.tokens - 3, wide, 14);
  context.fillStyle = b.text;
  context.textAlign = "left";
  context.textBaseline = "top";
  context.fillText(words, at + 4, ROWS.tokens - 2);
}

/** The playhead: a line, with its handle on the axis. Live it is not drawn. */
export function drawPlayhead(context, b, g, time, height, { handle = false, live = false } = {}) {
  if (live || time < g.from || time > g.to) return;
  const x = X(g, time);
  context.fillStyle = b.strong;
  context.fillRect(x - 0.75, handle ? ROWS.axis - 4 : 0, 1.5, height);
  if (!handle) return;
  context.beginPath();
  context.moveTo(x - 5, ROWS.axis - 8);
  context.lineTo(x + 5, ROWS.axis - 8);
  context.lineTo(x + 5, ROWS.axis - 1);
  context.lineTo(x, ROWS.axis + 4);
  context.lineTo(x - 5, ROWS.axis - 1);
  context.fill();
}

// ---------------------------------------------------------------- lanes

/** The lanes from `top` px on. `find(rid)` gives a record; `latest` is the newest moment. */
export function drawLanes(context, b, g, { index, lanes, top, height, latest, find, chosen, step, playhead, live, knobs, found }) {
  context.clearRect(0, 0, g.left + g.width + 20, height);
  const first = Math.max(0, Math.floor(top / LANE));
  const last = Math.min(lanes.length - 1, Math.ceil((top + height) / LANE));
  laneRules(context, b, g, height, first, last, top);
  const steps = index.indexAfter(g.to) - index.indexAfter(g.from) + 1;
  const whole = steps * NARROW <= g.width;
  for (let i = first; i <= last; i++) {
    const y = i * LANE - top;
    const lane = lanes[i];
    const name = nameOf(lane.record);
    context.globalAlpha = found && !name.includes(found) ? 0.4 : 1;
    laneName(context, b, g, lane.record, y, lane.record.rid === chosen);
    clip(context, g, height);
    if (i === first && step) band(context, b, g, step.from, step.sampled, 0, height);
    drawLane(context, b, g, lane, y, { index, whole, latest, find });
    context.restore();
    if (lane.record.rid === chosen) outline(context, b, g.left - 1, y + 2, g.width + 2, LANE - 4);
    context.globalAlpha = 1;
  }
  clip(context, g, height);
  for (const knob of knobs) {
    context.fillStyle = b.text;
    context.fillRect(Math.round(X(g, knob.time)), 0, 1, height);
  }
  context.restore();
  drawPlayhead(context, b, g, playhead, height, { live });
}

function laneRules(context, b, g, height, first, last, top) {
  context.fillStyle = b.line;
  for (let i = first; i <= last; i++) context.fillRect(g.left - 6, (i + 1) * LANE - top - 1, g.width + 6, 1);
}

function laneName(context, b, g, record, y, chosen) {
  const place = placeOf(record);
  const whole = nameOf(record);
  const rest = whole.startsWith(place) ? whole.slice(place.length) : "";
  context.textAlign = "right";
  context.textBaseline = "middle";
  context.font = `12px ${b.ui}`;
  const right = g.left - 10;
  const head = `600 12px ${b.ui}`;
  const room = g.left - 16;
  context.font = head;
  const placeWidth = context.measureText(place).width;
  context.font = `12px ${b.ui}`;
  const shown = fit(context, rest.trim(), room - placeWidth - 5);
  context.fillStyle = b.text2;
  if (shown) context.fillText(shown, right, y + LANE / 2);
  const at = shown ? right - context.measureText(shown).width - 4 : right;
  context.font = head;
  context.fillStyle = chosen ? b.strong : b.text;
  context.fillText(fit(context, place, room), at, y + LANE / 2);
}

function drawLane(context, b, g, lane, y, { index, whole, latest, find }) {
  const { record, pieces } = lane;
  const middle = y + LANE / 2;
  for (const wait of waitsOf(lane, latest)) {
    if (wait.to >= g.from && wait.from <= g.to) waiting(context, b, g, wait, middle, find, lane, pieces);
  }
  let joined = null;
  for (let i = firstPiece(pieces, g.from); i < pieces.length; i++) {
    const piece = pieces[i];
    if (piece.from > g.to) break;
    if (piece.reused) notch(context, b, X(g, piece.from), y, piece, record);
    if (piece.kind === "decode") {
      if (whole) eachDecode(context, b, g, index, piece, y);
      else joined = joinDecode(context, b, g, piece, y, joined);
    } else {
      joined = null;
      block(context, b, g, piece, y);
    }
  }
  for (const turn of record.turns) {
    if (turn.end === "retracted" && turn.to >= g.from && turn.to <= g.to) {
      if (turn.why === "kv_full" || !turn.why) cross(context, b.trouble, X(g, turn.to), middle);
      else bars(context, b, X(g, turn.to), middle);
    }
  }
  if (record.finished && record.finished <= g.to + 1) ending(context, b, g, record, y);
}

/** The first piece that may reach into the window. */
function firstPiece(pieces, from) {
  let low = 0;
  let high = pieces.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (pieces[middle].to < from) low = middle + 1;
    else high = middle;
  }
  return low;
}

function waiting(context, b, g, wait, y, find, lane) {
  const x0 = X(g, wait.from);
  const x1 = X(g, wait.to);
  const back = wait.why ? 10 : 0;
  circle(context, b, x0 + back, y);
  const from = Math.max(x0 + back + 4, g.left - 6);
  const to = Math.min(x1 - (notchAt(lane, wait.to) ? 8 : 1), g.left + g.width);
  if (to - from < 3) return;
  context.font = `11px ${b.ui}`;
  const forms = [waitWords(wait, find), shortWords(wait)];
  const words = forms.find(form => form && context.measureText(form).width + 14 <= to - from);
  const wide = words ? context.measureText(words).width : 0;
  context.strokeStyle = b.text2;
  context.lineWidth = 1.5;
  context.setLineDash([1.5, 3]);
  context.beginPath();
  if (words) {
    context.moveTo(from + wide + 9, y);
    context.lineTo(to, y);
  } else {
    context.moveTo(from, y);
    context.lineTo(to, y);
  }
  context.stroke();
  context.setLineDash([]);
  if (!words) return;
  context.fillStyle = b.text2;
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillText(words, from + 4, y);
}

function notchAt({ pieces }, time) {
  return pieces.some(piece => piece.reused && Math.abs(piece.from - time) < 1e-6);
}

function circle(context, b, x, y) {
  context.strokeStyle = b.text2;
  context.lineWidth = 1.5;
  context.beginPath();
  context.arc(x, y, 2.6, 0, 2 * Math.PI);
  context.stroke();
}

function notch(context, b, x, y, piece, record) {
  const wide = 4 + Math.round(5 * Math.min(1, piece.reused / (record.prompt || piece.reused)));
  context.fillStyle = b.reused;
  context.fillRect(x - wide, y + 5, wide, LANE - 10);
  context.strokeStyle = b.reusedEdge;
  context.lineWidth = 1;
  context.strokeRect(x - wide + 0.5, y + 5.5, wide - 1, LANE - 11);
}

function block(context, b, g, piece, y) {
  const x0 = X(g, piece.from);
  const wide = Math.max(1.5, X(g, piece.to) - x0 - 0.5);
  if (piece.kind === "score") {
    fillBox(context, b.forced, x0, y + 6, wide, LANE - 13);
    return;
  }
  hatched(context, b, x0, y + 4, wide, LANE - 8);
  context.font = `11px ${b.ui}`;
  const words = String(piece.tokens);
  const size = context.measureText(words).width;
  if (size + 8 > wide) return;
  context.fillStyle = b.ground;
  context.fillRect(x0 + wide / 2 - size / 2 - 2, y + 5, size + 4, LANE - 10);
  context.fillStyle = b.text;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(words, x0 + wide / 2, y + LANE / 2 + 0.5);
}

function eachDecode(context, b, g, index, piece, y) {
  context.fillStyle = b.decode;
  const first = Math.max(piece.first, index.base + index.indexAfter(g.from));
  for (let place = first; place <= piece.last; place++) {
    const step = index.at(place);
    if (!step) continue;
    if (step.from > g.to) break;
    const x0 = X(g, step.from);
    const wide = X(g, step.sampled) - x0;
    context.fillRect(x0, y + 7, Math.max(1, wide - (wide > 3 ? 1 : 0.4)), LANE - 14);
  }
}

/** Below 3 px a step: one bar, as high as the share of the time that is computed. Runs within a pixel are one. */
function joinDecode(context, b, g, piece, y, before_) {
  const x0 = before_ && X(g, piece.from) - before_ < 1.5 ? before_ : X(g, piece.from);
  const x1 = Math.max(x0 + 1, X(g, piece.to));
  context.fillStyle = b.decode;
  context.fillRect(Math.max(x0, g.left - 8), y + 8, Math.max(1, Math.min(x1, g.left + g.width + 8) - Math.max(x0, g.left - 8)), LANE - 16);
  return x1;
}

function cross(context, colour, x, y) {
  context.strokeStyle = colour;
  context.lineWidth = 2;
  context.beginPath();
  context.moveTo(x - 4.5, y - 4.5);
  context.lineTo(x + 4.5, y + 4.5);
  context.moveTo(x + 4.5, y - 4.5);
  context.lineTo(x - 4.5, y + 4.5);
  context.stroke();
}

function bars(context, b, x, y) {
  context.fillStyle = b.text;
  context.fillRect(x - 3, y - 5, 2, 10);
  context.fillRect(x + 1, y - 5, 2, 10);
}

function ending(context, b, g, record, y) {
  const x = X(g, record.finished);
  const word = endWord(record.reason);
  if (word.startsWith("finished")) {
    context.fillStyle = b.strong;
    context.fillRect(x - 1, y + 4, 2.5, LANE - 8);
    return;
  }
  cross(context, word === "aborted" ? b.strong : b.trouble, x + 4, y + LANE / 2);
  context.font = `11px ${b.ui}`;
  if (context.measureText(word).width + 18 > g.left + g.width - x) return;
  context.fillStyle = b.text2;
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillText(word, x + 13, y + LANE / 2);
}
