// Words of the batch timeline: why a request waits, what was decided before a step (ui.md §6). Pure: records in, text out.
//
// A sentence is a list of parts: text, or {name} for a request, which is drawn in bold; `plain` makes one text of it.

import { POLICIES as EVICTIONS, reasonOfTurn } from "./causes.js";
import { count, counted, seconds } from "./format.js";
import { nameOf } from "./history.js";
import { parts, PLACES, trans } from "./trans.js";

const ORDERS = {
  lpm: () => trans.__("longest cached prefix"),
  fcfs: () => trans.__("first come"),
  lof: () => trans.__("most new tokens allowed"),
  "dfs-weight": () => trans.__("its branch has most waiting"),
  random: () => trans.__("drawn at random"),
  priority: () => trans.__("highest priority"),
};
const sliceOver = () => trans.__("its time slice is over");
const SENT_BACK = {
  kv_full: () => trans.__("retracted"),
  priority: () => trans.__("made way for a higher priority"),
  quantum: sliceOver,
  memory: () => trans.__("its step ran out of memory"),
};
const SUSPENDED = {
  priority: () => trans.__("a request of higher priority came"),
  quantum: sliceOver,
  memory: () => trans.__("its step ran out of memory and is tried again in parts"),
};
const AHEAD = {
  grammar: () => trans.__("Not planned ahead: a grammar's mask depends on the token before."),
  penalty: () => trans.__("Not planned ahead: a penalty depends on the token before."),
  scores: () => trans.__("Not planned ahead: the scores of options decide what follows."),
  slots: () => trans.__("Not planned ahead: slots are so short that an end would make room."),
  nothing: () => trans.__("Not planned ahead: nothing could be planned before."),
};
const FAILED = {
  memory: () => trans.__("The step ran out of memory; its requests are tried again in smaller steps."),
  skipped: () => trans.__("The step was not computed: the step before it failed."),
  error: () => trans.__("The step failed, and its requests with it."),
};
const ENDS = { stop: "finished", length: "finished", eos: "finished", grammar: "finished", context: "finished", abort: "aborted" };
const MODES = {
  decode: () => trans.__("decode"),
  mixed: () => trans.__("mixed"),
  extend: () => trans.__("extend"),
  score: () => trans.__("score"),
  prefill: () => trans.__("prefill"),
};
const STATES = {
  queued: () => trans.__("queued"),
  compiling: () => trans.__("compiling"),
  compiled: () => trans.__("compiled"),
  admitted: () => trans.__("prefill"),
  first_token: () => trans.__("decode"),
  retracted: () => trans.__("retracted"),
};

/** What a step does, and what a row of it does. */
export function modeWord(mode) {
  return MODES[mode]?.() ?? mode;
}

/** The state of a request that has not ended. */
export function stateWord(state) {
  return STATES[state]?.() ?? state ?? trans.__("unknown");
}

/** `15.0`: the place of a request, or its whole name when it has none. */
export function placeOf(record) {
  const { cell = "", branch = "" } = record?.label ?? {};
  return cell && branch ? `${cell}.${branch}` : cell || nameOf(record);
}

/** How a request ended: "finished", "aborted" or "failed"; for what is drawn, not shown. */
export function endKind(reason) {
  return ENDS[reason] ?? "failed";
}

/** The same in words. */
export function endWord(reason) {
  if (reason === "context") return trans.__("finished, context full");
  const kind = endKind(reason);
  return kind === "finished" ? trans.__("finished") : kind === "aborted" ? trans.__("aborted") : trans.__("failed");
}

const REASONS = {
  stop: () => trans.__("stop"),
  eos: () => trans.__("end of text"),
  length: () => trans.__("token limit"),
  grammar: () => trans.__("grammar complete"),
};

/** Why a request ended, where that is more than how; "" where it is not. */
export function endReason(reason) {
  return REASONS[reason]?.() ?? (ENDS[reason] ? "" : (reason ?? ""));
}

/** What a lane says while it waits; `find(rid)` gives a record. */
export function waitWords({ wait, why }, find) {
  if (why && (!wait || wait.reason !== "kv")) return SENT_BACK[why]?.() ?? why;
  if (!wait) return "";
  const { needs, has } = wait;
  switch (wait.reason) {
    case "grammar":
      return trans.__("compiling grammar");
    case "leader":
      return trans.__("same prefix as %1", placeOf(find(wait.leader) ?? { rid: wait.leader }));
    case "kv":
      return why ? trans.__("retracted, short of KV: needs %1, has %2", count(needs), count(has)) : trans.__("short of KV: needs %1, has %2", count(needs), count(has));
    case "rows":
      return trans.__("no row is free");
    case "chunk":
      return trans.__("the step's chunk is full");
    case "input":
      return trans.__("too much input: needs %1, has %2", count(needs), count(has));
    default:
      return wait.reason;
  }
}

