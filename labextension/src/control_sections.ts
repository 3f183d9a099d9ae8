/**
 * The lower sections of the panel: views, engine controls with the live knobs, requests, log.
 *
 * Each is made once and updated; what a control does is told to it as a function.
 */

import type { TranslationBundle } from '@jupyterlab/translation';

import { button, element, enable, heading, link, setText, show } from './dom';
import { shortLogLine } from './format';
import type { IKnob, IRequest, IState } from './protocol';
import type { ILook } from './states';

export type ViewKind = 'tree' | 'kv' | 'timeline' | 'graph';

/** Lab's names of the views, in the panel's order. */
export const VIEW_KINDS: ViewKind[] = ['tree', 'kv', 'timeline', 'graph'];

export function viewTitles(trans: TranslationBundle): Record<ViewKind, string> {
  return {
    tree: trans.__('Radix tree'),
    kv: trans.__('KV map'),
    timeline: trans.__('Timeline'),
    graph: trans.__('Graph')
  };
}

export class ViewsSection {
  readonly node = element('section', 'sgnb-Panel-section');

  constructor(trans: TranslationBundle, open: (kind: ViewKind) => void, layout: () => void) {
    this.node.setAttribute('aria-label', trans.__('Views'));
    const grid = element('div', 'sgnb-Panel-buttons');
    for (const [kind, label] of Object.entries(viewTitles(trans)) as [ViewKind, string][]) {
      const made = button(label, () => open(kind));
      this._buttons.set(kind, made);
      grid.append(made);
    }
    this._layout = link(trans.__('Open standard layout'), layout);
    this.node.append(heading(trans.__('Views')), grid, this._layout);
  }

  update(shown: ILook): void {
    for (const [kind, made] of this._buttons) {
      enable(made, shown.views === 'all' || (shown.views === 'graph' && kind === 'graph'), shown.viewsWhy);
    }
    enable(this._layout, shown.views === 'all', shown.viewsWhy);
  }

  private readonly _buttons = new Map<ViewKind, HTMLButtonElement>();
  private readonly _layout: HTMLButtonElement;
}

export interface IControls {
  flush(): void;
  abortAll(): void;
  pause(): void;
  resume(): void;
  step(): void;
  stop(): void;
  setKnob(name: string, value: string): void;
  knobs(): Promise<IKnob[]>;
}

/** Until the kernel has told the engine's own list. */
const POLICIES = ['lpm', 'fcfs', 'dfs-weight', 'lof', 'priority', 'random'];

export class ControlsSection {
  readonly node = element('section', 'sgnb-Panel-section');

  constructor(
    private readonly _trans: TranslationBundle,
    private readonly _do: IControls
  ) {
    const trans = _trans;
    this.node.setAttribute('aria-label', trans.__('Engine controls'));
    this._policy.append(...POLICIES.map(name => new Option(name, name)));
    this._policy.addEventListener('change', () => _do.setKnob('schedule_policy', this._policy.value));
    const label = element('label', 'sgnb-Panel-field', element('span', '', trans.__('Policy')), this._policy);
    this._flush = button(trans.__('Flush cache'), () => _do.flush());
    this._abort = button(trans.__('Abort all'), () => _do.abortAll());
    this._pause = button(trans.__('Pause'), () => _do.pause());
    this._resume = button(trans.__('Resume'), () => _do.resume());
    this._step = button(trans.__('Step'), () => _do.step());
    const stop = button(trans.__('Stop engine'), () => _do.stop());
    const grid = element('div', 'sgnb-Panel-buttons', this._flush, this._abort, this._pause, this._resume);
    grid.append(this._step, stop);
    this._more.append(element('summary', 'sgnb-Panel-link', trans.__('All knobs')), this._knobList);
    this._more.addEventListener('toggle', () => void this._fillKnobs());
    this.node.append(heading(trans.__('Engine')), label, grid, this._more);
  }

  update(shown: ILook, state: IState | null): void {
    show(this.node, shown.controls);
    const engine = state?.engine;
    if (!shown.controls || !engine) {
      this._more.open = false;
      return;
    }
    if (engine.policy && document.activeElement !== this._policy && this._policy.value !== engine.policy) {
      this._policy.value = engine.policy;
    }
    const busy = (state?.stats?.running ?? 0) + (state?.stats?.waiting ?? 0) + state.requests.length > 0;
    enable(this._abort, busy, this._trans.__('No request is running.'));
    const here = document.activeElement;
    const held = here === this._pause || here === this._resume || here === this._step;
    show(this._pause, !engine.paused);
    show(this._resume, engine.paused);
    show(this._step, engine.paused);
    if (held && (here as HTMLElement).hidden) {
      (engine.paused ? this._resume : this._pause).focus(); // what was pressed has made way for it
    }
  }

  private async _fillKnobs(): Promise<void> {
    if (!this._more.open) {
      return;
    }
    try {
      const knobs = await this._do.knobs();
      this._knobList.replaceChildren(...knobs.map(knob => this._knob(knob)));
    } catch (error) {
      this._knobList.replaceChildren(element('div', 'sgnb-Panel-text', String((error as Error).message)));
    }
  }

