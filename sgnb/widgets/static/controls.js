// Controls that all engine views share: switches, the playhead bar, empty states, the live region, the help dialog.

import { before, clockTime, count } from "./format.js";
import { button, el, fill, on, seenPart, setText } from "./dom.js";
import { trans } from "./trans.js";

/** A segmented switch (radiogroup), or a select where it is narrow. `options` are [value, label]; `onchange(value)`. */
export function segmented(label, options, value, onchange) {
  const buttons = options.map(([id, text]) =>
    el("button", "sgnb-seg", { type: "button", role: "radio", "data-value": id, onclick: () => choose(id) }, text)
  );
  const group = el("div", "sgnb-segmented", { role: "radiogroup", "aria-label": label }, buttons);
  const narrow = el("select", "sgnb-select", { "aria-label": label, onchange: event => choose(event.target.value) });
  for (const [id, text] of options) narrow.append(el("option", "", { value: id }, text));
  const show = chosen => {
    for (const button of buttons) {
      const on = button.dataset.value === chosen;
      button.setAttribute("aria-checked", String(on));
      button.tabIndex = on ? 0 : -1;
    }
    narrow.value = chosen;
  };
  const choose = id => {
    if (id === node.value) return;
    node.value = id;
    show(id);
    onchange(id);
  };
  on(group, "keydown", event => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    const offered = buttons.filter(button => !button.disabled);
    const at = offered.findIndex(button => button.tabIndex === 0);
    const next = offered[(at + step + offered.length) % offered.length];
    choose(next.dataset.value);
    next.focus();
  });
  /** Whether `id` can be chosen now; `why` not, for its tooltip. */
  const offer = (id, why = "") => {
    for (const one of [...buttons, ...narrow.options]) {
      if ((one.dataset.value ?? one.value) !== id) continue;
      one.disabled = !!why;
      one.title = why;
    }
  };
  const node = { element: el("div", "sgnb-switch", {}, group, narrow), value, choose, show, offer };
  show(value);
  return node;
}

/** `◂ step 1 171 ▸ −2.41 s Go live`; typing a number and Enter jumps to that step. */
export function playheadBar(store) {
  const back = button("◂", () => store.stepBy(-1), { className: "sgnb-icon", title: trans.__("Previous step ( , )"), "aria-label": trans.__("Previous step") });
  const next = button("▸", () => store.stepBy(1), { className: "sgnb-icon", title: trans.__("Next step ( . )"), "aria-label": trans.__("Next step") });
  const step = el("input", "sgnb-input sgnb-step", { type: "text", inputmode: "numeric", "aria-label": trans.__("Step"), spellcheck: "false" });
  const ago = el("span", "sgnb-ago");
  const live = button("", () => store.goLive(), { className: "sgnb-golive" });
  on(step, "keydown", event => {
    event.stopPropagation();
    if (event.key === "Enter") {
      const number = Number(step.value.replace(/\D/g, ""));
      if (number) store.goToStep(number);
      step.blur();
    } else if (event.key === "Escape") {
      step.blur();
    }
  });
  on(step, "focus", () => step.select());
  on(step, "blur", () => update());
  const player = playBar(store);
  const update = () => {
    player.update();
    const words = trans.__("step %1", count(store.step));
    if (document.activeElement !== step && step.value !== words) step.value = words;
    const replay = !!store.replaying;
    live.hidden = replay;
    setText(ago, replay ? positionWords(store) : store.isLive ? "" : before(store.now - store.time));
    setText(live, store.isLive ? trans.__("● Live") : trans.__("Go live"));
    live.classList.toggle("sgnb-is-live", store.isLive);
    live.setAttribute("aria-pressed", String(store.isLive));
    next.disabled = store.isLive;
    back.disabled = !store.history.steps.length;
  };
  update();
  return { element: el("div", "sgnb-playhead", {}, player.element, back, step, next, ago, live), update };
}

