// Batch timeline: what each step did and cost, who waited for what, what was decided (ui.md §6). Frame and keys: view.js.
//
// The window is `span` seconds; its right edge is `right`, or the newest moment while `right` is null. Until the reader zooms,
// the span grows with the run, up to ten seconds. Drawing: timeline_steps.js, timeline_lanes.js and
// timeline_overview.js; pointer and keys: timeline_input.js; words of the column: timeline_side.js.

import { segmented } from "./controls.js";
import { button, el, fill, refill, sharpCanvas } from "./dom.js";
import { before, count, counted, seconds } from "./format.js";
import { nameOf, requestCalled } from "./history.js";
import { actsBar } from "./timeline_acts.js";
import { burstStart, lanesIn, TimelineIndex } from "./timeline_data.js";
import { listen, pressed } from "./timeline_input.js";
import { drawLanes, LANE } from "./timeline_lanes.js";
import { drawOverview, OVERVIEW } from "./timeline_overview.js";
import { brushes } from "./timeline_paint.js";
import { requestNodes, stepNodes, twinNodes, windowNodes } from "./timeline_side.js";
import { drawSteps, ROWS } from "./timeline_steps.js";
import { endWord, modeWord, stateWord, stepWords } from "./timeline_words.js";
import { trans } from "./trans.js";
import { View } from "./view.js";

const PAST = 60;
const SHORTEST = 0.001;
const LONGEST = 60;
const AUTO = 10;
const LANES_HEIGHT = 12 * LANE;
const OVERVIEW_EVERY = 200;
const TABLE_EVERY = 1000;

export class TimelineView extends View {
  static kind = "timeline";
  static get title() {
    return trans.__("Batch timeline");
  }

  build() {
    this.mode = "lanes";
    this.span = 0; // 0: as long as the run, at most AUTO
    this.right = null;
    this.found = "";
    this.switch = segmented(trans.__("Show"), [["lanes", trans.__("Timeline")], ["table", trans.__("Table")]], "lanes", mode => {
      this.mode = mode;
      this.changed();
    });
    this.tools.prepend(this.switch.element, this.findBox(trans.__("Find request")));
    this.overview = sharpCanvas("sgnb-time-overview", trans.__("The last 60 s"));
    this.top = sharpCanvas("sgnb-time-top", trans.__("Steps"));
    this.lanes = sharpCanvas("sgnb-time-lanes", trans.__("Requests"));
    this.spacer = el("div", "sgnb-time-spacer");
    this._scroll = el("div", "sgnb-time-scroll", {}, this.spacer, this.lanes.canvas);
    this.chart = el("div", "sgnb-time-chart", {}, this.overview.canvas, this.top.canvas, this._scroll);
    this.twin = el("div", "sgnb-time-twin", { hidden: true });
    this.legendNode = this.legend([
      ["waiting", trans.__("waiting")],
      ["reused", trans.__("reused")],
      ["prefill", trans.__("prefill chunk, tokens")],
      ["decode", trans.__("decode")],
      ["end", trans.__("finished")],
      ["retracted", trans.__("retracted")],
      ["aborted", trans.__("aborted")],
    ]);
    this.tools.append(this.legendButton(this.legendNode));
    fill(this.body, this.chart, this.twin, this.legendNode);
    this.about = el("div", "sgnb-time-about");
    this.step = el("div", "sgnb-time-step");
    const moves = el("div", "sgnb-buttons sgnb-time-moves", {}, button(trans.__("Previous event"), () => this.store.eventBy(-1)), button(trans.__("Next event"), () => this.store.eventBy(1)));
    this.inView = el("div", "sgnb-ruled sgnb-time-window");
    fill(this.side, this.about, this.step, moves, this.inView);
    this.acts = actsBar(this.store, { say: words => this.region.say(words), window: () => this.window });
    fill(this.foot, this.acts.element);
    this._offs.push(() => this.acts.close(), () => clearTimeout(this._later));
    listen(this);
  }

  // ---------------------------------------------------------------- time

  get index() {
    if (this._index?.history !== this.store.history) this._index = new TimelineIndex(this.store.history);
    return this._index;
  }

