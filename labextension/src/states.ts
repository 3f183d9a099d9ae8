/**
 * What the panel says in each of its states: every word of it, from plain facts (ui.md, section 8).
 *
 * Pure: no DOM, no kernel, no clock. `view.ts` draws what `look` returns; the tests hold each state to its words.
 */

import type { TranslationBundle } from '@jupyterlab/translation';

import { formatClock, formatCount, formatSpan } from './format';
import type { IState } from './protocol';

export type Phase =
  | 'no-kernel'
  | 'kernel-gone'
  | 'connecting'
  | 'busy'
  | 'not-loaded'
  | 'no-engine'
  | 'starting'
  | 'idle'
  | 'running'
  | 'full'
  | 'stuck'
  | 'died'
  | 'failed'
  | 'restarting'
  | 'replay';

export type Action =
  | 'openRecording'
  | 'loadExtension'
  | 'launch'
  | 'cancelStart'
  | 'openLog'
  | 'showHolders'
  | 'abortCell'
  | 'abortAll'
  | 'restart'
  | 'saveReport'
  | 'closeRecording'
  | 'exportPerfetto';

/** An opened recording: its file, what was recorded, and where the reader is in it. */
export interface IReplay {
  file: string;
  model: string;
  seconds: number;
  steps: number;
  step: number;
  position: number;
  playing: boolean;
  speed: number;
}

/** All that the words depend on. */
export interface IFacts {
  phase: Phase;
  /** The followed notebook's or console's name; empty where none is open. */
  title: string;
  state: IState | null;
  kernelBusy: boolean;
  /** Nothing came from the kernel for longer than it is ever silent: the figures are those of then. */
  silent: boolean;
  /** Seconds since the engine's start or readiness. */
  seconds: number;
  /** When the engine ended, and when the kernel was found dead; milliseconds since the epoch. */
  sinceMillis: number;
  goneAt: number;
  /** The engine that the kernel used and another notebook started: it does not end with this kernel. */
  survivor: string;
  replay: IReplay | null;
}

export interface IButton {
  action: Action;
  label: string;
  kind: 'plain' | 'primary' | 'trouble';
  /** Why it cannot act; empty when it can. */
  why: string;
}

export interface ILook {
  glyph: string;
  glyphKind: string;
  name: string;
  words: string;
  model: string;
  details: string;
  title: string;
  /** The sentence behind the bar, and the bar's colour. */
  sentence: string;
  tone: 'warn' | 'trouble';
  text: string;
  code: boolean;
  lines: string[];
  buttons: IButton[];
  after: string;
  foot: string;
  steps: boolean;
  numbers: 'live' | 'last' | 'none';
  controls: boolean;
  /** The views that can be opened, and why the others cannot. */
  views: 'all' | 'graph' | 'none';
  viewsWhy: string;
}

const GLYPHS: Partial<Record<Phase, string>> = {
  starting: '◡',
  idle: '○',
  running: '●',
  full: '▲',
  stuck: '❚❚',
  died: '✕',
  failed: '✕',
  replay: '○'
};

/** The kernel's sentence on an engine that takes no step; others may follow it. */
const STUCK = /^No step for ([^.]*)\. ./;

/** The phase that a state of the kernel puts the panel into. */
export function phaseOf(state: IState): Phase {
  switch (state.engine?.state) {
    case 'starting':
    case 'stuck':
    case 'died':
    case 'failed':
      return state.engine.state;
    case 'idle':
    case 'running':
      if (state.full) {
        return 'full';
      }
      return state.engine.state === 'running' || (state.stats?.running ?? 0) > 0 ? 'running' : 'idle';
    default:
      return 'no-engine';
  }
}