const SPEEDS = [0.1, 0.25, 0.5, 1, 2, 5, 10];

/** Play, pause, speed and position of a recording; hidden where an engine is shown. */
function playBar(store) {
  const speed = el("select", "sgnb-select sgnb-speed", { "aria-label": trans.__("Speed"), onchange: () => store.playing && store.play(Number(speed.value)) }, SPEEDS.map(value => el("option", "", { value, selected: value === 1 }, `${value}×`)));
  const toggle = button(trans.__("Play"), () => (store.playing ? store.pause() : store.play(Number(speed.value))), { className: "sgnb-play" });
  const position = el("input", "sgnb-position", { type: "range", min: 0, max: 1000, step: 1, "aria-label": trans.__("Position") });
  const span = () => Math.max(1e-6, store.live.time - store.oldest);
  on(position, "input", () => {
    store.pause();
    store.goTo(store.oldest + (span() * Number(position.value)) / 1000);
  });
  on(position, "keydown", event => event.stopPropagation());
  const element = el("div", "sgnb-player", { hidden: true }, toggle, speed, position);
  const update = () => {
    element.hidden = !store.replaying;
    if (!store.replaying) return;
    setText(toggle, store.playing ? trans.__("Pause") : trans.__("Play"));
    if (store.playing) speed.value = String(store.playing);
    const at = String(Math.round((1000 * (store.time - store.oldest)) / span()));
    if (document.activeElement !== position || store.playing) position.value = at;
    position.setAttribute("aria-valuetext", positionWords(store));
  };
  return { element, update };
}

/** `12.4 of 60.0 s`: where the playhead of a recording is. */
export function positionWords(store) {
  const whole = store.live.time - store.oldest;
  const digits = whole < 10 ? 2 : 1;
  return trans.__("%1 of %2 s", Math.max(0, store.time - store.oldest).toFixed(digits), whole.toFixed(digits));
}

/** The sentence and the one button of an empty view; null where there is something to show. */
export function emptyState(store, { start = null } = {}) {
  switch (store.phase) {
    case "none":
      return { words: trans.__("No engine is running."), button: start ? [trans.__("Start engine"), start] : null, cover: true };
    case "empty":
      return { words: trans.__("Nothing has run yet."), button: null, cover: true };
    case "gap":
      return { words: trans.__("Catching up …"), button: null, cover: false };
    case "gone":
      return {
        words: trans.__("The kernel ended at %1. This is the last state.", clockTime(store.engineAt)),
        button: null,
        cover: !store.live.seq,
      };
    default:
      if (store.replaying?.trouble) return { words: trans.__("The recording ends early: %1.", store.replaying.trouble), button: null, cover: false };
      return null;
  }
}

/** The same five sentences, for a view that knows its own reason (`recording of another version`). */
export function emptyNode(state) {
  const node = el("div", "sgnb-empty", {}, el("p", "", {}, state.words));
  if (state.button) node.append(button(...state.button));
  return node;
}

const MOST_KEPT = 4; // sentences that are read one after the other; of more their number is

/**
 * One polite live region, which speaks at most once in two seconds: of what came meanwhile the newest sentence wins. What is
 * told with `sum`, words for a number of such, happens once and is kept: it is said before that.
 */
export function liveRegion() {
  const element = el("div", "sgnb-live-region", { "aria-live": "polite", role: "status" });
  let last = -Infinity;
  let timer = 0;
  let waiting = "";
  let kept = [];
  let inSum = null;
  const put = () => {
    timer = 0;
    last = performance.now();
    const once = kept.length > MOST_KEPT ? [inSum(kept.length)] : kept;
    setText(element, [...once, waiting].filter(Boolean).join(" "));
    waiting = "";
    kept = [];
  };
  const say = (text, sum = null) => {
    const now = performance.now();
    if (sum) {
      kept.push(text);
      inSum = sum;
    } else waiting = text;
    if (timer) return;
    if (now - last >= 2000) put();
    else timer = setTimeout(put, 2000 - (now - last));
  };
  return { element, say, close: () => clearTimeout(timer) };
}

