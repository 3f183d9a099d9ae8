// Entry of the widget `kv`.

import { KVMapView } from "./kv.js";
import { widgetOf } from "./widget.js";

const widget = widgetOf(KVMapView);
export default widget;
