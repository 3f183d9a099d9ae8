"""A run as it was at an earlier moment: what the program view shows while the playhead is not at live.

Notebook process; called by ``widgets.program``. Any part of a log that holds what came before each of its events folds to a
complete picture. The engine's moment is told by its clock and, for what takes place in the engine, by how many tokens each
request had drawn: chunks are logged some milliseconds after their step. Pure but for the clocks' difference.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sgnb.runtime import events as ev
from sgnb.widgets.fold import ProgramFold
from sgnb.widgets.fold_messages import FoldMessages

NOT_STARTED = "Not started"


@dataclass(frozen=True, slots=True)
class Moment:
    """``time``: by the log's clock. ``tokens``: of each request that the page knows, how many it had drawn; ``ended``: those
    that had finished. Of other requests the log's times decide."""

    time: float
    tokens: Mapping[str, int]
    ended: frozenset[str]

    @staticmethod
    def of(content: Mapping[str, Any]) -> Moment:
        """From a message of the page, whose time is the engine's: seconds since the epoch."""
        told = content.get("time")
        at = float(told) if isinstance(told, int | float) else 0.0
        tokens = content.get("tokens")
        known = tokens.items() if isinstance(tokens, dict) else ()
        ended = content.get("ended")
        return Moment(
            at - (time.time() - time.monotonic()),
            {str(rid): count for rid, count in known if isinstance(count, int)},
            frozenset(str(rid) for rid in ended) if isinstance(ended, list) else frozenset(),
        )


def entries_at(entries: Iterable[ev.Entry], moment: Moment) -> Iterator[ev.Entry]:
    """The entries of a log that had come by then."""
    drawn = dict.fromkeys(moment.tokens, 0)
    for entry in entries:
        event = entry.event
        known = isinstance(event, ev.GenStarted | ev.GenDelta | ev.GenDone) and event.rid in drawn
        if not known:
            if entry.time <= moment.time:
                yield entry
            continue
        assert isinstance(event, ev.GenStarted | ev.GenDelta | ev.GenDone)
        over = event.rid in moment.ended
        if isinstance(event, ev.GenDelta):
            drawn[event.rid] += event.tokens
            if over or 0 < drawn[event.rid] <= moment.tokens[event.rid]:
                yield entry
        elif over or isinstance(event, ev.GenStarted):
            yield entry


def picture_at(log: ev.EventLog, moment: Moment) -> dict[str, Any]:
    """The whole picture of that moment, as ``FoldMessages.snapshot`` gives it."""
    fold = ProgramFold()
    entries = log.since(0)
    fold.feed(entries_at(entries, moment))
    picture = FoldMessages(fold).snapshot()
    head = picture["head"]
    began = entries[0].time if entries else moment.time
    if fold.started is None:
        head["word"] = NOT_STARTED
    if fold.finished is None:
        head["seconds"] = round(max(0.0, moment.time - began), 3)
    return picture
