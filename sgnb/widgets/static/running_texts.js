// Texts of what running requests have beyond the tree, got from the engine as they are wanted and as they grow. No page.

const ASK_EVERY = 500; // ms between two questions about one request
const KEPT = 100;

export class RunningTexts {
  /** `changed()` is called when more is known. */
  constructor(store, changed) {
    this.store = store;
    this._changed = changed;
    this._known = new Map(); // rid → {start, count, text, askedAt}
  }

  /**
   * Text of `count` tokens of a request from position `start` on, or of as many as are known; asked for anew when the count
   * is another. null: another notebook's, or it has ended; undefined: not known yet.
   */
  of(rid, start, count) {
    let known = this._known.get(rid);
    if (known?.start !== start) this._known.set(rid, (known = { start, count: 0, text: undefined, askedAt: -Infinity }));
    const { engineState, replaying } = this.store;
    const now = performance.now();
    const reachable = ["idle", "running"].includes(engineState) || replaying;
    if (reachable && count && known.count !== count && !known.asking && now - known.askedAt >= ASK_EVERY) {
      known.askedAt = now;
      known.asking = true;
      const put = ({ texts }) => {
        Object.assign(known, { count, text: texts?.[rid] ?? known.text ?? null });
        this._changed();
      };
      this.store.ask("running", { spans: [[rid, start, count]] }).then(put, () => {}).finally(() => (known.asking = false));
      if (this._known.size > KEPT) this._known.delete(this._known.keys().next().value);
    }
    return known.text;
  }
}
