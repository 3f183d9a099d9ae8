"""Waiting for a run: on a thread, for its body, in a circle; and who asks.

Notebook process; the first of the layers of ``runtime.core.Core``. Knows when something has changed and whom to
wake, not what. ``lock`` guards data and is never held while a backend or a log listener is called.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING

from sgnb.errors import ProgramError
from sgnb.lang.position import here, internal

if TYPE_CHECKING:
    from sgnb.runtime.core import Core

internal(__name__)

MAX_CANCEL_THROWS = 100
"""How often a program that catches its cancellation is told again before it is dropped."""

TICK_SECONDS = 0.05
"""Event loops wake this often, so that an interrupt of an awaiting cell is seen (ipykernel does not wake the loop)."""

_waits = threading.Lock()
"""Guards ``waits_for`` of all runs."""
_current: ContextVar[Core | None] = ContextVar("sgnb_current_core", default=None)


def current_core() -> Core | None:
    """The run whose program is being executed by the code that asks, or None."""
    return _current.get()


def set_current(core: Core | None) -> None:
    """Say whose program is being executed in this context."""
    _current.set(core)


async def tick(woken: asyncio.Event) -> None:
    """Wait until ``woken`` is set; the next tick sets it.

    Not by ``asyncio.wait_for``: up to Python 3.11 it forgets a cancellation that comes together with the end of what it
    waits for, and then an interrupted cell went on for ever.
    """
    timer = asyncio.get_running_loop().call_later(TICK_SECONDS, woken.set)
    try:
        await woken.wait()
    finally:
        timer.cancel()


class CancelRun(BaseException):
    """Thrown into a program that was cancelled; never leaves the runtime."""


class Waiting(ABC):
    """What others wait for, and how."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self._sleeping = 0
        """Threads that wait for ``changed``."""
        self.body_done = False
        self.cancelled = False
        self.cancel_throws = 0
        self.on_wake: Callable[[], None] | None = None
        """Set by a pool that has parked this run: called after each change, must return at once."""
        self.help_until: Callable[[Callable[[], bool], float | None], bool] | None = None
        """Set by a pool that drives this run: how another thread waits for it (a pool thread drives it meanwhile)."""
        self.driving = 0
        """The thread that executes the body now, or did last."""
        self._watchers: list[Callable[[], None]] = []
        """Event loops that wait here, each by a call that returns at once."""
        self.waits_for: tuple[Waiting, Callable[[], bool]] | None = None
        """Whose body this one's waits for, on its thread, and until when."""

    @abstractmethod
    def stop(self) -> None:
        """Cancel the run for somebody who only waits."""

    def wait(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """Block this thread until ``ready()`` or cancellation; True if ready. An interrupt of a reader outside the
        program stops the run: nobody wants the rest, and nobody else might be left to stop it.
        """
        help_until = self.help_until
        try:
            if help_until is not None and current_core() is not self:
                help_until(lambda: ready() or self.cancelled, timeout)
            else:
                self.wait_plain(lambda: ready() or self.cancelled, timeout)
        except KeyboardInterrupt:
            if current_core() is not self:
                self.stop()
            raise
        return ready()

    def wait_for_body(self, ready: Callable[[], bool]) -> None:
        """Wait until ``ready()`` or the end of the body, which another thread executes.

        Raises ProgramError when that body waits, directly or through others, for the program that asks.
        """
        wanted = lambda: ready() or self.body_done or self.cancelled  # noqa: E731
        mine = current_core()
        if mine is None or mine.driving != threading.get_ident():
            self.wait(wanted)
            return
        with _waits:
            mine.waits_for = (self, wanted)
            other: Waiting | None = self
            while other is not None and other is not mine:
                found = other.waits_for
                other = None if found is None or found[1]() else found[0]
            if other is mine:
                mine.waits_for = None
                raise ProgramError(
                    "This program and the one it reads from wait for each other: neither can go on.",
                    hint="Read what is bound already, or let one of them end first.",
                    position=here(),
                )
        try:
            self.wait(wanted)
            mine.check_cancelled()
        finally:
            mine.waits_for = None

    def wait_plain(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """Block this thread until ``ready()``, cancelled or not; True if ready."""
        with self.lock:
            if ready():
                return True
            self._sleeping += 1
            try:
                return self.changed.wait_for(ready, timeout)
            finally:
                self._sleeping -= 1

    async def wait_async(self, ready: Callable[[], bool]) -> bool:
        """``wait`` for a coroutine: no thread waits meanwhile. Cancelling it stops the run, as an interrupt does."""
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()

        def watch() -> None:
            try:
                loop.call_soon_threadsafe(woken.set)
            except RuntimeError:
                pass  # the loop has ended: nobody waits there any more

        with self.lock:
            self._watchers.append(watch)
        try:
            while not (ready() or self.cancelled):
                woken.clear()
                if not ready():
                    await tick(woken)
        except (asyncio.CancelledError, KeyboardInterrupt):
            self.stop()
            raise
        finally:
            with self.lock:
                self._watchers.remove(watch)
        if not ready():
            await asyncio.sleep(0)  # stopped: the caller may ask again at once
        return ready()

    def notify(self) -> None:
        """Wake whoever waits, on a thread or in an event loop. Under the lock."""
        if self._sleeping:
            self.changed.notify_all()
        for watch in self._watchers:
            watch()

    def tell(self) -> None:
        """Something changed: wake who waits, and the pool."""
        with self.lock:
            self.notify()
        self._wake()

    def check_cancelled(self) -> None:
        """End the program that asks if it was cancelled; its readers outside may go on."""
        if self.cancelled and current_core() is self:
            raise CancelRun

    def _wake(self) -> None:
        wake = self.on_wake
        if wake is not None:
            wake()

    def elsewhere(self) -> bool:
        """True when the body is still being executed, and not by the code that asks."""
        return not self.body_done and current_core() is not self
