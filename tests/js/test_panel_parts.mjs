// The side panel's model and sections, with a kernel and elements of the test's own: what a button says, where the focus is.

import assert from "node:assert/strict";
import { createRequire, register } from "node:module";
import { test } from "node:test";

register("./ts_loader.mjs", import.meta.url);
const require = createRequire(new URL("../../labextension/package.json", import.meta.url));
const { Signal } = require("@lumino/signaling");
// First of all: in a page these look at it while they are loaded.
const { ControlsSection, RequestsSection } = await import("../../labextension/src/control_sections.ts");
const { NoticeSection } = await import("../../labextension/src/status_sections.ts");
const { followActive } = await import("../../labextension/src/follow.ts");
const { Occupation } = await import("../../labextension/src/occupation.ts");
const { PanelModel } = await import("../../labextension/src/model.ts");
const { look } = await import("../../labextension/src/states.ts");

const put = (text, args) => text.replace(/%(\d)/g, (_, place) => String(args[place - 1]));
const trans = { __: (text, ...args) => put(text, args), _n: (one, many, n, ...args) => put(n === 1 ? one : many, [n, ...args]) };

/** An element, as far as the sections use one. */
class Element {
  constructor(tag) {
    Object.assign(this, { tag, children: [], listeners: {}, dataset: {}, hidden: false, disabled: false, value: "", parent: null, own: "" });
  }
  append(...nodes) {
    for (const node of nodes) typeof node === "string" ? (this.own += node) : this.insertBefore(node, null);
  }
  insertBefore(node, before) {
    node.remove();
    this.children.splice(before ? this.children.indexOf(before) : this.children.length, 0, node);
    node.parent = this;
  }
  replaceChildren(...nodes) {
    for (const node of [...this.children]) node.remove();
    this.append(...nodes);
  }
  remove() {
    if (this.contains(document.activeElement)) document.activeElement = document.body;
    if (this.parent) this.parent.children = this.parent.children.filter(node => node !== this);
    this.parent = null;
  }
  contains(node) {
    return node === this || this.children.some(child => child.contains(node));
  }
  querySelector(tag) {
    return this.children.find(node => node.tag === tag) ?? null;
  }
  focus() {
    document.activeElement = this;
  }
  setAttribute() {}
  addEventListener(name, act) {
    this.listeners[name] = act;
  }
  get textContent() {
    return this.own + this.children.map(node => node.textContent).join("");
  }
  set textContent(text) {
    this.own = text;
    this.children = [];
  }
  get lastElementChild() {
    return this.children.at(-1);
  }
}
globalThis.HTMLSelectElement = class {};
globalThis.Option = class extends Element {};
globalThis.document = { createElement: tag => new Element(tag), createElementNS: (_, tag) => new Element(tag), body: new Element("body") };
globalThis.window = { setInterval: () => 0, clearInterval: () => {}, setTimeout: () => 0, clearTimeout: () => {} };

test("requests come and go, and the focus stays where it is", () => {
  const section = new RequestsSection(trans, () => {}, () => {});
  const list = section.node.children[1];
  const show = (...rows) => section.update({ controls: true }, { requests: rows.map(([rid, name, words = "prefill"]) => ({ rid, name, words })), more: 0, stats: null });
  const button = index => list.children[index].querySelector("button");
  show(["r1", "7.0 a"], ["r2", "7.1 a"], ["", "other"], ["", "other"]);
  assert.equal(list.children.length, 4, "two of another notebook's have one name");
  const kept = button(1);
  kept.focus();
  show(["r2", "7.1 a", "decode 3"], ["", "other"], ["r3", "8 b"]);
  assert.equal(document.activeElement, kept);
  assert.deepEqual(list.children.map(row => row.children[0].textContent), ["7.1 a", "other", "8 b"]);
  assert.equal(list.children[0].children[1].textContent, "decode 3");
  show(["", "other"], ["r3", "8 b"]);
  assert.equal(document.activeElement, button(0), "its request has ended: the next one");
  show();
  assert.equal(list.children.length, 0);
});

test("a button that makes way for its opposite gives it the focus; other buttons do not get it", () => {
  const asked = [];
  const acts = new Proxy({ knobs: () => Promise.resolve([{ name: "chunk", value: 512 }]) }, { get: (own, name) => own[name] ?? ((...args) => asked.push([name, ...args])) });
  const section = new ControlsSection(trans, acts);
  const show = paused => section.update({ controls: true }, { engine: { paused, policy: "" }, stats: null, requests: [] });
  const [pause, resume, step] = section.node.children[2].children.slice(2, 5);
  show(false);
  pause.focus();
  show(true);
  assert.equal(document.activeElement, resume);
  step.focus();
  show(true);
  assert.equal(document.activeElement, step);
  show(false);
  assert.equal(document.activeElement, pause);
  const notice = new NoticeSection(trans, () => {}, () => {});
  const facts = phase => ({ phase, state: { engine: { error: "" }, log: [] }, title: "" });
  const labels = () => notice._buttons.children.map(one => one.textContent);
  notice.update(look(facts("no-engine"), trans), "");
  assert.deepEqual(labels(), ["Start engine", "Open recording…"]);
  notice._buttons.children[1].focus();
  notice.update(look(facts("died"), trans), "");
  assert.equal(document.activeElement.textContent, "Open recording…", "the same act");
  notice._buttons.children[0].focus();
  notice.update(look(facts("starting"), trans), "");
  assert.equal(document.activeElement, notice.node, "not Cancel start, which the next press would be for");
});

