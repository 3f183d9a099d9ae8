"""What follows when a step fails: who ends, who goes on, and how large the next steps may be.

Role: takes a step that the runner could not compute. Scheduler process; ``Scheduler`` calls ``take`` instead of processing a
result, and ``passed`` after each step that was computed. A step that ran out of memory is tried again in parts: its requests
go back to the queue with what they have computed, and the next steps are half as large, until one fits or one request alone
is too much. That one ends; the others go on. Any other fault ends the requests of its step. Chooses nobody to run
(``planner`` does, within ``chunk`` and ``rows``) and computes nothing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from sgnb.engine.model_executor.drivers import OutOfMemory, StepSkipped
from sgnb.engine.scheduler.batch import ScheduleBatch
from sgnb.engine.scheduler.flight import Flight
from sgnb.engine.scheduler.select import ScoreBatch

if TYPE_CHECKING:
    from sgnb.engine.scheduler.scheduler import Scheduler

log = logging.getLogger(__name__)

FIRST_STEPS = 8
MOST_STEPS = 1024
"""Steps that must go well before a larger one is tried: at first, and at most."""
_NO_ROOM = "Give it a shorter prompt, or launch with a smaller max_total_tokens or another device."


class StepLimit:
    """How large a step may be while memory is short: halved by each failure, doubled after steps that went well.

    ``tokens``: new prompt (or option) tokens of a step; ``rows``: requests that hold a row. None: as many as the knobs say.
    The wait before a larger step is tried doubles with each failure, so that what never fits is not tried for ever.
    """

    tokens: int | None
    rows: int | None

    def __init__(self) -> None:
        self.lift()

    def lift(self) -> None:
        """Forget what was learnt: whole steps are tried again."""
        self.tokens = self.rows = None
        self._wait = FIRST_STEPS // 2
        self._good = 0

    @property
    def active(self) -> bool:
        """Steps are smaller than the knobs would have them."""
        return self.tokens is not None or self.rows is not None

    def shrink(self, batch: ScheduleBatch | ScoreBatch, page_size: int) -> bool:
        """A batch was too large; False if it cannot be made smaller: one row, and one page of new tokens."""
        tokens, rows = _size(batch)
        if rows == 1 and (tokens <= page_size or isinstance(batch, ScoreBatch)):
            return False
        if tokens > page_size:
            self.tokens = max(page_size, tokens // 2)
        else:
            self.rows = rows // 2
        self._wait = min(2 * self._wait, MOST_STEPS)
        self._good = 0
        return True

    def passed(self, most_tokens: int, most_rows: int) -> None:
        """A step went well. ``most_…``: what the knobs say; a limit that reaches them is none."""
        self._good += 1
        if self._good < self._wait:
            return
        self._good = 0
        if self.tokens is not None:
            self.tokens = None if 2 * self.tokens >= most_tokens else 2 * self.tokens
        if self.rows is not None:
            self.rows = None if 2 * self.rows >= most_rows else 2 * self.rows


def _size(batch: ScheduleBatch | ScoreBatch) -> tuple[int, int]:
    """(new tokens of prompts or options, rows)."""
    if isinstance(batch, ScoreBatch):
        return sum(len(row.ids) for row in batch.rows), len(batch.rows)
    return sum(batch.extend_lens[: batch.prompts]), len(batch.reqs)


class Mishaps:
    """One scheduler's."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.limit = StepLimit()

    def chunk(self, size: int) -> int:
        """``chunked_prefill_size`` of the next step; -1: no chunking."""
        most = self.limit.tokens
        return size if most is None else most if size < 0 else min(size, most)

    @property
    def rows(self) -> int:
        """Most requests that may hold a row."""
        knob = self._scheduler.args.max_running_requests
        return knob if self.limit.rows is None else min(knob, self.limit.rows)

    def passed(self) -> None:
        """A step was computed."""
        if self.limit.active:
            args = self._scheduler.args
            chunk = args.chunked_prefill_size
            self.limit.passed(chunk if chunk > 0 else args.max_prefill_tokens, args.max_running_requests)

    def take(self, flight: Flight, error: Exception) -> str:
        """End or requeue the requests of a step that was not computed; one word for its event."""
        if isinstance(error, StepSkipped):
            self._again(flight)
            return "skipped"
        if isinstance(error, OutOfMemory):
            self._too_large(flight, error)
            return "memory"
        log.error("step %d failed", flight.step, exc_info=error)
        for req in flight.live_reqs():
            req.last_step = flight.step
            self._scheduler.results.fail(req, "runner", f"step {flight.step} failed: {error!r}")
        return "error"

    def _too_large(self, flight: Flight, error: OutOfMemory) -> None:
        tokens, rows = _size(flight.batch)
        if self.limit.shrink(flight.batch, self._scheduler.allocator.page_size):
            log.warning(
                "step %d ran out of memory (%d rows, %d prompt tokens) and is tried again in parts: %s",
                flight.step,
                rows,
                tokens,
                error.message,
            )
            self._again(flight)
            return
        self.limit.lift()  # what was too large ends here
        for req in flight.live_reqs():
            log.warning("%s alone ran out of memory at step %d: %s", req.rid, flight.step, error.message)
            message = (
                f"the device has not enough memory for this request alone ({req.total_len} tokens, "
                f"step {flight.step}): {error.message}"
            )
            req.last_step = flight.step
            self._scheduler.results.fail(req, "memory", message, _NO_ROOM)

    def _again(self, flight: Flight) -> None:
        """Nothing of the step is known: who waits for it computes it again."""
        batch = flight.batch
        if isinstance(batch, ScoreBatch):
            batch.undo()
            return
        for req in flight.live_reqs():
            self._scheduler.planner.suspend(req, "memory")
