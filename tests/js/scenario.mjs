// An engine that is a script: a small tree, slots, requests and steps, told as the real one tells them. For tests.

export class Script {
  constructor({ slots = 16384, pageSize = 1, time = 1000 } = {}) {
    this.seq = 0;
    this.time = time;
    this.began = time;
    this.step = 0;
    this.events = [];
    this.pool = Array.from({ length: slots }, (_, slot) => slots - 1 - slot);
    this.slots = slots;
    this.pageSize = pageSize;
    this.nodes = new Map();
    this.ids = 1;
    this.runs = [];
    this.texts = {};
    this.partings = {};
    this.stats = { used: 0, cached: 0 };
  }

  /** The state before the first event, as the engine's answer to `picture`. */
  get picture() {
    return { seq: 0, time: this.began, step: 0, slots: this.slots, page_size: this.pageSize, nodes: [], runs: [], requests: [], past: [], next: [], settings: { schedule_policy: "lpm", chunked_prefill_size: 512, enable_mixed_chunk: true } };
  }

  put(event) {
    this.events.push({ seq: ++this.seq, event: { time: this.time, ...event } });
    return this;
  }

  later(seconds) {
    this.time += seconds;
    return this;
  }

  alloc(count) {
    return this.pool.splice(-count, count).reverse();
  }

  give(owner, slots, kind = "") {
    for (let i = 0; i < slots.length; ) {
      let end = i + 1;
      while (end < slots.length && slots[end] === slots[end - 1] + 1) end++;
      this.runs.push(["SlotRun", owner, slots[i], end - i, kind]);
      i = end;
    }
    return this;
  }

  flush() {
    if (this.runs.length) this.put({ t: "kv", step: this.step, runs: this.runs });
    this.runs = [];
    return this;
  }

  insert(parent, text, length, rid = "", slots = this.alloc(length)) {
    const id = ++this.ids;
    const above = this.nodes.get(parent);
    const node = { id, parent, start: above ? above.start + above.length : 0, length, slots };
    this.nodes.set(id, node);
    this.texts[id] = text;
    this.put({ t: "radix", kind: "insert", node: id, parent, start: node.start, length, for_rid: rid });
    this.give(`node:${id}`, slots);
    this.stats.cached += length;
    return id;
  }

  evict(id, rid, next = []) {
    const node = this.nodes.get(id);
    this.nodes.delete(id);
    this.put({ t: "radix", kind: "evict", node: id, parent: node.parent, start: node.start, length: node.length, for_rid: rid, policy: "lru", next });
    this.give("", node.slots);
    this.pool.push(...node.slots.reverse());
    this.stats.cached -= node.length;
  }

  lock(id, kind = "lock") {
    const node = this.nodes.get(id);
    this.put({ t: "radix", kind, node: id, parent: node.parent, start: node.start, length: node.length });
  }

  split(id, at, text, rest) {
    const node = this.nodes.get(id);
    const upper = ++this.ids;
    const made = { id: upper, parent: node.parent, start: node.start, length: at, slots: node.slots.splice(0, at) };
    this.nodes.set(upper, made);
    node.parent = upper;
    node.start += at;
    node.length -= at;
    this.texts[upper] = text;
    this.texts[id] = rest;
    this.put({ t: "radix", kind: "split", node: upper, parent: made.parent, start: made.start, length: at, child: id });
    this.give(`node:${upper}`, made.slots);
    return upper;
  }

  request(rid, cell, branch, name, prompt) {
    this.put({ t: "request", rid, client: 1, label: { cell, branch, name }, state: "queued", prompt_tokens: prompt });
    return this;
  }

  admit(rid, cell, branch, name, prompt, match) {
    this.put({ t: "request", rid, client: 1, label: { cell, branch, name }, state: "admitted", prompt_tokens: prompt, cached_tokens: match.matched, match });
    return this;
  }

  state(rid, cell, branch, name, state, more = {}) {
    this.put({ t: "request", rid, client: 1, label: { cell, branch, name }, state, ...more });
    return this;
  }

  pass(rows, more = {}) {
    this.step++;
    const mode = rows.every(row => row.kind === "decode") ? "decode" : rows.some(row => row.kind === "decode") ? "mixed" : "extend";
    this.put({ t: "step", step: this.step, mode, rows, schedule_seconds: 0.0011, forward_seconds: 0.0082, sample_seconds: 0.0005, process_seconds: 0.0004, ...more });
    for (const row of rows) {
      row.slots = this.alloc(row.tokens);
      this.give(row.rid, row.slots, row.kind);
    }
    return this.flush();
  }

  figures(used) {
    this.put({ t: "stats", num_running_reqs: 4, num_used_tokens: used, num_cached_tokens: this.stats.cached, num_free_tokens: this.slots - used - this.stats.cached, max_total_num_tokens: this.slots, token_usage: 0.5 });
    return this;
  }
}

