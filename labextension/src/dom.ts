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
