"""Who drives which run: the calling thread, or one of a few pool threads.

Notebook process. A run that its caller waits for is driven on the caller's thread; ``run_async``, ``run_batch``,
``stream`` and background cells are driven by the pool. A parked run is a suspended generator in a list, never a thread.
Host code runs here, on the driving thread, never on a backend's. No language semantics.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable

from sgnb.lang.position import internal
from sgnb.runtime.core import CORES, Core
from sgnb.runtime.task import Frame, Result, Task
from sgnb.runtime.waiting import CancelRun

internal(__name__)

MAX_THREADS = 16
THREAD_NAME = "sgnb-run"
IDLE_SECONDS = 10.0
"""A pool thread without work ends after this long."""


class Driver:
    """A task and the right to advance it, which one thread has at a time."""

    def __init__(self, core: Core, enter: Callable[[], Frame | Result]) -> None:
        self.core = core
        self.task = Task(core, enter)
        self.pool: Pool | None = None
        self._mutex = threading.Lock()
        self._running = False
        self._queued = False

    def advance(self) -> bool:
        """Go on as far as possible on this thread, if no other thread does; True when it did."""
        with self._mutex:
            if self._running:
                return False
            self._running = True
        try:
            pause = self.task.go()
            self.core.flush()
            if pause is None:
                self._end()
        finally:
            with self._mutex:
                self._running = False
            self.core.tell()  # what became ready meanwhile is seen now: by a waiting driver, or by the pool
        return True

    def _end(self) -> None:
        if self.core.body_done:
            return
        error = self.task.error
        self.core.end_body(None if isinstance(error, CancelRun) and self.core.cancelled else error)

    @property
    def runnable(self) -> bool:
        """True when advancing would get somewhere and no thread is doing so."""
        pause = self.task.waiting
        if self._running or pause is None or self.task.done:
            return False
        return self.core.cancelled or pause.ready is None or pause.ready()

    def drive(self, timeout: float | None = None) -> bool:
        """Drive the body on this thread to its end; False if ``timeout`` seconds were not enough."""
        while not self.task.done:
            if not self.core.wait_plain(lambda: self.task.done or self.runnable, timeout):
                return False
            self.advance()
        return True

    def help_until(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait for a pool's run. A pool thread that waits drives the run itself, so that the pool cannot starve."""
        core = self.core
        if threading.current_thread().name != THREAD_NAME:
            return core.wait_plain(ready, timeout)
        while not ready():
            if not core.wait_plain(lambda: ready() or self.runnable, timeout):
                return False
            if not ready():
                self.advance()
        return True

    def start(self, pool: Pool) -> None:
        """Let the pool drive."""
        self.pool = pool
        self.core.on_wake = self.wake
        self.core.help_until = self.help_until
        self.wake()

    def wake(self) -> None:
        """Something changed: queue this run if it can go on. Called on any thread; returns at once."""
        pool = self.pool
        if pool is None:
            return
        with self._mutex:
            if self._queued or not self.runnable:
                return
            self._queued = True
        pool.put(self)

    def step(self) -> None:
        """One turn on a pool thread."""
        with self._mutex:
            self._queued = False
        self.advance()


class Pool:
    """At most ``MAX_THREADS`` daemon threads, started when needed and ended when idle."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._ready: list[tuple[int, int, Driver]] = []
        """A heap: the run of the highest priority first, among equals the one that has waited longest."""
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._threads = 0
        self._idle = 0

    def put(self, driver: Driver) -> None:
        """Queue a run that can go on."""
        with self._changed:
            heapq.heappush(self._ready, (-driver.core.priority, next(self._order), driver))
            if len(self._ready) <= self._idle:
                self._changed.notify()
                return
            if self._threads >= self.size:
                return
            self._threads += 1
        threading.Thread(target=self._work, name=THREAD_NAME, daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                found = self._changed.wait_for(lambda: bool(self._ready), IDLE_SECONDS)
                self._idle -= 1
                if not found:
                    self._threads -= 1
                    return
                driver = heapq.heappop(self._ready)[2]
            driver.step()
            del driver  # an idle thread must not keep the last run alive

    @property
    def threads(self) -> int:
        """How many threads live now."""
        return self._threads

    @property
    def queue_length(self) -> int:
        """How many runs could go on and wait for a thread."""
        return len(self._ready)


def instruction_queue_length() -> int:
    """How many operations all runs of this process have recorded and not sent: they wait for a flush, or for credit."""
    return sum(len(core.pending) + len(core.held) for core in list(CORES))


pool = Pool(MAX_THREADS)
"""The one pool of the process."""
