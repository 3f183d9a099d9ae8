// The token inspector: what a token was chosen from, what the grammar allowed, where it was computed, and a fork from it.
// A non-modal dialog anchored to the token; it gives the focus back. Its facts come from the kernel when it opens.

import { el, fill, refocus, setText } from "./dom.js";
import { count } from "./format.js";
import { chanceOf, grammarWords, logprobWords, tokenWords } from "./program_data.js";
import { trans } from "./trans.js";

const PATIENCE = 5000;

export class Inspector {
  /** `view`: the program view; `ask(rid, place)` → Promise of the kernel's answer. */
  constructor(view) {
    this.view = view;
    this.marks = el("div", "sgnb-token-marks", { "aria-hidden": "true" });
    this.dialog = el("div", "sgnb-inspector", { role: "dialog", "aria-label": trans.__("Token"), tabindex: -1, hidden: true });
    this.floats = typeof this.dialog.showPopover === "function"; // above everything, cut by no output area
    if (this.floats) this.dialog.popover = "manual";
    this.at = null; // {text: RowText, index, place}
    this.open = false;
    view.root.append(this.marks, this.dialog);
    this.dialog.addEventListener("keydown", event => this._key(event));
    this.outside = event => {
      if (this.open && !this.dialog.contains(event.target) && !view.list.contains(event.target)) this.close(false);
    };
    document.addEventListener("pointerdown", this.outside, true);
    this.scrolled = () => this._scrolled(); // of the list, and of the notebook around it
    document.addEventListener("scroll", this.scrolled, { capture: true, passive: true });
  }

  /** Whether a key on a text is for its tokens. */
  wants(key) {
    return ["ArrowRight", "ArrowLeft", "Enter"].includes(key) || (key === "Escape" && (this.open || !!this.at));
  }

  /** Keys on a text whose tokens are known: arrows walk them, Enter inspects. */
  textKey(key, text, index) {
    const here = this.at?.text === text && this.at.index === index ? this.at.place : -1;
    if (key === "ArrowRight" || key === "ArrowLeft") {
      const next = here < 0 ? 0 : here + (key === "ArrowRight" ? 1 : -1);
      this.focusToken(text, index, Math.max(0, Math.min(text.views[index].ends.length - 1, next)));
    } else if (key === "Enter") this.show(text, index, Math.max(0, here));
    else this.close(true);
  }

  /** Outline a token. */
  focusToken(text, index, place) {
    this.at = { text, index, place };
    this._outline();
    if (this.open) void this._fill();
  }

  /** Open on a token. */
  show(text, index, place) {
    this.from = document.activeElement;
    this.open = true;
    this.focusToken(text, index, place);
    this.dialog.hidden = false;
    if (this.floats) this.dialog.showPopover();
    this._anchor();
    this.dialog.focus({ preventScroll: true });
  }

  close(back) {
    if (this.open && this.floats) this.dialog.hidePopover();
    this.open = false;
    this.dialog.hidden = true;
    this.marks.replaceChildren();
    const span = this.at?.text.views[this.at.index]?.span;
    this.at = null;
    this.view.store?.visible(this, false);
    if (back) span?.focus?.({ preventScroll: true });
  }

  walk(step) {
    const { text, index, place } = this.at;
    this.focusToken(text, index, Math.max(0, Math.min(text.views[index].ends.length - 1, place + step)));
    this._anchor();
  }

  _key(event) {
    event.stopPropagation();
    if (event.key === "Escape") this.close(true);
    else if (event.key === "ArrowLeft") this.walk(-1);
    else if (event.key === "ArrowRight") this.walk(1);
    else return;
    event.preventDefault();
  }

  _scrolled() {
    if (!this.at) return;
    const [first] = this._rects();
    const seen = first && document.elementFromPoint(first.left + first.width / 2, first.top + first.height / 2);
    if (!this.view.root.contains(seen || null)) return this.close(false);
    this._outline();
    if (this.open) this._anchor();
    return undefined;
  }

  _rects() {
    return this.at ? this.at.text.rectsOf(this.at.index, this.at.place) : [];
  }

