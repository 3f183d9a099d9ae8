// The right column of the batch timeline: a request, a step with its decisions, figures of the window; and the tables that
// are the twin of the canvases. Builds elements from plain records; asks nothing.

import { el, on, table } from "./dom.js";
import { count, counted, seconds, share } from "./format.js";
import { nameOf } from "./history.js";
import { lanesIn, waitsOf, windowFigures } from "./timeline_data.js";
import { aheadWords, decisionsOf, endReason, endWord, failedWords, modesWords, modeWord, plain, rowWords, stateWord, stepWords, waitReason, waitWords } from "./timeline_words.js";
import { trans } from "./trans.js";

const BATCH = 24;
const TABLE = 200;

/** `{text, name}` parts as a paragraph, names in bold. */
function sentence(parts, className = "") {
  return el("p", className, {}, parts.map(part => (typeof part === "string" ? part : el("b", "", {}, part.name))));
}

/** What is known of a step: mode, split of its time, batch, decisions. */
export function stepNodes(step, { history, index, choose }) {
  if (!step) return [el("p", "sgnb-dim", {}, trans.__("No step here."))];
  const { event } = step;
  const find = rid => history.requests.get(rid) ?? { rid };
  const before = index.byNumber(step.step - 1);
  const nodes = [
    el("h3", "", {}, trans.__("Step %1, %2", count(step.step), modeWord(step.mode))),
    el("p", "sgnb-dim sgnb-time-facts", {}, stepWords(step)),
    splitNode(step),
    batchTable(event, find, choose),
    el("h3", "", {}, trans.__("Decided before this step")),
  ];
  const sentences = decisionsOf(event, history, { before: before?.time ?? event.time - 1 });
  nodes.push(el("div", "sgnb-time-decided", {}, sentences.length ? sentences.map(parts => sentence(parts)) : el("p", "", {}, trans.__("Nothing was decided: the same requests go on."))));
  const { bad_rows: bad, wasted_rows: wasted, new_token_ratio: ratio } = event;
  const free = trans.__("%1 free or evictable", counted.slots((event.free ?? 0) + (event.evictable ?? 0)));
  nodes.push(el("p", "sgnb-dim", {}, ratio ? trans.__("%1, new_token_ratio %2", free, ratio.toFixed(2)) : free));
  if (bad) nodes.push(sentence([trans._n("%2 row failed: the model's numbers were not finite.", "%2 rows failed: the model's numbers were not finite.", bad, count(bad))], "sgnb-trouble-text"));
  if (wasted) nodes.push(sentence([trans._n("%2 row was computed in vain: the request had ended.", "%2 rows were computed in vain: the request had ended.", wasted, count(wasted))]));
  for (const words of [failedWords(event), aheadWords(event)].filter(Boolean)) nodes.push(sentence([words], event.failed ? "sgnb-trouble-text" : ""));
  return nodes;
}

/** The step's time to scale: the scheduler's part above, forward and sample below. */
function splitNode(step) {
  const whole = Math.max(1e-9, step.sampled - step.from);
  const plan = step.event.schedule_seconds ?? 0;
  const forward = step.computed - step.from;
  const sample = step.sampled - step.computed;
  const percent = value => `${Math.min(100, (100 * value) / whole).toFixed(2)}%`;
  const above = el("span", "sgnb-time-plan");
  above.style.width = percent(plan);
  const bar = el("span", "sgnb-time-bar", {}, el("span", "sgnb-time-forward"), el("span", "sgnb-time-sample"));
  bar.firstChild.style.width = percent(forward);
  bar.lastChild.style.width = percent(sample);
  const { schedule_under: under, process_seconds: process, exposed_host_seconds: waited } = step.event;
  const planned = under ? trans.__("schedule %1, under step %2", seconds(plan, true), count(under)) : trans.__("schedule %1", seconds(plan, true));
  const drawn = [trans.__("sample %1", seconds(sample, true))];
  if (process) drawn.push(trans.__("process %1", seconds(process, true)));
  const idle = waited ? el("div", "sgnb-dim sgnb-time-idle", {}, trans.__("the model waited %1 before it", seconds(waited, true))) : null;
  return el(
    "div",
    "sgnb-time-split",
    {},
    el("div", "sgnb-time-above", {}, above, el("span", "sgnb-dim", {}, planned)),
    bar,
    el("div", "sgnb-time-below sgnb-dim", {}, el("span", "", {}, trans.__("forward %1", seconds(forward, true))), el("span", "", {}, drawn.join(" · "))),
    idle
  );
}

function nameNode(record) {
  const whole = nameOf(record);
  const space = whole.indexOf(" ");
  return el("span", "", {}, el("b", "", {}, space < 0 ? whole : whole.slice(0, space)), space < 0 ? "" : el("span", "sgnb-dim", {}, whole.slice(space)));
}

function batchTable(event, find, choose) {
  const rows = event.rows.slice(0, BATCH).map(row => {
    const record = find(row.rid);
    const [kind, words] = rowWords(row, record);
    const line = el("tr", "", { tabindex: 0 }, el("td", "", {}, nameNode(record)), el("td", "", {}, kind), el("td", "sgnb-num", {}, words));
    on(line, "click", () => choose(row.rid));
    on(line, "keydown", key => {
      if (key.key !== "Enter") return;
      key.preventDefault();
      key.stopPropagation();
      choose(row.rid);
    });
    return line;
  });
  const more = event.rows.length - BATCH;
  if (more > 0) rows.push(el("tr", "", {}, el("td", "sgnb-dim", { colspan: 3 }, trans._n("%2 more request", "%2 more requests", more, count(more)))));
  return el("table", "sgnb-time-batch", { "aria-label": trans.__("Batch") }, el("tbody", "", {}, rows));
}

