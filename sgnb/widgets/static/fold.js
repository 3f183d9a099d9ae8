// Folds of the engine's numbered events: the tree and the slots of one moment (`EngineState`), and the lists that grow
// (`History`: steps, requests, figures, marks). Pure: no page, no clock, no comm. Records are those of sgnb/messages/.

export const FREE = 0;
export const PREFILL = 1;
export const DECODE = 2;
export const CACHED = 3;
export const SCORE = 4;
const KINDS = { prefill: PREFILL, decode: DECODE };

/** What is where at one moment: nodes of the tree, owners of slots, requests that live. */
export class EngineState {
  constructor(slots = 0, pageSize = 1) {
    this.seq = 0;
    this.time = 0;
    this.step = 0;
    this.pageSize = pageSize;
    this.nodes = new Map();
    this.roots = new Map(); // root id → its children's ids
    this.order = 0;
    this.lockedTokens = 0;
    this.treeTokens = 0;
    this.next = []; // nodes that would be evicted next
    this.evicted = []; // what went in the last 10 s of events
    this.live = new Map(); // rid → state word
    this.holds = new Map(); // rid → the last node of its path in the tree
    this.stats = null;
    this.treeVersion = 0;
    this.kvVersion = 0;
    this.lockVersion = 0;
    this.odd = false; // an event came that cannot follow: what is held is not the engine's state
    this.onSlots = null; // told of (start, count) that changed
    this._resize(slots);
  }

  /** A state from the engine's answer to `picture`. */
  static fromSnapshot(snapshot) {
    const state = new EngineState(snapshot.slots, snapshot.page_size);
    state.seq = snapshot.seq;
    state.time = snapshot.time;
    state.step = snapshot.step;
    for (const [id, parent, start, length, locks, hits, pins, soft, used, root] of snapshot.nodes) {
      state._add({ id, parent, start, length, locks, hits, pins, soft, used, root, rid: "", edge: 0 });
    }
    state.next = snapshot.next ?? [];
    for (const [owner, start, count, kind] of snapshot.runs) state._run(owner, start, count, kind ?? "", 0);
    for (const req of snapshot.requests) {
      state.live.set(req.rid, req.state);
      if (req.node) state.holds.set(req.rid, req.node);
    }
    state.stats = snapshot.stats ?? null;
    return state;
  }

  get slots() {
    return this.kinds.length;
  }

  _resize(slots) {
    this.owners = new Uint32Array(slots); // place in ownerNames; 0: free
    this.kinds = new Uint8Array(slots);
    this.written = new Uint32Array(slots); // step
    this.ownerNames = [""];
    this.ownerNode = [0]; // node id of a tree's owner, else 0
    this.ownerCount = [slots];
    this.ownerDecode = [0]; // of these, written by decode
    this._ownerPlaces = new Map([["", 0]]);
    this._unused = [];
    this.counts = [slots, 0, 0, 0, 0];
  }

  /** A copy that shares nothing, for scrubbing. */
  clone() {
    const copy = Object.assign(Object.create(EngineState.prototype), this);
    copy.onSlots = null;
    copy.nodes = new Map();
    for (const [id, node] of this.nodes) copy.nodes.set(id, { ...node, children: node.children.slice() });
    copy.roots = new Map();
    for (const [id, children] of this.roots) copy.roots.set(id, children.slice());
    copy.evicted = this.evicted.slice();
    copy.live = new Map(this.live);
    copy.holds = new Map(this.holds);
    for (const name of ["owners", "kinds", "written", "ownerNames", "ownerNode", "ownerCount", "ownerDecode", "_unused", "counts"]) {
      copy[name] = this[name].slice();
    }
    copy._ownerPlaces = new Map(this._ownerPlaces);
    return copy;
  }

  /** About how many bytes a copy takes. */
  get weight() {
    return this.nodes.size * 200 + this.kinds.length * 9 + this.ownerNames.length * 60 + 1000;
  }

  /** Take the event with number `seq`, which must be the next. */
  apply(seq, event) {
    this.seq = seq;
    if (event.time > this.time) this.time = event.time;
    switch (event.t) {
      case "radix":
        this._radix(event);
        break;
      case "kv":
        // On the wire a run is an array that begins with its record's name.
        for (const [, owner, start, length, kind] of event.runs) this._run(owner, start, length, kind ?? "", event.step ?? 0);
        this.kvVersion++;
        break;
      case "step":
        this.step = event.step;
        break;
      case "request":
        this._request(event);
        break;
      case "stats":
        this.stats = event;
        if (event.max_total_num_tokens && !this.kinds.length) this._resize(event.max_total_num_tokens);
        break;
    }
  }

  // ---------------------------------------------------------------- tree

  children(id) {
    return this.nodes.get(id)?.children ?? this.roots.get(id) ?? [];
  }

