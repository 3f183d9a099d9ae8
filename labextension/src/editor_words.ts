/**
 * What a word of a `%%sgl` cell or of a `%sgl` line means: below the pointer, and at the cursor by a key.
 *
 * The kernel reads the cell and says it (sgnb/edit_about.py). While a cell cannot be parsed, the names of the language are
 * looked for in its text here. F1 shows the text for the cursor's place, with the mistake marked there; the editor is
 * described by it, Escape and any move of the cursor take it away; F8 goes to the next mistake.
 */

import { forEachDiagnostic, nextDiagnostic, previousDiagnostic } from '@codemirror/lint';
import type { Text } from '@codemirror/state';
import { EditorState, Extension, Prec, StateEffect, StateField } from '@codemirror/state';
import { EditorView, hoverTooltip, keymap, showTooltip, Tooltip } from '@codemirror/view';

import { element } from './dom';
import type { IWord } from './protocol';

const MAGIC_LINE = /^\s*%%sgl\b/;
/** A line that may be a `%sgl` one, in a cell of Python. */
export const LINE_MAGIC = /^\s*%sgl\b/;
/** Characters before a word in which the call it stands in is looked for. */
const LOOK_BACK = 4000;

export interface IAbout {
  signature: string;
  text: string;
}

/** What the kernel says of the language; see sgnb/panel_edit.py. */
export interface ILanguage {
  names: Record<string, IAbout>;
  methods: Record<string, IAbout>;
  parameters: Record<string, Record<string, IAbout>>;
}

/** The part of the kernel's help that is about words. */
export interface IWordHelp {
  about(source: string, line: number, col: number): Promise<IWord | 'unread' | null>;
  /** Null where no kernel with sgnb is connected. */
  language(): Promise<ILanguage | null>;
}

/** Columns count code points in Python, and UTF-16 units here. */
export function unitsOf(line: string, points: number): number {
  return Array.from(line).slice(0, points).join('').length;
}

const TEXTS = /#.*$|("""|''')[\s\S]*?(?:\1|$(?![\s\S]))|(["'])(?:\\.|(?!\2).)*\2/gm;

/** The text with strings and comments blank: a word in a prompt is none of the language. As long as `source`. */
export function codeOf(source: string): string {
  return source.replace(TEXTS, part => part.replace(/[^\n]/g, ' '));
}

const WORD = /[A-Za-z_]\w*/g;

/** The word at a column of a line, and what stands before it. */
export function wordAt(line: string, column: number): { word: string; from: number; to: number; before: string } | null {
  for (const match of line.matchAll(WORD)) {
    const from = match.index ?? 0;
    const to = from + match[0].length;
    if (from <= column && column <= to) {
      return { word: match[0], from, to, before: line.slice(0, from) };
    }
  }
  return null;
}

