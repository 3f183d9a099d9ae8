"""From Python source to what runs: find the source, check it, make the static graph, rewrite into a generator.

Notebook process; called by ``runtime.program`` and ``runtime.cell``. ``source`` finds and verifies, ``rewrite`` and
``comprehension`` transform the tree, ``factory`` compiles it, ``cells`` prepares ``%%sgl`` text, ``graph`` reads the
structure for display and checks. Nothing here runs user code or knows a run.
"""

from sgnb.lang.frontend.factory import Compiled, compile_twin
from sgnb.lang.frontend.source import Located, NotCompiled, locate

__all__ = ["Compiled", "Located", "NotCompiled", "compile_twin", "locate"]