  _outline() {
    const base = this.view.root.getBoundingClientRect();
    fill(
      this.marks,
      this._rects().map(box => {
        const mark = el("div", "sgnb-token-mark");
        Object.assign(mark.style, { left: `${box.left - base.left - 2}px`, top: `${box.top - base.top - 1}px`, width: `${box.width + 4}px`, height: `${box.height + 2}px` });
        return mark;
      })
    );
  }

  /** Below the token, above it where there is no room; never over the edge of the view. */
  _anchor() {
    const base = this.view.root.getBoundingClientRect();
    const box = this._rects()[0];
    if (!box) return;
    this.dialog.style.maxWidth = `${base.width - 8}px`;
    const { offsetWidth: width, offsetHeight: height } = this.dialog;
    const left = Math.max(4, Math.min(box.left - base.left - 8, base.width - width - 4));
    const room = box.bottom + height + 8 < window.innerHeight || box.top - height - 8 < 0;
    const top = (room ? box.bottom + 8 : box.top - height - 8) - base.top;
    this.dialog.dataset.side = room ? "below" : "above";
    this.dialog.style.setProperty("--sgnb-tip", `${Math.max(8, Math.min(width - 20, box.left + box.width / 2 - base.left - left - 6))}px`);
    this.dialog.style.left = `${left + (this.floats ? base.left : 0)}px`;
    this.dialog.style.top = `${top + (this.floats ? base.top : 0)}px`;
  }

  async _fill() {
    const { text, index, place } = this.at;
    const view = text.views[index];
    const shown = tokenWords(text.textOf(index, place));
    const chance = view.seg.marks?.[place * 3 + 1] ?? -1;
    const known = { id: null, logprob: null, top: [], allowed: 0, count: view.ends.length, step: -1, slot: -1, chance };
    const reused = view.seg.model ? {} : { position: -1, reused: view.ends[place] <= view.seg.reused };
    const rid = view.seg.model ? view.rid : view.seg.rid;
    this._draw(shown, place, { ...known, ...reused }, rid);
    let found;
    try {
      found = { ...known, ...reused, ...(await this._ask(text, index, place)) };
    } catch (error) {
      found = { ...known, ...reused, missing: error.message };
    }
    const here = () => this.open && this.at?.text === text && this.at.index === index && this.at.place === place;
    const draw = () => {
      this._draw(shown, place, found, rid);
      this._anchor();
    };
    if (!here()) return;
    draw();
    const { store } = this.view;
    const told = () => this._stepOf(found, rid) >= 0;
    if (!store || found.reused !== false || told()) return;
    store.visible(this, true); // the step's event is not on this page: the engine has those of some minutes
    const off = store.subscribe(() => {
      if (here() && !told()) return;
      off();
      if (here()) draw();
    });
  }

  _ask(text, index, place) {
    const late = new Promise((_, reject) => setTimeout(() => reject(new Error(trans.__("The kernel does not answer; this is what the page knows."))), PATIENCE));
    return Promise.race([this.view.askToken(text, index, place), late]);
  }

  _draw(shown, place, data, rid) {
    const back = el("button", "sgnb-button sgnb-icon", { type: "button", "aria-label": trans.__("Previous token"), onclick: () => this.walk(-1) }, "←");
    const next = el("button", "sgnb-button sgnb-icon", { type: "button", "aria-label": trans.__("Next token"), onclick: () => this.walk(1) }, "→");
    back.disabled = place === 0;
    next.disabled = place + 1 >= (data.count || 0);
    const [number, all] = [count(place + 1), count(data.count)];
    const where = data.id === null ? trans.__("token %1 of %2", number, all) : trans.__("token %1 of %2, id %3", number, all, count(data.id));
    const chance = data.logprob === null ? (data.chance >= 0 ? data.chance.toFixed(2) : "–") : chanceOf(data.logprob);
    const drawn = data.logprob === null ? trans.__("probability %1", chance) : trans.__("probability %1, logprob %2", chance, logprobWords(data.logprob));
    const parts = [
      el(
        "div",
        "sgnb-inspector-head",
        {},
        el("code", "sgnb-inspector-token", {}, shown),
        el("span", "sgnb-dim", {}, where),
        el("span", "sgnb-space"),
        back,
        next
      ),
      data.reused === undefined ? el("p", "sgnb-dim", {}, drawn) : el("p", "sgnb-dim", {}, this._origin(data, rid)),
      this._rivals(shown, data),
      data.allowed ? el("p", "sgnb-dim", {}, grammarWords(data)) : null,
      data.missing ? el("p", "sgnb-dim", {}, data.missing) : null,
      this._foot(place, data, rid),
    ];
    refocus(this.dialog, () => fill(this.dialog, parts)); // the arrow that was pressed goes on
  }

