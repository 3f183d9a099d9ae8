// The past of one engine, as a page holds it: raw events, the state of the newest moment, and points to fold on from, so that
// any moment kept is shown after a few hundred events. Pure: no page, no comm. Made by store.js; views see it through that.
//
// A point is a whole copy of the state, or what changed since the point before (fold.js). Some minutes are kept (`keep`), in
// bounded bytes: when the points become too many, old moments are the first to take longer.

import { EngineState } from "./fold.js";
import { History } from "./history.js";
import { decode } from "./msgpack.js";
import { drain } from "./slices.js";

export const KEEP_SECONDS = 600; // the engine itself has no more
const MAX_LOG_BYTES = 48 << 20;
const MAX_POINT_BYTES = 48 << 20;
const WHOLE_SECONDS = 10; // between two whole copies, at least
const EVENTS_A_POINT = 200;
const TELLING = 0.25; // seconds at most from a change of the tree to its slots
const DECODED = 64; // frames of which the events are kept at hand
const REPLAY_BYTES = 4; // times as many bytes of the past are kept of a recording, and no limit of time

export class Tape {
  /** `keep`: seconds before the newest event that can be shown; a recording is shown whole. */
  constructor({ replaying = false, keep = KEEP_SECONDS } = {}) {
    this.replaying = replaying;
    this.keep = keep;
    this.live = new EngineState();
    this.history = new History();
    this._held = []; // {first, last, time, bytes | events, size}
    this._heldBytes = 0;
    this._short = false; // events behind the first point were let go
    this._points = []; // {seq, time, state | change, weight}
    this._pointBytes = 0;
    this._wholeAt = -Infinity;
    this._changeBytes = 0; // of the changes since the last whole copy
    this._scrub = null;
    this._decoded = new Map();
  }

  /** The oldest moment that can be shown. */
  get oldest() {
    const points = this._points;
    const first = this._short ? lastBefore(points, point => point.seq + 1 < this.firstSeq) + 1 : 0;
    return Math.max(points[first]?.time ?? this.live.time, this.floor); // a part of a recording may have no event at all
  }

  /** Before this moment nothing is shown, whatever is held. */
  get floor() {
    return this.replaying ? -Infinity : this.live.time - this.keep;
  }

  /** Show `seconds` of the past from now on; what lies before is let go at once. */
  keepOnly(seconds) {
    this.keep = seconds;
    this._cut();
  }

  /** Bytes held for the past, about. */
  get bytes() {
    return this._heldBytes + this._pointBytes;
  }

  /** The first event that is kept, or would be the next. */
  get firstSeq() {
    return this._held[0]?.first ?? this.live.seq + 1;
  }

  // ---------------------------------------------------------------- data in

  /** Begin with a snapshot (decoded). Its `past`, events before it, is for the lists alone. */
  load(snapshot) {
    drain(this.loading(snapshot));
  }

  /** The same in slices. */
  *loading(snapshot) {
    this.live = yield* EngineState.fromParts(snapshot);
    for (const { event } of snapshot.past ?? []) {
      this.history.apply(event);
      yield;
    }
    this.goOn(snapshot);
  }

  /** Go on from a later snapshot: the events between are missing, what was before stays. */
  loadPart(snapshot) {
    this.live = EngineState.fromSnapshot(snapshot);
    this.goOn(snapshot);
  }

  goOn(snapshot) {
    this.history.odd = false; // what is missing may have begun requests that go on
    this.history.fromSnapshot(snapshot);
    this._wholeAt = -Infinity;
    this._point();
  }

  /** Take numbered events; false when one is missing, or cannot follow. `bytes` is their raw form, if there is one. */
  feed(numbered, bytes = null) {
    return drain(this.feeding(numbered, bytes));
  }

  /** The same in slices; between them the state is that of an earlier event. */
  *feeding(numbered, bytes = null) {
    const fresh = numbered.filter(({ seq }) => seq > this.live.seq);
    if (!fresh.length) return true;
    if (fresh.some(({ seq }, index) => seq !== this.live.seq + 1 + index)) return false;
    if (!this._points.length) this._point(fresh[0].event.time);
    this._keep(fresh, bytes && numbered.length === fresh.length ? bytes : null);
    for (const { seq, event } of fresh) {
      this.live.apply(seq, event);
      this.history.apply(event);
      if (seq - this._points[this._points.length - 1].seq >= EVENTS_A_POINT) this._point();
      yield;
    }
    this._cut();
    return !this.live.odd && !this.history.odd;
  }

  /** Take what another tape holds of the events after this one's last; at most for `patience` ms. True when all are taken. */
  takeFrom(other, patience) {
    const until = performance.now() + patience;
    while (this.live.seq < other.live.seq) {
      const entry = other._held[other._entryOf(this.live.seq + 1)];
      if (!entry || entry.last <= this.live.seq) throw new RangeError("the past does not reach the present");
      if (!this.feed(eventsOf(entry), entry.bytes)) throw new RangeError("the past does not lead to the present");
      if (performance.now() > until) return this.live.seq >= other.live.seq;
    }
    return true;
  }

  _keep(events, bytes) {
    const size = bytes ? bytes.byteLength : events.length * 400;
    const entry = { first: events[0].seq, last: events.at(-1).seq, time: events[0].event.time, size };
    if (bytes) entry.bytes = bytes;
    else entry.events = events;
    this._held.push(entry);
    this._heldBytes += size;
  }

