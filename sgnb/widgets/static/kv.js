// KV map: see ui.md. The frame, the keys and the empty states are view.js's.

import { View } from "./view.js";

export class KVMapView extends View {
  static kind = "kv";
  static title = "KV map";
}
