"""Views of the engine by name: ``sgnb.radix_tree()``, ``.kv_map()``, ``.timeline()``, ``.graph(program)``, ``%sgl view``.

Notebook process. Called by users and by the magic; each returns a display object (``widgets.engine_view``) for the current
engine. Asks the engine for the static form when the view is shown, and only then. No drawing here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from sgnb.backends.base import get_default_backend
from sgnb.backends.engine import Engine
from sgnb.errors import NoEngine, SgnbError
from sgnb.runtime.core import Core
from sgnb.runtime.explain import explain_data, run_data
from sgnb.runtime.function import SglFunction
from sgnb.widgets import tables
from sgnb.widgets.engine_view import TITLES, EngineView

_PATIENCE = 5.0
KINDS = tuple(TITLES)


def radix_tree(engine: Engine | None = None) -> EngineView:
    """The radix tree of ``engine`` (the current one unless given), live. NoEngine when there is none."""
    return _view("tree", engine, _tree)


def kv_map(engine: Engine | None = None) -> EngineView:
    """The KV slots of ``engine``, live."""
    return _view("kv", engine, lambda engine: tables.kv_table(engine.ask("picture", timeout=_PATIENCE)))


def timeline(engine: Engine | None = None) -> EngineView:
    """The steps of ``engine`` and the requests in them, live."""
    return _view("timeline", engine, _timeline)


def graph(program: SglFunction, *args: Any, **kwargs: Any) -> EngineView:
    """What each pass makes of ``program``. Needs no engine; arguments that are not given are their names in braces."""
    data = explain_data(program, *args, **kwargs)
    return EngineView("graph", None, lambda: tables.graph_table(data), data=data, live=_live())


def run_graph(core: Core) -> EngineView:
    """What each pass made of the blocks that a run recorded. Needs no engine, and runs nothing again."""
    return EngineView(
        "graph", None, lambda: tables.graph_table(run_data(core)), data=run_data(core), live=_live()
    )


def view(kind: str, program: SglFunction | None = None, engine: Engine | None = None) -> EngineView:
    """The view ``tree``, ``kv``, ``timeline`` or ``graph`` (of a program)."""
    if kind == "graph":
        if program is None:
            raise SgnbError("the graph is that of a program", hint="%sgl view graph NAME")
        return graph(program)
    makers: dict[str, Callable[[Engine | None], EngineView]] = {
        "tree": radix_tree,
        "kv": kv_map,
        "timeline": timeline,
    }
    if kind not in makers:
        raise SgnbError(f"there is no view {kind!r}", hint=f"There are {', '.join(KINDS)}.")
    return makers[kind](engine)


def _live() -> bool:
    return os.environ.get("SGNB_DISPLAY", "").lower() != "static"


def _view(kind: str, engine: Engine | None, make: Callable[[Engine], tables.Table]) -> EngineView:
    if engine is None:
        backend = get_default_backend()
        if not isinstance(backend, Engine):
            raise NoEngine("No engine is running.", hint="Start one with %sgl launch.")
        engine = backend
    shown = engine

    def table() -> tables.Table:
        try:
            return make(shown)
        except SgnbError as error:
            return tables.empty_table(TITLES[kind], error.message)

    return EngineView(kind, shown, table, live=_live())


def _tree(engine: Engine) -> tables.Table:
    snapshot = engine.ask("picture", timeout=_PATIENCE)
    ids = [row[0] for row in snapshot["nodes"][: tables.ROWS]]
    return tables.tree_table(snapshot, engine.ask("nodes", {"ids": ids}, _PATIENCE)["nodes"] if ids else {})


def _timeline(engine: Engine) -> tables.Table:
    last = int(engine.history(1, 1)["last_seq"])
    return tables.timeline_table(engine.history(max(1, last - 4000), 4000)["events"])
