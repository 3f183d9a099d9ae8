/**
 * The user's settings and language, for the panel and for every view of the page, docked or in a cell.
 *
 * Views read `globalThis[Symbol.for("sgnb.settings")]` and hear `sgnb-settings` on the document; fonts and the legend are
 * style alone and stand on the body. Their words go through `globalThis[Symbol.for("sgnb.trans")]` (static/trans.js).
 */

import type { ISettingRegistry } from '@jupyterlab/settingregistry';
import type { TranslationBundle } from '@jupyterlab/translation';

export interface IViewSettings {
  shade: string;
  historyMinutes: number;
  textFont: string;
  showWhitespace: boolean;
  legend: boolean;
}

export interface IPanelSettings extends IViewSettings {
  logLines: number;
  panelOrder: string[];
}

export function readSettings(loaded: ISettingRegistry.ISettings): IPanelSettings {
  const value = <T>(name: string, otherwise: T): T => (loaded.get(name).composite as T | undefined) ?? otherwise;
  return {
    shade: value('defaultShade', 'none'),
    historyMinutes: value('historyMinutes', 10),
    textFont: value('textFont', 'code'),
    showWhitespace: value('showWhitespace', false),
    legend: value('legend', true),
    logLines: value('logLines', 2),
    panelOrder: value('panelOrder', [] as string[])
  };
}

/** Make the reader's language known to the page's views. */
export function publishLanguage(trans: TranslationBundle): void {
  (globalThis as Record<symbol, unknown>)[Symbol.for('sgnb.trans')] = trans;
}

/** Make the settings known to the page's views. */
export function publishSettings(settings: IViewSettings): void {
  const { shade, historyMinutes, textFont, showWhitespace, legend } = settings;
  const shared = { shade, historyMinutes, textFont, showWhitespace, legend };
  (globalThis as Record<symbol, unknown>)[Symbol.for('sgnb.settings')] = shared;
  document.body.classList.toggle('sgnb-mod-prose', textFont === 'prose');
  document.body.classList.toggle('sgnb-mod-noLegend', !legend);
  document.dispatchEvent(new CustomEvent('sgnb-settings', { detail: shared }));
}
