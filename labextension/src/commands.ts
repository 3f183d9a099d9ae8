/**
 * All commands of sgnb, with the prefix `sgnb:`: what the panel's buttons, the palette, menus and shortcuts run.
 */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import { Clipboard, Dialog, showDialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';

import { VIEW_KINDS, ViewKind, viewTitles } from './control_sections';
import { download } from './dom';
import type { PanelModel } from './model';
import type { PaneManager } from './panes';
import type { ReplayPlayer } from './replay';
import type { Action, Phase } from './states';

export namespace CommandIDs {
  export const openPanel = 'sgnb:open-panel';
  export const openView = 'sgnb:open-view';
  export const openLayout = 'sgnb:open-standard-layout';
  export const launch = 'sgnb:launch';
  export const stop = 'sgnb:stop';
  export const restart = 'sgnb:restart';
  export const flush = 'sgnb:flush';
  export const abort = 'sgnb:abort';
  export const abortAll = 'sgnb:abort-all';
  export const pause = 'sgnb:pause';
  export const step = 'sgnb:step';
  export const resume = 'sgnb:resume';
  export const set = 'sgnb:set';
  export const attach = 'sgnb:attach';
  export const openLog = 'sgnb:open-log';
  export const saveReport = 'sgnb:save-report';
  export const openRecording = 'sgnb:open-recording';
  export const closeRecording = 'sgnb:close-recording';
  export const playRecording = 'sgnb:play-recording';
  export const exportPerfetto = 'sgnb:export-perfetto';
  export const reconnect = 'sgnb:reconnect';
  export const loadExtension = 'sgnb:load-extension';
  export const copyLoad = 'sgnb:copy-load-line';
}

/** Keys of the views (ui.md, section 1) as commands: they act on the view that has the focus, or had it last. */
function viewKeys(trans: TranslationBundle): [string, string, string][] {
  return [
    ['sgnb:step-back', ',', trans.__('Previous step')],
    ['sgnb:step-forward', '.', trans.__('Next step')],
    ['sgnb:previous-event', '<', trans.__('Previous event')],
    ['sgnb:next-event', '>', trans.__('Next event')],
    ['sgnb:go-live', 'L', trans.__('Go live')],
    ['sgnb:find', '/', trans.__('Find in view')],
    ['sgnb:clear-selection', 'Escape', trans.__('Clear the selection')],
    ['sgnb:zoom-in', '+', trans.__('Zoom in')],
    ['sgnb:zoom-out', '-', trans.__('Zoom out')],
    ['sgnb:zoom-reset', '0', trans.__('Reset zoom')],
    ['sgnb:copy', 'c', trans.__('Copy what is selected')],
    ['sgnb:show-keys', '?', trans.__('Show keys of the view')]
  ];
}

/** Ask before requests are lost; true when the engine may stop. */
export async function mayStop(model: PanelModel, trans: TranslationBundle, verb: string): Promise<boolean> {
  const stats = model.state?.stats;
  const counted = (stats?.running ?? 0) + (stats?.waiting ?? 0);
  const requests = model.isLive ? counted : 0;
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

export interface ICommandParts {
  app: JupyterFrontEnd;
  model: PanelModel;
  panes: PaneManager;
  player: ReplayPlayer;
  trans: TranslationBundle;
  openLog: () => void;
  /** Let the user choose a recording, or open the one at `path`. */
  openRecording: (path?: string) => Promise<void>;
}

/** Add the commands; returns those that stand in the palette. */
export function addCommands(parts: ICommandParts): string[] {
  const { app, model, trans } = parts;
  const shown: string[] = [];
  const add = (
    id: string,
    label: string,
    execute: (args: ReadonlyPartialJSONObject) => unknown,
    isEnabled: () => boolean = () => true,
    args: ReadonlyPartialJSONObject | null = null
  ) => {
    app.commands.addCommand(id, { label, execute, isEnabled, describedBy: { args } as never });
    shown.push(id);
  };
  addEngineCommands(parts, add);
  addRecordingCommands(parts, add);
  add(CommandIDs.openLayout, trans.__('Open standard layout'), () => parts.panes.openLayout());
  app.commands.addCommand(CommandIDs.openView, {
    label: args => trans.__('Open view: %1', viewTitles(trans)[args.kind as ViewKind] ?? ''),
    execute: args => {
      if (VIEW_KINDS.includes(args.kind as ViewKind)) {
        parts.panes.open(args.kind as ViewKind);
      }
    },
    describedBy: { args: { type: 'object', properties: { kind: { type: 'string', enum: VIEW_KINDS } } } }
  });
  for (const [id, key, label] of viewKeys(trans)) {
    add(
      id,
      label,
      () => parts.panes.focused?.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true })),
      () => parts.panes.focused !== null
    );
  }
  model.stateChanged.connect(() => {
    if (model.phase !== lastPhase) {
      lastPhase = model.phase;
      shown.forEach(id => app.commands.notifyCommandChanged(id));
    }
  });
  let lastPhase: Phase | null = null;
  return shown;
}

type Add = (
  id: string,
  label: string,
  execute: (args: ReadonlyPartialJSONObject) => unknown,
  isEnabled?: () => boolean,
  args?: ReadonlyPartialJSONObject | null
) => void;

