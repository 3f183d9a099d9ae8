// What the batch timeline computes from a History: steps on the clock, lanes of requests, columns, ticks, figures. Pure.
//
// `TimelineIndex` keeps up with a History that grows at its end and is cut at its beginning. Times are the engine's seconds.
// A step computes from `from` to `sampled`; it was planned from `planFrom` to `time`, under the step before when they overlap.

const TRIM_AT = 2000; // stale steps that are kept before they are cut off in one go
const TENTH = 10; // bins a second of the overview

/** Steps, lanes and token counts of a History, brought up to date by `sync`. */
export class TimelineIndex {
  constructor(history) {
    this.history = history;
    this.steps = []; // {step, mode, time, planFrom, from, computed, sampled, to, prefill, decode, requests, event, gaps, since}
    this.lanes = new Map(); // rid → {rid, pieces, waits, token, tokenAt}: place and time of its last token
    this.bins = new Map(); // tenth of a second → tokens computed: {prefill, decode}
    this.base = 0; // steps cut off so far: step i of `steps` has the place base + i
    this.version = 0;
  }

  /** Take what is new; true when something was. */
  sync() {
    const { steps } = this.history;
    if (!steps.length) return false;
    const known = this.steps.at(-1)?.event;
    let next = steps.length;
    while (next > 0 && steps[next - 1] !== known && !(known && steps[next - 1].step <= known.step)) next--;
    for (let i = next; i < steps.length; i++) this._add(steps[i]);
    this._trim(steps[0]);
    if (next < steps.length) this.version++;
    return next < steps.length;
  }

  /** End of the last step; 0 without one. */
  get end() {
    return this.steps.at(-1)?.sampled ?? 0;
  }

  _add(event) {
    const before = this.steps.at(-1);
    const from = Math.max(event.time, before?.sampled ?? 0);
    const computed = from + (event.forward_seconds ?? 0);
    const sampled = computed + (event.sample_seconds ?? 0);
    const place = this.base + this.steps.length;
    const step = { step: event.step, mode: event.mode, time: event.time, planFrom: event.time - (event.schedule_seconds ?? 0), from, computed, sampled, event };
    Object.assign(step, { to: sampled + (event.process_seconds ?? 0), prefill: 0, decode: 0, requests: event.rows.length, gaps: [], since: [] });
    this.steps.push(step);
    for (const row of event.rows) {
      if (row.kind === "decode") step.decode += row.tokens;
      else step.prefill += row.tokens;
      const lane = this._lane(row.rid);
      if (row.kind === "decode" && lane.token >= 0) {
        step.gaps.push(sampled - lane.tokenAt);
        step.since.push(lane.token);
      }
      lane.token = row.kind === "score" ? -1 : place;
      lane.tokenAt = sampled;
      const last = lane.pieces.at(-1);
      if (row.kind === "decode" && last?.kind === "decode" && last.last === place - 1) {
        last.last = place;
        last.to = sampled;
        last.tokens += row.tokens;
        continue;
      }
      const goesOn = last && last.kind === row.kind && row.kind === "prefill" && last.prefix + last.tokens === row.prefix;
      const reused = row.kind === "decode" || goesOn ? 0 : row.prefix;
      lane.pieces.push({ kind: row.kind, from, to: sampled, first: place, last: place, tokens: row.tokens, prefix: row.prefix, reused });
    }
    for (const note of event.notes ?? []) if (note.what === "deferred") this._wait(note, step);
    const bin = Math.floor(from * TENTH);
    let tokens = this.bins.get(bin);
    if (!tokens) this.bins.set(bin, (tokens = { prefill: 0, decode: 0 }));
    tokens.prefill += step.prefill;
    tokens.decode += step.decode;
  }

  _lane(rid) {
    let lane = this.lanes.get(rid);
    if (!lane) this.lanes.set(rid, (lane = { rid, pieces: [], waits: [], token: -1, tokenAt: 0 }));
    return lane;
  }

  _wait(note, step) {
    const { waits } = this._lane(note.rid);
    const last = waits.at(-1);
    const same = last && last.reason === note.reason && last.leader === (note.leader ?? "");
    if (same) Object.assign(last, { to: step.time, needs: note.needs ?? 0, has: note.has ?? 0 });
    else waits.push({ from: step.time, to: step.time, step: step.step, reason: note.reason, leader: note.leader ?? "", needs: note.needs ?? 0, has: note.has ?? 0, unit: note.unit ?? "" });
  }

