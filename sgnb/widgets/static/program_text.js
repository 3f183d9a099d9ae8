// The text of one row: its segments in blocks, appended in runs, shaded by token where that is asked for.
//
// Text enters as text nodes only. A stretch is an element of its own only when it is shaded; which token stands at a
// character is found by offsets (program_data.js). Blocks keep the cost of appending from growing with the text.

import { el } from "./dom.js";
import { breakAt, isCounted, marksAtEnd, pieces, stretches, tokenAt, tokenEnds } from "./program_data.js";
import { settings } from "./settings.js";
import { trans } from "./trans.js";

/** The text of a row. `host` gets blocks of spans. */
export class RowText {
  constructor(host) {
    this.host = host;
    this.shade = "none";
    this.clear();
  }

  clear() {
    this.host.replaceChildren();
    this.views = []; // by segment: {shown, ends, runs: [{node, from, to}], span, note}
    this.block = null;
    this.held = 0;
  }

  /** Bring the row's segments up to date. */
  update(segs, shade) {
    const signs = !!settings().showWhitespace;
    const again = shade !== this.shade || signs !== this.signs || segs.some((seg, index) => this._differs(seg, index));
    if (again) this.clear();
    this.shade = shade;
    this.signs = signs;
    segs.forEach((seg, index) => this._segment(seg, index));
  }

  _differs(seg, index) {
    const view = this.views[index];
    return !!view && (!seg.text.startsWith(view.shown) || (this.shade === "cached" && seg.reused !== view.reused));
  }

  _segment(seg, index) {
    let view = this.views[index];
    if (!view) view = this.views[index] = { shown: "", ends: [], runs: [], span: null, note: null };
    view.seg = seg;
    view.reused = seg.reused;
    tokenEnds(seg, view.ends);
    const from = view.shown.length;
    if (!view.span) this._span(seg, view);
    for (const part of stretches(seg, view.ends, this.shade, from, seg.text.length)) this._stretch(seg, view, part);
    view.shown = seg.text;
    if (isCounted(seg)) this._reachable(view.span);
    if (seg.hidden) {
      if (!view.note) this._newest().append((view.note = el("span", "sgnb-note")));
      view.note.textContent = seg.name ? trans.__(" … %1 more characters are not shown; %2 holds them.", seg.hidden, seg.name) : trans.__(" … %1 more characters are not shown.", seg.hidden);
    }
  }

  /** Tokens of a prompt can be inspected: its text is one stop of the keyboard. */
  _reachable(span) {
    if (span.tabIndex === 0) return;
    span.tabIndex = 0;
    span.setAttribute("role", "group");
    span.setAttribute("aria-label", trans.__("Prompt text"));
  }

  _newest() {
    if (!this.block) {
      this.block = el("div", "sgnb-run");
      this.host.append(this.block);
      this.held = 0;
    }
    return this.block;
  }

  _span(seg, view) {
    view.span?.classList.remove("sgnb-running"); // the caret stands behind the newest text
    view.span = el("span", seg.model ? "sgnb-model" : "sgnb-prompt");
    if (seg.model && !view.begun) {
      view.begun = true;
      view.span.setAttribute("role", "log");
      view.span.setAttribute("aria-live", "off"); // the view's one live region speaks
      view.span.setAttribute("aria-label", seg.name);
      view.span.tabIndex = 0;
    }
    view.span.sgnbSegment = view;
    this._newest().append(view.span);
  }

  _stretch(seg, view, { from, to, name }) {
    let at = from;
    while (at < to) {
      const text = seg.text.slice(at, to);
      const cut = breakAt(text, this.held);
      const end = cut ? at + cut : to;
      this._run(seg, view, at, end, name);
      at = end;
      if (cut) {
        this.block = null;
        this._span(seg, view);
      }
    }
  }

