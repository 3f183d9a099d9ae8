// The words of the views in the reader's language. Pure: no page; called by every module that shows words.
//
//   trans.__("%1 of %2 slots used", a, b)                  a sentence with its places
//   trans._n("%2 slot", "%2 slots", n, count(n))           by number: %1 is n itself, %2 and on what follows it
//   parts(trans.__("Write to %1", ...PLACES), input)       a sentence that has elements in it, as a list
//
// It has the form of JupyterLab's TranslationBundle, so that its tools find the strings: a first argument is written out, never
// put together. JupyterLab's panel puts the reader's bundle on the page (labextension/src/settings.ts); where there is none
// (another page, a saved one) the English words stand as they are written here. Nothing may be looked up when a module is
// loaded: the bundle may come later. In loops that draw, a template is looked up once (`PLACES` keeps its places) and filled
// there. What the kernel says (sgnb/widgets/reasons.py and others), names, numbers and units do not come through here.

const SLOT = Symbol.for("sgnb.trans");

const put = (text, args) => text.replace(/%(%|\d+)/g, (_, place) => (place === "%" ? place : args[place - 1]));

const english = {
  __: (text, ...args) => put(text, args),
  _n: (one, many, n, ...args) => put(n === 1 ? one : many, [n, ...args]),
};

const bundle = () => globalThis[SLOT] ?? english;

export const trans = {
  __: (text, ...args) => bundle().__(text, ...args),
  _n: (one, many, n, ...args) => bundle()._n(one, many, n, ...args),
};

/** Arguments that leave a template's places as they are. */
export const PLACES = ["%1", "%2", "%3", "%4"];

/** A template with values in its places, as a list: texts, and the values as they are; a value that is a list is put in whole. */
export function parts(template, ...values) {
  const pieces = template.split(/%(\d)/).map((piece, index) => (index % 2 ? values[piece - 1] : piece));
  return pieces.flat().filter(piece => piece !== "");
}

/** A template with texts in its places. */
export function filled(template, ...values) {
  return parts(template, ...values).join("");
}