function addEngineCommands({ app, model, trans, openLog }: ICommandParts, add: Add): void {
  const live = () => model.isLive;
  const paused = () => model.isLive && model.state?.engine?.paused === true;
  const phase = (...phases: Phase[]) => phases.includes(model.phase);
  add(CommandIDs.launch, trans.__('Start engine'), () => model.send('launch'), () => phase('no-engine', 'died', 'failed'));
  add(
    CommandIDs.stop,
    trans.__('Stop engine'),
    async () => (await mayStop(model, trans, trans.__('Stop engine'))) && model.send('stop'),
    () => live() || phase('starting')
  );
  add(
    CommandIDs.restart,
    trans.__('Restart engine'),
    async () => (await mayStop(model, trans, trans.__('Restart engine'))) && model.send('restart'),
    () => live() || phase('died')
  );
  add(CommandIDs.flush, trans.__('Flush cache'), () => model.send('flush'), live);
  add(CommandIDs.abortAll, trans.__('Abort all requests'), () => model.send('abort_all'), live);
  add(CommandIDs.pause, trans.__('Pause engine'), () => model.send('pause'), () => live() && !paused());
  add(CommandIDs.resume, trans.__('Resume engine'), () => model.send('resume'), paused);
  add(CommandIDs.step, trans.__('Take one step'), () => model.send('step', { count: 1 }), paused);
  add(CommandIDs.openLog, trans.__('Open engine log'), openLog, () => Boolean(model.state?.engine));
  add(
    CommandIDs.saveReport,
    trans.__('Save report…'),
    async () => {
      try {
        const report = (await model.ask('report')) as { name: string; text: string };
        download(String(report.name), String(report.text));
        model.say(trans.__('Saved %1.', String(report.name)));
      } catch (error) {
        model.say((error as Error).message);
      }
    },
    () => Boolean(model.state?.engine)
  );
  add(CommandIDs.loadExtension, trans.__('Load extension'), () => model.loadExtension(), () => phase('not-loaded'));
  add(CommandIDs.copyLoad, trans.__('Copy the load line'), () => Clipboard.copyToSystem('%load_ext sgnb'));
  add(CommandIDs.reconnect, trans.__('Connect the panel anew'), () => model.reconnect(), () => !phase('no-kernel'));
  const text = (description: string) => ({ type: 'string', description });
  app.commands.addCommand(CommandIDs.attach, {
    label: args => trans.__('Attach to %1', String(args.label ?? args.name ?? '')),
    execute: args => model.send('attach', { name: String(args.name ?? '') }),
    describedBy: { args: { type: 'object', properties: { name: text(trans.__('The name of the engine')) } } }
  });
  app.commands.addCommand(CommandIDs.abort, {
    label: args => trans.__('Abort %1', String(args.name ?? '')),
    execute: args => model.send('abort', { rids: (args.rids as string[]) ?? [], name: String(args.name ?? '') }),
    describedBy: {
      args: {
        type: 'object',
        properties: { rids: { type: 'array' }, name: text(trans.__('What people call the request')) }
      }
    }
  });
  app.commands.addCommand(CommandIDs.set, {
    label: args => trans.__('Set %1 to %2', String(args.name ?? ''), String(args.value ?? '')),
    execute: args => model.send('set', { knobs: { [String(args.name)]: String(args.value) } }),
    describedBy: {
      args: {
        type: 'object',
        properties: { name: text(trans.__('A live knob')), value: text(trans.__('Its value')) }
      }
    }
  });
}

function addRecordingCommands({ app, model, player, trans, openRecording }: ICommandParts, add: Add): void {
  const replay = () => model.replay !== null;
  app.commands.addCommand(CommandIDs.openRecording, {
    label: trans.__('Open recording…'),
    execute: args => openRecording(typeof args.path === 'string' ? args.path : undefined),
    describedBy: {
      args: { type: 'object', properties: { path: { type: 'string', description: trans.__('A .sgnb file') } } }
    }
  });
  add(CommandIDs.closeRecording, trans.__('Close recording'), () => player.close(), replay);
  add(
    CommandIDs.playRecording,
    trans.__('Play or pause the recording'),
    () => (model.replay?.playing ? player.pause() : player.play()),
    replay
  );
  add(
    CommandIDs.exportPerfetto,
    trans.__('Export Perfetto…'),
    () => {
      const made = player.perfetto();
      if (made) {
        download(made.name, made.text);
        model.say(trans.__('Saved %1.', made.name));
      }
    },
    replay
  );
}

/** The command behind each button of a state. */
export function commandOf(action: Action): string {
  const ids: Record<Exclude<Action, 'showHolders' | 'abortCell'>, string> = {
    openRecording: CommandIDs.openRecording,
    loadExtension: CommandIDs.loadExtension,
    launch: CommandIDs.launch,
    cancelStart: CommandIDs.stop,
    openLog: CommandIDs.openLog,
    abortAll: CommandIDs.abortAll,
    restart: CommandIDs.restart,
    saveReport: CommandIDs.saveReport,
    closeRecording: CommandIDs.closeRecording,
    exportPerfetto: CommandIDs.exportPerfetto
  };
  return ids[action as keyof typeof ids];
}
