/**
 * Numbers and times as the interface writes them: pure functions, no DOM.
 */

const THIN_SPACE = '\u2009';

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

/** Bytes done of bytes in all, in one unit: `0.71 of 1.19 GB`. */
export function formatBytesOf(done: number, total: number): string {
  const [unit, size] = total >= 1e9 ? ['GB', 1e9] : ['MB', 1e6];
  const digits = unit === 'GB' ? 2 : 0;
  return `${(done / (size as number)).toFixed(digits)} of ${(total / (size as number)).toFixed(digits)} ${unit}`;
}
