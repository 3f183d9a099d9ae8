/**
 * What is saved stands in for a view that cannot come: after a restart of the kernel and a reload of the page the widget
 * manager knows no model of our outputs and says so in red; and after a reload beside a running cell it can ask for them only
 * when that cell has ended; and where the page may not load a view's script there is an error. The same output holds its HTML
 * table. Of a script that cannot be loaded the kernel is told: it then sends the table as the run goes on, and no widget.
 *
 * Runs in the page, called once by the plugin. Outputs of other widgets stay as they are: ours carry `sgnb` in their
 * metadata. It looks at the page rather than at the widget manager, which has no public word for this, and so serves
 * notebooks, linked output views and consoles alike. No view is drawn here and nothing is asked of the kernel.
 */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { TranslationBundle } from '@jupyterlab/translation';
import { Panel, Widget } from '@lumino/widgets';

import { element } from './dom';

interface IOutput {
  readonly data: Record<string, unknown>;
  readonly metadata: Record<string, unknown>;
}

/** What is used of JupyterLab's output area. */
type OutputArea = Widget & {
  readonly model: { get(index: number): IOutput | undefined };
  readonly rendermime: {
    createRenderer(mimeType: string): Widget & { renderModel(model: unknown): Promise<void> };
    createModel(options: { data: Record<string, string>; trusted: boolean }): unknown;
  };
};

const RENDERER = '.jp-OutputArea-child > .lm-Panel.jp-OutputArea-output:not(.sgnb-Saved), .jp-OutputArea-child > .jupyter-widgets';
const LOADING = /^Loading widget/;
/** The manager's, and what a view's loader says when its script does not come (sgnb/widgets/static/loader.js). */
const ERROR = '.jupyter-widgets-error-widget, .sgnb-unloaded';
const WIDGET = 'application/vnd.jupyter.widget-view+json';
/** A view that comes at once is not preceded by its table. */
const PATIENCE_MS = 1000;

type Lack = 'refused' | 'loading' | 'broken';

/** What the manager's own words say where a view should be: text, and no view in it. A refused renderer has its mark. */
function lackOf(node: Element): Lack | null {
  if (node.querySelector(ERROR)) {
    return 'broken';
  }
  if (node.childElementCount > 0 || !node.textContent) {
    return null;
  }
  return LOADING.test(node.textContent) ? 'loading' : node.classList.contains('jupyter-widgets') ? 'refused' : null;
}

/** The saved table of an output of ours; null for any other output. */
export function savedHtml(output: IOutput | undefined): string | null {
  const html = output?.metadata.sgnb ? output.data['text/html'] : null;
  const whole = Array.isArray(html) ? html.join('') : html;
  return typeof whole === 'string' && whole ? whole : null;
}

/** The widget that owns a node of the page, looked for from above. */
function widgetAt(roots: Iterable<Widget>, node: Node): Widget | null {
  for (const widget of roots) {
    if (widget.node === node) {
      return widget;
    }
    if (widget.node.contains(node)) {
      return widgetAt(widget.children(), node);
    }
  }
  return null;
}

/**
 * The note and the table. A panel around JupyterLab's renderer: the output area takes the last widget that can render for
 * the output's own.
 */
class StandIn extends Panel {
  constructor(
    area: OutputArea,
    readonly html: string,
    readonly lack: Lack,
    trans: TranslationBundle
  ) {
    super();
    this.addClass('jp-OutputArea-output');
    this.addClass('sgnb-Saved');
    const words: Record<Lack, string> = {
      loading: trans.__('As it was saved: the live view comes when the kernel is free.'),
      refused: trans.__(
        'As it was saved: the kernel has no live view of this output. Run the cell again to see it live.'
      ),
      broken: trans.__('The script of the live view could not be loaded. This is its table.')
    };
    this.addWidget(new Widget({ node: element('div', 'sgnb-Saved-note', words[lack]) }));
    const renderer = area.rendermime.createRenderer('text/html');
    // Never trusted: the table needs no script, whoever wrote the file.
    void renderer.renderModel(area.rendermime.createModel({ data: { 'text/html': html }, trusted: false }));
    this.addWidget(renderer);
  }
}

class SavedOutputs {
  constructor(
    private readonly _app: JupyterFrontEnd,
    private readonly _trans: TranslationBundle,
    private readonly _tell: (view: string) => boolean
  ) {}

  /** One renderer: put the saved table beside it, or take it away when the view has come after all. */
  check(node: Element): void {
    const lack = lackOf(node);
    const waits = lack === 'loading' && this._waits(node);
    if (lack !== 'loading') {
      this._since.delete(node); // at the end of a run the same renderer loads its view once more
    }
    if (waits || (!lack && !node.parentElement?.querySelector(':scope > .sgnb-Saved'))) {
      return;
    }
    const renderer = widgetAt(this._app.shell.widgets('main'), node);
    const item = renderer?.parent;
    const area = item?.parent;
    if (!renderer || !(item instanceof Panel) || !area?.hasClass('jp-OutputArea')) {
      return;
    }
    const outputs = area as OutputArea;
    const output = lack ? outputs.model.get([...area.children()].indexOf(item)) : undefined;
    const html = savedHtml(output);
    const shown = item.widgets.find((one): one is StandIn => one instanceof StandIn);
    if (shown && shown.html === html && shown.lack === lack) {
      return;
    }
    shown?.dispose();
    if (html !== null && lack) {
      item.addWidget(new StandIn(outputs, html, lack, this._trans));
    }
    renderer.setHidden(html !== null);
    const view = (output?.data[WIDGET] as { model_id?: string } | undefined)?.model_id;
    if (html !== null && lack === 'broken' && view && !this._told.has(view) && this._tell(view)) {
      this._told.add(view);
    }
  }

  /** Whether a view that is loaded still has time to come. */
  private _waits(node: Element): boolean {
    const now = performance.now();
    const since = this._since.get(node);
    if (since === undefined) {
      this._since.set(node, now);
      window.setTimeout(() => node.isConnected && this.check(node), PATIENCE_MS + 10);
    }
    return now - (since ?? now) < PATIENCE_MS;
  }

  /** Renderers that load a view, and since when. */
  private readonly _since = new WeakMap<Element, number>();
  private readonly _told = new Set<string>();
}

/**
 * Watch the page's outputs from now on. `tell`: of a view whose script cannot be loaded, by its widget's id; false while
 * nobody listens.
 */
export function showSaved(app: JupyterFrontEnd, trans: TranslationBundle, tell: (view: string) => boolean): void {
  const saved = new SavedOutputs(app, trans, tell);
  const look = (records: MutationRecord[]) => {
    const found = new Set<Element>();
    for (const { target, addedNodes } of records) {
      if (target instanceof Element && target.matches(RENDERER)) {
        found.add(target);
      }
      for (const node of addedNodes) {
        if (node instanceof Element) {
          node.querySelectorAll(RENDERER).forEach(one => found.add(one));
          const broken = node.matches(ERROR) ? node.closest(RENDERER) : null;
          if (broken) {
            found.add(broken);
          }
        }
      }
    }
    found.forEach(node => node.isConnected && saved.check(node));
  };
  // Also the attribute: the renderer is in the page before it is refused. And children: a cell far away comes with it.
  new MutationObserver(look).observe(document.body, {
    subtree: true,
    childList: true,
    attributes: true,
    attributeFilter: ['class']
  });
}
