// The frame of an engine view: header, playhead, empty states, legend, keys, and when to draw. Subclasses fill it.
//
// A view class:   class TreeView extends View { static kind = "tree"; static get title() { … } … }
//   build()       once: put elements into this.body (and this.side, this.foot), switches into this.tools
//   draw()        the picture: called in a frame when something changed and the view is seen (registry.js)
//   details()     numbers, tables, texts: at most four times a second
//   facts()       the short text behind the title
//   sentence()    the aria-label of its picture; also read when the selection changes
//   key(event)    a key inside the view, true when taken; zoom(±1|0) and find(text) and copy() where they apply
// draw() takes sizes from this.room: to read them off the page while views write to it costs a layout each time.
// It reads this.store (store.js) and calls this.changed() after its own changes. host.dataset.ready says "1" after the
// first draw, host.dataset.seq the number of the last event drawn: tests wait for them.

import { copyText, emptyNode, emptyState, helpDialog, liveRegion, playheadBar, tooltip, viewKeys } from "./controls.js";
import { button, el, fill, on, setText } from "./dom.js";
import { registry } from "./registry.js";
import { onSettings } from "./settings.js";
import { trans } from "./trans.js";

const DETAILS_EVERY = 250;
const SAME_KEYS = { ";": "<", ":": ">", "=": "+", "−": "-" };

export class View {
  constructor(host, store, options = {}) {
    this.host = host;
    host.sgnbView = this;
    this.store = store;
    this.options = options;
    this.width = 0;
    this._dirty = true;
    this._detailsAt = -Infinity;
    this._movedAt = -Infinity; // when the playhead was
    this._detailsDirty = true;
    this._timer = 0;
    this._drawing = Object.assign(() => this._render(), { measure: () => this._measure(), after: () => this._rest() });
    this._telling = () => this._tellDetails();
    this._seen = false;
    this._offs = [];
    this._make();
  }

  static kind = "";
  static get title() {
    return "";
  }
  static follows = true; // the engine: its events are asked for while the view is seen

  get kind() {
    return this.constructor.kind;
  }

  _make() {
    const { host, store } = this;
    host.classList.add("sgnb-view", `sgnb-view-${this.kind}`);
    host.setAttribute("role", "group");
    host.setAttribute("aria-label", this.constructor.title);
    host.dataset.kind = this.kind;
    this._titleFacts = el("span", "sgnb-viewfacts");
    this.engineName = el("span", "sgnb-dim sgnb-engine");
    this.tools = el("div", "sgnb-tools");
    this.playhead = playheadBar(store);
    this.helpButton = button("?", () => this._help(), { className: "sgnb-icon", title: trans.__("Keys ( ? )"), "aria-label": trans.__("Keys") });
    this.playhead.element.append(this.helpButton);
    this._header = el(
      "div",
      "sgnb-topbar",
      {},
      el("h2", "sgnb-title", {}, this.constructor.title),
      this.engineName,
      this._titleFacts,
      el("span", "sgnb-space"),
      this.tools,
      this.playhead.element
    );
    this.body = el("div", "sgnb-viewbody");
    this.side = el("aside", "sgnb-side", { "aria-label": trans.__("Details") });
    this.main = el("div", "sgnb-main", {}, this.body, this.side);
    this.foot = el("div", "sgnb-foot");
    this.drawer = button(trans.__("Details"), () => this._toggleDrawer(), { className: "sgnb-drawer", "aria-expanded": "false" });
    this.tools.append(this.drawer);
    this._cover = el("div", "sgnb-cover", { hidden: true });
    this.note = el("div", "sgnb-notice", { hidden: true, role: "note" });
    this.region = liveRegion();
    this._content = el("div", "sgnb-content", {}, this.note, this.main, this.foot);
    fill(host, this._header, this._content, this._cover, this.region.element);
    this.tip = tooltip(host);
    this._help = helpDialog(host, viewKeys());
    this.build();
    on(host, "keydown", event => this._key(event));
    this._offs.push(onSettings(() => this.changed()));
    if (this.constructor.follows) this._offs.push(store.subscribe(what => this._told(what)));
    this._watch();
  }

  // ---------------------------------------------------------------- for subclasses

