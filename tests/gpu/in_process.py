"""A scheduler in this process, on any runner and driver: for checks and benchmarks that need no sockets and no text.

Used by ``tests/gpu/gpu_check.py`` and ``tests/bench/bench_drivers.py``. One runner serves many schedulers, one after
another, since loading it is what costs. Prompts and outputs are token ids.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sgnb.config import EngineArgs
from sgnb.engine.model_executor.drivers import Driver, InlineDriver, ThreadDriver
from sgnb.engine.model_executor.model_runner import BaseRunner, create_runner
from sgnb.engine.model_executor.process_driver import ProcessDriver
from sgnb.engine.model_store import ModelPath
from sgnb.engine.scheduler.scheduler import Scheduler
from sgnb.messages import (
    BatchOutput,
    Label,
    SessionDecode,
    SessionOpen,
    StepEvent,
    TokenLogprob,
    TokenTable,
)
from sgnb.sampling_params import SamplingParams

STUB = ModelPath(name="stub", path=Path(), kind="gguf")


class Kept:
    """A runner whose driver may be closed without it."""

    def __init__(self, runner: BaseRunner) -> None:
        self.runner = runner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runner, name)

    def close(self) -> None:
        """Its owner closes it."""


@dataclass
class Result:
    """What a load said, and its steps."""

    ids: list[list[int]]
    logprobs: list[list[TokenLogprob]]
    steps: list[StepEvent] = field(default_factory=list)
    seconds: float = 0.0

    def figures(self, rows: int) -> dict[str, float]:
        """Of the decode steps with all ``rows``: medians in milliseconds, and tokens a second by the wall clock of all."""
        full = [step for step in self.steps if step.mode == "decode" and len(step.rows) == rows][2:]
        if not full:
            return {"steps": 0}

        def ms(name: str) -> float:
            return round(1e3 * statistics.median(getattr(step, name) for step in full), 4)

        run = statistics.median(step.forward_seconds + step.sample_seconds for step in full)
        exposed = statistics.median(step.exposed_host_seconds for step in full)
        return {
            "steps": len(full),
            "tokens_per_s": round(rows / (run + exposed), 1),
            "run_ms": round(1e3 * run, 4),
            "exposed_host_ms": ms("exposed_host_seconds"),
            "schedule_ms": ms("schedule_seconds"),
            "process_ms": ms("process_seconds"),
            "wasted_rows": sum(step.wasted_rows for step in self.steps),
            "wall_s": round(self.seconds, 3),
        }


class Bed:
    """One runner and its arguments. ``close`` frees it."""

    def __init__(self, model: ModelPath = STUB, **args: Any) -> None:
        self.args = EngineArgs.make(**args)
        self.model = model
        self.runner = create_runner(self.args, model, lambda *_: None)
        self._other: ProcessDriver | None = None

    def driver(self, name: str) -> Driver:
        """A driver around this runner; ``process``: the same model once more, in a process that is kept."""
        if name == "process":
            if self._other is None:
                self._other = ProcessDriver(self.args, self.model, lambda *_: None)
            return self._other
        kept = Kept(self.runner)
        return ThreadDriver(kept) if name == "thread" else InlineDriver(kept)

    def run(
        self,
        prompts: list[list[int]],
        params: SamplingParams | list[SamplingParams],
        *,
        driver: str = "inline",
        overlap: bool = False,
        **knobs: Any,
    ) -> Result:
        """All prompts at once, to their ends."""
        made = self.driver(driver)
        fields = {name: getattr(self.args, name) for name in self.args.__struct_fields__}
        args = EngineArgs.make(**{**fields, "enable_overlap": overlap, **knobs})
        found: dict[str, list[int]] = {f"c1.r{i}": [] for i in range(len(prompts))}
        logprobs: dict[str, list[TokenLogprob]] = {rid: [] for rid in found}
        steps: list[StepEvent] = []

        def send(message: Any) -> None:
            for item in message.items if isinstance(message, BatchOutput) else ():
                found[item.rid] += item.ids
                logprobs[item.rid] += item.logprobs
                if item.finish is not None and item.finish.error is not None:
                    raise RuntimeError(item.finish.error.message)

        def publish(event: Any) -> None:
            if isinstance(event, StepEvent):
                steps.append(event)

        scheduler = Scheduler(args, made, send, publish)
        scheduler.receive(TokenTable(table=[b"x"] * made.vocab_size))
        for i, ids in enumerate(prompts):
            scheduler.receive(SessionOpen(sid=f"c1.s{i}", client=1))
            scheduler.receive(
                SessionDecode(
                    rid=f"c1.r{i}",
                    sid=f"c1.s{i}",
                    client=1,
                    ids=ids,
                    params=params[i] if isinstance(params, list) else params,
                    stops=[],
                    stop_token_ids=[],
                    eos_token_ids=[],
                    label=Label(),
                )
            )
        began = time.perf_counter()
        while scheduler.step():
            pass
        seconds = time.perf_counter() - began
        scheduler.check_integrity()
        if driver != "process":
            made.close()
        return Result(list(found.values()), list(logprobs.values()), steps, seconds)

    def close(self) -> None:
        """Free the runner, and the one in another process."""
        self.runner.close()
        if self._other is not None:
            self._other.close()
