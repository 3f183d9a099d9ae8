// Entry of the widget `timeline`.

import { TimelineView } from "./timeline.js";
import { widgetOf } from "./widget.js";

const widget = widgetOf(TimelineView);
export default widget;