  /** The newest moment that has something to show. */
  get latest() {
    const { history } = this.store;
    if (this._latestOf === history && this._latestAt === history.version) return this._latest || this.store.now;
    let last = this.index.end;
    for (const record of history.requests.values()) last = Math.max(last, record.finished || record.queued);
    this._latestOf = history;
    this._latestAt = history.version;
    this._burst = burstStart(history, last);
    this._latest = last;
    return last || this.store.now;
  }

  /** What is drawn of time: {from, to}, in the engine's seconds. */
  get window() {
    const latest = this.latest;
    const right = this.right ?? latest;
    let { span } = this;
    if (!span) {
      const whole = right - (this.right === null ? this._burst ?? right : burstStart(this.store.history, right));
      span = Math.min(AUTO, Math.max(0.02, whole * 1.06));
    }
    const to = this.right === null ? right + span * 0.02 : right;
    const least = this.store.replaying ? this.store.oldest : -Infinity; // nothing lies before a recording's beginning
    return { from: Math.max(least, to - span), to: Math.max(to, least + span) };
  }

  /** The whole time of the overview. */
  get whole() {
    const { store } = this;
    if (store.replaying) return { from: store.oldest, to: Math.max(store.oldest + 0.01, store.live.time) };
    return { from: store.now - PAST, to: store.now };
  }

  /** Show [from, to] of time, as far as there is something; at the newest moment the window follows the run. */
  look(from, to) {
    this.span = Math.min(LONGEST, Math.max(SHORTEST, to - from));
    const latest = this.latest;
    this.right = Math.min((from + to) / 2 + this.span / 2, latest + this.span * 0.9);
    if (this.store.isLive && Math.abs(this.right - latest) < this.span * 0.03) this.right = null;
    this.changed();
  }

  /** Show `factor` of the span, with `time` staying where it is. */
  zoomAt(factor, time) {
    const { from, to } = this.window;
    const span = Math.min(LONGEST, Math.max(SHORTEST, (to - from) * factor));
    const part = (time - from) / (to - from);
    if (this.right === null && part > 0.98) {
      this.span = span;
      return this.changed();
    }
    return this.look(time - part * span, time + (1 - part) * span);
  }

  zoom(direction) {
    if (direction === 0) {
      this.span = 0;
      this.right = null;
      return this.changed();
    }
    const { from, to } = this.window;
    const { time, isLive } = this.store;
    const at = !isLive && time >= from && time <= to ? time : this.right === null ? to : (from + to) / 2;
    return this.zoomAt(direction > 0 ? 0.6 : 1 / 0.6, at);
  }

  /** A playhead that was moved elsewhere comes into view. */
  _follow() {
    const { store } = this;
    if (store.isLive) {
      if (this._wasLive === false) this.right = null;
    } else if (store.playhead !== this._lastHead) {
      const { from, to } = this.window;
      const span = to - from;
      if (store.playhead < from || store.playhead > to) {
        this.span ||= span;
        this.right = store.playhead + span * 0.5;
      } else if (this.right === null) {
        this.span ||= span;
        this.right = to;
      }
    }
    this._wasLive = store.isLive;
    this._lastHead = store.playhead;
  }

  // ---------------------------------------------------------------- keys, find, copy

  key(event) {
    return pressed(this, event);
  }

  find(text) {
    this.found = text.trim();
    if (this.found) {
      const record = requestCalled(this.store.history, this.found);
      const { from, to } = this.window;
      if (!record) this.region.say(trans.__("No request is called %1.", this.found));
      else this.store.select({ kind: "request", id: record.rid });
      if (record && (record.queued > to || (record.finished && record.finished < from))) this.look(record.queued - (to - from) * 0.1, record.queued + (to - from) * 0.9);
    }
    this.changed();
  }

  copy() {
    return [...this.about.children, ...this.step.children].map(node => node.innerText).join("\n");
  }

  /** A request's record; its id alone when it is not known. */
  recordOf(rid) {
    return this.store.history.requests.get(rid) ?? { rid };
  }

