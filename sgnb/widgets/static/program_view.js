// The program view: draws one run. Used by the notebook widget (program.js) and by docked panes.
//
//   const view = new ProgramView(root, send, outlook)   `send(object)` carries messages to the kernel (widgets/program.py)
//   view.draw(doc, changed)                    doc: program_data.js; changed: row indices, or undefined for all
//   view.take(message)                         the kernel's answers: stopping, token, forked, opened
//   view.setStore(store)                       the engine's store of this page (store.js), for playhead and selection
// All words of the run come from the kernel; text enters the page through text nodes only.

import { liveRegion } from "./controls.js";
import { el, fill } from "./dom.js";
import { fromSnapshot, isCounted, isRunning, NUMBERS_EVERY, sentence, tokenCount } from "./program_data.js";
import { ForkView } from "./program_fork.js";
import { Head, rememberedShade } from "./program_head.js";
import { Inspector } from "./program_inspector.js";
import { programKey } from "./program_keys.js";
import { Lanes } from "./program_lanes.js";
import { Past } from "./program_past.js";
import { foldAll, RowView } from "./program_row.js";
import { onSettings } from "./settings.js";
import { trans } from "./trans.js";

const STOP_PATIENCE = 1500;
const STOP_AGAIN = 400;
const ASK_PATIENCE = 8000;

/** What the reader has opened and where they are: a view that takes another's place goes on from it. */
export function newOutlook() {
  return { opened: new Set(), tabs: new Set(), texts: new Set(), top: 0 };
}

export class ProgramView {
  constructor(root, send, outlook = newOutlook()) {
    this.send = send;
    this.outlook = outlook;
    this.root = root;
    this.rows = []; // by number: RowView or ForkView
    this.lanes = new Lanes(this);
    this.shade = rememberedShade();
    this.asked = new Map();
    this.askId = 0;
    this.heard = new Map(); // rid → [what its cost line said last, since when]
    this.width = 0;
    this.store = null;
    this.offStore = null;
    this.live = null; // the run's document as it is now
    this.doc = null; // the one that is shown: of now, or of the playhead's moment
    this.past = new Past(
      moment => this._ask({ k: "past", ...moment }),
      snapshot => this._showPast(snapshot),
      () => this.live.rows.flatMap(row => row.costs.map(cost => cost.rid))
    );
    this._build();
  }

  _build() {
    const { root, outlook } = this;
    root.classList.add("sgnb-program");
    root.sgnbProgram = this;
    root.setAttribute("role", "group");
    this.head = new Head({ stop: () => this.pressStop(), shade: name => this._shade(name), open: kind => this.showIn(kind, null) });
    this.list = el("div", "sgnb-rows", { tabindex: 0, role: "group", "aria-label": trans.__("Program") }); // it scrolls: keys must reach it
    this.pending = el("div", "sgnb-pending");
    this.list.append(this.lanes.host(0), this.pending);
    this.region = liveRegion();
    this.region.element.classList.add("sgnb-live");
    root.append(el("div", "sgnb-frame", {}, this.head.element, this.head.summary, this.list), this.head.legend, this.region.element);
    this.inspector = new Inspector(this);
    this.pinned = true;
    this.list.addEventListener(
      "scroll",
      () => {
        this.pinned = this.list.scrollTop + this.list.clientHeight >= this.list.scrollHeight - 8;
        if (this.width) outlook.top = this.list.scrollTop;
      },
      { passive: true }
    );
    this.list.addEventListener("click", event => this._click(event));
    root.addEventListener("keydown", event => this._key(event));
    for (const name of ["mousemove", "focusin"]) this.list.addEventListener(name, event => this._atLine(event.target));
    for (const name of ["mouseleave", "focusout"]) this.list.addEventListener(name, () => this._atLine(null));
    this.clock = setInterval(() => this._tick(), NUMBERS_EVERY);
    this.observer = new ResizeObserver(entries => {
      const width = Math.round(entries[0].contentRect.width);
      if (!width || width === this.width) return;
      const first = !this.width;
      this.width = width;
      root.dataset.width = width >= 900 ? "wide" : width >= 560 ? "middle" : "narrow";
      this.refold();
      if (first) this.list.scrollTop = outlook.top;
    });
    this.observer.observe(root);
    this.offSettings = onSettings(() => {
      this.head.useDefault();
      this._redraw();
    });
  }

