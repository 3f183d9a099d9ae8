/**
 * What is said of a state outside the panel's own lines: in the status bar, and to a screen reader.
 *
 * Pure, as `states.ts`, whose facts it takes; `panel.ts` and `view.ts` show what it returns.
 */

import type { TranslationBundle } from '@jupyterlab/translation';

import { formatCount } from './format';
import type { IFacts, ILook } from './states';

/** The status bar's item; empty where no engine works. */
export function statusWords(facts: IFacts, trans: TranslationBundle): string {
  const engine = facts.state?.engine;
  const stats = facts.state?.stats;
  if (!engine || !stats || !['idle', 'running', 'full', 'stuck'].includes(facts.phase)) {
    return '';
  }
  const share = stats.kv_total > 0 ? Math.round((100 * stats.kv_used) / stats.kv_total) : 0;
  if (facts.silent) {
    return trans.__('sgnb %1: no news', engine.name);
  }
  return facts.phase === 'stuck'
    ? trans.__('sgnb %1: stuck', engine.name)
    : trans.__('sgnb %1: %2 tok/s, KV %3 %', engine.name, formatCount(stats.tokens_per_s), share);
}

/** One sentence for the live region: what this state is, with no number that changes by itself. */
export function announcement(facts: IFacts, shown: ILook, trans: TranslationBundle): string {
  if (shown.title || shown.sentence) {
    return shown.title || shown.sentence;
  }
  const words = facts.phase === 'running' ? trans.__('running') : shown.words.split(',', 1)[0];
  return words && shown.name ? trans.__('Engine %1: %2', shown.name, words) : '';
}
