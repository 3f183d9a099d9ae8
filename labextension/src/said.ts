/**
 * What the kernel said last: the state of its engine, a minute of its numbers, its message, the time of its clock.
 *
 * Used by the model (model.ts), which hears it from a conversation and says when something changed. No DOM, no kernel here.
 */

import type { IState, IStats } from './protocol';
import { HISTORY_SAMPLES } from './sparkline';

const MESSAGE_MS = 4000;

export class Said {
  /** Null while nothing is known. */
  get state(): IState | null {
    return this._state;
  }

  get history(): readonly IStats[] {
    return this._history;
  }

  /** Names the store of the engine that is shown; empty before one was. */
  get storeKey(): string {
    return this._storeKey;
  }

  /** What was last said about an action; empty again after four seconds. */
  get message(): string {
    return Date.now() < this._messageUntil ? this._message : '';
  }

  /** Seconds since the engine's last change of state, by the kernel's clock. */
  get seconds(): number {
    const since = this._state?.engine?.since ?? 0;
    return since > 0 ? (Date.now() - this._clockOffset) / 1000 - since : 0;
  }

  /** The moment of the engine's last change of state, by this computer's clock. */
  get sinceMillis(): number {
    return (this._state?.engine?.since ?? 0) * 1000 + this._clockOffset;
  }

  /** A new state; `sent`: when, in milliseconds of the kernel's clock, where that is known. */
  take(state: IState, sent: number): void {
    if (Number.isFinite(sent)) {
      this._clockOffset = Date.now() - sent;
    }
    const last = this._state?.engine;
    if (state.engine?.state === 'starting' && last?.state !== 'starting') {
      this._history = [];
    }
    const said = this._state?.message ?? '';
    if (state.message && (state.message !== said || said === this._message)) {
      this.say(state.message); // as long as the kernel says it: the same may be said again before it is gone
    } else if (said && said === this._message) {
      this._messageUntil = 0;
    }
    this._state = state;
    if (state.engine?.key && ['idle', 'running', 'stuck'].includes(state.engine.state)) {
      this._storeKey = state.engine.key; // of one that starts there is nothing to show yet
    }
  }

  /** Say something for four seconds where the kernel's messages stand. */
  say(message: string): void {
    this._message = message;
    this._messageUntil = Date.now() + MESSAGE_MS;
  }

  /** The numbers of this second become history. */
  sample(): void {
    const stats = this._state?.stats;
    if (stats) {
      this._history = [...this._history.slice(1 - HISTORY_SAMPLES), stats];
    }
  }

  /** Nothing is known of the engine now; the views keep what they show. */
  forget(): void {
    this._state = null;
    this._history = [];
  }

  /** Another kernel is followed: nothing of the last one is shown. */
  reset(): void {
    this.forget();
    this._storeKey = '';
    this._message = '';
  }

  private _state: IState | null = null;
  private _history: IStats[] = [];
  private _message = '';
  private _messageUntil = 0;
  private _clockOffset = 0;
  private _storeKey = '';
}
