// The document of a program view and what is computed of it: applying deltas, how branches are laid out, which tokens are
// shaded, what a click on text means. Pure: no elements, no clock. The words of a run come from the kernel (fold_data.py).

import { count, HIDDEN, MOST_MARKS, oneLine } from "./format.js";
import { trans } from "./trans.js";

/** Milliseconds between two drawings of numbers: what changes faster cannot be read. */
export const NUMBERS_EVERY = 250;

export const COLUMN = 220; // px a branch needs to stand beside others
export const MAX_COLUMNS = 3;
export const TABLE_FROM = 9; // so many branches are a table
export const RUN_CHARS = 4000; // text is shown in blocks of about this length, so that appending lays out one of them
const LONGEST_RUN = 16000;
const LOOK_BACK = 200; // steps
const MARK = 3; // numbers a token has in seg.marks: length, probability, flags
const FORCED = 1;

/** A document from a snapshot message. */
export function fromSnapshot(snapshot) {
  return {
    seq: snapshot.seq ?? -1,
    head: snapshot.head ?? {},
    rows: snapshot.rows ?? [],
    lanes: snapshot.lanes ?? [],
    pending: snapshot.pending ?? [],
  };
}

/**
 * Apply a delta to `doc` in place. Returns the indices of changed rows, or null when a message is missing
 * (the caller asks for a snapshot). A delta that is already contained changes nothing.
 */
export function applyDelta(doc, delta) {
  if (delta.seq <= doc.seq && delta.from !== doc.seq) return [];
  if (delta.from !== doc.seq) return null;
  const changed = new Set();
  for (const [index, data] of delta.rows) {
    const old = doc.rows[index];
    data.segs.forEach((seg, number) => {
      seg.text = old?.segs[number]?.text ?? "";
      seg.marks = old?.segs[number]?.marks;
    });
    doc.rows[index] = data;
    changed.add(index);
  }
  for (const [index, number, text] of delta.text) {
    doc.rows[index].segs[number].text += text;
    changed.add(index);
  }
  for (const [index, number, marks] of delta.marks ?? []) {
    const seg = doc.rows[index].segs[number];
    if (seg.marks) seg.marks.push(...marks);
    else seg.marks = [...marks];
    changed.add(index);
  }
  for (const [index, data] of delta.lanes ?? []) {
    doc.lanes[index] = data;
    if (data.fork >= 0) changed.add(data.fork);
  }
  doc.seq = delta.seq;
  doc.head = delta.head;
  if (delta.pending) doc.pending = delta.pending;
  return [...changed];
}

/** True until the run has ended. */
export function isRunning(head) {
  return head.state === "running" || head.state === "queued";
}

/** `prefill 512 of 1 460`: how far the prompt of an admitted request is; of one chunk that is not told. */
export function prefillWords({ rid, prompt }, steps) {
  for (let index = steps.length - 1; index >= 0 && index >= steps.length - LOOK_BACK; index--) {
    const row = steps[index].rows.find(one => one.rid === rid && one.kind === "prefill");
    if (row) return row.prefix + row.tokens < prompt ? trans.__("prefill %1 of %2", count(row.prefix + row.tokens), count(prompt)) : "";
  }
  return "";
}

/** The sentence for the live region when the run's state changes. */
export function sentence(head) {
  const { word = "", facts = [], cell = "" } = head;
  const words = [word.toLowerCase(), ...facts].join(", ");
  return cell ? trans.__("Run [%1] %2.", cell, words) : trans.__("Run %1.", words);
}

/** Width in px of the reused part of a 48 px bar; never 0 or 48 when both kinds are there. */
export function barWidth(cached, prompt, width = 48) {
  if (!prompt || cached <= 0) return 0;
  if (cached >= prompt) return width;
  return Math.min(width - 2, Math.max(2, Math.round((width * cached) / prompt)));
}

/** How the branches of a fork stand: "columns", "tabs" or "table". `nested`: inside a branch of another fork. */
export function layoutOf(arms, width, nested = false) {
  if (arms >= TABLE_FROM) return "table";
  if (nested || arms > MAX_COLUMNS || width / arms < COLUMN) return "tabs";
  return "columns";
}

