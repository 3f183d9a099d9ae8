/**
 * A recording as Chrome trace events (JSON), for ui.perfetto.dev: lanes of the scheduler and of each request, counters.
 *
 * Pure. The same events as `sgnb export` makes (sgnb/recording/perfetto.py), from what the page has read; a test compares
 * the two. Times are microseconds from the beginning.
 */

import type { IRecording, Picture } from './recording';

const SCHEDULER = 1;
const REQUESTS = 2;
const STEPS = 1;
const SCHEDULE = 2;

type Fields = Record<string, unknown>;
type Event = Fields & { t: string; time: number };

interface ITraceEvent {
  ph: string;
  pid: number;
  tid: number;
  name: string;
  s?: string;
  ts?: number;
  dur?: number;
  args?: Fields;
}

/** One request: the slice that is open in its lane, and since when. */
interface ILane {
  tid: number;
  doing: string;
  since: number;
  until: number;
  tokens: number;
  args: Fields;
}

export function perfettoOf(recording: IRecording): { traceEvents: ITraceEvent[]; displayTimeUnit: string } {
  const builder = new TraceBuilder(recording.picture.time, recording.engine);
  for (const { picture, events, gap } of recording.parts) {
    if (picture) {
      builder.begin(picture);
    }
    events.forEach(({ event }) => builder.take(event));
    if (gap) {
      builder.gap(gap);
    }
  }
  return { traceEvents: builder.end(), displayTimeUnit: 'ms' };
}

const num = (value: unknown): number => Number(value ?? 0);
const words = (value: unknown): string => (typeof value === 'string' ? value : '');
const list = (value: unknown): Fields[] => (Array.isArray(value) ? (value as Fields[]) : []);

class TraceBuilder {
  constructor(
    private readonly _zero: number,
    engine: string
  ) {
    this._last = this._stepsBusy = this._scheduleBusy = _zero;
    this._name('process_name', SCHEDULER, 0, `scheduler of ${engine}`);
    this._name('process_name', REQUESTS, 0, 'requests');
    this._name('thread_name', SCHEDULER, STEPS, 'steps');
    this._name('thread_name', SCHEDULER, SCHEDULE, 'schedule');
  }

  /** What there was when the recording began, or began anew after a gap. */
  begin(picture: Picture): void {
    this._counters((picture.stats ?? {}) as Fields);
    for (const req of list(picture.requests)) {
      const lane = this._lane(words(req.rid), (req.label ?? {}) as Fields);
      if (!lane.doing) {
        this._open(lane, words(req.state), picture.time);
      }
    }
  }

  take(event: Event): void {
    this._last = Math.max(this._last, event.time);
    if (event.t === 'request') {
      this._held.push(event);
    } else if (event.t === 'step') {
      this._release(event.time);
      this._step(event);
      this._release();
    } else if (event.t === 'stats') {
      this._release();
      this._counters(event);
    }
  }

  /** Events are missing: what was open is closed where it was seen last. */
  gap({ from, to }: { from: number; to: number }): void {
    this._instant(STEPS, SCHEDULER, `events ${from} to ${to} are missing`, this._last, {});
    for (const lane of this._lanes.values()) {
      this._shut(lane, Math.max(lane.since, lane.until));
    }
  }

  /** All events: metadata first, then in order of time, outer slices before inner ones. */
  end(): ITraceEvent[] {
    this._release();
    for (const lane of this._lanes.values()) {
      this._shut(lane, this._last);
    }
    const rank = (one: ITraceEvent) => (one.ph === 'M' ? 0 : 1);
    return this._events.sort(
      (a, b) => rank(a) - rank(b) || (a.ts ?? 0) - (b.ts ?? 0) || (b.dur ?? 0) - (a.dur ?? 0)
    );
  }

  /** Requests' events are told before the step in which they happened; here they come after its rows. */
  private _release(until = Infinity): void {
    let count = 0;
    while (count < this._held.length && this._held[count].time <= until) {
      this._request(this._held[count++]);
    }
    this._held.splice(0, count);
  }

  private _lane(rid: string, label: Fields): ILane {
    let lane = this._lanes.get(rid);
    if (!lane) {
      lane = { tid: this._lanes.size + 1, doing: '', since: 0, until: 0, tokens: 0, args: {} };
      this._lanes.set(rid, lane);
      const [cell, branch, name] = [words(label.cell), words(label.branch), words(label.name)];
      const called = `${cell}${branch ? '.' : ''}${branch} ${name}`.trim();
      this._name('thread_name', REQUESTS, lane.tid, `${called} ${rid}`.trim());
    }
    return lane;
  }

