/**
 * Editing help in `%%sgl` cells: mistakes as squiggles while one types, hover texts, the language's names in colour.
 *
 * A CodeMirror extension for every editor of Lab; it wakes only in cells with `%%sgl`. The kernel parses the text (it runs
 * nothing) on the panel's comm, so this works beside a running cell. Texts on words stand in `editor_words`.
 */

import type { Text } from '@codemirror/state';
import type { Diagnostic } from '@codemirror/lint';
import { forEachDiagnostic, linter } from '@codemirror/lint';
import { Extension, RangeSetBuilder, StateEffect } from '@codemirror/state';
import { Decoration, DecorationSet, EditorView, ViewPlugin, ViewUpdate } from '@codemirror/view';
import type { ISignal } from '@lumino/signaling';

import { aboutWords, codeOf, IWordHelp, unitsOf } from './editor_words';
import type { IMark } from './protocol';

const CELL = /^\s*%%sgl\b/;
const MAGIC = /^\s*(%%sgl)\b/;
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

/** Whether a line of it has the magic, be it below other lines, where the kernel says that it is out of place. */
export function hasMagic(doc: Text): boolean {
  for (let number = 1; number <= doc.lines; number++) {
    if (CELL.test(doc.line(number).text)) {
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

/** The notebook's names have changed: look again. */
const lookAgain = StateEffect.define<null>();

function shownNow(view: EditorView): Diagnostic[] {
  const shown: Diagnostic[] = [];
  forEachDiagnostic(view.state, (one, from, to) => shown.push({ ...one, from, to }));
  return shown;
}

function mistakes(help: IHelp): Extension {
  return linter(
    async (view): Promise<Diagnostic[]> => {
      const doc = view.state.doc;
      if (!hasMagic(doc)) {
        return [];
      }
      if (!help.owns(view.dom)) {
        return shownNow(view); // another notebook's kernel knows nothing of this cell
      }
      const marks = await help.check(doc.toString()).catch(() => [] as IMark[]);
      return marks.map(mark => ({
        ...placeOf(mark, doc),
        severity: mark.severity,
        message: mark.message,
        source: 'sgnb'
      }));
    },
    {
      delay: WAIT_MS,
      needsRefresh: update => update.transactions.some(one => one.effects.some(effect => effect.is(lookAgain)))
    }
  );
}

/** Looks again at a cell when names may have changed: at once where it is on the screen, else when it comes there. */
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
        help.changed.disconnect(this._onChange, this);
      }

      private _onChange(): void {
        window.clearTimeout(this._timer);
        this._timer = window.setTimeout(() => this._look(), REFRESH_MS);
      }

      private _look(): void {
        const { top, bottom } = this._view.dom.getBoundingClientRect();
        this._isStale = bottom <= 0 || top >= window.innerHeight || top === bottom;
        if (!this._isStale && hasMagic(this._view.state.doc)) {
          this._view.dispatch({ effects: lookAgain.of(null) });
        }
      }

      private _timer = 0;
      private _isStale = false;
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
  if (!isCell(doc)) {
    return builder.finish();
  }
  const masked = codeOf(doc.toString()).split('\n');
  for (let number = 1; number <= doc.lines; number++) {
    const line = doc.line(number);
    const head = MAGIC.exec(line.text);
    if (head) {
      builder.add(line.from + head[0].length - head[1].length, line.from + head[0].length, magic);
      continue;
    }
    for (const match of (masked[number - 1] ?? '').matchAll(NAMES)) {
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
  return [mistakes(help), refresher(help), aboutWords(help), names];
}
