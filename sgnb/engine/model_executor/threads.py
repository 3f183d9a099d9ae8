"""How many threads torch uses, chosen while running: a notebook's cores are shared with browser, server and kernel.

Scheduler process; owned by the torch runner, asked before and told after every step. Two spinning threads are fastest on
an idle machine and many times slower than one when another process wants a core, because each product waits for the
thread that lost its core. So single-row steps keep the recent median of both counts, take the better one, and try the
other again now and then. Larger steps use all threads; results do not depend on the choice beyond rounding.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import deque

import torch

_WINDOW = 5
_RETRY_SECONDS = 0.75
_MAX_TOKENS = 3
_SLOWER = 1.05
_STALLED = 2.0


class ThreadChooser:
    """``given`` or ``fixed`` pins the count; else it adapts between one and all cores of this process."""

    def __init__(self, given: int | None, *, fixed: bool) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.most = given or cores
        self.adaptive = given is None and not fixed and self.most > 1
        self.current = self.most
        self._measured = 0
        self._times: dict[int, deque[float]] = {1: deque(maxlen=_WINDOW), self.most: deque(maxlen=_WINDOW)}
        self._next_try = 0.0
        torch.set_num_threads(self.most)

    def before_step(self, tokens: int) -> None:
        """Set the count for a step of ``tokens`` new tokens."""
        if not self.adaptive:
            return
        self._measured = 0
        count = self.most
        if tokens <= _MAX_TOKENS:
            count = self._measured = self._pick()
        if count != self.current:
            torch.set_num_threads(count)
            self.current = count

    def after_step(self, seconds: float) -> None:
        """Tell how long that step took."""
        if self._measured:
            self._times[self._measured].append(seconds)

    def _pick(self) -> int:
        for count in (self.most, 1):
            if len(self._times[count]) < 2:
                return count
        one, many = (statistics.median(self._times[count]) for count in (1, self.most))
        # a sudden slow step counts at once, not only when the median has followed
        stalled = self._times[self.most][-1] > one * _STALLED
        best, other = (self.most, 1) if many <= one * _SLOWER and not stalled else (1, self.most)
        now = time.monotonic()
        if now >= self._next_try:
            self._next_try = now + _RETRY_SECONDS
            return other
        return best
