"""How often something happened of late: a count over a sliding window.

Notebook process; ``handle.Engine`` counts joins with it. Thread-safe, bounded by the events of one window.
No engine, no wire.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

WINDOW_SECONDS = 60.0


class Tally:
    """Events of the last ``window`` seconds of ``clock``."""

    def __init__(self, window: float = WINDOW_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._window = window
        self._clock = clock
        self._lock = threading.Lock()
        self._events: deque[tuple[float, int]] = deque()
        self._count = 0

    def note(self, count: int = 1) -> None:
        """``count`` of them happened now."""
        with self._lock:
            self._events.append((self._clock(), count))
            self._count += count
            self._forget()

    def rate(self) -> float:
        """How many a second, over the window."""
        with self._lock:
            self._forget()
            return self._count / self._window

    def _forget(self) -> None:
        start = self._clock() - self._window
        while self._events and self._events[0][0] < start:
            self._count -= self._events.popleft()[1]
