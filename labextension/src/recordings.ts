/** Opening a recording from the server's files, or from this computer where there is no file dialog. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { IDocumentManager } from '@jupyterlab/docmanager';
import { FileDialog } from '@jupyterlab/filebrowser';
import { PathExt } from '@jupyterlab/coreutils';
import type { TranslationBundle } from '@jupyterlab/translation';

import { element } from './dom';
import type { PanelModel } from './model';
import type { ReplayPlayer } from './replay';

const SUFFIX = '.sgnb';
const MAX_BYTES = 256 << 20;

export function recordingOpener(
  app: JupyterFrontEnd,
  manager: IDocumentManager | null,
  model: PanelModel,
  player: ReplayPlayer,
  trans: TranslationBundle
): (path?: string) => Promise<void> {
  const open = async (name: string, bytes: () => Promise<Uint8Array>) => {
    try {
      await player.open(name, await bytes());
    } catch (error) {
      model.say((error as Error).message);
    }
  };
  const fromServer = (path: string) =>
    open(PathExt.basename(path), async () => {
      const file = await app.serviceManager.contents.get(path, { type: 'file', format: 'base64', content: true });
      return Uint8Array.from(atob(String(file.content).replace(/\s/g, '')), char => char.charCodeAt(0));
    });
  return async path => {
    if (path) {
      return fromServer(path);
    }
    if (manager) {
      const filter = (item: { type: string; name: string }) =>
        item.type === 'directory' || item.name.endsWith(SUFFIX) ? {} : null;
      const answer = await FileDialog.getOpenFiles({ manager, filter, title: trans.__('Open recording') });
      const chosen = answer.button.accept ? answer.value?.find(item => item.type !== 'directory') : null;
      return chosen ? fromServer(chosen.path) : undefined;
    }
    const input = element('input', '');
    input.type = 'file';
    input.accept = SUFFIX;
    input.addEventListener('change', () => {
      const file = input.files?.[0];
      if (file && file.size <= MAX_BYTES) {
        void open(file.name, async () => new Uint8Array(await file.arrayBuffer()));
      } else if (file) {
        model.say(trans.__('%1 is larger than 256 MB.', file.name));
      }
    });
    input.click();
  };
}
