/** Lets the model follow whichever notebook or console was last worked in. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { ISessionContext } from '@jupyterlab/apputils';
import type { ISignal } from '@lumino/signaling';
import type { Widget } from '@lumino/widgets';

import type { PanelModel } from './model';

/** A notebook or console: a widget that works with a kernel. */
export type KernelWidget = Widget & { sessionContext: ISessionContext };

export interface IKernelTracker {
  readonly currentWidget: KernelWidget | null;
  readonly currentChanged: ISignal<unknown, KernelWidget | null>;
  readonly widgetAdded: ISignal<unknown, KernelWidget>;
  forEach(visit: (widget: KernelWidget) => void): void;
  has(widget: Widget): boolean;
}

export function followActive(app: JupyterFrontEnd, trackers: IKernelTracker[], model: PanelModel): void {
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
      if (model.followed && model.followed !== context) {
        return; // another one is worked in
      }
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
