// Batch timeline: see ui.md. The frame, the keys and the empty states are view.js's.

import { View } from "./view.js";

export class TimelineView extends View {
  static kind = "timeline";
  static title = "Batch timeline";
}
