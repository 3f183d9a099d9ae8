// Entry of the widget `tree`.

import { TreeView } from "./tree.js";
import { widgetOf } from "./widget.js";

const widget = widgetOf(TreeView);
export default widget;
