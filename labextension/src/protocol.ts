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

/** What of a state the page shows: the kernel does no more than that needs. */
export type Shown = 'all' | 'figures' | 'nothing';

/** What needs no answer beyond the next state. */
export type Verb =
  | 'launch'
  | 'stop'
  | 'flush'
  | 'abort'
  | 'abort_all'
  | 'attach'
  | 'restart'
  | 'set'
  | 'pause'
  | 'step'
  | 'resume'
  | 'log'
  | 'plain'
  | 'show'
  | 'ping'
  | 'ack';

/** What is answered by its own message. */
export type Question = 'knobs' | 'report' | 'check' | 'about' | 'language' | 'graph';

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
  /** Names the page's store of this engine (widgets/static/store.js). */
  key: string;
  model: string;
  dtype: string;
  device: string;
  attention: string;
  /** KV slots in all; 0 while unknown. */
  slots: number;
  /** Kernel clock, seconds since the epoch: of its start, its readiness or its end. */
  since: number;
  owner: boolean;
  paused: boolean;
  policy: string;
  error: string;
  /** While no step ends: since when, and who does not answer. */
  trouble: string;
  steps: IStep[];
}

export interface IStats {
  tokens_per_s: number;
  running: number;
  waiting: number;
  kv_used: number;
  /** Slots that running requests hold: nobody can be given them. */
  kv_locked: number;
  kv_total: number;
  /** Share 0..1 of the prompt tokens of the last 60 s that came from the cache. */
  reused: number;
}

export interface IRequest {
  /** Empty for another notebook's request. */
  rid: string;
  name: string;
  words: string;
}

/** Who waits for slots, and who holds most of them. */
export interface IFull {
  waiting: number;
  oldest: number;
  holder: string;
  slots: number;
  cell: string;
  /** This notebook's requests of that cell. */
  rids: string[];
}

export interface IEngineName {
  name: string;
  model: string;
  state: string;
}

export interface IState {
  seq: number;
  engine: IEngine | null;
  stats: IStats | null;
  requests: IRequest[];
  more: number;
  full: IFull | null;
  lost: number;
  engines: IEngineName[];
  log: string[];
  message: string;
}

export interface IKnob {
  name: string;
  kind: string;
  value: string | number | boolean | null;
  unit: string;
  choices: (string | number | boolean | null)[];
  legal: string;
  what: string;
}

/** A mistake in a cell's text; lines from 1, columns from 0 in characters (code points). */
export interface IMark {
  line: number;
  col: number;
  end_col: number;
  severity: 'error' | 'warning';
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
    key: text(raw.key),
    model: text(raw.model),
    dtype: text(raw.dtype),
    device: text(raw.device),
    attention: text(raw.attention),
    slots: count(raw.slots),
    since: count(raw.since),
    owner: raw.owner !== false,
    paused: raw.paused === true,
    policy: text(raw.policy),
    error: text(raw.error),
    trouble: text(raw.trouble),
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
    kv_locked: count(raw.kv_locked),
    kv_total: count(raw.kv_total),
    reused: count(raw.reused)
  };
}

function readFull(value: unknown): IFull | null {
  const raw = record(value);
  return raw
    ? {
        waiting: count(raw.waiting),
        oldest: count(raw.oldest),
        holder: text(raw.holder),
        slots: count(raw.slots),
        cell: text(raw.cell),
        rids: list(raw.rids).map(text).filter(Boolean)
      }
    : null;
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
    requests: list(raw.requests).map(item => {
      const one = record(item) ?? {};
      return { rid: text(one.rid), name: text(one.name), words: text(one.words) };
    }),
    more: count(raw.more),
    full: readFull(raw.full),
    lost: count(raw.lost),
    engines: list(raw.engines)
      .map(item => {
        const one = record(item) ?? {};
        return { name: text(item) || text(one.name), model: text(one.model), state: text(one.state) };
      })
      .filter(one => one.name !== ''),
    log: list(raw.log).map(text),
    message: text(raw.message)
  };
}

/** Read the answer to the verb `log`: its lines, or null when the message is something else. */
export function readLog(data: unknown): string[] | null {
  const raw = record(data);
  return raw && raw.kind === 'log' ? list(raw.lines).map(text) : null;
}

/** Read an answer to a question: its number, and its data or the kernel's words about why there are none. */
export function readAnswer(data: unknown): { id: number; data: unknown; error: string } | null {
  const raw = record(data);
  return raw && raw.kind === 'answer' ? { id: count(raw.id), data: raw.data, error: text(raw.error) } : null;
}

/** Read a message for docked views: the store it is for, or null when it is something else. */
export function readView(data: unknown): { key: string; content: JSONObject } | null {
  const raw = record(data);
  return raw && typeof raw.k === 'string' ? { key: text(raw.key), content: raw } : null;
}

/** Read a cell's mistakes. */
/** What a word of a cell means; `unread`: the cell cannot be parsed now. See sgnb/edit_about.py. */
export interface IWord {
  line: number;
  col: number;
  end_col: number;
  signature: string;
  text: string;
}

export function readWord(data: unknown): IWord | 'unread' | null {
  const one = record(data);
  if (!one || one.unread === true) {
    return one ? 'unread' : null;
  }
  return {
    line: Math.max(1, count(one.line)),
    col: count(one.col),
    end_col: count(one.end_col),
    signature: text(one.signature),
    text: text(one.text)
  };
}

export function readMarks(data: unknown): IMark[] {
  return list(data).map(item => {
    const one = record(item) ?? {};
    return {
      line: Math.max(1, count(one.line)),
      col: count(one.col),
      end_col: count(one.end_col),
      severity: one.severity === 'warning' ? 'warning' : 'error',
      message: text(one.message)
    };
  });
}

/** Read the live knobs. */
export function readKnobs(data: unknown): IKnob[] {
  const plain = (value: unknown) =>
    typeof value === 'string' || typeof value === 'number' || typeof value === 'boolean' ? value : null;
  return list(data).map(item => {
    const one = record(item) ?? {};
    return {
      name: text(one.name),
      kind: text(one.kind),
      value: plain(one.value),
      unit: text(one.unit),
      choices: list(one.choices).map(plain),
      legal: text(one.legal),
      what: text(one.what)
    };
  });
}
