"""The event log of a run: what every view of a program folds over.

Notebook process. Written by the dispatcher and states, read by widgets, static output, ``text_iter`` and late readers:
every event is kept, so any number of early or late readers see everything. Events are data: no widget code here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from sgnb.errors import SgnbError


@dataclass(frozen=True, slots=True)
class RunStarted:
    """``title`` is the program's name or the cell; ``model`` and ``engine`` are shown in the last row."""

    title: str
    cell: str
    model: str
    graph: object = None
    """``lang.ir.Graph`` when the program compiled, else None."""
    eager_reason: str = ""


@dataclass(frozen=True, slots=True)
class StateOpened:
    """A new state; ``branch`` is its path as people read it ("" for the root)."""

    state: int
    branch: str
    parent: int | None = None
    fork: int = 0
    """Which of its parent's forks it is of, counted from 1; 0: no branch."""


@dataclass(frozen=True, slots=True)
class RoleBegan:
    """A turn of ``role`` began in ``state``; ``prefix`` is the template's text."""

    state: int
    role: str
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class RoleEnded:
    """The open turn ended."""

    state: int
    role: str
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class TextAppended:
    """Program text was appended (prompt text, not model text)."""

    state: int
    text: str
    line: int = 0


@dataclass(frozen=True, slots=True)
class GenQueued:
    """A generation was recorded and submitted."""

    state: int
    rid: str
    name: str
    line: int
    max_new_tokens: int
    options: tuple[str, ...] = ()
    """Of a choice."""
    shape: str = ""
    """What its output must be, in words: ``JSON schema Verdict``, ``regex``; empty where it is free."""


@dataclass(frozen=True, slots=True)
class GenStarted:
    """It left the engine's queue."""

    rid: str


@dataclass(frozen=True, slots=True)
class GenDelta:
    """Model text; ``tokens`` is how many tokens it stands for, ``logprobs`` holds (id, logprob, top) when asked.

    ``details``: the tokens as ``backends.base.TokenInfo``, when log-probabilities were asked for.
    """

    rid: str
    text: str
    tokens: int = 0
    logprobs: tuple[object, ...] = ()
    details: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class GenDone:
    """It ended; ``meta`` is the variable's meta_info (SGLang's names).

    ``prompt``: ``backends.base.PromptText``, the end of its prompt in tokens, where the backend told it.
    """

    rid: str
    meta: dict[str, object] = field(default_factory=dict)
    prompt: object = None


@dataclass(frozen=True, slots=True)
class GenFailed:
    """It failed; partial text stays."""

    rid: str
    error: SgnbError


@dataclass(frozen=True, slots=True)
class StateFailed:
    """A state is poisoned."""

    state: int
    error: BaseException


@dataclass(frozen=True, slots=True)
class HostNote:
    """A sentence for the reader: a warning, "Runs without a graph", "engine started"."""

    text: str
    line: int = 0


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The last event. ``status``: finished, stopped (by the user) or failed."""

    status: str
    seconds: float
    error: BaseException | None = None
    times: dict[str, float] = field(default_factory=dict)
    """Seconds of ``queue, prefill, decode, python`` (and ``start``), which add up to ``seconds``: ``runtime.times``."""


Event = (
    RunStarted
    | StateOpened
    | RoleBegan
    | RoleEnded
    | TextAppended
    | GenQueued
    | GenStarted
    | GenDelta
    | GenDone
    | GenFailed
    | StateFailed
    | HostNote
    | RunFinished
)


@dataclass(frozen=True, slots=True)
class Entry:
    """An event with its number (from 0, no holes) and the monotonic time it was logged at."""

    seq: int
    time: float
    event: Event


class EventLog:
    """Append-only and replayable. Thread-safe; listeners are called after each append, on the appending thread."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._changed = threading.Condition()
        self._listeners: list[Callable[[], None]] = []
        self._closed = False

    def append(self, event: Event) -> None:
        """Log ``event``; RunFinished closes the log, and what comes after it is refused."""
        with self._changed:
            if self._closed:
                return
            self._entries.append(Entry(len(self._entries), time.monotonic(), event))
            self._closed = isinstance(event, RunFinished)
            self._changed.notify_all()
            listeners = tuple(self._listeners)
        for listener in listeners:
            listener()

    @property
    def closed(self) -> bool:
        """True after RunFinished."""
        return self._closed

    def __len__(self) -> int:
        return len(self._entries)

    def since(self, seq: int) -> list[Entry]:
        """All entries from number ``seq`` on."""
        return self._entries[seq:]

    def wait(self, seq: int, timeout: float | None = None) -> bool:
        """Wait until entry ``seq`` exists or the log is closed; True if there is something new."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._entries) > seq or self._closed, timeout)
            return len(self._entries) > seq

    def follow(self) -> Iterator[Entry]:
        """Every entry from the first, waiting for new ones, until the log is closed."""
        seq = 0
        while True:
            for entry in self.since(seq):
                seq = entry.seq + 1
                yield entry
            if self._closed and seq >= len(self._entries):
                return
            self.wait(seq, 0.5)

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener()`` after each append; returns the function that ends it."""
        with self._changed:
            self._listeners.append(listener)

        def stop() -> None:
            with self._changed:
                if listener in self._listeners:
                    self._listeners.remove(listener)

        return stop
