"""The runner of a simulation: no model; it draws what the script says and moves a virtual clock by what the step costs.

Role: stands where ``ModelRunner`` does, behind the same frozen record. Made by ``play`` for each setting.
"""

from __future__ import annotations

from collections.abc import Callable

from sgnb.engine.model_executor.model_runner import BaseRunner
from sgnb.engine.scheduler.simulate.cost import CostModel
from sgnb.engine.scheduler.simulate.script import Output, Script
from sgnb.messages import ModelWorkerBatch, ModelWorkerOutput


class VirtualClock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """The time."""
        return self.now


class SimulatedRunner(BaseRunner):
    """See the module. ``on_abort`` is called for a request that was aborted after
    as many tokens as it has drawn now."""

    vocab_size = (1 << 31) - 1
    dtype, device, attention_backend = "none", "virtual", "none"

    def __init__(
        self,
        script: Script,
        cost: CostModel,
        clock: VirtualClock,
        max_total_tokens: int,
        max_running: int,
    ) -> None:
        self.context_length = script.context_length
        self.rotates = True
        self.max_total_tokens = max_total_tokens
        self.max_running = max_running
        self.on_abort: Callable[[str], None] = lambda rid: None
        self.exact = False
        """Rows go bad and steps fail in the very pass in which they did; else rows go bad when the request has drawn as much
        as it had, and no step fails."""
        self._failures = {
            step.step: step.failed for step in script.steps if step.failed in ("memory", "error")
        }
        self.fault: Exception | None = None
        self.prefill_tokens = 0
        self._script = script
        self._cost = cost
        self._clock = clock

    def forward(self, batch: ModelWorkerBatch) -> ModelWorkerOutput:
        """Draw, and let the time pass that this step takes. A fault of the simulation itself is kept: the scheduler would
        take it for one of a model, and go on. What was planned behind a step that fails is skipped by the driver."""
        failed = self._failures.get(batch.step) if self.exact else None
        if failed is not None:
            self._pass_time(batch)
            raise MemoryError("as recorded") if failed == "memory" else RuntimeError("as recorded")
        try:
            return self._forward(batch)
        except Exception as error:
            self.fault = error
            raise

    def _forward(self, batch: ModelWorkerBatch) -> ModelWorkerOutput:
        seconds = self._pass_time(batch)
        ids, bad = [], []
        for row, drawn in enumerate(batch.sample):
            token = self._draw(batch.seeds[row], batch.positions_drawn[row]) if drawn else -1
            if token == _BAD:
                bad.append(row)
                token = -1
            ids.append(token)
        if self.exact:  # options that are scored tell it by having no scores
            derived = self._script.derived if batch.score_targets else {}
            bad = [
                row
                for row, seed in enumerate(batch.seeds)
                if seed not in derived and self._goes_bad(self._output(seed), batch.step)
            ]
        return ModelWorkerOutput(
            step=batch.step,
            next_token_ids=ids,
            logprobs=[None] * len(ids),
            bad_rows=bad,
            forward_seconds=seconds,
            sample_seconds=0.0,
            scores=[
                self._score(batch, row, targets) if targets is not None else None
                for row, targets in enumerate(batch.score_targets)
            ],
        )

    def move_slots(self, src: list[int], dst: list[int]) -> None:
        """Nothing lies in a slot."""

    def copy_rotated(self, src: list[int], dst: list[int], shift: list[int]) -> None:
        """Nothing lies in a slot."""

    def close(self) -> None:
        """Nothing to free."""

    def _pass_time(self, batch: ModelWorkerBatch) -> float:
        if batch.forward_mode == "decode":
            prefill, rows, context = 0, len(batch.sample), sum(batch.seq_lens)
        else:
            mixed = batch.forward_mode == "mixed"
            prefill = rows = context = 0
            for count, length in zip(batch.extend_lens, batch.seq_lens, strict=True):
                if mixed and count == 1:
                    rows, context = rows + 1, context + length
                else:
                    prefill += count
        self.prefill_tokens += prefill
        seconds = self._cost.seconds(prefill, rows, context)
        self._clock.now += seconds
        return seconds

    def _output(self, seed: int) -> Output | None:
        outputs = self._script.outputs
        return outputs[seed] if seed < len(outputs) else self._script.derived.get(seed)

    @staticmethod
    def _goes_bad(output: Output | None, step: int) -> bool:
        return output is not None and output.ends == "error" and step >= output.step

    def _draw(self, seed: int, position: int) -> int:
        output = self._script.outputs[seed]
        if position < len(output.ids):
            return output.ids[position]
        if output.ends == "error" and not self.exact:
            return _BAD
        if output.ends == "abort":
            self.on_abort(output.rid)
        # Nobody knows what it would have drawn: something that no other request draws.
        return (seed * 1_000_003 + position * 7_919) % (1 << 30)

    def _score(self, batch: ModelWorkerBatch, row: int, targets: list[int]) -> list[float] | None:
        """Values of an option's row, which ends with the option's own tokens."""
        known = self._script.scores.get((batch.seeds[row], targets[-1])) if targets else None
        if (
            known is not None
            and known.output.ends == "error"
            and (not self.exact or batch.step >= known.output.step)
        ):
            return None
        if known is None:
            return [-1.0] * len(targets)
        values = known.unconditional[1:] if len(targets) < known.tokens else known.conditional
        return [0.0] * (len(targets) - len(values)) + values[-len(targets) :]


_BAD = -2
