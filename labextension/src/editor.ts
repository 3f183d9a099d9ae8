/**
 * Editing help in `%%sgl` cells and on `%sgl` lines: mistakes as squiggles while one types, hover texts, the language's names
 * in colour.
 *
 * A CodeMirror extension for every editor of Lab; it wakes only in cells with `%%sgl` or `%sgl`. The kernel parses the text
 * (it runs nothing) on the panel's comm, so this works beside a running cell. Texts on words stand in `editor_words`.
 */

import type { Text } from '@codemirror/state';
import type { Diagnostic } from '@codemirror/lint';
import { forEachDiagnostic, linter, setDiagnostics } from '@codemirror/lint';
import { EditorState, Extension, RangeSetBuilder, Transaction } from '@codemirror/state';
import { Decoration, DecorationSet, EditorView, ViewPlugin, ViewUpdate } from '@codemirror/view';
import type { ISignal } from '@lumino/signaling';

import { aboutWords, codeOf, IWordHelp, LINE_MAGIC, unitsOf } from './editor_words';
import type { IMark } from './protocol';

const CELL = /^\s*%%sgl\b/;
const MAGIC = /^\s*(%%?sgl)\b/;
const WAIT_MS = 500;
/** After a cell's end, before its neighbours are looked at again. */
const REFRESH_MS = 200;

/** The kernel's help. `language` gives null where no kernel with sgnb is connected. */
export interface IHelp extends IWordHelp {
  check(source: string): Promise<IMark[]>;
  /** Whether the kernel that answers is that of the notebook or console this editor is in. */
  owns(editor: HTMLElement): boolean;
  /** The notebook's names may have changed: a cell ended, a kernel was connected. */
  readonly changed: ISignal<unknown, void>;
}

/** Whether this text is a cell of the language. */
export function isCell(doc: Text): boolean {
  for (let number = 1; number <= doc.lines; number++) {
    const line = doc.line(number).text;
    if (line.trim()) {
      return CELL.test(line);
    }
  }
  return false;
}

/** Whether a line of it has a magic, be it `%%sgl` below other lines, where the kernel says that it is out of place. */
export function hasMagic(doc: Text): boolean {
  for (let number = 1; number <= doc.lines; number++) {
    const { text } = doc.line(number);
    if (CELL.test(text) || LINE_MAGIC.test(text)) {
      return true;
    }
  }
  return false;
}

/** A mark's place in the document. */
export function placeOf(mark: IMark, doc: Text): { from: number; to: number } {
  const line = doc.line(Math.min(Math.max(1, mark.line), doc.lines));
  const from = line.from + Math.min(line.length, unitsOf(line.text, mark.col));
  const to = line.from + Math.min(line.length, unitsOf(line.text, Math.max(mark.end_col, mark.col + 1)));
  return { from: from === to && from > line.from ? from - 1 : from, to };
}

function shownIn(state: EditorState): Diagnostic[] {
  const shown: Diagnostic[] = [];
  forEachDiagnostic(state, (one, from, to) => shown.push({ ...one, from, to }));
  return shown;
}

/** The mistakes of a cell; what is shown now where the kernel that answers is another notebook's. */
async function mistakesOf(help: IHelp, view: EditorView): Promise<Diagnostic[]> {
  const doc = view.state.doc;
  if (!hasMagic(doc)) {
    return [];
  }
  if (!help.owns(view.dom)) {
    return shownIn(view.state);
  }
  const marks = await help.check(doc.toString()).catch(() => null);
  if (!marks) {
    return shownIn(view.state); // the kernel did not answer in time: nothing is known to be mended
  }
  return marks.map(mark => ({
    ...placeOf(mark, doc),
    severity: mark.severity,
    message: mark.message,
    source: 'sgnb'
  }));
}

