import '../../sgnb/widgets/static/theme.css';
import '../../sgnb/widgets/static/view.css';
import '../../sgnb/widgets/static/tree.css';
import '../../sgnb/widgets/static/kv.css';
import '../../sgnb/widgets/static/timeline.css';
import '../../sgnb/widgets/static/graph.css';
import './index.css';
import './panes.css';
