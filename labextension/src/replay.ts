/**
 * Plays an opened recording: fills a store of its own, whose playhead every view of it shares. No DOM, no kernel.
 *
 * `PanelModel.replay` says what the panel shows of it; docked views read the store by `key`.
 */

import { storeOf } from '../../sgnb/widgets/static/store.js';

import type { TranslationBundle } from '@jupyterlab/translation';

import type { PanelModel } from './model';
import { formatCount } from './format';
import { IRecording, readRecording } from './recording';
import { perfettoOf } from './perfetto';

/** How fast a recording may play. */
export const SPEEDS = [0.1, 0.25, 0.5, 1, 2, 5, 10];

const PIECE = 500;

export class ReplayPlayer {
  constructor(
    private readonly _model: PanelModel,
    private readonly _trans: TranslationBundle
  ) {}

  /** Names the store of the opened recording; empty when none is open. */
  get key(): string {
    return this._store?.key ?? '';
  }

  /** Read a file and show its beginning. Raises RecordingError. */
  async open(file: string, bytes: Uint8Array): Promise<void> {
    const recording = await readRecording(bytes, this._trans);
    this.close();
    const before = this._last;
    const store = storeOf(`recording/${file}/${++this._opened}`);
    const end = recording.events.reduce((last, one) => Math.max(last, one.event.time), recording.picture.time);
    store.engineState = 'recording';
    store.replaying = { span: [recording.picture.time, end], file, end: true, trouble: '' };
    recording.parts.forEach(({ picture, events }, index) => {
      if (picture && index) {
        store.loadPart(picture);
        store.replaying = { span: [recording.picture.time, end], file, end: true, trouble: '' };
      } else if (picture) {
        store.load(picture);
      }
      for (let at = 0; at < events.length; at += PIECE) {
        if (!store.feedEvents(events.slice(at, at + PIECE)) && store.replaying) {
          // The next part, if there is one, has a picture of its own.
          store.replaying.trouble = this._trans.__('events are missing after step %1', formatCount(store.step));
          break;
        }
      }
    });
    this._recording = recording;
    this._store = this._last = store;
    this._file = file;
    this._end = end;
    this._steps = recording.events.filter(one => one.event.t === 'step').length;
    this._off = store.subscribe(what => what === 'playhead' && this._tell());
    store.goTo(recording.picture.time);
    this._tell();
    before?.reset(); // a closed recording stays in the panes until there is another one
  }

  close(): void {
    this.pause();
    this._off?.();
    this._off = this._store = this._recording = null;
    this._model.replay = null;
  }

  play(): void {
    this._store?.play(this._speed);
    this._tell();
  }

  pause(): void {
    this._store?.pause();
    this._tell();
  }

  /** Show the moment `seconds` after the beginning. */
  seek(seconds: number): void {
    this._store?.goTo(Math.min(this._end, this._begin + Math.max(0, seconds)));
  }

  set speed(speed: number) {
    this._speed = speed;
    if (this._store?.playing) {
      this._store.play(speed);
    }
    this._tell();
  }

  /** The recording as Chrome trace events, for Perfetto. */
  perfetto(): { name: string; text: string } | null {
    const name = `${this._file.replace(/\.sgnb$/, '')}.json`;
    return this._recording ? { name, text: JSON.stringify(perfettoOf(this._recording)) } : null;
  }

  private get _begin(): number {
    return this._recording?.picture.time ?? 0;
  }

  private _tell(): void {
    const store = this._store;
    const recording = this._recording;
    if (!store || !recording) {
      return;
    }
    this._model.replay = {
      file: this._file,
      model: recording.model,
      seconds: this._end - this._begin,
      steps: this._steps,
      step: store.step,
      position: Math.max(0, store.time - this._begin),
      playing: store.playing > 0,
      speed: store.playing || this._speed
    };
  }

  private _recording: IRecording | null = null;
  private _store: ISgnbStore | null = null;
  /** Of the recording that was opened last, be it closed. */
  private _last: ISgnbStore | null = null;
  private _off: (() => void) | null = null;
  private _file = '';
  private _opened = 0;
  private _end = 0;
  private _steps = 0;
  private _speed = 1;
}
