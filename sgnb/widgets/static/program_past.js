// The program as it was at the playhead: asked of the kernel, which folds the run's log up to that moment (widgets/past.py).
// One question at a time; the newest moment wins.

import { lastBefore } from "./tape.js";

/** What the page knows of a moment: how many tokens each request had drawn by then, and which had ended. */
export function momentOf(history, rids, time) {
  const tokens = {};
  const ended = [];
  let began = Infinity; // no step before has a row of the run: of ten minutes of steps it is a few
  for (const rid of rids) {
    const record = history.requests.get(rid);
    if (!record || record.queued > time) continue;
    tokens[rid] = 0;
    began = Math.min(began, record.queued);
    if (record.finished && record.finished <= time) ended.push(rid);
  }
  const { steps } = history;
  for (let at = lastBefore(steps, step => step.time < began) + 1; at < steps.length; at++) {
    const step = steps[at];
    const { forward_seconds = 0, sample_seconds = 0 } = step;
    if (step.time > time) break;
    if (step.time + forward_seconds + sample_seconds > time) continue;
    for (const { rid, kind, tokens: count, prefix } of step.rows) {
      if (tokens[rid] === undefined) continue;
      const draws = kind === "decode" || (kind === "prefill" && prefix + count >= history.requests.get(rid).prompt);
      if (draws) tokens[rid]++;
    }
  }
  return { time, tokens, ended };
}

export class Past {
  /** `ask(moment)` → Promise of a snapshot; `show(snapshot)` draws it, null: live again. `rids()`: the run's requests. */
  constructor(ask, show, rids) {
    this.ask = ask;
    this.show = show;
    this.rids = rids;
    this.wanted = null; // the moment to show; null: live
    this.shown = null; // the moment that is shown
    this.busy = false;
  }

  /**
   * The reader moves the playhead from here, by `move`. No other view may have asked for the engine's events: they are asked
   * for while the playhead is not at live, and where none is known it moves when they are there.
   */
  scrub(store, move) {
    if (!store) return false;
    const go = () => {
      move();
      if (store.isLive) this.rest(store);
    };
    store.visible(this, true);
    this.off?.();
    this.off = null;
    if (store.history.steps.length) go();
    else {
      this.off = store.subscribe(() => {
        if (!store.history.steps.length) return;
        this.off?.();
        this.off = null;
        go();
      });
    }
    return true;
  }

  /** Nothing is asked for from here any more. */
  rest(store) {
    this.off?.();
    this.off = null;
    store?.visible(this, false);
  }

  /** The playhead moved. */
  follow(store) {
    this.store = store;
    if (store.isLive) this.rest(store);
    this.wanted = store.isLive ? null : store.time;
    if (this.wanted === null) this.show((this.shown = null));
    else if (!this.busy && this.wanted !== this.shown) void this.next();
  }

  async next() {
    this.busy = true;
    let asked = null;
    while (this.wanted !== null && this.wanted !== asked) {
      asked = this.wanted;
      let snapshot = null;
      try {
        snapshot = await this.ask(momentOf(this.store.history, this.rids(), asked));
      } catch {
        // the kernel does not answer: what is shown stays, and the head says of when it is
      }
      if (this.wanted === null) break;
      if (!snapshot) continue;
      this.shown = asked;
      this.show(snapshot);
    }
    this.busy = false;
  }
}