/** The same where a request's own story is told, which says already that it was retracted. */
export function waitReason(wait, find) {
  return wait.why === "kv_full" && wait.wait?.reason !== "kv" ? "" : waitWords(wait, find);
}

const SHORT = {
  kv: () => trans.__("short of KV"),
  input: () => trans.__("too much input"),
  grammar: () => trans.__("grammar"),
  chunk: () => trans.__("chunk is full"),
};

/** The same where there is little room; "" when it has no short form. */
export function shortWords({ wait, why }) {
  if (why) return why === "kv_full" ? SENT_BACK.kv_full() : "";
  return SHORT[wait?.reason]?.() ?? "";
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
    if (name === "schedule_policy") return trans.__("Policy is now %1", value);
    if (name === "objective") return trans.__("Objective is now %1", value);
    if (value === true) return trans.__("%1 is now on", name);
    if (value === false) return trans.__("%1 is now off", name);
    return value === null ? trans.__("%1 is now none", name) : trans.__("%1 is now %2", name, value);
  });
}

/** Decisions by what they are, in the order in which they are told; %1: names, %2: why. */
const DECIDED = {
  admitted: () => trans.__("Admitted %1: %2.", ...PLACES),
  joined: () => trans.__("Joined %1: %2.", ...PLACES),
  recomputed: () => trans.__("Computed anew %1: %2.", ...PLACES),
  deferred: () => trans.__("Not admitted %1: %2.", ...PLACES),
  suspended: () => trans.__("Suspended %1: %2.", ...PLACES),
  retracted: () => trans.__("Retracted %1: %2.", ...PLACES),
};

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
    const what = DECIDED[note.what] ? note.what : "deferred";
    const words = noteWords(note, event, find, policyAt(history, event.step));
    const key = `${what}\n${words}`;
    if (!groups.has(key)) groups.set(key, { what, words, rids: [] });
    groups.get(key).rids.push(note.rid);
  }
  for (const [what, template] of Object.entries(DECIDED)) {
    for (const group of groups.values()) {
      if (group.what === what) out.push(parts(template(), listed(group.rids.map(rid => placeOf(find(rid)))), group.words));
    }
  }
  const { marks } = history; // in order of time
  for (let at = firstAfter(marks, before); at < marks.length && marks[at].time <= event.time; at++) {
    const mark = marks[at];
    if (mark.kind !== "evict") continue;
    const policy = EVICTIONS[mark.policy] ? ` (${EVICTIONS[mark.policy]()})` : "";
    const template = mark.rid ? trans.__("Evicted %1 in %2 for %4%3.", ...PLACES) : trans.__("Evicted %1 in %2%3.", ...PLACES);
    out.push(parts(template, counted.tokens(mark.tokens), counted.nodes(mark.nodes), policy, { name: placeOf(find(mark.rid)) }));
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
  switch (note.what) {
    case "admitted":
      return admittedWords(note, event, find, policy);
    case "retracted":
      return trans.__("short of KV, decoding %1", lackWords(needs, has, unit));
    case "suspended":
      return trans._n("%3, its %2 slot can be evicted", "%3, its %2 slots can be evicted", has, count(has), SUSPENDED[note.reason]?.() ?? note.reason);
    case "joined":
      return trans._n("%3 of %2 token copied from its branches", "%3 of %2 tokens copied from its branches", needs, count(needs), count(has));
    case "recomputed":
      return trans._n("%2 copied token was evicted", "%2 copied tokens were evicted", needs, count(needs));
  }
  switch (note.reason) {
    case "grammar": {
      const record = find(note.rid);
      const since = record.compiling || record.queued;
      return since ? trans.__("its grammar is compiling, %1 so far", seconds(Math.max(0, event.time - since))) : trans.__("its grammar is compiling");
    }
    case "leader":
      return trans.__("%1 is computing the same prefix", placeOf(find(note.leader)));
    case "kv":
      return trans.__("short of KV, %1", lackWords(needs, has, unit));
    case "rows":
      return trans.__("no row is free, as many requests run as may");
    case "chunk":
      return trans.__("the step's chunk is full, %1", lackWords(needs, has, unit));
    case "input":
      return trans.__("too much input for one step, %1", lackWords(needs, has, unit));
    default:
      return note.reason;
  }
}

