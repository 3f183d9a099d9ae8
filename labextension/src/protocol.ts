/**
 * The messages between the panel and the kernel's `sgnb.panel`, and how they are read.
 *
 * Pure: no DOM, no kernel, no timers. The kernel side is `sgnb/panel.py`; both are versioned by TARGET's suffix.
 */

import type { JSONObject } from '@lumino/coreutils';

/** The comm the panel opens; the kernel answers with states, or closes it where sgnb is not loaded. */
export const TARGET = 'sgnb.telemetry.v1';

/** The comm the kernel opens once, at the end of `%load_ext sgnb`, so that a waiting panel wakes. */
export const ANNOUNCE = 'sgnb.announce.v1';

/** Seconds between two pings; the kernel drops a panel it has not heard of for three of them. */
export const HEARTBEAT_SECONDS = 5;

export type Verb = 'launch' | 'stop' | 'flush' | 'abort_all' | 'attach' | 'restart' | 'log' | 'ping' | 'ack';

export interface IStep {
  step: string;
  done: number;
  total: number;
  /** Seconds since the engine's process started. */
  seconds: number;
}

export interface IEngine {
  name: string;
  state: string;
  model: string;
  dtype: string;
  device: string;
  attention: string;
  /** KV slots in all; 0 while unknown. */
  slots: number;
  /** Kernel clock, seconds since the epoch, of the last change of `state`. */
  since: number;
  error: string;
  steps: IStep[];
}

export interface IStats {
  tokens_per_s: number;
  running: number;
  waiting: number;
  kv_used: number;
  kv_total: number;
  /** Share 0..1 of the prompt tokens of the last 60 s that came from the cache. */
  reused: number;
}

export interface IState {
  seq: number;
  engine: IEngine | null;
  stats: IStats | null;
  engines: string[];
  log: string[];
  message: string;
}

function text(value: unknown): string {
  return typeof value === 'string' ? value : '';
}

function count(value: unknown): number {
  return typeof value === 'number' && Number.isFinite(value) ? value : 0;
}

function record(value: unknown): JSONObject | null {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as JSONObject) : null;
}

function list(value: unknown): unknown[] {
  return Array.isArray(value) ? value : [];
}

function readEngine(value: unknown): IEngine | null {
  const raw = record(value);
  if (!raw || !text(raw.state)) {
    return null;
  }
  return {
    name: text(raw.name),
    state: text(raw.state),
    model: text(raw.model),
    dtype: text(raw.dtype),
    device: text(raw.device),
    attention: text(raw.attention),
    slots: count(raw.slots),
    since: count(raw.since),
    error: text(raw.error),
    steps: list(raw.steps).map(item => {
      const step = record(item) ?? {};
      return {
        step: text(step.step),
        done: count(step.done),
        total: count(step.total),
        seconds: count(step.seconds)
      };
    })
  };
}

function readStats(value: unknown): IStats | null {
  const raw = record(value);
  if (!raw) {
    return null;
  }
  return {
    tokens_per_s: count(raw.tokens_per_s),
    running: count(raw.running),
    waiting: count(raw.waiting),
    kv_used: count(raw.kv_used),
    kv_total: count(raw.kv_total),
    reused: count(raw.reused)
  };
}

/** Read a state message; anything of another kind or shape gives null, never an exception. */
export function readState(data: unknown): IState | null {
  const raw = record(data);
  if (!raw || raw.kind !== 'state') {
    return null;
  }
  return {
    seq: count(raw.seq),
    engine: readEngine(raw.engine),
    stats: readStats(raw.stats),
    engines: list(raw.engines)
      .map(item => text(item) || text(record(item)?.name))
      .filter(name => name !== ''),
    log: list(raw.log).map(text),
    message: text(raw.message)
  };
}

/** Read the answer to the verb `log`: its lines, or null when the message is something else. */
export function readLog(data: unknown): string[] | null {
  const raw = record(data);
  return raw && raw.kind === 'log' ? list(raw.lines ?? raw.log).map(text) : null;
}