/** Put a text on the clipboard; the live region says whether that went well. */
export function copyText(text, region) {
  const refused = () => region.say(trans.__("The browser refused to copy."));
  return navigator.clipboard ? navigator.clipboard.writeText(text).then(() => region.say(trans.__("Copied.")), refused) : refused(); // none without https
}

/** The keys of the engine's views. */
export const viewKeys = () => [
  [", .", trans.__("Step back, forward")],
  [trans.__("Shift + , ."), trans.__("Previous, next event")],
  ["L", trans.__("Go live")],
  ["/", trans.__("Find")],
  [trans.__("Esc"), trans.__("Clear the selection")],
  ["+ − 0", trans.__("Zoom in, out, reset")],
  [trans.__("Arrows"), trans.__("Move in the data")],
  [trans.__("Enter"), trans.__("Select")],
  ["C", trans.__("Copy what is selected")],
  ["?", trans.__("This list")],
];

/** The dialog behind `?`: non-modal, closes on Escape, gives focus back. `keys`: pairs of keys and words.
 *  It lies above the page: neither a short cell's output nor a scrolled pane cuts it. */
export function helpDialog(host, keys) {
  const dialog = el("dialog", "sgnb-help", { popover: "manual", "aria-label": trans.__("Keys") });
  const shut = () => {
    if (!dialog.matches(":popover-open")) return;
    dialog.hidePopover();
    before_?.focus?.();
  };
  const close = button(trans.__("Close"), shut);
  fill(
    dialog,
    el("h2", "", {}, trans.__("Keys")),
    el("dl", "", {}, keys.flatMap(([key, words]) => [el("dt", "", {}, key), el("dd", "", {}, words)])),
    close
  );
  let before_ = null;
  on(dialog, "keydown", event => {
    event.stopPropagation();
    if (event.key === "Escape") shut();
  });
  on(dialog, "focusout", event => {
    if (!dialog.contains(event.relatedTarget) && dialog.matches(":popover-open")) dialog.hidePopover();
  });
  host.append(dialog);
  return () => {
    before_ = document.activeElement;
    if (!dialog.matches(":popover-open")) dialog.showPopover();
    const box = host.getBoundingClientRect();
    const seen = seenPart(host);
    const within = (at, size, most) => Math.max(4, Math.min(at, most - size - 4));
    dialog.style.left = `${within(box.left + (box.width - dialog.offsetWidth) / 2, dialog.offsetWidth, window.innerWidth)}px`;
    dialog.style.top = `${within(box.top + seen.top + 40, dialog.offsetHeight, window.innerHeight)}px`;
    close.focus({ preventScroll: true });
  };
}

/** A tooltip that follows the pointer; what it says is also elsewhere. Shown after 80 ms. */
export function tooltip(host) {
  const element = el("div", "sgnb-tooltip", { hidden: true, "aria-hidden": "true" });
  host.append(element);
  let timer = 0;
  const hide = () => {
    clearTimeout(timer);
    timer = 0;
    element.hidden = true;
  };
  const show = (x, y, lines) => {
    clearTimeout(timer);
    const put = () => {
      fill(element, lines.map((line, index) => el("div", index ? "sgnb-dim" : "", {}, line)));
      element.hidden = false;
      const box = host.getBoundingClientRect();
      const width = element.offsetWidth;
      const height = element.offsetHeight;
      element.style.left = `${Math.max(2, Math.min(x + 12, box.width - width - 4))}px`;
      const seen = seenPart(host);
      const top = y + 16 + height > seen.bottom ? Math.max(seen.top + 2, y - height - 8) : y + 16;
      element.style.top = `${host.scrollTop + top}px`;
    };
    if (element.hidden) timer = setTimeout(put, 80);
    else put();
  };
  return { show, hide };
}
