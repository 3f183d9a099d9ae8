// One row of a program: role, text, choices, cost lines, errors.

import { el, fill, refocus, setText } from "./dom.js";
import { barWidth, errorParts, logprobWords, NUMBERS_EVERY } from "./program_data.js";
import { RowText } from "./program_text.js";
import { trans } from "./trans.js";

/** `parts` with dots between; with `lead` also before them. A dot stays with what follows it: at a line's begin it is cut off. */
export function joinDots(parent, parts, lead = false) {
  parts.forEach((part, index) => parent.append(el("span", "sgnb-item", {}, index || lead ? el("span", "sgnb-dot", { "aria-hidden": "true" }, "·") : null, part)));
}

const meanLogprob = (cost, index) => logprobWords(cost.scores[index], 3);

const KINDS = { error: () => trans.__("error"), note: () => trans.__("note") };

/** Fold texts: all are written, then all measured, then all written: each change between would lay the page out anew. */
export function foldAll(rows) {
  const drawn = rows.filter(row => !row.stale);
  for (const row of drawn) row.shut();
  const cut = drawn.map(row => row.isCut());
  drawn.forEach((row, index) => row.offer(cut[index]));
}

/** A row. `view` is the program view: its shade, its actions; `index`: the row's place in the program. */
export class RowView {
  constructor(view, index) {
    this.view = view;
    this.index = index;
    this.el = el("div", "sgnb-row");
    this.gutter = el("div", "sgnb-gutter");
    this.textNode = el("div", "sgnb-text");
    this.said = el("div", "sgnb-said", { hidden: true });
    this.more = el("button", "sgnb-link", { type: "button", hidden: true, onclick: () => this._toggle() }, trans.__("Show all text"));
    this.costs = el("div", "sgnb-costs");
    this.errors = el("div", "sgnb-error", { hidden: true });
    this.counted = el("div", "sgnb-cost sgnb-prompt-cost", { hidden: true });
    this.body = el("div", "sgnb-body", {}, this.said, this.textNode, this.counted, this.more, this.costs, this.errors);
    this.el.append(this.gutter, this.body);
    this.text = new RowText(this.textNode);
    this.open = view.outlook.texts.has(index);
    this.stale = false;
    this.drawn = -NUMBERS_EVERY;
  }

  /** Nobody sees the branch: it is drawn when somebody does. */
  keep(row) {
    this.row = row;
    this.stale = true;
  }

  update(row) {
    this.row = row;
    this.stale = false;
    const choice = row.segs[0]?.model && row.costs.every(cost => cost.options);
    const label = row.kind === "turn" ? row.role || (choice ? "select" : "") : row.kind;
    const branch = row.lane === 0 && row.branch ? trans.__("branch %1", row.branch) : "";
    const key = `${branch}\n${label}`;
    if (key !== this.label) {
      this.label = key;
      fill(this.gutter, branch ? el("span", "sgnb-branch", {}, branch) : null, KINDS[label]?.() ?? label);
    }
    this.el.dataset.role = label;
    this.el.dataset.state = row.state;
    if (row.line) this.el.dataset.line = String(row.line);
    this.said.hidden = !row.said;
    setText(this.said, row.said ?? "");
    this.drawText();
    this._promptLine();
    this._costLines();
    this.errors.hidden = !row.error.length;
    if (row.error.length !== this.errorLines) {
      this.errorLines = row.error.length;
      fill(this.errors, errorParts(row.error).map(([text, at]) => (at ? el("u", "sgnb-at", {}, text) : text)));
    }
  }

  /** The text, without that of choices: their rows say it. */
  drawText() {
    const { row } = this;
    let gen = -1;
    const segs = row.segs.map(seg => {
      if (!seg.model) return seg;
      gen++;
      return row.costs[gen]?.options ? { ...seg, text: "", marks: undefined } : seg;
    });
    this.text.update(segs, this.view.shade);
    gen = -1;
    row.segs.forEach((seg, index) => {
      if (!seg.model) return;
      gen++;
      const cost = row.costs[gen];
      const span = this.text.views[index].span;
      span.classList.toggle("sgnb-running", cost?.state === "running" && !cost.options);
      span.hidden = !!cost?.options; // no stop of the keyboard where nothing is seen
      this.text.views[index].rid = cost?.rid;
    });
    this.textNode.hidden = !segs.some(seg => seg.text || seg.hidden || (seg.model && !seg.text));
  }

  /** What of a prompt's own tokens was reused: where branches share it, and everywhere while that is what is shaded. */
  _promptLine() {
    const { prompt } = this.row;
    const shown = !!prompt && (prompt.shared || this.view.shade === "cached");
    this.counted.hidden = !shown;
    const key = shown ? JSON.stringify(prompt) : "";
    if (key !== this.promptKey) {
      this.promptKey = key;
      this.counted.dataset.rid = prompt?.rid ?? "";
      fill(this.counted, shown ? this._reuse(prompt, [prompt.computed, this.more]) : []);
    }
    if (!shown && this.more.previousSibling !== this.counted) this.counted.after(this.more);
  }

  /** The cost lines when a state changed, else as often as numbers are drawn. */
  _costLines() {
    const states = this.row.costs.map(cost => cost.state).join();
    const now = performance.now();
    if (this.view.sparing && states === this.costStates && now - this.drawn < NUMBERS_EVERY) return;
    this.costStates = states;
    this.drawn = now;
    const key = JSON.stringify(this.row.costs);
    if (key === this.costKey) return;
    this.costKey = key;
    const lines = this.row.costs.flatMap(cost => [...((cost.options && this._choices(cost)) || []), this._costLine(cost)]);
    refocus(this.costs, () => fill(this.costs, lines));
  }

