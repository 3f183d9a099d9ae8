// What a packed widget is before its view is in the page: it brings the core and the view's module there, each once for all
// widgets of a page and version, and is the view from then on. It stands in every widget's script (labextension/minify.mjs), so
// it imports no more than `trans`. Joined scripts are whole and have no loader.
//
// The core is what two or more widgets need: the store, the folds, the frame of a view. Its text is packed in a model of its own,
// which every widget of that kernel names in its trait `core`: a saved notebook holds it once. A view's module imports it from
// "sgnb:core", in whose stead its place in this page is put.

import { trans } from "./trans.js";

const EVERY = 200; // ms
const TRIES = 50; // ten seconds

/** The object that anywidget wants. `core` and `view` name a version of each; `packed` is the view's module. */
export function loaderOf(core, view, packed) {
  let widget = null;
  const load = async model => {
    const place = await coreOf(model, Symbol.for(`sgnb.core.${core}`));
    widget = await viewOf(place, Symbol.for(`sgnb.view.${view}`), packed);
  };
  const show = async context => {
    const note = document.createElement("div");
    const tell = words => {
      note.textContent = words;
      note.setAttribute("role", "status");
      context.el.append(note);
    };
    const late = setTimeout(() => tell(trans.__("The script of this view is on its way.")), 2 * EVERY);
    try {
      await load(context.model);
      note.remove();
      return widget.render(context);
    } catch (error) {
      console.error(error);
      note.className = "sgnb-unloaded"; // in its place the panel shows the output's table (labextension/src/saved.ts)
      tell(trans.__("The script of this view could not be loaded. Run the cell again to see it."));
      return () => note.remove();
    } finally {
      clearTimeout(late);
    }
  };
  return {
    // Not waited for: the model's messages go on meanwhile, and anywidget gives up one that takes two seconds.
    initialize({ model }) {
      load(model).catch(() => {}); // who shows it tries again, and says so
    },
    // A view that is loaded is made at once: what takes another's place in the page does so before that is freed.
    render: context => (widget ? widget.render(context) : show(context)),
  };
}

/** The core's place in this page, from whichever kernel brings it first. */
async function coreOf(model, slot) {
  const id = String(model.get("core")).replace("IPY_MODEL_", "");
  const read = async () => (await model.widget_manager.get_model(id)).get("packed");
  for (let tries = 0; tries < TRIES && !globalThis[slot]; tries++) {
    let timer;
    const turn = new Promise(go => (timer = setTimeout(go, EVERY)));
    const packed = await Promise.race([read().catch(() => turn), turn]); // a page that loads may know the model later
    clearTimeout(timer);
    if (!packed) continue;
    const code = await unpacked(packed);
    globalThis[slot] ??= placeOf(code);
  }
  if (!globalThis[slot]) throw new RangeError(`no model ${id}`);
  return globalThis[slot];
}

/** The view's default export. */
async function viewOf(core, slot, packed) {
  const make = async () => {
    const place = placeOf((await unpacked(packed)).replaceAll("sgnb:core", core));
    const module = await import(/* webpackIgnore: true */ place);
    URL.revokeObjectURL(place);
    return module.default;
  };
  try {
    return await (globalThis[slot] ??= make());
  } catch (error) {
    delete globalThis[slot];
    throw error;
  }
}

async function unpacked(packed) {
  const bytes = Uint8Array.from(atob(packed), char => char.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"))).text();
}

function placeOf(code) {
  return URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
}
