// Fold of the engine's numbered events: the tree and the slots of one moment (`EngineState`). Pure: no page, no clock, no
// comm. Records are those of sgnb/messages/. The lists that grow are history.js's.
//
// States share what they have not changed: a copy takes the nodes as they are, and each side puts a fresh node in place of
// one it changes (`_mine`). Only this module may change a node, and only one that `_mine` gave. While `watched`, a state
// notes what it changes, so that tape.js can keep the difference alone.

import { drain } from "./slices.js";

export const FREE = 0;
export const PREFILL = 1;
export const DECODE = 2;
export const CACHED = 3;
export const SCORE = 4;
const KINDS = { prefill: PREFILL, decode: DECODE };
const SLOT_FIELDS = ["owners", "kinds", "written"];
const OWNER_FIELDS = ["ownerNames", "ownerNode", "ownerCount", "ownerDecode"];
const PART = 256; // nodes, or runs of slots, of a snapshot taken at a time
let turns = 0;

/** The knobs of a snapshot; of one of an older recording the policy alone. */
export function settingsOf(snapshot) {
  return snapshot.settings ?? { schedule_policy: snapshot.policy };
}

/** What is where at one moment: nodes of the tree, owners of slots, requests that live. */
export class EngineState {
  constructor(slots = 0, pageSize = 1) {
    this.seq = 0;
    this.time = 0;
    this.step = 0;
    this.pageSize = pageSize;
    this.slotBytes = 0; // memory of one slot; 0: not known
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
    this.settings = {}; // knobs as they were then, as far as they are known; replaced, never changed: copies share it
    this.treeVersion = 0;
    this.kvVersion = 0;
    this.lockVersion = 0;
    this.odd = false; // an event came that cannot follow: what is held is not the engine's state
    this.halfTold = false; // the tree has changed; whose the slots are now is told next
    this._own(); // nodes with the number `turn` are this state's own
    this.watched = null; // {nodes, slots, owners}: what changed since the last checkpoint
    this._resize(slots);
  }

  /** A state from the engine's answer to `picture`. */
  static fromSnapshot(snapshot) {
    return drain(EngineState.fromParts(snapshot));
  }

  /** The same in slices. */
  static *fromParts(snapshot) {
    const state = new EngineState(snapshot.slots, snapshot.page_size);
    state.seq = snapshot.seq;
    state.slotBytes = snapshot.slot_bytes ?? 0;
    state.time = snapshot.time;
    state.step = snapshot.step;
    let left = PART;
    for (const [id, parent, start, length, locks, hits, pins, soft, used, root] of snapshot.nodes) {
      if (!left--) yield (left = PART);
      state._add({ id, parent, start, length, locks, hits, pins, soft, used, root, rid: "", edge: 0 });
    }
    state.next = snapshot.next ?? [];
    for (const [owner, start, count, kind] of snapshot.runs) {
      if (!left--) yield (left = PART);
      state._run(owner, start, count, kind ?? "", 0);
    }
    for (const req of snapshot.requests) {
      state.live.set(req.rid, req.state);
      if (req.node) state.holds.set(req.rid, req.node);
    }
    state.stats = snapshot.stats ?? null;
    state.settings = settingsOf(snapshot);
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
    this._places = new Map([["", 0]]);
    this._unused = [];
    this.counts = [slots, 0, 0, 0, 0];
  }

  /** What it holds now may be held by others too: from here on it changes copies. */
  _own() {
    this.turn = ++turns;
    this._ownRoots = new Set();
  }

  /** A copy; nodes are shared until one side changes them. `spent`: a state that is of no more use, for its memory. */
  clone(spent = null) {
    const copy = Object.assign(Object.create(EngineState.prototype), this, lists(this));
    this._own();
    copy._own();
    copy.watched = null;
    copy.nodes = new Map(this.nodes);
    copy._places = new Map(this._places);
    for (const name of ["_unused", ...OWNER_FIELDS]) copy[name] = this[name].slice();
    for (const name of SLOT_FIELDS) {
      copy[name] = spent?.slots === this.slots ? spent[name] : new this[name].constructor(this.slots);
      copy[name].set(this[name]);
    }
    return copy;
  }