/** The story of a request: what it waited for, what was reused, how it ended. */
export function requestNodes(lane, latest, find) {
  const { record } = lane;
  const lines = [];
  for (const wait of waitsOf(lane, latest)) {
    const words = [seconds(wait.to - wait.from, true), waitReason(wait, find)];
    lines.push([wait.why ? trans.__("retracted, waited") : trans.__("waited"), words.filter(Boolean).join(", ")]);
  }
  lines.push([trans.__("prompt"), trans.__("%1 of %2 reused", count(record.cached), counted.tokens(record.prompt))]);
  const chunks = lane.pieces.filter(piece => piece.kind === "prefill");
  if (chunks.length) lines.push([trans.__("prefill"), chunks.length > 12 ? trans._n("%2 chunk, %3 tokens", "%2 chunks, %3 tokens", chunks.length, count(chunks.length), count(sum(chunks))) : chunks.map(piece => count(piece.tokens)).join(" + ")]);
  const decoded = sum(lane.pieces.filter(piece => piece.kind === "decode"));
  lines.push([trans.__("decode"), trans._n("%2 step", "%2 steps", decoded, count(decoded))]);
  const until = record.finished || latest;
  const after = trans.__("after %1", seconds(until - record.queued));
  lines.push(record.finished ? [endWord(record.reason), [after, endReason(record.reason)].filter(Boolean).join(", ")] : [trans.__("so far"), after]);
  return [
    el("h3", "", { title: record.rid }, nameNode(record)),
    el("dl", "sgnb-pairs sgnb-time-request", {}, lines.flatMap(([name, words]) => [el("dt", "", {}, name), el("dd", "", {}, words)])),
  ];
}

function sum(pieces) {
  return pieces.reduce((all, piece) => all + piece.tokens, 0);
}

/** Figures of the window, as nodes. */
export function windowNodes(index, from, to) {
  const figures = windowFigures(index, from, to);
  const pairs = [];
  if (figures.gaps) pairs.push([trans.__("Between two tokens"), trans.__("p50 %1, p95 %2", seconds(figures.p50, true), seconds(figures.p95, true))]);
  if (figures.idle !== null) {
    pairs.push([trans.__("Model idle"), share(figures.idle, 1)]);
    const idle = figures.idle * figures.known;
    pairs.push([trans.__("of it for the scheduler"), share(Math.min(figures.waited, idle), idle)]);
  }
  return [
    el("h3", "", {}, trans.__("In view, %1", seconds(to - from))),
    el("p", "", {}, modesWords(figures.modes)),
    el("dl", "sgnb-pairs", {}, pairs.flatMap(([name, words]) => [el("dt", "", {}, name), el("dd", "", {}, words)])),
  ];
}

/** The twin of the canvases: a table of steps and one of requests, of what is in the window. */
export function twinNodes(index, window, latest, { history, chosenStep, chosenRid, chooseStep, chooseRequest }) {
  const find = rid => history.requests.get(rid) ?? { rid };
  const first = index.indexAfter(window.from);
  const all = index.steps.slice(first, index.indexAfter(window.to) + 1).filter(step => step.from < window.to);
  const steps = all.slice(-TABLE);
  // A step does not change: its words are found once, however long the table is open.
  const stepRows = steps.map(step => (step.words ??= rowOf(step, index, history)));
  const number = name => ({ name, number: true });
  const stepTable = table(
    [number(trans.__("step")), { name: trans.__("mode") }, number(trans.__("requests")), number(trans.__("prefill")), number(trans.__("decode")), number(trans.__("schedule")), number(trans.__("forward")), number(trans.__("sample")), { name: trans.__("decided before") }],
    stepRows,
    { caption: all.length > TABLE ? trans.__("Steps: the last %1 of %2 in view", TABLE, count(all.length)) : trans.__("Steps in view"), selected: steps.findIndex(step => step.step === chosenStep), onrow: i => chooseStep(steps[i].step), className: "sgnb-time-steps" }
  );
  const lanes = lanesIn(index, window.from, window.to, latest).slice(-TABLE);
  const requestRows = lanes.map(lane => {
    const { record } = lane;
    const waits = waitsOf(lane, latest);
    const words = waits.map(wait => [seconds(wait.to - wait.from, true), waitWords(wait, find)].filter(Boolean).join(", ")).join("; ");
    const retracted = record.turns.filter(turn => turn.end === "retracted").length;
    const state = record.finished ? endWord(record.reason) : stateWord(record.state);
    return [nameOf(record), words, count(record.cached), count(record.prompt), count(sum(lane.pieces.filter(piece => piece.kind === "decode"))), count(retracted), state, seconds((record.finished || latest) - record.queued)];
  });
  const requestTable = table(
    [{ name: trans.__("request") }, { name: trans.__("waited") }, number(trans.__("reused")), number(trans.__("prompt")), number(trans.__("decode")), number(trans.__("retracted")), { name: trans.__("state") }, number(trans.__("time"))],
    requestRows,
    { caption: trans.__("Requests in view"), selected: lanes.findIndex(lane => lane.record.rid === chosenRid), onrow: i => chooseRequest(lanes[i].record.rid), className: "sgnb-time-requests" }
  );
  return [stepTable, requestTable];
}

/** A step's line in the table. */
function rowOf(step, index, history) {
  return [
    count(step.step),
    modeWord(step.mode),
    count(step.requests),
    count(step.prefill),
    count(step.decode),
    seconds(step.event.schedule_seconds ?? 0, true),
    seconds(step.computed - step.from, true),
    seconds(step.sampled - step.computed, true),
    decisionsOf(step.event, history, { before: index.byNumber(step.step - 1)?.time ?? step.time - 1 }).map(plain).join(" "),
  ];
}