  /** The step that the right column tells of: the chosen one, else that of the playhead. */
  get chosenStep() {
    const { selection, isLive, time } = this.store;
    const chosen = selection?.kind === "step" ? this.index.byNumber(selection.id) : null;
    return chosen ?? (isLive ? this.index.steps.at(-1) : this.index.stepAt(time)) ?? null;
  }

  // ---------------------------------------------------------------- drawing

  draw() {
    this.index.sync();
    this._follow();
    const shown = this.mode !== "table";
    this.chart.hidden = this.legendNode.hidden = !shown;
    this.twin.hidden = shown;
    this.host.dataset.mode = this.mode;
    const width = Math.max(160, this.room.width - 20);
    const left = width < 560 ? 84 : 108;
    const { from, to } = this.window;
    const g = (this.geometry = { left, width: width - left - 2, from, to });
    const latest = this.latest;
    const lanes = (this.shownLanes = lanesIn(this.index, from, to, latest));
    this.host.dataset.lanes = String(lanes.length);
    if (!shown || !this.index.history) return;
    const { store } = this;
    const selection = store.selection;
    const chosen = selection?.kind === "step" || !store.isLive ? this.chosenStep : null;
    const knobs = store.history.knobs.filter(knob => knob.time >= from && knob.time <= to);
    const shared = { index: this.index, knobs, playhead: store.time, live: store.isLive };
    const say = (time, step) => {
      const digits = Math.max(2, Math.min(4, -Math.floor(Math.log10(step) + 1e-9)));
      if (store.replaying) return `${(time - store.oldest).toFixed(digits)} s`.replace("-", "−");
      return before(Math.max(0, store.now - time));
    };
    const topContext = this.top.size(width, ROWS.height);
    const b = this._brushes(topContext);
    drawSteps(topContext, b, g, { ...shared, say, chosen });
    this._sizeLanes(lanes.length);
    const height = this._lanesHeight;
    drawLanes(this.lanes.size(width, height), b, g, { ...shared, lanes, top: this.room.top, height, latest, find: rid => this.recordOf(rid), chosen: selection?.kind === "request" ? selection.id : "", step: chosen, found: this.found.toLowerCase() });
    this._drawOverview(width, left);
    this._label();
  }

  _brushes(context) {
    const key = `${this.colours.ground} ${this.colours.text} ${this.colours.decode} ${this.colours.forcedColors} ${window.devicePixelRatio}`;
    if (this._brushKey !== key) {
      this._brushKey = key;
      this._brush = brushes(context, this.colours);
    }
    return this._brush;
  }

  _sizeLanes(count_) {
    const all = Math.max(1, count_) * LANE;
    const pane = this.host.parentElement?.classList.contains("sgnb-pane");
    const most = pane ? Math.max(LANES_HEIGHT, this.room.height - 330) : LANES_HEIGHT;
    // Lanes come; they leave when out of view. The frame grows and does not shrink while a run is watched.
    this._lanesHeight = Math.min(most, Math.max(all, Math.min(this._lanesHeight ?? 0, 6 * LANE), 3 * LANE));
    this._scroll.style.height = `${this._lanesHeight}px`;
    this.spacer.style.height = `${all}px`;
  }

  _drawOverview(width, left) {
    const now = performance.now();
    const g = { left, width: width - left - 2, ...this.whole };
    this.overviewGeometry = g;
    const { store } = this;
    const playhead = store.isLive ? null : store.time;
    const key = [width, this.window.from, this.window.to, playhead, this._brushKey, store.history.version].join(" ");
    const place = `${width} ${playhead} ${this.right} ${this.span} ${this._brushKey}`; // what the reader changes is drawn at once
    if (key === this._overviewKey || (now - (this._overviewAt ?? 0) < OVERVIEW_EVERY && this._overviewWindow === place)) return;
    this._overviewKey = key;
    this._overviewAt = now;
    this._overviewWindow = place;
    const ends = (time, last) => (store.replaying ? `${(time - g.from).toFixed(g.to - g.from < 20 ? 1 : 0)} s` : last ? trans.__("now") : `−${Math.round(g.to - time)} s`);
    const figures = store.history.figures.filter(figure => figure.time >= g.from - 1 && figure.time <= g.to);
    const context = this.overview.size(width, OVERVIEW.height);
    drawOverview(context, this._brushes(context), g, { index: this.index, figures, window: { ...this.window, playhead }, slots: store.live.slots, ends });
  }