  _trim(oldest) {
    if (!this.steps.length || this.steps[0].step >= oldest.step) return;
    const stale = this.steps.findIndex(step => step.step >= oldest.step);
    if (stale < TRIM_AT) return;
    this.steps.splice(0, stale);
    this.base += stale;
    const time = this.steps[0].from;
    for (const bin of this.bins.keys()) {
      if ((bin + 1) / TENTH >= time) break; // in order of time
      this.bins.delete(bin);
    }
    for (const [rid, lane] of this.lanes) {
      const first = lane.pieces.findIndex(piece => piece.last >= this.base);
      if (first > 0) lane.pieces.splice(0, first);
      if (first < 0 && !this.history.requests.has(rid)) this.lanes.delete(rid);
      else if (first < 0) lane.pieces.length = 0;
    }
  }

  /** The first step that has not ended by `time`: its index in `steps`. */
  indexAfter(time) {
    return lowerBound(this.steps, step => step.sampled <= time);
  }

  /** The step that computes at `time`, or the last one before it; null before the first. */
  stepAt(time) {
    const index = lowerBound(this.steps, step => step.from <= time) - 1;
    return this.steps[index] ?? null;
  }

  /** A step by its number, or null. */
  byNumber(number) {
    const index = lowerBound(this.steps, step => step.step < number);
    return this.steps[index]?.step === number ? this.steps[index] : null;
  }

  /** The step at a place that a piece names. */
  at(place) {
    return this.steps[place - this.base];
  }
}

/** How many of a sorted list `before` holds for. */
export function lowerBound(list, before) {
  let low = 0;
  let high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (before(list[middle])) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The lanes seen between two times, in order of arrival: {record, pieces, waits, segments, end}. */
export function lanesIn(index, from, to, latest) {
  const out = [];
  for (const record of index.history.requests.values()) {
    if (record.queued > to) continue;
    if (record.finished && record.finished < from) continue;
    const lane = index.lanes.get(record.rid);
    if (!record.finished && record.queued > latest) continue;
    out.push({ record, pieces: lane?.pieces ?? [], waits: lane?.waits ?? [] });
  }
  return out.sort((a, b) => a.record.queued - b.record.queued);
}

/** Where a request waited: {from, to, wait, why}; `why` is "" at first, else what sent it back (`kv_full`, …). */
export function waitsOf({ record, pieces, waits }, latest) {
  const out = [];
  const starts = [[record.queued, ""], ...record.turns.filter(turn => turn.end === "retracted").map(turn => [turn.to, turn.why || "kv_full"])];
  for (const [from, why] of starts) {
    const first = pieces[lowerBound(pieces, piece => piece.from < from - 1e-9)];
    const to = first ? first.from : record.finished || latest;
    if (to <= from) continue;
    const inside = waits.filter(wait => wait.from >= from - 1e-9 && wait.from <= to);
    let wait = inside.at(-1) ?? null;
    if (!wait && !why && record.compiling) wait = { reason: "grammar", from: record.compiling, to: record.compiled || to };
    out.push({ from, to, wait, why });
  }
  return out;
}

/** Tokens of steps in columns of `width` px: {x, width, prefill, decode, steps} with means over the steps of a column. */
export function columnsOf(index, from, to, plot, width = 2) {
  const out = [];
  const scale = plot / (to - from);
  let column = null;
  for (let i = index.indexAfter(from); i < index.steps.length; i++) {
    const step = index.steps[i];
    if (step.from >= to) break;
    const at = Math.floor(((step.from - from) * scale) / width);
    if (!column || column.at !== at) out.push((column = { at, x: at * width, end: 0, prefill: 0, decode: 0, steps: 0, busy: 0 }));
    column.prefill += step.prefill;
    column.decode += step.decode;
    column.steps++;
    column.busy += step.sampled - step.from;
    column.end = Math.max(column.x + width, (step.sampled - from) * scale);
  }
  for (const one of out) {
    one.prefill /= one.steps;
    one.decode /= one.steps;
  }
  return out;
}

/** Tokens a second in bars over [from, to], `count` of them: {prefill, decode}. */
export function ratesOf(index, from, to, count) {
  const each = (to - from) / count;
  const prefill = new Float64Array(count);
  const decode = new Float64Array(count);
  const first = Math.floor(from * TENTH);
  for (let bin = first; bin <= to * TENTH; bin++) {
    const tokens = index.bins.get(bin);
    if (!tokens) continue;
    const place = Math.floor((bin / TENTH - from) / each);
    if (place < 0 || place >= count) continue;
    prefill[place] += tokens.prefill / each;
    decode[place] += tokens.decode / each;
  }
  return { prefill, decode };
}

/** Ticks at least `apart` px apart: {step, times, after}; `after`: how long after the first each is, in words. */
export function ticksOf(from, to, width, apart = 88) {
  const least = ((to - from) * apart) / Math.max(1, width);
  const power = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].map(factor => factor * power).find(value => value >= least * 0.999) ?? 10 * power;
  const times = [];
  for (let k = Math.ceil(from / step - 1e-6); k * step <= to + 1e-9; k++) times.push(k * step);
  return { step, times, after: times.map((_, nth) => `+${tickWords(nth * step)}`) }; // clocks count from 1970: differences of times are not exact
}