  /** The chosen token and its rivals, likeliest first. */
  _rivals(shown, data) {
    if (data.logprob === null) return null;
    const rows = (data.top ?? []).slice(0, 5).map(([logprob, id, text]) => ({ logprob, text, chosen: id === data.id }));
    if (!rows.some(row => row.chosen)) rows.push({ logprob: data.logprob, text: shown, chosen: true });
    return el(
      "div",
      "sgnb-rivals",
      { role: "list", "aria-label": trans.__("Alternatives") },
      rows.map(({ logprob, text, chosen }) => {
        const bar = el("span", chosen ? "sgnb-share sgnb-share-chosen" : "sgnb-share");
        bar.style.width = `${Math.round(100 * Math.exp(Math.min(0, logprob)))}%`;
        return el(
          "div",
          chosen ? "sgnb-rival sgnb-option-chosen" : "sgnb-rival",
          { role: "listitem" },
          el("code", "", {}, chosen ? shown : tokenWords(text)),
          el("span", "sgnb-share-ground", {}, bar),
          el("span", "sgnb-share-number", {}, chanceOf(logprob)),
          el("span", "sgnb-dim", {}, chosen ? trans.__("chosen") : "")
        );
      })
    );
  }

  /** Of a prompt token: `reused, cached by cell [6]`, or `computed in step 1 161`; as far as the page knows. */
  _origin(data, rid) {
    if (data.reused) return data.by ? trans.__("reused, cached by cell [%1]", data.by) : trans.__("reused");
    const step = this._stepOf(data, rid);
    return step < 0 ? trans.__("computed") : trans.__("computed in step %1", count(step));
  }

  /** The step that computed a prompt token; -1 where its events are not on this page. */
  _stepOf({ position }, rid) {
    const covers = row => row.rid === rid && row.kind !== "decode" && row.prefix <= position && position < row.prefix + row.tokens;
    return this.view.store?.history.steps.findLast(step => step.rows.some(covers))?.step ?? -1;
  }

  _foot(place, data, rid) {
    const where = [data.step >= 0 ? trans.__("step %1", count(data.step)) : "", data.slot >= 0 ? trans.__("slot %1", count(data.slot)) : ""].filter(Boolean).join(", ");
    const said = el("span", "sgnb-dim sgnb-inspector-said", {}, where);
    const cost = { rid, step: data.reused === false ? this._stepOf(data, rid) : data.step };
    const step = el("button", "sgnb-button", { type: "button", onclick: () => this.view.showStep(cost) }, trans.__("Show step"));
    if (cost.step < 0) {
      step.disabled = true;
      step.title = data.reused ? trans.__("This token was reused; the request has no step of its own for it.") : trans.__("The step of this token is not known.");
    }
    const tree = el("button", "sgnb-button", { type: "button", onclick: () => this.view.showIn("tree", cost) }, trans.__("Show in tree"));
    if (data.reused !== undefined) return el("div", "sgnb-inspector-foot", {}, said, el("span", "sgnb-space"), step, tree);
    const fork = el("button", "sgnb-button", { type: "button", title: trans.__("A state that begins after this token") }, trans.__("Fork from here"));
    fork.addEventListener("click", async () => {
      fork.disabled = true;
      this.dialog.focus({ preventScroll: true }); // a disabled button has no keys
      try {
        const answer = await this.view.askFork(rid, place + 1);
        setText(said, answer.words);
      } catch (error) {
        setText(said, error.message);
        fork.disabled = false;
      }
    });
    return el("div", "sgnb-inspector-foot", {}, said, el("span", "sgnb-space"), fork, step, tree);
  }

  destroy() {
    this.close(false); // or the engine's events are asked for as long as the page is there
    document.removeEventListener("pointerdown", this.outside, true);
    document.removeEventListener("scroll", this.scrolled, true);
  }
}
