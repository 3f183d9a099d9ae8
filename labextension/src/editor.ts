/**
 * Editing help in `%%sgl` cells: mistakes as squiggles while one types, hover texts, the language's names in colour.
 *
 * A CodeMirror extension for every editor of Lab; it wakes only in cells that begin with `%%sgl`. The kernel parses the
 * text (it runs nothing) on the panel's comm, so this works beside a running cell.
 */

import type { Text } from '@codemirror/state';
import type { Diagnostic } from '@codemirror/lint';
import { linter } from '@codemirror/lint';
import { Extension, RangeSetBuilder } from '@codemirror/state';
import { Decoration, DecorationSet, EditorView, hoverTooltip, ViewPlugin, ViewUpdate } from '@codemirror/view';

import { element } from './dom';
import type { IMark } from './protocol';

const CELL = /^\s*%%sgl\b/;
const MAGIC = /^\s*(%%sgl)\b/;
const WAIT_MS = 500;
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
  parameters: Record<string, Record<string, string>>;
}

/** The kernel's help. `language` gives null where no kernel with sgnb is connected. */
export interface IHelp {
  check(source: string): Promise<IMark[]>;
  language(): Promise<ILanguage | null>;
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

/** Columns count code points in Python, and UTF-16 units here. */
function unitsOf(line: string, points: number): number {
  return Array.from(line).slice(0, points).join('').length;
}

/** A mark's place in the document. */
export function placeOf(mark: IMark, doc: Text): { from: number; to: number } {
  const line = doc.line(Math.min(Math.max(1, mark.line), doc.lines));
  const from = line.from + Math.min(line.length, unitsOf(line.text, mark.col));
  const to = line.from + Math.min(line.length, unitsOf(line.text, Math.max(mark.end_col, mark.col + 1)));
  return { from: from === to && from > line.from ? from - 1 : from, to };
}

function mistakes(help: IHelp): Extension {
  return linter(
    async (view): Promise<Diagnostic[]> => {
      const doc = view.state.doc;
      if (!isCell(doc)) {
        return [];
      }
      const marks = await help.check(doc.toString()).catch(() => [] as IMark[]);
      if (view.state.doc !== doc) {
        return []; // typed on meanwhile: the next answer is about that text
      }
      return marks.map(mark => ({
        ...placeOf(mark, doc),
        severity: mark.severity,
        message: mark.message,
        source: 'sgnb'
      }));
    },
    { delay: WAIT_MS }
  );
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
    const parameter = language.parameters[call[1]]?.[word];
    return parameter ? { signature: `${call[1]}(… ${parameter})`, text: language.names[call[1]]?.text ?? '' } : null;
  }
  return language.names[word] ?? null;
}

function hovers(help: IHelp): Extension {
  return hoverTooltip(async (view, position) => {
    const doc = view.state.doc;
    if (!isCell(doc)) {
      return null;
    }
    const line = doc.lineAt(position);
    const code = codeOf(doc.toString());
    const found = wordAt(code.slice(line.from, line.to), position - line.from);
    const language = found ? await help.language().catch(() => null) : null;
    const at = line.from + (found?.from ?? 0);
    const before = code.slice(Math.max(0, at - LOOK_BACK), at); // a call may have begun lines above
    const after = found ? line.text.slice(found.to) : '';
    const about = found && language ? aboutWord({ word: found.word, before }, after, language) : null;
    if (!found || !about) {
      return null;
    }
    return {
      pos: line.from + found.from,
      end: line.from + found.to,
      create: () => {
        const text = element('div', 'sgnb-Hover-text', about.text);
        const dom = element('div', 'sgnb-Hover', element('code', 'sgnb-Hover-signature', about.signature), text);
        return { dom };
      }
    };
  });
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
  return [mistakes(help), hovers(help), names];
}
