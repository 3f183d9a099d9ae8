"""Views of an engine as notebook outputs: radix tree, KV map, batch timeline, graph.

Notebook process. Made by ``sgnb.views`` (``%sgl view``, ``sgnb.radix_tree()``, …). In a notebook a view is a widget whose
comm carries ``widgets.telemetry``'s messages; its saved form, and a terminal's, is the table of the moment it was shown,
from ``widgets.tables``. Nothing is folded or drawn here: that is the page's work.
"""

from __future__ import annotations

import functools
import os
import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from sgnb.widgets.program import MIME_WIDGET, output_metadata
from sgnb.widgets.tables import Table, html_of, text_of
from sgnb.widgets.telemetry import FeedEngine, feed_of

if TYPE_CHECKING:
    from sgnb.widgets.engine_widget import EngineWidget

TITLES = {"tree": "Radix tree", "kv": "KV map", "timeline": "Batch timeline", "graph": "Graph"}


@functools.cache
def _kernel_key(pid: int) -> str:
    return f"{pid}.{secrets.token_hex(4)}"


def store_key(engine: str, pid: int = 0) -> str:
    """Names a page's store: this kernel and an engine, one started anew being another one. The panel uses the same."""
    return f"{_kernel_key(os.getpid())}/{engine}.{pid}"


class EngineView:
    """One view. ``table`` makes its static form when it is shown; ``data`` is for views that need no engine.

    ``live``: False shows the static form alone. ``store`` names the page's store where it is not the engine's name.
    """

    def __init__(
        self,
        kind: str,
        engine: FeedEngine | None,
        table: Callable[[], Table],
        *,
        data: Mapping[str, Any] | None = None,
        live: bool = True,
        store: str = "",
    ) -> None:
        if kind not in TITLES:
            raise ValueError(f"unknown view {kind!r}; there are {', '.join(TITLES)}")
        self.kind = kind
        self.engine = engine
        self._table = table
        self._data = dict(data or {})
        self._live = live
        self._store = store
        self._widget: EngineWidget | None = None
        self._closed = False

    def __repr__(self) -> str:
        """Stable: the kind and the engine, no address."""
        name = f" of engine {self.engine.name}" if self.engine is not None else ""
        return f"<sgnb {TITLES[self.kind].lower()}{name}>"

    def __str__(self) -> str:
        """The table as text."""
        return text_of(self._table())

    def open(self) -> EngineWidget:
        """Make the widget; nothing is subscribed before a page shows it."""
        if self._widget is None:
            from sgnb.widgets.engine_widget import make_widget  # noqa: PLC0415  ipywidgets loads at first display

            name = self.engine.name if self.engine is not None else ""
            key = store_key(self._store) if self._store else store_key(name, self._pid())
            self._widget = make_widget(self.kind, key, name, self._data)
            self._widget.on_msg(self._on_message)
        return self._widget

    def update(self, data: Mapping[str, Any]) -> bool:
        """Show other data; True while a widget is there or may still be opened."""
        if self._closed:
            return False
        self._data = dict(data)
        if self._widget is not None:
            self._widget.data = self._data
        return True

    def _pid(self) -> int:
        return int(getattr(self.engine, "pid", 0))  # 0: a view without an engine

    def close(self) -> None:
        """Free the widget on both sides."""
        self._closed = True
        if self._widget is not None:
            self._widget.close()
            self._widget = None

    def _on_message(self, _widget: object, content: Any, _buffers: object) -> None:
        if self.engine is None or self._widget is None or not isinstance(content, dict):
            return
        feed_of(self.engine).take(content, self._widget.send)

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        table = self._table()
        data: dict[str, Any] = {"text/plain": text_of(table), "text/html": html_of(table)}
        if self._live:
            data[MIME_WIDGET] = {"version_major": 2, "version_minor": 0, "model_id": self.open().model_id}
        return data, output_metadata(data)