  /** True until the run has ended, whatever moment is shown. */
  get running() {
    return !!this.live && isRunning(this.live.head);
  }

  get isPast() {
    return this.doc !== this.live;
  }

  // ---------------------------------------------------------------- drawing

  /** The run's document changed. While another moment is shown only the head says so. */
  draw(doc, changed) {
    const past = this.isPast;
    this.live = doc;
    this.received = performance.now();
    if (past) this._drawHead();
    else this._drawDoc(doc, changed);
  }

  /** Show the run as it was; null: as it is. */
  _showPast(snapshot) {
    const doc = snapshot ? fromSnapshot(snapshot) : this.live;
    if (!doc || doc === this.doc) return;
    this.inspector.close(false);
    const fits = doc.rows.every((row, index) => !this.rows[index] || this.rows[index].fits(row));
    if (!fits) while (this.rows.length) this.rows.pop().destroy();
    this._drawDoc(doc);
  }

  _drawDoc(doc, changed) {
    const began = performance.now();
    this.doc = doc;
    const whole = changed === undefined;
    const touched = whole ? doc.rows.map((_, index) => index) : [...changed].sort((a, b) => a - b);
    while (this.rows.length > doc.rows.length) this.rows.pop()?.destroy();
    for (const index of touched) {
      for (let missing = this.rows.length; missing <= index; missing++) this._row(missing);
      if (doc.rows[index]) this._update(index);
    }
    this._drawPending();
    this._drawHead();
    if (this.resized) this.refold();
    const rows = touched.filter(index => doc.rows[index]).map(index => this.rows[index]);
    for (const row of rows) if (row instanceof ForkView) row.settle();
    foldAll(rows.filter(row => row instanceof RowView && row.settles()));
    if (this.pinned && this.running && !this.isPast) this.list.scrollTop = this.list.scrollHeight;
    if (this.inspector.at && touched.length) this.inspector._outline();
    this.root.dataset.seq = String(doc.seq);
    this.root.dataset.drawMs = (performance.now() - began).toFixed(2);
  }

  _row(index) {
    const row = this.doc.rows[index];
    const nested = row.lane > 0;
    const view = row.kind === "fork" ? new ForkView(this, nested) : new RowView(this, index);
    this.rows.push(view);
    this.lanes.host(row.lane).append(view.el);
  }

  /** Draw a row, or remember it while its branch is not seen. */
  _update(index) {
    const row = this.doc.rows[index];
    const view = this.rows[index];
    if (row.kind === "fork" || this.lanes.shown(row.lane)) view.update(row);
    else view.keep(row);
  }

  /** The numbers of a run are drawn as often as they can be read; the last ones always. */
  get sparing() {
    return this.running && !this.isPast;
  }

  /** What is still to come, or what was not run. */
  _drawPending() {
    const steps = this.doc.pending ?? [];
    const ended = !isRunning(this.doc.head);
    const key = JSON.stringify([steps, ended]);
    if (key === this.pendingKey) return;
    this.pendingKey = key;
    fill(
      this.pending,
      steps.map(step => {
        const note = ended ? trans.__("not run") : step.note;
        const text = el("div", "sgnb-text", {}, step.text ? el("span", "sgnb-prompt", {}, step.text) : null, step.text && note ? el("span", "sgnb-dot", { "aria-hidden": "true" }, "·") : null, note ? el("span", "sgnb-note", {}, note) : null);
        return el("div", "sgnb-row", { "data-state": "pending" }, el("div", "sgnb-gutter", {}, step.role), el("div", "sgnb-body", {}, text));
      })
    );
  }

  _drawHead() {
    const { head } = this.doc;
    if (!this.running) this.stopping = false;
    const still = this.isPast;
    this.root.dataset.state = head.state ?? "";
    const word = (head.word ?? "").toLowerCase();
    this.root.setAttribute("aria-label", head.cell ? trans.__("Run [%1], %2", head.cell, word) : trans.__("Run, %1", word));
    const tokens = this.doc.rows.some(row => row.segs.some(seg => tokenCount(seg)));
    this.head.draw(head, { stopping: !!this.stopping, tokens, received: this.received, running: this.running, still });
    this.head.drawPlayhead(this.store, still);
    if (still) return;
    const words = sentence({ ...head, facts: head.state === "running" ? [] : head.facts });
    if (words !== this.spoken) {
      this.spoken = words;
      this.region.say(words);
    }
  }

