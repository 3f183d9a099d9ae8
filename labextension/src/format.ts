/**
 * Numbers and times as the interface writes them: pure functions, no DOM.
 */

/** Thin and not broken at: a number stays on one line. */
const THIN_SPACE = '\u202f';

/** A count in full, thousands apart by a thin space: `16 384`. */
export function formatCount(value: number): string {
  return Math.round(value)
    .toString()
    .replace(/\B(?=(\d{3})+(?!\d))/g, THIN_SPACE);
}

/** A span of time in seconds as people say it: `3.1 s`, `41 min`, `2 h 5 min`. */
export function formatSpan(seconds: number): string {
  const span = Math.max(0, seconds);
  if (span < 60) {
    return span < 10 ? `${span.toFixed(1)} s` : `${Math.round(span)} s`;
  }
  const minutes = Math.floor(span / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** A clock time of the day, `10:52:07`. */
export function formatClock(millis: number): string {
  const date = new Date(millis);
  return [date.getHours(), date.getMinutes(), date.getSeconds()]
    .map(part => part.toString().padStart(2, '0'))
    .join(':');
}

/** Bytes done and bytes in all, in one unit: `0.71` and `1.19 GB`. */
export function formatBytesOf(done: number, total: number): [string, string] {
  const [unit, size] = total >= 1e9 ? ['GB', 1e9] : ['MB', 1e6];
  const digits = unit === 'GB' ? 2 : 0;
  return [(done / (size as number)).toFixed(digits), `${(total / (size as number)).toFixed(digits)} ${unit}`];
}

/** A line of the engine's log without date, process and everyday level: `17:16:38 client 1 came`. */
export function shortLogLine(line: string): string {
  const parts = /^\d{4}-\d\d-\d\d (\d\d:\d\d:\d\d)[,.]\d+ \d+ ([A-Z]+) (.*)$/.exec(line);
  if (!parts) {
    return line;
  }
  const sign = parts[2] === 'INFO' || parts[2] === 'DEBUG' ? '' : '▲ ';
  return `${parts[1]} ${sign}${parts[3]}`;
}
