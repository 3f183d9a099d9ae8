/**
 * Whether a kernel's main shell is taken: what answers there only between cells does not answer now.
 *
 * A kernel's status alone does not tell. Messages on the control channel and on subshells have a busy and an idle of
 * their own, so that the status says idle beside a running cell; and after the connection was made anew it is unknown
 * until the cell ends. So the cells themselves are followed, from their own busy to their own idle. No DOM, no comm.
 */

import type { Kernel, KernelMessage } from '@jupyterlab/services';

export class Occupation {
  /**
   * `changed` is called after the main shell was taken or became free, or may have been; `ended`: a cell ended, the last that
   * ran. The status alone says no such thing: every message on a subshell turns it, what is asked when a cell ended too.
   */
  constructor(private readonly _changed: (ended: boolean) => void) {}

  /** Follow this kernel from now on; null follows none. */
  watch(kernel: Kernel.IKernelConnection | null): void {
    if (kernel === this._kernel) {
      return;
    }
    if (this._kernel) {
      this._kernel.iopubMessage.disconnect(this._onMessage, this);
      this._kernel.statusChanged.disconnect(this._onStatus, this);
      this._kernel.connectionStatusChanged.disconnect(this._onConnection, this);
    }
    this._running.clear();
    this._kernel = kernel;
    if (kernel) {
      kernel.iopubMessage.connect(this._onMessage, this);
      kernel.statusChanged.connect(this._onStatus, this);
      kernel.connectionStatusChanged.connect(this._onConnection, this);
    }
  }

  /** Whether a cell runs, as far as the kernel has said. */
  get isTaken(): boolean {
    return this._running.size > 0 || this._kernel?.status === 'busy';
  }

  /** Whether a question on the main shell may be waiting behind a cell: one runs, or nothing was heard so far. */
  get mayBeTaken(): boolean {
    return this.isTaken || this._kernel?.status === 'unknown';
  }

  private _onMessage(_: Kernel.IKernelConnection, message: KernelMessage.IIOPubMessage): void {
    const parent = message.parent_header as { msg_id?: string; msg_type?: string; subshell_id?: string | null };
    if (message.header.msg_type !== 'status' || parent.msg_type !== 'execute_request' || parent.subshell_id) {
      return;
    }
    const state = (message as KernelMessage.IStatusMsg).content.execution_state;
    if (state === 'busy') {
      this._running.add(parent.msg_id ?? '');
    } else {
      this._running.delete(parent.msg_id ?? ''); // one that began before the connection is not known: it ends all the same
    }
    this._changed(state === 'idle' && !this._running.size);
  }

  private _onStatus(_: Kernel.IKernelConnection, status: Kernel.Status): void {
    if (status === 'restarting' || status === 'autorestarting' || status === 'dead') {
      this._running.clear();
    }
    this._changed(false);
  }

  /** What ended while there was no connection was not heard of. */
  private _onConnection(_: Kernel.IKernelConnection, status: Kernel.ConnectionStatus): void {
    if (status !== 'connected') {
      this._running.clear();
      this._changed(false);
    }
  }

  private _kernel: Kernel.IKernelConnection | null = null;
  private readonly _running = new Set<string>();
}