  watch() {
    this.watched = { nodes: new Set(), slots: [], owners: new Set() };
  }

  /** What changed since `watch`, to be laid (`lay`) over a copy of that moment; begins to note anew. */
  difference() {
    const { nodes, slots, owners } = this.watched;
    const cells = [];
    for (const [from, to] of slots) for (let slot = from; slot < to; slot++) cells.push(slot, this.owners[slot], this.kinds[slot], this.written[slot]);
    const change = {
      slots: this.slots,
      head: { ...this, ...lists(this) },
      nodes: Array.from(nodes, id => [id, this.nodes.get(id)]),
      places: Array.from(owners, place => [place, ...OWNER_FIELDS.map(name => this[name][place])]),
      cells: Uint32Array.from(cells),
    };
    for (const name of ["nodes", "_places", "_unused", "watched", ...OWNER_FIELDS, ...SLOT_FIELDS]) delete change.head[name];
    change.weight = change.nodes.length * 250 + cells.length * 4 + change.places.length * 100 + (this.live.size + this.holds.size) * 60 + 2500;
    this._own();
    this.watch();
    return change;
  }

  /** Lay differences over this state, one after another; the first begins at this state's moment, or before it. */
  lay(changes) {
    for (const { slots, nodes, places, cells } of changes) {
      if (slots > this.slots) this._grow(slots);
      for (const [id, node] of nodes) {
        if (node) this.nodes.set(id, node);
        else this.nodes.delete(id);
      }
      const { owners, kinds, written, ownerNames, ownerNode, ownerCount, ownerDecode, _places: known } = this; // laid by the hundred
      for (let at = 0; at < cells.length; at += 4) {
        const slot = cells[at];
        owners[slot] = cells[at + 1];
        kinds[slot] = cells[at + 2];
        written[slot] = cells[at + 3];
      }
      for (const [place] of places) if (known.get(ownerNames[place]) === place) known.delete(ownerNames[place]);
      for (const [place, name, node, count, decode] of places) {
        ownerNames[place] = name;
        ownerNode[place] = node;
        ownerCount[place] = count;
        ownerDecode[place] = decode;
        if (!place || count) known.set(name, place);
      }
    }
    const head = changes.at(-1)?.head;
    if (head) Object.assign(this, head, lists(head));
    this._own();
    this._unused = [...this.ownerCount.keys()].filter(place => place && !this.ownerCount[place]);
  }

