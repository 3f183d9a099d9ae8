"""Blocks of a state: ``with s.user():`` and ``with s.var_scope("x"):``, and what the latter binds.

Notebook process; made by ``runtime.state``. Their exits always run, so a turn is closed whatever happened in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sgnb.errors import ProgramError
from sgnb.lang import context
from sgnb.lang.position import internal, place_of, position_of, user_frame
from sgnb.runtime.variables import Deferred, Failure, Slot

if TYPE_CHECKING:
    from sgnb.runtime.turns import Turns

internal(__name__)


def join_pieces(pieces: list[str | Slot]) -> str:
    """The text that is there now."""
    return "".join(piece.text if isinstance(piece, Slot) else piece for piece in pieces)


class StateTurn:
    """``with s.user():``; its exit always ends the turn."""

    __slots__ = ("_done", "_role", "_state", "_token")

    def __init__(self, state: Turns, role: str, *, done: bool) -> None:
        self._state = state
        self._role = role
        self._done = done
        self._token: Any = None

    def __enter__(self) -> None:
        place = place_of(user_frame())
        if self._done:
            raise ProgramError(
                f"`with s.{self._role}(...)` takes no text in its brackets.",
                hint="Put the text into the block.",
                position=position_of(place),
            )
        self._state.open_role(self._role, place)
        self._token = context.open_turn.set(None)

    def __exit__(self, *_: object) -> None:
        context.open_turn.reset(self._token)
        self._state.close_role(self._role, place_of(user_frame()))


class ScopeText(Deferred):
    """What ``var_scope`` bound: a stretch of the state's own text, or the error that ended it."""

    __slots__ = ("_pieces", "failure")

    def __init__(self, pieces: list[str | Slot], failure: Failure | None) -> None:
        self._pieces = pieces
        self.failure = failure

    def open_slots(self) -> list[Slot]:
        """What must be waited for."""
        return [piece for piece in self._pieces if isinstance(piece, Slot) and not piece.settled]

    def read(self) -> str:
        """The text, waited for on this thread; raises the error that ended the scope."""
        if self.failure is not None:
            self.failure.throw()
        return "".join(p.core.read(p) if isinstance(p, Slot) else p for p in self._pieces)


class VarScope:
    """``with s.var_scope("x"):``."""

    __slots__ = ("_name", "_start", "_state")

    def __init__(self, state: Turns, name: str) -> None:
        self._state = state
        self._name = name
        self._start = 0

    def __enter__(self) -> None:
        self._start = len(self._state._pieces)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        state = self._state
        failure = None if error is None else Failure(error)
        state._values[self._name] = ScopeText(state._pieces[self._start :], failure)