  _run(seg, view, from, to, name) {
    let parent = view.span;
    if (name) {
      parent = el("span", name);
      view.span.append(parent);
    }
    let at = from;
    for (const piece of pieces(seg.text.slice(from, to), this.signs, marksAtEnd(seg.text.slice(Math.max(0, from - 16), from)))) {
      const length = piece.box ? piece.length : piece.text.length;
      const last = parent.lastChild;
      if (piece.sign) {
        const blank = el("span", "sgnb-blank", { "data-sign": piece.sign }, piece.text);
        parent.append(blank);
        view.runs.push({ node: blank.firstChild, from: at, to: at + length });
      } else if (piece.box) {
        const box = el("span", "sgnb-box", {}, piece.text);
        parent.append(box);
        view.runs.push({ node: box.firstChild, from: at, to: at + length, box: true });
      } else if (last && last.nodeType === Node.TEXT_NODE) {
        last.appendData(piece.text);
        view.runs[view.runs.length - 1].to = at + length;
      } else {
        const node = document.createTextNode(piece.text);
        parent.append(node);
        view.runs.push({ node, from: at, to: at + length });
      }
      at += length;
    }
    this.held += to - from;
  }

  /** The segment's number and the token at a point of the page, or null. */
  tokenAtPoint(x, y) {
    const caret = document.caretPositionFromPoint?.(x, y);
    const range = caret ? null : document.caretRangeFromPoint?.(x, y);
    const node = caret?.offsetNode ?? range?.startContainer;
    const offset = caret?.offset ?? range?.startOffset ?? 0;
    for (let index = 0; node && index < this.views.length; index++) {
      const run = this.views[index].runs.find(one => one.node === node);
      if (!run) continue;
      const at = run.box ? run.from : Math.min(run.from + offset, run.to - 1);
      const place = tokenAt(this.views[index].ends, this._left(node, offset, x) ? Math.max(run.from, at - 1) : at);
      return place < 0 ? null : { index, place };
    }
    return null;
  }

  /** True when the point lies left of the caret that was found: on the character before it. */
  _left(node, offset, x) {
    if (!offset) return false;
    const range = document.createRange();
    range.setStart(node, offset - 1);
    range.setEnd(node, Math.min(offset, node.length));
    const box = range.getBoundingClientRect();
    return x >= box.left && x < box.right;
  }

  /** The boxes of a token on the page, one a line; of one that is a part of a character, those of the character. */
  rectsOf(index, place) {
    const view = this.views[index];
    if (!view || place >= view.ends.length) return [];
    let begin = place ? view.ends[place - 1] : 0;
    const end = view.ends.find((one, at) => at >= place && one > begin) ?? begin;
    if (end === begin) begin = Math.max(0, begin - 1); // it was never completed: it stands behind this one
    const to = Math.min(end, view.shown.length);
    const blank = /^\s*/.exec(view.shown.slice(begin, to))[0].length;
    const from = begin + blank < to ? begin + blank : begin;
    const out = [];
    for (const run of view.runs) {
      if (run.to <= from || run.from >= to) continue;
      const range = document.createRange();
      range.setStart(run.node, run.box ? 0 : Math.max(0, from - run.from));
      range.setEnd(run.node, run.box ? run.node.length : Math.min(to, run.to) - run.from);
      out.push(...range.getClientRects());
    }
    return out.filter(box => box.width > 0).reduce(joinBox, []);
  }

  /** The text of a token, as it is shown. */
  textOf(index, place) {
    const { ends, shown } = this.views[index];
    return shown.slice(place ? ends[place - 1] : 0, ends[place]);
  }
}

/** Boxes of one line become one. */
function joinBox(boxes, box) {
  const last = boxes[boxes.length - 1];
  if (last && Math.abs(last.top - box.top) < 4 && box.left - last.right < 2) boxes[boxes.length - 1] = new DOMRect(last.left, Math.min(last.top, box.top), box.right - last.left, Math.max(last.height, box.height));
  else boxes.push(box);
  return boxes;
}
