// The branches of a fork: side by side, as tabs, or as a table whose rows open in place. Branches keep their order.

import { el, fill, refocus, setText } from "./dom.js";
import { count } from "./format.js";
import { layoutOf, NUMBERS_EVERY } from "./program_data.js";
import { trans } from "./trans.js";

const SOME = 16; // branches whose numbers are drawn in one frame
const GLYPHS = { done: "✓", failed: "✕", stopped: "■" };

/** An arc turns behind the words of a branch that goes on: where the engine's events say that it waits, it does not. */
function isBusy(lane, waits) {
  return waits ? waits.busy : lane.state === "running" || /^(prefill|compiling)/.test(lane.words);
}

/** The sentence for the live region; `tokens`: as written, or "". */
function endWords({ name, state }, tokens) {
  if (state === "done") return tokens ? trans.__("Branch %1 finished, %2 tokens.", name, tokens) : trans.__("Branch %1 finished.", name);
  return tokens ? trans.__("Branch %1 failed, %2 tokens.", name, tokens) : trans.__("Branch %1 failed.", name);
}

const endedWords = number => trans._n("%2 branch ended.", "%2 branches ended.", number, count(number));

/** A fork row. Where the rows of its branches stand is the view's to say (`view.lanes`). */
export class ForkView {
  constructor(view, nested) {
    this.view = view;
    this.nested = nested;
    this.el = el("div", nested ? "sgnb-row sgnb-fork" : "sgnb-row sgnb-fork sgnb-outer", { "data-role": "fork" });
    this.gutter = el("div", "sgnb-gutter");
    this.body = el("div", "sgnb-fork-body");
    this.el.append(this.gutter, this.body);
    this.arms = new Map(); // lane → {lane, host, head, pane, tab, row}
    this.shown = -1;
    this.opened = view.outlook.opened;
    this.layout = "";
    this.drawn = -NUMBERS_EVERY;
    this.left = []; // branches whose numbers are still to be drawn in this round
  }

  update(row) {
    this.row = row;
    setText(this.gutter, row.role);
    for (const lane of [...this.arms.keys()]) {
      if (row.arms.includes(lane)) continue;
      this.arms.get(lane).host.remove(); // another moment is shown: that branch was not there yet
      this.arms.delete(lane);
      this.view.lanes.forks.delete(lane);
      this.layout = "";
    }
    const fresh = row.arms.length !== this.arms.size;
    for (const lane of row.arms) if (!this.arms.has(lane)) this.arms.set(lane, this._arm(lane));
    if (fresh) this.layout = "";
    if (!this.layout) this.place(); // else the width is as it was: to ask for it costs a layout of the page
    const all = !this.view.sparing;
    for (const arm of this.arms.values()) if (all || this._stateOf(arm) !== arm.state) this._state(arm);
    if (!all && (this.left.length || performance.now() - this.drawn >= NUMBERS_EVERY)) this.numbers();
    this._status();
  }

  /** States and costs of the branches, at most four times a second while they run; of many, some at each call. */
  numbers() {
    if (!this.left.length) {
      this.drawn = performance.now();
      this.left = [...this.arms.values()];
    }
    for (const arm of this.left.splice(0, SOME)) this._state(arm);
  }

  settle() {
    if (!this.layout) this.place();
  }

  fold() {
    this.place();
  }

  /** Whether the rows of a branch can be seen. */
  shows(lane) {
    return this.layout === "tabs" ? this.shown === lane : this.layout === "table" ? this.opened.has(lane) : true;
  }

  _stateOf(arm) {
    return this.view.doc.lanes[arm.lane]?.state;
  }

  _arm(lane) {
    this.view.lanes.forks.set(lane, this);
    const host = this.view.lanes.host(lane);
    const title = el("span", "sgnb-arm-title");
    const words = el("span", "sgnb-arm-words");
    const glyph = el("span", "sgnb-arm-glyph", { "aria-hidden": "true" });
    return { lane, host, title, words, glyph, head: el("div", "sgnb-arm-head", {}, title, words, glyph), cells: null };
  }

  /** Build the layout that fits the width there is now. */
  place() {
    const whole = this.view.width || this.view.root.clientWidth;
    const width = (this.nested && this.body.clientWidth) || whole - 81; // its own, whatever the gutter of tabs
    const layout = layoutOf(this.arms.size, width, this.nested);
    if (layout === this.layout) return;
    this.layout = layout;
    this.el.dataset.layout = layout;
    const arms = [...this.arms.values()];
    refocus(this.body, () => {
      if (layout === "columns") fill(this.body, arms.map(arm => el("div", "sgnb-arm", { "data-branch": this._name(arm) }, arm.head, arm.host)));
      else if (layout === "tabs") this._tabs(arms);
      else this._table(arms);
    });
    for (const arm of arms) this._state(arm);
    this.view.resized = true; // for the forks inside, and for rows that can be seen now
  }

  _name(arm) {
    return this.view.doc.lanes[arm.lane]?.name ?? "";
  }