const SIGNS = { "\n": "⏎", "\t": "→", " ": "·" };

const ODD = new RegExp(`(?<hidden>${HIDDEN.source})|\\p{M}{9,}|^\\p{M}+`, "gu");

/**
 * Cut text into runs; `box` runs are single characters that draw nothing and are shown by name, and marks beyond the eighth
 * on one letter, which are counted. With `signs` a blank is a run of its own, with its sign. `marks`: how many stand on the
 * letter before the text.
 */
export function pieces(text, signs = false, marks = 0) {
  if (signs) {
    const parts = text.split(/([ \t\n])/).filter(part => part);
    return parts.flatMap((part, index) => (SIGNS[part] ? [{ text: part, box: false, sign: SIGNS[part] }] : pieces(part, false, index ? 0 : marks)));
  }
  const out = [];
  let at = 0;
  const put = end => end > at && out.push({ text: text.slice(at, end), box: false });
  for (const { 0: found, index, groups } of text.matchAll(ODD)) {
    if (found === "\n" || found === "\t") continue; // these are seen
    const pile = groups.hidden ? [] : [...found];
    const kept = pile.slice(0, Math.max(0, MOST_MARKS - (index ? 0 : marks)));
    if (pile.length && kept.length === pile.length) continue;
    const begin = index + kept.join("").length;
    put(begin);
    at = index + found.length;
    out.push({ text: groups.hidden ? nameOfChar(found) : trans.__("+%1 marks", count(pile.length - kept.length)), box: true, length: at - begin });
  }
  put(text.length);
  return out;
}

/** How many marks stand at the end of a text, as far as it matters. */
export function marksAtEnd(text) {
  return [.../\p{M}*$/u.exec(text.slice(-2 * MOST_MARKS))[0]].length;
}

