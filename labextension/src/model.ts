/**
 * What the panel knows: it follows one kernel, talks with it (conversation.ts), keeps what it said (said.ts) and says when
 * something changed.
 *
 * No DOM here. The view reads `phase`, `state`, `history` and draws; commands call `send`.
 * The comm runs on a kernel subshell where the kernel has them, so that it answers while a cell runs.
 */

import type { ISessionContext } from '@jupyterlab/apputils';
import type { Kernel } from '@jupyterlab/services';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { JSONObject } from '@lumino/coreutils';
import { ISignal, Signal } from '@lumino/signaling';

import { disposeLater, within } from './channel';
import { watchContext } from './context';
import { Conversation, IViewMessage } from './conversation';
import { Occupation } from './occupation';
import { ANNOUNCE, HEARTBEAT_SECONDS, IState, IStats, Question, Shown, Verb } from './protocol';
import { Said } from './said';
import { phaseOf, type IFacts, type IReplay, type Phase } from './states';

const ANSWER_TIMEOUT_MS = 1500;
/** The kernel says something at least every four seconds. */
const STALE_MS = 6000;
const SILENCE_LIMIT_MS = 3 * HEARTBEAT_SECONDS * 1000;
const RESTART_TIMEOUT_MS = 10_000;

export class PanelModel {
  constructor(trans: TranslationBundle) {
    this._talk = new Conversation(
      {
        onState: (state, sent) => this._onState(state, sent),
        onView: message => this._viewReceived.emit(message),
        onLog: lines => this._logReceived.emit(lines),
        onClosed: () => this._onClosed()
      },
      trans
    );
    this._ticker = window.setInterval(() => this._tick(), 1000);
  }

  /** What of the kernel's state the page shows now. */
  shows: () => Shown = () => 'all';

  /** Emitted after any change, at most once per message and once a second. */
  get stateChanged(): ISignal<this, void> {
    return this._stateChanged;
  }

  /** Emitted with the lines of the engine's log, after the verb `log`. */
  get logReceived(): ISignal<this, string[]> {
    return this._logReceived;
  }

  /** Emitted with what the kernel sends to docked views. */
  get viewReceived(): ISignal<this, IViewMessage> {
    return this._viewReceived;
  }

  /** Emitted when the phase is another one. */
  get phaseChanged(): ISignal<this, void> {
    return this._phaseChanged;
  }

  /** Emitted when another kernel is followed, or the same one anew. */
  get kernelFollowed(): ISignal<this, void> {
    return this._kernelFollowed;
  }

  /** Emitted when the kernel has run what it was given: its names may be others now. */
  get cellEnded(): ISignal<this, void> {
    return this._cellEnded;
  }

  /** Whether a kernel with sgnb answers. */
  get isConnected(): boolean {
    return this._talk.isOpen && this.state !== null;
  }

  get phase(): Phase {
    return this.replay ? 'replay' : this._phase;
  }

  /** An opened recording; while there is one, the panel shows it and not the kernel's engine. */
  get replay(): IReplay | null {
    return this._replay;
  }

  set replay(replay: IReplay | null) {
    this._replay = replay;
    this._emit();
  }

  /** All that the panel's words depend on. */
  get facts(): IFacts {
    return {
      phase: this.phase,
      title: this.title,
      state: this.state,
      kernelBusy: this.kernelBusy,
      silent: this._isSilent,
      seconds: this.seconds,
      sinceMillis: this.sinceMillis,
      goneAt: this._goneAt,
      survivor: this._survivor,
      replay: this.replay
    };
  }

  /** Whether the kernel's engine works and takes orders. */
  get isLive(): boolean {
    return ['idle', 'running', 'full', 'stuck'].includes(this.phase);
  }

  /** Names the store of the engine that is shown; empty before one was. */
  get storeKey(): string {
    return this._said.storeKey;
  }

  get state(): IState | null {
    return this._said.state;
  }

  get history(): readonly IStats[] {
    return this._said.history;
  }

  /** The session that is followed. */
  get followed(): ISessionContext | null {
    return this._context;
  }

  /** The name of the followed notebook or console, or an empty text. */
  get title(): string {
    return this._context?.name ?? '';
  }

  /** What the kernel last said about an action; empty again after four seconds. */
  get message(): string {
    return this._said.message;
  }

  get kernelBusy(): boolean {
    return this._occupation.isTaken;
  }

  get isDisposed(): boolean {
    return this._disposed;
  }

