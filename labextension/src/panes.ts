/**
 * Docked views: panes in Lab's main area that show the followed kernel's engine, or an opened recording.
 *
 * The drawing is the widgets' own code; a pane gives it a place and a store. All panes of an engine share one channel,
 * the panel's comm, and one store with the widgets of the page: one playhead, one selection.
 */

import type { ILabShell, ILayoutRestorer, JupyterFrontEnd } from '@jupyterlab/application';
import { MainAreaWidget, WidgetTracker } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { JSONObject } from '@lumino/coreutils';
import { Widget } from '@lumino/widgets';

import type { ViewKind } from './control_sections';
import { viewTitles } from './control_sections';
import type { PanelModel } from './model';
import { panelIcon } from './panel';
import type { ReplayPlayer } from './replay';

/** Where a pane takes its data from. */
export interface IPaneSource {
  /** Names the store; empty: there was no engine. */
  readonly key: string;
  readonly engine: string;
  attach(store: ISgnbStore): () => void;
  /** What the graph shows: the program of the cell the reader works in. */
  graph(): Promise<JSONObject | null>;
  start(): void;
}

/** One view in a pane. */
export class ViewPane extends Widget {
  constructor(
    readonly kind: ViewKind,
    private readonly _source: IPaneSource
  ) {
    super();
    this.addClass('sgnb-pane');
    this.node.tabIndex = -1;
    void this.follow();
  }

  /** Show the source's present engine; the last one's picture stays until there is another. */
  async follow(): Promise<void> {
    const key = this._source.key || this._key || 'none';
    if (key === this._key) {
      return;
    }
    this._key = key;
    const { VIEWS, storeOf } = await import('./views');
    if (this.isDisposed || key !== this._key) {
      return;
    }
    this._drop();
    const store = storeOf(key);
    const host = document.createElement('div');
    host.tabIndex = -1;
    this.node.append(host);
    const detach = key === 'none' ? () => undefined : this._source.attach(store);
    const options = { engine: this._source.engine, start: () => this._source.start(), data: {} };
    const view = new VIEWS[this.kind](host, store, options);
    this._view = view;
    this._drop = () => {
      view.destroy();
      detach();
      if (!store.inUse && !store.replaying) {
        store.goLive();
        store.reset(); // an engine that has ended leaves many megabytes
      }
      host.remove();
      this._view = null;
      this._drop = () => undefined;
    };
    if (this.kind === 'graph') {
      void this.refresh();
    }
  }

  /** Ask anew for what does not come by events: the graph of the present cell. */
  async refresh(): Promise<void> {
    const data = await this._source.graph().catch(() => null);
    if (data && this._view) {
      this._view.options.data = data;
      this._view.changed();
    }
  }

  dispose(): void {
    if (!this.isDisposed) {
      this._drop();
      super.dispose();
    }
  }

  protected onActivateRequest(): void {
    (this.node.firstElementChild as HTMLElement | null)?.focus();
  }

  private _key = '';
  private _view: ISgnbView | null = null;
  private _drop: () => void = () => undefined;
}

/** The views' source: the model's kernel, or the player's recording. */
export class ModelSource implements IPaneSource {
  constructor(
    private readonly _model: PanelModel,
    private readonly _player: ReplayPlayer,
    private readonly _graph: () => Promise<JSONObject | null>,
    readonly start: () => void
  ) {}

  get key(): string {
    return this._player.key || this._model.storeKey;
  }

  get engine(): string {
    return this._player.key ? '' : (this._model.state?.engine?.name ?? '');
  }

  graph(): Promise<JSONObject | null> {
    return this._graph();
  }

  attach(store: ISgnbStore): () => void {
    if (store.replaying) {
      return () => undefined;
    }
    const model = this._model;
    return store.attach({
      send: content => model.sendView(store.key, content as JSONObject),
      onMessage: listener => {
        const take = (_: PanelModel, message: { key: string; content: JSONObject; buffers: unknown[] }) => {
          if (message.key === store.key) {
            listener(message.content, message.buffers);
          }
        };
        model.viewReceived.connect(take);
        return () => model.viewReceived.disconnect(take);
      }
    });
  }
}