  _costLine(cost) {
    const parts = cost.parts.map(part =>
      part === cost.took && cost.took
        ? el("button", "sgnb-plain sgnb-took", { type: "button", title: trans.__("Show step"), onclick: () => this.view.showStep(cost) }, part)
        : el("span", "sgnb-part", {}, part)
    );
    if (cost.why) parts.push(el("button", "sgnb-link sgnb-why", { type: "button", onclick: () => this.view.showIn("tree", cost) }, cost.why));
    const name = el("code", "sgnb-name", {}, cost.name);
    return el("div", "sgnb-cost", { "data-name": cost.name, "data-state": cost.state, "data-rid": cost.rid }, ...this._reuse(cost, parts, name));
  }

  /** A cost line: name and what was reused of the prompt, as far as that is known, then the other parts. */
  _reuse(cost, parts, name = null) {
    const head = el("span", "sgnb-cost-head", {}, name, cost.prompt ? [this._bar(cost), el("span", "sgnb-reuse", {}, cost.reuse)] : null);
    const rest = el("span", name && cost.prompt ? "sgnb-cost-rest sgnb-after" : "sgnb-cost-rest");
    joinDots(rest, parts, !!cost.prompt);
    return parts.length ? [head, rest] : [head];
  }

  _bar(cost) {
    const width = barWidth(cost.cached, cost.prompt);
    const reused = el("span", "sgnb-bar-reused");
    reused.style.width = `${width}px`;
    return el(
      "button",
      "sgnb-plain sgnb-prompt-bar",
      { type: "button", title: trans.__("Show in tree"), "aria-label": trans.__("%1. Show in tree", cost.reuse), onclick: () => this.view.showIn("tree", cost) },
      width > 0 ? reused : null,
      width < 48 ? el("span", "sgnb-bar-computed") : null
    );
  }

  /** One line a choice: ● or ○, text, bar, probability; the method's raw figures in the tooltip. */
  _choices(cost) {
    const known = cost.options.some(([, share]) => share);
    const rows = cost.options.map(([text, share, chosen], index) => {
      const bar = el("span", chosen ? "sgnb-share sgnb-share-chosen" : "sgnb-share");
      bar.style.width = `${Math.round(100 * Number(share || 0))}%`;
      const raw = cost.scores ? [cost.method, trans.__("mean logprob %1", meanLogprob(cost, index))].filter(Boolean).join(", ") : "";
      return el(
        "div",
        chosen ? "sgnb-option sgnb-option-chosen" : "sgnb-option",
        { title: raw, role: "listitem", "aria-label": [text, share, chosen && trans.__("chosen"), raw].filter(Boolean).join(", ") },
        el("span", chosen ? "sgnb-dot-full" : "sgnb-dot-open", { "aria-hidden": "true" }, chosen ? "●" : "○"),
        el("code", "sgnb-option-text", {}, text),
        el("span", "sgnb-share-ground", {}, share ? bar : null),
        el("span", "sgnb-share-number", {}, share || (cost.state === "done" ? "" : "…"))
      );
    });
    if (cost.state === "queued" && !known) return null;
    const list = el("div", "sgnb-options", { role: "list", "aria-label": trans.__("Choices of %1", cost.name) }, rows);
    return [list, cost.more ? el("div", "sgnb-note", {}, cost.more) : null, this._figures(cost)].filter(Boolean);
  }

  /** What the tooltips of choices say, for the keyboard: seen while it has the focus. */
  _figures(cost) {
    if (!cost.scores) return null;
    const figures = cost.options.map((_, index) => meanLogprob(cost, index)).join(", ");
    const said = [cost.method, trans.__("mean logprobs from the top: %1", figures)].filter(Boolean).join(", ");
    return el("div", "sgnb-note sgnb-figures", { tabindex: 0, role: "note", "aria-label": said }, said);
  }

  _toggle() {
    this.open = !this.open;
    this.view.outlook.texts[this.open ? "add" : "delete"](this.index);
    this.fold();
  }

  /** What was held back of the cost lines. */
  numbers() {
    if (!this.stale) this._costLines();
  }

  /** After a change, whether the text may fold another way: its height costs a layout of the page. */
  settles() {
    const key = this.row.segs.some(seg => seg.model) ? "" : `${this.row.state} ${this.row.segs.reduce((sum, seg) => sum + seg.text.length, 0)}`;
    if (key && key === this.foldKey) return false;
    this.foldKey = key;
    return true;
  }

  /** Prompt text of more than three lines folds; model text never does. In three steps, each for all rows (`foldAll`). */
  fold() {
    foldAll([this]);
  }

  get foldable() {
    return !this.row.segs.some(seg => seg.model) && this.row.state !== "failed";
  }

  shut() {
    this.textNode.classList.toggle("sgnb-folded", this.foldable && !this.open);
  }

  /** Whether text is cut off, or would be. */
  isCut() {
    return this.foldable && (this.open || this.textNode.scrollHeight > this.textNode.clientHeight + 2);
  }

  offer(cut) {
    this.more.hidden = !cut;
    setText(this.more, this.open ? trans.__("Show less") : trans.__("Show all text"));
    this.more.setAttribute("aria-expanded", String(this.open));
  }

  /** Whether this view can show that row. */
  fits(row) {
    return row.kind !== "fork" && row.lane === this.row?.lane;
  }

  destroy() {
    this.el.remove();
  }
}
