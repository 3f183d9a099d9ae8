// The program view: draws one run. Used by the notebook widget (default export) and by tests (named exports).
// All words come from the kernel (sgnb/widgets/fold.py); text enters the page through textContent only.

const HIDDEN =
  /[\u0000-\u0008\u000B-\u001F\u007F-\u009F\u00AD\u034F\u061C\u115F\u1160\u180E\u200B-\u200F\u2028-\u202E\u2060-\u206F\u3164\uFEFF\uFFF9-\uFFFB\uD800-\uDFFF]|[\u{E0000}-\u{E007F}]/u;
const ANNOUNCE_EVERY = 2000;
const NUMBERS_EVERY = 250;
const CLOCK_TRUST = 3000; // after so many ms without a message the clock stops: the kernel may be gone
const STOP_PATIENCE = 1500;
const STOP_AGAIN = 400;
const FOLD_LINES = 3;

// ------------------------------------------------------------------ pure

/** `0.38 s` from 0.1 s on, `31 ms` below it. */
export function formatSeconds(seconds) {
  if (!(seconds >= 0)) return "–";
  if (seconds < 0.0995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 9.995) return `${seconds.toFixed(2)} s`;
  if (seconds < 99.95) return `${seconds.toFixed(1)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 120 ? `${minutes} min` : `${Math.round(minutes / 60)} h`;
}

/** Cut text into runs; `box` runs are single characters that draw nothing and are shown by name. */
export function pieces(text) {
  if (!HIDDEN.test(text)) return text ? [{ text, box: false }] : [];
  const out = [];
  let plain = "";
  for (const char of text) {
    if (!HIDDEN.test(char)) {
      plain += char;
      continue;
    }
    if (plain) out.push({ text: plain, box: false });
    plain = "";
    out.push({ text: nameOf(char), box: true });
  }
  if (plain) out.push({ text: plain, box: false });
  return out;
}

function nameOf(char) {
  const code = char.codePointAt(0);
  return `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
}

/** A document from a snapshot message. */
export function fromSnapshot(snapshot) {
  return {
    seq: snapshot.seq ?? -1,
    head: snapshot.head ?? {},
    rows: snapshot.rows ?? [],
    pending: snapshot.pending ?? [],
  };
}

/**
 * Apply a delta to `doc` in place. Returns the indices of changed rows, or null when a message is missing
 * (the caller asks for a snapshot). A delta that is already contained changes nothing.
 */
export function applyDelta(doc, delta) {
  if (delta.seq <= doc.seq && delta.from !== doc.seq) return [];
  if (delta.from !== doc.seq) return null;
  const changed = new Set();
  for (const [index, data] of delta.rows) {
    const old = doc.rows[index];
    data.segs.forEach((seg, number) => {
      seg.text = old?.segs[number]?.text ?? "";
    });
    doc.rows[index] = data;
    changed.add(index);
  }
  for (const [index, number, text] of delta.text) {
    doc.rows[index].segs[number].text += text;
    changed.add(index);
  }
  doc.seq = delta.seq;
  doc.head = delta.head;
  if (delta.pending) doc.pending = delta.pending;
  return [...changed];
}

/** Width in px of the reused part of a 48 px bar; never 0 or 48 when both kinds are there. */
export function barWidth(cached, prompt, width = 48) {
  if (!prompt || cached <= 0) return 0;
  if (cached >= prompt) return width;
  return Math.min(width - 2, Math.max(2, Math.round((width * cached) / prompt)));
}

/** True until the run has ended. */
export function isRunning(head) {
  return head.state === "running" || head.state === "queued";
}

/** The sentence for the live region when the run's state changes. */
export function sentence(doc) {
  const { word = "", facts = [] } = doc.head;
  return `Run ${doc.head.cell ? `[${doc.head.cell}] ` : ""}${word.toLowerCase()}${facts.length ? `, ${facts.join(", ")}` : ""}.`;
}

// ------------------------------------------------------------------ DOM helpers

