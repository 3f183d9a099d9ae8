// The numbers of the KV map: states, the sum that must hold, runs, what changed, holders, the table of runs. Gets the view
// (kv.js); draws nothing.

import { button, el, fill, refocus, setText, table } from "./dom.js";
import { CACHED, DECODE, FREE, PREFILL, SCORE } from "./fold.js";
import { count, counted, oneLine, share } from "./format.js";
import { nameIn } from "./history.js";
import { changesOf, holdersOf, reportOf, scanRuns, slotWord } from "./kv_data.js";
import { parts, PLACES, trans } from "./trans.js";

const ASK_EVERY = 2000; // ms
const TABLE_ROWS = 500;
const NUMBER = { number: true };

export class KVSide {
  constructor(view) {
    this.view = view;
    this.store = view.store;
    this._kept = []; // sessions that the notebook keeps
    this._asked = -Infinity;
    this._big = el("div", "sgnb-kv-big");
    this._bar = el("div", "sgnb-kv-bar", { role: "img" });
    this._states = el("div", "");
    this._sum = el("p", "sgnb-kv-invariant");
    this._report = button(trans.__("Save report…"), () => this._save(), { hidden: true });
    this._pairs = el("dl", "sgnb-pairs sgnb-ruled");
    this._about = el("div", "sgnb-kv-about");
    this._changes = el("div", "sgnb-ruled");
    this.nodes = [this._big, this._bar, this._states, this._sum, this._report, this._pairs, this._about, this._changes];
    this.holders = el("div", "sgnb-kv-holders");
    this.twin = el("div", "sgnb-kv-twin", { hidden: true, tabindex: 0, role: "group", "aria-label": trans.__("Runs of slots") });
  }

  update() {
    const state = this.store.shown;
    if (!state.slots) return;
    const runs = this._runsOf(state);
    this._showStates(state);
    this._showSum(state);
    const half = state.stats?.num_half_filled_tokens ?? 0; // by the engine: which of a request's slots hold no token is not told
    const pairs = [[trans.__("Free runs"), count(runs.freeRuns)], [trans.__("Largest free run"), counted.slots(runs.largestFree)], [trans.__("Lost to half-filled pages"), state.pageSize > 1 ? count(half) : trans.__("0, page is 1")]];
    fill(this._pairs, pairs.flatMap(([name, value]) => [el("dt", "", {}, name), el("dd", "", {}, value)]));
    this._showAbout(state);
    const changes = changesOf(this.store);
    fill(this._changes, el("h3", "", {}, trans.__("Changed in step %1", count(this.store.step))), changes.length ? el("dl", "sgnb-kv-changes", {}, changes.flatMap(([number, words]) => [el("dt", "", {}, number), el("dd", "", {}, words)])) : el("p", "sgnb-dim", {}, trans.__("Nothing.")));
    this._showHolders(state, runs);
    if (this.view.mode === "table") this._showTable(state);
    this._askKept();
  }

  /** Its runs: all slots are looked at, so only when one has changed. */
  _runsOf(state) {
    if (this._scanned?.state !== state || this._scanned.version !== state.kvVersion) this._scanned = { state, version: state.kvVersion, runs: scanRuns(state) };
    return this._scanned.runs;
  }

  _showStates(state) {
    const used = state.slots - state.counts[FREE];
    const flight = state.counts[PREFILL] + state.counts[SCORE];
    const rows = [
      ["locked", trans.__("cached, locked"), state.lockedSlots],
      ["prefill", trans.__("prefill, in flight"), flight],
      ["decode", trans.__("decode, in flight"), state.counts[DECODE]],
      ["evictable", trans.__("cached, evictable"), state.evictable],
      ["free", trans.__("free"), state.counts[FREE]],
    ];
    const tight = state.lockedSlots + flight + state.counts[DECODE] > 0.95 * state.slots;
    fill(this._big, parts(trans.__("%1 used, %2 of %3 slots", ...PLACES), el("b", tight ? "sgnb-trouble-text" : "", {}, share(used, state.slots)), count(used), count(state.slots)));
    this._bar.setAttribute("aria-label", rows.map(([, words, number]) => `${words} ${count(number)}`).join(", "));
    fill(this._bar, rows.map(([name, , number]) => {
      const part = el("span", `sgnb-fill-${name}`, { hidden: !number });
      part.style.flexGrow = String(number);
      return part;
    }));
    const line = ([name, words, number]) => el("tr", "", {}, el("td", "", {}, el("span", `sgnb-swatch sgnb-swatch-${name}`, { "aria-hidden": "true" })), el("th", "", { scope: "row" }, words), el("td", "sgnb-num", {}, count(number)), el("td", "sgnb-num sgnb-dim", {}, share(number, state.slots)));
    fill(this._states, el("table", "sgnb-kv-states", {}, el("tbody", "", {}, rows.map(line))));
  }

  _showSum(state) {
    if (state.halfTold) return;
    const lost = state.slots - state.counts.reduce((sum, number) => sum + number, 0) + Math.max(0, state.treeTokens - state.counts[CACHED]);
    this._sum.classList.toggle("sgnb-trouble-text", lost !== 0);
    this._report.hidden = !lost;
    setText(this._sum, lost ? trans.__("✕ %1 unaccounted for.", counted.slots(Math.abs(lost))) : trans.__("✓ free + cached + in use = %1", count(state.slots)));
  }

