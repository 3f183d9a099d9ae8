// Entry of the program widget: its model is the comm. Data by custom messages (deltas), the whole by the trait `snapshot`.

import { el } from "./dom.js";
import { applyDelta, fromSnapshot, isRunning } from "./program_data.js";
import { newOutlook, ProgramView } from "./program_view.js";
import { storeOf } from "./store.js";

const HELLO_EVERY = 1000;
const outlooks = new Map(); // by run: JupyterLab makes a view anew when the run's output changes, at its end

function render({ model, el: root }) {
  const host = el("div");
  const opened = el("div");
  root.append(host, opened);
  const key = model.get("key");
  if (!outlooks.has(key)) outlooks.set(key, newOutlook());
  const view = new ProgramView(host, message => model.send(message), outlooks.get(key));
  let doc = fromSnapshot(model.get("snapshot") ?? {});
  let dirty = null; // set of rows to draw at the next frame; "all" after a snapshot
  let frame = 0;
  let visible = true;
  let asked = -HELLO_EVERY;
  let detach = null;

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
    frame = 0;
    if (!visible || dirty === null) return;
    const changed = dirty === "all" ? undefined : [...dirty];
    dirty = null;
    joinStore();
    view.draw(doc, changed);
  };
  const schedule = () => {
    if (!frame && visible) frame = requestAnimationFrame(paint);
  };
  const onSnapshot = () => {
    const snapshot = model.get("snapshot");
    const next = fromSnapshot(snapshot);
    if (next.seq >= doc.seq) {
      doc = next;
      dirty = "all";
      schedule();
    }
    if (isRunning(snapshot.head ?? {})) model.send({ k: "ack", seq: snapshot.seq });
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
    const close = el("button", "sgnb-button", { type: "button" }, "Close");
    close.addEventListener("click", () => {
      made.remove();
      place.remove();
    });
    place.append(made.el, close);
    opened.querySelector(`[data-kind="${kind}"] > button`)?.click();
    opened.append(place);
    place.scrollIntoView({ block: "nearest" });
  };
  const watcher = new IntersectionObserver(entries => {
    visible = view.seen = entries[entries.length - 1].isIntersecting;
    if (visible) schedule();
  });
  watcher.observe(host);
  model.on("change:snapshot", onSnapshot);
  model.on("msg:custom", onMessage);
  joinStore();
  view.draw(doc);
  if (isRunning(doc.head)) model.send({ k: "hello" });
  return () => {
    watcher.disconnect();
    cancelAnimationFrame(frame);
    model.off("change:snapshot", onSnapshot);
    model.off("msg:custom", onMessage);
    detach?.();
    view.dispose();
    host.remove();
    opened.remove();
  };
}

const widget = { render };
export default widget;
