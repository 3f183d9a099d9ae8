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

import { Moments } from "./moments.js";
import { asBytes, decode, decoding } from "./msgpack.js";
import { pageId, registry } from "./registry.js";
import { Slices } from "./slices.js";
import { Tape } from "./tape.js";
import { trans } from "./trans.js";

const SILENCE = 5000; // ms without a message: subscribe anew
const ASK_PATIENCE = 8000;
const MAX_SPEAKERS = 64;
const SLICE = 8; // ms of folding at a time while an older past is taken in

/** The data and their playhead, kept up over the line to the kernel. */
export class Store extends Moments {
  constructor(key) {
    super();
    this.key = key;
    this.page = pageId();
    this._channels = [];
    this._visible = new Set();
    this._speaker = null;
    this._asked = new Map();
    this._askId = 0;
    this._heard = 0;
    this._slices = new Slices();
  }

  reset() {
    super.reset();
    this.incarnation = "";
    this.received = 0;
    this._acked = 0;
    this.messages = 0;
  }

  get phase() {
    if (["died", "stopped", "failed"].includes(this.engineState)) return "gone";
    if (this.gap || this.fetching !== null) return "gap";
    if (!this.live.seq && this.engineState === "") return this._channels.length ? "gap" : "none"; // nobody has said yet
    if (!this.live.seq) return this.engineState === "none" ? "none" : "empty";
    return this.history.steps.length || this.live.nodes.size ? "ok" : "empty";
  }

  /** Whether a view shows it, or may: of one that is not in use all data may be forgotten. */
  get inUse() {
    return this._channels.length + this._visible.size > 0;
  }

  /** Whether messages that came are still being taken in. */
  get folding() {
    return this._slices.busy;
  }

  // ---------------------------------------------------------------- a past older than what is held

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

function pause() {
  return new Promise(resolve => setTimeout(resolve, 0));
}

/** The page's store for a key; the same one for every view and bundle. */
export function storeOf(key) {
  const { stores } = registry();
  if (!stores.has(key)) stores.set(key, new Store(key));
  return stores.get(key);
}
