"""The watchdog: sees from outside that a step does not end, says who does not answer, and writes everybody's stacks down.

Role: looks at the scheduler's pulse once a second. Tokenizer process, on its loop's thread (``look`` returns at once);
stacks are collected by a short-lived thread. What it finds goes to clients with each pong, so a notebook shows the engine as
stuck and sees it recover. It ends nothing: a step may be long for a good reason, and ending is the user's choice.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from sgnb.config import STUCK_SECONDS
from sgnb.engine.pulse import Beat, read_pulse
from sgnb.engine.stacks import as_text, collect

log = logging.getLogger("sgnb.engine")
_ANSWERS_SECONDS = 1.0


class Watchdog:
    """One engine's. ``trouble``: one sentence or two for people while it is stuck, else empty."""

    def __init__(
        self,
        folder: Path,
        watchdog_seconds: float,
        pids: Callable[[], dict[str, int]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.trouble = ""
        self._folder = folder
        self._dump_after = watchdog_seconds
        self._stuck_after = min(STUCK_SECONDS, watchdog_seconds)
        self._pids = pids
        self._clock = clock
        self._dumped: tuple[int, float] | None = None

    def look(self) -> str:
        """Read the pulse; ``trouble`` as it is now."""
        beat = read_pulse(self._folder)
        seconds = 0.0 if beat is None or beat.phase == "idle" else self._clock() - beat.since
        if beat is None or seconds < self._stuck_after:
            if self.trouble:
                log.warning("the engine goes on: it is not stuck any more")
            self.trouble = ""
            return ""
        if not self.trouble:
            log.warning("no end of step %d for %.0f s", beat.step, seconds)
        self.trouble = self._words(beat, seconds)
        if seconds >= self._dump_after and self._dumped != (beat.step, beat.since):
            self._dumped = (beat.step, beat.since)
            threading.Thread(target=self._dump, args=(self.trouble,), name="sgnb-stacks", daemon=True).start()
        return self.trouble

    def _words(self, beat: Beat, seconds: float) -> str:
        requests = f"{beat.running} request{'' if beat.running == 1 else 's'} running"
        start = f"No step for {seconds:.0f} s, {requests}."
        if beat.phase != "compute":
            doing = "plans a step" if beat.phase == "plan" else "processes a result"
            return f"{start} The scheduler does not answer: it {doing}."
        if beat.own_thread:
            return f"{start} The scheduler's thread computes step {beat.step} and does not answer."
        answers = self._clock() - beat.answered < _ANSWERS_SECONDS
        who = "runner process" if "runner" in self._pids() else "forward thread"
        first = "The scheduler answers." if answers else "The scheduler does not answer."
        return f"{start} {first} The {who} does not."

    def _dump(self, why: str) -> None:
        log.warning("%s\n%s", why, as_text(collect(self._folder, self._pids())))
