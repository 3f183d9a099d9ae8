// What is known of an engine, and the moment of it that is shown: its data with their playhead and selection. What views read
// of a store, and what they say to it, is here but for questions; where the data come from is store.js's, whose Store is one
// of these. The contract stands there. No messages and no channels here.

import { onSettings, settings } from "./settings.js";
import { drain } from "./slices.js";
import { KEEP_SECONDS, Tape, lastBefore } from "./tape.js";

const PLAY_EVERY = 33; // ms

export class Moments {
  constructor() {
    this.selection = null;
    this.playhead = null; // seconds, or null: live
    this.engineState = "";
    this.engineAt = 0;
    this.gap = false;
    this.replaying = null;
    this.playing = 0;
    this._listeners = new Set();
    this.reset();
    onSettings(() => this._keepOnly(keepSeconds())); // for as long as the page: so is the store
  }

  /** Forget all data: another engine, or another recording. */
  reset() {
    this.tape = new Tape({ replaying: !!this.replaying, keep: keepSeconds() });
    this.fetching = null; // the moment that is waited for while the engine is asked for an older past
    this._first = false; // whether what is held begins with the oldest that the engine has
    this._clock = { engine: 0, page: 0 };
  }

  // ---------------------------------------------------------------- what views read

  get live() {
    return this.tape.live;
  }

  get history() {
    return this.tape.history;
  }

  get isLive() {
    return this.playhead === null;
  }

  /** The newest moment, in seconds of the engine's clock. */
  get now() {
    const gone = this.replaying || ["died", "stopped", "failed"].includes(this.engineState) || !this._clock.page;
    const since = gone ? 0 : (performance.now() - this._clock.page) / 1000;
    return this._clock.engine + Math.min(since, 2);
  }

  get time() {
    return this.playhead ?? this.now;
  }

  get shown() {
    return this.isLive ? this.live : this.tape.at(this.playhead);
  }

  /** The oldest moment that can be shown. */
  get oldest() {
    return this.tape.oldest;
  }

  subscribe(listener) {
    this._listeners.add(listener);
    return () => this._listeners.delete(listener);
  }

  _tell(what) {
    for (const listener of [...this._listeners]) listener(what);
  }

  select(selection) {
    const same = (this.selection?.kind ?? "") === (selection?.kind ?? "") && this.selection?.id === selection?.id;
    if (same) return;
    this.selection = selection;
    this._tell("selection");
  }

  // ---------------------------------------------------------------- playhead

  goLive() {
    if (this.playhead === null) return;
    this.playhead = null;
    this.fetching = null;
    this._tell("playhead");
  }

  /** Show the moment `time`; at or beyond the newest one it is live. One before what is held is asked for. */
  goTo(time) {
    if (time >= this.live.time) return this.goLive();
    if (time >= this.oldest) this.fetching = null;
    else this._reach(time);
    const bounded = Math.max(this.oldest, time);
    if (bounded === this.playhead) return;
    this.playhead = bounded;
    this._tell("playhead");
  }

  /** Let the playhead run, `speed` seconds a second; from the beginning when it stands at the end. */
  play(speed = 1) {
    this.pause();
    this.playing = speed;
    if (this.isLive) this.goTo(this.oldest);
    let last = performance.now();
    this._player = setInterval(() => {
      const now = performance.now();
      this.goTo(this.time + ((now - last) / 1000) * this.playing);
      last = now;
      if (this.isLive) this.pause();
    }, PLAY_EVERY);
    this._tell("playhead");
  }

  pause() {
    clearInterval(this._player);
    if (!this.playing) return;
    this.playing = 0;
    this._tell("playhead");
  }

  /** The last step that began at or before `time`; its place in history.steps, or -1. */
  stepIndexAt(time) {
    return lastBefore(this.history.steps, step => step.time <= time);
  }

  goToStep(number) {
    const found = this.history.steps.findIndex(step => step.step >= number);
    if (found >= 0) this.goTo(this._endOf(found));
  }

  stepBy(count) {
    const steps = this.history.steps;
    const here = this.isLive ? steps.length - 1 : this.stepIndexAt(this.playhead);
    const next = here + count;
    if (next >= steps.length) return this.goLive();
    if (next >= 0) this.goTo(this._endOf(next));
  }

  /** When a step's results are there, but before the next one was planned: with overlap that is earlier. */
  _endOf(index) {
    const { steps } = this.history;
    const { time, forward_seconds = 0, sample_seconds = 0, process_seconds = 0 } = steps[index];
    const end = time + 2e-6 + forward_seconds + sample_seconds + process_seconds;
    return Math.max(time, Math.min(end, (steps[index + 1]?.time ?? Infinity) - 1e-6));
  }

  eventBy(direction) {
    const marks = this.history.marks;
    const time = this.time;
    const found = direction > 0 ? marks.find(mark => mark.time > time + 1e-6) : marks.findLast(mark => mark.time < time - 1e-6);
    if (found) this.goTo(found.time);
    else if (direction > 0) this.goLive();
  }

  /** The number of the step that is shown. */
  get step() {
    if (this.isLive) return this.live.step;
    return this.history.steps[this.stepIndexAt(this.playhead)]?.step ?? this.shown.step;
  }

  // ---------------------------------------------------------------- data in

  /** Take a snapshot (decoded): what was shown before is replaced. */
  load(snapshot) {
    drain(this._loading(snapshot));
  }

  /** What is shown stays until the new picture is whole. */
  *_loading(snapshot) {
    const tape = new Tape({ replaying: !!this.replaying, keep: keepSeconds() });
    yield* tape.loading(snapshot);
    this.reset();
    this.tape = tape;
    this._setClock(snapshot.time);
    this.gap = false;
    this._tell("data");
  }

  /** Take numbered events; false when one is missing, or cannot follow what came before. `bytes` is their raw form, if there is one. */
  feedEvents(numbered, more) {
    return drain(this._feeding(numbered, more));
  }

  *_feeding(numbered, { bytes = null, time = 0 } = {}) {
    if (!(yield* this.tape.feeding(numbered, bytes))) return false;
    this._setClock(Math.max(time, this.live.time));
    return true;
  }

  /** Go on from a later snapshot of a recording: the events between are missing, what was before stays. */
  loadPart(snapshot) {
    this.tape.loadPart(snapshot);
    this._setClock(snapshot.time);
    this._tell("data");
  }

  _setClock(time) {
    this._clock = { engine: time, page: performance.now() };
  }

  /** Bytes held for the past, about. */
  get pastBytes() {
    return this.tape.bytes;
  }

  /** The setting changed: what is too old goes at once; what was let go may be wanted again. */
  _keepOnly(seconds) {
    if (seconds === this.tape.keep) return;
    this.fetching = null;
    this._first = false;
    this.tape.keepOnly(seconds);
    if (!this.isLive && this.playhead < this.oldest) {
      this.playhead = this.oldest;
      this._tell("playhead");
    }
    this._tell("data");
  }

  /** A moment before what is held is wanted: whoever can ask for it does so. */
  _reach(_time) {}
}

/** Seconds of the past that the setting allows; the engine has no more than ten minutes. */
function keepSeconds() {
  const wanted = 60 * Number(settings().historyMinutes);
  return Number.isNaN(wanted) ? KEEP_SECONDS : Math.min(KEEP_SECONDS, Math.max(60, wanted));
}
