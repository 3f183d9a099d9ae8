"""What the benchmarks share: a scheduler in this process, its events, and a clock that a cost model moves.

``Bench`` runs the shipped ``Scheduler`` on any runner; with ``costs`` the stub answers and time is virtual, so that figures
are exact and equal on every machine.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from sgnb.config import EngineArgs
from sgnb.engine.model_executor.stub_runner import StubRunner
from sgnb.engine.scheduler.scheduler import Scheduler
from sgnb.messages import (
    BatchOutput,
    Label,
    ModelWorkerBatch,
    ModelWorkerOutput,
    RequestMeta,
    SessionClose,
    SessionDecode,
    SessionOpen,
    StepEvent,
    TokenTable,
)
from sgnb.sampling_params import SamplingParams


@dataclass(frozen=True)
class Costs:
    """Seconds of a step: fixed, for each new prompt token, for each row that decodes. Defaults: the embedded model."""

    fixed: float = 0.012
    token: float = 0.0012
    row: float = 0.0015


class Bench:
    """One scheduler. ``arrivals`` and ``ends`` are seconds of its clock; ``tokens`` has the time of each drawn token."""

    def __init__(
        self, runner: Any = None, costs: Costs | None = None, publish: Any = None, **args: Any
    ) -> None:
        self.args = EngineArgs.make(runner="stub", **args)
        self.costs = costs
        self.now = 0.0
        self._runner = runner or StubRunner(self.args)
        self.events: list[Any] = []
        self.tokens: dict[str, list[float]] = {}
        self.metas: dict[str, RequestMeta] = {}
        clock = (lambda: self.now) if costs else time.perf_counter
        self.scheduler = Scheduler(
            self.args, self if costs else self._runner, self._hear, publish or self.events.append, clock
        )
        self.clock = clock
        self.scheduler.receive(TokenTable(table=[b"%d " % n for n in range(self._runner.vocab_size)]))
        self._asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def forward(self, batch: ModelWorkerBatch) -> ModelWorkerOutput:
        """The stub's answer, after the time that the cost model says."""
        assert self.costs is not None
        prompt = sum(count for count in batch.extend_lens if count > 1)
        rows = sum(count == 1 for count in batch.extend_lens)
        self.now += self.costs.fixed + prompt * self.costs.token + rows * self.costs.row
        return self._runner.forward(batch)

    def _hear(self, message: Any) -> None:
        if not isinstance(message, BatchOutput):
            return
        for item in message.items:
            self.tokens.setdefault(item.rid, []).extend([self.clock()] * len(item.ids))
            if item.meta is not None:
                self.metas[item.rid] = item.meta
                self.scheduler.receive(SessionClose(sids=[item.rid.replace("r", "s")]))

    def ask(self, ids: list[int], *, priority: int = 0, **params: Any) -> str:
        """Queue a generation on a session of its own."""
        n = self._asked = self._asked + 1
        made = SamplingParams.make({"temperature": 0.0, "ignore_eos": True, **params})
        self.scheduler.receive(SessionOpen(sid=f"c1.s{n}", client=1))
        self.scheduler.receive(
            SessionDecode(
                rid=f"c1.r{n}",
                sid=f"c1.s{n}",
                client=1,
                ids=ids,
                params=made,
                stops=[],
                stop_token_ids=[],
                eos_token_ids=[],
                label=Label(),
                priority=priority,
            )
        )
        return f"c1.r{n}"

    def steps(self) -> list[StepEvent]:
        """The events of steps so far."""
        return [event for event in self.events if isinstance(event, StepEvent)]


def percentile(values: list[float], share: float) -> float:
    """The value below which ``share`` of them lie; 0 of none."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else 0.0
