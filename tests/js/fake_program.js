// A kernel for a bare page with a program view: gives SNAPSHOT and answers its questions.
// Joined behind the widget's own script by tests/browser/program_page.py.

window.said = [];
const listeners = {};
const values = {snapshot: SNAPSHOT, key: "test"};
window.model = {
  get: name => values[name],
  send(content) {
    window.said.push(content);
    if (content.k === "token") setTimeout(() => window.emit({k: "told", id: content.id, data: window.tokenAnswer(content)}), 0);
    if (content.k === "ends") setTimeout(() => window.emit({k: "told", id: content.id, data: {ends: window.ends[`${content.row}.${content.seg}`] ?? []}}), 0);
    if (content.k === "past") setTimeout(() => window.emit({k: "told", id: content.id, data: window.past}), 0);
    if (content.k === "fork") setTimeout(() => window.emit({k: "told", id: content.id, data: {name: "fork_1", words: `fork_1 begins after token ${content.tokens}. Go on with %%sgl --from fork_1`}}), 0);
    if (content.k === "open") setTimeout(() => window.emit({k: "told", id: content.id, error: "There is no engine behind this run."}), 0);
  },
  on(name, f) { (listeners[name] ??= []).push(f); },
  off(name, f) { listeners[name] = (listeners[name] ?? []).filter(one => one !== f); },
};
window.emit = content => (listeners["msg:custom"] ?? []).forEach(f => f(content, []));
window.setSnapshot = snapshot => { values.snapshot = snapshot; (listeners["change:snapshot"] ?? []).forEach(f => f()); };
window.tokenAnswer = ({place, row}) => row !== undefined ? {rid: "2.finding", position: place + 1, reused: place < 9, id: 500 + place, slot: 77, node: 3, by: "6", vocabulary: 151936} : ({id: 34543, logprob: -0.34, top: [[-0.34, 34543, "security"], [-1.51, 7, "correctness"], [-2.66, 8, "performance"]],
  allowed: 3, vocabulary: 151936, ruled_out: 9, ruled_out_text: "The", ruled_out_logprob: -0.97, forced: false, count: 34, step: 1151 + place, slot: -1});
window.mount = () => { window.unmount = widget.render({model: window.model, el: document.querySelector("#place")}); };
window.mount();
// The page's store, as far as a program view needs it: live, or at step 1 171.
window.scrub = away => {
  const store = window.store ??= {isLive: true, listeners: [], time: 5, step: 1171, history: {requests: new Map(), steps: []}, selection: null, visible() {}, subscribe(f) { this.listeners.push(f); return () => {}; }};
  store.isLive = !away;
  const view = document.querySelector(".sgnb-program").sgnbProgram;
  view.setStore(store);
  for (const listener of store.listeners) listener("playhead");
};
