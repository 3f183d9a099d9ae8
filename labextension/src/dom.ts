/** Small helpers for elements: text enters the page by `textContent` alone. */

export function element<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  name: string,
  ...children: (Node | string)[]
): HTMLElementTagNameMap[K] {
  const node = document.createElement(tag);
  node.className = name;
  node.append(...children);
  return node;
}

/** Set the text when it differs: focus and selection stay where they are. */
export function setText(node: HTMLElement, value: string): void {
  if (node.textContent !== value) {
    node.textContent = value;
  }
}

export function show(node: HTMLElement, visible: boolean): void {
  if (node.hidden === visible) {
    node.hidden = !visible;
  }
}

/** Each sign's outline in a box of 12 × 12, and how thick its line is; 0: it is filled. */
const SIGNS: Record<string, [path: string, line: number]> = {
  '●': ['M6 1.8a4.2 4.2 0 1 1 0 8.4a4.2 4.2 0 1 1 0-8.4z', 0],
  '○': ['M6 2.4a3.6 3.6 0 1 1 0 7.2a3.6 3.6 0 1 1 0-7.2z', 1.3],
  '◡': ['M1.6 4.8a4.4 4.4 0 0 0 8.8 0', 2],
  '▲': ['M6 1 11.6 11H.4z', 0],
  '❚❚': ['M1.2 1.5h3.6v9H1.2zM7.2 1.5h3.6v9H7.2z', 0],
  '✕': ['M2 2l8 8M10 2l-8 8', 2.2],
  '✓': ['M1.6 6.4 4.6 9.4 10.4 2.8', 1.6],
  '▾': ['M2 4h8L6 9z', 0],
  '▶': ['M2.5 1 11 6l-8.5 5z', 0]
};
const SVG = 'http://www.w3.org/2000/svg';

/** Show a sign as a drawing: fonts give the same character other sizes and weights. */
export function setSign(node: HTMLElement, sign: string): void {
  if (node.dataset.sign === sign) {
    return;
  }
  node.dataset.sign = sign;
  const [path, line] = SIGNS[sign] ?? ['', 0];
  const drawing = document.createElementNS(SVG, 'svg');
  drawing.setAttribute('viewBox', '0 0 12 12');
  drawing.setAttribute('class', 'sgnb-Panel-sign');
  drawing.setAttribute('aria-hidden', 'true');
  const shape = document.createElementNS(SVG, 'path');
  shape.setAttribute('d', path);
  shape.setAttribute('fill', line ? 'none' : 'currentColor');
  if (line) {
    shape.setAttribute('stroke', 'currentColor');
    shape.setAttribute('stroke-width', String(line));
  }
  drawing.append(shape);
  node.replaceChildren(drawing);
}

export type ButtonKind = 'plain' | 'primary' | 'trouble';

export function button(label: string, act: () => void, kind: ButtonKind = 'plain'): HTMLButtonElement {
  const node = element('button', `sgnb-Panel-button${kind === 'plain' ? '' : ` sgnb-mod-${kind}`}`, label);
  node.type = 'button';
  node.addEventListener('click', act);
  return node;
}

export function link(label: string, act: () => void): HTMLButtonElement {
  const node = element('button', 'sgnb-Panel-link', label);
  node.type = 'button';
  node.addEventListener('click', act);
  return node;
}

/** A button that cannot act says why. */
export function enable(node: HTMLButtonElement | HTMLSelectElement, enabled: boolean, why = ''): void {
  node.disabled = !enabled;
  node.title = enabled ? '' : why;
}

export function heading(text: string): HTMLElement {
  const node = element('h3', 'sgnb-Panel-heading', text);
  return node;
}

/** A file the browser saves. */
export function download(name: string, text: string): void {
  const url = URL.createObjectURL(new Blob([text], { type: 'text/plain;charset=utf-8' }));
  const anchor = element('a', '');
  anchor.href = url;
  anchor.download = name;
  anchor.click();
  window.setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