  _label() {
    const now = performance.now();
    if (now - (this._labelAt ?? -Infinity) < 500) return;
    this._labelAt = now;
    const { from, to } = this.window;
    this.top.canvas.setAttribute("aria-label", this.sentence());
    this.lanes.canvas.setAttribute("aria-label", trans._n("Requests: %2 lane in %3. The table holds the same.", "Requests: %2 lanes in %3. The table holds the same.", this.shownLanes.length, count(this.shownLanes.length), seconds(to - from)));
    this.overview.canvas.setAttribute("aria-label", this.store.replaying ? trans.__("The whole recording: tokens a second and KV used") : trans.__("The last 60 s: tokens a second and KV used"));
  }

  // ---------------------------------------------------------------- numbers

  facts() {
    const { store } = this;
    const { settings } = store.shown; // as they were at the playhead
    const words = [];
    if (settings.schedule_policy) words.push(trans.__("Policy %1", settings.schedule_policy));
    if (settings.chunked_prefill_size) words.push(settings.chunked_prefill_size > 0 ? trans.__("Chunk %1", count(settings.chunked_prefill_size)) : trans.__("No chunking"));
    if (settings.enable_mixed_chunk !== undefined) words.push(settings.enable_mixed_chunk ? trans.__("Mixed batches on") : trans.__("Mixed batches off"));
    return words.join(" · ");
  }

  sentence() {
    const step = this.chosenStep;
    const { selection } = this.store;
    if (selection?.kind === "request") {
      const record = this.recordOf(selection.id);
      const state = record.finished ? endWord(record.reason) : stateWord(record.state);
      return trans.__("Request %1, %2, %3 of %4 reused.", nameOf(record), state, count(record.cached ?? 0), counted.tokens(record.prompt ?? 0));
    }
    return step ? trans.__("Batch timeline: step %1, %2, %3.", count(step.step), modeWord(step.mode), stepWords(step)) : trans.__("Batch timeline: no step yet.");
  }

  /** Figures of a long window that follows the run are counted anew once a second only. */
  _window(index, from, to) {
    const now = performance.now();
    const key = `${this.right} ${this.span}`;
    if (to - from > 5 && key === this._windowKey && now - this._windowAt < TABLE_EVERY) return this._again();
    this._windowKey = key;
    this._windowAt = now;
    return refill(this.inView, windowNodes(index, from, to));
  }

  /** What was left out now is made up for, also where nothing else happens: a run has ended, a recording stands still. */
  _again() {
    clearTimeout(this._later);
    this._later = setTimeout(() => this.changed(), TABLE_EVERY);
  }

  details() {
    const { store, index } = this;
    const { from, to } = this.window;
    const latest = this.latest;
    const selection = store.selection;
    const choose = rid => store.select({ kind: "request", id: rid });
    const record = selection?.kind === "request" ? store.history.requests.get(selection.id) : null;
    const lane = record && { record, ...(index.lanes.get(record.rid) ?? { pieces: [], waits: [] }) };
    refill(this.about, lane ? requestNodes(lane, latest, rid => this.recordOf(rid)) : []);
    refill(this.step, stepNodes(this.chosenStep, { history: store.history, index, choose }));
    this._window(index, from, to);
    this.acts.update();
    const table = `${this.mode} ${JSON.stringify(selection)} ${this.right} ${this.span}`;
    const now = performance.now();
    if (this.mode === "table" && table === this._tableKey && now - this._tableAt < TABLE_EVERY) this._again();
    else if (this.mode === "table") {
      this._tableKey = table;
      this._tableAt = now;
      const chosen = { chosenStep: selection?.kind === "step" ? selection.id : -1, chosenRid: record?.rid ?? "" };
      refill(this.twin, twinNodes(index, { from, to }, latest, { history: store.history, ...chosen, chooseStep: id => store.select({ kind: "step", id }), chooseRequest: choose }), JSON.stringify(selection));
    }
  }
}
