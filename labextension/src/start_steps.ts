/** The steps of an engine's start, in words, with their times and the share that is done. Pure. */

import type { TranslationBundle } from '@jupyterlab/translation';

import { formatBytesOf } from './format';
import type { IStep } from './protocol';

/** Start steps in their order; an engine that reports others shows those by their own name. */
const START_STEPS = ['process', 'tokenizer', 'weights', 'kv', 'graphs'];

export interface IStartRow {
  state: 'done' | 'current' | 'waiting';
  words: string;
  time: string;
}

/** The steps of a start with their times, and the share that is done. */
export function startRows(steps: readonly IStep[], trans: TranslationBundle): { rows: IStartRow[]; share: number } {
  const given = steps.filter(step => step.step !== 'ready').map(step => step.step);
  const wanted = START_STEPS.filter(name => name !== 'graphs' || given.includes(name));
  const order = [...new Set([...wanted, ...given])];
  const lastSeen = Math.max(-1, ...given.map(name => order.indexOf(name)));
  let share = 0;
  const rows = order.map((name, index): IStartRow => {
    const step = steps.filter(item => item.step === name).pop();
    const complete = step !== undefined && step.total > 0 && step.done >= step.total;
    const done = complete || index < lastSeen;
    const current = !done && index === lastSeen;
    share += done ? 1 : current && step && step.total > 0 ? step.done / step.total : 0;
    return {
      state: done ? 'done' : current ? 'current' : 'waiting',
      words: stepWords(name, step, current, trans),
      time: step ? `${step.seconds.toFixed(1)} s` : ''
    };
  });
  return { rows, share: share / Math.max(1, order.length) };
}

function stepWords(name: string, step: IStep | undefined, current: boolean, trans: TranslationBundle): string {
  switch (name) {
    case 'process':
      return trans.__('process started');
    case 'tokenizer':
      return trans.__('tokenizer');
    case 'weights':
      return current && step && step.total > 1e6
        ? trans.__('weights, %1 of %2', ...formatBytesOf(step.done, step.total))
        : trans.__('weights');
    case 'kv':
      return trans.__('KV slots');
    case 'graphs':
      return trans.__('CUDA graphs, %1 of %2', step?.done ?? 0, step?.total ?? 0);
    default:
      return name;
  }
}
