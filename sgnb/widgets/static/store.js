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
// Views never change events or states. Ten minutes are kept: raw frames, and checkpoints to fold on from.

import { EngineState, History } from "./fold.js";
import { asBytes, decode } from "./msgpack.js";
import { pageId, registry } from "./registry.js";

const KEEP_SECONDS = 600;
const MAX_LOG_BYTES = 48 << 20;
const MAX_CHECKPOINT_BYTES = 48 << 20;
const CHECKPOINT_SECONDS = 5;
const SILENCE = 5000; // ms without a message: subscribe anew
const ASK_PATIENCE = 8000;
const MAX_SPEAKERS = 64;
const PLAY_EVERY = 33; // ms
const REPLAY_BYTES = 4; // times as many bytes of the past are kept of a recording, and no limit of time

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
    this.reset();
  }

  /** Forget all data: another engine, or another recording. */
  reset() {
    this.live = new EngineState();
    this.history = new History();
    this.incarnation = "";
    this._log = []; // {first, last, time, bytes | events, size}
    this._logBytes = 0;
    this._checkpoints = []; // {seq, time, state, weight}
    this._checkpointBytes = 0;
    this._scrub = null;
    this._clock = { engine: 0, page: 0 };
    this.received = 0;
    this._acked = 0;
    this.messages = 0;
  }

  // ---------------------------------------------------------------- what views read

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
    return this.isLive ? this.live : this._at(this.playhead);
  }

  /** The oldest moment that can be shown. */
  get oldest() {
    return this._checkpoints[0]?.time ?? this.live.time;
  }

  get phase() {
    if (["died", "stopped", "failed"].includes(this.engineState)) return "gone";
    if (this.gap) return "gap";
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
    this._scrub = null;
    this._tell("playhead");
  }

  /** Show the moment `time`; at or beyond the newest one it is live. */
  goTo(time) {
    if (time >= this.live.time) return this.goLive();
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
    const steps = this.history.steps;
    let low = 0;
    let high = steps.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (steps[middle].time <= time) low = middle + 1;
      else high = middle;
    }
    return low - 1;
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
    return this.history.steps[this.stepIndexAt(this.playhead)]?.step ?? this._at(this.playhead).step;
  }

  /** The state at `time`: from the last checkpoint before it, or on from the one that was shown. */
  _at(time) {
    let scrub = this._scrub;
    if (scrub && scrub.until === time) return scrub.state;
    const base = this._checkpoints.findLast(point => point.time <= time) ?? this._checkpoints[0];
    if (!base) return this.live;
    if (!scrub || scrub.state.time > time || scrub.state.seq < base.seq) {
      scrub = this._scrub = { state: base.state.clone(), until: 0 };
    }
    const state = scrub.state;
    let index = this._log.findLastIndex(entry => entry.first <= state.seq + 1);
    if (index < 0) index = 0;
    for (; index < this._log.length; index++) {
      const entry = this._log[index];
      for (const { seq, event } of eventsOf(entry)) {
        if (seq <= state.seq) continue;
        if (event.time > time) {
          scrub.until = time;
          return state;
        }
        state.apply(seq, event);
      }
    }
    scrub.until = time;
    return state;
  }

  // ---------------------------------------------------------------- data in

  /** Take a snapshot (decoded): what was shown before is replaced, its past is kept for the lists. */
  load(snapshot) {
    this.reset();
    this.live = EngineState.fromSnapshot(snapshot);
    for (const { event } of snapshot.past ?? []) this.history.apply(event);
    this.history.odd = false; // its oldest events may begin in the middle
    this.history.fromSnapshot(snapshot);
    this._setClock(snapshot.time);
    this._checkpoint();
    this.gap = false;
    this._tell("data");
  }

  /** Take numbered events; false when one is missing, or cannot follow what came before. `bytes` is their raw form, if there is one. */
  feedEvents(numbered, { bytes = null, time = 0 } = {}) {
    const fresh = numbered.filter(({ seq }) => seq > this.live.seq);
    if (fresh.length) {
      if (fresh.some(({ seq }, index) => seq !== this.live.seq + 1 + index)) return false;
      if (!this._checkpoints.length) this._checkpoint(fresh[0].event.time);
      this._keep(fresh, bytes, numbered.length === fresh.length);
      for (const { seq, event } of fresh) {
        this.live.apply(seq, event);
        this.history.apply(event);
      }
      if (this.live.odd || this.history.odd) return false;
      this._maybeCheckpoint();
    }
    this._setClock(Math.max(time, this.live.time));
    return true;
  }

  /** Go on from a later snapshot of a recording: the events between are missing, what was before stays. */
  loadPart(snapshot) {
    this.live = EngineState.fromSnapshot(snapshot);
    this.history.odd = false; // what is missing may have begun requests that go on
    this.history.fromSnapshot(snapshot);
    this._checkpoint();
    this._setClock(snapshot.time);
    this._tell("data");
  }

  _setClock(time) {
    this._clock = { engine: time, page: performance.now() };
  }

  _keep(events, bytes, whole) {
    const size = bytes && whole ? bytes.byteLength : events.length * 400;
    const entry = { first: events[0].seq, last: events.at(-1).seq, time: events[0].event.time, size };
    if (bytes && whole) entry.bytes = bytes;
    else entry.events = events;
    this._log.push(entry);
    this._logBytes += size;
    const oldest = this.replaying ? -Infinity : events[0].event.time - KEEP_SECONDS;
    const most = this.replaying ? REPLAY_BYTES * MAX_LOG_BYTES : MAX_LOG_BYTES;
    let cut = false;
    while (this._log.length > 1 && (this._logBytes > most || this._log[0].time < oldest)) {
      this._logBytes -= this._log.shift().size;
      cut = true;
    }
    // A checkpoint is of use only while the events after it are there.
    while (cut && this._checkpoints.length > 1 && this._checkpoints[0].seq + 1 < this._log[0].first) this._dropCheckpoint();
  }

  _dropCheckpoint(index = 0) {
    this._checkpointBytes -= this._checkpoints.splice(index, 1)[0].weight;
  }

  _maybeCheckpoint() {
    const last = this._checkpoints.at(-1);
    const every = Math.max(CHECKPOINT_SECONDS, (KEEP_SECONDS * this.live.weight) / MAX_CHECKPOINT_BYTES);
    if (last && this.live.time - last.time < every) return;
    this._checkpoint();
  }

  _checkpoint(time = this.live.time) {
    const weight = this.live.weight;
    this._checkpoints.push({ seq: this.live.seq, time, state: this.live.clone(), weight });
    this._checkpointBytes += weight;
    // Too heavy: every second one goes, so that the whole time stays within reach, in longer strides.
    for (let index = 1; this._checkpointBytes > MAX_CHECKPOINT_BYTES && this._checkpoints.length > 2; index++) {
      if (index >= this._checkpoints.length - 1) index = 1;
      this._dropCheckpoint(index);
    }
  }

  /** Bytes held for the past, about. */
  get pastBytes() {
    return this._logBytes + this._checkpointBytes;
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
    if (content.k === "answer") return this._answered(content);
    if (content.page !== undefined && content.page !== this.page) return; // for another page of the same widget
    if (Number.isInteger(content.n)) this.received = Math.max(this.received, content.n);
    this._heard = performance.now();
    this.messages++;
    if (content.k === "engine") {
      this.engineState = content.state;
      this.engineAt = content.at;
      this._tell("state");
    } else if (content.k === "snapshot") {
      const again = this.replaying && this.live.seq > 0;
      if (content.replay) this.replaying = content.replay;
      if (again) this.loadPart(decode(asBytes(buffers[0])));
      else this.load(decode(asBytes(buffers[0])));
    } else if (content.k === "replay") {
      this.replaying = content.replay;
      this._tell("state");
    } else if (content.k === "frames") {
      for (const buffer of buffers) if (!this._frame(asBytes(buffer))) break;
      this._tell("data");
    }
  }

  _frame(bytes) {
    const frame = decode(bytes);
    if (frame.incarnation && this.incarnation && frame.incarnation !== this.incarnation) {
      this.goLive();
      this.reset();
    }
    if (frame.incarnation) this.incarnation = frame.incarnation;
    const whole = this.feedEvents(frame.events ?? [], { bytes, time: frame.time });
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
    if (!entry) return Promise.reject(new Error("No kernel is connected."));
    const id = `${this.page}.${++this._askId}`;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this._asked.delete(id);
        reject(new Error(`The kernel did not answer ${verb}.`));
      }, ASK_PATIENCE);
      this._asked.set(id, { resolve, reject, timer });
      const moment = this.replaying ? { at: this.time } : {};
      this._say({ k: "ask", id, verb, args: { ...args, ...moment } }, entry);
    });
  }

  _answered(content) {
    const asked = this._asked.get(content.id);
    if (!asked) return;
    if (Number.isInteger(content.n)) this.received = Math.max(this.received, content.n);
    this._asked.delete(content.id);
    clearTimeout(asked.timer);
    if (content.error !== undefined) asked.reject(new Error(content.error));
    else asked.resolve(content.data ?? {});
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

function eventsOf(entry) {
  return entry.events ?? decode(entry.bytes).events;
}

/** The page's store for a key; the same one for every view and bundle. */
export function storeOf(key) {
  const { stores } = registry();
  if (!stores.has(key)) stores.set(key, new Store(key));
  return stores.get(key);
}
