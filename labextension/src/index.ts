/**
 * The JupyterLab plugin: adds the side panel, its commands, and follows the active notebook or console.
 *
 * Runs in JupyterLab and in Notebook 7: only the command registry and the shell are required.
 */

import { ILayoutRestorer, JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Clipboard, Dialog, ICommandPalette, ISessionContext, MainAreaWidget, showDialog } from '@jupyterlab/apputils';
import { IConsoleTracker } from '@jupyterlab/console';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { ITranslator, nullTranslator, TranslationBundle } from '@jupyterlab/translation';
import { ISignal } from '@lumino/signaling';
import { Menu, Widget } from '@lumino/widgets';

import { PanelModel } from './model';
import { LogPane, panelIcon, SidePanel } from './panel';

const PLUGIN_ID = 'sgnb:plugin';

namespace CommandIDs {
  export const openPanel = 'sgnb:open-panel';
  export const launch = 'sgnb:launch';
  export const stop = 'sgnb:stop';
  export const restart = 'sgnb:restart';
  export const flush = 'sgnb:flush';
  export const abortAll = 'sgnb:abort-all';
  export const attach = 'sgnb:attach';
  export const openLog = 'sgnb:open-log';
  export const reconnect = 'sgnb:reconnect';
  export const loadExtension = 'sgnb:load-extension';
}

/** A notebook or console: a widget that works with a kernel. */
type KernelWidget = Widget & { sessionContext: ISessionContext };

interface IKernelTracker {
  readonly currentWidget: KernelWidget | null;
  readonly currentChanged: ISignal<unknown, KernelWidget | null>;
  readonly widgetAdded: ISignal<unknown, KernelWidget>;
  forEach(visit: (widget: KernelWidget) => void): void;
  has(widget: Widget): boolean;
}

/** Let the model follow whichever notebook or console was last worked in. */
function followActive(app: JupyterFrontEnd, trackers: IKernelTracker[], model: PanelModel): void {
  const listen = (widget: KernelWidget) => {
    const context = widget.sessionContext;
    const kernel = context.session?.kernel;
    if (kernel) {
      model.listen(kernel);
    }
    context.kernelChanged.connect((_, change) => {
      if (change.newValue) {
        model.listen(change.newValue);
      }
    });
    widget.disposed.connect(() => {
      const next = trackers.map(tracker => tracker.currentWidget).find(other => other && !other.isDisposed);
      model.follow(next?.sessionContext ?? null);
    });
  };
  for (const tracker of trackers) {
    tracker.forEach(listen);
    tracker.widgetAdded.connect((_, widget) => listen(widget));
    tracker.currentChanged.connect((_, widget) => {
      if (widget) {
        model.follow(widget.sessionContext);
      }
    });
  }
  // A tracker's current widget stays the same while the other kind is visited in between.
  app.shell.currentChanged?.connect((_, change) => {
    const widget = change.newValue;
    if (widget && trackers.some(tracker => tracker.has(widget))) {
      model.follow((widget as KernelWidget).sessionContext);
    }
  });
  const current = trackers.map(tracker => tracker.currentWidget).find(widget => widget !== null);
  model.follow(current?.sessionContext ?? null);
}

/** Ask before requests are lost; true when the engine may stop. */
async function mayStop(model: PanelModel, trans: TranslationBundle, verb: string): Promise<boolean> {
  const stats = model.state?.stats;
  const requests = model.phase === 'running' ? (stats?.running ?? 0) + (stats?.waiting ?? 0) : 0;
  if (requests === 0) {
    return true;
  }
  const answer = await showDialog({
    title: verb,
    body: trans._n('%1 request is running. Stop anyway?', '%1 requests are running. Stop anyway?', requests),
    buttons: [
      Dialog.cancelButton({ label: trans.__('Keep running') }),
      Dialog.warnButton({ label: trans.__('Stop') })
    ]
  });
  return answer.button.accept;
}

function addCommands(app: JupyterFrontEnd, model: PanelModel, trans: TranslationBundle, openLog: () => void): string[] {
  const { commands } = app;
  const ready = () => model.phase === 'idle' || model.phase === 'running';
  const add = (
    id: string,
    label: string,
    execute: (args: Record<string, unknown>) => unknown,
    isEnabled: () => boolean
  ) => {
    commands.addCommand(id, { label, execute, isEnabled, describedBy: { args: null } });
  };
  add(
    CommandIDs.launch,
    trans.__('Start engine'),
    () => model.send('launch'),
    () => ['no-engine', 'died', 'failed'].includes(model.phase)
  );
  add(
    CommandIDs.stop,
    trans.__('Stop engine'),
    async () => (await mayStop(model, trans, trans.__('Stop engine'))) && model.send('stop'),
    () => ready() || model.phase === 'starting'
  );
  add(
    CommandIDs.restart,
    trans.__('Restart engine'),
    async () => (await mayStop(model, trans, trans.__('Restart engine'))) && model.send('restart'),
    () => ready() || model.phase === 'died'
  );
  add(CommandIDs.flush, trans.__('Flush cache'), () => model.send('flush'), ready);
  add(CommandIDs.abortAll, trans.__('Abort all requests'), () => model.send('abort_all'), ready);
  add(CommandIDs.openLog, trans.__('Open engine log'), openLog, () => model.state?.engine !== null);
  add(
    CommandIDs.loadExtension,
    trans.__('Load extension'),
    () => model.loadExtension(),
    () => model.phase === 'not-loaded'
  );
  add(
    CommandIDs.reconnect,
    trans.__('Connect the panel anew'),
    () => model.reconnect(),
    () => model.phase !== 'no-kernel'
  );
  commands.addCommand(CommandIDs.attach, {
    label: args => trans.__('Attach to engine %1', String(args.name ?? '')),
    execute: args => model.send('attach', { name: String(args.name ?? '') }),
    describedBy: {
      args: { type: 'object', properties: { name: { type: 'string', description: 'The name of the engine' } } }
    }
  });
  return [
    CommandIDs.launch,
    CommandIDs.stop,
    CommandIDs.restart,
    CommandIDs.flush,
    CommandIDs.abortAll,
    CommandIDs.openLog,
    CommandIDs.reconnect,
    CommandIDs.loadExtension
  ];
}