  /** Ids from the root's child down to `id`. */
  path(id) {
    const out = [];
    for (let node = this.nodes.get(id); node; node = this.nodes.get(node.parent)) out.unshift(node.id);
    return out;
  }

  _siblings(parent) {
    const node = this.nodes.get(parent);
    if (node) return node.children;
    let list = this.roots.get(parent);
    if (!list) this.roots.set(parent, (list = []));
    return list;
  }

  _add(node) {
    node.children = [];
    node.order = ++this.order;
    this.nodes.set(node.id, node);
    this._siblings(node.parent).push(node.id);
    this.treeTokens += node.length;
    if (node.locks > 0) this.lockedTokens += node.length;
  }

  _radix(event) {
    const { kind, node: id, parent = 0, start = 0, length = 0, time } = event;
    this.treeVersion++;
    if (kind !== "insert" && kind !== "split" && !this._agrees(id, parent, start, length)) return this._refuse();
    if (kind === "insert") {
      const above = this.nodes.get(parent);
      if (this.nodes.has(id) || parent === id || start !== (above ? above.start + above.length : 0)) return this._refuse();
      const root = this.nodes.get(parent)?.root ?? parent;
      const rid = event.for_rid ?? "";
      if (rid && this.live.has(rid)) this.holds.set(rid, id);
      this._add({ id, parent, start, length, locks: 0, hits: 0, pins: 0, soft: 0, used: time, root, rid, edge: time });
    } else if (kind === "split") {
      this._split(event);
    } else if (kind === "evict" || kind === "flush") {
      this._remove(id, event);
    } else if (kind === "lock" || kind === "unlock") {
      const step = kind === "lock" ? 1 : -1;
      for (let node = this.nodes.get(id); node; node = this.nodes.get(node.parent)) {
        const before = node.locks > 0;
        node.locks = Math.max(0, node.locks + step);
        if (step > 0) node.used = time;
        if (node.locks > 0 !== before) this.lockedTokens += before ? -node.length : node.length;
      }
      this.lockVersion++;
    } else if (kind === "pin" || kind === "unpin") {
      for (let node = this.nodes.get(id); node; node = this.nodes.get(node.parent)) {
        node.pins = Math.max(0, node.pins + (kind === "pin" ? 1 : -1));
      }
    } else {
      this._refuse();
    }
    if (kind === "evict" && event.next) this.next = event.next;
    if (kind === "flush" || kind === "lock" || kind === "evict") {
      this.next = this.next.filter(other => this.nodes.get(other)?.locks === 0);
    }
  }

  /** Whether the event means the node as it is held here; roots are not held: they lie at 0 and have no tokens. */
  _agrees(id, parent, start, length) {
    const node = this.nodes.get(id);
    return node ? node.parent === parent && node.start === start && node.length === length : !parent && !start && !length;
  }

  /** Events without a hole always follow; if one does not, the store asks for the whole picture. */
  _refuse() {
    this.odd = true;
  }

  _split({ node: id, parent = 0, child, start = 0, length = 0, time }) {
    const lower = this.nodes.get(child);
    const follows = lower?.parent === parent && lower.start === start && length < lower.length && !this.nodes.has(id) && id !== child;
    if (!follows) return this._refuse();
    const siblings = this._siblings(parent);
    const upper = { ...lower, id, parent, start, length, edge: time, children: [child] };
    siblings[siblings.indexOf(child)] = id; // the cut node's place among its siblings stays
    this.nodes.set(id, upper);
    lower.parent = id;
    lower.start = start + length;
    lower.length -= length;
    lower.edge = time;
  }

  _remove(id, event) {
    const node = this.nodes.get(id);
    if (!node || node.children.length) return this._refuse();
    const siblings = this._siblings(node.parent);
    const place = siblings.indexOf(id);
    if (place >= 0) siblings.splice(place, 1);
    if (!siblings.length && !this.nodes.has(node.parent)) this.roots.delete(node.parent);
    this.nodes.delete(id);
    this.treeTokens -= node.length;
    if (node.locks > 0) this.lockedTokens -= node.length;
    if (event.kind === "evict") {
      this.evicted.push({ ...node, time: event.time, forRid: event.for_rid ?? "", policy: event.policy ?? "", place });
    }
    while (this.evicted.length > 200 || (this.evicted.length && this.evicted[0].time < event.time - 10)) {
      this.evicted.shift();
    }
  }

  // ---------------------------------------------------------------- slots

  _owner(name) {
    let place = this._ownerPlaces.get(name);
    if (place === undefined) {
      place = this._unused.pop() ?? this.ownerNames.length;
      this.ownerNames[place] = name;
      this.ownerNode[place] = name.startsWith("node:") ? Number(name.slice(5)) : 0;
      this.ownerCount[place] = 0;
      this.ownerDecode[place] = 0;
      this._ownerPlaces.set(name, place);
    }
    return place;
  }

