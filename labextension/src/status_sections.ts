/**
 * The upper sections of the panel: the engine, what is to be said about it, the steps of its start, its five numbers.
 *
 * Each is made once and then brought up to what `states.ts` says; nothing is decided here.
 */

import type { TranslationBundle } from '@jupyterlab/translation';

import { button, element, enable, link, setSign, setText, show } from './dom';
import { formatCount } from './format';
import type { IStats, IStep } from './protocol';
import { Sparkline } from './sparkline';
import { startRows } from './start_steps';
import { Action, IButton, IFacts, ILook, sinceWhenStuck } from './states';

const LOAD_LINE = '%load_ext sgnb';

export class EngineSection {
  readonly node = element('section', 'sgnb-Panel-section');

  constructor(
    private readonly _trans: TranslationBundle,
    showMenu: (anchor: HTMLElement) => void
  ) {
    const trans = this._trans;
    this.node.setAttribute('aria-label', trans.__('Engine'));
    this._glyph.setAttribute('aria-hidden', 'true');
    this._menu.type = 'button';
    setSign(this._menu, '▾');
    this._menu.title = trans.__('Engines and actions');
    this._menu.setAttribute('aria-label', this._menu.title);
    this._menu.setAttribute('aria-haspopup', 'menu');
    this._menu.addEventListener('click', () => showMenu(this._menu));
    const line = element('div', 'sgnb-Panel-engineLine', this._glyph, this._name, this._words, this._menu);
    this.node.append(line, this._model, this._details);
  }

  update(shown: ILook, facts: IFacts): void {
    show(this.node, shown.name !== '');
    if (!shown.name) {
      return;
    }
    this._glyph.dataset.glyph = shown.glyphKind;
    setSign(this._glyph, shown.glyph);
    setText(this._name, shown.name);
    setText(this._words, shown.words);
    setText(this._model, shown.model);
    show(this._model, shown.model !== '');
    const stuck = facts.phase === 'stuck' ? sinceWhenStuck(facts.state?.engine?.trouble ?? '', this._trans) : '';
    setText(this._details, stuck || shown.details);
    show(this._details, this._details.textContent !== '');
    show(this._menu, facts.phase !== 'replay');
  }

  private readonly _glyph = element('span', 'sgnb-Panel-glyph');
  private readonly _name = element('span', 'sgnb-Panel-engineName');
  private readonly _words = element('span', 'sgnb-Panel-words');
  private readonly _menu = element('button', 'sgnb-Panel-menu');
  private readonly _model = element('div', 'sgnb-Panel-model');
  private readonly _details = element('div', 'sgnb-Panel-text');
}

export class NoticeSection {
  readonly node = element('section', 'sgnb-Panel-section');

  constructor(
    trans: TranslationBundle,
    private readonly _act: (action: Action) => void,
    copyLoad: () => void
  ) {
    this.node.setAttribute('aria-label', trans.__('Message'));
    this.node.tabIndex = -1;
    this._code.append(element('code', '', LOAD_LINE), link(trans.__('Copy'), copyLoad));
    this._bar.setAttribute('role', 'progressbar');
    this._bar.setAttribute('aria-label', trans.__('Start of the engine'));
    this._bar.append(this._fill);
    const parts = [this._title, this._sentence, this._text, this._lines, this._code, this._steps, this._bar];
    this.node.append(...parts, this._buttons, this._after, this._message);
  }

  update(shown: ILook, message: string): void {
    setText(this._title, shown.title);
    setText(this._sentence, shown.sentence);
    this._sentence.dataset.tone = shown.tone;
    setText(this._text, shown.text);
    setText(this._lines, shown.lines.join('\n'));
    setText(this._after, shown.after);
    setText(this._message, message);
    for (const node of [this._title, this._sentence, this._text, this._lines, this._after, this._message]) {
      show(node, node.textContent !== '');
    }
    show(this._code, shown.code);
    show(this._steps, shown.steps);
    show(this._bar, shown.steps);
    this._updateButtons(shown.buttons);
    const anything = shown.title || shown.sentence || shown.text || shown.buttons.length || message;
    show(this.node, Boolean(anything));
  }

  updateSteps(steps: readonly IStep[], trans: TranslationBundle): void {
    const { rows, share } = startRows(steps, trans);
    const glyphs = { done: '✓', current: '◡', waiting: '○' };
    this._steps.replaceChildren(
      ...rows.map(row => {
        const glyph = element('span', 'sgnb-Panel-glyph');
        setSign(glyph, glyphs[row.state]);
        glyph.dataset.glyph = row.state === 'current' ? 'starting' : row.state;
        glyph.setAttribute('aria-hidden', 'true');
        const time = element('span', 'sgnb-Panel-time', row.time);
        const node = element('li', 'sgnb-Panel-step', glyph, element('span', '', row.words), time);
        node.dataset.step = row.state;
        return node;
      })
    );
    const percent = Math.round(100 * share);
    this._fill.style.width = `${percent}%`;
    this._bar.setAttribute('aria-valuenow', String(percent));
    this._bar.setAttribute('aria-valuemin', '0');
    this._bar.setAttribute('aria-valuemax', '100');
  }