function makeLogOpener(app: JupyterFrontEnd, model: PanelModel, trans: TranslationBundle): () => void {
  let pane: MainAreaWidget<LogPane> | null = null;
  model.logReceived.connect((_, lines) => {
    if (pane && !pane.isDisposed) {
      pane.content.setLines(lines);
    }
  });
  model.stateChanged.connect(() => {
    if (pane && pane.isVisible && (model.phase === 'died' || model.phase === 'failed')) {
      pane.content.setLines(model.state?.log ?? []);
    }
  });
  return () => {
    if (!pane || pane.isDisposed) {
      pane = new MainAreaWidget({ content: new LogPane(trans) });
      pane.id = 'sgnb-log-area';
      app.shell.add(pane, 'main', { mode: 'split-bottom' });
    }
    pane.content.setLines(model.state?.log ?? []);
    app.shell.activateById(pane.id);
    model.send('log');
  };
}

function showEngineMenu(app: JupyterFrontEnd, model: PanelModel, anchor: HTMLElement): void {
  const menu = new Menu({ commands: app.commands });
  const current = model.state?.engine?.name;
  for (const name of model.state?.engines ?? []) {
    if (name !== current) {
      menu.addItem({ command: CommandIDs.attach, args: { name } });
    }
  }
  if (menu.items.length > 0) {
    menu.addItem({ type: 'separator' });
  }
  menu.addItem({ command: CommandIDs.launch });
  menu.addItem({ command: CommandIDs.restart });
  menu.addItem({ command: CommandIDs.stop });
  menu.addItem({ command: CommandIDs.openLog });
  const box = anchor.getBoundingClientRect();
  menu.aboutToClose.connect(() => window.setTimeout(() => menu.dispose(), 0));
  menu.open(box.left, box.bottom);
}

const plugin: JupyterFrontEndPlugin<void> = {
  id: PLUGIN_ID,
  description: 'The sgnb side panel: state, numbers and controls of the notebook’s engine.',
  autoStart: true,
  optional: [INotebookTracker, IConsoleTracker, ICommandPalette, ILayoutRestorer, ISettingRegistry, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    notebooks: INotebookTracker | null,
    consoles: IConsoleTracker | null,
    palette: ICommandPalette | null,
    restorer: ILayoutRestorer | null,
    settings: ISettingRegistry | null,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('sgnb');
    const model = new PanelModel();
    const openLog = makeLogOpener(app, model, trans);
    const ids = addCommands(app, model, trans, openLog);
    const run = (id: string) => () => void app.commands.execute(id);
    const panel = new SidePanel(
      model,
      {
        launch: run(CommandIDs.launch),
        stop: run(CommandIDs.stop),
        flush: run(CommandIDs.flush),
        abortAll: run(CommandIDs.abortAll),
        openLog: run(CommandIDs.openLog),
        loadExtension: run(CommandIDs.loadExtension),
        copyLoad: () => Clipboard.copyToSystem('%load_ext sgnb'),
        showMenu: anchor => showEngineMenu(app, model, anchor)
      },
      trans
    );
    panel.disposed.connect(() => model.dispose());
    app.commands.addCommand(CommandIDs.openPanel, {
      label: trans.__('Show the sgnb panel'),
      icon: panelIcon,
      execute: () => app.shell.activateById(panel.id),
      describedBy: { args: null }
    });
    app.shell.add(panel, 'left', { rank: 450, type: 'sgnb' });
    restorer?.add(panel, panel.id);
    for (const command of [CommandIDs.openPanel, ...ids]) {
      palette?.addItem({ command, category: 'sgnb' });
    }
    const trackers = [notebooks, consoles].filter(tracker => tracker !== null) as unknown as IKernelTracker[];
    followActive(app, trackers, model);
    model.stateChanged.connect(() => ids.forEach(id => app.commands.notifyCommandChanged(id)));
    if (settings) {
      void settings.load(PLUGIN_ID).then(loaded => {
        const apply = () => {
          panel.view.logLines = loaded.get('logLines').composite as number;
          panel.update();
        };
        loaded.changed.connect(apply);
        apply();
      });
    }
  }
};

export default plugin;
