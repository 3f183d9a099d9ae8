/**
 * The talk with one kernel over a comm: what it sends, questions and their answers, signs of life.
 *
 * One conversation at a time; what belongs to an earlier one is ignored. It knows no phase and no picture: `model.ts`
 * says when to begin and what follows from a silence.
 */

import type { Kernel, KernelMessage } from '@jupyterlab/services';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { JSONObject } from '@lumino/coreutils';
import { UUID } from '@lumino/coreutils';

import { Channel } from './channel';
import { HEARTBEAT_SECONDS, IState, Question, readAnswer, readLog, readState, readView, Shown, TARGET } from './protocol';

const QUESTION_MS = 15_000;

/** A message of the kernel for the views of one engine. */
export interface IViewMessage {
  key: string;
  content: JSONObject;
  buffers: (ArrayBuffer | ArrayBufferView)[];
}

export interface IConversationHandlers {
  /** `sent`: when the kernel sent it, by its clock, in milliseconds since the epoch; NaN when it did not say. */
  onState(state: IState, sent: number): void;
  onView(message: IViewMessage): void;
  onLog(lines: string[]): void;
  /** Nobody in the kernel knows the target. */
  onClosed(): void;
}

interface IAsked {
  resolve: (data: unknown) => void;
  reject: (error: Error) => void;
  timer: number;
}

export class Conversation {
  constructor(
    private readonly _handlers: IConversationHandlers,
    private readonly _trans: TranslationBundle
  ) {}

  get isOpen(): boolean {
    return this._channel?.isOpen === true;
  }

  /** Counts conversations, also those that did not come about. */
  get turn(): number {
    return this._turn;
  }

  /** Milliseconds since the kernel was last heard. */
  get silence(): number {
    return Date.now() - this._heardAt;
  }

  /** End the present conversation and begin one with `kernel`, of which `show` is shown; false when another began, or the kernel went, meanwhile. */
  async open(kernel: Kernel.IKernelConnection, show: () => Shown): Promise<boolean> {
    this.close();
    const turn = this._turn;
    const channel = await Channel.create(kernel, TARGET);
    if (turn !== this._turn || channel.isLost) {
      channel.close();
      return false;
    }
    this._channel = channel;
    this._heardAt = Date.now();
    this._ackedAt = 0;
    channel.open(
      { version: 1, client: this._client, show: show() },
      {
        onMessage: message => turn === this._turn && this._take(message),
        onClose: () => turn === this._turn && this._closed()
      }
    );
    return true;
  }

  /** Tell the kernel and let go; open questions are answered with an error. */
  close(): void {
    this._turn += 1;
    for (const { reject, timer } of this._asked.values()) {
      window.clearTimeout(timer);
      reject(new Error(this._trans.__('The connection to the kernel ended.')));
    }
    this._asked.clear();
    this._channel?.close();
    this._channel = null;
  }

  /** Send one message; false when nothing listens. */
  send(content: JSONObject): boolean {
    if (!this._channel?.isOpen) {
      return false;
    }
    this._channel.send(content);
    return true;
  }

  /** Ask; rejects with the kernel's words, or when no answer comes in time. */
  ask(question: Question, args: JSONObject): Promise<unknown> {
    const channel = this._channel;
    if (!channel?.isOpen) {
      return Promise.reject(new Error(this._trans.__('No kernel with sgnb is connected.')));
    }
    const id = ++this._askId;
    return new Promise((resolve, reject) => {
      const timer = window.setTimeout(() => {
        this._asked.delete(id);
        reject(new Error(this._trans.__('The kernel did not answer %1.', question)));
      }, QUESTION_MS);
      this._asked.set(id, { resolve, reject, timer });
      channel.send({ verb: question, id, ...args });
    });
  }

  /** Say that somebody is here, when it is time; called once a second. */
  keepAlive(): void {
    const now = Date.now();
    if (this.isOpen && now - this._pingedAt >= HEARTBEAT_SECONDS * 1000) {
      this._pingedAt = now;
      this.send({ verb: 'ping' });
    }
  }

  private _take(message: KernelMessage.ICommMsgMsg): void {
    this._heardAt = Date.now();
    const data = message.content.data;
    const view = readView(data);
    if (view) {
      this._handlers.onView({ ...view, buffers: message.buffers ?? [] });
      return;
    }
    const answer = readAnswer(data);
    if (answer) {
      this._answered(answer);
      return;
    }
    const lines = readLog(data);
    if (lines) {
      this._handlers.onLog(lines);
      return;
    }
    const state = readState(data);
    if (!state) {
      return;
    }
    if (this._heardAt - this._ackedAt >= HEARTBEAT_SECONDS * 1000) {
      this._ackedAt = this._pingedAt = this._heardAt; // as good as a ping; each costs two messages of the kernel
      this.send({ verb: 'ack', seq: state.seq });
    }
    this._handlers.onState(state, Date.parse(message.header.date));
  }

  private _answered(answer: { id: number; data: unknown; error: string }): void {
    const asked = this._asked.get(answer.id);
    if (!asked) {
      return;
    }
    this._asked.delete(answer.id);
    window.clearTimeout(asked.timer);
    if (answer.error) {
      asked.reject(new Error(answer.error));
    } else {
      asked.resolve(answer.data);
    }
  }

  private _closed(): void {
    this._channel = null;
    this._handlers.onClosed();
  }

  private _channel: Channel | null = null;
  private _turn = 0;
  private _heardAt = 0;
  private _ackedAt = 0;
  private _pingedAt = 0;
  private _askId = 0;
  private readonly _asked = new Map<number, IAsked>();
  private readonly _client = UUID.uuid4();
}
