/**
 * The panel's elements in their order: draws the model, changes nothing itself.
 *
 * The elements are made once and then only shown, hidden and relabelled, so that focus and selection stay where
 * they are. Model names, log lines and errors enter by `textContent` alone. Actions leave through `IPanelActions`.
 */

import type { TranslationBundle } from '@jupyterlab/translation';

import { announcement } from './announce';
import { ControlsSection, IControls, LogSection, RequestsSection, ViewKind, ViewsSection } from './control_sections';
import { element, setText, show } from './dom';
import { shortLogLine } from './format';
import type { PanelModel } from './model';
import type { IRequest } from './protocol';
import { ReplaySection } from './replay_section';
import type { ReplayPlayer } from './replay';
import { Action, look } from './states';
import { EngineSection, NoticeSection, NumbersSection } from './status_sections';

/** What the buttons do; the plugin binds these to its commands. */
export interface IPanelActions extends IControls {
  act(action: Action): void;
  abort(request: IRequest): void;
  openView(kind: ViewKind): void;
  openLayout(): void;
  openLog(): void;
  copyLoad(): void;
  showMenu(anchor: HTMLElement): void;
}

/** The sections that a user may order; what is not named keeps its place behind them. */
export const SECTIONS = ['numbers', 'views', 'controls', 'requests', 'log'] as const;

export class PanelView {
  readonly node: HTMLElement;

  constructor(
    private readonly _model: PanelModel,
    player: ReplayPlayer,
    actions: IPanelActions,
    private readonly _trans: TranslationBundle
  ) {
    const trans = _trans;
    this._engine = new EngineSection(trans, anchor => actions.showMenu(anchor));
    this._notice = new NoticeSection(trans, action => actions.act(action), () => actions.copyLoad());
    this._numbers = new NumbersSection(trans);
    this._views = new ViewsSection(trans, kind => actions.openView(kind), () => actions.openLayout());
    this._controls = new ControlsSection(trans, actions);
    this._requests = new RequestsSection(trans, request => actions.abort(request), () => actions.openView('timeline'));
    this._log = new LogSection(trans, () => actions.openLog());
    this._replay = new ReplaySection(trans, player);
    const header = element('div', 'sgnb-Panel-header', element('h2', 'sgnb-Panel-name', 'sgnb'), this._title);
    this._live.setAttribute('role', 'status');
    this._live.setAttribute('aria-live', 'polite');
    this.node = element('div', 'sgnb-Panel-content', header, this._engine.node, this._replay.node, this._notice.node);
    this.order = [];
    this.update();
  }

  /** Lines of the log to show at the panel's foot. */
  logLines = 2;

  /** Names of SECTIONS in the order they shall stand in. */
  set order(names: readonly string[]) {
    const nodes: Record<string, HTMLElement> = {
      numbers: this._numbers.node,
      views: this._views.node,
      controls: this._controls.node,
      requests: this._requests.node,
      log: this._log.node
    };
    const wanted = [...new Set([...names.filter(name => name in nodes), ...SECTIONS])];
    this.node.append(...wanted.map(name => nodes[name]), this._foot, this._live);
  }

  /** Bring every element up to the model. Cheap when nothing changed. */
  update(): void {
    const facts = this._model.facts;
    const { phase, state, replay } = facts;
    const shown = look(facts, this._trans);
    shown.lines = shown.lines.map(shortLogLine);
    this.node.dataset.state = phase;
    this.node.dataset.seq = String(state?.seq ?? 0);
    setText(this._title, replay ? replay.file : this._model.title);
    this._title.title = this._title.textContent ?? '';
    this._engine.update(shown, facts);
    this._replay.update(replay);
    this._notice.update(shown, this._model.message);
    if (shown.steps) {
      this._notice.updateSteps(state?.engine?.steps ?? [], this._trans);
    }
    this._numbers.update(shown.numbers, state?.stats ?? null, this._model.history);
    this._views.update(shown);
    this._controls.update(shown, state);
    this._requests.update(shown, state);
    this._log.update(shown.controls && this.logLines > 0 ? (state?.log ?? []).slice(-this.logLines) : []);
    setText(this._foot, shown.foot);
    show(this._foot, shown.foot !== '');
    if (phase !== this._announced) {
      this._announced = phase;
      setText(this._live, announcement(facts, shown, this._trans));
    } else if (this._model.message !== this._said) {
      setText(this._live, this._model.message); // empty again, so that the same is said a second time
    }
    this._said = this._model.message;
  }

  private _announced = '';
  private _said = '';
  private readonly _title = element('span', 'sgnb-Panel-title');
  private readonly _foot = element('div', 'sgnb-Panel-section sgnb-Panel-text');
  private readonly _live = element('div', 'sgnb-Panel-live');
  private readonly _engine: EngineSection;
  private readonly _notice: NoticeSection;
  private readonly _numbers: NumbersSection;
  private readonly _views: ViewsSection;
  private readonly _controls: ControlsSection;
  private readonly _requests: RequestsSection;
  private readonly _log: LogSection;
  private readonly _replay: ReplaySection;
}