  build() {}
  draw() {}
  details() {}
  facts() {
    return "";
  }
  sentence() {
    return this.constructor.title;
  }
  key() {
    return false;
  }
  zoom() {}
  find() {}
  copy() {
    return "";
  }

  /** Something of the view itself changed. */
  changed() {
    this._dirty = this._detailsDirty = true;
    this._detailsAt = -Infinity;
    this._schedule(true);
  }

  /** A legend entry: a swatch class and its words. */
  legend(entries) {
    return el(
      "ul",
      "sgnb-legend",
      { "aria-label": trans.__("Legend") },
      entries.map(([swatch, words]) => el("li", "", {}, el("span", `sgnb-swatch sgnb-swatch-${swatch}`, { "aria-hidden": "true" }), words))
    );
  }

  /** The button behind which a legend goes where a view is narrow (view.css). */
  legendButton(legend) {
    legend.classList.add("sgnb-folding");
    const made = button(trans.__("Legend"), () => made.setAttribute("aria-expanded", String(legend.classList.toggle("sgnb-open"))), { className: "sgnb-legend-button", "aria-expanded": "false" });
    return made;
  }

  /** A find box; `find(text)` of the view is called as it is typed. */
  findBox(label) {
    this.findInput = el("input", "sgnb-input sgnb-find", { type: "search", placeholder: label, "aria-label": label, spellcheck: "false" });
    on(this.findInput, "input", () => this.find(this.findInput.value));
    on(this.findInput, "keydown", event => {
      event.stopPropagation();
      if (event.key !== "Escape") return;
      this.findInput.value = "";
      this.find("");
      this.host.focus();
    });
    return this.findInput;
  }

  // ---------------------------------------------------------------- when to draw

  _told(what) {
    if (what === "selection") this.region.say(this.sentence());
    this._dirty = this._detailsDirty = true;
    const now = performance.now();
    const dragged = what === "playhead" && now - this._movedAt < DETAILS_EVERY; // the pictures follow, words a few times a second
    if (what !== "data" && !dragged) this._detailsAt = -Infinity;
    if (what === "playhead") this._movedAt = now;
    this._schedule(what === "playhead" || what === "selection"); // where the reader is, all views are in the same frame
  }