/** What the panel shows, in words. */
export function look(facts: IFacts, trans: TranslationBundle): ILook {
  const out = empty();
  const button = (action: Action, label: string, kind: IButton['kind'] = 'plain', why = '') =>
    out.buttons.push({ action, label, kind, why });
  describeEngine(facts, out, trans);
  switch (facts.phase) {
    case 'no-kernel':
      if (facts.title) {
        out.title = trans.__('No kernel is running');
        out.text = trans.__('Start a kernel for %1 to use sgnb there.', facts.title);
      } else {
        out.title = trans.__('No notebook is open');
        out.text = trans.__('This panel follows the notebook or console you work in.');
      }
      button('openRecording', trans.__('Open recording…'));
      break;
    case 'kernel-gone':
      out.title = trans.__('The kernel ended at %1.', formatClock(facts.goneAt));
      out.text = trans.__('Its engine ends with it. Restart the kernel to go on.');
      button('openRecording', trans.__('Open recording…'));
      break;
    case 'connecting':
      out.text = trans.__('Asking the kernel …');
      break;
    case 'busy':
      out.title = trans.__('Waiting for the running cell');
      out.text = trans.__('This kernel answers the panel between cells only.');
      break;
    case 'not-loaded':
      out.title = trans.__('sgnb is not loaded here');
      out.text = trans.__('The kernel runs, without the extension.');
      out.code = true;
      out.after = facts.kernelBusy ? trans.__('The kernel is busy. Loading starts after the current cell.') : '';
      button('loadExtension', trans.__('Load extension'), 'primary');
      button('openRecording', trans.__('Open recording…'));
      break;
    case 'no-engine':
      out.title = trans.__('No engine is running.');
      button('launch', trans.__('Start engine'), 'primary');
      button('openRecording', trans.__('Open recording…'));
      out.views = 'graph';
      break;
    case 'starting':
      out.steps = true;
      out.after = trans.__('Cells that need the engine wait for it.');
      button('cancelStart', trans.__('Cancel start'));
      button('openLog', trans.__('Open log'));
      out.views = 'graph';
      break;
    case 'full':
      describeFull(facts, out, trans, button);
      break;
    case 'stuck':
      out.tone = 'trouble';
      out.sentence = whoIsStuck(facts.state?.engine?.trouble ?? '');
      button('abortAll', trans.__('Abort all'));
      button('restart', trans.__('Restart engine'), 'trouble', notOurs(facts, trans));
      button('openLog', trans.__('Open log'));
      button('saveReport', trans.__('Save report…'));
      out.after = trans.__('Restart clears the cache. Variables in the notebook stay.');
      break;
    case 'died':
      describeEnd(facts, out, trans, button);
      break;
    case 'failed':
      out.tone = 'trouble';
      out.sentence = firstLine(facts.state?.engine?.error) || trans.__('The engine did not start.');
      out.lines = lastLines(facts, out.sentence);
      button('launch', trans.__('Start again'), 'primary');
      button('openLog', trans.__('Open log'));
      button('saveReport', trans.__('Save report…'));
      out.views = 'graph';
      break;
    case 'restarting':
      out.title = facts.survivor
        ? trans.__('The kernel is restarting. Engine %1 runs on in its own notebook.', facts.survivor)
        : trans.__('The kernel is restarting. Its engine ends with it.');
      break;
    case 'replay':
      button('closeRecording', trans.__('Close recording'));
      button('exportPerfetto', trans.__('Export Perfetto…'));
      out.views = 'all';
      break;
    default:
  }
  const live = facts.phase === 'idle' || facts.phase === 'running' || facts.phase === 'full';
  if (live || facts.phase === 'stuck' || facts.phase === 'died') {
    out.views = 'all';
    out.numbers = live ? (facts.silent ? 'last' : 'live') : facts.phase === 'stuck' && facts.state?.stats ? 'last' : 'none';
    out.controls = live;
  }
  out.viewsWhy = out.views === 'all' ? '' : whyNoViews(facts, trans);
  return out;
}

function whyNoViews(facts: IFacts, trans: TranslationBundle): string {
  switch (facts.phase) {
    case 'no-kernel':
      return facts.title ? trans.__('No kernel is running.') : trans.__('No notebook is open.');
    case 'connecting':
    case 'busy':
      return trans.__('The kernel has not answered yet.');
    case 'not-loaded':
      return trans.__('sgnb is not loaded here.');
    case 'starting':
      return trans.__('The engine is starting.');
    case 'kernel-gone':
    case 'restarting':
      return trans.__('The kernel has ended, and its engine with it.');
    default:
      return trans.__('No engine is running.');
  }
}

function empty(): ILook {
  return {
    glyph: '',
    glyphKind: '',
    name: '',
    words: '',
    model: '',
    details: '',
    title: '',
    sentence: '',
    tone: 'warn',
    text: '',
    code: false,
    lines: [],
    buttons: [],
    after: '',
    foot: '',
    steps: false,
    numbers: 'none',
    controls: false,
    views: 'none',
    viewsWhy: ''
  };
}

type AddButton = (action: Action, label: string, kind?: IButton['kind'], why?: string) => unknown;

