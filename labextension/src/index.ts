/**
 * The JupyterLab plugin: puts the panel, its commands, the docked views, the status bar's item and the editing help together.
 *
 * Runs in JupyterLab and in Notebook 7: only the command registry and the shell are required.
 */

import { ILabShell, ILayoutRestorer, JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette, MainAreaWidget } from '@jupyterlab/apputils';
import { EditorExtensionRegistry, IEditorExtensionRegistry } from '@jupyterlab/codemirror';
import { IConsoleTracker } from '@jupyterlab/console';
import { IDocumentManager } from '@jupyterlab/docmanager';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator, nullTranslator, TranslationBundle } from '@jupyterlab/translation';
import type { JSONObject } from '@lumino/coreutils';
import { Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';

import { addCommands, CommandIDs, commandOf } from './commands';
import { VIEW_KINDS } from './control_sections';
import { editingHelp } from './editor';
import type { ILanguage } from './editor_words';
import { addStartAnother, showEngineMenu } from './engine_menu';
import { followActive, IKernelTracker } from './follow';
import { lineMarks, linkViews } from './links';
import { PanelModel } from './model';
import { LogPane, panelIcon, SidePanel, StatusItem } from './panel';
import { ModelSource, PaneManager } from './panes';
import { readKnobs, readMarks, readWord } from './protocol';
import { recordingOpener } from './recordings';
import { ReplayPlayer } from './replay';
import { showSaved } from './saved';
import { publishLanguage, publishSettings, readSettings } from './settings';
import type { IPanelActions } from './view';

const PLUGIN_ID = 'sgnb:plugin';

function makeLogOpener(app: JupyterFrontEnd, model: PanelModel, trans: TranslationBundle): () => void {
  let pane: MainAreaWidget<LogPane> | null = null;
  model.logReceived.connect((_, lines) => {
    if (pane && !pane.isDisposed) {
      pane.content.setLines(lines);
    }
  });
  let shown = '';
  model.stateChanged.connect(() => {
    const last = (model.state?.log ?? []).join('\n');
    if (pane?.isVisible && last !== shown && last) {
      shown = last;
      if (!model.send('log')) {
        pane.content.setLines(model.state?.log ?? []);
      }
    }
  });
  return () => {
    if (!pane || pane.isDisposed) {
      pane = new MainAreaWidget({ content: new LogPane(trans) });
      pane.id = 'sgnb-log-area';
      app.shell.add(pane, app.name === 'JupyterLab' ? 'main' : 'down', { mode: 'split-bottom' });
    }
    pane.content.setLines(model.state?.log ?? []);
    app.shell.activateById(pane.id);
    model.send('log');
  };
}

function panelActions(
  app: JupyterFrontEnd,
  model: PanelModel,
  panes: PaneManager,
  trans: TranslationBundle
): IPanelActions {
  const run = (id: string, args: JSONObject = {}) => void app.commands.execute(id, args);
  return {
    act: action => {
      const full = model.state?.full;
      if (action === 'showHolders') {
        panes.open('kv');
      } else if (action === 'abortCell') {
        run(CommandIDs.abort, { rids: full?.rids ?? [], name: full?.cell ?? '' });
      } else {
        run(commandOf(action));
      }
    },
    abort: request => run(CommandIDs.abort, { rids: [request.rid], name: request.name }),
    abortAll: () => run(CommandIDs.abortAll),
    flush: () => run(CommandIDs.flush),
    pause: () => run(CommandIDs.pause),
    resume: () => run(CommandIDs.resume),
    step: () => run(CommandIDs.step),
    stop: () => run(CommandIDs.stop),
    setKnob: (name, value) => run(CommandIDs.set, { name, value }),
    knobs: async () => readKnobs(await model.ask('knobs')),
    openView: kind => run(CommandIDs.openView, { kind }),
    openLayout: () => run(CommandIDs.openLayout),
    openLog: () => run(CommandIDs.openLog),
    copyLoad: () => run(CommandIDs.copyLoad),
    showMenu: anchor => showEngineMenu(app, model, trans, anchor)
  };
}

function addEditingHelp(app: JupyterFrontEnd, registry: IEditorExtensionRegistry, model: PanelModel): void {
  let language: Promise<ILanguage> | null = null;
  model.kernelFollowed.connect(() => (language = null));
  const changed = new Signal<PanelModel, void>(model);
  model.phaseChanged.connect(() => changed.emit());
  model.cellEnded.connect(() => changed.emit());
  const help = editingHelp({
    check: async source => (model.isConnected ? readMarks(await model.ask('check', { source })) : []),
    about: async (source, line, col) =>
      model.isConnected ? readWord(await model.ask('about', { source, line, col })) : null,
    owns: editor => app.shell.currentWidget?.node.contains(editor) ?? false,
    changed,
    language: async () => {
      if (!model.isConnected) {
        return null;
      }
      language = language ?? (model.ask('language') as Promise<ILanguage>);
      language.catch(() => (language = null));
      return language;
    }
  });
  registry.addExtension({
    name: 'sgnb',
    factory: () => EditorExtensionRegistry.createImmutableExtension([help, lineMarks()])
  });
}

const plugin: JupyterFrontEndPlugin<void> = {
  id: PLUGIN_ID,
  description: 'The sgnb side panel, docked views and editing help: the notebook’s engine at work.',
  autoStart: true,
  optional: [
    INotebookTracker,
    IConsoleTracker,
    ICommandPalette,
    ILayoutRestorer,
    ISettingRegistry,
    ITranslator,
    ILabShell,
    IStatusBar,
    IEditorExtensionRegistry,
    IDocumentManager
  ],
  activate: (
    app: JupyterFrontEnd,
    notebooks: INotebookTracker | null,
    consoles: IConsoleTracker | null,
    palette: ICommandPalette | null,
    restorer: ILayoutRestorer | null,
    settings: ISettingRegistry | null,
    translator: ITranslator | null,
    labShell: ILabShell | null,
    statusBar: IStatusBar | null,
    editors: IEditorExtensionRegistry | null,
    documents: IDocumentManager | null
  ) => {
    const trans = (translator ?? nullTranslator).load('sgnb');
    publishLanguage(trans);
    const model = new PanelModel(trans);
    const player = new ReplayPlayer(model, trans);
    const cellSource = () => notebooks?.activeCell?.model.sharedModel.getSource() ?? '';
    const graph = async () => (await model.ask('graph', { source: cellSource() })) as JSONObject | null;
    const source = new ModelSource(model, player, graph, () => void app.commands.execute(CommandIDs.launch));
    const panes = new PaneManager(app, labShell, model, source, trans);
    notebooks?.activeCellChanged.connect(() => panes.refreshGraph());
    linkViews(notebooks, panes);
    showSaved(app, trans, view => model.send('plain', { view }));
    const openLog = makeLogOpener(app, model, trans);
    const openRecording = recordingOpener(app, documents, model, player, trans);
    const ids = addCommands({ app, model, panes, player, trans, openLog, openRecording });
    addStartAnother(app, model, trans);
    const panel = new SidePanel(model, player, panelActions(app, model, panes, trans), trans);
    const shown = () => (panel.isVisible ? 'all' : statusBar instanceof Widget && statusBar.isVisible ? 'figures' : 'nothing');
    model.shows = () => (document.visibilityState === 'hidden' ? 'nothing' : shown());
    const look = () => model.look();
    document.addEventListener('visibilitychange', look);
    panel.disposed.connect(() => {
      document.removeEventListener('visibilitychange', look);
      model.dispose();
    });
    app.commands.addCommand(CommandIDs.openPanel, {
      label: trans.__('Show the sgnb panel'),
      icon: panelIcon,
      execute: () => app.shell.activateById(panel.id),
      describedBy: { args: null }
    });
    app.shell.add(panel, 'left', { rank: 450, type: 'sgnb' });
    restorer?.add(panel, panel.id);
    panes.restore(restorer, CommandIDs.openView);
    for (const command of [CommandIDs.openPanel, CommandIDs.openRecording, ...ids]) {
      palette?.addItem({ command, category: 'sgnb' });
    }
    for (const kind of VIEW_KINDS) {
      palette?.addItem({ command: CommandIDs.openView, category: 'sgnb', args: { kind } });
    }
    statusBar?.registerStatusItem('sgnb:status', {
      item: new StatusItem(model, trans, () => void app.commands.execute(CommandIDs.openPanel)),
      align: 'right',
      rank: 100,
      isActive: () => model.isLive,
      activeStateChanged: model.phaseChanged
    });
    if (editors) {
      addEditingHelp(app, editors, model);
    }
    const trackers = [notebooks, consoles].filter(tracker => tracker !== null) as unknown as IKernelTracker[];
    followActive(app, trackers, model);
    if (settings) {
      void settings.load(PLUGIN_ID).then(loaded => {
        const apply = () => {
          const values = readSettings(loaded);
          publishSettings(values);
          panel.view.logLines = values.logLines;
          panel.view.order = values.panelOrder;
          panel.update();
        };
        loaded.changed.connect(apply);
        apply();
      });
    }
  }
};

export default plugin;
