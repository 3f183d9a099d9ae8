/**
 * A recording as Chrome trace events (JSON), for ui.perfetto.dev: lanes of the scheduler and of each request, counters.
 *
 * Pure. The same lanes as `sgnb export` makes (sgnb/recording/perfetto.py), from the events that the page has.
 */

import type { IRecording } from './recording';

const SCHEDULER = 1;
const REQUESTS = 2;

interface ITraceEvent {
  ph: string;
  pid: number;
  tid: number;
  name: string;
  ts?: number;
  dur?: number;
  args?: Record<string, unknown>;
}

export function perfettoOf(recording: IRecording): { traceEvents: ITraceEvent[]; displayTimeUnit: string } {
  const zero = recording.picture.time;
  const micro = (time: number) => Math.round((time - zero) * 1e6);
  const out: ITraceEvent[] = [
    { ph: 'M', pid: SCHEDULER, tid: 0, name: 'process_name', args: { name: `scheduler of ${recording.engine}` } },
    { ph: 'M', pid: REQUESTS, tid: 0, name: 'process_name', args: { name: 'requests' } }
  ];
  const lanes = new Map<string, { tid: number; doing: string; since: number }>();
  for (const { event } of recording.events) {
    if (event.t === 'step') {
      addStep(event, out, micro);
    } else if (event.t === 'request') {
      addRequest(event, out, lanes, micro);
    } else if (event.t === 'stats') {
      const ts = micro(event.time);
      const slots = { used: event.num_used_tokens, cached: event.num_cached_tokens, free: event.num_free_tokens };
      out.push({ ph: 'C', pid: SCHEDULER, tid: 0, name: 'KV slots', ts, args: slots });
      const requests = { running: event.num_running_reqs, waiting: event.num_queue_reqs };
      out.push({ ph: 'C', pid: SCHEDULER, tid: 0, name: 'requests', ts, args: requests });
    }
  }
  return { traceEvents: out, displayTimeUnit: 'ms' };
}

type Event = Record<string, unknown> & { time: number };

function addStep(event: Event, out: ITraceEvent[], micro: (time: number) => number): void {
  let start = event.time;
  for (const name of ['schedule', 'forward', 'sample', 'process']) {
    const seconds = Number(event[`${name}_seconds`] ?? 0);
    if (seconds > 0) {
      const args = name === 'forward' ? { step: event.step, mode: event.mode } : {};
      const tid = name === 'schedule' ? 2 : 1;
      const dur = Math.round(seconds * 1e6);
      out.push({ ph: 'X', pid: SCHEDULER, tid, name, ts: micro(start), dur, args });
    }
    start += seconds;
  }
}

function addRequest(
  event: Event,
  out: ITraceEvent[],
  lanes: Map<string, { tid: number; doing: string; since: number }>,
  micro: (time: number) => number
): void {
  const rid = String(event.rid);
  let lane = lanes.get(rid);
  if (!lane) {
    lane = { tid: lanes.size + 1, doing: 'waiting', since: event.time };
    lanes.set(rid, lane);
    const label = (event.label ?? {}) as Record<string, string>;
    const place = label.branch ? `${label.cell}.${label.branch}` : label.cell;
    const name = [place, label.name].filter(Boolean).join(' ') || rid;
    out.push({ ph: 'M', pid: REQUESTS, tid: lane.tid, name: 'thread_name', args: { name } });
    return;
  }
  const next = { admitted: 'prefill', first_token: 'decode', retracted: 'waiting', finished: '' }[String(event.state)];
  if (next === undefined) {
    return;
  }
  if (lane.doing) {
    const dur = Math.max(0, micro(event.time) - micro(lane.since));
    out.push({ ph: 'X', pid: REQUESTS, tid: lane.tid, name: lane.doing, ts: micro(lane.since), dur });
  }
  lane.doing = next;
  lane.since = event.time;
}
