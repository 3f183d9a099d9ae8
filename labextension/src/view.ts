/**
 * The panel's elements: draws the model, changes nothing itself.
 *
 * The elements are made once and then only shown, hidden and relabelled, so that focus and selection stay where
 * they are. Model names, log lines and errors enter by `textContent` alone. Actions leave through `IPanelActions`.
 */

import type { TranslationBundle } from '@jupyterlab/translation';

import { formatBytesOf, formatClock, formatCount, formatSpan, shortLogLine } from './format';
import { HISTORY_SAMPLES, PanelModel, Phase } from './model';
import type { IEngine, IStats, IStep } from './protocol';
import { Sparkline } from './sparkline';

/** What the buttons do; the plugin binds these to its commands. */
export interface IPanelActions {
  launch(): void;
  stop(): void;
  flush(): void;
  abortAll(): void;
  openLog(): void;
  loadExtension(): void;
  copyLoad(): void;
  showMenu(anchor: HTMLElement): void;
}

const LOAD_LINE = '%load_ext sgnb';

/** Start steps in their order; an engine that reports others shows those by their own name. */
const START_STEPS = ['process', 'tokenizer', 'weights', 'kv'];

const GLYPHS: Partial<Record<Phase, string>> = {
  starting: '◡',
  idle: '○',
  running: '●',
  died: '✕',
  failed: '✕',
  'no-engine': '○',
  restarting: '◡'
};

function element<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  name: string,
  ...children: (Node | string)[]
): HTMLElementTagNameMap[K] {
  const node = document.createElement(tag);
  node.className = name;
  node.append(...children);
  return node;
}

function setText(node: HTMLElement, value: string): void {
  if (node.textContent !== value) {
    node.textContent = value;
  }
}

function show(node: HTMLElement, visible: boolean): void {
  node.hidden = !visible;
}

/** An error's sentence; the log lines that may follow it stand in the log. */
function firstLine(text: string | undefined): string {
  return (text ?? '').split('\n', 1)[0];
}

interface INumberRow {
  key: string;
  spark: Sparkline;
  value: HTMLElement;
  unit: HTMLElement;
  read(stats: IStats): number;
  share: boolean;
}

interface INotice {
  title?: string;
  text?: string;
  trouble?: string;
}

export class PanelView {
  readonly node: HTMLElement;

  constructor(
    private readonly _model: PanelModel,
    private readonly _actions: IPanelActions,
    private readonly _trans: TranslationBundle
  ) {
    this.node = element('div', 'sgnb-Panel-content');
    this.node.append(
      this._makeHeader(),
      this._makeEngine(),
      this._makeNotice(),
      this._makeSteps(),
      this._makeNumbers(),
      this._makeControls(),
      this._makeLog(),
      this._live
    );
    this._live.setAttribute('role', 'status');
    this._live.setAttribute('aria-live', 'polite');
    this.update();
  }

  /** Lines of the log to show at the panel's foot. */
  logLines = 2;

  /** Bring every element up to the model. Cheap when nothing changed. */
  update(): void {
    const { phase, state } = this._model;
    const engine = state?.engine ?? null;
    this.node.dataset.state = phase;
    this.node.dataset.seq = String(state?.seq ?? 0);
    setText(this._title, this._model.title);
    this._title.title = this._model.title;
    this._updateEngine(phase, engine);
    this._updateNotice(phase, engine);
    show(this._steps, phase === 'starting');
    if (phase === 'starting') {
      this._updateSteps(engine?.steps ?? []);
    }
    const alive = phase === 'idle' || phase === 'running';
    const ended = phase === 'died';
    show(this._numbers, alive || (ended && state?.stats !== null));
    this._numbers.classList.toggle('sgnb-mod-last', ended);
    if (state?.stats) {
      this._updateNumbers(state.stats);
    }
    show(this._controls, alive);
    this._updateControls(state?.stats ?? null);
    const lines = (state?.log ?? []).slice(-this.logLines);
    show(this._log, lines.length > 0 && phase !== 'not-loaded' && phase !== 'no-kernel');
    setText(this._logText, lines.map(shortLogLine).join('\n'));
    this._announce(phase, engine);
  }

  private _makeHeader(): HTMLElement {
    const header = element('div', 'sgnb-Panel-header', element('span', 'sgnb-Panel-name', 'sgnb'), this._title);
    return header;
  }

