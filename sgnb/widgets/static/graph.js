// Graph: the program, each pass, what it did and why it was allowed. Its data (`sgnb.explain_data`) come with the widget;
// no engine is needed. The frame and the keys are view.js's.

import { View } from "./view.js";

export class GraphView extends View {
  static kind = "graph";
  static title = "Graph";

  constructor(host, store, options = {}) {
    const ownState = view => (view.options.data?.graph ? null : { words: "Nothing has run yet.", button: null, cover: true });
    super(host, store, { ...options, ownState });
  }
}