  private _knob(knob: IKnob): HTMLElement {
    const words = (value: IKnob['value']) => (value === null ? 'none' : value === true ? 'on' : value === false ? 'off' : String(value));
    const options = knob.kind === 'switch' ? ['on', 'off'] : knob.kind === 'choice' ? knob.choices.map(words) : null;
    const field = options ? element('select', 'sgnb-Panel-select') : element('input', 'sgnb-Panel-input');
    if (field instanceof HTMLSelectElement) {
      field.append(...(options ?? []).map(value => new Option(value, value)));
    }
    field.value = words(knob.value);
    field.addEventListener('change', () => {
      const sent = field.value;
      this._do.setKnob(knob.name, sent);
      const put = (knobs: IKnob[]) => {
        const now = knobs.find(one => one.name === knob.name);
        if (now && field.value === sent) {
          field.value = words(now.value); // as the engine has it now: it may have refused
        }
      };
      void this._do.knobs().then(put, () => undefined);
    });
    const name = element('span', 'sgnb-Panel-knobName', knob.name.replace(/_/g, ' '));
    const row = element('label', 'sgnb-Panel-field', name, field);
    row.title = this._trans.__('%1 — %2', knob.what, [knob.legal, knob.unit].filter(Boolean).join(', '));
    return row;
  }

  private readonly _policy = element('select', 'sgnb-Panel-select');
  private readonly _more = element('details', 'sgnb-Panel-more');
  private readonly _knobList = element('div', 'sgnb-Panel-knobs');
  private readonly _flush: HTMLButtonElement;
  private readonly _abort: HTMLButtonElement;
  private readonly _pause: HTMLButtonElement;
  private readonly _resume: HTMLButtonElement;
  private readonly _step: HTMLButtonElement;
}

export class RequestsSection {
  readonly node = element('section', 'sgnb-Panel-section');

  constructor(
    private readonly _trans: TranslationBundle,
    private readonly _abort: (request: IRequest) => void,
    more: () => void
  ) {
    this.node.setAttribute('aria-label', _trans.__('Requests'));
    const line = element('div', 'sgnb-Panel-headingLine', heading(_trans.__('Requests')), this._summary);
    this._more = link('', more);
    this.node.append(line, this._list, this._more);
  }

  update(shown: ILook, state: IState | null): void {
    const rows = shown.controls ? (state?.requests ?? []) : [];
    show(this.node, rows.length > 0);
    const stats = state?.stats;
    const waiting = stats?.waiting ?? 0;
    const running = this._trans.__('%1 running', stats?.running ?? 0);
    setText(this._summary, waiting ? this._trans.__('%1, %2 waiting', running, waiting) : running);
    this._keep(rows);
    rows.forEach((row, index) => setText(this._list.children[index].children[1] as HTMLElement, row.words));
    setText(this._more, this._trans.__('%1 more', state?.more ?? 0));
    show(this._more, (state?.more ?? 0) > 0);
  }

  /** Rows of requests that go on stay as they are, with the focus; it goes to the next one when its row leaves. */
  private _keep(rows: readonly IRequest[]): void {
    const held = [...this._list.children].findIndex(node => node.contains(document.activeElement));
    const made = new Map<string, HTMLElement>();
    for (const row of rows) {
      let key = `${row.rid}\n${row.name}`;
      while (made.has(key)) {
        key += '\n'; // others' requests have no id, and may have one name
      }
      made.set(key, this._made.get(key) ?? this._row(row));
    }
    const wanted = [...made.values()];
    this._made.forEach(node => wanted.includes(node) || node.remove());
    wanted.forEach((node, index) => {
      if (this._list.children[index] !== node) {
        this._list.insertBefore(node, this._list.children[index] ?? null);
      }
    });
    this._made = made;
    if (held >= 0 && !this._list.contains(document.activeElement)) {
      wanted[Math.min(held, wanted.length - 1)]?.querySelector('button')?.focus();
    }
  }

  private _row(row: IRequest): HTMLElement {
    const end = element('button', 'sgnb-Panel-close', '✕');
    end.type = 'button';
    end.setAttribute('aria-label', this._trans.__('Abort %1', row.name));
    end.addEventListener('click', () => this._abort(row));
    enable(end, row.rid !== '', this._trans.__('Another notebook runs it.'));
    if (row.rid) {
      end.title = this._trans.__('Abort %1', row.name);
    }
    const name = element('span', 'sgnb-Panel-requestName', row.name);
    name.title = row.rid ? this._trans.__('%1, request %2', row.name, row.rid) : row.name;
    return element('li', 'sgnb-Panel-request', name, element('span', 'sgnb-Panel-requestWords', row.words), end);
  }

  private _made = new Map<string, HTMLElement>();
  private readonly _summary = element('span', 'sgnb-Panel-words');
  private readonly _list = element('ul', 'sgnb-Panel-requests');
  private readonly _more: HTMLButtonElement;
}

export class LogSection {
  readonly node = element('section', 'sgnb-Panel-section');

  constructor(trans: TranslationBundle, open: () => void) {
    this.node.setAttribute('aria-label', trans.__('Log'));
    const opener = link(trans.__('Open'), open);
    opener.setAttribute('aria-label', trans.__('Open log'));
    this.node.append(element('div', 'sgnb-Panel-headingLine', heading(trans.__('Log')), opener), this._text);
  }

  update(lines: readonly string[]): void {
    show(this.node, lines.length > 0);
    setText(this._text, lines.map(shortLogLine).join('\n'));
  }

  private readonly _text = element('pre', 'sgnb-Panel-logText');
}
