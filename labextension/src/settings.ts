/**
 * The user's settings, for the panel and for every view of the page, docked or in a cell.
 *
 * Views read `globalThis[Symbol.for("sgnb.settings")]` and hear `sgnb-settings` on the document; fonts and the legend are
 * style alone and stand on the body.
 */

import type { ISettingRegistry } from '@jupyterlab/settingregistry';

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

/** Make the settings known to the page's views. */
export function publishSettings(settings: IViewSettings): void {
  const { shade, historyMinutes, textFont, showWhitespace, legend } = settings;
  const shared = { shade, historyMinutes, textFont, showWhitespace, legend };
  (globalThis as Record<symbol, unknown>)[Symbol.for('sgnb.settings')] = shared;
  document.body.classList.toggle('sgnb-mod-prose', textFont === 'prose');
  document.body.classList.toggle('sgnb-mod-noLegend', !legend);
  document.dispatchEvent(new CustomEvent('sgnb-settings', { detail: shared }));
}
