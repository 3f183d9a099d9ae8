"""What ``user()`` and ``gen()`` must know of the program that is running now.

Notebook process. ``lang.api`` reads these two context variables; ``runtime`` sets them when a program's body is entered
or resumed. They are the only link from expressions to a run: ``lang`` itself starts nothing.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Protocol

from sgnb.lang.position import Place


class Target(Protocol):
    """A state, as far as expressions need it."""

    def append_expr(self, expr: Any, place: Place) -> Any:
        """Append; for a generation returns its lazy value."""

    def open_role(self, role: str, place: Place) -> None:
        """Begin a turn."""

    def close_role(self, role: str, place: Place) -> None:
        """End the turn."""


current_state: ContextVar[Target | None] = ContextVar("sgnb_current_state", default=None)
"""The state of the innermost program body being executed."""
open_turn: ContextVar[Target | None] = ContextVar("sgnb_open_turn", default=None)
"""The state that a module-level ``with user():`` block has opened a turn in, else None."""
