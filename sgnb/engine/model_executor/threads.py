"""How many threads torch uses, chosen while running: a notebook's cores are shared with browser, server and kernel.

Scheduler process; owned by the torch runner, asked before and told after every step. Two spinning threads are fastest on
an idle machine and many times slower than one when another process wants a core, because each product waits for the
thread that lost its core. So single-row steps keep the recent median of both counts and take the better one; the other
is tried again now and then, the rarer the more such a try costs. Larger steps follow the same judgement; before there
is one, a probe of a few milliseconds decides. Results do not depend on the choice beyond rounding.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import deque

import torch

_WINDOW = 5
_RETRY_SECONDS = 0.75
_RETRY_SHARE = 0.05
"""At most about this share of the time is lost to trying."""
_MAX_TOKENS = 3
_SLOWER = 1.05
_STALLED = 2.0
_PROBE_PRODUCTS = 12


class ThreadChooser:
    """``given`` or ``fixed`` pins the count; else it adapts between one and all cores of this process."""

    def __init__(self, given: int | None, *, fixed: bool) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.most = given or cores
        self.adaptive = given is None and not fixed and self.most > 1
        self.current = self.most
        self._trial = 0
        self._times: dict[int, deque[float]] = {1: deque(maxlen=_WINDOW), self.most: deque(maxlen=_WINDOW)}
        self._next_try = 0.0
        self._probed: int | None = None
        torch.set_num_threads(self.most)

    def before_step(self, tokens: int) -> None:
        """Set the count for a step of ``tokens`` new tokens."""
        if not self.adaptive:
            return
        single = tokens <= _MAX_TOKENS
        count = self._pick() if single else self._best()
        self._trial = count if single else 0
        self._set(count)

    def after_step(self, seconds: float) -> None:
        """Tell how long that step took."""
        if not self._trial:
            return
        self._times[self._trial].append(seconds)
        if all(self._times.values()):
            lost = self._times[self._trial][-1] - min(statistics.median(t) for t in self._times.values())
            if self._trial != self._best():
                self._next_try = time.monotonic() + max(_RETRY_SECONDS, lost / _RETRY_SHARE)

    def _set(self, count: int) -> None:
        if count != self.current:
            torch.set_num_threads(count)
            self.current = count

    def _pick(self) -> int:
        """For a measured step: what lacks measurements first, then the best, now and then the other."""
        best = self._best()
        other = 1 if best == self.most else self.most
        for count in (best, other):
            if len(self._times[count]) < 2:
                return count
        return other if time.monotonic() >= self._next_try else best

    def _best(self) -> int:
        if not all(self._times.values()):
            if self._probed is None:
                self._probed = self._probe()
            return self._probed
        one, many = (statistics.median(self._times[count]) for count in (1, self.most))
        # a sudden slow step counts at once, not only when the median has followed
        stalled = self._times[self.most][-1] > one * _STALLED
        return self.most if many <= one * _SLOWER and not stalled else 1

    def _probe(self) -> int:
        """A few small products with either count, before any step was measured."""
        x, w = torch.ones(32, 512), torch.ones(512, 512)
        seconds = {}
        for count in (1, self.most):
            self._set(count)
            x @ w  # wakes the threads
            started = time.perf_counter()
            for _ in range(_PROBE_PRODUCTS):
                x @ w
            seconds[count] = time.perf_counter() - started
        return self.most if seconds[self.most] <= seconds[1] * _SLOWER else 1