/** Whether two lists mark the same; order is the text's in both. */
export function sameMarks(some: readonly Diagnostic[], others: readonly Diagnostic[]): boolean {
  const keys = (list: readonly Diagnostic[]) => list.map(one => [one.from, one.to, one.severity, one.message].join('\n'));
  return keys(some).sort().join('\n\n') === keys(others).sort().join('\n\n');
}

/** Whether a change leaves all marks as they were: the text on one may stay open. */
function staysSo(change: Transaction): boolean {
  return !change.docChanged && sameMarks(shownIn(change.startState), shownIn(change.state));
}

/**
 * Looks again at a cell when the notebook's names may have changed: at once where it is on the screen, else when it comes
 * there. What is marked already is left as it is: marking it anew would close the text that somebody reads.
 */
function refresher(help: IHelp): Extension {
  return ViewPlugin.fromClass(
    class {
      constructor(private readonly _view: EditorView) {
        help.changed.connect(this._onChange, this);
      }

      update(update: ViewUpdate): void {
        if (this._isStale && (update.viewportChanged || update.geometryChanged || update.focusChanged)) {
          this._onChange();
        }
      }

      destroy(): void {
        window.clearTimeout(this._timer);
        this._isGone = true;
        help.changed.disconnect(this._onChange, this);
      }

      private _onChange(): void {
        window.clearTimeout(this._timer);
        this._timer = window.setTimeout(() => void this._look(), REFRESH_MS);
      }

      private async _look(): Promise<void> {
        const { top, bottom } = this._view.dom.getBoundingClientRect();
        this._isStale = bottom <= 0 || top >= window.innerHeight || top === bottom;
        const doc = this._view.state.doc;
        if (this._isStale || !hasMagic(doc)) {
          return;
        }
        const found = await mistakesOf(help, this._view);
        if (!this._isGone && this._view.state.doc === doc && !sameMarks(found, shownIn(this._view.state))) {
          this._view.dispatch(setDiagnostics(this._view.state, found));
        }
      }

      private _timer = 0;
      private _isStale = false;
      private _isGone = false;
    }
  );
}

const magic = Decoration.mark({ class: 'sgnb-magic' });
const dslName = Decoration.mark({ class: 'sgnb-name' });
/** Known before a kernel is asked. */
const NAMES =
  /(?<![\w.])(?:gen|select|gen_int|gen_string|system|user|assistant|(?:system|user|assistant)_(?:begin|end)|text|separate_reasoning|image|video)(?=\s*\()/g;

function colours(view: EditorView): DecorationSet {
  const builder = new RangeSetBuilder<Decoration>();
  const doc = view.state.doc;
  const inCell = isCell(doc);
  if (!inCell && !hasMagic(doc)) {
    return builder.finish();
  }
  const masked = codeOf(doc.toString()).split('\n');
  for (let number = 1; number <= doc.lines; number++) {
    const line = doc.line(number);
    const head = MAGIC.exec(inCell ? line.text : (masked[number - 1] ?? ''));
    if (head && (inCell || head[1] === '%sgl')) {
      builder.add(line.from + head[0].length - head[1].length, line.from + head[0].length, magic);
      continue;
    }
    for (const match of inCell ? (masked[number - 1] ?? '').matchAll(NAMES) : []) {
      const from = line.from + (match.index ?? 0);
      builder.add(from, from + match[0].length, dslName);
    }
  }
  return builder.finish();
}

const names = ViewPlugin.fromClass(
  class {
    constructor(view: EditorView) {
      this.decorations = colours(view);
    }

    update(update: ViewUpdate): void {
      if (update.docChanged) {
        this.decorations = colours(update.view);
      }
    }

    decorations: DecorationSet;
  },
  { decorations: plugin => plugin.decorations }
);

/** All of it, for one editor. */
export function editingHelp(help: IHelp): Extension {
  return [
    linter(view => mistakesOf(help, view), { delay: WAIT_MS, hideOn: change => (staysSo(change) ? false : null) }),
    refresher(help), aboutWords(help),
    names
  ];
}
