// The keys of a program view that all views have: the playhead, what is selected, the list of keys. Those of its tokens are
// the inspector's. Used by program_view.js.

import { copyText, helpDialog } from "./controls.js";
import { trans } from "./trans.js";

const programKeys = () => [
  [", .", trans.__("Step back, forward")],
  [trans.__("Shift + , ."), trans.__("Previous, next event")],
  ["L", trans.__("Go live")],
  ["← →", trans.__("Walk the tokens of a text")],
  [trans.__("Enter"), trans.__("Inspect a token")],
  [trans.__("Esc"), trans.__("Close, clear the selection")],
  ["C", trans.__("Copy the text")],
  ["?", trans.__("This list")],
];

/** Take a key; true when it was one of these. */
export function programKey(view, event) {
  const { store } = view;
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return false;
  const copy = () => {
    const text = event.target.closest(".sgnb-row")?.querySelector(".sgnb-text")?.textContent;
    return text ? copyText(text, view.region) : false;
  };
  const acts = {
    ",": () => view.past.scrub(store, () => store.stepBy(-1)),
    ".": () => view.past.scrub(store, () => store.stepBy(1)),
    "<": () => view.past.scrub(store, () => store.eventBy(-1)),
    ">": () => view.past.scrub(store, () => store.eventBy(1)),
    l: () => store?.goLive(),
    escape: () => store?.select(null),
    c: copy,
    "?": () => (view.help ??= helpDialog(view.root, programKeys()))(),
  };
  const act = acts[event.key.toLowerCase()];
  return !!act && act() !== false;
}
