// What the side panel exports of a recording for Perfetto, the moments it begins with, and what its player holds of two that were opened, printed: for tests/unit/test_replay.py. Argument: the file.

import { readFileSync } from "node:fs";
import { register } from "node:module";

register("./ts_loader.mjs", import.meta.url);
const { readRecording } = await import("../../labextension/src/recording.ts");
const { ReplayPlayer } = await import("../../labextension/src/replay.ts");
const { storeOf } = await import("../../sgnb/widgets/static/store.js");
const { perfettoOf } = await import("../../labextension/src/perfetto.ts");

const bytes = new Uint8Array(readFileSync(process.argv[2]));
const player = new ReplayPlayer({}, { __: text => text });
const stores = [];
for (const name of ["a", "b"]) {
  await player.open(name, bytes);
  stores.push(storeOf(player.key));
}
const recording = await readRecording(bytes, { __: text => text });
process.stdout.write(JSON.stringify({ ...perfettoOf(recording), held: stores.map(store => store.pastBytes), pictures: recording.parts.map(part => part.picture) }));
