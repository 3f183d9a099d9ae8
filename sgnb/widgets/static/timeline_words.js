// Words of the batch timeline: why a request waits, what was decided before a step (ui.md §6). Pure: records in, text out.
//
// A sentence is a list of parts: text, or {name} for a request, which is drawn in bold; `plain` makes one text of it.

import { POLICIES as EVICTIONS, reasonOfTurn } from "./causes.js";
import { nameOf } from "./fold.js";
import { count, plural, seconds } from "./format.js";

const ORDERS = {
  lpm: "longest cached prefix",
  fcfs: "first come",
  lof: "most new tokens allowed",
  "dfs-weight": "its branch has most waiting",
  random: "drawn at random",
  priority: "highest priority",
};
const SENT_BACK = { kv_full: "retracted", priority: "made way for a higher priority", quantum: "its time slice is over", memory: "its step ran out of memory" };
const SUSPENDED = { priority: "a request of higher priority came", quantum: SENT_BACK.quantum, memory: "its step ran out of memory and is tried again in parts" };
const AHEAD = {
  grammar: "a grammar's mask depends on the token before",
  penalty: "a penalty depends on the token before",
  scores: "the scores of options decide what follows",
  slots: "slots are so short that an end would make room",
  nothing: "nothing could be planned before",
};
const FAILED = { memory: "ran out of memory; its requests are tried again in smaller steps", skipped: "was not computed: the step before it failed", error: "failed, and its requests with it" };
const ENDS = { stop: "finished", length: "finished", eos: "finished", grammar: "finished", context: "finished, context full", abort: "aborted" };

/** `15.0`: the place of a request, or its whole name when it has none. */
export function placeOf(record) {
  const { cell = "", branch = "" } = record?.label ?? {};
  return cell && branch ? `${cell}.${branch}` : cell || nameOf(record);
}

/** How a request ended: `finished`, `aborted`, else `failed`. */
export function endWord(reason) {
  return ENDS[reason] ?? "failed";
}

/** What a lane says while it waits; `find(rid)` gives a record. */
export function waitWords({ wait, why }, find) {
  if (why && (!wait || wait.reason !== "kv")) return SENT_BACK[why] ?? why;
  if (!wait) return "";
  const numbers = `needs ${count(wait.needs)}, has ${count(wait.has)}`;
  switch (wait.reason) {
    case "grammar":
      return "compiling grammar";
    case "leader":
      return `same prefix as ${placeOf(find(wait.leader) ?? { rid: wait.leader })}`;
    case "kv":
      return `${why ? "retracted, " : ""}short of KV: ${numbers}`;
    case "rows":
      return "no row is free";
    case "chunk":
      return "the step's chunk is full";
    case "input":
      return `too much input: ${numbers}`;
    default:
      return wait.reason;
  }
}

/** The same where there is little room; "" when it has no short form. */
export function shortWords({ wait, why }) {
  if (why) return why === "kv_full" ? "retracted" : "";
  return { kv: "short of KV", input: "too much input", grammar: "grammar", chunk: "chunk is full" }[wait?.reason] ?? "";
}

/** The policy that held at a step; "" where it is not known. */
export function policyAt(history, step) {
  let policy = history.firstPolicy;
  for (const { step: from, knobs } of history.knobs) if (from <= step && knobs.schedule_policy !== undefined) policy = knobs.schedule_policy;
  return policy;
}

/** `Policy is now fcfs`: what a KnobEvent changed. */
export function knobWords(event) {
  return Object.entries(event.knobs).map(([name, value]) => {
    if (name === "schedule_policy") return `Policy is now ${value}`;
    if (name === "objective") return `Objective is now ${value}`;
    const words = value === true ? "on" : value === false ? "off" : value === null ? "none" : String(value);
    return `${name} is now ${words}`;
  });
}

/** What was decided before a step, in sentences, in the order in which it was. */
export function decisionsOf(event, history, { before = 0 } = {}) {
  const find = rid => history.requests.get(rid) ?? { rid };
  const out = [];
  for (const knob of history.knobs) {
    if (knob.step === event.step) for (const words of knobWords(knob)) out.push([`${words}.`]);
  }
  const groups = new Map();
  for (const note of event.notes ?? []) {
    if (note.what === "evicted") continue; // told below, with the nodes
    const { verb, words } = noteWords(note, event, find, policyAt(history, event.step));
    const key = `${verb}\n${words}`;
    if (!groups.has(key)) groups.set(key, { verb, words, rids: [] });
    groups.get(key).rids.push(note.rid);
  }
  const order = ["Admitted", "Joined", "Computed anew", "Not admitted", "Suspended", "Retracted"];
  for (const verb of order) {
    for (const group of groups.values()) {
      if (group.verb === verb) out.push([`${verb} `, ...listed(group.rids.map(rid => placeOf(find(rid)))), `: ${group.words}.`]);
    }
  }
  const { marks } = history; // in order of time
  for (let at = firstAfter(marks, before); at < marks.length && marks[at].time <= event.time; at++) {
    const mark = marks[at];
    if (mark.kind !== "evict") continue;
    const policy = EVICTIONS[mark.policy] ? ` (${EVICTIONS[mark.policy]})` : "";
    const whom = mark.rid ? [" for ", { name: placeOf(find(mark.rid)) }] : [];
    out.push([`Evicted ${plural(mark.tokens, "token")} in ${plural(mark.nodes, "node")}`, ...whom, `${policy}.`]);
  }
  return out;
}

