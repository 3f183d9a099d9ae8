// A kernel for a bare page: answers a view's questions from a script (scenario.mjs), which stands for SCENARIO.
// Joined behind the widget's own script by tests/browser/view_page.py.

const script = SCENARIO;
window.said = [];
const answer = (verb, args) => {
  if (window.answers?.[verb]) return window.answers[verb](args);
  if (verb === "nodes") {
    const known = args.ids.filter(id => script.nodes.has(id));
    const about = id => ({ tokens: script.nodes.get(id).length, text: script.texts[id], locked_by: [] });
    return { nodes: Object.fromEntries(known.map(id => [id, about(id)])) };
  }
  if (verb === "prompt") return script.partings[args.rid] ?? {same: "", prompt: "", cached: "", cached_node: 0};
  if (verb === "holders") return {sessions: [{sid: "c1.s7", tokens: 510, cached: 510, node: 2, active: "", text: "system You review"}]};
  return {};
};
const listeners = [];
const values = {key: "test/main", engine: "main", data: window.viewData ?? {}};
const model = {
  get: name => values[name],
  send(content) {
    window.said.push(content);
    if (content.k !== "ask") return;
    setTimeout(() => listeners.forEach(f => f({k: "answer", id: content.id, data: answer(content.verb, content.args)}, [])), 0);
  },
  on(name, f) { if (name === "msg:custom") listeners.push(f); },
  off(name, f) { listeners.splice(listeners.indexOf(f), 1); },
};
window.unmount = widget.render({model, el: document.querySelector("#place")});
const store = window.store = globalThis[Symbol.for("sgnb.stores")].stores.get("test/main");
store.engineState = "running";
store.load(script.picture);
window.script = script;
window.scenarios = { batch, long };
window.feed = () => {
  if (!store.feedEvents(script.events, {time: script.time})) throw new Error("the script tells what no engine tells");
  store._tell("data");
};
window.feed();