  _watch() {
    const resize = new ResizeObserver(entries => {
      const width = Math.round(entries[0].contentRect.width);
      if (!width || width === this.width) return;
      this.width = width;
      this.host.dataset.width = width >= 900 ? "wide" : width >= 560 ? "middle" : "narrow";
      this.changed();
    });
    resize.observe(this.host);
    const inside = new IntersectionObserver(entries => this._see(entries.at(-1).isIntersecting));
    inside.observe(this.host);
    const repaint = () => {
      this._colours = null;
      this.changed();
    };
    const theme = new MutationObserver(repaint);
    theme.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "data-jp-theme-name", "class"] });
    const gone = new AbortController();
    const { signal } = gone;
    on(document, "visibilitychange", () => this._see(this._inside), { signal });
    on(matchMedia("(forced-colors: active)"), "change", repaint, { signal });
    this._offs.push(() => gone.abort(), ...[resize, inside, theme].map(observer => () => observer.disconnect()));
  }

  _see(inside) {
    this._inside = inside;
    const seen = inside && document.visibilityState !== "hidden";
    if (seen === this._seen) return;
    this._seen = seen;
    if (this.constructor.follows) this.store.visible(this, seen);
    if (seen) this.changed();
  }

  _schedule(urgent) {
    if (this._seen && !this._closed) registry().draw(this._drawing, urgent);
  }

  /** `room`: of the body its width, of the view its height, where `_scroll` stands. */
  _measure() {
    const { scrollTop = 0, scrollLeft = 0 } = this._scroll ?? {};
    this.room = { width: this.body.clientWidth, height: this.host.clientHeight, top: scrollTop, left: scrollLeft };
  }

  _render() {
    if (!this.width || this._closed) return;
    const began = performance.now();
    this._showState();
    if (this._dirty) {
      this._dirty = false;
      this.draw();
      this.host.dataset.seq = String(this.store.live.seq);
      this.host.dataset.step = String(this.store.step);
      this.host.dataset.ready = "1";
    }
    this.host.dataset.drawMs = (performance.now() - began).toFixed(2);
  }

  /** What is words, after the pictures of all views. */
  _rest() {
    if (!this.width || this._closed) return;
    this.playhead.update();
    if (!this._detailsDirty) return;
    const wait = this._detailsAt + DETAILS_EVERY - performance.now();
    if (wait === -Infinity) this._tellDetails(); // nothing may lag behind what the reader did once
    else this._timer ||= setTimeout(() => {
      this._timer = 0;
      if (this._seen && !this._closed) registry().draw(this._telling); // not in the frame of a picture
    }, Math.max(0, wait));
  }

  _tellDetails() {
    if (this._closed || !this._detailsDirty) return;
    this._detailsDirty = false;
    this._detailsAt = performance.now();
    setText(this._titleFacts, this.facts());
    setText(this.engineName, this.store.replaying ? this.store.replaying.file : this.options.engine ? trans.__("engine %1", this.options.engine) : "");
    this.details();
  }

  _showState() {
    const state = this.options.ownState ? this.options.ownState(this) : emptyState(this.store, this.options);
    this.host.dataset.state = this.options.ownState ? (state ? "empty" : "ok") : this.store.phase;
    const cover = !!state?.cover;
    if (this._cover.hidden === cover || (cover && this._coverWords !== state.words)) {
      this._coverWords = state?.words;
      this._cover.hidden = !cover;
      this._content.hidden = cover;
      fill(this._cover, cover ? emptyNode(state) : []);
      this._measure(); // what was covered had no size
    }
    this.note.hidden = !state || cover;
    if (state && !cover) setText(this.note, state.words);
    this._content.classList.toggle("sgnb-old", this.host.dataset.state === "gap");
  }

  // ---------------------------------------------------------------- keys

  _key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) {
      if (event.target.matches("input, select")) event.stopPropagation();
      return;
    }
    if (this.key(event) || this._common(event)) {
      event.preventDefault();
      event.stopPropagation();
    }
  }

  /** The keys of all views; true when it is one. */
  _common({ key }) {
    const { store } = this;
    const acts = {
      ",": () => store.stepBy(-1),
      ".": () => store.stepBy(1),
      "<": () => store.eventBy(-1),
      ">": () => store.eventBy(1),
      l: () => store.goLive(),
      "/": () => (this.findInput ? this.findInput.focus() : false),
      escape: () => store.select(null),
      "+": () => this.zoom(1),
      "-": () => this.zoom(-1),
      0: () => this.zoom(0),
      c: () => this.copySelected(),
      "?": () => this._help(),
    };
    const act = acts[SAME_KEYS[key] ?? key.toLowerCase()];
    return !!act && act() !== false;
  }

  /** Put what is selected on the clipboard. */
  copySelected() {
    const text = this.copy();
    if (!text) return false;
    return copyText(text, this.region);
  }

  _toggleDrawer() {
    const open = this.host.classList.toggle("sgnb-drawer-open");
    this.drawer.setAttribute("aria-expanded", String(open));
    this.changed();
    if (open) this.side.scrollIntoView({ block: "nearest" }); // in a low pane it opens below what is seen
  }

  // ---------------------------------------------------------------- colours for canvases

  /** The tokens of theme.css as they are now. */
  get colours() {
    if (this._colours) return this._colours;
    const style = getComputedStyle(this.host);
    const read = name => style.getPropertyValue(`--sgnb-${name}`).trim();
    const names = ["reused", "reused-edge", "evictable", "locked", "locked-fill", "prefill", "prefill-edge", "decode", "forced"];
    names.push("trouble", "trouble-text", "reused-text", "good-text", "text", "text2", "ground", "soft", "rule", "strong", "choice");
    this._colours = Object.fromEntries(names.map(name => [name.replace(/-(\w)/g, (_, c) => c.toUpperCase()), read(name)]));
    this._colours.ui = style.getPropertyValue("--sgnb-ui").trim() || "sans-serif";
    this._colours.code = style.getPropertyValue("--sgnb-code").trim() || "monospace";
    this._colours.forcedColors = matchMedia("(forced-colors: active)").matches;
    return this._colours;
  }

  destroy() {
    this._closed = true;
    this.store.visible(this, false);
    registry().undraw(this._drawing);
    registry().undraw(this._telling);
    clearTimeout(this._timer);
    this.region.close();
    this.tip.hide();
    for (const off of this._offs) off();
    this.host.replaceChildren();
  }
}
