// Numbers and times as ui.md §1 writes them. Pure. Units are not translated.

import { trans } from "./trans.js";

const THIN = "\u2009";

/** A count in full, thousands parted by a thin space; unknown is `–`. */
export function count(number) {
  if (number === null || number === undefined || Number.isNaN(number)) return "–";
  return String(Math.round(number)).replace(/\B(?=(\d{3})+(?!\d))/g, THIN);
}

/** `0.38 s` from 0.1 s, `31 ms` below it, steps `9.1 ms` with `fine`. */
export function seconds(value, fine = false) {
  if (!(value >= 0)) return "–";
  if (value < 0.0995) return fine ? `${(value * 1000).toFixed(1)} ms` : `${Math.round(value * 1000)} ms`;
  if (value < 9.995) return `${value.toFixed(2)} s`;
  if (value < 99.95) return `${value.toFixed(1)} s`;
  const minutes = Math.round(value / 60);
  return minutes < 120 ? `${minutes} min` : `${Math.round(minutes / 60)} h`;
}

/** How long before the newest moment: `−2.41 s`. */
export function before(value) {
  return `−${value < 99.95 ? `${value.toFixed(value < 9.995 ? 2 : 1)} s` : seconds(value)}`;
}

/** A share without decimals: `90 %`; of nothing it is `–`. */
export function share(part, whole) {
  return whole ? `${Math.round((100 * part) / whole)} %` : "–";
}

/** Memory: `1.75 GiB`, `12.3 MiB`. */
export function memory(bytes) {
  let [size, unit] = [bytes / 1024, "KiB"];
  for (const next of ["MiB", "GiB", "TiB"]) if (size >= 1023.5) [size, unit] = [size / 1024, next];
  return `${size.toPrecision(size < 999.5 ? 3 : 4)} ${unit}`;
}

/** `1 node`, `3 nodes`: what is counted most. */
export const counted = {
  nodes: number => trans._n("%2 node", "%2 nodes", number, count(number)),
  requests: number => trans._n("%2 request", "%2 requests", number, count(number)),
  slots: number => trans._n("%2 slot", "%2 slots", number, count(number)),
  tokens: number => trans._n("%2 token", "%2 tokens", number, count(number)),
};

/** A clock time `10:52:07` of seconds since the epoch, in the reader's zone. */
export function clockTime(epoch) {
  return new Date(epoch * 1000).toTimeString().slice(0, 8);
}

const PICTURES = { "\n": "⏎", "\t": "→", "\r": "␍" };
/** Characters that draw nothing or turn the reading order, and controls. */
export const HIDDEN =
  /[\u0000-\u001F\u007F-\u009F\u00AD\u034F\u061C\u115F\u1160\u180E\u200B-\u200F\u2028-\u202E\u2060-\u206F\u3164\uFEFF\uFFF9-\uFFFB\uD800-\uDFFF]|[\u{E0000}-\u{E007F}]/gu;

export const MOST_MARKS = 8; // on one letter; more would pile over other lines, or make one that cannot be broken

const letters = new Intl.Segmenter(undefined, { granularity: "grapheme" });
const LONGEST_LETTER = 32; // units; a longer pile of marks is cut where it is

/** What readers take for the letters of a text, each with its marks. */
export function lettersOf(text) {
  return Array.from(letters.segment(text), ({ segment }) => segment);
}

/** At most `limit` units of a text, ended behind a whole letter. */
export function cutAt(text, limit) {
  if (text.length <= limit) return text;
  let end = 0;
  for (const letter of lettersOf(text.slice(0, limit + LONGEST_LETTER))) {
    if (end + letter.length > limit) break;
    end += letter.length;
  }
  return end > limit - LONGEST_LETTER ? text.slice(0, end) : text.slice(0, limit).replace(/[\uD800-\uDBFF]$/, "");
}

/** Text on one line, every invisible character shown: line feeds as ⏎, others by name. */
export function oneLine(text, limit = 400) {
  const cut = text.length > limit ? `${cutAt(text, limit - 1)}…` : text;
  const named = cut.replace(HIDDEN, char => PICTURES[char] ?? `[U+${char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}]`);
  return named.replace(/\p{M}{9,}/gu, pile => `${[...pile].slice(0, MOST_MARKS).join("")}[${trans.__("+%1 marks", count([...pile].length - MOST_MARKS))}]`);
}