function lackWords(needs, has, unit) {
  if (unit === "slots") return trans.__("needs %1 slots, has %2", count(needs), count(has));
  if (unit === "tokens") return trans.__("needs %1 tokens, has %2", count(needs), count(has));
  return trans.__("needs %1 %3, has %2", count(needs), count(has), unit);
}

/** Why it came first under the policy, and how much of its prompt is cached. */
function admittedWords({ rid, needs = 0 }, event, find, policy) {
  const record = find(rid);
  const turns = (record.turns ?? []).filter(turn => turn.from <= event.time);
  const again = turns.length > 1 ? turns.at(-1) : null;
  const matched = record.match?.matched;
  const known = ORDERS[policy] ? [ORDERS[policy]()] : [];
  const told = what => [...known, what].join(", ");
  if (again?.match) return told(trans.__("resumed, %1", againWords(record, again, find)));
  if (again || matched === undefined) return told(trans._n("%2 token to compute", "%2 tokens to compute", needs, count(needs)));
  const [part, whole] = [count(matched), count(record.prompt)];
  return told(policy === "lpm" && matched ? trans.__("%1 of %2", part, whole) : trans.__("%1 of %2 cached", part, whole));
}

/** What was still cached when a retracted request came back: its prompt and what it had said. */
function againWords(record, turn, find) {
  const cached = turn.match.matched ?? 0;
  if (turn.match.cause === "hit") return trans._n("%2 token still cached", "%2 tokens still cached", cached, count(cached));
  const { word } = reasonOfTurn(record, turn, { find });
  return trans._n("%2 token still cached, the rest was %3", "%2 tokens still cached, the rest was %3", cached, count(cached), word);
}

/** `12.1, 12.2 and 12.3`, as parts. */
function listed(names) {
  const shown = names.length > 6 ? names.slice(0, 5) : names;
  const rest = names.length - shown.length;
  const last = rest ? trans.__("%1 more", count(rest)) : { name: shown.at(-1) };
  const first = rest ? shown : shown.slice(0, -1);
  if (!first.length) return [last];
  return parts(trans.__("%1 and %2", ...PLACES), first.flatMap((name, i) => (i ? [", ", { name }] : [{ name }])), last);
}

/** A sentence as one text. */
export function plain(parts) {
  return parts.map(part => (typeof part === "string" ? part : part.name)).join("");
}

/** `41 decode, 11 mixed, 1 extend step`. */
export function modesWords(modes) {
  const shown = ["decode", "mixed", "extend", "score"].filter(mode => modes[mode]);
  if (!shown.length) return trans.__("no step");
  const list = shown.map(mode => `${count(modes[mode])} ${modeWord(mode)}`).join(", ");
  return trans._n("%2 step", "%2 steps", modes[shown.at(-1)], list);
}

/** Facts of a step: `8 requests, 246 tokens, 17.1 ms`. */
export function stepWords(step) {
  return [counted.requests(step.requests), counted.tokens(step.prefill + step.decode), seconds(step.sampled - step.from, true)].join(", ");
}

/** What a row of a step did: kind and numbers, as the batch table has them. */
export function rowWords(row, record) {
  const kind = modeWord(row.kind);
  if (row.kind === "decode") {
    const token = row.prefix + 1 - (record?.prompt ?? 0);
    return [kind, record?.prompt && token > 0 ? trans.__("token %1", count(token)) : counted.tokens(row.tokens)];
  }
  const words = [row.kind === "score" ? trans.__("%1 scored", count(row.tokens)) : trans.__("%1 new", count(row.tokens))];
  const reused = record?.match && row.prefix === record.match.matched;
  if (row.prefix) words.push(reused ? trans.__("%1 reused", count(row.prefix)) : trans.__("%1 before", count(row.prefix)));
  return [kind, words.join(", ")];
}

/** Why a step was not planned while the one before was computed, though steps overlap; "" when it was, or none was. */
export function aheadWords(event) {
  return AHEAD[event.no_overlap]?.() ?? "";
}

/** What became of a step that gave no result; "" for all others. */
export function failedWords(event) {
  return FAILED[event.failed]?.() ?? "";
}
