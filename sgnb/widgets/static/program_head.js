// The head of a program view: state, time, live numbers, shade, buttons, the line of totals; and the legend below the view.

import { segmented } from "./controls.js";
import { el, fill, setText } from "./dom.js";
import { count, seconds } from "./format.js";
import { isRunning, NUMBERS_EVERY } from "./program_data.js";
import { joinDots } from "./program_row.js";
import { settings } from "./settings.js";
import { trans } from "./trans.js";

const CLOCK_TRUST = 3000; // after so many ms without a message the clock stops: the kernel may be gone
const SILENCE = 10000; // and after so many the head says so
const SHADES = {
  none: () => trans.__("None"),
  probability: () => trans.__("Probability"),
  cached: () => trans.__("Cached"),
  forced: () => trans.__("Forced"),
};
const REMEMBERED = "sgnb.shade";
const RULE = ["rule", ""];

/** The keys of a shade: a swatch and its words. */
function legendOf(shade) {
  if (shade === "none") return [];
  const prompt = [["reused", trans.__("prompt tokens reused")], ["computed", trans.__("computed")]];
  if (shade === "cached") return prompt;
  if (shade === "forced") return [...prompt, RULE, ["forced", trans.__("forced by the grammar")]];
  return [...prompt, RULE, ["", trans.__("token probability")], ["unsure1", "< .75"], ["unsure2", "< .5"], ["unsure3", "< .25"], ["unsure4", "< .1"]];
}

/** The shade this reader chose last, or "". */
function chosenShade() {
  try {
    const shade = localStorage.getItem(REMEMBERED);
    return Object.hasOwn(SHADES, shade) ? shade : "";
  } catch {
    return ""; // storage is refused here
  }
}

/** The shade to begin with: what this reader chose last, else what the settings say. */
export function rememberedShade() {
  const { shade } = settings();
  return chosenShade() || (Object.hasOwn(SHADES, shade) ? shade : "none");
}

function remember(shade) {
  try {
    localStorage.setItem(REMEMBERED, shade);
  } catch {
    // it holds for this page then
  }
}

export class Head {
  /** `actions`: {stop, shade(name), open(kind), graph: bool}. */
  constructor(actions) {
    this.glyph = el("span", "sgnb-glyph", { "aria-hidden": "true" });
    this.word = el("span", "sgnb-word");
    this.time = el("span", "sgnb-time");
    this.facts = el("span", "sgnb-facts");
    this.playhead = el("span", "sgnb-time sgnb-shown-at", { hidden: true });
    this.shade = segmented(trans.__("Shade"), Object.entries(SHADES).map(([id, words]) => [id, words()]), rememberedShade(), name => {
      if (!this.defaulting) remember(name);
      actions.shade(name);
    });
    this.noStop = el("span", "sgnb-nostop", { hidden: true }, trans.__("Interrupt the kernel to stop."));
    this.stop = el("button", "sgnb-button sgnb-stop", { type: "button", onclick: actions.stop }, el("span", "sgnb-square"), el("span", "", {}, trans.__("Stop")));
    this.timeline = el("button", "sgnb-button", { type: "button", hidden: true, onclick: () => actions.open("timeline") }, trans.__("Show in timeline"));
    this.graph = el("button", "sgnb-button", { type: "button", hidden: true, onclick: () => actions.open("graph") }, trans.__("Show graph"));
    this.toLive = el("button", "sgnb-button", { type: "button", hidden: true, onclick: () => this.store.goLive() }, trans.__("Go live"));
    this.element = el(
      "div",
      "sgnb-header",
      {},
      this.glyph,
      this.word,
      this.time,
      this.facts,
      this.playhead,
      el("span", "sgnb-space"),
      el("span", "sgnb-shade", {}, el("span", "sgnb-shade-label", { "aria-hidden": "true" }, trans.__("Shade")), this.shade.element),
      this.noStop,
      this.stop,
      this.timeline,
      this.graph,
      this.toLive
    );
    this.summary = el("div", "sgnb-summary", { hidden: true });
    this.keys = el("ul", "sgnb-program-legend", { "aria-label": trans.__("Legend") });
    this.unfold = el("button", "sgnb-button sgnb-legend-button", { type: "button", "aria-expanded": "false", onclick: () => this.unfold.setAttribute("aria-expanded", String(this.keys.classList.toggle("sgnb-open"))) }, trans.__("Legend"));
    this.legend = el("div", "sgnb-legend-place", { hidden: true }, this.unfold, this.keys);
    this.lastNumbers = -NUMBERS_EVERY;
    this.received = performance.now();
  }