test("a knob that the engine refused shows the engine's value again", async () => {
  let value = 512;
  const acts = { setKnob: (_, text) => (value = Number(text) > 0 ? Number(text) : value), knobs: () => Promise.resolve([{ name: "chunk", value, kind: "number" }]) };
  const section = new ControlsSection(trans, acts);
  const field = section._knob({ name: "chunk", value: 512, kind: "number", what: "", legal: "", unit: "", choices: [] }).children[1];
  for (const [typed, shown] of [["-3", "512"], ["64", "64"]]) {
    field.value = typed;
    field.listeners.change();
    await new Promise(setImmediate);
    assert.equal(field.value, shown);
  }
});

function contextOf(kernel = null) {
  const context = { session: kernel && { kernel }, name: "x.ipynb" };
  for (const name of ["kernelChanged", "statusChanged", "connectionStatusChanged", "propertyChanged", "disposed"]) context[name] = new Signal(context);
  return context;
}

test("why the extension could not be loaded is said", async () => {
  const model = new PanelModel(trans);
  const reply = { content: { status: "error", ename: "ModuleNotFoundError", evalue: "No module named 'sgnb'" } };
  const kernel = { handleComms: false, status: "idle", requestExecute: () => ({ done: Promise.resolve(reply) }) };
  for (const name of ["iopubMessage", "statusChanged", "connectionStatusChanged"]) kernel[name] = new Signal(kernel);
  model.follow(contextOf(kernel));
  await model.loadExtension();
  assert.equal(model.message, "ModuleNotFoundError: No module named 'sgnb'");
  kernel.requestExecute = () => ({ done: Promise.reject(new Error("Canceled future")) });
  await model.loadExtension(); // the kernel was restarted meanwhile
});

test("closing a notebook that is not worked in leaves the panel where it is", () => {
  const followed = [];
  const model = { listen() {}, followed: null, follow: context => followed.push((model.followed = context)) };
  const widgets = ["notebook", "console"].map(name => {
    const widget = { sessionContext: contextOf(), isDisposed: false, name };
    widget.disposed = new Signal(widget);
    return widget;
  });
  const [notebook, console_] = widgets;
  const trackers = widgets.map(widget => {
    const tracker = { currentWidget: widget, forEach: visit => visit(widget), has: one => one === widget };
    for (const name of ["widgetAdded", "currentChanged"]) tracker[name] = new Signal(tracker);
    return tracker;
  });
  const other = { sessionContext: contextOf(), isDisposed: false };
  other.disposed = new Signal(other);
  followActive({ shell: {} }, trackers, model);
  trackers[0].widgetAdded.emit(other);
  trackers[1].currentChanged.emit(console_);
  assert.equal(model.followed, console_.sessionContext);
  other.disposed.emit();
  assert.equal(model.followed, console_.sessionContext);
  trackers[1].currentWidget = null;
  console_.isDisposed = true;
  console_.disposed.emit();
  assert.equal(model.followed, notebook.sessionContext);
});

test("a panel that the kernel gave up while the page was asleep attaches anew; after an unload it says so", async () => {
  const model = new PanelModel(trans);
  const kernel = { handleComms: true, status: "idle" };
  for (const name of ["iopubMessage", "statusChanged", "connectionStatusChanged"]) kernel[name] = new Signal(kernel);
  let opened = 0;
  model._talk.open = async () => ++opened > 0;
  model.follow(contextOf(kernel));
  model._onState({ seq: 1, engine: null, stats: null, requests: [], engines: [], log: [], message: "" }, NaN);
  assert.deepEqual([model.phase, opened], ["no-engine", 1]);
  model._onClosed();
  assert.deepEqual([model.phase, opened], ["connecting", 2]);
  model._onClosed();
  assert.deepEqual([model.phase, opened], ["not-loaded", 2], "nobody there knows the target");
});

// What is asked when a cell ended goes to the kernel too, and its answer must not look like the end of a cell: the editors'
// marks were asked for again and again, some eight times a second.
test("a cell has ended when it has, and not when a message on a subshell turned the status", () => {
  const heard = [];
  const occupation = new Occupation(ended => heard.push(ended));
  const kernel = { status: "idle", statusChanged: new Signal({}), connectionStatusChanged: new Signal({}), iopubMessage: new Signal({}) };
  const told = (state, parent) => kernel.iopubMessage.emit({ header: { msg_type: "status" }, parent_header: parent, content: { execution_state: state } });
  const turn = status => kernel.statusChanged.emit((kernel.status = status));
  occupation.watch(kernel);
  const ends = () => heard.splice(0).filter(Boolean).length;
  for (const state of ["busy", "idle"]) {
    turn(state);
    told(state, { msg_type: "comm_msg", msg_id: "c", subshell_id: "s" });
    told(state, { msg_type: "execute_request", msg_id: "e", subshell_id: "s" });
  }
  assert.equal(ends(), 0, "comms and subshells");
  told("busy", { msg_type: "execute_request", msg_id: "1" });
  told("busy", { msg_type: "execute_request", msg_id: "2" });
  told("idle", { msg_type: "execute_request", msg_id: "1" });
  assert.equal(ends(), 0, "another one runs");
  told("idle", { msg_type: "execute_request", msg_id: "2" });
  assert.equal(ends(), 1);
  told("idle", { msg_type: "execute_request", msg_id: "of before the connection" });
  assert.equal(ends(), 1, "its beginning was not heard");
  turn("restarting");
  assert.equal(ends(), 0);
});
