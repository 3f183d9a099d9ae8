// A pseudo-locale for a bare page: every word that comes through the views' trans.js stands in ⟦…⟧, and all data (names, texts,
// what the kernel says) is in Greek letters. A word in Latin letters outside of brackets is one that no translator can reach.
// Put before a view's script by tests/browser/test_browser_words.py.

{
  const put = (text, args) => text.replace(/%(%|\d+)/g, (_, place) => (place === "%" ? place : args[place - 1]));
  globalThis[Symbol.for("sgnb.trans")] = {
    __: (text, ...args) => `⟦${put(text, args)}⟧`,
    _n: (one, many, n, ...args) => `⟦${put(n === 1 ? one : many, [n, ...args])}⟧`,
  };

  const LATIN = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  const GREEK = "αβψδεφγηιξκλμνοπϟρστθωςχυζΑΒΨΔΕΦΓΗΙΞΚΛΜΝΟΠϞΡΣΤΘΩϹΧΥΖ";
  const STAYS = new Set(["kind", "state", "rid", "store", "engine", "op", "node", "what", "t", "mode", "cause", "gone_policy", "policy", "reason", "unit"]);
  /** Data in Greek letters, as deep as it goes; what stands for a state or an id stays. */
  window.greek = (data, name = "") => {
    if (typeof data === "string") return STAYS.has(name) ? data : data.replace(/[A-Za-z]/g, char => GREEK[LATIN.indexOf(char)]);
    if (Array.isArray(data)) return data.map(one => window.greek(one, name));
    if (data === null || typeof data !== "object") return data;
    return Object.fromEntries(Object.entries(data).map(([key, value]) => [key, window.greek(value, key)]));
  };
  /** A scenario (scenario.mjs) whose names and texts are in Greek letters. */
  window.greekScript = script => {
    for (const { event } of script.events) if (event.label) event.label = window.greek(event.label);
    for (const name of ["texts", "partings"]) script[name] = window.greek(script[name]);
    return script;
  };

  // What was drawn on canvases, and said in live regions, since the last look.
  const shown = new Set();
  const { fillText } = CanvasRenderingContext2D.prototype;
  CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
    shown.add(text);
    return fillText.call(this, text, ...rest);
  };
  /** A live region says a sentence in two seconds; the others count too. */
  window.hear = region => {
    const { say } = region;
    region.say = text => {
      shown.add(text);
      say(text);
    };
  };

  const UNITS = new Set(["ms", "min", "KiB", "MiB", "GiB"]);
  /** Words of two Latin letters and more outside of brackets, without digits (ids); `depth`: brackets open before. */
  const outside = (text, depth = 0) => {
    let rest = "";
    for (const char of text) {
      if (char === "⟦") depth++;
      if (depth === 0) rest += char;
      if (char === "⟧" && depth > 0) depth--;
      if (depth > 0 && rest.at(-1) !== " ") rest += " ";
    }
    const words = rest.split(/[^\p{L}\p{N}._-]+/u).filter(word => /[A-Za-z]{2}/.test(word) && !/\p{N}/u.test(word) && !UNITS.has(word));
    return { words, depth };
  };
  const ATTRIBUTES = ["title", "aria-label", "aria-valuetext", "aria-description", "placeholder", "alt"];
  /** Bare words of the page, each with where it stands; `data`: words that are none. */
  window.bareWords = data => {
    const known = new Set(data);
    const out = new Set();
    let brackets = 0;
    const look = (where, text, before = 0) => {
      const { words, depth } = outside(text, before);
      brackets += (text.match(/⟦/g) ?? []).length;
      for (const word of words) if (!known.has(word)) out.add(`${where}: ${word} in "${text.slice(0, 80)}"`);
      return depth;
    };
    const root = document.querySelector("#place");
    let depth = 0;
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) depth = look(`text of .${walker.currentNode.parentElement.className}`, walker.currentNode.data, depth);
    if (depth) out.add("a text loses the end of its brackets");
    for (const node of root.querySelectorAll("*")) {
      for (const name of ATTRIBUTES) if (node.hasAttribute(name)) look(`${name} of .${node.className}`, node.getAttribute(name));
      if (node.matches("input[type=text]:not(.sgnb-time-file)")) look(`value of .${node.className}`, node.value);
    }
    for (const text of shown) look("drawn or said", text);
    shown.clear();
    return { bare: [...out], brackets };
  };
}
