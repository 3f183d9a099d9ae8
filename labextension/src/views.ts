/** The four views, loaded when the first pane opens: the same modules that the widgets are made of. */

import { GraphView } from '../../sgnb/widgets/static/graph.js';
import { KVMapView } from '../../sgnb/widgets/static/kv.js';
import { storeOf } from '../../sgnb/widgets/static/store.js';
import { TimelineView } from '../../sgnb/widgets/static/timeline.js';
import { TreeView } from '../../sgnb/widgets/static/tree.js';

import type { ViewKind } from './control_sections';

export const VIEWS: Record<ViewKind, SgnbViewClass> = {
  tree: TreeView,
  kv: KVMapView,
  timeline: TimelineView,
  graph: GraphView
};

export { storeOf };
