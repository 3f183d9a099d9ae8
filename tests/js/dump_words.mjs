// What the page says of causes and decisions, as JSON, with the events it read: tests/unit/test_reasons.py compares it with the
// static form's words. Run by that test.

import { reasonOf } from "../../sgnb/widgets/static/causes.js";
import { Store } from "../../sgnb/widgets/static/store.js";
import { decisionsOf, plain } from "../../sgnb/widgets/static/timeline_words.js";
import { Script } from "./scenario.mjs";
import { batch } from "./timeline_scenario.mjs";

const CAUSES = [
  { cause: "short", matched: 12 },
  { cause: "cold", matched: 0 },
  { cause: "hit", matched: 39 },
  { cause: "diverged", matched: 12, diverged_at: 12, equal_again: 2 },
  { cause: "diverged", matched: 12, diverged_at: 12, equal_again: 1024 },
  { cause: "diverged", matched: 0, diverged_at: 0, equal_again: 23 },
  { cause: "evicted", matched: 12, gone_at: 1000.5, gone_for: "r0", gone_tokens: 1, gone_policy: "lru" },
  { cause: "evicted", matched: 12 },
  { cause: "page", matched: 12, half_page: 7 },
  { cause: "logprobs", matched: 12 },
  { cause: "namespace", matched: 0 },
  { cause: "retokenized", matched: 20 },
  { cause: "flushed", matched: 20 },
  { cause: "disabled", matched: 0 },
  { cause: "short", matched: 12, waited_for: "r1", waited: 0.031 },
];
const NOTES = [
  ["admitted", "fits"], ["deferred", "leader"], ["deferred", "kv"], ["deferred", "rows"], ["deferred", "chunk"], ["deferred", "input"],
  ["deferred", "grammar"], ["deferred", "something new"], ["retracted", "kv_full"], ["suspended", "priority"], ["suspended", "quantum"],
  ["suspended", "memory"], ["joined", "copied"], ["recomputed", "join"],
];

/** Every cause, every note under every policy, requests that come back, and more names than a sentence has room for. */
function every() {
  const script = new Script();
  const names = CAUSES.map((_, i) => `r${i}`);
  names.forEach((rid, i) => script.request(rid, String(i), i % 2 ? "1" : "", "x", 40));
  script.pass([]);
  names.forEach((rid, i) => script.later(0.1).admit(rid, String(i), i % 2 ? "1" : "", "x", 40, { node: 0, ...CAUSES[i] }));
  script.state("r2", "2", "", "x", "first_token", { duplicate_tokens: 30 });
  script.state("r4", "4", "", "x", "retracted", { reason: "kv_full" });
  script.put({ t: "request", rid: "r4", client: 1, label: { cell: "4", branch: "", name: "x" }, state: "admitted", prompt_tokens: 40, cached_tokens: 12, match: { node: 0, ...CAUSES[6] } });
  script.state("r6", "6", "", "x", "compiling", { reason: "compiling grammar" });
  script.later(2);
  for (const policy of ["lpm", "fcfs", "lof", "dfs-weight", "random", "priority"]) {
    script.put({ t: "knob", step: script.step + 1, objective: "", knobs: { schedule_policy: policy, enable_mixed_chunk: policy === "lpm", chunked_prefill_size: null } });
    for (const [what, reason] of NOTES) {
      const about = { what, reason, unit: reason === "chunk" ? "tokens" : "slots", needs: 1200, has: 1, leader: reason === "leader" ? "r3" : "" };
      script.pass([], { notes: [...names, "a stranger"].map(rid => ({ rid, ...about })) });
      script.later(0.1);
    }
  }
  return script;
}

function told(script) {
  const store = new Store("test/words");
  store.load(script.picture);
  if (!store.feedEvents(script.events, { time: script.time })) throw new Error("no engine tells this");
  const { history } = store;
  const stepAt = time => history.steps[store.stepIndexAt(time)]?.step ?? 0;
  const find = rid => history.requests.get(rid) ?? null;
  return {
    picture: script.picture,
    events: script.events,
    decisions: history.steps.map(step => [step.step, decisionsOf(step, history, { before: step.time - 1e-9 }).map(plain).filter(words => !words.startsWith("Evicted"))]),
    reasons: history.prompts.map(record => [record.rid, reasonOf(record, { find, stepAt })]),
  };
}

process.stdout.write(JSON.stringify([told(every()), told(batch())]));