function tickWords(value) {
  return value < 0.9995 ? `${Number((value * 1000).toPrecision(4))} ms` : `${Number(value.toPrecision(4))} s`;
}

/** Figures of a window: steps by mode, seconds between two tokens of a request (p50, p95), the idle share. */
export function windowFigures(index, from, to) {
  const modes = {};
  const first = index.indexAfter(from);
  const earliest = index.base + first;
  let gaps = 0;
  let busy = 0;
  let waited = 0;
  let steps = 0;
  for (let i = first; i < index.steps.length; i++) {
    const step = index.steps[i];
    if (step.from >= to) break;
    steps++;
    modes[step.mode] = (modes[step.mode] ?? 0) + 1;
    busy += Math.min(step.sampled, to) - Math.max(step.from, from);
    waited += step.event.exposed_host_seconds ?? 0;
    for (let k = 0; k < step.gaps.length; k++) {
      if (step.since[k] < earliest) continue; // the token before it is not in view
      if (gaps === room.length) room = bigger(room);
      room[gaps++] = step.gaps[k];
    }
  }
  const found = room.subarray(0, gaps);
  const known = Math.max(0, Math.min(to, index.end) - Math.max(from, index.steps[0]?.from ?? to));
  return { steps, modes, p50: percentile(found, 0.5), p95: percentile(found, 0.95), gaps, known, busy, waited, idle: known > 0 ? Math.max(0, 1 - busy / known) : null };
}

let room = new Float64Array(4096); // for the gaps of a window, kept from one call to the next

function bigger(old) {
  const made = new Float64Array(2 * old.length);
  made.set(old);
  return made;
}

/** The smallest value that at least this share of all do not exceed; null without values. Reorders `values`. */
export function percentile(values, share) {
  if (!values.length) return null;
  const wanted = Math.min(values.length - 1, Math.floor(share * values.length));
  let low = 0;
  let high = values.length - 1;
  while (low < high) {
    const pivot = values[(low + high) >> 1];
    let left = low;
    let right = high;
    while (left <= right) {
      while (values[left] < pivot) left++;
      while (values[right] > pivot) right--;
      if (left > right) break;
      [values[left], values[right]] = [values[right], values[left]];
      left++;
      right--;
    }
    if (wanted <= right) high = right;
    else if (wanted >= left) low = left;
    else break;
  }
  return values[wanted];
}

/**
 * From when the stretch of work that ends at `latest` lasts: back over requests that overlap or follow within `gap` seconds.
 * Of one longer than `most` seconds, some moment before that.
 */
export function burstStart(history, latest, { gap = 1, most = 12 } = {}) {
  const spans = [];
  for (const { queued, finished } of history.requests.values()) {
    const end = finished && finished < latest ? finished : latest;
    if (queued <= latest && end > latest - most) spans.push([end, queued]);
  }
  let start = latest;
  for (const [end, queued] of spans.sort(([a], [b]) => b - a)) {
    if (end < start - gap) break;
    start = Math.min(start, queued);
  }
  return start;
}
