/** The panel's controls of an opened recording: play, position, speed. */

import type { TranslationBundle } from '@jupyterlab/translation';

import { element, setSign, setText, show } from './dom';
import { formatCount } from './format';
import { ReplayPlayer, SPEEDS } from './replay';
import type { IReplay } from './states';

export class ReplaySection {
  readonly node = element('section', 'sgnb-Panel-section');

  constructor(
    private readonly _trans: TranslationBundle,
    player: ReplayPlayer
  ) {
    this.node.setAttribute('aria-label', _trans.__('Recording'));
    this._play.type = 'button';
    this._play.addEventListener('click', () => (this._playing ? player.pause() : player.play()));
    this._slider.type = 'range';
    this._slider.min = '0';
    this._slider.step = 'any'; // a recording of 0.1 s has its moments too; an arrow key moves by a hundredth of the whole
    this._slider.setAttribute('aria-label', _trans.__('Position'));
    this._slider.addEventListener('input', () => player.seek(Number(this._slider.value)));
    this._speed.setAttribute('aria-label', _trans.__('Speed'));
    this._speed.append(...SPEEDS.map(speed => new Option(`${speed}×`, String(speed))));
    this._speed.addEventListener('change', () => (player.speed = Number(this._speed.value)));
    this.node.append(element('div', 'sgnb-Panel-player', this._play, this._slider, this._speed), this._words);
    show(this.node, false);
  }

  update(replay: IReplay | null): void {
    show(this.node, replay !== null);
    if (!replay) {
      return;
    }
    this._playing = replay.playing;
    setSign(this._play, replay.playing ? '❚❚' : '▶');
    this._play.setAttribute('aria-label', replay.playing ? this._trans.__('Pause') : this._trans.__('Play'));
    this._slider.max = String(replay.seconds);
    if (Math.abs(Number(this._slider.value) - replay.position) > replay.seconds / 1000) {
      this._slider.value = String(replay.position);
    }
    const words = this._trans.__('step %1, %2 s', formatCount(replay.step), replay.position.toFixed(1));
    this._slider.setAttribute('aria-valuetext', words);
    setText(this._words, words);
    this._speed.value = String(replay.speed);
  }

  private _playing = false;
  private readonly _play = element('button', 'sgnb-Panel-menu');
  private readonly _slider = element('input', 'sgnb-Panel-slider');
  private readonly _speed = element('select', 'sgnb-Panel-select');
  private readonly _words = element('div', 'sgnb-Panel-text');
}
