// Elements: text enters the page through textContent only, never as markup.

/** An element with classes, attributes and children (elements, or text). `on*` attributes are listeners. */
export function el(tag, className = "", attributes = {}, ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on") && typeof value === "function") on(node, name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, String(value));
  }
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

/** Listen to an event of a node. */
export function on(node, name, listener, options) {
  node.addEventListener(name, listener, options);
}

/** A button with words (text, or a list with elements); `className` and all else are its attributes. */
export function button(words, onclick, { className = "", ...attributes } = {}) {
  return el("button", `sgnb-button ${className}`, { type: "button", onclick, ...attributes }, words);
}

/** Set the text of an element when it differs: the page is not touched for nothing. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Replace all children. */
export function fill(node, ...children) {
  node.replaceChildren(...children.flat().filter(child => child !== null && child !== undefined && child !== false));
}

/** Change what a node holds: the focus stays at its place in it. */
export function refocus(node, change) {
  const stops = () => [...node.querySelectorAll("[tabindex],button")];
  const at = stops().indexOf(document.activeElement);
  change();
  if (at < 0) return;
  const still = { preventScroll: true };
  stops()[at]?.focus(still);
  if (!node.contains(document.activeElement)) node.focus(still); // a dialog, whose keys must go on
}

/** Replace children only when what they say differs, `extra` included: scroll stays, and so does the focus. */
export function refill(node, children, extra = "") {
  const key = `${extra}\n${children.map(child => child?.textContent ?? "").join("\n")}`;
  if (node.sgnbKey === key && node.childElementCount) return;
  node.sgnbKey = key;
  refocus(node, () => fill(node, children));
}

/** A table: `columns` are {name, number, code}, `rows` arrays of text or elements. `onrow(index)` makes rows choosable. */
export function table(columns, rows, { caption = "", onrow = null, selected = -1, className = "" } = {}) {
  const head = el("tr", "", {}, columns.map(c => (c.name ? el("th", c.number ? "sgnb-num" : "", { scope: "col" }, c.name) : el("td")))); // an empty head names nothing
  const body = rows.map((cells, index) => {
    const row = el("tr", index === selected ? "sgnb-chosen" : "", onrow ? { tabindex: 0, "aria-selected": String(index === selected) } : {});
    cells.forEach((cell, place) => {
      const column = columns[place];
      row.append(el("td", column.number ? "sgnb-num" : column.code ? "sgnb-code" : "", {}, cell));
    });
    if (onrow) {
      on(row, "click", () => onrow(index));
      on(row, "keydown", event => {
        if (event.key === "Enter") onrow(index);
        else if (event.key === "ArrowDown") row.nextElementSibling?.focus();
        else if (event.key === "ArrowUp") row.previousElementSibling?.focus();
        else return;
        event.preventDefault();
        event.stopPropagation();
      });
    }
    return row;
  });
  return el(
    "table",
    `sgnb-table ${className}`,
    {},
    caption ? el("caption", "", {}, caption) : null,
    el("thead", "", {}, head),
    el("tbody", "", {}, body)
  );
}

/** A canvas that keeps its pixels sharp; `size(w, h)` gives its 2D context scaled to CSS pixels. */
export function sharpCanvas(className, label) {
  const canvas = el("canvas", className, { role: "img", "aria-label": label, tabindex: 0 });
  const size = (width, height) => {
    const ratio = window.devicePixelRatio || 1;
    const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
    if (canvas.width !== w || canvas.height !== h) {
      canvas.width = w;
      canvas.height = h;
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    return context;
  };
  return { canvas, size };
}

/** From where to where an element is seen, in px below its own upper edge: the window and what scrolls cut it. */
export function seenPart(node) {
  const box = node.getBoundingClientRect();
  let top = Math.max(box.top, 0);
  let bottom = Math.min(box.bottom, window.innerHeight);
  // The body's own overflow is the window's; JupyterLab's body has no height at all.
  for (let around = node.parentElement; around && around !== document.body; around = around.parentElement) {
    if (getComputedStyle(around).overflowY === "visible") continue;
    const edge = around.getBoundingClientRect();
    top = Math.max(top, edge.top);
    bottom = Math.min(bottom, edge.bottom);
  }
  top = Math.min(top, box.bottom);
  return { top: top - box.top, bottom: Math.max(top, bottom) - box.top };
}
