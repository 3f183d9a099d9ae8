// What the side panel exports of a recording for Perfetto, and the moments it begins with, printed: for tests/unit/test_replay.py. Argument: the file.

import { readFileSync } from "node:fs";
import { register } from "node:module";

register("./ts_loader.mjs", import.meta.url);
const { readRecording } = await import("../../labextension/src/recording.ts");
const { perfettoOf } = await import("../../labextension/src/perfetto.ts");

const recording = await readRecording(new Uint8Array(readFileSync(process.argv[2])), { __: text => text });
process.stdout.write(JSON.stringify({ ...perfettoOf(recording), pictures: recording.parts.map(part => part.picture) }));
