"""Whole pictures of earlier moments: what lets a view that opens late show the last ten minutes.

Role: the ring of events (``telemetry``) says what changed, but not what was there before its first event. ``KeyPictures``
takes a picture (``picture``) now and then, between two steps, and gives the one from which a moment is reached; the
events since it are then asked for with ``history``. Scheduler process; kept by the process loop, asked by ``control``.
Bytes are bounded: large pictures are taken less often. Nothing else changes here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

EVERY_SECONDS = 60.0
IDLE_SECONDS = 30.0
"""Where nothing runs, a picture costs nobody anything: one that is due soon is taken."""
KEEP_SECONDS = 600.0
MAX_BYTES = 16 << 20


class KeyPicture(NamedTuple):
    """One moment: the number of its last event, its time (seconds), and the encoded answer to ``picture``."""

    seq: int
    time: float
    data: bytes


class KeyPictures:
    """``take`` gives the picture of this moment; ``first_seq`` the oldest event that is still kept."""

    def __init__(self, take: Callable[[], KeyPicture], first_seq: Callable[[], int]) -> None:
        self._take = take
        self._first_seq = first_seq
        self._kept: deque[KeyPicture] = deque()
        self._bytes = 0

    def attend(self, now: float, *, idle: bool) -> None:
        """Take one if it is due; called between steps. ``now``: seconds, of the engine's clock."""
        if self._kept:
            last = self._kept[-1]
            every = max(EVERY_SECONDS, KEEP_SECONDS * len(last.data) / MAX_BYTES)
            if now - last.time < (every * IDLE_SECONDS / EVERY_SECONDS if idle else every):
                return
        picture = self._take()
        self._kept.append(picture)
        self._bytes += len(picture.data)
        while len(self._kept) > 1 and (self._bytes > MAX_BYTES or self._kept[0].seq + 1 < self._first_seq()):
            self._bytes -= len(self._kept.popleft().data)

    def before(self, time: float) -> KeyPicture | None:
        """The newest picture of ``time`` or before it, else the oldest whose events are all kept; None: there is none."""
        usable = [picture for picture in self._kept if picture.seq + 1 >= self._first_seq()]
        found = [picture for picture in usable if picture.time <= time]
        return found[-1] if found else usable[0] if usable else None
