// Folds the messages of a recording as a page does, and prints what it shows at some moments. For tests/unit/test_replay.py.
//
//     node replay_dump.mjs MESSAGES     lines of JSON: {"times": […]}, then {"content": {…}, "buffer": base64}

import { readFileSync } from "node:fs";

import { Store } from "../../sgnb/widgets/static/store.js";

const [first, ...lines] = readFileSync(process.argv[2], "utf8").trim().split("\n").map(line => JSON.parse(line));
const store = new Store("test/replay");
let heard = null;
store.attach({ send() {}, onMessage: listener => (heard = listener) });
for (const { content, buffer } of lines) heard(content, buffer ? [new Uint8Array(Buffer.from(buffer, "base64"))] : []);
while (store.folding) await new Promise(done => setTimeout(done));

const moments = first.times.map(time => {
  store.goTo(time);
  const { shown } = store;
  const owners = [];
  for (let slot = 0; slot < shown.slots; slot++) owners.push(shown.ownerNames[shown.owners[slot]]);
  const nodes = [...shown.nodes.values()].map(({ id, parent, start, length, locks }) => [id, parent, start, length, locks]);
  return { owners, nodes: nodes.sort((a, b) => a[0] - b[0]), live: [...shown.live.keys()].sort() };
});
store.goLive();
process.stdout.write(JSON.stringify({
  moments,
  replaying: store.replaying,
  isLive: store.isLive,
  gap: store.gap,
  seq: store.live.seq,
  steps: store.history.steps.map(step => step.step),
  span: [store.oldest, store.live.time],
}));
