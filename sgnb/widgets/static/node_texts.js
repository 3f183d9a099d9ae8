// Texts of the tree's nodes, got from the engine as they are wanted; what was read stays for nodes that go. No page.

const ASK_EVERY = 500; // ms between two questions while one only looks
const ASK_NODES = 128;
const SEARCH_NODES = 256;
const KEPT = 20000;

export class NodeTexts {
  /** `changed()` is called when more is known. */
  constructor(store, changed) {
    this.store = store;
    this._changed = changed;
    this._known = new Map(); // node id → {start, length, text: string, or null where it is another notebook's}
    this._askedAt = -Infinity;
  }

  /** The text of a node (also one that is gone); null: another notebook's; undefined: not known yet. */
  of(node) {
    const known = node && this._known.get(node.id);
    return known && known.length === node.length && known.start === node.start ? known.text : undefined; // else it was split since
  }

  _missing(nodes) {
    return ["idle", "running"].includes(this.store.engineState) || this.store.replaying ? nodes.filter(node => this.of(node) === undefined) : [];
  }

  /** Ask for those of `nodes` that are not known, now or a little later. */
  want(nodes) {
    const missing = this._missing(nodes);
    if (!missing.length || this._later || this._asking) return;
    const wait = this._askedAt + ASK_EVERY - performance.now();
    if (wait > 0) {
      this._later = setTimeout(() => {
        this._later = 0;
        this._changed();
      }, wait);
      return;
    }
    this._asking = true; // an engine that does not answer is not asked again meanwhile
    this._ask(missing.slice(0, ASK_NODES)).catch(() => {}).finally(() => (this._asking = false));
  }

  /** Ask for all of `nodes`, one question after another, until `done()` says it is enough; `told(left)` after each. */
  async all(nodes, done, told) {
    for (let missing = this._missing(nodes); missing.length && !done(); missing = this._missing(missing)) {
      const before = missing.length;
      await this._ask(missing.slice(0, SEARCH_NODES));
      const left = this._missing(missing).length;
      told(left);
      if (left === before) return; // they are gone meanwhile
    }
  }

  async _ask(nodes) {
    this._askedAt = performance.now();
    const answer = await this.store.ask("nodes", { ids: nodes.map(node => node.id) });
    for (const { id, start, length } of nodes) {
      const about = answer.nodes[id];
      if (about && about.tokens !== length) continue; // it was split meanwhile
      this._known.set(id, { start, length, text: about?.text ?? null });
    }
    if (this._known.size > KEPT) for (const id of [...this._known.keys()].slice(0, KEPT / 4)) this._known.delete(id);
    this._changed();
  }

  close() {
    clearTimeout(this._later);
  }
}
