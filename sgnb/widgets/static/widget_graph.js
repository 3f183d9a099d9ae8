// Entry of the widget `graph`.

import { GraphView } from "./graph.js";
import { widgetOf } from "./widget.js";

const widget = widgetOf(GraphView);
export default widget;