  /** What is shown, as a file: numbers and names, no text. */
  _save() {
    const place = URL.createObjectURL(new Blob([JSON.stringify(reportOf(this.store), null, 1)], { type: "application/json" }));
    el("a", "", { href: place, download: `sgnb-slots-step-${this.store.step}.json` }).click();
    setTimeout(() => URL.revokeObjectURL(place), 1000);
    this.view.region.say(trans.__("Saved the report."));
  }

  _showAbout(state) {
    const { selection } = this.store;
    const { range } = this.view;
    if (range) {
      const owners = new Map();
      for (let slot = range[0]; slot <= range[1]; slot++) {
        const name = state.ownerNames[state.owners[slot]];
        owners.set(name, (owners.get(name) ?? 0) + 1);
      }
      const lines = [...owners].sort((a, b) => b[1] - a[1]).slice(0, 8);
      return fill(this._about, el("h3", "", {}, trans.__("Slots %1 to %2", count(range[0]), count(range[1]))), table([{ name: trans.__("holder") }, { name: trans.__("slots"), ...NUMBER }], lines.map(([name, number]) => [this._name(name), count(number)])));
    }
    const slot = selection?.slot ?? (selection?.kind === "slot" ? selection.id : this.view.cursor);
    if (slot === undefined || slot >= state.slots) return fill(this._about, []);
    return fill(this._about, this.view.words(slot).map((line, index) => el("div", index ? "sgnb-dim" : "", {}, line)));
  }

  /** What a drag over the map chose, as text. */
  get rangeWords() {
    return this._about.innerText;
  }

  /** What a request holds, as text; "" when it holds nothing. */
  holderWords(rid) {
    const holder = this._list?.find(one => one.rid === rid);
    return holder ? trans.__("%1, %2: %3 own, %4 shared", holder.name, holder.state, counted.slots(holder.own), count(holder.shared)) : "";
  }

  _name(owner) {
    if (!owner) return trans.__("free");
    if (owner.startsWith("node:")) return trans.__("node %1 of the tree", owner.slice(5));
    return nameIn(this.store.history, owner);
  }

  _showHolders(state, runs) {
    const { texts } = this.view;
    texts.want([...state.live.keys()].map(rid => state.nodes.get(state.holds.get(rid))).filter(Boolean));
    const list = holdersOf(state, this.store.history, runs, this._kept, node => texts.of(node) ?? "");
    this._list = list;
    if (!list.length) return fill(this.holders, el("p", "sgnb-dim sgnb-pad", {}, trans.__("Nobody holds slots.")));
    if (this.holders.contains(document.activeElement) && this._holderCount === list.length) return undefined;
    this._holderCount = list.length;
    const most = Math.max(1, ...list.map(holder => holder.own + holder.shared));
    const columns = [{ name: trans.__("holder") }, { name: trans.__("state") }, { name: trans.__("own slots"), ...NUMBER }, { name: trans.__("shared"), ...NUMBER }, { name: trans.__("runs"), ...NUMBER }, { name: trans.__("own, shared") }, { name: trans.__("text"), code: true }, { name: "" }];
    const rows = list.map(holder => [
      holder.name,
      holder.state,
      count(holder.own),
      count(holder.shared),
      count(holder.runs),
      ownBar(holder, most),
      oneLine(holder.text ?? "", 60),
      holder.sid ? button(trans.__("Release"), event => this._release(event, holder)) : "",
    ]);
    const selected = list.findIndex(holder => this.store.selection?.kind === "request" && holder.rid === this.store.selection.id);
    const shown = table(columns, rows, { selected, onrow: index => list[index].rid && this.store.select({ kind: "request", id: list[index].rid }) });
    return refocus(this.holders, () => fill(this.holders, shown));
  }

  _release(event, holder) {
    event.stopPropagation();
    this.store.ask("release", { sids: [holder.sid] }).then(
      () => {
        this.view.region.say(trans.__("Released %1.", counted.slots(holder.shared)));
        this._asked = -Infinity;
        this.view.changed();
      },
      error => this.view.region.say(error.message)
    );
  }

  _askKept() {
    const now = performance.now();
    if (now - this._asked < ASK_EVERY || !["idle", "running"].includes(this.store.engineState)) return;
    this._asked = now;
    const put = answer => {
      this._kept = answer.sessions ?? [];
    };
    this.store.ask("holders").then(put, () => put({}));
  }

  _showTable(state) {
    const rows = [];
    for (let slot = 0; slot < state.slots && rows.length < TABLE_ROWS; ) {
      const owner = state.owners[slot];
      const kind = state.kinds[slot];
      let end = slot + 1;
      while (end < state.slots && state.owners[end] === owner && state.kinds[end] === kind) end++;
      rows.push([count(slot), count(end - slot), slotWord(state, slot), this._name(state.ownerNames[owner])]);
      slot = end;
    }
    fill(this.twin, table([{ name: trans.__("from slot"), ...NUMBER }, { name: trans.__("slots"), ...NUMBER }, { name: trans.__("state") }, { name: trans.__("holder") }], rows, { caption: rows.length === TABLE_ROWS ? trans.__("The first %1 runs.", TABLE_ROWS) : "" }));
  }
}

function ownBar(holder, most) {
  const bar = el("span", "sgnb-kv-own", { "aria-hidden": "true" });
  for (const [name, number] of [["prefill", holder.prefill], ["decode", holder.decode], ["locked", holder.shared]]) {
    const part = el("span", `sgnb-fill-${name}`);
    part.style.width = `${(100 * number) / most}%`;
    bar.append(part);
  }
  return bar;
}