  /** `running`: the run has not ended; `still`: an earlier moment of it is shown. */
  draw(head, { stopping, tokens, received, running, still }) {
    this.head = head;
    this.received = received;
    this.still = still;
    setText(this.word, stopping ? trans.__("Stopping …") : (head.word ?? ""));
    this.glyph.dataset.state = ["Starting engine", "Queued", "Not started"].includes(head.word) ? "waiting" : (head.state ?? "");
    if (!running) this.noStop.hidden = true;
    this.stop.hidden = !running || !this.noStop.hidden;
    this.stop.disabled = stopping;
    this.over = !running && !!head.word;
    if (!running || still || performance.now() - this.lastNumbers >= NUMBERS_EVERY) this.numbers();
    const { summary = [], bound = [] } = head;
    const key = JSON.stringify([summary, bound]);
    if (key !== this.summaryKey) {
      this.summaryKey = key;
      const facts = summary.map(([strong, plain]) => el("span", "sgnb-fact", {}, el("b", "", {}, strong), plain ? ` ${plain}` : ""));
      fill(this.summary, facts, bound.length ? el("span", "sgnb-fact sgnb-bound", {}, el("code", "", {}, bound[0]), ` ${bound[1]}`) : null);
      this.summary.hidden = !summary.length && !bound.length;
    }
    this.drawLegend(tokens);
  }

  /** The settings changed: their shade holds where the reader has chosen none. */
  useDefault() {
    this.defaulting = true;
    this.shade.choose(rememberedShade());
    this.defaulting = false;
  }

  /** Time and live numbers, at most four times a second while the run goes on. */
  numbers() {
    const { head } = this;
    if (!head) return;
    this.lastNumbers = performance.now();
    const goes = isRunning(head) && !this.still;
    const silence = goes ? performance.now() - this.received : 0;
    const news = silence > SILENCE ? [trans.__("no news for %1 s", Math.round(silence / 1000))] : [];
    const facts = [...(head.facts ?? []), ...news];
    const key = facts.join("\n");
    if (key !== this.factsKey) {
      this.factsKey = key;
      fill(this.facts, []);
      joinDots(this.facts, facts);
    }
    const spent = head.seconds + Math.min(silence, CLOCK_TRUST) / 1000;
    setText(this.time, head.timeless && !isRunning(head) ? "" : seconds(spent));
  }

  /** `shown at step 1 171` while the playhead is not at live. `still`: this view does show that moment. */
  drawPlayhead(store, still) {
    if (!this.head) return;
    const away = !!store && !store.isLive;
    this.store = store;
    this.playhead.hidden = this.toLive.hidden = !away;
    this.timeline.hidden = away || !this.over || !this.head.store;
    this.graph.hidden = away || !this.over || !this.head.graph;
    if (away) setText(this.playhead, still ? trans.__("shown at step %1", count(store.step)) : trans.__("the others are at step %1", count(store.step)));
  }

  /** One line under the view while shading is on; what is missing where the run kept no probabilities. */
  drawLegend(tokens) {
    const shade = this.shade.value;
    const key = `${shade}${tokens}`;
    if (key === this.legendKey) return;
    this.legendKey = key;
    const missing = !tokens && (shade === "probability" || shade === "forced");
    const entries = missing ? [["", trans.__("Run with %1 to see probabilities.", "%%sgl --logprobs 5")]] : legendOf(shade);
    fill(this.keys, entries.map(([swatch, words]) => el("li", "", { "aria-hidden": !words }, swatch ? el("span", `sgnb-key sgnb-key-${swatch}`, { "aria-hidden": "true" }) : null, words)));
    this.keys.classList.toggle("sgnb-folding", !missing);
    this.unfold.hidden = missing;
    this.legend.hidden = !entries.length;
  }
}