  /** Let events go that are too old or too many, up to a point: what it stands on stays, so that it is the oldest moment. */
  _cut() {
    // Of an engine that rests, the last minutes of its work stay to be looked at.
    if (!this.replaying) this.history.forgetBefore(Math.min(this.live.time, this.history.steps.at(-1)?.time ?? Infinity) - this.keep);
    const most = this.replaying ? REPLAY_BYTES * MAX_LOG_BYTES : MAX_LOG_BYTES;
    const { floor } = this;
    let first = lastBefore(this._points, point => point.time <= floor);
    let left = this._heldBytes;
    for (const { last, size } of this._held) {
      if (left <= most) break;
      left -= size;
      while (first + 1 < this._points.length && (first < 0 || this._points[first].seq < last)) first++;
    }
    const seq = this._points[first]?.seq ?? -1;
    const cut = lastBefore(this._held, entry => entry.last <= seq) + 1;
    if (!cut) return;
    this._short = true;
    for (const entry of this._held.splice(0, cut)) {
      this._heldBytes -= entry.size;
      this._decoded.delete(entry);
    }
    // The point may be a change: it lies on the last whole copy, and the changes since.
    const whole = this._points.findLastIndex((point, index) => point.state && index <= first);
    for (const { weight } of this._points.splice(0, whole)) this._pointBytes -= weight;
  }

  _point(time = this.live.time) {
    const { live } = this;
    const every = Math.max(WHOLE_SECONDS, (2 * this.keep * live.weight) / MAX_POINT_BYTES);
    const whole = time - this._wholeAt >= every || this._changeBytes > MAX_POINT_BYTES / 4;
    const point = { seq: live.seq, time };
    if (whole) {
      this._wholeAt = time;
      this._changeBytes = 0;
      point.weight = live.weight;
      point.state = live.clone();
      live.watch();
    } else {
      point.change = live.difference();
      point.weight = point.change.weight;
      this._changeBytes += point.weight;
    }
    this._points.push(point);
    this._pointBytes += point.weight;
    if (this._pointBytes > MAX_POINT_BYTES) this._thin();
  }

  /** Too heavy: of the older half whole copies alone stay, then every second one of those, at last the oldest goes. */
  _thin() {
    const points = this._points;
    const cut = points.findLastIndex((point, index) => point.state && index <= points.length / 2); // a change lies on the one before
    let kept = points.filter((point, index) => point.state || index > cut);
    if (kept.length === points.length) kept = points.filter((_, index) => index >= cut || index % 2 === 0);
    if (kept.length === points.length) kept = points.slice(Math.max(0, points.findIndex((point, index) => index && point.state)));
    this._points = kept;
    this._pointBytes = kept.reduce((sum, point) => sum + point.weight, 0);
  }

  // ---------------------------------------------------------------- any moment

  /** The state at `time`; it is the tape's own and changes at the next call. */
  at(time) {
    let scrub = this._scrub;
    if (scrub?.until === time) return scrub.state;
    const points = this._points;
    if (!points.length) return this.live;
    const index = Math.max(0, lastBefore(points, point => point.time <= time));
    const back = !scrub || scrub.until > time || scrub.state.seq + 1 < this.firstSeq;
    if (back) scrub = this._scrub = { state: this._restored(index, scrub?.state) };
    else if (points[index].seq - scrub.state.seq > EVENTS_A_POINT) {
      // Forward, only what changed since is laid, unless a whole copy lies between.
      const from = lastBefore(points, point => point.seq <= scrub.state.seq) + 1;
      const between = points.slice(from, index + 1).map(point => point.change);
      if (between.every(Boolean)) scrub.state.lay(between);
      else scrub.state = this._restored(index, scrub.state);
    }
    this._replay(scrub.state, time);
    scrub.until = time;
    return scrub.state;
  }

  /** The state at a point, from the last whole copy before it. `spent`: a state whose memory may be used. */
  _restored(index, spent) {
    let from = index;
    while (!this._points[from].state) from--;
    const state = this._points[from].state.clone(spent);
    state.lay(this._points.slice(from + 1, index + 1).map(point => point.change));
    return state;
  }

  _replay(state, time) {
    for (let index = this._entryOf(state.seq + 1); index >= 0 && index < this._held.length; index++) {
      const entry = this._held[index];
      if (entry.first > state.seq + 1) return; // of another part of a recording
      for (const { seq, event } of this._eventsOf(entry)) {
        if (seq <= state.seq) continue;
        // No moment lies between what happens to the tree and whose the slots are then.
        if (event.time > time && !(state.halfTold && event.time < time + TELLING)) return;
        state.apply(seq, event);
      }
    }
  }

  /** The place in the log of the frame that holds event `seq`, or of the last one before it. */
  _entryOf(seq) {
    return Math.max(0, lastBefore(this._held, entry => entry.first <= seq));
  }

  _eventsOf(entry) {
    if (entry.events) return entry.events;
    let events = this._decoded.get(entry);
    if (!events) {
      this._decoded.set(entry, (events = eventsOf(entry)));
      if (this._decoded.size > DECODED) this._decoded.delete(this._decoded.keys().next().value);
    }
    return events;
  }
}

function eventsOf(entry) {
  return entry.events ?? decode(entry.bytes).events;
}

/** The last place in a list for which `holds`, which is true of the first ones and then of none; or -1. */
export function lastBefore(list, holds) {
  let low = 0;
  let high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (holds(list[middle])) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}
