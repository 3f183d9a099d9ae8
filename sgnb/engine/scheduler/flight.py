"""A step in flight: what was launched, and whose results are still to be taken.

Role: one entry of ``Scheduler.flights``. Scheduler process; made at launch, dropped when the step has landed. Holds what the
scheduler must remember of the batch meanwhile; the runner has a frozen record of its own and never sees this.
"""

from __future__ import annotations

from dataclasses import dataclass

from sgnb.engine.scheduler.batch import ScheduleBatch
from sgnb.engine.scheduler.req import Req
from sgnb.engine.scheduler.select import ScoreBatch
from sgnb.engine.scheduler.step_events import Draft


@dataclass(frozen=True, slots=True)
class Flight:
    """``step``: its number; ``draft``: its event so far."""

    batch: ScheduleBatch | ScoreBatch
    step: int
    draft: Draft

    def prompts(self) -> list[Req]:
        """Requests whose prompts, or chunks of them, are being computed."""
        batch = self.batch
        if isinstance(batch, ScoreBatch):
            return []
        return [req for row, req in enumerate(batch.reqs[: batch.prompts]) if batch.lives(row)]

    def live_reqs(self) -> list[Req]:
        """Requests that wait for this step's results."""
        batch = self.batch
        rows = [row.req for row in batch.rows] if isinstance(batch, ScoreBatch) else batch.reqs
        return list(dict.fromkeys(req for at, req in enumerate(rows) if batch.lives(at)))
