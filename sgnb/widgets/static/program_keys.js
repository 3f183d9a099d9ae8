// The keys of a program view that all views have: the playhead, what is selected, the list of keys. Those of its tokens are
// the inspector's. Used by program_view.js.

import { copyText, helpDialog } from "./controls.js";

const KEYS = [
  [", .", "Step back, forward"],
  ["Shift + , .", "Previous, next event"],
  ["L", "Go live"],
  ["← →", "Walk the tokens of a text"],
  ["Enter", "Inspect a token"],
  ["Esc", "Close, clear the selection"],
  ["C", "Copy the text"],
  ["?", "This list"],
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
    ",": () => store?.stepBy(-1),
    ".": () => store?.stepBy(1),
    "<": () => store?.eventBy(-1),
    ">": () => store?.eventBy(1),
    l: () => store?.goLive(),
    escape: () => store?.select(null),
    c: copy,
    "?": () => (view.help ??= helpDialog(view.root, KEYS))(),
  };
  const act = acts[event.key.toLowerCase()];
  return !!act && act() !== false;
}