  private _makeEngine(): HTMLElement {
    this._glyph.setAttribute('aria-hidden', 'true');
    this._menu.type = 'button';
    this._menu.title = this._trans.__('Engines and actions');
    this._menu.setAttribute('aria-label', this._menu.title);
    this._menu.setAttribute('aria-haspopup', 'menu');
    this._menu.addEventListener('click', () => this._actions.showMenu(this._menu));
    const line = element('div', 'sgnb-Panel-engineLine', this._glyph, this._engineName, this._words, this._menu);
    this._engine.append(line, this._modelLine, this._details);
    return this._engine;
  }

  private _makeNotice(): HTMLElement {
    const copy = this._link(this._trans.__('Copy'), () => this._actions.copyLoad());
    this._code.append(element('code', '', LOAD_LINE), copy);
    this._load = this._button(this._trans.__('Load extension'), () => this._actions.loadExtension(), true);
    this._launch = this._button(this._trans.__('Start engine'), () => this._actions.launch(), true);
    this._noticeLog = this._button(this._trans.__('Open log'), () => this._actions.openLog());
    const buttons = element('div', 'sgnb-Panel-buttons', this._load, this._launch, this._noticeLog);
    this._notice.append(
      this._noticeTitle,
      this._trouble,
      this._noticeText,
      this._code,
      buttons,
      this._after,
      this._messageLine
    );
    return this._notice;
  }

  private _makeSteps(): HTMLElement {
    this._bar.append(this._barFill);
    this._bar.setAttribute('role', 'progressbar');
    this._bar.setAttribute('aria-label', this._trans.__('Start of the engine'));
    const cancel = this._button(this._trans.__('Cancel start'), () => this._actions.stop());
    const log = this._button(this._trans.__('Open log'), () => this._actions.openLog());
    this._steps.append(
      this._stepList,
      this._bar,
      element('div', 'sgnb-Panel-buttons', cancel, log),
      element('div', 'sgnb-Panel-text', this._trans.__('Cells that need the engine wait for it.'))
    );
    return this._steps;
  }

  private _makeNumbers(): HTMLElement {
    const kvShare = (stats: IStats) => (stats.kv_total > 0 ? stats.kv_used / stats.kv_total : 0);
    this._addNumber('tokens', this._trans.__('Tokens/s'), stats => stats.tokens_per_s, false);
    this._addNumber('running', this._trans.__('Running'), stats => stats.running, false);
    this._addNumber('waiting', this._trans.__('Waiting'), stats => stats.waiting, false);
    this._addNumber('kv', this._trans.__('KV used'), kvShare, true);
    this._addNumber('reused', this._trans.__('Reused'), stats => stats.reused, true);
    return this._numbers;
  }

  private _addNumber(key: string, label: string, read: (stats: IStats) => number, share: boolean): void {
    const spark = new Sparkline(share ? 1 : null, HISTORY_SAMPLES);
    const value = element('span', 'sgnb-Panel-value', '–');
    const unit = element('span', 'sgnb-Panel-unit', share ? '%' : '');
    value.dataset.number = key;
    const row = element('div', 'sgnb-Panel-number', element('span', 'sgnb-Panel-label', label), spark.node);
    row.append(element('span', 'sgnb-Panel-figure', value, unit));
    this._numbers.append(row);
    this._rows.push({ key, spark, value, unit, read, share });
  }

  private _makeControls(): HTMLElement {
    const flush = this._button(this._trans.__('Flush cache'), () => this._actions.flush());
    this._abort = this._button(this._trans.__('Abort all'), () => this._actions.abortAll());
    const stop = this._button(this._trans.__('Stop engine'), () => this._actions.stop());
    this._controls.append(
      element('div', 'sgnb-Panel-heading', this._trans.__('Engine')),
      element('div', 'sgnb-Panel-buttons', flush, this._abort, stop)
    );
    return this._controls;
  }

  private _makeLog(): HTMLElement {
    const open = this._link(this._trans.__('Open log'), () => this._actions.openLog());
    const heading = element('div', 'sgnb-Panel-headingLine');
    heading.append(element('span', 'sgnb-Panel-heading', this._trans.__('Log')), open);
    this._log.append(heading, this._logText);
    return this._log;
  }

  private _updateEngine(phase: Phase, engine: IEngine | null): void {
    const visible = ['starting', 'idle', 'running', 'died', 'failed'].includes(phase) && engine !== null;
    show(this._engine, visible);
    if (!visible || !engine) {
      return;
    }
    this._glyph.dataset.glyph = phase;
    setText(this._glyph, GLYPHS[phase] ?? '');
    setText(this._engineName, engine.name);
    setText(this._words, this._stateWords(phase));
    setText(this._modelLine, engine.model);
    show(this._modelLine, engine.model !== '');
    const slots = engine.slots > 0 ? this._trans.__('%1\u00a0slots', formatCount(engine.slots)) : '';
    setText(this._details, [engine.dtype, engine.device, engine.attention, slots].filter(Boolean).join(', '));
    show(this._details, this._details.textContent !== '');
  }