  _run(owner, start, count, kind, step) {
    const end = start + count;
    if (end > this.kinds.length) this._grow(end);
    const place = this._owner(owner);
    const value = owner === "" ? FREE : owner.startsWith("node:") ? CACHED : (KINDS[kind] ?? SCORE);
    for (let slot = start; slot < end; slot++) {
      const old = this.owners[slot];
      if (this.kinds[slot] === DECODE) this.ownerDecode[old]--;
      if (--this.ownerCount[old] === 0 && old && old !== place) this._release(old);
      this.counts[this.kinds[slot]]--;
      this.owners[slot] = place;
      this.kinds[slot] = value;
      if (value !== CACHED) this.written[slot] = step;
    }
    this.ownerCount[place] += count;
    if (value === DECODE) this.ownerDecode[place] += count;
    this.counts[value] += count;
    this.onSlots?.(start, count);
  }

  _release(place) {
    this._ownerPlaces.delete(this.ownerNames[place]);
    this._unused.push(place);
  }

  _grow(size) {
    const add = size - this.kinds.length;
    for (const name of ["owners", "kinds", "written"]) {
      const bigger = new this[name].constructor(size);
      bigger.set(this[name]);
      this[name] = bigger;
    }
    this.ownerCount[0] += add;
    this.counts[FREE] += add;
  }

  /** Slots that `owner` (a request id or `node:<id>`) has now. */
  owned(owner) {
    const place = this._ownerPlaces.get(owner);
    return place === undefined ? 0 : this.ownerCount[place];
  }

  /** Slots of a request that are not the tree's: {prefill, decode}. */
  flight(rid) {
    const place = this._ownerPlaces.get(rid);
    if (place === undefined) return { prefill: 0, decode: 0 };
    return { prefill: this.ownerCount[place] - this.ownerDecode[place], decode: this.ownerDecode[place] };
  }

  /** Tokens of the tree that a live request reads: from the root to its node. */
  shared(rid) {
    const node = this.nodes.get(this.holds.get(rid));
    return node ? node.start + node.length : 0;
  }

  /** Tokens cached that nobody locks. */
  get evictable() {
    return this.counts[CACHED] - this.lockedSlots;
  }

  /** Cached slots that a request locks. */
  get lockedSlots() {
    return Math.min(this.lockedTokens, this.counts[CACHED]);
  }

  // ---------------------------------------------------------------- requests

  _request(event) {
    if (event.state === "finished") this.live.delete(event.rid);
    else this.live.set(event.rid, event.state);
    if (event.state === "finished" || event.state === "retracted") this.holds.delete(event.rid);
    if (event.state === "admitted" && event.match?.node) this.holds.set(event.rid, event.match.node);
    if (event.state !== "admitted" || !event.match) return;
    for (let node = this.nodes.get(event.match.node); node; node = this.nodes.get(node.parent)) node.hits++;
  }
}

/** The lists that only grow, bounded: what happened when. */
export class History {
  constructor({ steps = 60000, rows = 600000, requests = 4000, figures = 2600, marks = 20000 } = {}) {
    this.limits = { steps, rows, requests, figures, marks };
    this.steps = []; // StepEvents, oldest first
    this.requests = new Map(); // rid → record, in order of arrival
    this.figures = []; // EngineStats, oldest first
    this.marks = []; // {time, kind, rid, node, tokens}: evict, retract, finish, abort, flush
    this.prompts = []; // records of requests that were matched, oldest first; at most 200
    this.knobs = []; // KnobEvents, oldest first
    this.settings = {}; // knobs as they are now, as far as they are known
    this.firstPolicy = ""; // the policy before the first switch among them; "" when that is not known
    this.rows = 0;
    this.version = 0;
    this.odd = false; // an event says something else of a request than an earlier one did
  }

  apply(event) {
    this.version++;
    switch (event.t) {
      case "step":
        this.steps.push(event);
        this.rows += event.rows.length;
        while (this.steps.length > this.limits.steps || this.rows > this.limits.rows) {
          this.rows -= this.steps.shift().rows.length;
        }
        for (const note of event.notes ?? []) this._note(event, note);
        break;
      case "request":
        this._request(event);
        break;
      case "stats":
        if (event.time - (this.figures.at(-1)?.time ?? 0) >= 0.2) this.figures.push(event);
        if (this.figures.length > this.limits.figures) this.figures.shift();
        break;
      case "knob":
        this.knobs.push(event);
        if (this.knobs.length > 1000) this.knobs.shift();
        Object.assign(this.settings, event.knobs);
        break;
      case "radix":
        if (event.kind === "evict" || event.kind === "flush") {
          const last = this.marks.at(-1);
          const rid = event.for_rid ?? "";
          if (last && last.kind === event.kind && last.rid === rid && event.time - last.time < 0.01) {
            last.tokens += event.length;
            last.nodes++;
          } else {
            this._mark({ time: event.time, kind: event.kind, rid, node: event.node, tokens: event.length, nodes: 1, policy: event.policy ?? "" });
          }
        }
        break;
    }
  }