  private _request(event: Event): void {
    const { time } = event;
    const reason = words(event.reason);
    const lane = this._lane(words(event.rid), (event.label ?? {}) as Fields);
    if (event.state === 'queued') {
      this._open(lane, 'waiting', time, { prompt: num(event.prompt_tokens) });
    } else if (event.state === 'admitted') {
      this._shut(lane, time);
      const cause = words((event.match as Fields | null | undefined)?.cause);
      this._instant(lane.tid, REQUESTS, 'admitted', time, { cached: num(event.cached_tokens), cause });
    } else if (event.state === 'retracted') {
      this._shut(lane, time);
      this._instant(lane.tid, REQUESTS, `retracted: ${reason}`, time, {});
      this._open(lane, 'waiting', time, { reason });
    } else if (event.state === 'finished') {
      this._shut(lane, time);
      this._instant(lane.tid, REQUESTS, `finished: ${reason}`, time, { tokens: num(event.completion_tokens) });
    }
  }

  private _open(lane: ILane, doing: string, time: number, args: Fields = {}): void {
    this._shut(lane, time);
    Object.assign(lane, { doing, since: Math.max(time, lane.until), until: time, tokens: 0, args });
  }

  private _shut(lane: ILane, time: number): void {
    if (!lane.doing) {
      return;
    }
    const args = { ...lane.args, ...(lane.tokens ? { tokens: lane.tokens } : {}) };
    const name = lane.doing.startsWith('prefill') ? `prefill ${lane.tokens}` : lane.doing;
    const end = Math.max(time, lane.since);
    this._slice(lane.tid, REQUESTS, name, lane.since, end, args);
    lane.doing = '';
    lane.until = end;
  }

  private _row(row: Fields, step: number, start: number, end: number): void {
    const lane = this._lanes.get(words(row.rid));
    if (!lane) {
      return;
    }
    if (row.kind !== 'decode' || lane.doing !== 'decode') {
      this._open(lane, words(row.kind), start, { step });
    }
    lane.tokens += num(row.tokens);
    lane.until = end;
    if (row.kind !== 'decode') {
      this._shut(lane, end);
    }
  }

  private _step(event: Event): void {
    const rows = list(event.rows);
    const step = num(event.step);
    const begin = Math.max(event.time, this._stepsBusy);
    const computed = begin + num(event.forward_seconds);
    const sampled = computed + num(event.sample_seconds);
    const end = sampled + num(event.process_seconds);
    this._slice(STEPS, SCHEDULER, `${words(event.mode)} ${step}`, begin, end, {
      rows: rows.length,
      tokens: rows.reduce((sum, row) => sum + num(row.tokens), 0),
      notes: list(event.notes).map(note =>
        note.what === 'evicted'
          ? `evicted for ${words(note.rid)}: ${words(note.reason)}`
          : `${words(note.rid)} ${words(note.what)}: ${words(note.reason)}`
      )
    });
    this._slice(STEPS, SCHEDULER, 'forward', begin, computed, {});
    this._slice(STEPS, SCHEDULER, 'sample', computed, sampled, {});
    this._slice(STEPS, SCHEDULER, 'process', sampled, end, {});
    this._stepsBusy = end;
    const before = Math.max(event.time - num(event.schedule_seconds), this._scheduleBusy);
    this._scheduleBusy = Math.max(before, event.time);
    this._slice(SCHEDULE, SCHEDULER, 'schedule', before, this._scheduleBusy, { step });
    rows.forEach(row => this._row(row, step, begin, sampled));
    this._counter('requests', event.time, { running: num(event.running), waiting: num(event.queued) });
  }

  private _counters(stats: Fields): void {
    const time = num(stats.time);
    const slots = {
      used: num(stats.num_used_tokens),
      cached: num(stats.num_cached_tokens),
      free: num(stats.num_free_tokens)
    };
    this._counter('KV slots', time, slots);
    const requests = { running: num(stats.num_running_reqs), waiting: num(stats.num_queue_reqs) };
    this._counter('requests', time, requests);
  }

  private _at(time: number): number {
    return thousandths(Math.max(0, time - this._zero) * 1e6);
  }

  private _name(kind: string, pid: number, tid: number, name: string): void {
    this._events.push({ ph: 'M', name: kind, pid, tid, args: { name } });
  }

  private _slice(tid: number, pid: number, name: string, start: number, end: number, args: Fields): void {
    const ts = this._at(start);
    const event: ITraceEvent = { ph: 'X', name, pid, tid, ts, dur: thousandths(this._at(end) - ts) };
    this._events.push(Object.keys(args).length ? { ...event, args } : event);
  }

  private _instant(tid: number, pid: number, name: string, time: number, args: Fields): void {
    this._events.push({ ph: 'i', s: 't', name, pid, tid, ts: this._at(time), args });
  }

  private _counter(name: string, time: number, args: Fields): void {
    this._events.push({ ph: 'C', name, pid: SCHEDULER, tid: 0, ts: this._at(time), args });
  }

  private _last: number;
  private _stepsBusy: number;
  private _scheduleBusy: number;
  private readonly _events: ITraceEvent[] = [];
  private readonly _held: Event[] = [];
  private readonly _lanes = new Map<string, ILane>();
}

function thousandths(value: number): number {
  return Math.round(value * 1000) / 1000;
}