  /** Texts that fold, and forks, look at the width again; a branch that is seen now is drawn. */
  refold() {
    let came = false;
    this.resized = false;
    for (const row of this.rows) {
      if (row.stale && this.lanes.shown(row.row.lane)) {
        row.update(row.row);
        came = true;
      }
      if (row.row && row instanceof ForkView) row.fold();
    }
    foldAll(this.rows.filter(row => row.row && row instanceof RowView));
    if (came && this.store) this._drawSelection();
    if (this.inspector.at) this.inspector._scrolled();
  }

  _shade(name) {
    this.shade = name;
    this.root.dataset.shade = name;
    this.inspector.close(false);
    this._redraw();
    if (this.doc) this._drawHead();
  }

  /** All texts anew: another shade, or other settings. */
  _redraw() {
    for (const row of this.rows) if (row instanceof RowView && row.row && !row.stale) row.update(row.row);
    this.refold();
  }

  _tick() {
    if (this.running || this.waited) this._watchWaits();
    if (!this.running || !this.root.isConnected || this.isPast) return;
    this.head.numbers();
    for (const row of this.rows) if (row.row) row.numbers();
  }

  // ---------------------------------------------------------------- branches

  /** The engine's events are asked for while a branch waits long enough to be read, or says no more: nothing else here needs them. */
  _watchWaits() {
    const { rows } = this.live;
    const waits = this.running && this.seen !== false && rows.some(row => row.kind === "fork") && rows.flatMap(row => row.costs).filter(cost => this._isSilent(cost)).length > 0;
    this.waited = waits ? (this.waited ?? 0) + 1 : 0;
    this.store?.visible(this, this.waited > 1);
  }

  /** Whether a generation is queued, or has said nothing for a second: it may have lost its slots. */
  _isSilent({ rid, state, parts }) {
    if (state !== "running") return state === "queued";
    const now = performance.now();
    const [words, since] = this.heard.get(rid) ?? [];
    if (words !== parts[0]) this.heard.set(rid, [parts[0], now]);
    return words === parts[0] && now - since > 1000;
  }

  // ---------------------------------------------------------------- tokens

  _place(target) {
    const span = target.closest?.(".sgnb-model, .sgnb-prompt");
    if (!span || !this.list.contains(span)) return null;
    const row = this.rows.find(one => one.text?.views.some(view => view === span.sgnbSegment));
    const index = row?.text.views.indexOf(span.sgnbSegment) ?? -1;
    if (index < 0 || !(span.sgnbSegment.seg.model || isCounted(span.sgnbSegment.seg))) return null;
    return { row, text: row.text, index };
  }

  /** Where the tokens of a prompt text end is asked when the reader comes to it; of a generation it is known. */
  async _known({ row, text, index }) {
    const view = text.views[index];
    if (view.seg.model) return tokenCount(view.seg) > 0;
    if (!view.ends.length) {
      view.asked ??= this._ask({ k: "ends", row: this.rows.indexOf(row), seg: index }).finally(() => (view.asked = null));
      const { ends } = await view.asked;
      if (text.views[index] !== view) return false;
      view.ends = ends;
    }
    return view.ends.length > 0;
  }

  async _click(event) {
    if (String(document.getSelection() ?? "")) return; // text is being selected, not inspected
    const place = this._place(event.target);
    if (!place || !(await this._known(place).catch(() => false))) return this.inspector.close(false);
    const found = place.text.tokenAtPoint(event.clientX, event.clientY);
    if (found) this.inspector.show(place.text, found.index, found.place);
    return undefined;
  }

  _key(event) {
    const place = this._place(event.target);
    const walks = place && this.inspector.wants(event.key);
    if (!walks && !programKey(this, event)) return;
    event.preventDefault();
    event.stopPropagation();
    if (!walks) return;
    if (place.text.views[place.index].ends.length) this.inspector.textKey(event.key, place.text, place.index);
    else void this._known(place).then(known => known && this.inspector.textKey(event.key, place.text, place.index), () => undefined);
  }