  /** About how many bytes a copy takes. */
  get weight() {
    return this.nodes.size * 110 + this.kinds.length * 9 + this.ownerNames.length * 60 + 1000;
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
        this.halfTold = false;
        this.kvVersion++;
        break;
      case "step":
        this.step = event.step;
        break;
      case "request":
        this._request(event);
        break;
      case "knob":
        this.settings = { ...this.settings, objective: event.objective, ...event.knobs };
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

  /** The node, made this state's own before it is changed. */
  _mine(id) {
    let node = this.nodes.get(id);
    if (!node) return undefined;
    if (node.turn !== this.turn) this.nodes.set(id, (node = { ...node, children: node.children.slice(), turn: this.turn }));
    this.watched?.nodes.add(id);
    return node;
  }

  /** Every node from `id` up to its root, to be changed. */
  _up(id, change) {
    for (let node = this._mine(id); node; node = this._mine(node.parent)) change(node);
  }

  /** The children of `parent`, to be changed: a node's own list, or a root's in a fresh one. */
  _siblings(parent) {
    const node = this._mine(parent);
    if (node) return node.children;
    if (!this._ownRoots.has(parent) || !this.roots.has(parent)) this.roots.set(parent, this.roots.get(parent)?.slice() ?? []);
    this._ownRoots.add(parent);
    return this.roots.get(parent);
  }

  /** A node of this state's own, new or in the place of another. */
  _put(node) {
    node.turn = this.turn;
    this.nodes.set(node.id, node);
    this.watched?.nodes.add(node.id);
  }

  _add(node) {
    node.children = [];
    node.order = ++this.order;
    this._put(node);
    this._siblings(node.parent).push(node.id);
    this.treeTokens += node.length;
    if (node.locks > 0) this.lockedTokens += node.length;
  }

  _radix(event) {
    const { kind, node: id, parent = 0, start = 0, length = 0, time } = event;
    this.treeVersion++;
    if (["insert", "split", "evict", "flush"].includes(kind)) this.halfTold = true;
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
      this._up(id, node => {
        const before = node.locks > 0;
        node.locks = Math.max(0, node.locks + step);
        if (step > 0) node.used = time;
        if (node.locks > 0 !== before) this.lockedTokens += before ? -node.length : node.length;
      });
      this.lockVersion++;
    } else if (kind === "pin" || kind === "unpin") {
      this._up(id, node => {
        node.pins = Math.max(0, node.pins + (kind === "pin" ? 1 : -1));
      });
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
    const lower = this._mine(child);
    const follows = lower?.parent === parent && lower.start === start && length < lower.length && !this.nodes.has(id) && id !== child;
    if (!follows) return this._refuse();
    const siblings = this._siblings(parent);
    siblings[siblings.indexOf(child)] = id; // the cut node's place among its siblings stays
    this._put({ ...lower, id, parent, start, length, edge: time, children: [child] });
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
    this.watched?.nodes.add(id);
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
    let place = this._places.get(name);
    if (place === undefined) {
      place = this._unused.pop() ?? this.ownerNames.length;
      this.ownerNames[place] = name;
      this.ownerNode[place] = name.startsWith("node:") ? Number(name.slice(5)) : 0;
      this.ownerCount[place] = 0;
      this.ownerDecode[place] = 0;
      this._places.set(name, place);
    }
    this.watched?.owners.add(place);
    return place;
  }

  _run(owner, start, count, kind, step) {
    const end = start + count;
    if (end > this.kinds.length) this._grow(end);
    const place = this._owner(owner);
    const value = owner === "" ? FREE : owner.startsWith("node:") ? CACHED : (KINDS[kind] ?? SCORE);
    let last = place;
    for (let slot = start; slot < end; slot++) {
      const old = this.owners[slot];
      if (old !== last) this.watched?.owners.add((last = old));
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
    this.watched?.slots.push([start, end]);
  }

  _release(place) {
    this._places.delete(this.ownerNames[place]);
    this._unused.push(place);
  }

  _grow(size) {
    const add = size - this.kinds.length;
    for (const name of SLOT_FIELDS) {
      const bigger = new this[name].constructor(size);
      bigger.set(this[name]);
      this[name] = bigger;
    }
    this.ownerCount[0] += add;
    this.counts[FREE] += add;
    this.watched?.owners.add(0);
  }

  /** The place of `owner` in the owners' lists, or undefined. */
  placeOf(owner) {
    return this._places.get(owner);
  }

  /** Slots that `owner` (a request id or `node:<id>`) has now. */
  owned(owner) {
    const place = this._places.get(owner);
    return place === undefined ? 0 : this.ownerCount[place];
  }

  /** Slots of a request that are not the tree's: {prefill, decode}. */
  flight(rid) {
    const place = this._places.get(rid);
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
    this._up(event.match.node, node => node.hits++);
  }
}

/** Copies of a state's short lists. */
function lists({ roots, live, holds, evicted, counts }) {
  return { roots: new Map(roots), live: new Map(live), holds: new Map(holds), evicted: evicted.slice(), counts: counts.slice() };
}