function describeEngine(facts: IFacts, out: ILook, trans: TranslationBundle): void {
  const { phase, replay } = facts;
  if (!(phase in GLYPHS)) {
    return;
  }
  out.glyph = GLYPHS[phase] ?? '';
  out.glyphKind = phase;
  if (phase === 'replay' && replay) {
    out.name = trans.__('Recording');
    out.words = trans.__('no engine');
    const steps = replay.steps === 1 ? trans.__('1 step') : trans.__('%1 steps', formatCount(replay.steps));
    out.model = [replay.model, `${replay.seconds.toFixed(1)} s`, steps].filter(Boolean).join(', ');
    return;
  }
  const engine = facts.state?.engine;
  if (!engine) {
    return;
  }
  out.name = engine.name;
  out.model = engine.model;
  const slots = engine.slots > 0 ? trans.__('%1\u00a0slots', formatCount(engine.slots)) : '';
  out.details = [engine.dtype, engine.device, engine.attention, slots].filter(Boolean).join(', ');
  out.words = facts.silent ? trans.__('no news from the kernel') : stateWords(facts, trans);
  if (engine.paused && (phase === 'idle' || phase === 'running' || phase === 'full')) {
    out.glyph = GLYPHS.stuck ?? '';
    out.glyphKind = 'paused';
  }
}

function stateWords(facts: IFacts, trans: TranslationBundle): string {
  const paused = facts.state?.engine?.paused === true;
  switch (facts.phase) {
    case 'starting':
      return trans.__('starting, %1', formatSpan(facts.seconds));
    case 'idle':
      return paused ? trans.__('paused') : trans.__('idle');
    case 'running':
      return paused ? trans.__('paused') : trans.__('running, %1', formatSpan(facts.seconds));
    case 'full':
      return paused ? trans.__('paused') : trans.__('KV is full');
    case 'stuck':
      return trans.__('stuck');
    case 'died':
      return trans.__('ended %1', formatClock(facts.sinceMillis));
    case 'failed':
      return trans.__('did not start');
    default:
      return '';
  }
}

/** Below this share of slots in use "KV is full" needs a word: sgnb/panel_requests.py has the same. */
const FULL_SHARE = 0.95;

function describeFull(facts: IFacts, out: ILook, trans: TranslationBundle, button: AddButton): void {
  const full = facts.state?.full;
  const stats = facts.state?.stats;
  if (!full || !stats) {
    return;
  }
  out.details = trans.__(
    '%1 of %2 slots in use or locked',
    formatCount(stats.kv_locked),
    formatCount(stats.kv_total)
  );
  const waits =
    full.waiting === 1
      ? trans.__('1 request waits, for %1.', unbroken(formatSpan(full.oldest)))
      : trans.__('%1 requests wait, the oldest for %2.', formatCount(full.waiting), unbroken(formatSpan(full.oldest)));
  const holds = trans.__('%1 holds %2 slots.', full.holder, formatCount(full.slots));
  out.sentence = `${waits} ${holds}`;
  out.tone = 'warn';
  if (stats.kv_locked < FULL_SHARE * stats.kv_total) {
    out.text = trans.__('The other slots are kept for what the running requests may still write.');
  }
  button('showHolders', trans.__('Show holders'));
  const why = full.rids.length ? '' : trans.__('Another notebook runs it.');
  button('abortCell', trans.__('Abort %1', full.cell), 'plain', why);
}

/** A figure and its unit on one line. */
function unbroken(text: string): string {
  return text.replace(/ /g, '\u00a0');
}

/** The end of the log, without the line that the sentence above it says already. */
function lastLines(facts: IFacts, sentence: string): string[] {
  return (facts.state?.log ?? []).filter(line => !line.includes(sentence)).slice(-2);
}

function describeEnd(facts: IFacts, out: ILook, trans: TranslationBundle, button: AddButton): void {
  const lost = facts.state?.lost ?? 0;
  out.tone = 'trouble';
  out.sentence = firstLine(facts.state?.engine?.error) || trans.__('The engine ended.');
  if (lost === 1) {
    out.text = trans.__('1 request failed. Its cell keeps the text so far.');
  } else if (lost > 1) {
    out.text = trans.__('%1 requests failed. Their cells keep the text so far.', formatCount(lost));
  }
  out.lines = lastLines(facts, out.sentence);
  button('launch', trans.__('Start again'), 'primary');
  button('openLog', trans.__('Open log'));
  button('saveReport', trans.__('Save report…'));
  button('openRecording', trans.__('Open recording…'));
  out.foot = trans.__('The views show the last state before the end.');
}

function notOurs(facts: IFacts, trans: TranslationBundle): string {
  return facts.state?.engine?.owner === false ? trans.__('Another notebook started it.') : '';
}

/** Of "No step for 12 s, 3 requests running. The scheduler answers. …": the first sentence, as the engine's details. */
export function sinceWhenStuck(trouble: string, trans: TranslationBundle): string {
  const found = STUCK.exec(trouble);
  return found ? trans.__('no step for %1', found[1]) : '';
}

function whoIsStuck(trouble: string): string {
  return STUCK.test(trouble) ? trouble.slice(trouble.indexOf('. ') + 2) : trouble;
}

/** An error's sentence; the log lines that may follow it stand in the log. */
function firstLine(text: string | undefined): string {
  return (text ?? '').split('\n', 1)[0];
}
