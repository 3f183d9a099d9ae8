// What all bundles of one page share: its stores, its number, the one timer that acknowledges for all of them, and the
// frames in which they draw.

const ACK_EVERY = 250; // ms, all stores of the page together
const FRAME = 6; // ms of drawing after which what is not urgent waits for the next frame
const PASSED = 1;
const URGENT = 2;

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
        watched.add(store); // a store, or the view of a run: it has news as long as it has a `_speaker`
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
  if (!found.draw) Object.assign(found, frames()); // one of an older sgnb may have been first
  return found;
}

/**
 * Views that all got the same news must not make one long task of it: they draw in turn, some in each frame.
 * `draw(f, urgent)` calls f once, in the next frame if it is urgent; `undraw(f)` takes that back. What f reads of the page's
 * layout it reads in `f.measure`, called before anyone writes; what it writes beside its canvas, in `f.after`, when all have
 * drawn: to read, or to set a canvas's font, after a writing lays the page out once more.
 */
function frames() {
  const waiting = new Map(); // f → 0, PASSED or URGENT; whoever waits longest is first
  let frame = 0;
  const run = () => {
    frame = 0;
    const until = performance.now() + FRAME;
    const drawn = [];
    let room = true;
    const list = [...waiting].sort((a, b) => (b[1] === URGENT) - (a[1] === URGENT));
    for (const [draw] of list) draw.measure?.();
    for (const [draw, state] of list) {
      if (state !== URGENT && (!room || (state !== PASSED && performance.now() > until))) {
        waiting.set(draw, PASSED);
        continue;
      }
      if (!waiting.delete(draw)) continue;
      attempt(draw);
      drawn.push(draw);
      if (state !== URGENT) room = performance.now() < until;
    }
    for (const { after } of drawn) if (after) attempt(after);
    if (waiting.size) frame ||= requestAnimationFrame(run);
  };
  return {
    draw(draw, urgent = false) {
      if (urgent || !waiting.has(draw)) waiting.set(draw, urgent ? URGENT : 0);
      frame ||= requestAnimationFrame(run);
    },
    undraw: draw => waiting.delete(draw),
  };
}

function attempt(draw) {
  try {
    draw();
  } catch (error) {
    reportError(error); // the others draw all the same
  }
}
