"""The anywidgets behind engine views: their traits and their files. Nothing else.

Notebook process. Imported by ``widgets.engine_view`` at the first display only, since ipywidgets takes 0.2 s to load. The
scripts in ``static/`` are joined to one per widget by ``widgets.bundle``.
"""

from __future__ import annotations

from typing import Any

import anywidget
import ipywidgets  # type: ignore[import-untyped]
import traitlets

from sgnb.widgets.bundle import STATIC, script_of
from sgnb.widgets.comms import answer_on_any_shell, run_no_hooks

_layout: list[ipywidgets.Layout] = []


def _styles(*names: str) -> str:
    return "\n".join(
        (STATIC / name).read_text(encoding="utf-8") for name in ("theme.css", "view.css", *names)
    )


class EngineWidget(anywidget.AnyWidget):
    """``key``: names the page's store; ``engine``: its name; ``data``: what a view without engine shows."""

    _esm = "export default { render() {} };"
    key = traitlets.Unicode().tag(sync=True)
    engine = traitlets.Unicode().tag(sync=True)
    data = traitlets.Dict().tag(sync=True)

    def __init__(self, key: str, engine: str, data: dict[str, Any]) -> None:
        if (
            not _layout or _layout[0].comm is None
        ):  # one for all: a layout a view would be a second comm a view
            _layout[:] = [ipywidgets.Layout()]
        super().__init__(key=key, engine=engine, data=data, layout=_layout[0])

    def open(self) -> None:
        """Open the comm; the page may answer on a subshell."""
        super().open()
        run_no_hooks(self.comm)
        answer_on_any_shell(self.comm)

    def _send(self, msg: Any, buffers: Any = None) -> None:
        super()._send(msg, buffers)
        answer_on_any_shell(self.comm)

    def __repr__(self) -> str:
        """Stable: no address, no state."""
        return f"{type(self).__name__}()"

    def close(self) -> None:
        """Close the comm; one that is already gone is fine."""
        try:
            super().close()
        except Exception:  # the front end or the comm manager closed it before
            self.comm = None


class TreeWidget(EngineWidget):
    """The radix tree."""

    _esm = script_of("widget_tree.js")
    _css = _styles("tree.css")


class KVWidget(EngineWidget):
    """The KV map."""

    _esm = script_of("widget_kv.js")
    _css = _styles("kv.css")


class TimelineWidget(EngineWidget):
    """The batch timeline."""

    _esm = script_of("widget_timeline.js")
    _css = _styles("timeline.css")


class GraphWidget(EngineWidget):
    """The graph of a program."""

    _esm = script_of("widget_graph.js")
    _css = _styles("graph.css")


_CLASSES: dict[str, type[EngineWidget]] = {
    "tree": TreeWidget,
    "kv": KVWidget,
    "timeline": TimelineWidget,
    "graph": GraphWidget,
}


def make_widget(kind: str, key: str, engine: str, data: dict[str, Any]) -> EngineWidget:
    """The widget of a view kind (``tree, kv, timeline, graph``)."""
    return _CLASSES[kind](key, engine, data)
