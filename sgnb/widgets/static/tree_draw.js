// Drawing of the radix tree on a canvas: icicle and node-link form. Reads a layout of tree_data.js; knows no events.
// `paint` is made by `paintOf` for each picture: context, colours c, the moment `time`, what is selected, texts.

import { count, counted, oneLine, seconds } from "./format.js";
import { css, fitted, hatch, mix, over, rgba } from "./paint.js";
import { trans } from "./trans.js";
import { ageShare, tickStep } from "./tree_data.js";

export const AXIS = 20;
const TEXT_WIDTH = 52;
const EDGE_SECONDS = 0.6;

/** What all blocks of a picture need. `more`: path, hits, rid, next, scale, rowHeight, textOf. */
export function paintOf(context, c, time, more) {
  const ratio = window.devicePixelRatio;
  let made = brushes.get(c);
  if (made?.ratio !== ratio) brushes.set(c, (made = { ratio, ...brushesOf(context, c) }));
  const quiet = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const size = trans.__("%1 tok", "%1"); // looked up once, filled for each node
  return { context, c, time, quiet, sizeOf: node => size.replace("%1", count(node.length)), ...made, ...more };
}

const brushes = new WeakMap(); // colours → what is made of them, once a theme

function brushesOf(context, c) {
  const ground = over(rgba(c.ground), [255, 255, 255]);
  const evictable = over(rgba(c.evictable), ground);
  const shades = Array.from({ length: 33 }, (_, step) => css(mix(evictable, ground, 0.1 + (0.7 * step) / 32)));
  return { shades, prefill: hatch(context, c.prefill, c.prefillEdge) };
}

/** Write `text`, cut to `room` px. */
function write(context, font, text, x, y, room) {
  context.fillText(fitted(context, font, text, room).text, x, y);
}

/** One block of the icicle; true where its outline has to be cleared soon. */
export function drawBlock(paint, block, x, y, w, h, inner) {
  const { context, c, hits } = paint;
  context.globalAlpha = hits && !(block.kind === "node" && hits.has(block.id)) ? 0.4 : 1;
  context.textBaseline = "middle";
  const head = Math.min(Math.max(y, AXIS), y + h - paint.rowHeight); // the words stay in sight while a block is
  const middle = head + paint.rowHeight / 2 - 0.5;
  let edge = false;
  if (block.kind === "node") edge = drawNode(paint, block.node, x, y, w, h, middle);
  else if (block.kind === "flight") drawFlight(paint, block, x, y, h);
  else if (block.kind === "gone") drawGone(paint, block.node, x, y, w, h, middle);
  else {
    context.fillStyle = c.text2;
    context.fillRect(x, y + 2, 1, h - 4);
    const { nodes, prefixes } = block;
    const tokens = count(block.tokens);
    const what = block.id
      ? trans._n("%2 more node, %3 tok ▸", "%2 more nodes, %3 tok ▸", nodes, count(nodes), tokens)
      : trans._n("%2 more prefix, %3, %4 tok ▸", "%2 more prefixes, %3, %4 tok ▸", prefixes, count(prefixes), counted.nodes(nodes), tokens);
    write(context, `11px ${c.ui}`, what, x + 6, middle, inner - x - 8);
  }
  context.globalAlpha = 1;
  return edge;
}

function drawFlight({ context, c, scale, prefill }, block, x, y, h) {
  const cut = block.prefill * scale;
  context.fillStyle = prefill;
  if (cut) context.fillRect(x, y, Math.max(1, cut - 1), h - 1);
  context.strokeStyle = c.prefillEdge;
  context.lineWidth = 1;
  if (cut > 3) context.strokeRect(x + 0.5, y + 0.5, cut - 2, h - 2);
  context.fillStyle = c.decode;
  if (block.decode) context.fillRect(x + cut, y, Math.max(2, block.decode * scale), h - 1);
}

function drawGone({ context, c, time, textOf, sizeOf, rowHeight }, node, x, y, w, h, middle) {
  context.strokeStyle = c.trouble;
  context.lineWidth = 1;
  context.setLineDash([4, 2]);
  context.strokeRect(x + 0.5, y + 0.5, Math.max(6, w - 1), h - 2);
  context.setLineDash([]);
  if (w < TEXT_WIDTH) return;
  context.fillStyle = c.troubleText;
  const text = textOf(node);
  write(context, `${rowHeight < 17 ? 11 : 12}px ${c.code}`, `−${seconds(time - node.time)}: ${text ? oneLine(text, 60) : sizeOf(node)}`, x + 5, middle, w - 10);
}

