"""Start of a ``%%sgl`` cell: its names, its body, its run."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Mapping
from typing import Any

from sgnb.backends.base import Backend
from sgnb.lang.api import DSL_NAMES
from sgnb.lang.position import CELL_PREFIX, internal
from sgnb.runtime.core import Core
from sgnb.runtime.function import function
from sgnb.runtime.run import Run, begin
from sgnb.runtime.state import State
from sgnb.runtime.task import Frame, Result, enter_state, leave_state

internal(__name__)


def start_cell(
    text: str,
    *,
    cell_name: str,
    user_ns: Mapping[str, Any],
    backend: Backend,
    defaults: dict[str, Any],
    first_line: int,
) -> Run:
    """See ``runtime.run.run_cell``."""
    filename = f"{CELL_PREFIX}{cell_name}>"
    source = "\n" * (first_line - 1) + text
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    tree = ast.parse(source, filename)
    code = compile(tree, filename, "exec", dont_inherit=True)
    core = Core(backend, title=f"[{cell_name}]", cell=cell_name, defaults=defaults)
    begin(core, None, "not compiled")
    state = State(core)
    namespace = {**user_ns, **DSL_NAMES, "function": function, "s": state}

    def enter() -> Frame | Result:
        core.eager = True
        saved = enter_state(state, True)
        try:
            exec(code, namespace)
        finally:
            leave_state(saved)
        return Result(None)

    return Run(core, state, enter)
