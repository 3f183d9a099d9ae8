"""The event log of a run: what every view of a program folds over.

Notebook process. Written by the dispatcher and states, read by widgets, static output, ``text_iter`` and late readers:
every event is kept, so any number of early or late readers see everything. Events are data: no widget code here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import msgspec

from sgnb.errors import SgnbError


class RunStarted(msgspec.Struct, frozen=True):
    """``title`` is the program's name or the cell; ``model`` and ``engine`` are shown in the last row."""

    title: str
    cell: str
    model: str
    graph: object = None
    """``lang.ir.Graph`` when the program compiled, else None."""
    eager_reason: str = ""
    start_seconds: float = 0.0
    """Waited for the backend before this was told: a cell may start an engine."""


class StateOpened(msgspec.Struct, frozen=True):
    """A new state; ``branch`` is its path as people read it ("" for the root)."""

    state: int
    branch: str
    parent: int | None = None
    fork: int = 0
    """Which of its parent's forks it is of, counted from 1; 0: no branch."""


class RoleBegan(msgspec.Struct, frozen=True):
    """A turn of ``role`` began in ``state``; ``prefix`` is the template's text."""

    state: int
    role: str
    prefix: str = ""


class RoleEnded(msgspec.Struct, frozen=True):
    """The open turn ended."""

    state: int
    role: str
    suffix: str = ""


class TextAppended(msgspec.Struct, frozen=True):
    """Program text was appended (prompt text, not model text)."""

    state: int
    text: str
    line: int = 0


class GenQueued(msgspec.Struct, frozen=True):
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
    method: str = ""
    """How a choice is made, by its name."""


class GenHeld(msgspec.Struct, frozen=True):
    """It is not sent yet: the KV that is free would not last for it. See ``runtime.credits``."""

    rid: str


class GenStarted(msgspec.Struct, frozen=True):
    """It left the engine's queue. ``prompt``: tokens of its prompt, 0 where that is not known; ``cached``: of these, what
    it found in the cache; ``text``: ``backends.base.PromptText``, the end of the prompt in tokens."""

    rid: str
    prompt: int = 0
    cached: int = 0
    text: object = None


class GenRequeued(msgspec.Struct, frozen=True):
    """It was retracted or suspended and waits in the engine's queue again, until its next ``GenStarted``."""

    rid: str


class GenDelta(msgspec.Struct, frozen=True):
    """Model text; ``tokens`` is how many tokens it stands for, ``logprobs`` holds (id, logprob, top) when asked.

    ``details``: the tokens as ``backends.base.TokenInfo``, when log-probabilities were asked for.
    """

    rid: str
    text: str
    tokens: int = 0
    logprobs: tuple[object, ...] = ()
    details: tuple[object, ...] = ()


class GenDone(msgspec.Struct, frozen=True):
    """It ended; ``meta`` is the variable's meta_info (SGLang's names).

    ``prompt``: ``backends.base.PromptText``, the end of its prompt in tokens, where the backend tells it now.
    """

    rid: str
    meta: dict[str, object] = msgspec.field(default_factory=dict)
    prompt: object = None


class GenFailed(msgspec.Struct, frozen=True):
    """It failed; partial text stays."""

    rid: str
    error: SgnbError


class BranchesJoined(msgspec.Struct, frozen=True):
    """``join`` was passed: the branches are read from now on, not appended to; what they have under way goes on.

    ``state``: their parent; ``count``: how many they are; ``states``: those of them that are states of this run.
    """

    state: int
    count: int
    states: tuple[int, ...]
    line: int = 0


class StateFailed(msgspec.Struct, frozen=True):
    """A state is poisoned."""

    state: int
    error: BaseException


class HostNote(msgspec.Struct, frozen=True):
    """A sentence for the reader: a warning, "Runs without a graph", "engine started"."""

    text: str
    line: int = 0


class GrammarReady(msgspec.Struct, frozen=True):
    """A constraint of a later generation is compiled, before that generation began.

    ``argument`` and ``source`` are those of its ``gen`` as the program writes them (``json_schema``, ``Verdict``), as in
    ``ir.GenPart.params``; ``seconds``: what compiling took, whenever that was.
    """

    argument: str
    source: str
    seconds: float


class RunFinished(msgspec.Struct, frozen=True):
    """The last event. ``status``: finished, stopped (by the user) or failed."""

    status: str
    seconds: float
    error: BaseException | None = None
    times: dict[str, float] = msgspec.field(default_factory=dict)
    """Seconds of ``queue, prefill, decode, python`` (and ``start``), which add up to ``seconds``: ``runtime.times``."""
    bound: str = ""
    """The notebook's variable for the state of the program (``-o NAME``), and ``names``: that state's own variables."""
    names: tuple[str, ...] = ()


Event = (
    RunStarted
    | StateOpened
    | RoleBegan
    | RoleEnded
    | TextAppended
    | GenQueued
    | GenHeld
    | GenStarted
    | GenRequeued
    | GenDelta
    | GenDone
    | GenFailed
    | BranchesJoined
    | StateFailed
    | HostNote
    | GrammarReady
    | RunFinished
)


class Entry(msgspec.Struct, frozen=True):
    """An event with its number (from 0, no holes) and the monotonic time it was logged at."""

    seq: int
    time: float
    event: Event


class EventLog:
    """Append-only and replayable. Thread-safe; listeners are called after each append, on the appending thread."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        """Readers on a thread of their own that sleep until something comes."""
        self._listeners: tuple[Callable[[], None], ...] = ()
        self._closed = False

    def append(self, event: Event) -> None:
        """Log ``event``; RunFinished closes the log, and what comes after it is refused."""
        with self._lock:
            if self._closed:
                return
            self._entries.append(Entry(len(self._entries), time.monotonic(), event))
            if event.__class__ is RunFinished:
                self._closed = True
            if self._waiting:
                self._changed.notify_all()
            listeners = self._listeners
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
        with self._lock:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: len(self._entries) > seq or self._closed, timeout)
            finally:
                self._waiting -= 1
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
        with self._lock:
            self._listeners = (*self._listeners, listener)

        def stop() -> None:
            with self._lock:
                kept = list(self._listeners)
                if listener in kept:
                    kept.remove(listener)
                self._listeners = tuple(kept)

        return stop
