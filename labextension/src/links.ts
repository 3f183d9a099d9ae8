/**
 * What views and cells say to each other: a view asks for another one, which is a docked pane where that is open; a row or
 * a node under the pointer marks its line of the cell, and a line its rows. The views send events, and know nothing of Lab.
 */

import type { CodeMirrorEditor } from '@jupyterlab/codemirror';
import type { INotebookTracker, Notebook } from '@jupyterlab/notebook';
import type { Kernel } from '@jupyterlab/services';
import { Extension, StateEffect, StateField } from '@codemirror/state';
import { Decoration, DecorationSet, EditorView } from '@codemirror/view';

import type { ViewKind } from './control_sections';
import { isCell } from './editor';
import type { PaneManager } from './panes';

type Cell = Notebook['widgets'][number];

const AT_LINE = 'sgnb-at-line';
const mark = StateEffect.define<number>();
const marked = Decoration.line({ class: 'sgnb-source-line' });

const field = StateField.define<DecorationSet>({
  create: () => Decoration.none,
  update(shown, transaction) {
    let now = shown.map(transaction.changes);
    for (const effect of transaction.effects) {
      if (effect.is(mark)) {
        const doc = transaction.state.doc;
        const known = effect.value >= 1 && effect.value <= doc.lines;
        now = known ? Decoration.set([marked.range(doc.line(effect.value).from)]) : Decoration.none;
      }
    }
    return now;
  },
  provide: self => EditorView.decorations.from(self)
});

let pointed: [editor: HTMLElement | null, line: number] = [null, 0];

/** Rows of the cell's program view that came of this line; 0: none. */
function showRows(editor: HTMLElement, line: number): void {
  if (pointed[0] === editor && pointed[1] === line) {
    return; // the pointer moves on the same line: of a long run all rows were looked at each time
  }
  pointed = [editor, line];
  const rows = editor.closest('.jp-Cell')?.querySelectorAll<HTMLElement>('.sgnb-program .sgnb-row[data-line]') ?? [];
  for (const row of rows) {
    row.classList.toggle(AT_LINE, line > 0 && row.dataset.line === String(line));
  }
}

/** For every editor; it acts in `%%sgl` cells alone. */
export function lineMarks(): Extension {
  return [
    field,
    EditorView.domEventHandlers({
      mousemove(event, view) {
        if (isCell(view.state.doc)) {
          const at = view.posAtCoords({ x: event.clientX, y: event.clientY });
          showRows(view.dom, at === null ? 0 : view.state.doc.lineAt(at).number);
        }
      },
      mouseleave(_, view) {
        showRows(view.dom, 0);
      }
    })
  ];
}

/** The cell that a view's element stands in, else the one whose number it names: only what begins with `%%sgl` is meant. */
function cellOf(notebooks: INotebookTracker, target: EventTarget | null, number: string): Cell | null {
  const node = target instanceof Element ? target.closest('.jp-Cell') : null;
  const cells = notebooks.currentWidget?.content.widgets ?? [];
  const numbered = (cell: Cell) => number !== '' && cell.node.querySelector('.jp-InputPrompt')?.textContent === `[${number}]:`;
  const meant = (cell: Cell | undefined) => cell !== undefined && /^\s*%%sgl\b/.test(cell.model.sharedModel.getSource());
  return [cells.find(cell => cell.node === node), cells.find(numbered)].find(meant) ?? null;
}

/** The kernel that runs the very cell a view stands in: to stop another cell for it would be wrong. Else null. */
function kernelOf(notebooks: INotebookTracker, target: EventTarget | null): Kernel.IKernelConnection | null {
  const cell = target instanceof Element ? target.closest('.jp-Cell') : null;
  if (cell?.querySelector('.jp-InputPrompt')?.textContent !== '[*]:') {
    return null;
  }
  return notebooks.find(one => one.node.contains(cell))?.sessionContext.session?.kernel ?? null;
}

/** Listen to the page's views. */
export function linkViews(notebooks: INotebookTracker | null, panes: PaneManager): void {
  let last: EditorView | null = null;
  document.addEventListener('sgnb:open', event => {
    const { kind, key } = (event as CustomEvent<{ kind: ViewKind; key: string }>).detail;
    if (panes.reveal(kind, key)) {
      event.preventDefault();
    }
  });
  document.addEventListener('sgnb:interrupt', event => {
    const kernel = notebooks ? kernelOf(notebooks, event.target) : null;
    if (kernel) {
      event.preventDefault();
      void kernel.interrupt();
    }
  });
  document.addEventListener('sgnb:line', event => {
    const { line, cell, hover } = (event as CustomEvent<{ line: number; cell?: string; hover?: boolean }>).detail;
    const found = notebooks ? cellOf(notebooks, event.target, cell ?? '') : null;
    last?.dispatch({ effects: mark.of(0) });
    last = (found?.editor as CodeMirrorEditor | null)?.editor ?? null;
    last?.dispatch({ effects: mark.of(line) });
    if (found && line && !hover) {
      found.node.scrollIntoView({ block: 'nearest' });
      const doc = last?.state.doc;
      if (last && doc && line <= doc.lines) {
        last.dispatch({ selection: { anchor: doc.line(line).from } });
      }
    }
  });
}
