// One store per kernel and engine: all views of a page share it, its playhead and its selection.
//
// Contract, for views (widgets and docked panes alike):
//   const store = storeOf(key)               key: `<kernel>/<engine>`; one store for the page, also across bundles
//   const detach = store.attach(channel)     while a view shows something. channel: {send(object), onMessage(f) → off}
//   store.visible(view, true|false)          0 visible views: nothing is subscribed, the kernel does no work
//   const off = store.subscribe(f)           f(what): "data" (≤ 30/s), "playhead", "selection", "state"
//   store.shown                              EngineState at the playhead (fold.js): nodes, slots, live requests
//   store.history                            History: steps, requests, figures, marks, prompts (all that is kept);
//                                            draw what is not after store.time
//   store.time, store.now                    seconds of the playhead, and of the newest moment, by the engine's clock
//   store.isLive, store.goLive(), store.goTo(time), store.goToStep(n), store.stepBy(±1), store.eventBy(±1)
//   store.selection, store.select({kind: "request"|"node"|"slot"|"step", id}) or select(null)
//   store.ask(verb, args) → Promise          nodes, holders, prompt, memory, stats, requests, pause, step, resume, …
//   store.replaying                          of a recording: {span: [first, last], file, end, trouble}; else null. Its end
//                                            is "live". store.play(speed), store.pause(), store.playing: 0 or the speed
//   store.phase                              "none" no engine · "empty" no data yet · "gap" catching up · "ok" · "gone"
//   store.engineState, store.engineAt        the engine's word ("idle", "died", …) and since when (epoch seconds)
// Data come in by messages of sgnb/widgets/telemetry.py, or by store.feedEvents() and store.load() (recordings).
// Views never change events or states. What is kept of the past is tape.js's: the minutes of the setting historyMinutes (1 to
// 10), also those before the page looked: the engine has them, and goTo() a moment before store.oldest gets them
// (store.fetching until they are there). A recording is kept whole.

import { asBytes, decode, decoding } from "./msgpack.js";
import { pageId, registry } from "./registry.js";
import { onSettings, settings } from "./settings.js";
import { Slices, drain } from "./slices.js";
import { KEEP_SECONDS, Tape, lastBefore } from "./tape.js";
import { trans } from "./trans.js";

const SILENCE = 5000; // ms without a message: subscribe anew
const ASK_PATIENCE = 8000;
const MAX_SPEAKERS = 64;
const PLAY_EVERY = 33; // ms
const SLICE = 8; // ms of folding at a time while an older past is taken in

export class Store {
  constructor(key) {
    this.key = key;
    this.page = pageId();
    this.selection = null;
    this.playhead = null; // seconds, or null: live
    this.engineState = "";
    this.engineAt = 0;
    this.gap = false;
    this.replaying = null;
    this.playing = 0;
    this._listeners = new Set();
    this._channels = [];
    this._visible = new Set();
    this._speaker = null;
    this._asked = new Map();
    this._askId = 0;
    this._heard = 0;
    this._slices = new Slices();
    this.reset();
    onSettings(() => this._keepOnly(keepSeconds())); // for as long as the page: so is the store
  }

