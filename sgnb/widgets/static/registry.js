// What all bundles of one page share: its stores, its number, and the one timer that acknowledges for all of them.

const ACK_EVERY = 250; // ms, all stores of the page together

/** Names this load of the page. */
export function pageId() {
  return registry().page;
}

/** The page's one registry; made by whichever bundle comes first. */
export function registry() {
  const slot = Symbol.for("sgnb.stores");
  let found = globalThis[slot];
  if (!found) {
    const watched = new Set();
    let timer = 0;
    let turn = 0;
    found = globalThis[slot] = {
      page: Math.random().toString(36).slice(2, 12),
      stores: new Map(),
      // One acknowledgement per tick, whichever store has one due: at most four a second from the page.
      watch(store) {
        watched.add(store);
        timer ||= setInterval(() => {
          const list = [...watched];
          if (!list.some(other => other._speaker)) {
            clearInterval(timer);
            timer = 0;
            watched.clear();
            return;
          }
          for (let i = 0; i < list.length; i++) if (list[(turn + i) % list.length].tick()) break;
          turn++;
        }, ACK_EVERY);
      },
    };
  }
  return found;
}
