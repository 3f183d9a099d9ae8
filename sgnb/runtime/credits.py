"""Credits: how much of what is recorded may leave for the engine now.

Notebook process; one ``Credits`` for each carrier of blocks, used by every ``Core`` that runs on it. An engine says with
its answers how many KV slots it can still give away once all it runs has ended at its longest; a generation leaves only
while what it may need fits in that. So many branches on a small pool run a few at a time, and those that have begun end
before others begin (depth first), instead of being retracted and computed again. Where an engine says nothing, or KV
is plenty, everything leaves at once. No meaning here: order within a session is kept, sessions do not see one another.

Text that is not tokenised yet counts for about the most tokens that it can be (``most_tokens``). Once the engine has
begun a request its own figures hold: then what was booked too much is free again, and more leaves.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from queue import SimpleQueue
from types import MappingProxyType
from typing import TYPE_CHECKING

from sgnb.backends.base import Backend, BackendEvent, Done, Failed, Started
from sgnb.lang.block import ForkOp, GenOp, IdsOp, MarkOp, Op, SelectOp, TextOp
from sgnb.lang.position import internal

if TYPE_CHECKING:
    from sgnb.runtime.core import Core

internal(__name__)

WORD_BYTES = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ "
MARK_TOKENS = 8
"""What a template writes at the begin or end of a turn, about."""


def most_tokens(text: str) -> int:
    """About the most tokens of a text: one for two letters or spaces, one for each other byte of its UTF-8.

    Vocabularies know words of Latin letters, even where they have no words of the language. Of digits, signs and other
    scripts some of them know each byte alone; none can do worse.
    """
    raw = text.encode(errors="replace")
    others = len(raw.translate(None, WORD_BYTES))
    return others + (len(raw) - others + 1) // 2


def split(
    ops: Sequence[Op],
    begun: Iterable[str],
    budget: int,
    *,
    one: bool,
    owed: Mapping[str, int] = MappingProxyType({}),
) -> tuple[list[Op], list[Op], dict[str, int]]:
    """(what leaves, what waits, the cost in tokens of each generation that leaves) within ``budget`` tokens.

    Generations of sessions in ``begun`` go first, then the others in order; ``one``: the first goes whatever it costs.
    What stands behind a generation that waits, in its session and in those forked from it, waits with it. ``owed``:
    tokens of text that left earlier without a generation, by session.
    """
    costs, _ = costs_of(ops, owed)
    taken: dict[str, int] = {}
    first = frozenset(begun)
    for sids in (first, None):
        blocked: set[str] = set()
        for op in ops:
            if op.sid in blocked:
                if type(op) is ForkOp:
                    blocked.update(op.children)
                continue
            if not isinstance(op, GenOp | SelectOp) or op.rid in taken:
                continue
            cost = costs[op.rid]
            if (sids is None or op.sid in sids) and (cost <= budget or (one and not taken)):
                taken[op.rid] = cost
                budget -= cost
            else:
                blocked.add(op.sid)
    leaves: list[Op] = []
    waits: list[Op] = []
    behind: set[str] = set()
    for op in ops:
        held = op.sid in behind or (isinstance(op, GenOp | SelectOp) and op.rid not in taken)
        if held:
            behind.add(op.sid)
            if type(op) is ForkOp:
                behind.update(op.children)
        (waits if held else leaves).append(op)
    return leaves, waits, taken


def costs_of(ops: Sequence[Op], owed: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """(what each generation may need at most, what each session then still owes), both in tokens.

    A generation needs its new text, about, and all it may write. What a session has before a fork is computed once, by
    the first branch that generates.
    """
    costs: dict[str, int] = {}
    new = dict(owed)
    for op in ops:
        if type(op) is TextOp:
            new[op.sid] = new.get(op.sid, 0) + most_tokens(op.text)
        elif type(op) is IdsOp:
            new[op.sid] = new.get(op.sid, 0) + len(op.ids)
        elif type(op) is MarkOp:
            new[op.sid] = new.get(op.sid, 0) + MARK_TOKENS
        elif type(op) is ForkOp:
            new[op.children[0]] = new.pop(op.sid, 0)
        elif type(op) is GenOp:
            costs[op.rid] = new.pop(op.sid, 0) + max(1, op.params.max_new_tokens)
        elif type(op) is SelectOp:
            costs[op.rid] = new.pop(op.sid, 0) + sum(map(most_tokens, op.options)) + 1
    return costs, new


class Credits:
    """The books of one carrier. Thread-safe; its own thread sends what was held when there is room again."""

    def __init__(self, backend: Backend) -> None:
        self._backend = weakref.ref(backend)
        self._lock = threading.Lock()
        self._unseen: dict[str, int] = {}
        """Requests the engine has not started, with their cost: its figures do not count them yet."""
        self._under_way: set[str] = set()
        self._holders: dict[Core, None] = {}
        """Runs that hold something back, the oldest first."""
        self._queue: SimpleQueue[bool] = SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def active(self) -> bool:
        """True when the engine says what it has."""
        backend = self._backend()
        return backend is not None and backend.spare_tokens() is not None

    def take(self, core: Core, ops: Sequence[Op]) -> tuple[list[Op], list[Op]]:
        """What of ``ops`` leaves now, and what ``core`` holds back. The cost of what leaves is booked."""
        backend = self._backend()
        spare = None if backend is None else backend.spare_tokens()
        if spare is None:
            self.forget(core)
            return list(ops), []
        with self._lock:
            budget = spare - sum(self._unseen.values())
            one = not self._under_way
            leaves, waits, costs = split(ops, core.begun, budget, one=one, owed=core.owed)
            core.owed = costs_of(leaves, core.owed)[1]
            self._unseen |= costs
            self._under_way |= costs.keys()
            if waits:
                self._holders[core] = None
                self._start()
            else:
                self._holders.pop(core, None)
        core.begun.update(op.sid for op in leaves if isinstance(op, GenOp | SelectOp))
        return leaves, waits

    def forget(self, core: Core) -> None:
        """It holds nothing back any more."""
        if core not in self._holders:  # only the run's own flush, one at a time, puts it there
            return
        with self._lock:
            self._holders.pop(core, None)

    def refused(self, rids: Iterable[str]) -> None:
        """These never reached the engine."""
        self._settle((), rids)

    def note(self, events: Sequence[BackendEvent]) -> None:
        """Events of any run of this carrier, on the backend's thread: books first, then whoever waits is looked after."""
        if not self._under_way:
            return
        started = [event.rid for event in events if isinstance(event, Started)]
        ended = [event.rid for event in events if isinstance(event, Done | Failed) and event.rid]
        self._settle(started, ended)

    def _settle(self, started: Iterable[str], ended: Iterable[str]) -> None:
        """From now on the engine's own figures count these, or they are over: there may be room for others."""
        changed = False
        with self._lock:
            for rid in started:
                changed |= self._unseen.pop(rid, None) is not None
            for rid in ended:
                changed = True
                self._unseen.pop(rid, None)
                self._under_way.discard(rid)
            waiting = changed and bool(self._holders)
        if waiting and self._queue.empty():
            self._queue.put(True)

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name="sgnb-credits", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        """Let runs send what they held, the oldest and most urgent first. Ends with the backend's last run."""
        while True:
            self._queue.get()
            with self._lock:
                holders = sorted(self._holders, key=lambda core: -core.priority)
            for core in holders:
                core.flush()
            del holders
            with self._lock:
                if not self._holders:
                    self._thread = None
                    return


_books: weakref.WeakKeyDictionary[Backend, Credits] = weakref.WeakKeyDictionary()
_books_lock = threading.Lock()


def credits_of(backend: Backend) -> Credits:
    """The books of the backend that carries blocks out in the end."""
    carrier = backend.carrier
    found = _books.get(carrier)
    if found is None:
        with _books_lock:
            found = _books.setdefault(carrier, Credits(carrier))
    return found
