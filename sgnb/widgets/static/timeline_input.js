// Pointer and keys of the batch timeline: what is dragged, chosen, and told of under the pointer (ui.md §6). For timeline.js.
//
// `view` is the TimelineView. Its window changes through `look` and `zoomAt` alone, what is chosen through its store.

import { on } from "./dom.js";
import { count, counted } from "./format.js";
import { nameOf } from "./history.js";
import { LANE } from "./timeline_lanes.js";
import { ROWS } from "./timeline_steps.js";
import { modeWord, rowWords, stepWords, waitWords } from "./timeline_words.js";
import { trans } from "./trans.js";

const MOVED = 3; // px from which a press is a drag

/** Hear the pointer on the view's three pictures, and the scrolling of its lanes. */
export function listen(view) {
  const { store } = view;
  const top = view.top.canvas;
  const lanes = view.lanes.canvas;
  hearDrags(view, top, {
    onAxis: y => y < ROWS.axis,
    click: event => {
      const step = view.index.stepAt(timeAt(view, event, top));
      if (step) store.select({ kind: "step", id: step.step });
    },
  });
  hearDrags(view, lanes, {
    click: event => {
      const record = recordUnder(view, event);
      if (record) store.select({ kind: "request", id: record.rid });
    },
  });
  for (const canvas of [top, lanes]) on(canvas, "wheel", event => turned(view, event, canvas), { passive: false });
  on(top, "dblclick", event => store.goTo(timeAt(view, event, top)));
  on(view._scroll, "scroll", () => view.changed());
  hearOverview(view, view.overview.canvas);
}

/** The moment under the pointer, at most a little outside of the window. */
function timeAt(view, event, canvas) {
  const { left, width, from, to } = view.geometry;
  const x = event.clientX - canvas.getBoundingClientRect().left - left;
  return from + Math.max(-0.02, Math.min(1.02, x / width)) * (to - from);
}

/** A press on the axis moves the playhead, a drag elsewhere the window; `click` is what did neither. */
function hearDrags(view, canvas, { onAxis = () => false, click }) {
  let held = null;
  on(canvas, "pointerdown", event => {
    canvas.focus({ preventScroll: true });
    canvas.setPointerCapture(event.pointerId);
    const y = event.clientY - canvas.getBoundingClientRect().top;
    held = { x: event.clientX, window: view.window, axis: onAxis(y), moved: false };
    if (held.axis) view.store.goTo(timeAt(view, event, canvas));
  });
  on(canvas, "pointermove", event => {
    if (!held) return hover(view, event, canvas);
    view.tip.hide();
    if (held.axis) return view.store.goTo(timeAt(view, event, canvas));
    held.moved ||= Math.abs(event.clientX - held.x) > MOVED;
    if (!held.moved) return undefined;
    const { from, to } = held.window;
    const shift = ((held.x - event.clientX) / view.geometry.width) * (to - from);
    return view.look(from + shift, to + shift);
  });
  on(canvas, "pointerup", event => {
    if (held && !held.moved && !held.axis) click(event);
    held = null;
  });
  on(canvas, "pointercancel", () => (held = null));
  on(canvas, "pointerleave", () => view.tip.hide());
}

/** The wheel zooms, sideways it moves the window. */
function turned(view, event, canvas) {
  if (document.activeElement !== canvas || event.shiftKey) return; // the page scrolls until the chart was chosen
  event.preventDefault();
  if (Math.abs(event.deltaX) <= Math.abs(event.deltaY)) return void view.zoomAt(event.deltaY < 0 ? 0.8 : 1.25, timeAt(view, event, canvas));
  const { from, to } = view.window;
  const shift = (event.deltaX / view.geometry.width) * (to - from);
  view.look(from + shift, to + shift);
}

