"""Variables of a state: what a generation becomes, and its lazy value.

Notebook process. A ``Slot`` is made when a generation is recorded, filled on the backend's thread (under its run's lock)
and read by whoever holds the state. Waiting is the run's business (``Core.wait``), not this module's.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from sgnb.errors import SgnbError
from sgnb.lang.position import Place

if TYPE_CHECKING:
    from sgnb.runtime.core import Core
    from sgnb.runtime.state import State


class Failure:
    """Why a state failed: shared by the state and its generations. ``seen``: it was raised where the user read."""

    __slots__ = ("error", "seen")

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.seen = False

    def throw(self) -> NoReturn:
        """Raise the error."""
        self.seen = True
        raise fresh(self.error)


class Slot:
    """The value of one generation: text as it comes, then meta or an error. Written under ``core.lock`` only."""

    __slots__ = (
        "chunks", "core", "failure", "logprobs", "meta", "name", "place", "rid", "settled", "state", "tokens",
    )  # fmt: skip

    def __init__(self, core: Core, state: State, rid: str, name: str, place: Place | None) -> None:
        self.core = core
        self.state: State | None = state
        """Held until the generation ends: a state nobody else holds still finishes its text."""
        self.rid = rid
        self.name = name
        self.place = place
        self.chunks: list[str] = []
        self.tokens = 0
        self.logprobs: list[tuple[Any, ...]] = []
        self.meta: dict[str, Any] = {}
        self.failure: Failure | None = None
        self.settled = False

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.chunks)

    def value(self) -> str:
        """The text of a settled slot; raises its error."""
        if self.failure is not None:
            self.failure.throw()
        return "".join(self.chunks)


def fresh(error: BaseException) -> BaseException:
    """The error to raise: a copy of ours, so that readers do not share a traceback; anything else as it is."""
    if not isinstance(error, SgnbError):
        return error
    twin = copy.copy(error)
    twin.__cause__ = error.__cause__
    return twin


class Lazy:
    """The value of ``x = gen("x")`` in a ``with assistant():`` block: text that is waited for when it is needed."""

    __slots__ = ("_slot",)

    def __init__(self, slot: Slot) -> None:
        self._slot = slot

    def sgl_text(self) -> str:
        """Wait for the text; raises the generation's error."""
        return self._slot.core.read(self._slot)

    def __str__(self) -> str:
        return self.sgl_text()

    def __repr__(self) -> str:
        return (
            repr(self.sgl_text()) if self._slot.settled and self._slot.failure is None else "<text to come>"
        )

    def __format__(self, spec: str) -> str:
        return format(self.sgl_text(), spec)

    def __eq__(self, other: object) -> bool:
        return self.sgl_text() == (other.sgl_text() if isinstance(other, Lazy) else other)

    def __lt__(self, other: Any) -> bool:
        return self.sgl_text() < str(other)

    def __gt__(self, other: Any) -> bool:
        return self.sgl_text() > str(other)

    def __hash__(self) -> int:
        return hash(self.sgl_text())

    def __len__(self) -> int:
        return len(self.sgl_text())

    def __contains__(self, part: str) -> bool:
        return str(part) in self.sgl_text()

    def __iter__(self) -> Iterator[str]:
        return iter(self.sgl_text())

    def __getitem__(self, key: Any) -> str:
        return self.sgl_text()[key]

    def __add__(self, other: Any) -> Any:
        return self.sgl_text() + (other.sgl_text() if isinstance(other, Lazy) else other)

    def __radd__(self, other: Any) -> Any:
        return other + self.sgl_text()

    def __mul__(self, count: int) -> str:
        return self.sgl_text() * count

    def __int__(self) -> int:
        return int(self.sgl_text())

    def __float__(self) -> float:
        return float(self.sgl_text())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.sgl_text(), name)


def resolved(value: Any) -> Any:
    """``value`` itself, or the text of a lazy one; raises its error."""
    return value.sgl_text() if isinstance(value, Lazy) else value