  /** When the followed kernel was found dead, in milliseconds since the epoch. */
  get goneAt(): number {
    return this._goneAt;
  }

  /** Seconds since the engine's last change of state, by the kernel's clock. */
  get seconds(): number {
    return this._said.seconds;
  }

  /** The moment of the engine's last change of state, by this computer's clock. */
  get sinceMillis(): number {
    return this._said.sinceMillis;
  }

  /** Follow the kernel of a notebook or console; null follows nothing. */
  follow(context: ISessionContext | null): void {
    if (context === this._context) {
      return;
    }
    this._unwatch();
    this._context = context;
    if (context) {
      this._off = watchContext(context, {
        kernel: () => this._start(),
        status: status => this._onStatus(status),
        connection: status => this._onConnection(status),
        name: () => this._emit(),
        gone: () => this.follow(null)
      });
    }
    this._start();
  }

  /** Tell the kernel when something else is shown than it knows. */
  look(): void {
    const what = this.shows();
    if (what !== this._shown && this._talk.send({ verb: 'show', what })) {
      this._shown = what;
    }
  }

  /** Answer the kernel's announcement at the end of `%load_ext sgnb`, for any open notebook or console. */
  listen(kernel: Kernel.IKernelConnection): void {
    kernel.registerCommTarget(ANNOUNCE, comm => {
      void disposeLater(comm);
      if (kernel === this._kernel && this._phase !== 'connecting') {
        void this._attach();
      }
    });
  }

  /** Send one command to the kernel; false when nothing listens. */
  send(verb: Verb, args: JSONObject = {}): boolean {
    return this._talk.send({ verb, ...args });
  }

  /** Ask the kernel; rejects with its words, or when no answer comes in time. */
  ask(question: Question, args: JSONObject = {}): Promise<unknown> {
    return this._talk.ask(question, args);
  }

  /** Send what a docked view says to its engine. */
  sendView(key: string, content: JSONObject): void {
    this._talk.send({ ...content, key });
  }

  /** Say something for four seconds where the kernel's messages stand. */
  say(message: string): void {
    this._said.say(message);
    this._emit();
  }

  /** Close the comm and open a new one: the way out when a panel seems not to follow. */
  async reconnect(): Promise<void> {
    if (this._kernel) {
      await this._attach();
    }
  }

  /** Run `%load_ext sgnb` in the followed kernel; it waits there for the running cell. */
  async loadExtension(): Promise<void> {
    const kernel = this._kernel;
    if (!kernel) {
      return;
    }
    const future = kernel.requestExecute({ code: '%load_ext sgnb', silent: true, store_history: false });
    const reply = await future.done.catch(() => null); // null: the kernel was restarted, or ended
    if (reply?.content.status === 'error') {
      const { ename, evalue } = reply.content;
      this.say(`${ename}: ${evalue}`);
      return;
    }
    if (kernel === this._kernel && this._phase === 'not-loaded') {
      await this._attach();
    }
  }

  dispose(): void {
    if (this._disposed) {
      return;
    }
    this._disposed = true;
    window.clearInterval(this._ticker);
    this._unwatch();
    Signal.clearData(this);
  }

  private get _isSilent(): boolean {
    return this.isLive && this._talk.silence > STALE_MS;
  }

  private _unwatch(): void {
    this._off?.();
    this._off = null;
    this._talk.close();
    this._context = null;
    this._kernel = null;
    this._occupation.watch(null);
  }

  /** Begin anew with the context's present kernel: nothing of the last one is shown. */
  private _start(): void {
    this._talk.close();
    this._kernel = this._context?.session?.kernel ?? null;
    this._occupation.watch(this._kernel);
    this._said.reset();
    if (this._kernel) {
      void this._attach();
    } else {
      this._setPhase('no-kernel');
    }
  }

  private _onStatus(status: Kernel.Status): void {
    if (status === 'restarting' || status === 'autorestarting') {
      const engine = this.state?.engine;
      if (this._phase !== 'restarting') this._survivor = engine?.owner === false ? engine.name : '';
      this._talk.close();
      this._said.forget();
      this._waitSince = Date.now();
      this._setPhase('restarting');
    } else if (status === 'dead') {
      this._talk.close();
      this._goneAt = Date.now();
      this._setPhase('kernel-gone');
    } else {
      this._emit();
    }
  }