/** Opens panes, finds open ones again, restores them with the workspace. */
export class PaneManager {
  constructor(
    private readonly _app: JupyterFrontEnd,
    private readonly _shell: ILabShell | null,
    model: PanelModel,
    private readonly _source: IPaneSource,
    private readonly _trans: TranslationBundle
  ) {
    model.stateChanged.connect(() => this._follow());
  }

  /** Command that opens a view; the restorer calls it too. */
  restore(restorer: ILayoutRestorer | null, command: string): void {
    void restorer?.restore(this._tracker, {
      command,
      args: pane => ({ kind: pane.content.kind }),
      name: pane => pane.content.kind
    });
  }

  /** Show a view: the open pane, or a new one at the right, beside the panes that are there. */
  open(kind: ViewKind, mode?: 'split-bottom'): MainAreaWidget<ViewPane> {
    const found = this._find(kind);
    if (found) {
      this._app.shell.activateById(found.id);
      void found.content.refresh();
      return found;
    }
    const pane = new MainAreaWidget({ content: new ViewPane(kind, this._source) });
    pane.toolbar.hide();
    pane.id = `sgnb-view-${kind}`;
    pane.title.label = kind === 'timeline' ? this._trans.__('Batch timeline') : viewTitles(this._trans)[kind];
    pane.title.icon = panelIcon;
    pane.title.closable = true;
    pane.title.caption = this._trans.__('sgnb: %1', pane.title.label);
    const near = this._near(kind);
    if (!this._shell) {
      this._app.shell.add(pane, 'down'); // Notebook 7 shows one document and has no main area to split
    } else if (mode) {
      this._app.shell.add(pane, 'main', { mode, ref: near?.id });
    } else if (near) {
      this._app.shell.add(pane, 'main', { mode: 'tab-after', ref: near.id });
    } else {
      this._app.shell.add(pane, 'main', { mode: 'split-right' });
    }
    void this._tracker.add(pane);
    this._app.shell.activateById(pane.id);
    return pane;
  }

  /** Show the open pane of a kind, if it is of that store; a graph's shows the active cell, not a run. */
  reveal(kind: ViewKind, key: string): boolean {
    const found = kind === 'graph' ? undefined : this._find(kind);
    if (!found?.isAttached || !key || this._source.key !== key) {
      return false;
    }
    this._app.shell.activateById(found.id);
    return true;
  }

  /** The tree at the top right, the timeline below it. */
  openLayout(): void {
    this.open('tree');
    if (this._find('timeline')) {
      this.open('timeline');
    } else {
      this.open('timeline', 'split-bottom');
    }
  }

  /** Whether a view has the focus, or had it last. */
  get focused(): HTMLElement | null {
    const active = document.activeElement?.closest<HTMLElement>('.sgnb-view');
    return active ?? this._tracker.currentWidget?.content.node.querySelector<HTMLElement>('.sgnb-view') ?? null;
  }

  /** The graph shows the cell that the reader works in now. */
  refreshGraph(): void {
    const pane = this._find('graph');
    if (pane?.isVisible) {
      void pane.content.refresh();
    }
  }

  /** The open pane that a new one becomes a tab of: the map goes with the tree, the graph with the timeline. */
  private _near(kind: ViewKind): MainAreaWidget<ViewPane> | undefined {
    const partner: Record<ViewKind, ViewKind> = { tree: 'kv', kv: 'tree', timeline: 'graph', graph: 'timeline' };
    const docked = (pane: MainAreaWidget<ViewPane> | undefined) => (pane?.isAttached ? pane : undefined);
    return docked(this._find(partner[kind])) ?? docked(this._tracker.find(pane => pane.isAttached));
  }

  private _find(kind: ViewKind): MainAreaWidget<ViewPane> | undefined {
    return this._tracker.find(pane => pane.content.kind === kind && !pane.isDisposed);
  }

  private _follow(): void {
    if (this._source.key !== this._key) {
      this._key = this._source.key;
      this._tracker.forEach(pane => void pane.content.follow());
    }
  }

  private _key = '';
  private readonly _tracker = new WidgetTracker<MainAreaWidget<ViewPane>>({ namespace: 'sgnb-views' });
}
