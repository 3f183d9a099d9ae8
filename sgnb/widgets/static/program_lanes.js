// The lanes of a program view: one for the run, one for each branch. Where their rows go, whether they are seen, and in
// words what a branch costs and waits for. Used by program_view.js and program_fork.js; draws no row.

import { el } from "./dom.js";
import { prefillWords } from "./program_data.js";
import { trans } from "./trans.js";

export class Lanes {
  constructor(view) {
    this.view = view;
    this.hosts = new Map([[0, el("div", "sgnb-lane")]]);
    this.forks = new Map(); // lane → the ForkView that holds it
  }

  /** The element that holds a lane's rows. */
  host(number) {
    if (!this.hosts.has(number)) this.hosts.set(number, el("div", "sgnb-lane", { "data-lane": number }));
    return this.hosts.get(number);
  }

  /** Whether the reader can see its rows: no tab or closed row of a table hides them. */
  shown(number) {
    for (let lane = number; this.forks.has(lane); lane = this.forks.get(lane).row.lane) {
      if (!this.forks.get(lane).shows(lane)) return false;
    }
    return true;
  }

  _costs(lane) {
    return this.view.doc.rows.filter(row => row.lane === lane).flatMap(row => row.costs);
  }

  /** The cost of a branch in a table: a line for each of its generations. */
  cost(lane) {
    return this._costs(lane)
      .map(cost => `${cost.name} ${[cost.reuse, ...cost.parts].filter(Boolean).join(" · ")}`)
      .join("\n");
  }

  /** `38`: tokens of a branch as the kernel has written them, or "". */
  tokens(lane) {
    const parts = this._costs(lane).flatMap(cost => cost.parts);
    return parts.find(part => / tok(,|$)/.test(part))?.replace(/ tok.*$/, "") ?? "";
  }

  /** What a branch without text yet waits for, where the engine's events are on this page: {words, busy}, or null. */
  waits(lane) {
    const { store, running, isPast } = this.view;
    if (!store || !running || isPast) return null;
    const compiling = () => ({ words: trans.__("compiling grammar"), busy: true });
    const waiting = words => (words ? { words, busy: false } : null);
    for (const cost of this._costs(lane)) {
      if (cost.state !== "queued" && cost.state !== "running") continue;
      const record = store.history.requests.get(cost.rid);
      if (record?.state === "admitted" && !record.first) {
        const words = prefillWords(record, store.history.steps);
        return words ? { words, busy: true } : null;
      }
      if (record?.state === "compiling") return compiling();
      if (record?.state === "retracted") return waiting(trans.__("retracted, waits for slots"));
      if (!record?.waits || record.state !== "queued") continue;
      const { reason, leader } = record.waits;
      if (reason !== "leader") return reason === "grammar" ? compiling() : null;
      const label = store.history.requests.get(leader)?.label ?? {};
      const place = [label.cell, label.branch].filter(Boolean).join(".");
      return waiting(place && trans.__("waits for %1 (same prefix)", place));
    }
    return null;
  }
}
