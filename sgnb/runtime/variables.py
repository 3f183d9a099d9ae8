"""Variables of a state: what a generation becomes, and its lazy value.

Notebook process. A ``Slot`` is made when a generation is recorded, filled on the backend's thread (under its run's lock)
and read by whoever holds the state. Waiting is the run's business (``Core.wait``), not this module's.
"""

from __future__ import annotations

import copy
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from sgnb.backends.base import TokenInfo
from sgnb.errors import SgnbError
from sgnb.lang.position import Place
from sgnb.reasoning import split_reasoning

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
        "_held", "_state", "also", "chunks", "core", "cut", "failure", "family", "heirs", "ids", "logprobs", "marks", "meta",
        "name", "options", "place", "rid", "sample", "settled", "sid", "tokens",
    )  # fmt: skip

    def __init__(
        self,
        core: Core,
        state: State,
        rid: str,
        name: str,
        place: Place | None,
        *,
        sid: str = "",
        options: tuple[str, ...] = (),
    ) -> None:
        self.core = core
        self._state: weakref.ref[State] | None = weakref.ref(state)
        self._held: State | None = state if core.keeps_branches or not state.is_branch else None
        self.heirs: list[weakref.ref[State]] = []
        """Branches that were forked behind this generation: its failure is theirs."""
        self.also: list[State] = []
        """States whose sessions must last until it ends: forks wait in them."""
        self.options = options
        """A choice's options; its text is the one that won."""
        self.sid = sid or state.sid
        self.sample = bool(sid)
        """True for a further sample of ``gen(n=…)``, which has a session of its own."""
        self.rid = rid
        self.name = name
        self.place = place
        self.chunks: list[str] = []
        self.marks: list[tuple[int, int]] = []
        """For each chunk: tokens and log-probabilities when it had come."""
        self.tokens = 0
        self.ids: list[int] = []
        """What was sampled, the stop tokens included."""
        self.logprobs: list[TokenInfo] = []
        self.meta: dict[str, Any] = {}
        self.failure: Failure | None = None
        self.settled = False
        self.family: str | None = None
        """The model family whose thought is no part of its text, once it has ended."""
        self.cut = False
        """True when it was stopped from here: the engine may have written more than came."""

    @property
    def state(self) -> State | None:
        """The state it belongs to, until it ends. A branch that nobody holds any more is gone before that.

        A root state is held: one that nobody else holds still finishes its text. So are the branches of a cell, which all
        have a reader.
        """
        return None if self._state is None else self._state()

    def pass_on(self) -> bool:
        """Its state goes without it: it belongs to a branch forked behind it, if one still wants it."""
        heir = next((found for ref in self.heirs if (found := ref()) is not None and found.open), None)
        if heir is None or self.settled:
            return False
        self._state, self._held = weakref.ref(heir), None
        heir.inherit(self)
        return True

    def hold(self) -> None:
        """Keep the branch until the generation ends, whoever else drops it."""
        if not self.settled:
            self._held = self.state

    def settle(self, failure: Failure | None = None) -> None:
        """It has ended."""
        if failure is not None:
            self.failure = failure
        self.settled, self._state, self._held, self.also = True, None, None, []

    @property
    def text(self) -> str:
        """The text so far; once it has ended, what the session keeps of it."""
        if self.family is None or not self.settled or self.failure is not None:
            return self.generated
        return split_reasoning(self.generated, self.family)[1]

    @property
    def generated(self) -> str:
        """All that came."""
        return "".join(self.chunks)

    def value(self) -> str:
        """The text of a settled slot; raises its error."""
        if self.failure is not None:
            self.failure.throw()
        return self.text


class Deferred(ABC):
    """A variable made of several pieces that may still be under way: a scope's text, joined values, samples."""

    __slots__ = ()

    @abstractmethod
    def open_slots(self) -> list[Slot]:
        """What must be waited for."""

    @abstractmethod
    def read(self) -> Any:
        """The value, waited for on this thread; raises the error of a piece."""

    def meta(self) -> Any:
        """The meta of a value that was waited for; an empty dict for what was not generated."""
        return {}


