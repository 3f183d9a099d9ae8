"""Ticks of a running program on its graph: which generations are done, and how far the others are.

Notebook process; made by ``sgnb.views`` for the graph of a run that goes on, served by the publisher at most twice a second,
and gone when the run has ended. Only the data of the widget change; nothing is drawn or folded here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from sgnb.widgets.publisher import get_publisher

EVERY = 0.5


class Shown(Protocol):
    """A view whose data can be replaced; False when nobody shows it any more."""

    def update(self, data: dict[str, Any]) -> bool:
        """Show these data."""


class GraphProgress:
    """Keeps a view's ``progress`` up to date. ``read`` gives it and whether the run has ended."""

    def __init__(
        self, view: Shown, data: dict[str, Any], read: Callable[[], tuple[dict[str, Any], bool]]
    ) -> None:
        self.due: float | None = None
        self._view = view
        self._data = data
        self._read = read
        get_publisher().add(self)

    def publish(self) -> bool:
        """Publisher's thread: the newest progress, if it changed."""
        progress, ended = self._read()
        changed = bool(progress != self._data["progress"])
        if changed:
            self._data = {**self._data, "progress": progress}
            if not self._view.update(self._data):
                ended = True
        if ended:
            get_publisher().remove(self)
        self.due = None if ended else time.monotonic() + EVERY
        return changed
