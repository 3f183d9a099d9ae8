// Entry of the program widget: its model is the comm. Data by custom messages (deltas), the whole by the trait `snapshot`.

import { el } from "./dom.js";
import { applyDelta, fromSnapshot, isRunning } from "./program_data.js";
import { newOutlook, ProgramView } from "./program_view.js";
import { registry } from "./registry.js";
import { storeOf } from "./store.js";
import { trans } from "./trans.js";

const HELLO_EVERY = 1000;
const outlooks = new Map(); // by run: a view that comes later goes on where the reader was
const parts = new WeakMap(); // model → the view that was made of it last

/**
 * At the end of a run its output changes, and JupyterLab makes a view anew, after it has taken the root of the old one out of the
 * page for good: what that showed moves to the new root, as it is. Another view of a run that is still shown is made.
 */
function render({ model, el: root }) {
  let part = parts.get(model);
  if (part?.attached && !part.root.parentNode) part.back();
  else parts.set(model, (part = make(model)));
  part.root = root;
  root.append(...part.nodes);
  return () => {
    if (part.root === root) part.stop();
  };
}

const CLOSE = {
  tree: () => trans.__("Close the radix tree"),
  kv: () => trans.__("Close the KV map"),
  timeline: () => trans.__("Close the timeline"),
  graph: () => trans.__("Close the graph"),
};
const SHOWN_HEIGHT = 200; // px: the least of a view that shows something

function make(model) {
  const host = el("div");
  const opened = el("div");
  const key = model.get("key");
  if (!outlooks.has(key)) outlooks.set(key, newOutlook());
  const view = new ProgramView(host, message => model.send(message), outlooks.get(key));
  let doc = fromSnapshot(model.get("snapshot") ?? {});
  let dirty = "all"; // after a snapshot; or a set of rows to draw at the next frame, or null
  let visible = true;
  let moved = false;
  let asked = -HELLO_EVERY;
  let detach = null;

  // What is to be acknowledged waits for the page's one timer: all its runs and stores together do it four times a second.
  const acks = {
    due: null,
    get _speaker() {
      return this.due !== null;
    },
    tick() {
      if (this.due === null) return false;
      model.send({ k: "ack", seq: this.due });
      this.due = null;
      return true;
    },
  };

  // The comm also speaks for the engine's store, so that this view needs no other one to ask questions.
  const channel = {
    send: content => model.send(content),
    onMessage: listener => {
      const take = (content, buffers) => {
        if (content?.page !== undefined || content?.k === "answer") listener(content, buffers);
      };
      model.on("msg:custom", take);
      return () => model.off("msg:custom", take);
    },
  };
  const joinStore = () => {
    const key = doc.head.store;
    if (!key || detach) return;
    const store = storeOf(key);
    detach = store.attach(channel);
    view.setStore(store);
  };
  const paint = () => {
    part.attached ||= host.isConnected;
    if (!visible || dirty === null) return;
    const changed = dirty === "all" ? undefined : [...dirty];
    dirty = null;
    joinStore();
    view.draw(doc, changed);
    if (moved) view.list.scrollTop = outlooks.get(key).top;
    moved = false;
  };
  const schedule = () => {
    if (visible) registry().draw(paint, true); // the newest text is what is read: other views come after it
  };
  const onSnapshot = () => {
    const snapshot = model.get("snapshot");
    const next = fromSnapshot(snapshot);
    if (next.seq >= doc.seq) {
      doc = next;
      dirty = "all";
      schedule();
    }
    acks.due = isRunning(snapshot.head ?? {}) ? snapshot.seq : null;
    if (acks.due !== null) registry().watch(acks);
  };
  const onMessage = message => {
    if (message?.k !== "delta") return message && view.take(message);
    const changed = applyDelta(doc, message);
    if (changed === null) {
      const now = performance.now();
      if (now - asked > HELLO_EVERY) {
        asked = now;
        model.send({ k: "hello" });
      }
      return undefined;
    }
    if (dirty !== "all") dirty = new Set([...(dirty ?? []), ...changed]);
    schedule();
    return undefined;
  };
  // A view that no pane takes is shown below this one, from the same widget manager.
  view.showBelow = async (kind, id) => {
    const other = await model.widget_manager.get_model(id);
    const made = await model.widget_manager.create_view(other);
    const place = el("div", "sgnb-opened-view", { "data-kind": kind });
    const close = el("button", "", { type: "button", "aria-label": CLOSE[kind]?.() ?? trans.__("Close the view") }, trans.__("Close"));
    close.addEventListener("click", () => {
      made.remove();
      place.remove();
    });
    place.append(close, made.el);
    opened.querySelector(`[data-kind="${kind}"] > button`)?.click();
    opened.append(place);
    // It has its height only when its first picture is made: what is brought into sight before that is its upper edge.
    const grown = new ResizeObserver(() => {
      if (place.offsetHeight < SHOWN_HEIGHT) return;
      grown.disconnect();
      place.scrollIntoView({ block: "nearest" });
    });
    grown.observe(place);
  };
  const watcher = new IntersectionObserver(entries => {
    visible = entries[entries.length - 1].isIntersecting;
    view.see(visible);
    if (visible) schedule();
  });
  watcher.observe(host);
  model.on("change:snapshot", onSnapshot);
  model.on("msg:custom", onMessage);
  joinStore();
  schedule();
  if (isRunning(doc.head)) model.send({ k: "hello" });
  const part = {
    nodes: [host, opened],
    attached: false, // it has been in the page
    back() {
      moved = true; // where it was scrolled to is lost outside of the page
      dirty ??= new Set();
      schedule();
    },
    stop() {
      if (parts.get(model) === part) parts.delete(model);
      watcher.disconnect();
      registry().undraw(paint);
      acks.due = null;
      model.off("change:snapshot", onSnapshot);
      model.off("msg:custom", onMessage);
      detach?.();
      view.dispose();
      for (const close of opened.querySelectorAll(":scope > * > button")) close.click();
      host.remove();
      opened.remove();
    },
  };
  return part;
}

const widget = { render };
export default widget;