function hearOverview(view, canvas) {
  const seek = event => {
    const { from, to } = view.whole;
    const { left, width } = view.overviewGeometry;
    const time = from + ((event.clientX - canvas.getBoundingClientRect().left - left) / width) * (to - from);
    const span = view.window.to - view.window.from;
    view.look(time - span / 2, time + span / 2);
  };
  on(canvas, "pointerdown", event => {
    canvas.setPointerCapture(event.pointerId);
    seek(event);
  });
  on(canvas, "pointermove", event => event.buttons && seek(event));
  on(canvas, "wheel", event => {
    if (document.activeElement !== canvas) return;
    event.preventDefault();
    view.zoom(event.deltaY < 0 ? 1 : -1);
  }, { passive: false });
}

// ---------------------------------------------------------------- under the pointer

function recordUnder(view, event) {
  const y = event.clientY - view.lanes.canvas.getBoundingClientRect().top + view._scroll.scrollTop;
  return view.shownLanes?.[Math.floor(y / LANE)]?.record ?? null;
}

function hover(view, event, canvas) {
  const box = view.host.getBoundingClientRect();
  const lines = canvas === view.top.canvas ? stepTip(view, event) : laneTip(view, event);
  if (lines) view.tip.show(event.clientX - box.left, event.clientY - box.top, lines);
  else view.tip.hide();
}

function stepTip(view, event) {
  const step = view.index.stepAt(timeAt(view, event, view.top.canvas));
  return step && [trans.__("step %1, %2", count(step.step), modeWord(step.mode)), stepWords(step)];
}

function laneTip(view, event) {
  const record = recordUnder(view, event);
  if (!record) return null;
  const step = view.index.stepAt(timeAt(view, event, view.lanes.canvas));
  const row = step?.event.rows.find(one => one.rid === record.rid);
  const lines = [nameOf(record)];
  if (row) lines.push(trans.__("step %1: %2", count(step.step), rowWords(row, record).join(", ")));
  const wait = view.index.lanes.get(record.rid)?.waits.at(-1);
  if (wait) lines.push(trans.__("waited: %1", waitWords({ wait, why: "" }, rid => view.recordOf(rid))));
  lines.push(trans.__("%1 of %2 reused", count(record.cached), counted.tokens(record.prompt)), record.rid);
  return lines;
}

// ---------------------------------------------------------------- keys

/** A key on one of the pictures: true when it meant something here. */
export function pressed(view, event) {
  if (![view.top.canvas, view.lanes.canvas, view.overview.canvas].includes(document.activeElement)) return false;
  if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
    sideways(view, event.key === "ArrowLeft" ? -1 : 1, document.activeElement === view.overview.canvas || event.shiftKey);
    return true;
  }
  if (event.key === "ArrowUp" || event.key === "ArrowDown") {
    upwards(view, event.key === "ArrowUp" ? -1 : 1);
    return true;
  }
  if (event.key !== "Enter") return false;
  if (view.chosenStep) view.store.goTo(view.chosenStep.sampled);
  return true;
}

/** Move the window, or choose the next step and show it. */
function sideways(view, way, moves) {
  const { store, index } = view;
  const { from, to } = view.window;
  if (moves) return view.look(from + way * 0.2 * (to - from), to + way * 0.2 * (to - from));
  const here = view.chosenStep ?? index.steps.at(-1);
  const next = here && index.byNumber(here.step + (store.selection?.kind === "step" ? way : 0));
  if (!next) return undefined;
  store.select({ kind: "step", id: next.step });
  if (next.from < from || next.sampled > to) view.look(next.from - (to - from) / 2, next.from + (to - from) / 2);
  return undefined;
}

/** Choose the next lane. */
function upwards(view, way) {
  const { selection } = view.store;
  const lanes = view.shownLanes ?? [];
  const at = lanes.findIndex(lane => selection?.kind === "request" && lane.record.rid === selection.id);
  const next = lanes[Math.max(0, Math.min(lanes.length - 1, at + way))];
  if (next) view.store.select({ kind: "request", id: next.record.rid });
}
