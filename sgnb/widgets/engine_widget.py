"""The widgets behind engine views: their traits and their files. Nothing else.

Notebook process. Imported by ``widgets.engine_view`` at the first display only, since ipywidgets takes 0.2 s to load. The
scripts in ``static/`` are made one per widget by ``widgets.bundle``.
"""

from __future__ import annotations

from typing import Any

import traitlets

from sgnb.widgets.bundle import script_of, styles_of
from sgnb.widgets.view_widget import ViewWidget


def _styles(name: str) -> str:
    return styles_of("theme.css", "view.css", "keys.css", name)


class EngineWidget(ViewWidget):
    """``key``: names the page's store; ``engine``: its name; ``data``: what a view without engine shows."""

    key = traitlets.Unicode().tag(sync=True)
    engine = traitlets.Unicode().tag(sync=True)
    data = traitlets.Dict().tag(sync=True)

    def __init__(self, key: str, engine: str, data: dict[str, Any]) -> None:
        super().__init__(key=key, engine=engine, data=data)


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
