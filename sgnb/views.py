"""Views by name: ``sgnb.radix_tree()``, ``kv_map()``, ``timeline()``, ``graph(program)``, ``replay(FILE)``, ``%sgl view``.

Notebook process. Called by users and by the magic; each returns a display object (``widgets.engine_view``) for the current
engine. Asks the engine for the static form when the view is shown, and only then. No drawing here.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from sgnb.backends.base import get_default_backend
from sgnb.backends.engine import Engine
from sgnb.errors import NoEngine, SgnbError
from sgnb.messages import KnobEvent, RequestEvent, StepEvent
from sgnb.recording import Recording, open_recording
from sgnb.runtime.core import Core
from sgnb.runtime.explain import explain_data, not_taken, progress_of, run_data
from sgnb.runtime.function import SglFunction
from sgnb.runtime.run import Run
from sgnb.runtime.state import State
from sgnb.widgets import tables
from sgnb.widgets.engine_view import TITLES, EngineView
from sgnb.widgets.graph_progress import GraphProgress
from sgnb.widgets.output import display_mode
from sgnb.widgets.replay import RecordedEngine, last_picture, picture_of

_PATIENCE = 5.0
_EVENTS = 4000
"""The last ones, from which a static form is made."""
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


def graph(program: SglFunction | State | Run, *args: Any, **kwargs: Any) -> EngineView:
    """What each pass makes of ``program``; needs no engine. Arguments that are not given are their names in braces.

    Of a run, or a state that a cell bound with ``-o``: what the passes made of what it recorded, with its progress.
    """
    if isinstance(program, State | Run):
        return run_graph(program.core)
    if not isinstance(program, SglFunction):
        raise not_taken("graph", program, "a program, a state or a run")
    return graph_of_data(explain_data(program, *args, **kwargs))


def graph_of_data(data: dict[str, Any]) -> EngineView:
    """The graph that ``explain_data``'s form describes."""
    return EngineView("graph", None, lambda: tables.graph_table(data), data=data, live=_live())


def run_graph(core: Core) -> EngineView:
    """What each pass made of the blocks that a run recorded. Needs no engine, and runs nothing again."""
    data = run_data(core)
    made = EngineView("graph", None, lambda: tables.graph_table(run_data(core)), data=data, live=_live())
    if not core.finished and _live():
        GraphProgress(made, data, _reader(core))
    return made


def _reader(core: Core) -> Callable[[], tuple[dict[str, Any], bool]]:
    """What ``GraphProgress`` reads: each event of the run is looked at once."""
    seq = 0
    progress: dict[str, list[Any]] = {}

    def read() -> tuple[dict[str, Any], bool]:
        nonlocal seq, progress
        ended = core.finished
        entries = core.log.since(seq)
        seq += len(entries)
        progress = progress_of(entries, progress)
        return progress, ended

    return read


def replay(path: str | Path) -> Replay:
    """Open a recording in all views, without an engine: ``sgnb.replay("run.sgnb")``.

    Raises RecordingError when the file is missing, no recording, damaged at its beginning, or of another version.
    """
    return Replay(open_recording(path))


class Replay:
    """A recording in the views. Shown, it is its timeline, its tree and its KV map, at one playhead; or take one of them."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._engine = RecordedEngine(recording)
        self._store = f"recording {recording.path.name} {next(_numbers)}"

    def __repr__(self) -> str:
        """Stable: the file's name, no address."""
        return f"<sgnb recording {self.recording.path.name} of engine {self._engine.name}>"

    def timeline(self) -> EngineView:
        """Its batch timeline."""

        def table() -> tables.Table:
            return tables.timeline_table(self._last_events(), picture_of(self.recording.snapshot()))

        return self._view("timeline", table)

    def radix_tree(self) -> EngineView:
        """Its radix tree."""

        def table() -> tables.Table:
            picture = last_picture(self.recording)
            ids = [row[0] for row in picture["nodes"][: tables.ROWS]]
            texts = self._engine.texts.nodes(ids, self._engine.span[1])
            return tables.tree_table(picture, texts, self._last_events())

        return self._view("tree", table)

    def kv_map(self) -> EngineView:
        """Its KV slots."""
        return self._view("kv", lambda: tables.kv_table(last_picture(self.recording)))

    def _view(self, kind: str, make: Callable[[], tables.Table]) -> EngineView:
        def table() -> tables.Table:
            try:
                return make()
            except SgnbError as error:
                return tables.empty_table(TITLES[kind], error.message)

        return EngineView(kind, self._engine, table, live=_live(), store=self._store)

    def _last_events(self) -> list[dict[str, Any]]:
        kept = deque((n for n in self.recording.events() if isinstance(n.event, _SHOWN)), maxlen=_EVENTS)
        return [msgspec.to_builtins(numbered) for numbered in kept]

    def _ipython_display_(self) -> None:
        from IPython.core.getipython import get_ipython  # noqa: PLC0415  only a notebook displays
        from IPython.display import display  # noqa: PLC0415

        shown = (self.timeline(), self.radix_tree(), self.kv_map())
        if getattr(get_ipython(), "kernel", None) is None:
            print("\n\n".join(map(str, shown)))
            return
        for one in shown:
            display(one)


_SHOWN = (StepEvent, RequestEvent, KnobEvent)
_numbers = itertools.count(1)


def view(
    kind: str, program: SglFunction | State | Run | None = None, engine: Engine | None = None
) -> EngineView:
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
    from IPython.core.getipython import get_ipython  # noqa: PLC0415  only a notebook displays

    asked = os.environ.get("SGNB_DISPLAY", "").lower()  # holds also where no kernel displays
    return asked != "static" and display_mode(get_ipython()) != "static"


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
    texts = engine.ask("nodes", {"ids": ids}, _PATIENCE)["nodes"] if ids else {}
    return tables.tree_table(snapshot, texts, _last_events(engine))


def _timeline(engine: Engine) -> tables.Table:
    return tables.timeline_table(_last_events(engine), engine.ask("picture", timeout=_PATIENCE))


def _last_events(engine: Engine) -> list[dict[str, Any]]:
    last = int(engine.history(1, 1)["last_seq"])
    return list(engine.history(max(1, last - _EVENTS), _EVENTS)["events"])