  _ask(content) {
    const id = ++this.askId;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this.asked.delete(id);
        reject(new Error(trans.__("The kernel does not answer.")));
      }, ASK_PATIENCE);
      this.asked.set(id, { resolve, reject, timer });
      this.send({ ...content, id });
    });
  }

  /** The facts of a token of a text: of a generation by its request, of a prompt by its row. */
  askToken(text, index, place) {
    const view = text.views[index];
    if (view.seg.model) return this._ask({ k: "token", rid: view.rid, place });
    return this._ask({ k: "token", row: this.rows.findIndex(row => row.text === text), seg: index, place });
  }

  askFork(rid, tokens) {
    return this._ask({ k: "fork", rid, tokens });
  }

  /** The kernel's answers. */
  take(message) {
    if (message.k === "stopping") this.answered = true;
    const asked = this.asked.get(message.id);
    if (!asked || message.k !== "told") return;
    this.asked.delete(message.id);
    clearTimeout(asked.timer);
    if (message.error) asked.reject(new Error(message.error));
    else asked.resolve(message.data);
  }

  // ---------------------------------------------------------------- other views

  setStore(store) {
    if (store === this.store) return;
    this.offStore?.();
    this.store = store;
    this.offStore = store?.subscribe(what => {
      if (what === "selection") this._drawSelection();
      else if (what === "playhead") this._followPlayhead();
    });
    if (!store.isLive) this._followPlayhead();
  }

  _followPlayhead() {
    this.head.drawPlayhead(this.store, this.isPast);
    if (this.live && (this.seen !== false || this.store.isLive)) this.past.follow(this.store);
  }

  /** The reader sees this view or not: of an earlier moment the kernel is asked only while they do. */
  see(seen) {
    this.seen = seen;
    if (seen && this.store) this._followPlayhead();
  }

  /** Outline the cost line of the request that is chosen in another view. */
  _drawSelection() {
    const { selection } = this.store;
    for (const line of this.list.querySelectorAll(".sgnb-cost")) {
      line.classList.toggle("sgnb-selected", selection?.kind === "request" && line.dataset.rid === selection.id);
    }
  }

  /** Open another view on a request: a docked pane where there are such, else below this view. */
  showIn(kind, cost) {
    const rid = cost?.rid ?? this.doc.rows.flatMap(row => row.costs).at(-1)?.rid;
    if (rid && kind !== "graph") this.store?.select({ kind: "request", id: rid });
    const detail = { kind, key: this.doc.head.store ?? "", engine: this.doc.head.engine ?? "", rid };
    const event = new CustomEvent("sgnb:open", { detail, cancelable: true, bubbles: true });
    if (!this.root.dispatchEvent(event)) return Promise.resolve();
    return this._ask({ k: "open", kind }).then(
      answer => this.showBelow?.(kind, answer.model_id),
      error => this.region.say(error.message)
    );
  }

  showStep(cost) {
    if (cost.step >= 0 && this.store) {
      this.store.select({ kind: "step", id: cost.step });
      this.store.goToStep(cost.step);
    }
    return this.showIn("timeline", cost);
  }

  /** Tell the notebook which line the row under the pointer or with the focus came of; 0: none. */
  _atLine(target) {
    const line = Number(target?.closest?.(".sgnb-row[data-line]")?.dataset.line ?? 0);
    if (line === this.line) return;
    this.line = line;
    this.root.dispatchEvent(new CustomEvent("sgnb:line", { bubbles: true, detail: { line, hover: true } }));
  }

  // ---------------------------------------------------------------- stop

  pressStop() {
    this.stopping = true;
    this.answered = false;
    this._drawHead();
    this.send({ k: "stop" });
    clearInterval(this.again);
    this.again = setInterval(() => {
      if (this.stopping && !this.answered) this.send({ k: "stop" });
      else clearInterval(this.again);
    }, STOP_AGAIN);
    this.patience = setTimeout(() => {
      if (this.answered || !this.running) return;
      // Comms do not run beside a cell here: JupyterLab's panel interrupts the kernel, elsewhere the reader does.
      if (!this.root.dispatchEvent(new CustomEvent("sgnb:interrupt", { bubbles: true, cancelable: true }))) return clearInterval(this.again);
      this.stopping = false;
      this.head.noStop.hidden = false;
      this._drawHead();
    }, STOP_PATIENCE);
  }

  dispose() {
    clearInterval(this.clock);
    clearTimeout(this.patience);
    clearInterval(this.again);
    for (const { timer } of this.asked.values()) clearTimeout(timer);
    this.store?.visible(this, false);
    this.past.rest(this.store);
    this.offStore?.();
    this.offSettings();
    this.region.close();
    this.observer.disconnect();
    this.inspector.destroy();
  }
}
