/**
 * One sparkline of the last 60 seconds: 90 × 18, a line and a dot at the last value. The pointer reads a value.
 *
 * Draws only what it is given; the history belongs to the model.
 */

/** Samples kept and drawn, one a second. */
export const HISTORY_SAMPLES = 60;

const SVG = 'http://www.w3.org/2000/svg';
const WIDTH = 90;
const HEIGHT = 18;
const MARGIN = 2.5;

function svg(name: string, attributes: Record<string, string>): SVGElement {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) {
    node.setAttribute(key, value);
  }
  return node;
}

export class Sparkline {
  readonly node: SVGSVGElement;

  /**
   * `top` fixes the scale (1 for shares); without it the window's maximum is the top. `read` is told the value under
   * the pointer and how many seconds ago it was, and null when the pointer leaves.
   */
  constructor(
    private readonly _top: number | null,
    private readonly _read: (value: number | null, secondsAgo: number) => void
  ) {
    const size = { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: String(WIDTH), height: String(HEIGHT) };
    this.node = svg('svg', { class: 'sgnb-Panel-sparkline', 'aria-hidden': 'true', ...size }) as SVGSVGElement;
    const y = String(HEIGHT - 0.5);
    const base = svg('line', { class: 'sgnb-Panel-sparkBase', x1: '0', x2: String(WIDTH), y1: y, y2: y });
    this._line = svg('polyline', { class: 'sgnb-Panel-sparkLine' });
    this._dot = svg('circle', { class: 'sgnb-Panel-sparkDot', r: '2' });
    this._title = svg('title', {});
    this.node.append(this._title, base, this._line, this._dot);
    this.node.addEventListener('pointermove', event => this._hover(event));
    this.node.addEventListener('pointerleave', () => this._leave());
  }

  /** While a past value is read, the present one waits. */
  get isHovered(): boolean {
    return this._at !== null;
  }

  setTitle(text: string): void {
    this._title.textContent = text;
  }

  /** Draw `values`, oldest first; the newest stands at the right edge. */
  draw(values: readonly number[]): void {
    const shown = (this._shown = values.slice(-HISTORY_SAMPLES));
    const top = this._top ?? Math.max(1, ...shown);
    const points = shown.map((value, index) => {
      const share = Math.min(1, Math.max(0, value / top));
      const y = HEIGHT - MARGIN - share * (HEIGHT - 2 * MARGIN);
      return [this._x(index), y].map(place => place.toFixed(2));
    });
    this._line.setAttribute('points', points.map(point => point.join(',')).join(' '));
    this._place(this._at ?? shown.length - 1, points);
  }

  private _x(index: number): number {
    const step = (WIDTH - 2 * MARGIN) / (HISTORY_SAMPLES - 1);
    return WIDTH - MARGIN - (this._shown.length - 1 - index) * step;
  }

  private _place(index: number, points: string[][]): void {
    const point = points[index];
    this._dot.style.display = point ? '' : 'none';
    if (point) {
      this._dot.setAttribute('cx', point[0]);
      this._dot.setAttribute('cy', point[1]);
    }
  }

  private _hover(event: PointerEvent): void {
    const box = this.node.getBoundingClientRect();
    const step = (WIDTH - 2 * MARGIN) / (HISTORY_SAMPLES - 1);
    const back = Math.max(0, Math.round(((box.right - event.clientX) * (WIDTH / box.width) - MARGIN) / step));
    const index = this._shown.length - 1 - back;
    if (index < 0) {
      this._leave();
      return;
    }
    this._at = index;
    this._read(this._shown[index], back);
  }

  private _leave(): void {
    this._at = null;
    this._read(null, 0);
  }

  private _at: number | null = null;
  private _shown: readonly number[] = [];
  private readonly _line: SVGElement;
  private readonly _dot: SVGElement;
  private readonly _title: SVGElement;
}
