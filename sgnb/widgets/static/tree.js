// Radix tree: see ui.md. The frame, the keys and the empty states are view.js's.

import { View } from "./view.js";

export class TreeView extends View {
  static kind = "tree";
  static title = "Radix tree";
}
