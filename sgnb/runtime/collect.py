"""Sessions of states that nobody holds any more.

Notebook process. A state's finaliser may run anywhere, in the middle of any locked section, so it takes no lock: an idle
session is released at once, one with work under way is handed to a thread of its own, which stops the work first.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING

from sgnb.backends.base import Backend
from sgnb.errors import SgnbError
from sgnb.lang.position import internal
from sgnb.runtime.variables import Slot

if TYPE_CHECKING:
    from sgnb.runtime.core import Core

internal(__name__)

MAX_KEPT = 16
"""Settled generations a handle keeps before it forgets them."""


def release_sessions(backend: Backend, sids: Sequence[str]) -> None:
    """Release sessions. An engine that is gone has none left, and callers here must not fail: finalisers, clean-up."""
    try:
        backend.release(sids)
    except SgnbError:
        return


class SessionHandle:
    """What outlives a state or a mark: its session and what is under way in it. Holds no state."""

    __slots__ = ("core", "sid", "slots")

    def __init__(self, core: Core, sid: str) -> None:
        self.core = core
        self.sid = sid
        self.slots: list[Slot] = []

    def add(self, slot: Slot) -> None:
        """A generation is under way."""
        if len(self.slots) >= MAX_KEPT:
            self.slots = [other for other in self.slots if not other.settled]
        self.slots.append(slot)

    def collected(self) -> None:
        """The state is gone. Takes no lock."""
        core = self.core
        if core.pending or core.submitting or not all(slot.settled for slot in self.slots):
            _collector.put(self)
        else:
            release_sessions(core.backend, (self.sid,))

    def close_soon(self) -> None:
        """End the session on the collector's thread: for callers that must return at once."""
        _collector.put(self)

    def close(self) -> None:
        """End the session now."""
        self.core.drop(self.sid, self.slots)
        self.slots = []


class Collector:
    """One thread that closes sessions; started when it is first needed."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[SessionHandle] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def put(self, handle: SessionHandle) -> None:
        """Close it soon. May be called from a finaliser: a queue of this kind may."""
        self._queue.put(handle)

    def start(self) -> None:
        """Have the thread ready; called before there is anything to collect."""
        if self._thread is not None and self._thread.is_alive():
            return
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="sgnb-collect", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while True:
            self._queue.get().close()


_collector = Collector()


def start_collector() -> None:
    """Have the thread ready that ends sessions of dropped states."""
    _collector.start()