function nameOfChar(char) {
  const code = char.codePointAt(0);
  return `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
}

/** Where to end a block of text that has `held` characters already: behind a line end, at worst behind a blank; 0: nowhere. */
export function breakAt(text, held) {
  if (held + text.length <= RUN_CHARS) return 0;
  const from = Math.max(0, RUN_CHARS - held);
  const line = text.indexOf("\n", from);
  if (line >= 0 && held + line < LONGEST_RUN) return line + 1;
  if (held + text.length <= LONGEST_RUN) return 0;
  const blank = text.indexOf(" ", Math.max(0, LONGEST_RUN - held));
  return blank >= 0 ? blank + 1 : 0;
}

// ---------------------------------------------------------------- tokens

/** How many tokens a generation's text knows. */
export function tokenCount(seg) {
  return seg.marks ? seg.marks.length / MARK : 0;
}

/** A prompt text whose tokens are known: it can be shaded by what was reused of it, and inspected. */
export function isCounted(seg) {
  return !seg.model && seg.reused !== undefined;
}

/** The end of each token in the text, in UTF-16 units, from place `from` on where `before` have been counted. */
export function tokenEnds(seg, known = []) {
  const marks = seg.marks ?? [];
  let end = known.length ? known[known.length - 1] : 0;
  for (let at = known.length * MARK; at < marks.length; at += MARK) known.push((end += marks[at]));
  return known;
}

/** The token at a character of the text, or -1. */
export function tokenAt(ends, offset) {
  let low = 0;
  let high = ends.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ends[middle] <= offset) low = middle + 1;
    else high = middle;
  }
  return low < ends.length ? low : -1;
}

/** The class of a token under a shade ("probability", "forced"), or "". */
export function shadeOf(seg, place, shade) {
  const chance = seg.marks[place * MARK + 1];
  if (shade === "forced") return seg.marks[place * MARK + 2] & FORCED ? "sgnb-forced" : "";
  if (shade !== "probability" || chance < 0 || chance >= 0.75) return "";
  return chance < 0.1 ? "sgnb-unsure4" : chance < 0.25 ? "sgnb-unsure3" : chance < 0.5 ? "sgnb-unsure2" : "sgnb-unsure1";
}

/** Stretches `{from, to, name}` of the text [from, to) with their shade; a token's leading blanks are not shaded. */
export function stretches(seg, ends, shade, from, to) {
  const out = [];
  const put = (begin, end, name) => {
    if (begin >= end) return;
    const last = out[out.length - 1];
    if (last && last.name === name && !name) last.to = end;
    else out.push({ from: begin, to: end, name });
  };
  if (shade === "cached" && isCounted(seg)) {
    const cut = Math.max(from, Math.min(to, seg.reused));
    const blank = cut + /^\s*/.exec(seg.text.slice(cut, to))[0].length;
    put(from, cut, "sgnb-reused-text");
    put(cut, blank, "");
    put(blank, to, "sgnb-computed-text");
    return out;
  }
  if (!ends.length || (shade !== "probability" && shade !== "forced")) return from < to ? [{ from, to, name: "" }] : [];
  let at = from;
  for (let place = Math.max(0, tokenAt(ends, from)); place < ends.length && at < to; place++) {
    const end = Math.min(ends[place], to);
    if (end <= at) continue;
    const name = shadeOf(seg, place, shade);
    const blank = name ? at + /^\s*/.exec(seg.text.slice(at, end))[0].length : end;
    put(at, Math.min(blank, end), "");
    put(Math.min(blank, end), end, name);
    at = end;
  }
  put(at, to, "");
  return out;
}

/** Probability with two decimals; unknown is `–`. */
export function chanceOf(logprob) {
  return logprob === null || logprob === undefined ? "–" : Math.exp(Math.min(0, logprob)).toFixed(2);
}

/** A log-probability with a true minus sign; what rounds to zero has none. */
export function logprobWords(logprob, digits = 2) {
  return logprob.toFixed(digits).replace(/^-(?=[0.]*$)/, "").replace("-", "−");
}

/** A token as it is shown: one of blanks alone has their signs, parts of a character that are no text stand as one ▯. */
export function tokenWords(text) {
  const whole = (text || "\uFFFD").replace(/\uFFFD+/g, "▯");
  return whole.trim() ? oneLine(whole) : oneLine(whole).replaceAll(" ", "·");
}

/** What the grammar allowed at a token, and the best that it ruled out: the first choice of all, where it was that. */
export function grammarWords({ allowed, vocabulary, top, ruled_out, ruled_out_text, ruled_out_logprob }) {
  const words = [allowedWords(allowed, vocabulary)];
  if (ruled_out_text) {
    const best = tokenWords(ruled_out_text) + (ruled_out_logprob === null || ruled_out_logprob === undefined ? "" : ` (${chanceOf(ruled_out_logprob)})`);
    words.push(top?.[0]?.[1] === ruled_out ? trans.__("Without it the first choice was %1, not allowed here.", best) : trans.__("The best token it ruled out was %1.", best));
  }
  return words.join(" ");
}

function allowedWords(allowed, vocabulary) {
  if (allowed === 1) return vocabulary ? trans.__("The grammar allowed this token alone, of %1.", count(vocabulary)) : trans.__("The grammar allowed this token alone.");
  return vocabulary ? trans.__("The grammar allowed %1 of %2 tokens.", count(allowed), count(vocabulary)) : trans.__("The grammar allowed %1 tokens.", count(allowed));
}

/** An error's lines as `[text, pointed at]`. What carets point at is marked itself: they would be folded apart from it. */
export function errorParts(lines) {
  const parts = [];
  const put = (text, at = false) => text && parts.push([text, at]);
  for (const [n, line] of lines.entries()) {
    if (n && pointed(lines, n)) continue;
    put(n ? "\n" : "");
    const caret = pointed(lines, n + 1);
    if (!caret) {
      put(line);
      continue;
    }
    const from = caret.index;
    const to = from + caret[0].length;
    put(line.slice(0, from));
    put(line.slice(from, to), true);
    put(line.slice(to));
  }
  return parts;
}

/** The carets of line `n`, where that line has nothing else and stands below one of source; else null. */
function pointed(lines, n) {
  return n > 0 && /^ +\^+$/.test(lines[n] ?? "") && lines[n - 1].startsWith("    ") ? /\^+/.exec(lines[n]) : null;
}