  private _stateWords(phase: Phase): string {
    switch (phase) {
      case 'starting':
        return this._trans.__('starting, %1', formatSpan(this._model.seconds));
      case 'idle':
        return this._trans.__('idle');
      case 'running':
        return this._trans.__('running, %1', formatSpan(this._model.seconds));
      case 'died':
        return this._trans.__('ended %1', formatClock(this._model.sinceMillis));
      case 'failed':
        return this._trans.__('did not start');
      default:
        return '';
    }
  }

  private _noticeFor(phase: Phase, engine: IEngine | null): INotice {
    const trans = this._trans;
    switch (phase) {
      case 'no-kernel':
        return this._model.title
          ? {
              title: trans.__('No kernel is running'),
              text: trans.__('Start a kernel for %1 to use sgnb there.', this._model.title)
            }
          : {
              title: trans.__('No notebook is open'),
              text: trans.__('This panel follows the notebook or console you work in.')
            };
      case 'kernel-gone':
        return {
          title: trans.__('The kernel ended at %1.', formatClock(this._model.goneAt)),
          text: trans.__('Its engine ends with it. Restart the kernel to go on.')
        };
      case 'connecting':
        return { text: trans.__('Asking the kernel …') };
      case 'busy':
        return {
          title: trans.__('Waiting for the running cell'),
          text: trans.__('This kernel answers the panel between cells only.')
        };
      case 'not-loaded':
        return {
          title: trans.__('sgnb is not loaded here'),
          text: trans.__('The kernel runs, without the extension.')
        };
      case 'no-engine':
        return { title: trans.__('No engine is running.') };
      case 'died':
        return {
          trouble: firstLine(engine?.error) || trans.__('The engine ended.'),
          text: trans.__('Cells keep the text so far. The numbers show the last state before the end.')
        };
      case 'failed':
        return { trouble: firstLine(engine?.error) || trans.__('The engine did not start.') };
      case 'restarting':
        return { title: trans.__('The kernel is restarting. Its engine ends with it.') };
      default:
        return {};
    }
  }

  private _updateNotice(phase: Phase, engine: IEngine | null): void {
    const notice = this._noticeFor(phase, engine);
    const message = this._model.message;
    const broken = phase === 'died' || phase === 'failed';
    setText(this._noticeTitle, notice.title ?? '');
    setText(this._trouble, notice.trouble ?? '');
    setText(this._noticeText, notice.text ?? '');
    setText(this._messageLine, message);
    show(this._noticeTitle, Boolean(notice.title));
    show(this._trouble, Boolean(notice.trouble));
    show(this._noticeText, Boolean(notice.text));
    show(this._messageLine, message !== '');
    show(this._code, phase === 'not-loaded');
    show(this._load, phase === 'not-loaded');
    show(this._launch, phase === 'no-engine' || broken);
    setText(this._launch, broken ? this._trans.__('Start again') : this._trans.__('Start engine'));
    show(this._noticeLog, broken);
    const waits = phase === 'not-loaded' && this._model.kernelBusy;
    setText(this._after, this._trans.__('The kernel is busy. Loading starts after the current cell.'));
    show(this._after, waits);
    show(this._notice, Object.keys(notice).length > 0 || message !== '');
  }

  private _updateSteps(steps: IStep[]): void {
    const names = [...START_STEPS, ...steps.map(step => step.step).filter(name => name !== 'ready')];
    const order = names.filter((name, index) => names.indexOf(name) === index);
    const lastSeen = Math.max(-1, ...steps.map(step => order.indexOf(step.step)));
    let share = 0;
    const rows = order.map((name, index) => {
      const step = steps.filter(item => item.step === name).pop();
      const complete = step !== undefined && step.total > 0 && step.done >= step.total;
      const done = complete || index < lastSeen;
      const current = !done && index === lastSeen;
      share += done ? 1 : current && step && step.total > 0 ? step.done / step.total : 0;
      const glyph = element('span', 'sgnb-Panel-glyph', done ? '✓' : current ? '◡' : '○');
      glyph.dataset.glyph = done ? 'done' : current ? 'starting' : 'waiting';
      glyph.setAttribute('aria-hidden', 'true');
      const time = step ? `${step.seconds.toFixed(1)} s` : '';
      const row = element('li', 'sgnb-Panel-step', glyph, element('span', '', this._stepWords(name, step, current)));
      row.append(element('span', 'sgnb-Panel-time', time));
      row.dataset.step = done ? 'done' : current ? 'current' : 'waiting';
      return row;
    });
    this._stepList.replaceChildren(...rows);
    const percent = Math.round((100 * share) / Math.max(1, order.length));
    this._barFill.style.width = `${percent}%`;
    this._bar.setAttribute('aria-valuenow', String(percent));
  }

