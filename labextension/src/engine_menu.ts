/** The menu behind the engine's name: attach to any engine of this user, start another one, and what ends this one. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import { Dialog, showDialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { Menu, Widget } from '@lumino/widgets';

import { CommandIDs } from './commands';
import { element } from './dom';
import type { PanelModel } from './model';

export const START_ANOTHER = 'sgnb:start-another';

export function showEngineMenu(
  app: JupyterFrontEnd,
  model: PanelModel,
  trans: TranslationBundle,
  anchor: HTMLElement
): void {
  const menu = new Menu({ commands: app.commands });
  const current = model.state?.engine?.name;
  for (const { name, model: what } of model.state?.engines ?? []) {
    if (name !== current) {
      const label = what ? trans.__('%1 (%2)', name, what) : name;
      menu.addItem({ command: CommandIDs.attach, args: { name, label } });
    }
  }
  menu.addItem({ command: START_ANOTHER });
  menu.addItem({ type: 'separator' });
  for (const command of [CommandIDs.restart, CommandIDs.stop, CommandIDs.openLog, CommandIDs.saveReport]) {
    menu.addItem({ command });
  }
  menu.addItem({ command: CommandIDs.openRecording });
  const box = anchor.getBoundingClientRect();
  menu.aboutToClose.connect(() => window.setTimeout(() => menu.dispose(), 0));
  menu.open(box.left, box.bottom);
}

class StartForm extends Widget implements Dialog.IBodyWidget<{ name: string; model: string }> {
  constructor(trans: TranslationBundle, name: string) {
    super();
    this.addClass('sgnb-StartForm');
    this._name.value = name;
    this._name.pattern = '[a-z0-9\\-]{1,32}';
    this._model.placeholder = trans.__('the default model');
    this.node.append(
      element('label', '', element('span', '', trans.__('Name')), this._name),
      element('label', '', element('span', '', trans.__('Model')), this._model)
    );
  }

  getValue(): { name: string; model: string } {
    return { name: this._name.value.trim(), model: this._model.value.trim() };
  }

  private readonly _name = element('input', 'jp-mod-styled');
  private readonly _model = element('input', 'jp-mod-styled');
}

/** Add the command that asks for a name and a model, and starts an engine beside those that run. */
export function addStartAnother(app: JupyterFrontEnd, model: PanelModel, trans: TranslationBundle): void {
  app.commands.addCommand(START_ANOTHER, {
    label: trans.__('Start another…'),
    isEnabled: () => !['no-kernel', 'not-loaded', 'busy', 'connecting', 'starting', 'replay'].includes(model.phase),
    describedBy: { args: null },
    execute: async () => {
      const taken = new Set((model.state?.engines ?? []).map(engine => engine.name));
      const free = ['main', 'second', 'third', 'fourth'].find(name => !taken.has(name)) ?? '';
      const answer = await showDialog({
        title: trans.__('Start another engine'),
        body: new StartForm(trans, free),
        buttons: [Dialog.cancelButton(), Dialog.okButton({ label: trans.__('Start engine') })]
      });
      if (answer.button.accept && answer.value) {
        const { name, model: what } = answer.value;
        model.send('launch', { model: what || null, args: { name: name || 'main' } });
      }
    }
  });
}
