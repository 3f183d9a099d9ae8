// Draws the timeline's lanes: of each request its arrival, waits, chunks, decoding and end.

import { nameOf } from "./history.js";
import { fitted } from "./paint.js";
import { waitsOf } from "./timeline_data.js";
import { band, clip, drawPlayhead, hatched, outline, widthOf, X } from "./timeline_paint.js";
import { NARROW } from "./timeline_steps.js";
import { endKind, endWord, placeOf, shortWords, waitWords } from "./timeline_words.js";

export const LANE = 22;

/** The lanes from `top` px on. `find(rid)` gives a record; `latest` is the newest moment. */
export function drawLanes(context, b, g, { index, lanes, top, height, latest, find, chosen, step, playhead, live, knobs, found }) {
  context.clearRect(0, 0, g.left + g.width + 20, height);
  const first = Math.max(0, Math.floor(top / LANE));
  const last = Math.min(lanes.length - 1, Math.ceil((top + height) / LANE));
  laneRules(context, b, g, height, first, last, top);
  const steps = index.indexAfter(g.to) - index.indexAfter(g.from) + 1;
  const whole = steps * NARROW <= g.width;
  const dim = record => (found && !nameOf(record).toLowerCase().includes(found) ? 0.4 : 1);
  const shown = lanes.slice(first, last + 1).map((lane, i) => ({ lane, y: (first + i) * LANE - top, alpha: dim(lane.record) }));
  for (const { lane, y, alpha } of shown) {
    context.globalAlpha = alpha;
    laneName(context, b, g, lane.record, y, lane.record.rid === chosen);
  }
  context.globalAlpha = 1;
  clip(context, g, height);
  if (step) band(context, b, g, step.from, step.sampled, 0, height);
  for (const { lane, y, alpha } of shown) {
    context.globalAlpha = alpha;
    drawLane(context, b, g, lane, y, { index, whole, latest, find });
    context.globalAlpha = 1;
    if (lane.record.rid === chosen) outline(context, b, g.left - 1, y + 2, g.width + 2, LANE - 4);
  }
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
  const right = g.left - 10;
  const room = g.left - 16;
  const head = fitted(context, `600 12px ${b.ui}`, place, room);
  const tail = fitted(context, `12px ${b.ui}`, rest.trim(), room - head.width - 5);
  context.textAlign = "right";
  context.textBaseline = "middle";
  context.fillStyle = b.text2;
  if (tail.text) context.fillText(tail.text, right, y + LANE / 2);
  context.font = `600 12px ${b.ui}`;
  context.fillStyle = chosen ? b.strong : b.text;
  context.fillText(head.text, tail.text ? right - tail.width - 4 : right, y + LANE / 2);
}

function drawLane(context, b, g, lane, y, { index, whole, latest, find }) {
  const { record, pieces } = lane;
  const middle = y + LANE / 2;
  for (const wait of waitsOf(lane, latest)) {
    if (wait.to >= g.from && wait.from <= g.to) waiting(context, b, g, wait, middle, find, lane);
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
  const font = `11px ${b.ui}`;
  context.font = font;
  const forms = [waitWords(wait, find), shortWords(wait)];
  const words = forms.find(form => form && widthOf(context, font, form) + 14 <= to - from);
  const wide = words ? widthOf(context, font, words) : 0;
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
    context.fillStyle = b.forced;
    context.fillRect(x0, y + 6, wide, LANE - 13);
    return;
  }
  hatched(context, b, x0, y + 4, wide, LANE - 8);
  const words = String(piece.tokens);
  const size = widthOf(context, `11px ${b.ui}`, words);
  const from = Math.max(x0, g.left);
  const seen = Math.min(x0 + wide, g.left + g.width) - from;
  if (size + 8 > seen) return;
  const centre = from + seen / 2;
  context.fillStyle = b.ground;
  context.fillRect(centre - size / 2 - 2, y + 5, size + 4, LANE - 10);
  context.fillStyle = b.text;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(words, centre, y + LANE / 2 + 0.5);
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

/** Below 3 px a step: one bar, a little thinner, as the gaps between its pieces are in it. Runs within a pixel are one. */
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
  const kind = endKind(record.reason);
  if (kind === "finished") {
    context.fillStyle = b.strong;
    context.fillRect(x - 1, y + 4, 2.5, LANE - 8);
    return;
  }
  const word = endWord(record.reason);
  cross(context, kind === "aborted" ? b.strong : b.trouble, x + 4, y + LANE / 2);
  if (widthOf(context, `11px ${b.ui}`, word) + 18 > g.left + g.width - x) return;
  context.fillStyle = b.text2;
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillText(word, x + 13, y + LANE / 2);
}