function firstAfter(marks, time) {
  let low = 0;
  let high = marks.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (marks[middle].time <= time) low = middle + 1;
    else high = middle;
  }
  return low;
}

function noteWords(note, event, find, policy) {
  const { needs = 0, has = 0, unit = "slots" } = note;
  const record = find(note.rid);
  const lack = `needs ${count(needs)} ${unit}, has ${count(has)}`;
  if (note.what === "admitted") {
    const turns = (record.turns ?? []).filter(turn => turn.from <= event.time);
    const again = turns.length > 1 ? turns.at(-1) : null;
    const known = ORDERS[policy];
    if (again?.match) return { verb: "Admitted", words: `${known ? `${known}, ` : ""}resumed, ${againWords(record, again, find)}` };
    const matched = record.match?.matched;
    if (again || matched === undefined) return { verb: "Admitted", words: `${known ? `${known}, ` : ""}${plural(needs, "token")} to compute` };
    const share = `${count(matched)} of ${count(record.prompt)}`;
    if (policy === "lpm" && matched) return { verb: "Admitted", words: `${known}, ${share}` };
    return { verb: "Admitted", words: `${known ? `${known}, ` : ""}${share} cached` };
  }
  if (note.what === "retracted") return { verb: "Retracted", words: `short of KV, decoding needs ${count(needs)} ${unit}, has ${count(has)}` };
  if (note.what === "suspended") {
    const why = SUSPENDED[note.reason] ?? note.reason;
    return { verb: "Suspended", words: `${why}, its ${plural(has, "slot")} can be evicted` };
  }
  if (note.what === "joined") return { verb: "Joined", words: `${count(has)} of ${plural(needs, "token")} copied from its branches` };
  if (note.what === "recomputed") return { verb: "Computed anew", words: `${plural(needs, "copied token was", "copied tokens were")} evicted` };
  const verb = "Not admitted";
  switch (note.reason) {
    case "grammar": {
      const since = record.compiling || record.queued;
      return { verb, words: `its grammar is compiling${since ? `, ${seconds(Math.max(0, event.time - since))} so far` : ""}` };
    }
    case "leader":
      return { verb, words: `${placeOf(find(note.leader))} is computing the same prefix` };
    case "kv":
      return { verb, words: `short of KV, ${lack}` };
    case "rows":
      return { verb, words: "no row is free, as many requests run as may" };
    case "chunk":
      return { verb, words: `the step's chunk is full, ${lack}` };
    case "input":
      return { verb, words: `too much input for one step, ${lack}` };
    default:
      return { verb, words: note.reason };
  }
}

/** What was still cached when a retracted request came back: its prompt and what it had said. */
function againWords(record, turn, find) {
  const reason = reasonOfTurn(record, turn, { find });
  const cached = `${plural(turn.match.matched ?? 0, "token")} still cached`;
  return turn.match.cause === "hit" ? cached : `${cached}, the rest was ${reason.word}`;
}

function listed(names) {
  const shown = names.length > 6 ? [...names.slice(0, 5), null] : names;
  return shown.flatMap((name, i) => {
    const part = name === null ? `${count(names.length - 5)} more` : { name };
    if (i === 0) return [part];
    return [i === shown.length - 1 ? " and " : ", ", part];
  });
}

/** A sentence as one text. */
export function plain(parts) {
  return parts.map(part => (typeof part === "string" ? part : part.name)).join("");
}

/** `41 decode, 11 mixed, 1 extend step`. */
export function modesWords(modes) {
  const parts = ["decode", "mixed", "extend", "score"].filter(mode => modes[mode]).map(mode => `${count(modes[mode])} ${mode}`);
  if (!parts.length) return "no step";
  const sum = Object.values(modes).reduce((a, b) => a + b, 0);
  return `${parts.join(", ")} ${sum === 1 || (parts.at(-1).startsWith("1 ") && parts.length > 1) ? "step" : "steps"}`;
}

/** Facts of a step: `8 requests, 246 tokens, 17.1 ms`. */
export function stepWords(step) {
  return `${plural(step.requests, "request")}, ${plural(step.prefill + step.decode, "token")}, ${seconds(step.sampled - step.from, true)}`;
}

/** What a row of a step did: kind and numbers, as the batch table has them. */
export function rowWords(row, record) {
  if (row.kind === "decode") {
    const token = row.prefix + 1 - (record?.prompt ?? 0);
    return ["decode", record?.prompt && token > 0 ? `token ${count(token)}` : plural(row.tokens, "token")];
  }
  const reused = record?.match && row.prefix === record.match.matched;
  const before = row.prefix ? `, ${count(row.prefix)} ${reused ? "reused" : "before"}` : "";
  return [row.kind, `${count(row.tokens)} ${row.kind === "score" ? "scored" : "new"}${before}`];
}

/** Why a step was not planned while the one before was computed, though steps overlap; "" when it was, or none was. */
export function aheadWords(event) {
  const why = AHEAD[event.no_overlap];
  return why ? `Not planned ahead: ${why}.` : "";
}

/** What became of a step that gave no result; "" for all others. */
export function failedWords(event) {
  const how = FAILED[event.failed];
  return how ? `The step ${how}.` : "";
}