function el(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function appendText(parent, text) {
  for (const piece of pieces(text)) {
    if (piece.box) {
      parent.append(el("span", "sgnb-box", piece.text));
    } else if (parent.lastChild?.nodeType === Node.TEXT_NODE) {
      parent.lastChild.appendData(piece.text);
    } else {
      parent.append(document.createTextNode(piece.text));
    }
  }
}

function joinDots(parent, parts) {
  parts.forEach((part, index) => {
    if (index) parent.append(el("span", "sgnb-dot", "·"));
    parent.append(typeof part === "string" ? el("span", "", part) : part);
  });
}

function bar(cost) {
  const node = el("span", "sgnb-bar");
  const width = barWidth(cost.cached, cost.prompt);
  if (width > 0) {
    const reused = el("span", "sgnb-bar-reused");
    reused.style.width = `${width}px`;
    node.append(reused);
  }
  if (width < 48) node.append(el("span", "sgnb-bar-computed"));
  node.setAttribute("role", "img");
  node.setAttribute("aria-label", cost.reuse);
  return node;
}

// ------------------------------------------------------------------ one row

class RowView {
  constructor() {
    this.el = el("div", "sgnb-row");
    this.gutter = el("div", "sgnb-gutter");
    this.body = el("div", "sgnb-body");
    this.text = el("div", "sgnb-text");
    this.more = el("button", "sgnb-link", "Show all text");
    this.more.type = "button";
    this.more.hidden = true;
    this.costs = el("div", "sgnb-costs");
    this.errors = el("div", "sgnb-error");
    this.body.append(this.text, this.more, this.costs, this.errors);
    this.el.append(this.gutter, this.body);
    this.spans = [];
    this.open = false;
    this.more.addEventListener("click", () => {
      this.open = !this.open;
      this.fold();
    });
  }

  update(row) {
    this.row = row;
    const label = row.kind === "turn" ? row.role : row.kind;
    this.gutter.textContent = label;
    if (row.branch) this.gutter.prepend(el("span", "sgnb-branch", `branch ${row.branch}`));
    this.el.dataset.role = label;
    this.el.dataset.state = row.state;
    row.segs.forEach((seg, index) => this.segment(seg, index));
    this.costLines(row);
    this.errors.hidden = !row.error.length;
    if (row.error.length) this.errors.textContent = row.error.join("\n");
  }

  segment(seg, index) {
    let view = this.spans[index];
    if (!view) {
      const node = el("span", seg.model ? "sgnb-model" : "sgnb-prompt");
      if (seg.model) {
        node.setAttribute("role", "log");
        node.setAttribute("aria-live", "off"); // the view's one live region speaks
        node.setAttribute("aria-label", seg.name);
      }
      this.text.append(node);
      view = this.spans[index] = { node, shown: "", hidden: 0, caret: null };
    }
    if (seg.text.startsWith(view.shown)) {
      appendText(view.node, seg.text.slice(view.shown.length));
    } else {
      view.node.textContent = "";
      appendText(view.node, seg.text);
    }
    view.shown = seg.text;
    if (seg.hidden && !view.note) this.text.append((view.note = el("span", "sgnb-note")));
    if (view.note)
      view.note.textContent = ` … ${seg.hidden} more characters are not shown${seg.name ? `; ${seg.name} holds them.` : "."}`;
  }

  costLines(row) {
    this.costs.textContent = "";
    const gens = this.spans.filter((_, index) => row.segs[index]?.model);
    row.costs.forEach((cost, index) => {
      gens[index]?.node.classList.toggle("sgnb-running", cost.state === "running");
      const line = el("div", "sgnb-cost");
      line.dataset.name = cost.name;
      line.dataset.state = cost.state;
      line.append(el("code", "sgnb-name", cost.name));
      const parts = cost.parts.map((part) => el("span", "sgnb-part", part));
      if (cost.prompt) {
        line.append(bar(cost));
        parts.unshift(el("span", "sgnb-reuse", cost.reuse));
      }
      joinDots(line, parts);
      this.costs.append(line);
    });
  }

  /** Prompt text of more than three lines folds; model text never does. */
  fold() {
    const foldable = !this.row.segs.some((seg) => seg.model) && this.row.state !== "failed";
    this.text.classList.toggle("sgnb-folded", foldable && !this.open);
    const cut = foldable && (this.open || this.text.scrollHeight > this.text.clientHeight + 2);
    this.more.hidden = !cut;
    this.more.textContent = this.open ? "Show less" : "Show all text";
    this.more.setAttribute("aria-expanded", String(this.open));
  }
}

// ------------------------------------------------------------------ the view

/** Draws a document into `root`. `send` carries messages to the kernel. */
export class ProgramView {
  constructor(root, send) {
    this.send = send;
    this.rows = [];
    this.root = root;
    root.classList.add("sgnb-program");
    root.setAttribute("role", "group");
    this.header = el("div", "sgnb-header");
    this.glyph = el("span", "sgnb-glyph");
    this.word = el("span", "sgnb-word");
    this.time = el("span", "sgnb-time");
    this.facts = el("span", "sgnb-facts");
    this.stop = el("button", "sgnb-button");
    this.stop.type = "button";
    this.stop.append(el("span", "sgnb-square"), el("span", "", "Stop"));
    this.stop.addEventListener("click", () => this.pressStop());
    this.noStop = el("span", "sgnb-nostop", "Interrupt the kernel to stop.");
    this.noStop.hidden = true;
    this.header.append(this.glyph, this.word, this.time, this.facts, el("span", "sgnb-space"), this.noStop, this.stop);
    this.summary = el("div", "sgnb-summary");
    this.list = el("div", "sgnb-rows");
    this.pending = el("div", "sgnb-pending");
    this.list.append(this.pending);
    this.list.tabIndex = 0; // it scrolls: the keyboard must reach it
    this.list.setAttribute("role", "group");
    this.list.setAttribute("aria-label", "Program");
    this.live = el("div", "sgnb-live");
    this.live.setAttribute("aria-live", "polite");
    root.append(this.header, this.summary, this.list, this.live);
    this.pinned = true;
    this.list.addEventListener(
      "scroll",
      () => {
        this.pinned = this.list.scrollTop + this.list.clientHeight >= this.list.scrollHeight - 8;
      },
      { passive: true },
    );
    this.lastNumbers = -NUMBERS_EVERY;
    this.lastSpoken = 0;
    this.spoken = "";
    this.received = performance.now();
    this.clock = setInterval(() => this.tick(), NUMBERS_EVERY);
    this.observer = new ResizeObserver(() => this.rows.forEach((row) => row.row && row.fold()));
    this.observer.observe(root);
  }

  /** Draw `doc`; `changed` lists the rows to touch, all when it is missing. */
  draw(doc, changed) {
    this.doc = doc;
    this.received = performance.now();
    const touched = changed ?? doc.rows.map((_, index) => index);
    for (const index of touched) {
      while (this.rows.length <= index) {
        const row = new RowView();
        this.rows.push(row);
        this.list.insertBefore(row.el, this.pending);
      }
      if (doc.rows[index]) this.rows[index].update(doc.rows[index]);
    }
    while (this.rows.length > doc.rows.length) this.rows.pop().el.remove();
    this.drawPending();
    this.drawHead();
    for (const index of touched) if (this.rows[index]?.row) this.rows[index].fold();
    if (this.pinned && isRunning(doc.head)) this.list.scrollTop = this.list.scrollHeight;
    this.root.dataset.seq = String(doc.seq);
  }

  /** What is still to come, or what was not run. */
  drawPending() {
    const steps = this.doc.pending ?? [];
    const ended = !isRunning(this.doc.head);
    const key = JSON.stringify([steps, ended]);
    if (key === this.pendingKey) return;
    this.pendingKey = key;
    this.pending.textContent = "";
    for (const step of steps) {
      const row = el("div", "sgnb-row");
      row.dataset.state = "pending";
      const text = el("div", "sgnb-text");
      const note = ended ? "not run" : step.note;
      if (step.text) text.append(el("span", "sgnb-prompt", step.text));
      if (note) text.append(el("span", "sgnb-note", note));
      const body = el("div", "sgnb-body");
      body.append(text);
      row.append(el("div", "sgnb-gutter", step.role), body);
      this.pending.append(row);
    }
  }

  drawHead() {
    const head = this.doc.head;
    const running = isRunning(head);
    this.root.dataset.state = head.state;
    this.root.setAttribute("aria-label", `Run ${head.cell ? `[${head.cell}]` : ""}, ${(head.word ?? "").toLowerCase()}`);
    if (!running) this.stopping = false;
    this.word.textContent = this.stopping ? "Stopping …" : head.word;
    this.glyph.dataset.state = head.word === "Starting engine" || head.word === "Queued" ? "waiting" : head.state;
    this.stop.hidden = !running || !this.noStop.hidden;
    this.stop.disabled = Boolean(this.stopping);
    if (!running) this.noStop.hidden = true;
    if (!running || performance.now() - this.lastNumbers >= NUMBERS_EVERY) this.drawNumbers();
    this.summary.textContent = "";
    for (const [strong, plain] of head.summary ?? []) {
      const part = el("span", "sgnb-fact");
      part.append(el("b", "", strong), document.createTextNode(plain ? ` ${plain}` : ""));
      this.summary.append(part);
    }
    this.summary.hidden = !(head.summary ?? []).length;
    this.speak();
  }

  /** Time and live numbers, at most four times a second while the run goes on. */
  drawNumbers() {
    const head = this.doc.head;
    this.lastNumbers = performance.now();
    this.facts.textContent = "";
    joinDots(this.facts, head.facts ?? []);
    const since = Math.min(performance.now() - this.received, CLOCK_TRUST);
    this.time.textContent = formatSeconds(head.seconds + (isRunning(head) ? since / 1000 : 0));
  }

  tick() {
    if (this.doc && isRunning(this.doc.head) && this.root.isConnected) this.drawNumbers();
  }

  speak() {
    const now = performance.now();
    const words = sentence({ head: { ...this.doc.head, facts: this.doc.head.state === "running" ? [] : this.doc.head.facts } });
    if (words === this.spoken || now - this.lastSpoken < ANNOUNCE_EVERY) {
      if (words !== this.spoken && !this.later) {
        this.later = setTimeout(() => {
          this.later = undefined;
          this.speak();
        }, ANNOUNCE_EVERY);
      }
      return;
    }
    this.lastSpoken = now;
    this.spoken = words;
    this.live.textContent = words;
  }

  pressStop() {
    this.stopping = true;
    this.answered = false;
    this.drawHead();
    this.send({ k: "stop" });
    clearInterval(this.again);
    this.again = setInterval(() => {
      if (this.stopping && !this.answered) this.send({ k: "stop" });
      else clearInterval(this.again);
    }, STOP_AGAIN);
    this.patience = setTimeout(() => {
      if (this.answered || !this.doc || !isRunning(this.doc.head)) return;
      this.stopping = false; // comms do not run beside a cell here
      this.noStop.hidden = false;
      this.drawHead();
    }, STOP_PATIENCE);
  }

  /** The kernel took the stop. */
  stopTaken() {
    this.answered = true;
  }

  dispose() {
    clearInterval(this.clock);
    clearTimeout(this.later);
    clearTimeout(this.patience);
    clearInterval(this.again);
    this.observer.disconnect();
  }
}

// ------------------------------------------------------------------ widget

function render({ model, el: root }) {
  const host = document.createElement("div");
  root.append(host);
  const view = new ProgramView(host, (message) => model.send(message));
  let doc = fromSnapshot(model.get("snapshot") ?? {});
  let dirty = null; // set of rows to draw at the next frame; "all" after a snapshot
  let frame = 0;
  let visible = true;
  let asked = 0;

  const paint = () => {
    frame = 0;
    if (!visible || dirty === null) return;
    const changed = dirty === "all" ? undefined : [...dirty];
    dirty = null;
    view.draw(doc, changed);
  };
  const schedule = () => {
    if (!frame && visible) frame = requestAnimationFrame(paint);
  };
  const take = (snapshot) => {
    const next = fromSnapshot(snapshot);
    if (next.seq < doc.seq) return;
    doc = next;
    dirty = "all";
    schedule();
  };
  const onSnapshot = () => {
    const snapshot = model.get("snapshot");
    take(snapshot);
    if (isRunning(snapshot.head ?? {})) model.send({ k: "ack", seq: snapshot.seq });
  };
  const onMessage = (message) => {
    if (message?.k === "stopping") return view.stopTaken();
    if (message?.k !== "delta") return;
    const changed = applyDelta(doc, message);
    if (changed === null) {
      const now = performance.now();
      if (now - asked > 1000) model.send({ k: "hello" });
      asked = now - asked > 1000 ? now : asked;
      return;
    }
    if (dirty !== "all") dirty = new Set([...(dirty ?? []), ...changed]);
    schedule();
  };
  const watcher = new IntersectionObserver((entries) => {
    visible = entries[entries.length - 1].isIntersecting;
    if (visible) schedule();
  });
  watcher.observe(host);
  model.on("change:snapshot", onSnapshot);
  model.on("msg:custom", onMessage);
  view.draw(doc);
  if (isRunning(doc.head)) model.send({ k: "hello" });
  return () => {
    watcher.disconnect();
    cancelAnimationFrame(frame);
    model.off("change:snapshot", onSnapshot);
    model.off("msg:custom", onMessage);
    view.dispose();
    host.remove();
  };
}

export default { render };