  private _stepWords(name: string, step: IStep | undefined, current: boolean): string {
    switch (name) {
      case 'process':
        return this._trans.__('process started');
      case 'tokenizer':
        return this._trans.__('tokenizer');
      case 'weights':
        return current && step && step.total > 1e6
          ? this._trans.__('weights, %1', formatBytesOf(step.done, step.total))
          : this._trans.__('weights');
      case 'kv':
        return this._trans.__('KV slots');
      default:
        return name;
    }
  }

  private _updateNumbers(stats: IStats): void {
    for (const row of this._rows) {
      const value = row.read(stats);
      setText(row.value, row.share ? String(Math.round(100 * value)) : formatCount(value));
      const history = this._model.history;
      row.spark.draw(history.map(row.read));
    }
  }

  private _updateControls(stats: IStats | null): void {
    const requests = (stats?.running ?? 0) + (stats?.waiting ?? 0);
    this._enable(this._abort, requests > 0, this._trans.__('No request is running.'));
  }

  private _enable(button: HTMLButtonElement, enabled: boolean, why: string): void {
    button.disabled = !enabled;
    button.title = enabled ? '' : why;
  }

  private _announce(phase: Phase, engine: IEngine | null): void {
    if (phase === this._announced) {
      return;
    }
    this._announced = phase;
    const notice = this._noticeFor(phase, engine);
    const words = phase === 'running' ? this._trans.__('running') : this._stateWords(phase);
    const sentence = notice.title ?? notice.trouble ?? (words && this._trans.__('Engine %1: %2', engine?.name ?? '', words));
    setText(this._live, sentence || '');
  }

  private _button(label: string, act: () => void, primary = false): HTMLButtonElement {
    const button = element('button', primary ? 'sgnb-Panel-button sgnb-mod-primary' : 'sgnb-Panel-button', label);
    button.type = 'button';
    button.addEventListener('click', act);
    return button;
  }

  private _link(label: string, act: () => void): HTMLButtonElement {
    const link = element('button', 'sgnb-Panel-link', label);
    link.type = 'button';
    link.addEventListener('click', act);
    return link;
  }

  private _announced: Phase | null = null;
  private readonly _rows: INumberRow[] = [];
  private readonly _title = element('span', 'sgnb-Panel-title');
  private readonly _engine = element('section', 'sgnb-Panel-section');
  private readonly _glyph = element('span', 'sgnb-Panel-glyph');
  private readonly _engineName = element('span', 'sgnb-Panel-engineName');
  private readonly _words = element('span', 'sgnb-Panel-words');
  private readonly _menu = element('button', 'sgnb-Panel-menu', '▾');
  private readonly _modelLine = element('div', 'sgnb-Panel-model');
  private readonly _details = element('div', 'sgnb-Panel-text');
  private readonly _notice = element('section', 'sgnb-Panel-section');
  private readonly _noticeTitle = element('div', 'sgnb-Panel-noticeTitle');
  private readonly _trouble = element('div', 'sgnb-Panel-trouble');
  private readonly _noticeText = element('div', 'sgnb-Panel-text');
  private readonly _code = element('div', 'sgnb-Panel-code');
  private readonly _after = element('div', 'sgnb-Panel-text');
  private readonly _messageLine = element('div', 'sgnb-Panel-message');
  private readonly _steps = element('section', 'sgnb-Panel-section');
  private readonly _stepList = element('ul', 'sgnb-Panel-steps');
  private readonly _bar = element('div', 'sgnb-Panel-bar');
  private readonly _barFill = element('div', 'sgnb-Panel-barFill');
  private readonly _numbers = element('section', 'sgnb-Panel-section sgnb-Panel-numbers');
  private readonly _controls = element('section', 'sgnb-Panel-section');
  private readonly _log = element('section', 'sgnb-Panel-section');
  private readonly _logText = element('pre', 'sgnb-Panel-logText');
  private readonly _live = element('div', 'sgnb-Panel-live');
  private _load!: HTMLButtonElement;
  private _launch!: HTMLButtonElement;
  private _noticeLog!: HTMLButtonElement;
  private _abort!: HTMLButtonElement;
}