  _tabs(arms) {
    if (!this.arms.has(this.shown)) this.shown = (arms.find(arm => this.view.outlook.tabs.has(arm.lane)) ?? arms[0])?.lane ?? -1;
    const panel = el("div", "sgnb-tabpanel", { role: "tabpanel" });
    const list = el("div", "sgnb-tabs", { role: "tablist", "aria-label": this.row.role });
    const choose = (lane, focus) => {
      this.view.outlook.tabs.delete(this.shown);
      this.view.outlook.tabs.add(lane);
      this.shown = lane;
      for (const arm of arms) {
        const on = arm.lane === lane;
        arm.tab.setAttribute("aria-selected", String(on));
        arm.tab.tabIndex = on ? 0 : -1;
        if (on && focus) arm.tab.focus();
      }
      fill(panel, this.arms.get(lane).host);
      panel.dataset.branch = this._name(this.arms.get(lane));
      panel.setAttribute("aria-label", trans.__("branch %1", panel.dataset.branch));
      this.view.refold();
    };
    for (const arm of arms) {
      arm.tab = el("button", "sgnb-tab", { type: "button", role: "tab", onclick: () => choose(arm.lane, false) }, el("span", ""), el("span", "sgnb-tab-state"));
      list.append(arm.tab);
    }
    list.addEventListener("keydown", event => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      event.stopPropagation();
      const at = arms.findIndex(arm => arm.lane === this.shown);
      choose(arms[(at + step + arms.length) % arms.length].lane, true);
    });
    fill(this.body, list, panel);
    choose(this.shown, false);
  }

  _table(arms) {
    const head = el("tr", "", {}, [trans.__("branch"), trans.__("state"), trans.__("text"), trans.__("values"), trans.__("cost")].map(name => el("th", "", { scope: "col" }, name)));
    const body = el("tbody");
    for (const arm of arms) {
      const toggle = el("button", "sgnb-plain sgnb-open", { type: "button", "aria-expanded": "false" });
      arm.cells = [toggle, ...["state", "first", "values", "cost"].map(name => el("span", `sgnb-cell-${name}`))];
      const row = el("tr", "", { "data-lane": arm.lane }, arm.cells.map(cell => el("td", "", {}, cell)));
      arm.opened = el("tr", "sgnb-opened", { hidden: true }, el("td", "", { colspan: 5 }, arm.host));
      toggle.addEventListener("click", () => {
        const open = arm.opened.hidden;
        arm.opened.hidden = !open;
        toggle.setAttribute("aria-expanded", String(open));
        this.opened[open ? "add" : "delete"](arm.lane);
        this._state(arm);
        this.view.refold();
      });
      if (this.opened.has(arm.lane)) {
        arm.opened.hidden = false;
        toggle.setAttribute("aria-expanded", "true");
      }
      body.append(row, arm.opened);
    }
    fill(this.body, el("table", "sgnb-arms", {}, el("thead", "", {}, head), body));
  }

  _state(arm) {
    const lane = this.view.doc.lanes[arm.lane];
    if (!lane) return;
    arm.state = lane.state;
    const waits = this.view.lanes.waits(arm.lane);
    const words = waits?.words ?? lane.words;
    const name = trans.__("branch %1", lane.name);
    const mark = node => node.toggleAttribute("data-busy", isBusy(lane, waits));
    if (this.layout === "table" && arm.cells) {
      const [toggle, state, first, values, cost] = arm.cells;
      setText(toggle, `${arm.opened.hidden ? "▸" : "▾"} ${lane.name}`);
      setText(state, `${words}${GLYPHS[lane.state] ? ` ${GLYPHS[lane.state]}` : ""}`);
      mark(state);
      setText(first, lane.first);
      if (lane.values.length) values.closest("table")?.classList.add("sgnb-valued");
      setText(values, lane.values.map(value => value.join(" ")).join(", "));
      setText(cost, this.view.lanes.cost(arm.lane));
      return;
    }
    if (this.layout === "tabs" && arm.tab) {
      setText(arm.tab.firstChild, name);
      setText(arm.tab.lastChild, GLYPHS[lane.state] || words);
      mark(arm.tab.lastChild);
      arm.tab.title = words;
      arm.tab.setAttribute("aria-label", `${name}, ${words}`);
      return;
    }
    setText(arm.title, name);
    arm.head.dataset.state = lane.state;
    setText(arm.glyph, GLYPHS[lane.state] ?? "");
    mark(arm.glyph);
    if (!lane.values.length || this.view.running) return setText(arm.words, words);
    fill(arm.words, lane.values.flatMap(([key, value, share], index) => [index ? ", " : "", el("code", "", {}, key), " ", el("b", "", {}, value), share ? ` ${share}` : ""]));
    setText(arm.glyph, ""); // a value says that it is done
    arm.head.dataset.state = "values";
    return undefined;
  }

  /** Sentences for the live region: a branch that finished. */
  _status() {
    if (this.view.isPast) return;
    this.told ??= new Set();
    for (const arm of this.arms.values()) {
      const lane = this.view.doc.lanes[arm.lane];
      if (!lane || this.told.has(arm.lane) || !["done", "failed"].includes(lane.state)) continue;
      this.told.add(arm.lane);
      if (this.view.running) this.view.region.say(endWords(lane, this.view.lanes.tokens(arm.lane)), endedWords);
    }
  }

  /** Whether this view can show that row. */
  fits(row) {
    return row.kind === "fork" && row.lane === this.row?.lane;
  }

  destroy() {
    this.el.remove();
  }
}
