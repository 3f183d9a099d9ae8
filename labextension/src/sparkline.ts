/**
 * One sparkline of the last 60 seconds: 90 × 18, a line and a dot at the last value.
 *
 * Draws only what it is given; the history belongs to the model.
 */

const SVG = 'http://www.w3.org/2000/svg';
const WIDTH = 90;
const HEIGHT = 18;
const MARGIN = 2.5;

export class Sparkline {
  readonly node: SVGSVGElement;

  /** `top` fixes the scale (1 for shares); without it the window's maximum is the top. */
  constructor(
    private readonly _top: number | null,
    private readonly _samples: number
  ) {
    this.node = document.createElementNS(SVG, 'svg');
    this.node.setAttribute('class', 'sgnb-Panel-sparkline');
    this.node.setAttribute('viewBox', `0 0 ${WIDTH} ${HEIGHT}`);
    this.node.setAttribute('width', String(WIDTH));
    this.node.setAttribute('height', String(HEIGHT));
    this.node.setAttribute('aria-hidden', 'true');
    const base = document.createElementNS(SVG, 'line');
    base.setAttribute('class', 'sgnb-Panel-sparkBase');
    base.setAttribute('x1', '0');
    base.setAttribute('x2', String(WIDTH));
    base.setAttribute('y1', String(HEIGHT - 0.5));
    base.setAttribute('y2', String(HEIGHT - 0.5));
    this._line = document.createElementNS(SVG, 'polyline');
    this._line.setAttribute('class', 'sgnb-Panel-sparkLine');
    this._dot = document.createElementNS(SVG, 'circle');
    this._dot.setAttribute('class', 'sgnb-Panel-sparkDot');
    this._dot.setAttribute('r', '2');
    this.node.append(base, this._line, this._dot);
  }

  /** Draw `values`, oldest first; the newest stands at the right edge. */
  draw(values: readonly number[]): void {
    const shown = values.slice(-this._samples);
    const top = this._top ?? Math.max(1, ...shown);
    const step = (WIDTH - 2 * MARGIN) / (this._samples - 1);
    const points = shown.map((value, index) => {
      const x = WIDTH - MARGIN - (shown.length - 1 - index) * step;
      const share = Math.min(1, Math.max(0, value / top));
      const y = HEIGHT - MARGIN - share * (HEIGHT - 2 * MARGIN);
      return [x.toFixed(2), y.toFixed(2)];
    });
    this._line.setAttribute('points', points.map(point => point.join(',')).join(' '));
    const last = points[points.length - 1];
    this._dot.style.display = last ? '' : 'none';
    if (last) {
      this._dot.setAttribute('cx', last[0]);
      this._dot.setAttribute('cy', last[1]);
    }
  }

  private _line: SVGPolylineElement;
  private _dot: SVGCircleElement;
}