def open_slots_of(value: Any) -> list[Slot]:
    """What must be waited for before ``value`` can be read."""
    if isinstance(value, Slot):
        return [] if value.settled else [value]
    return value.open_slots() if isinstance(value, Deferred) else []


def read_value(value: Any) -> Any:
    """What a variable stands for, waited for on this thread; raises its error."""
    if isinstance(value, Slot):
        return value.core.read(value)
    return value.read() if isinstance(value, Deferred) else value


def meta_of(value: Any) -> Any:
    """The meta of a variable that was waited for."""
    if isinstance(value, Slot):
        return dict(value.meta)
    return value.meta() if isinstance(value, Deferred) else {}


class Samples(Deferred):
    """The value of ``gen(n=…)``: one text for each sample."""

    __slots__ = ("slots",)

    def __init__(self, slots: list[Slot]) -> None:
        self.slots = slots

    def open_slots(self) -> list[Slot]:
        """The samples under way."""
        return [slot for slot in self.slots if not slot.settled]

    def read(self) -> list[str]:
        """All texts."""
        return [slot.core.read(slot) for slot in self.slots]

    def meta(self) -> list[dict[str, Any]]:
        """One meta for each sample."""
        return [dict(slot.meta) for slot in self.slots]


def fresh(error: BaseException) -> BaseException:
    """The error to raise: a copy of ours, so that readers do not share a traceback; anything else as it is."""
    if not isinstance(error, SgnbError):
        return error
    twin = copy.copy(error)
    twin.__cause__ = error.__cause__
    return twin


class Lazy:
    """The value of ``x = gen("x")`` in a ``with assistant():`` block: text that is waited for when it is needed."""

    __slots__ = ("_parsed", "_slot", "_state")

    def __init__(self, slot: Slot, parsed: Deferred | None = None) -> None:
        self._slot = slot
        self._parsed = parsed
        self._state = slot.state  # a branch whose value somebody holds is not dropped

    def sgl_text(self) -> str:
        """Wait for the text; raises the generation's error."""
        return self._slot.core.read(self._slot)

    def value(self) -> Any:
        """Wait for the text, or for the object it means; raises the generation's error."""
        return self.sgl_text() if self._parsed is None else self._parsed.read()

    def __str__(self) -> str:
        return self.sgl_text() if self._parsed is None else str(self.value())

    def __repr__(self) -> str:
        return (
            repr(self.sgl_text()) if self._slot.settled and self._slot.failure is None else "<text to come>"
        )

    def __format__(self, spec: str) -> str:
        return format(self.value(), spec)

    def __eq__(self, other: object) -> bool:
        return bool(self.value() == resolved(other))

    def __lt__(self, other: Any) -> bool:
        return self.sgl_text() < str(other) if self._parsed is None else bool(self.value() < resolved(other))

    def __gt__(self, other: Any) -> bool:
        return self.sgl_text() > str(other) if self._parsed is None else bool(self.value() > resolved(other))

    def __hash__(self) -> int:
        return hash(self.value())

    def __bool__(self) -> bool:
        return bool(self.value())

    def __len__(self) -> int:
        return len(self.value())

    def __contains__(self, part: object) -> bool:
        return str(part) in self.sgl_text() if self._parsed is None else part in self.value()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.value())

    def __getitem__(self, key: Any) -> Any:
        return self.value()[key]

    def __add__(self, other: Any) -> Any:
        return self.value() + resolved(other)

    def __radd__(self, other: Any) -> Any:
        return other + self.value()

    def __mul__(self, count: Any) -> Any:
        return self.value() * resolved(count)

    def __int__(self) -> int:
        return int(self.value())

    def __float__(self) -> float:
        return float(self.value())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.value(), name)


def resolved(value: Any) -> Any:
    """``value`` itself, or what a lazy one stands for; raises its error."""
    return value.value() if isinstance(value, Lazy) else value