function drawNode(paint, node, x, y, w, h, middle) {
  const { context, c, time } = paint;
  const locked = node.locks > 0;
  const drawn = Math.max(1, w - 1);
  context.fillStyle = locked ? c.lockedFill : paint.shades[Math.round(32 * ageShare(time - node.used))];
  context.fillRect(x, y, drawn, h - 1);
  const box = colour => {
    context.strokeStyle = colour;
    context.lineWidth = 1;
    context.strokeRect(x + 0.5, y + 0.5, drawn - 1, h - 2);
  };
  if (c.forcedColors) box(c.text);
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
      context.textAlign = "left";
      context.fillText(String(node.locks), left, middle);
      left += 7 * String(node.locks).length + 4;
    }
  }
  const next = paint.next.get(node.id);
  const right = x + drawn - (next ? 20 : 3);
  if (drawn >= TEXT_WIDTH) {
    const text = paint.textOf(node);
    const start = Math.max(left, 4);
    context.textAlign = "left";
    if (text || !locked) {
      context.fillStyle = text ? c.text : c.text2;
      const font = text ? `${paint.rowHeight < 17 ? 11 : 12}px ${c.code}` : `11px ${c.ui}`;
      write(context, font, text ? `${paint.counted ? `${count(node.length)} ` : ""}${oneLine(text, 160)}` : paint.sizeOf(node), start, middle, right - start);
    }
  }
  if (next) drawNext(context, Math.min(x + drawn + 8, Math.max(x + 9, x + drawn - 11)), middle, next, c);
  const edge = !paint.quiet && node.edge && time - node.edge < EDGE_SECONDS;
  if (edge) box(c.choice);
  return edge;
}

/** Outlines of what is selected or found. */
export function drawSelected({ context, c, path, hits, rid, scale, rowHeight }, blocks, from, top) {
  context.strokeStyle = c.strong;
  context.lineWidth = 2;
  for (const block of blocks) {
    const chosen = block.kind === "node" ? path.has(block.id) || hits?.has(block.id) : block.kind === "flight" && block.id === rid;
    if (chosen) context.strokeRect((block.start - from) * scale + 1, AXIS + block.row * rowHeight - top + 1, Math.max(2, block.length * scale - 2), block.rows * rowHeight - 3);
  }
}

export function drawAxis({ context, c, scale }, from, width) {
  const step = tickStep(scale);
  context.font = `11px ${c.ui}`;
  context.fillStyle = c.text2;
  context.textBaseline = "alphabetic";
  for (let token = Math.ceil(from / step) * step; ; token += step) {
    const x = (token - from) * scale;
    if (x > width - 8) break;
    context.textAlign = x < 30 ? "left" : "center";
    context.fillText(token === 0 ? trans.__("token 0") : count(token), x, 12);
    context.fillRect(Math.round(x), 15, 1, 4);
  }
  context.textAlign = "left";
}

/** The node-link form; returns the places of its boxes. */
export function drawLinks(paint, { boxes, left }, width, height, top) {
  const { context, c, path, hits } = paint;
  const column = Math.max(90, width / Math.max(1, ...boxes.map(box => box.depth + 1)));
  const X = box => box.depth * column + 1;
  const Y = box => box.row * LINK_ROW - top + 4;
  const w = Math.min(column - 24, 260);
  const places = [];
  context.strokeStyle = c.text2;
  context.lineWidth = 1;
  context.beginPath();
  for (const box of boxes) {
    if (!box.parent) continue;
    context.moveTo(X(box.parent) + w, Y(box.parent) + 10);
    context.lineTo(X(box), Y(box) + 10);
  }
  context.stroke();
  context.textBaseline = "middle";
  for (const box of boxes) {
    const { node } = box;
    const x = X(box);
    const y = Y(box);
    if (y < -LINK_ROW || y > height) continue;
    context.globalAlpha = hits && !hits.has(box.id) ? 0.4 : 1;
    drawNode(paint, node, x, y, w + 1, 21, y + 10);
    context.globalAlpha = 1;
    if (path.has(box.id) || hits?.has(box.id)) {
      context.strokeStyle = c.strong;
      context.lineWidth = 2;
      context.strokeRect(x + 1, y + 1, w - 2, 18);
    }
    places.push({ block: { kind: "node", id: box.id, node }, x, y, w, h: 20 });
  }
  if (left > 0) {
    context.font = `11px ${c.ui}`;
    context.fillStyle = c.text2;
    context.fillText(trans._n("%2 node not drawn. Select a node to see its tree.", "%2 nodes not drawn. Select a node to see its tree.", left, count(left)), 4, height - 8);
  }
  return places;
}

export const LINK_ROW = 26;

function drawLock(context, x, middle, colour) {
  context.fillStyle = context.strokeStyle = colour;
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
