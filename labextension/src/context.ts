/** Hears all that happens to the kernel of a notebook or console. No state of its own. */

import type { ISessionContext } from '@jupyterlab/apputils';
import type { Kernel } from '@jupyterlab/services';

export interface IContextHandlers {
  /** Another kernel, or none. */
  kernel(): void;
  status(status: Kernel.Status): void;
  connection(status: Kernel.ConnectionStatus): void;
  /** The notebook or console may have another name. */
  name(): void;
  /** The notebook or console was closed. */
  gone(): void;
}

/** Call the handlers until the returned function is called. */
export function watchContext(context: ISessionContext, handlers: IContextHandlers): () => void {
  const onKernel = () => handlers.kernel();
  const onStatus = (_: ISessionContext, status: Kernel.Status) => handlers.status(status);
  const onConnection = (_: ISessionContext, status: Kernel.ConnectionStatus) => handlers.connection(status);
  const onName = () => handlers.name();
  const onGone = () => handlers.gone();
  context.kernelChanged.connect(onKernel);
  context.statusChanged.connect(onStatus);
  context.connectionStatusChanged.connect(onConnection);
  context.propertyChanged.connect(onName);
  context.disposed.connect(onGone);
  return () => {
    context.kernelChanged.disconnect(onKernel);
    context.statusChanged.disconnect(onStatus);
    context.connectionStatusChanged.disconnect(onConnection);
    context.propertyChanged.disconnect(onName);
    context.disposed.disconnect(onGone);
  };
}