  /** Forget all data: another engine, or another recording. */
  reset() {
    this.tape = new Tape({ replaying: !!this.replaying, keep: keepSeconds() });
    this.incarnation = "";
    this.fetching = null; // the moment that is waited for while the engine is asked for an older past
    this._first = false; // whether what is held begins with the oldest that the engine has
    this._clock = { engine: 0, page: 0 };
    this.received = 0;
    this._acked = 0;
    this.messages = 0;
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

  get phase() {
    if (["died", "stopped", "failed"].includes(this.engineState)) return "gone";
    if (this.gap || this.fetching !== null) return "gap";
    if (!this.live.seq && this.engineState === "") return this._channels.length ? "gap" : "none"; // nobody has said yet
    if (!this.live.seq) return this.engineState === "none" ? "none" : "empty";
    return this.history.steps.length || this.live.nodes.size ? "ok" : "empty";
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

  /** Whether a view shows it, or may: of one that is not in use all data may be forgotten. */
  get inUse() {
    return this._channels.length + this._visible.size > 0;
  }

  /** Whether messages that came are still being taken in. */
  get folding() {
    return this._slices.busy;
  }

  /** Bytes held for the past, about. */
  get pastBytes() {
    return this.tape.bytes;
  }

  // ---------------------------------------------------------------- a past older than what is held

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

  /** Get what the engine has of the time before `time` and after it, beside what is shown, and put it in its place. */
  async _reach(time) {
    if (this.replaying || this._first || !this._channels.length || this.phase === "gone") return;
    const tape = this.tape;
    if (tape.oldest <= tape.floor) return; // older than the setting allows
    const busy = this.fetching !== null;
    this.fetching = Math.max(time, tape.floor);
    if (busy) return; // the round that runs looks again when it ends
    try {
      const older = await this._olderThan(this.fetching, tape);
      if (this.tape !== tape || this.fetching === null) return;
      this._first = older.oldest > Math.max(time, older.floor);
      this.tape = older;
    } catch {
      this._first = this.tape === tape && this.fetching !== null; // the engine cannot: what is held is all there is
    }
    const wanted = this.fetching;
    if (wanted === null || this.tape.live.seq === 0) return;
    this.fetching = null;
    this._tell("data");
    this.playhead = null;
    this.goTo(wanted);
  }

  /** A tape that begins before `time` and reaches the newest event of `tape`. */
  async _olderThan(time, tape) {
    const older = new Tape({ keep: tape.keep });
    const { buffers } = await this.ask("past", { time });
    older.load(decode(asBytes(buffers[0])));
    while (older.live.seq + 1 < tape.firstSeq) {
      const { data, buffers: parts } = await this.ask("events", { from_seq: older.live.seq + 1 });
      const bytes = asBytes(parts[0]);
      const events = decode(bytes).events;
      if (!events.length || !older.feed(events, bytes)) throw new RangeError(`the past ends at ${data.last_seq}`);
      await pause();
    }
    while (!older.takeFrom(tape, SLICE)) await pause();
    return older;
  }

  // ---------------------------------------------------------------- the line to the kernel

  attach(channel) {
    const entry = { channel, off: null };
    entry.off = channel.onMessage((content, buffers) => this._message(content, buffers ?? []));
    this._channels.push(entry);
    if (this._channels.length > MAX_SPEAKERS) this._channels.shift();
    this._choose();
    return () => {
      entry.off?.();
      this._channels = this._channels.filter(other => other !== entry);
      if (this._speaker === entry) {
        this._say({ k: "unsub" }, entry);
        this._speaker = null;
        this._choose();
      }
    };
  }

  /** A view is seen or not: with none seen nothing is subscribed. */
  visible(view, seen) {
    const before = this._visible.size;
    if (seen) this._visible.add(view);
    else this._visible.delete(view);
    if (!!before !== !!this._visible.size) this._choose();
  }

  /** One channel of the page speaks for all its views. */
  _choose() {
    if (!this._visible.size) this.pause();
    const wanted = this._visible.size > 0 && this._channels.length > 0;
    if (wanted && !this._speaker) {
      this._speaker = this._channels[0];
      this._subscribe();
      registry().watch(this);
    } else if (!wanted && this._speaker) {
      this._say({ k: "unsub" }, this._speaker);
      this._speaker = null;
    }
  }

  _subscribe() {
    this.received = this._acked = 0;
    this._heard = performance.now();
    this._say({ k: "sub", from: this.live.odd || this.history.odd ? 0 : this.live.seq }, this._speaker);
  }

  _say(content, entry) {
    try {
      entry?.channel.send({ ...content, page: this.page });
    } catch {
      // the comm is gone: another view's, or the next message, will show it
    }
  }

  _message(content, buffers) {
    if (!content || typeof content !== "object") return;
    if (content.k === "answer") return this._answered(content, buffers);
    if (content.page !== undefined && content.page !== this.page) return; // for another page of the same widget
    this._heard = performance.now();
    this.messages++;
    this._slices.put(this._taking(content, buffers));
  }

  *_taking(content, buffers) {
    if (content.k === "engine") {
      this.engineState = content.state;
      this.engineAt = content.at;
      this._tell("state");
    } else if (content.k === "snapshot") {
      const again = this.replaying && this.live.seq > 0;
      if (content.replay) this.replaying = content.replay;
      if (this.live.seq) this.gap = true; // "Catching up …" while it is taken in
      this._tell("state");
      const snapshot = yield* decoding(buffers[0]);
      if (again) this.loadPart(snapshot);
      else yield* this._loading(snapshot);
      this.gap = false;
    } else if (content.k === "replay") {
      this.replaying = content.replay;
      this._tell("state");
    } else if (content.k === "frames") {
      for (const buffer of buffers) if (!(yield* this._frame(asBytes(buffer)))) break;
      this._tell("data");
    }
    if (Number.isInteger(content.n)) this.received = Math.max(this.received, content.n); // what waits here is not taken yet
  }

  *_frame(bytes) {
    const frame = yield* decoding(bytes);
    if (frame.incarnation && this.incarnation && frame.incarnation !== this.incarnation) {
      this.goLive();
      this.reset();
    }
    if (frame.incarnation) this.incarnation = frame.incarnation;
    const whole = yield* this._feeding(frame.events ?? [], { bytes, time: frame.time });
    if (whole && (frame.last_seq <= this.live.seq || frame.past)) {
      this.gap = this.gap && !!frame.past && frame.last_seq > this.live.seq;
      return true;
    }
    if (!this.gap) {
      this.gap = true;
      if (this._speaker) this._subscribe();
    }
    return false;
  }

  /** Ask the engine; rejects with its words, or after eight seconds. */
  ask(verb, args = {}) {
    const entry = this._speaker ?? this._channels[0];
    if (!entry) return Promise.reject(new Error(trans.__("No kernel is connected.")));
    const id = `${this.page}.${++this._askId}`;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this._asked.delete(id);
        reject(new Error(trans.__("The kernel did not answer %1.", verb)));
      }, ASK_PATIENCE);
      this._asked.set(id, { resolve, reject, timer });
      const moment = this.replaying ? { at: this.time } : {};
      this._say({ k: "ask", id, verb, args: { ...args, ...moment } }, entry);
    });
  }

  _answered(content, buffers) {
    const asked = this._asked.get(content.id);
    if (!asked) return;
    if (Number.isInteger(content.n)) this.received = Math.max(this.received, content.n);
    this._asked.delete(content.id);
    clearTimeout(asked.timer);
    if (content.error !== undefined) asked.reject(new Error(content.error));
    else asked.resolve(buffers.length ? { data: content.data ?? {}, buffers } : (content.data ?? {}));
  }

  /** Called by the page's one timer: an acknowledgement if one is due (true), a new subscription after silence. */
  tick() {
    if (!this._speaker) return false;
    if (this.received > this._acked) {
      this._acked = this.received;
      this._say({ k: "ack", n: this._acked }, this._speaker);
      return true;
    }
    const silent = performance.now() - this._heard > SILENCE;
    if (silent && !this.replaying?.end && !["died", "stopped", "failed"].includes(this.engineState)) this._subscribe();
    return false;
  }
}

/** Seconds of the past that the setting allows; the engine has no more than ten minutes. */
function keepSeconds() {
  const wanted = 60 * Number(settings().historyMinutes);
  return Number.isNaN(wanted) ? KEEP_SECONDS : Math.min(KEEP_SECONDS, Math.max(60, wanted));
}

function pause() {
  return new Promise(resolve => setTimeout(resolve, 0));
}

/** The page's store for a key; the same one for every view and bundle. */
export function storeOf(key) {
  const { stores } = registry();
  if (!stores.has(key)) stores.set(key, new Store(key));
  return stores.get(key);
}
