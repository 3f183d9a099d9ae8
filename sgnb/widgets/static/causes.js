// Why a prompt was not reused further: the words for a Match of the engine (ui.md §5). Pure. The cause is the engine's.

import { nameOf } from "./fold.js";
import { count, plural, seconds } from "./format.js";

export const POLICIES = {
  lru: "least recently used",
  lfu: "least frequently used",
  fifo: "first in, first out",
  slru: "used once, least recently",
  priority: "lowest priority",
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
    reason.word = `${reason.word}, waited ${seconds(match.waited ?? 0)} for ${leader}`;
    reason.sentences.unshift(`The same prefix was being computed. It waited ${seconds(match.waited ?? 0)}, then reused ${count(match.matched ?? 0)}.`);
  }
  if (record.twice) {
    reason.word = `${reason.word}, computed twice`;
    reason.sentences.push("Both computed it; one copy was freed.");
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
      return { word: "last token", sentences: ["The last token of a prompt is always computed."], advice: "" };
    case "diverged":
      if ((match.equal_again ?? 0) < EQUAL_AGAIN) break;
      return {
        word: `changed at token ${count((match.diverged_at ?? matched) + 1)}`,
        sentences: [
          matched
            ? `It is the same as the nearest cached path${from ? `, from cell [${from}],` : ""} up to token ${count(matched)} of ${count(record.prompt)}. Then they differ.`
            : `It differs from the nearest cached path${from ? `, from cell [${from}],` : ""} from its first token on.`,
          `After the difference ${count(match.equal_again)} tokens are equal again, but a prefix cache cannot reuse them.`,
        ],
        advice: "Put text that changes (times, ids, names) after text that stays.",
      };
    case "evicted": {
      const step = match.gone_at ? stepAt(match.gone_at) : 0;
      const whom = match.gone_for ? ` for ${nameOf(find(match.gone_for) ?? { rid: match.gone_for })}` : "";
      const policy = POLICIES[match.gone_policy] ? ` (${POLICIES[match.gone_policy]})` : "";
      const ago = match.gone_at && record.admitted ? ` ${seconds(record.admitted - match.gone_at)} before` : "";
      return {
        word: `evicted${ago}`,
        sentences: [`${plural(match.gone_tokens || left, "token was", "tokens were")} cached and evicted${step ? ` at step ${count(step)}` : ""}${whom}${policy}.`],
        advice: "Enlarge the cache, or pin the prefix.",
      };
    }
    case "flushed":
      return { word: "flushed", sentences: ["The rest was cached until the cache was flushed."], advice: "" };
    case "disabled":
      return { word: "cache off", sentences: ["The engine keeps no prefix cache."], advice: "" };
    case "page":
      return {
        word: `page of ${count(pageSize)}`,
        sentences: [`${plural(match.half_page || left, "token does", "tokens do")} not fill a page.`],
        advice: "",
      };
    case "logprobs":
      return {
        word: `logprobs from token ${count(matched)}`,
        sentences: ["Prompt logprobs were asked for; from there on nothing can be reused."],
        advice: "Ask for them only where needed.",
      };
    case "namespace":
      return { word: "other name space", sentences: ["Cached under another cache salt or adapter."], advice: "" };
    case "retokenized":
      return {
        word: "tokens differ, text equal",
        sentences: ["Same text, cut into other tokens at the join of two parts."],
        advice: "Do not end a part with a space.",
      };
  }
  return { word: "new text", sentences: [`Nothing after token ${count(matched)} was ever computed.`], advice: "" };
}