  _mark(mark) {
    this.marks.push(mark);
    if (this.marks.length > this.limits.marks) this.marks.splice(0, 1000);
  }

  _note(step, note) {
    const record = this.requests.get(note.rid);
    if (record && note.what === "deferred") record.waits = { ...note, time: step.time, step: step.step };
  }

  /** The record of a request; made at its first event. */
  _record(rid, label, client, time) {
    let record = this.requests.get(rid);
    if (!record) {
      record = { rid, label, client, queued: time, turns: [], waits: null, match: null, state: "queued" };
      Object.assign(record, { prompt: 0, cached: 0, completed: 0, finished: 0, reason: "", first: 0 });
      this.requests.set(rid, record);
      if (this.requests.size > this.limits.requests) {
        for (const [old, { finished }] of this.requests) {
          if (finished || this.requests.size > 2 * this.limits.requests) this.requests.delete(old);
          if (this.requests.size <= this.limits.requests) break;
        }
      }
    }
    return record;
  }

  _request(event) {
    const { rid, state, time } = event;
    const record = this._record(rid, event.label ?? {}, event.client, time);
    if (!sameRequest(record, event)) this.odd = true;
    record.state = state;
    record.prompt = event.prompt_tokens ?? record.prompt;
    record.completed = event.completion_tokens ?? record.completed;
    if (state === "admitted") {
      record.turns.push({ from: time, to: 0, end: "", why: "", match: event.match ?? null });
      if (!record.match && event.match) {
        record.match = event.match;
        record.cached = event.cached_tokens ?? 0;
        record.admitted = time;
        this.prompts.push(record);
        if (this.prompts.length > 200) this.prompts.shift();
      }
    } else if (state === "compiling" || state === "compiled") {
      record[state] = time;
      if (event.reason) record.compilingWords = event.reason;
    } else if (state === "first_token") {
      record.twice = event.duplicate_tokens ?? 0;
      record.first = record.first || time;
    } else if (state === "retracted" || state === "finished") {
      const turn = record.turns.at(-1);
      if (turn && !turn.to) Object.assign(turn, { to: time, end: state === "finished" ? event.reason : state, why: event.reason ?? "" });
      if (state === "finished") Object.assign(record, { finished: time, reason: event.reason ?? "" });
      const kind = state === "retracted" ? "retract" : event.reason === "abort" ? "abort" : "finish";
      this._mark({ time, kind, rid, node: 0, tokens: 0, nodes: 0 });
    }
  }

  /** Requests of a snapshot: those that lived before the first event. */
  fromSnapshot(snapshot) {
    const settings = snapshot.settings ?? { schedule_policy: snapshot.policy };
    if (!this.knobs.some(event => event.knobs.schedule_policy !== undefined)) this.firstPolicy = settings.schedule_policy ?? "";
    this.settings = { ...settings };
    for (const req of snapshot.requests) {
      const record = this._record(req.rid, req.label ?? {}, req.client, req.time_queued);
      record.state = req.state === "waiting" ? "queued" : "admitted";
      Object.assign(record, { prompt: req.prompt_tokens, cached: req.cached_tokens, completed: req.completion_tokens });
      if (req.time_admitted && !record.turns.length) record.turns.push({ from: req.time_admitted, to: 0, end: "", why: "", match: req.match });
      if (req.match && !record.match) {
        Object.assign(record, { match: req.match, admitted: req.time_admitted });
        this.prompts.push(record);
      }
    }
  }
}

/** Whether an event repeats what is known of its request: whose it is, its name, its prompt, what was reused of it. */
function sameRequest(record, event) {
  const { label = {} } = event;
  const known = record.label ?? {};
  if (["cell", "branch", "name", "line"].some(field => (known[field] ?? "") !== (label[field] ?? ""))) return false;
  if (record.client !== event.client) return false;
  if (record.prompt && event.prompt_tokens && record.prompt !== event.prompt_tokens) return false;
  return event.state === "admitted" || !record.match || event.cached_tokens === undefined || record.cached === event.cached_tokens;
}

/** What people call a request: `<cell>.<branch> <variable>`. */
export function nameOf(record) {
  const { cell = "", branch = "", name = "" } = record?.label ?? {};
  const place = [cell, branch].filter(Boolean).join(".");
  return [place, name].filter(Boolean).join(" ") || record?.rid || "–";
}
