// Why a prompt was not reused further: the words for a Match of the engine (ui.md §5). Pure. The cause is the engine's.

import { count, seconds } from "./format.js";
import { nameOf } from "./history.js";
import { trans } from "./trans.js";

export const POLICIES = {
  lru: () => trans.__("least recently used"),
  lfu: () => trans.__("least frequently used"),
  fifo: () => trans.__("first in, first out"),
  slru: () => trans.__("used once, least recently"),
  priority: () => trans.__("lowest priority"),
};
export const EQUAL_AGAIN = 8; // so many equal tokens behind a difference make it a change, not new text

/**
 * `{word, sentences, advice}` for the record of a request (History.prompts).
 * `find(rid)` gives another request's record, `stepAt(time)` a step number or 0; `from`: the cell of the nearest path.
 */
export function reasonOf(record, { find = () => null, stepAt = () => 0, from = "", pageSize = 1 } = {}) {
  const match = record.match ?? { cause: "short", matched: 0 };
  const reason = causeOf(record, match, stepAt, find, from, pageSize);
  if (match.waited_for) {
    const leader = nameOf(find(match.waited_for) ?? { rid: match.waited_for });
    const waited = seconds(match.waited ?? 0);
    reason.word = trans.__("%1, waited %2 for %3", reason.word, waited, leader);
    reason.sentences.unshift(trans.__("The same prefix was being computed. It waited %1, then reused %2.", waited, count(match.matched ?? 0)));
  }
  if (record.twice) {
    reason.word = trans.__("%1, computed twice", reason.word);
    reason.sentences.push(trans.__("Both computed it; one copy was freed."));
  }
  return reason;
}

/** Where two texts that part at once are equal again up to the end of the shorter one: a place in each; null: nowhere. */
export function equalAgain(prompt, cached) {
  for (let sum = 1; sum < prompt.length + cached.length; sum++) {
    for (let i = Math.max(0, sum - cached.length); i <= Math.min(sum, prompt.length); i++) {
      const rest = Math.min(prompt.length - i, cached.length - sum + i);
      if (rest >= EQUAL_AGAIN && prompt.slice(i, i + rest) === cached.slice(sum - i, sum - i + rest)) return [i, sum - i];
    }
  }
  return null;
}

/** The same for one turn of a request that was sent back and came again: its own match, told at that time. */
export function reasonOfTurn(record, turn, about = {}) {
  return reasonOf({ ...record, match: turn.match, admitted: turn.from, twice: 0 }, about);
}

function causeOf(record, match, stepAt, find, from, pageSize) {
  const matched = match.matched ?? 0;
  const left = Math.max(0, record.prompt - matched);
  switch (match.cause) {
    case "hit":
      return { word: trans.__("last token"), sentences: [trans.__("The last token of a prompt is always computed.")], advice: "" };
    case "diverged":
      if ((match.equal_again ?? 0) < EQUAL_AGAIN) break;
      return {
        word: trans.__("changed at token %1", count((match.diverged_at ?? matched) + 1)),
        sentences: [
          differWords(matched, record.prompt, from),
          trans.__("After the difference %1 tokens are equal again, but a prefix cache cannot reuse them.", count(match.equal_again)),
        ],
        advice: trans.__("Put text that changes (times, ids, names) after text that stays."),
      };
    case "evicted":
      return {
        word: match.gone_at && record.admitted ? trans.__("evicted %1 before", seconds(record.admitted - match.gone_at)) : trans.__("evicted"),
        sentences: [evictedWords(match, match.gone_tokens || left, stepAt, find)],
        advice: trans.__("Enlarge the cache, or pin the prefix."),
      };
    case "flushed":
      return { word: trans.__("flushed"), sentences: [trans.__("The rest was cached until the cache was flushed.")], advice: "" };
    case "disabled":
      return { word: trans.__("cache off"), sentences: [trans.__("The engine keeps no prefix cache.")], advice: "" };
    case "page": {
      const lost = match.half_page || left;
      return {
        word: trans.__("page of %1", count(pageSize)),
        sentences: [trans._n("%2 token does not fill a page.", "%2 tokens do not fill a page.", lost, count(lost))],
        advice: "",
      };
    }
    case "logprobs":
      return {
        word: trans.__("logprobs from token %1", count(matched)),
        sentences: [trans.__("Prompt logprobs were asked for; from there on nothing can be reused.")],
        advice: trans.__("Ask for them only where needed."),
      };
    case "namespace":
      return { word: trans.__("other name space"), sentences: [trans.__("Cached under another cache salt or adapter.")], advice: "" };
    case "retokenized":
      return {
        word: trans.__("tokens differ, text equal"),
        sentences: [trans.__("Same text, cut into other tokens at the join of two parts.")],
        advice: trans.__("Do not end a part with a space."),
      };
  }
  return { word: trans.__("new text"), sentences: [trans.__("Nothing after token %1 was ever computed.", count(matched))], advice: "" };
}

/** Where a prompt parts from the nearest cached path; `from`: that one's cell, or "". */
function differWords(matched, prompt, from) {
  if (!matched) {
    return from
      ? trans.__("It differs from the nearest cached path, from cell [%1], from its first token on.", from)
      : trans.__("It differs from the nearest cached path from its first token on.");
  }
  const [same, all] = [count(matched), count(prompt)];
  return from
    ? trans.__("It is the same as the nearest cached path, from cell [%3], up to token %1 of %2. Then they differ.", same, all, from)
    : trans.__("It is the same as the nearest cached path up to token %1 of %2. Then they differ.", same, all);
}

/** When, for whom and under which policy `tokens` tokens went, as far as that is known. */
function evictedWords(match, tokens, stepAt, find) {
  const step = match.gone_at ? stepAt(match.gone_at) : 0;
  const whom = match.gone_for ? nameOf(find(match.gone_for) ?? { rid: match.gone_for }) : "";
  const policy = POLICIES[match.gone_policy] ? ` (${POLICIES[match.gone_policy]()})` : "";
  const [number, at] = [count(tokens), count(step)];
  if (step && whom) return trans._n("%2 token was cached and evicted at step %3 for %4%5.", "%2 tokens were cached and evicted at step %3 for %4%5.", tokens, number, at, whom, policy);
  if (step) return trans._n("%2 token was cached and evicted at step %3%4.", "%2 tokens were cached and evicted at step %3%4.", tokens, number, at, policy);
  if (whom) return trans._n("%2 token was cached and evicted for %3%4.", "%2 tokens were cached and evicted for %3%4.", tokens, number, whom, policy);
  return trans._n("%2 token was cached and evicted%3.", "%2 tokens were cached and evicted%3.", tokens, number, policy);
}