  private _onOccupation(ended: boolean): void {
    if (ended && !this._disposed) {
      this._cellEnded.emit();
    }
    if (this._phase === 'busy' && !this._occupation.mayBeTaken) {
      this._setPhase('connecting');
    } else {
      this._emit();
    }
  }

  /**
   * After a restart the connection is made anew, and only then is the new kernel at its other end. Statuses before
   * that are the old one's: a comm opened on them would name a subshell that the new kernel does not know.
   */
  private _onConnection(status: Kernel.ConnectionStatus): void {
    const kernel = this._kernel;
    if (this._phase === 'restarting' && status === 'connected' && kernel) {
      const { turn } = this._talk;
      const fresh = kernel.requestKernelInfo().then(() => undefined);
      void within(fresh, RESTART_TIMEOUT_MS).then(() => {
        if (turn === this._talk.turn && this._phase === 'restarting') {
          void this._attach();
        }
      });
    }
  }

  /** Begin to talk with the kernel; `again`: after a silence, and what is shown stays. */
  private async _attach(again = false): Promise<void> {
    const kernel = this._kernel;
    this._talk.close();
    if (!kernel || kernel.isDisposed || !kernel.handleComms) {
      return;
    }
    this._kernelFollowed.emit();
    this._waitSince = Date.now();
    if (this._phase !== 'restarting' && !(again && this._phase === 'busy')) {
      this._setPhase('connecting');
    }
    if (await this._talk.open(kernel, () => (this._shown = this.shows()))) {
      window.setTimeout(() => this._checkAnswer(), ANSWER_TIMEOUT_MS);
    }
  }

  /** No answer for a while: it comes when the running cell ends, or the comm was lost and is opened anew. */
  private _checkAnswer(): void {
    const { silence } = this._talk;
    if (!this._talk.isOpen || silence < (this._phase === 'connecting' ? ANSWER_TIMEOUT_MS : SILENCE_LIMIT_MS)) {
      return;
    }
    if (this._occupation.mayBeTaken) {
      this._setPhase('busy');
    }
    if (silence > SILENCE_LIMIT_MS && !this._occupation.isTaken) {
      void this._attach(true); // a kernel of which nothing is known may have a subshell to give now
    }
  }

  private _onState(state: IState, sent: number): void {
    this._said.take(state, sent);
    this._setPhase(phaseOf(state));
  }

  private _onClosed(): void {
    const talked = this.state !== null;
    this._said.forget();
    if (talked) {
      void this._attach(); // unloaded, or given up while this page was asleep: the kernel says which
    } else {
      this._setPhase('not-loaded');
    }
  }

  private _tick(): void {
    const now = Date.now();
    this.look();
    if (this._talk.isOpen) {
      this._talk.keepAlive();
      this._checkAnswer();
    } else if (
      (this._phase === 'restarting' || this._phase === 'connecting') &&
      this._kernel?.status === 'idle' &&
      now - this._waitSince > 2 * RESTART_TIMEOUT_MS
    ) {
      // Neither a new connection nor an answer came: begin again rather than wait for ever.
      void this._attach();
    }
    if (this._shown !== 'nothing' && !this._isSilent && ['idle', 'running', 'full', 'stuck'].includes(this._phase)) {
      this._said.sample();
    }
    this._emit();
  }

  private _setPhase(phase: Phase): void {
    const other = phase !== this._phase;
    this._phase = phase;
    this._emit();
    if (other && !this._disposed) {
      this._phaseChanged.emit();
    }
  }

  private _emit(): void {
    if (!this._disposed) {
      this._stateChanged.emit();
    }
  }

  private _context: ISessionContext | null = null;
  private _off: (() => void) | null = null;
  private _kernel: Kernel.IKernelConnection | null = null;
  private _phase: Phase = 'no-kernel';
  private _goneAt = 0;
  private _survivor = '';
  private _replay: IReplay | null = null;
  private _shown: Shown = 'all';
  private readonly _said = new Said();
  private readonly _occupation = new Occupation(ended => this._onOccupation(ended));
  private _waitSince = 0;
  private _disposed = false;
  private readonly _talk: Conversation;
  private readonly _ticker: number;
  private readonly _stateChanged = new Signal<this, void>(this);
  private readonly _logReceived = new Signal<this, string[]>(this);
  private readonly _phaseChanged = new Signal<this, void>(this);
  private readonly _kernelFollowed = new Signal<this, void>(this);
  private readonly _cellEnded = new Signal<this, void>(this);
  private readonly _viewReceived = new Signal<this, IViewMessage>(this);
}