/** The cast of the pictures: reviews of one diff, a batch of labels, prompts that changed. */
export function cast() {
  const s = new Script();
  const rules = s.insert(1, "system\nYou review pull requests for a Python web service. Be brief and concrete. Diff follows.", 312);
  s.insert(rules, "user `open` and `write` block the event loop: async handlers should use", 60);
  s.insert(rules, "user correctness (medium): `form[\"file\"]` raises KeyError when missing", 163);
  s.insert(rules, "user The handler trusts the client's file name", 58);
  const labels = s.insert(1, "Classify the issue title as bug, feature, question or other. Answer with one word. Title: ", 248);
  const leaves = [];
  for (let i = 0; i < 40; i++) {
    s.later(2).figures(600 + 20 * i);
    leaves.push(s.insert(labels, ` Worker pool ${i} never shrinks after a burst of requests`, 14 + (i % 9)));
  }
  for (let i = 0; i < 30; i++) {
    const top = s.insert(1, `Answer with Thought, Action and Observation steps. Question ${i}: who wrote it`, 60 + 3 * i);
    s.insert(top, ` Thought ${i}: I should look it up`, 40 + i);
    s.later(0.4);
  }
  s.flush();
  const old = s.insert(1, "system\nToday is 2026-11-29 10:40:52. You review pull requests for a Python web service.", 335, "c1.r8");
  s.flush().later(3);
  const upper = s.split(old, 17, "system\nToday is 2026-11-29 10:4", "0:52. You review pull requests for a Python web service.");
  s.request("c1.r9", "9", "", "system", 335).admit("c1.r9", "9", "", "system", 335, { matched: 17, node: upper, cause: "diverged", diverged_at: 17, equal_again: 314 });
  s.partings["c1.r9"] = { same: "system\nToday is 2026-11-29 10:4", prompt: "1:07. You review pull requests for a Python web service", cached: "0:52. You review pull requests for a Python web service", cached_node: old };
  const first = { rid: "c1.r9", kind: "prefill", tokens: 318, prefix: 17 };
  s.pass([first]);
  const now = s.insert(upper, "1:07. You review pull requests for a Python web service. Be brief and concrete.\n@@ -18,9 +18,13 @@ async def upload_avatar(request, user):\n- data = await", 318, "c1.r9", first.slots);
  s.flush();
  for (const [i, name] of ["correctness", "security", "style"].entries()) {
    const rid = `c1.r1${i}`;
    s.request(rid, "9", String(i), "finding", 363).admit(rid, "9", String(i), "finding", 363, { matched: 335, node: now, cause: "short" });
    s.state(rid, "9", String(i), "finding", "first_token");
    const leaf = s.insert(now, `user\nReview the diff above for ${name} only. Name the worst problem and how to fix it.`, 28, rid);
    s.lock(leaf);
  }
  const label = { matched: 248, node: labels, cause: "short", waited_for: "c1.r20", waited: 0.031 };
  for (let i = 0; i < 4; i++) {
    const rid = `c1.r2${i}`;
    s.request(rid, "12", String(i), "label", 262 + 2 * i).admit(rid, "12", String(i), "label", 262 + 2 * i, i ? label : { matched: 248, node: labels, cause: "short" });
    if (i < 3) {
      const leaf = s.insert(labels, ` Title ${i}: crash when the file is empty`, 14 + 2 * i, rid);
      s.lock(leaf);
    }
  }
  s.request("c1.r31", "11", "", "answer", 181).later(0.4);
  const gone = [...s.nodes.values()].filter(node => node.length < 64 && node.parent !== 1 && !leaves.includes(node.id) && ![...s.nodes.values()].some(other => other.parent === node.id)).slice(2, 4);
  for (const node of gone) {
    s.evict(node.id, "c1.r10", leaves.slice(0, 6));
    s.later(1.8);
  }
  s.admit("c1.r31", "11", "", "answer", 181, { matched: 143, node: rules, cause: "evicted", gone_at: s.time - 1.8, gone_for: "c1.r10", gone_tokens: 38, gone_policy: "lru" });
  s.flush();
  for (let i = 0; i < 25; i++) {
    const rows = [0, 1, 2].map(n => ({ rid: `c1.r1${n}`, kind: "decode", tokens: 1, prefix: 363 + i }));
    rows.push(...[0, 1, 2].map(n => ({ rid: `c1.r2${n}`, kind: "decode", tokens: 1, prefix: 262 + i })));
    if (i === 20) rows.push({ rid: "c1.r23", kind: "prefill", tokens: 20, prefix: 248 });
    s.later(0.02).pass(rows);
    if (i % 5 === 0) s.figures(1300 + i);
  }
  return s;
}

/** `nodes` nodes in a tree that branches as prompts do, and slots for them. */
export function large(nodes, slots) {
  const s = new Script({ slots });
  const ids = [1];
  let seed = 7;
  const random = limit => (seed = (seed * 1103515245 + 12345) % 2147483648) % limit;
  while (s.nodes.size < nodes) {
    const parent = ids[random(Math.min(ids.length, 400))];
    ids.push(s.insert(parent, `text ${s.nodes.size}`, 3 + random(Math.max(1, Math.min(40, Math.floor(slots / nodes) - 4)))));
    s.later(0.01);
  }
  return s.flush();
}
