/**
 * The side panel and the log pane as Lumino widgets: they own the life of the view and draw only while shown.
 */

import type { TranslationBundle } from '@jupyterlab/translation';
import { LabIcon } from '@jupyterlab/ui-components';
import { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';

import iconText from '../style/icon.svg';
import { statusWords } from './announce';
import { element, setText } from './dom';
import type { PanelModel } from './model';
import type { ReplayPlayer } from './replay';
import { IPanelActions, PanelView } from './view';

/** Three columns of an icicle, in the colour of the other icons. */
export const panelIcon = new LabIcon({ name: 'sgnb:panel', svgstr: iconText });

export class SidePanel extends Widget {
  constructor(
    readonly model: PanelModel,
    player: ReplayPlayer,
    actions: IPanelActions,
    trans: TranslationBundle
  ) {
    super();
    this.id = 'sgnb-panel';
    this.addClass('sgnb-Panel');
    this.title.icon = panelIcon;
    this.title.caption = trans.__('sgnb: engine of this notebook');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', trans.__('sgnb engine'));
    this.view = new PanelView(model, player, actions, trans);
    this.node.append(this.view.node);
    model.stateChanged.connect(this._onChange, this);
  }

  readonly view: PanelView;

  dispose(): void {
    if (!this.isDisposed) {
      this.model.stateChanged.disconnect(this._onChange, this);
      super.dispose();
    }
  }

  protected onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this.model.look();
    this.update();
  }

  protected onAfterHide(message: Message): void {
    super.onAfterHide(message);
    this.model.look();
  }

  protected onUpdateRequest(message: Message): void {
    super.onUpdateRequest(message);
    if (this.isVisible) {
      this.view.update();
    }
  }

  private _onChange(): void {
    if (this.isVisible) {
      this.update();
    }
  }
}

/** The engine's log in a pane of its own: the last lines, as text. */
export class LogPane extends Widget {
  constructor(trans: TranslationBundle) {
    super();
    this.id = 'sgnb-log';
    this.addClass('sgnb-Log');
    this.title.label = trans.__('Engine log');
    this.title.icon = panelIcon;
    this.title.closable = true;
    this._text = document.createElement('pre');
    this._text.tabIndex = 0;
    this._text.setAttribute('role', 'log');
    this._text.setAttribute('aria-live', 'off'); // each second some lines more: to be read when the reader wants
    this._text.setAttribute('aria-label', trans.__('Engine log'));
    this._empty = trans.__('The log is empty.');
    this._text.textContent = this._empty;
    this.node.append(this._text);
  }

  /** Show `lines`; stays at the end unless the reader scrolled up. */
  setLines(lines: readonly string[]): void {
    const pinned = this.node.scrollTop + this.node.clientHeight >= this.node.scrollHeight - 24;
    this._text.textContent = lines.join('\n') || this._empty;
    if (pinned) {
      this.node.scrollTop = this.node.scrollHeight;
    }
  }

  private readonly _text: HTMLPreElement;
  private readonly _empty: string;
}

/** The status bar's item: the engine in one line; a click shows the panel. */
export class StatusItem extends Widget {
  constructor(
    private readonly _model: PanelModel,
    private readonly _trans: TranslationBundle,
    open: () => void
  ) {
    super();
    this.addClass('sgnb-Status');
    this._button.type = 'button';
    this._button.addEventListener('click', open);
    this.node.append(this._button);
    _model.stateChanged.connect(this._update, this);
    this._update();
  }

  dispose(): void {
    this._model.stateChanged.disconnect(this._update, this);
    super.dispose();
  }

  private _update(): void {
    const words = statusWords(this._model.facts, this._trans);
    setText(this._button, words);
    this._button.title = words ? this._trans.__('Show the sgnb panel') : '';
  }

  private readonly _button = element('button', 'sgnb-Status-button');
}