  private _updateButtons(wanted: readonly IButton[]): void {
    const key = wanted.map(one => `${one.action}\n${one.label}\n${one.kind}`).join('\n\n');
    if (key !== this._made) {
      this._made = key;
      const held = this._acts[[...this._buttons.children].findIndex(node => node === document.activeElement)];
      this._acts = wanted.map(one => one.action);
      this._buttons.replaceChildren(
        ...wanted.map(one => button(one.label, () => this._act(one.action), one.kind))
      );
      if (held) {
        const again = this._buttons.children[this._acts.indexOf(held)] as HTMLElement | undefined;
        (again ?? this.node).focus(); // never another button: the next press would be for it
      }
    }
    wanted.forEach((one, index) => enable(this._buttons.children[index] as HTMLButtonElement, !one.why, one.why));
    show(this._buttons, wanted.length > 0);
  }

  private _made = '';
  private _acts: Action[] = [];
  private readonly _title = element('h3', 'sgnb-Panel-noticeTitle');
  private readonly _sentence = element('div', 'sgnb-Panel-trouble');
  private readonly _text = element('div', 'sgnb-Panel-text sgnb-Panel-noticeText');
  private readonly _lines = element('pre', 'sgnb-Panel-logText');
  private readonly _code = element('div', 'sgnb-Panel-code');
  private readonly _steps = element('ul', 'sgnb-Panel-steps');
  private readonly _bar = element('div', 'sgnb-Panel-bar');
  private readonly _fill = element('div', 'sgnb-Panel-barFill');
  private readonly _buttons = element('div', 'sgnb-Panel-buttons');
  private readonly _after = element('div', 'sgnb-Panel-text');
  private readonly _message = element('div', 'sgnb-Panel-message');
}

interface INumberRow {
  spark: Sparkline;
  value: HTMLElement;
  share: boolean;
  read(stats: IStats): number;
}

export class NumbersSection {
  readonly node = element('section', 'sgnb-Panel-section sgnb-Panel-numbers');

  constructor(trans: TranslationBundle) {
    this.node.setAttribute('aria-label', trans.__('Numbers'));
    const kvShare = (stats: IStats) => (stats.kv_total > 0 ? stats.kv_used / stats.kv_total : 0);
    this._add('tokens', trans.__('Tokens/s'), stats => stats.tokens_per_s, false, trans);
    this._add('running', trans.__('Running'), stats => stats.running, false, trans);
    this._add('waiting', trans.__('Waiting'), stats => stats.waiting, false, trans);
    this._add('kv', trans.__('KV used'), kvShare, true, trans);
    this._add('reused', trans.__('Reused'), stats => stats.reused, true, trans);
  }

  /** `last`: of an engine that does not move any more. */
  update(mode: ILook['numbers'], stats: IStats | null, history: readonly IStats[]): void {
    show(this.node, mode !== 'none');
    this.node.classList.toggle('sgnb-mod-last', mode === 'last');
    for (const row of this._rows) {
      row.spark.draw(history.map(row.read));
      if (!row.spark.isHovered) {
        setText(row.value, stats ? this._words(row, row.read(stats)) : '–');
      }
    }
  }

  private _words(row: INumberRow, value: number): string {
    return row.share ? String(Math.round(100 * value)) : formatCount(value);
  }

  private _add(
    key: string,
    label: string,
    read: (stats: IStats) => number,
    share: boolean,
    trans: TranslationBundle
  ): void {
    const value = element('span', 'sgnb-Panel-value', '–');
    value.dataset.number = key;
    const spark: Sparkline = new Sparkline(share ? 1 : null, (then, secondsAgo) => {
      row.value.classList.toggle('sgnb-mod-past', then !== null);
      if (then !== null) {
        setText(value, this._words(row, then));
        spark.node.setAttribute('data-ago', String(secondsAgo));
      }
    });
    const row: INumberRow = { spark, value, share, read };
    const unit = element('span', 'sgnb-Panel-unit', share ? '%' : '');
    const figure = element('span', 'sgnb-Panel-figure', value, unit);
    this.node.append(
      element('div', 'sgnb-Panel-number', element('span', 'sgnb-Panel-label', label), spark.node, figure)
    );
    spark.setTitle(trans.__('The last 60 seconds'));
    this._rows.push(row);
  }

  private readonly _rows: INumberRow[] = [];
}