/** What to say about a word: a name of the language, a method of a state, a parameter of the call it stands in. */
export function aboutWord(
  found: { word: string; before: string },
  after: string,
  language: ILanguage
): IAbout | null {
  const { word, before } = found;
  if (/(^|[^\w.])(sgl|sgnb)\s*\.\s*$/.test(before)) {
    return language.names[word] ?? null;
  }
  if (/\.\s*$/.test(before)) {
    return language.methods[word] ?? null;
  }
  const call = /(\w+)\((?:[^()]|\([^()]*\))*$/.exec(before);
  if (call && /^\s*=(?!=)/.test(after)) {
    return language.parameters[call[1]]?.[word] ?? null;
  }
  return language.names[word] ?? null;
}

function beginsWithMagic(doc: Text): boolean {
  for (const line of doc.iterLines()) {
    if (line.trim()) {
      return MAGIC_LINE.test(line);
    }
  }
  return false;
}

/** Whether the kernel is asked about a place: it is in a cell of the language, or on a line of the other magic. */
export function isAsked(doc: Text, position: number): boolean {
  return beginsWithMagic(doc) || LINE_MAGIC.test(doc.lineAt(position).text);
}

/** Whether a cell is of the language, or has a line of the other magic. */
function hasOurs(doc: Text): boolean {
  for (const line of doc.iterLines()) {
    if (LINE_MAGIC.test(line)) {
      return true;
    }
  }
  return beginsWithMagic(doc);
}

type Place = { from: number; to: number; about: IAbout };

/** What the kernel says of a place; while it cannot read the cell, what the language's names say. */
async function lookUp(help: IWordHelp, doc: Text, position: number): Promise<Place | null> {
  const line = doc.lineAt(position);
  const col = Array.from(line.text.slice(0, position - line.from)).length;
  const said = await help.about(doc.toString(), line.number, col).catch(() => 'unread' as const);
  if (said !== 'unread') {
    return (
      said && {
        from: line.from + unitsOf(line.text, said.col),
        to: line.from + unitsOf(line.text, said.end_col),
        about: said
      }
    );
  }
  if (LINE_MAGIC.test(line.text)) {
    return null; // its words are none of the language
  }
  const code = codeOf(doc.toString());
  const found = wordAt(code.slice(line.from, line.to), position - line.from);
  const language = found ? await help.language().catch(() => null) : null;
  if (!found || !language) {
    return null;
  }
  const from = line.from + found.from;
  const before = code.slice(Math.max(0, from - LOOK_BACK), from); // a call may have begun lines above
  const about = aboutWord({ word: found.word, before }, line.text.slice(found.to), language);
  return about && { from, to: line.from + found.to, about };
}

function textOf(about: IAbout): HTMLElement {
  const text = element('div', 'sgnb-Hover-text', about.text);
  return element('div', 'sgnb-Hover', element('code', 'sgnb-Hover-signature', about.signature), text);
}

function pointed(help: IWordHelp): Extension {
  return hoverTooltip(async (view, position) => {
    const doc = view.state.doc;
    const found = isAsked(doc, position) ? await lookUp(help, doc, position) : null;
    return found && { pos: found.from, end: found.to, create: () => ({ dom: textOf(found.about) }) };
  });
}

const show = StateEffect.define<Tooltip | null>();

/** The text that a key has opened. */
const opened = StateField.define<Tooltip | null>({
  create: () => null,
  update: (shown, change) => {
    for (const effect of change.effects) {
      if (effect.is(show)) {
        return effect.value;
      }
    }
    return change.docChanged || change.selection ? null : shown;
  },
  provide: field => [
    showTooltip.from(field),
    EditorView.contentAttributes.compute([field], state => {
      const id = state.field(field) ? TOOLTIP_ID : '';
      return id ? { 'aria-describedby': id } : ({} as Record<string, string>);
    })
  ]
});

const TOOLTIP_ID = 'sgnb-explained';

/** The sentences of the mistakes that are marked at a place. */
function mistakesAt(state: EditorState, position: number): string[] {
  const found: string[] = [];
  forEachDiagnostic(state, (one, from, to) => {
    if (from <= position && position <= to) {
      found.push(one.message);
    }
  });
  return found;
}

async function explain(help: IWordHelp, view: EditorView): Promise<void> {
  const { doc } = view.state;
  const at = view.state.selection.main.head;
  const wrong = mistakesAt(view.state, at);
  const found = isAsked(doc, at) ? await lookUp(help, doc, at) : null;
  const moved = view.state.doc !== doc || view.state.selection.main.head !== at;
  if (moved || (!found && !wrong.length)) {
    return;
  }
  const create = () => {
    const dom = element('div', 'sgnb-Explained', ...wrong.map(one => element('div', 'sgnb-Hover-mistake', one)));
    if (found) {
      dom.append(textOf(found.about));
    }
    dom.id = TOOLTIP_ID;
    dom.setAttribute('role', 'tooltip');
    return { dom };
  };
  const said = [...wrong, ...(found ? [found.about.signature, found.about.text] : [])].join(' ');
  view.dispatch({
    effects: [show.of({ pos: found?.from ?? at, create }), EditorView.announce.of(said)]
  });
}

/** All of it, for one editor. */
export function aboutWords(help: IWordHelp): Extension {
  const inCell = (act: (view: EditorView) => boolean) => (view: EditorView) =>
    hasOurs(view.state.doc) && act(view);
  const keys = keymap.of([
    { key: 'F1', run: view => isAsked(view.state.doc, view.state.selection.main.head) && (void explain(help, view), true) },
    { key: 'F8', run: inCell(nextDiagnostic), shift: inCell(previousDiagnostic) },
    {
      key: 'Escape',
      run: view => {
        const is = view.state.field(opened, false);
        if (is) {
          view.dispatch({ effects: show.of(null) });
        }
        return !!is;
      }
    }
  ]);
  return [pointed(help), opened, Prec.high(keys)];
}
