/**
 * One comm from this page to the kernel, on a subshell where the kernel has them.
 *
 * JupyterLab gives a comm a subshell only once it has the kernel's info, and that comes over the main shell: after
 * a reload of the page beside a running cell it comes when the cell ends. Then the same question is put on the
 * control channel, which always answers, and the subshell is asked for by hand.
 */

import { Kernel, KernelMessage } from '@jupyterlab/services';
import type { JSONObject } from '@lumino/coreutils';

const INFO_TIMEOUT_MS = 400;
const CONTROL_TIMEOUT_MS = 10_000;
const SUBSHELL_TIMEOUT_MS = 3000;

/** What newer JupyterLabs add to comms and kernels, absent from their interfaces. */
interface ISubshellComm {
  subshellStarted?: Promise<void>;
  subshellId?: string | null;
  commsOverSubshells?: string;
}

export interface IChannelHandlers {
  onMessage(message: KernelMessage.ICommMsgMsg): void;
  /** The kernel closed the comm: nobody there knows its target. */
  onClose(): void;
}

export class Channel {
  /** Make a channel; nothing is sent on the comm before `open`. */
  static async create(kernel: Kernel.IKernelConnection, target: string): Promise<Channel> {
    const known = await within(kernel.info, INFO_TIMEOUT_MS);
    const subshell = known ? null : await createSubshell(kernel);
    const comm = kernel.createComm(target);
    const extra = comm as ISubshellComm;
    const subshells = (kernel as { supportsSubshells?: boolean }).supportsSubshells === true;
    if (known && subshells && extra.commsOverSubshells !== 'disabled') {
      await within(extra.subshellStarted, SUBSHELL_TIMEOUT_MS);
    }
    return new Channel(kernel, comm, subshell);
  }

  /** Whether messages can still be sent. */
  get isOpen(): boolean {
    return this._opened && !this._comm.isDisposed && !this._kernel.isDisposed;
  }

  /** Whether the kernel connection was cleared under it, as in a restart. */
  get isLost(): boolean {
    return this._comm.isDisposed || this._kernel.isDisposed;
  }

  open(data: JSONObject, handlers: IChannelHandlers): void {
    this._comm.onMsg = handlers.onMessage;
    this._comm.onClose = () => {
      this._drop();
      handlers.onClose();
    };
    this._opened = true;
    if (this._subshell === null) {
      this._comm.open(data);
    } else {
      this._sendBeside('comm_open', { target_name: this._comm.targetName, data });
    }
  }

  send(data: JSONObject): void {
    // The comm's own subshell comes with the kernel's info; from then on JupyterLab sends there by itself.
    if (this._subshell === null || (this._comm as ISubshellComm).subshellId) {
      this._comm.send(data);
    } else {
      this._sendBeside('comm_msg', { data });
    }
  }

  /** Tell the kernel and let go. */
  close(): void {
    this._comm.onClose = () => undefined;
    if (this.isOpen && this._kernel.status !== 'dead') {
      if (this._subshell === null) {
        this._comm.close();
      } else {
        this._sendBeside('comm_close', { data: {} });
      }
    }
    this._drop();
  }

  private constructor(
    private readonly _kernel: Kernel.IKernelConnection,
    private readonly _comm: Kernel.IComm,
    private _subshell: string | null
  ) {}

  private _sendBeside(msgType: 'comm_open' | 'comm_msg' | 'comm_close', content: JSONObject): void {
    const message = KernelMessage.createMessage({
      msgType,
      channel: 'shell',
      username: this._kernel.username,
      session: this._kernel.clientId,
      subshellId: this._subshell,
      content: { comm_id: this._comm.commId, ...content }
    } as never) as unknown as KernelMessage.IShellMessage;
    this._kernel.sendShellMessage(message, false, true);
    hurry(this._kernel, message);
  }

  private _drop(): void {
    this._opened = false;
    if (!this._comm.isDisposed) {
      this._comm.dispose();
    }
    if (this._subshell !== null && !this._kernel.isDisposed && this._kernel.status !== 'dead') {
      sendControl(this._kernel, 'delete_subshell_request', { subshell_id: this._subshell });
    }
    this._subshell = null;
  }

  private _opened = false;
}

/** Wait for a promise no longer than `millis`; true when it was fulfilled. */
export async function within(promise: Promise<unknown> | undefined, millis: number): Promise<boolean> {
  if (!promise) {
    return false;
  }
  return Promise.race([
    promise.then(
      () => true,
      () => false
    ),
    new Promise<boolean>(resolve => window.setTimeout(() => resolve(false), millis))
  ]);
}

/** When `comm` is thrown away at once, its subshell must be there first, or it stays behind in the kernel. */
export async function disposeLater(comm: Kernel.IComm): Promise<void> {
  await within((comm as ISubshellComm).subshellStarted, SUBSHELL_TIMEOUT_MS);
  if (!comm.isDisposed) {
    comm.dispose();
  }
}

function sendControl(
  kernel: Kernel.IKernelConnection,
  msgType: string,
  content: JSONObject
): Kernel.IControlFuture<KernelMessage.IControlMessage> {
  const message = KernelMessage.createMessage({
    msgType,
    channel: 'control',
    username: kernel.username,
    session: kernel.clientId,
    content
  } as never) as unknown as KernelMessage.IControlMessage;
  const future = kernel.sendControlMessage(message, true, true) as Kernel.IControlFuture<KernelMessage.IControlMessage>;
  hurry(kernel, message);
  return future;
}

/** What JupyterLab's connection keeps, absent from its interface. */
interface IQueue {
  _pendingMessages?: unknown[];
  _sendMessage?: (message: unknown, queue: boolean) => void;
}

/**
 * Send a message that was queued although the kernel is connected. JupyterLab holds its queue back for three seconds when
 * the kernel's first info does not come, as beside a running cell; what goes to a subshell or to the control channel
 * need not wait behind that. Where the connection has no such queue, the message is sent when its turn comes.
 */
export function hurry(kernel: Kernel.IKernelConnection, message: unknown): void {
  const connection = kernel as unknown as IQueue;
  const at = connection._pendingMessages?.indexOf(message) ?? -1;
  if (at < 0 || kernel.connectionStatus !== 'connected' || typeof connection._sendMessage !== 'function') {
    return;
  }
  connection._pendingMessages?.splice(at, 1);
  connection._sendMessage(message, false);
}

/** A subshell asked for over the control channel; null where the kernel has none or does not answer. */
async function createSubshell(kernel: Kernel.IKernelConnection): Promise<string | null> {
  try {
    const ask = async (): Promise<string | null> => {
      const info = await sendControl(kernel, 'kernel_info_request', {}).done;
      const features = (info?.content as { supported_features?: string[] } | undefined)?.supported_features;
      if (!features?.includes('kernel subshells')) {
        return null;
      }
      const made = await sendControl(kernel, 'create_subshell_request', {}).done;
      return (made?.content as { subshell_id?: string } | undefined)?.subshell_id ?? null;
    };
    const timeout = new Promise<null>(resolve => window.setTimeout(() => resolve(null), CONTROL_TIMEOUT_MS));
    return await Promise.race([ask(), timeout]);
  } catch {
    return null;
  }
}
