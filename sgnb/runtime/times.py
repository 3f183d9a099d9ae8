"""Where the time of a run went: one split of its wall time, from its event log.

Notebook process; called once, by ``runtime.core`` when a run ends, for ``RunFinished.times``. Pure functions over the
log; no clocks, no words.

A moment at which some generation decodes counts as decode, else one at which some prefills as prefill, else one at
which some waits as queue (the way to the engine and its tokenizer included); what is left is the program's own Python.
So the parts add up to the whole however many generations ran side by side. Getting the backend (a cell may start an
engine) is a part of its own when it took long enough to be seen.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from sgnb.runtime.events import (
    Entry,
    GenDelta,
    GenDone,
    GenFailed,
    GenQueued,
    GenStarted,
    RunStarted,
    StateOpened,
)

PARTS = ("queue", "prefill", "decode")
"""In the order of a generation's life; a later part covers an earlier one."""
_LATEST_FIRST = tuple(reversed(range(len(PARTS))))
LEAST_START_SECONDS = 0.05
_LATER = (GenStarted, GenDelta, GenDone, GenFailed)
"""What comes for a generation that was queued."""


@dataclass(slots=True)
class _Life:
    """Moments of one generation; None: not seen."""

    queued: float
    started: float | None = None
    first: float | None = None
    ended: float | None = None
    meta: dict[str, object] | None = None

    def hear(self, event: GenStarted | GenDelta | GenDone | GenFailed, moment: float) -> None:
        """Something came for it."""
        if isinstance(event, GenDelta):
            if self.first is None:
                self.first = moment
        elif isinstance(event, GenStarted):
            self.started = moment
        else:
            self.ended = moment
            if isinstance(event, GenDone):
                self.meta = event.meta

    def edges(self, run_ended: float) -> tuple[float, float, float, float]:
        """When it was queued, its prefill and its decode began, and it ended. The engine's own durations where it sent
        them (they are exact), else when its events arrived.
        """
        ended = run_ended if self.ended is None else self.ended
        decode, prefill = (_seconds(self.meta, f"{part}_time") for part in ("decode", "prefill"))
        first = ended if self.first is None else self.first
        decoding = min(first, ended) if decode is None else ended - decode
        started = decoding if self.started is None else self.started
        prefilling = min(started, decoding) if prefill is None else decoding - prefill
        decoding = max(self.queued, decoding)
        return self.queued, max(self.queued, min(prefilling, decoding)), decoding, ended


def _seconds(meta: dict[str, object] | None, name: str) -> float | None:
    value = None if meta is None else meta.get(name)
    return max(0.0, float(value)) if isinstance(value, (int, float)) else None


def split_times(entries: Iterable[Entry], began: float, ended: float) -> dict[str, float]:
    """Seconds of ``queue, prefill, decode, python`` (and ``start``) between two moments of the log's clock.

    They add up to ``ended - began``.
    """
    lives: dict[str, _Life] = {}
    asked: float | None = None
    got: float | None = None
    for entry in entries:
        event = entry.event
        if isinstance(event, GenQueued):
            lives[event.rid] = _Life(entry.time)
        elif isinstance(event, _LATER):
            life = lives.get(event.rid)
            if life is not None:
                life.hear(event, entry.time)
        elif asked is None and isinstance(event, RunStarted):
            asked = entry.time
        elif got is None and isinstance(event, StateOpened):
            got = entry.time
    out = dict(zip(PARTS, _cover([life.edges(ended) for life in lives.values()], began, ended), strict=True))
    rest = ended - began - sum(out.values())
    start = 0.0 if asked is None or got is None else min(max(0.0, got - max(asked, began)), max(0.0, rest))
    if start >= LEAST_START_SECONDS:
        out = {"start": start, **out}
        rest -= start
    return {**out, "python": max(0.0, rest)}


def _cover(lives: list[tuple[float, float, float, float]], began: float, ended: float) -> list[float]:
    """Seconds in which the latest part of any generation was each of PARTS."""
    steps: list[tuple[float, int, int]] = []
    for edges in lives:
        clipped = [min(max(edge, began), ended) for edge in edges]
        for part, (since, until) in enumerate(itertools.pairwise(clipped)):
            if until > since:
                steps += ((since, part, 1), (until, part, -1))
    steps.sort()
    spent, open_parts, before = [0.0] * len(PARTS), [0] * len(PARTS), began
    for moment, part, change in steps:
        if moment > before:
            for latest in _LATEST_FIRST:
                if open_parts[latest]:
                    spent[latest] += moment - before
                    break
            before = moment
        open_parts[part] += change
    return spent
