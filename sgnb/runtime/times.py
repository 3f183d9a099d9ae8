"""Where the time of a run went: one split of its wall time, and of each generation that is stopped, from its event log.

Notebook process; called when a run ends (``runtime.ending``, for ``RunFinished.times``) and when it stops what is under way
(``runtime.failing``: the engine's own figures of those come too late). Pure functions over the log; no clocks, no words.

A generation waits (the way to the engine and its tokenizer included) until it leaves the engine's queue, prefills until its
next token comes, then decodes; one that is retracted waits anew. Of one that ended by itself and was never retracted the
engine's own durations are taken, since they are exact, else the moments at which its events came.

A moment of the run at which some generation decodes counts as decode, else one at which some prefills as prefill, else one
at which some waits as queue; what is left is the program's own Python. So the parts add up to the whole however many
generations ran side by side. Getting the backend (a cell may start an engine) is a part of its own when it took long enough
to be seen.
"""

from __future__ import annotations

from collections.abc import Iterable

from sgnb.runtime.events import (
    Entry,
    Event,
    GenDelta,
    GenDone,
    GenFailed,
    GenQueued,
    GenRequeued,
    GenStarted,
    RunStarted,
    StateOpened,
)

PARTS = ("queue", "prefill", "decode")
"""In the order of a generation's life; a later part covers an earlier one."""
_LATEST_FIRST = tuple(reversed(range(len(PARTS))))
LEAST_START_SECONDS = 0.05
QUEUE, PREFILL, DECODE = range(len(PARTS))
_LATER = (GenStarted, GenRequeued, GenDelta, GenDone, GenFailed)
"""What comes for a generation that was queued."""

Span = tuple[int, float, float]
"""A part (its place in ``PARTS``), since when, and until when, by the log's clock."""


class _Life:
    """What one generation went through, as its events tell."""

    __slots__ = ("ended", "meta", "queued", "retracted", "turns")

    def __init__(self, queued: float) -> None:
        self.queued = queued
        self.turns: list[tuple[int, float]] = [(QUEUE, queued)]
        """Each part with the moment it began."""
        self.ended: float | None = None
        self.meta: dict[str, object] | None = None
        self.retracted = False

    def hear(self, event: Event, moment: float) -> None:
        """Something came for it: one of ``_LATER``."""
        if isinstance(event, GenDone | GenFailed):
            self.ended = moment
            if isinstance(event, GenDone):
                self.meta = event.meta
        elif isinstance(event, GenRequeued):
            self.retracted = True
            self.turns.append((QUEUE, moment))
        else:
            part = PREFILL if isinstance(event, GenStarted) else DECODE
            if part > self.turns[-1][0]:
                self.turns.append((part, moment))

    def spans(self, run_ended: float) -> list[Span]:
        """Its parts, one after another, from when it was queued until it ended."""
        ended = run_ended if self.ended is None else self.ended
        told = [_seconds(self.meta, f"{part}_time") for part in PARTS]
        decode, prefill = told[DECODE], told[PREFILL]
        if decode is None or prefill is None or self.retracted:
            ends = [since for _, since in self.turns[1:]] + [ended]
            return [(part, since, until) for (part, since), until in zip(self.turns, ends, strict=True)]
        decoding = max(self.queued, ended - decode)
        prefilling = max(self.queued, decoding - prefill)
        return [(QUEUE, self.queued, prefilling), (PREFILL, prefilling, decoding), (DECODE, decoding, ended)]


def _seconds(meta: dict[str, object] | None, name: str) -> float | None:
    value = None if meta is None else meta.get(name)
    return max(0.0, float(value)) if isinstance(value, (int, float)) else None


def _lives(entries: Iterable[Entry]) -> dict[str, _Life]:
    lives: dict[str, _Life] = {}
    for entry in entries:
        event = entry.event
        if isinstance(event, GenQueued):
            lives[event.rid] = _Life(entry.time)
        elif isinstance(event, _LATER):
            life = lives.get(event.rid)
            if life is not None:
                life.hear(event, entry.time)
    return lives


def times_so_far(entries: Iterable[Entry], now: float) -> dict[str, dict[str, float]]:
    """Of each generation that has not ended: the seconds of its meta if it ends ``now``, under SGLang's names."""
    out: dict[str, dict[str, float]] = {}
    for rid, life in _lives(entries).items():
        if life.ended is not None:
            continue
        spent = dict.fromkeys(PARTS, 0.0)
        for part, since, until in life.spans(now):
            spent[PARTS[part]] += until - since
        out[rid] = {f"{part}_time": seconds for part, seconds in spent.items()}
        out[rid]["e2e_latency"] = now - life.queued
    return out


def split_times(entries: Iterable[Entry], began: float, ended: float) -> dict[str, float]:
    """Seconds of ``queue, prefill, decode, python`` (and ``start``) between two moments of the log's clock.

    They add up to ``ended - began``.
    """
    entries = list(entries)
    told = ((entry.time, entry.event) for entry in entries)
    asked, waited = next(
        ((at, event.start_seconds) for at, event in told if isinstance(event, RunStarted)), (None, 0.0)
    )
    got = next((entry.time for entry in entries if isinstance(entry.event, StateOpened)), None)
    spans = [span for life in _lives(entries).values() for span in life.spans(ended)]
    out = dict(zip(PARTS, _cover(spans, began, ended), strict=True))
    rest = ended - began - sum(out.values())
    if asked is not None and got is not None:
        waited += max(0.0, got - max(asked, began))
    start = min(waited, max(0.0, rest))
    if start >= LEAST_START_SECONDS:
        out = {"start": start, **out}
        rest -= start
    return {**out, "python": max(0.0, rest)}


def _cover(spans: list[Span], began: float, ended: float) -> list[float]:
    """Seconds in which the latest part of any generation was each of PARTS."""
    steps: list[tuple[float, int, int]] = []
    for part, *edges in spans:
        since, until = (min(max(edge, began), ended) for edge in edges)
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
