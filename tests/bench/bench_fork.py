"""When arms of a fork should wait for the first of them: ``python tests/bench/bench_fork.py``.

A cached text is forked; each arm goes on with ``common`` ids that all arms have (the tail that the fork left to compute, or
a role's opening) and ``own`` ids of its own, then draws 8. Counted on the stub: steps, and prompt tokens computed, with the
rule (``MIN_SHARED`` saved by all arms together), with nobody waiting, and with everybody waiting always. The last columns
are the time of each in units of a decode step, when a prompt token costs a tenth of one (a small model on a CPU): the rule
should be near the better of the other two everywhere.
"""

from __future__ import annotations

from sgnb.config import EngineArgs
from sgnb.engine.model_executor.stub_runner import StubRunner
from sgnb.engine.scheduler import prefill
from sgnb.engine.scheduler.scheduler import Scheduler
from sgnb.messages import (
    Label,
    ModelWorkerBatch,
    ModelWorkerOutput,
    SessionDecode,
    SessionFork,
    SessionOpen,
    TokenTable,
)
from sgnb.sampling_params import SamplingParams

TOKEN_COST = 0.1


class Counting(StubRunner):
    """Counts steps and computed prompt tokens."""

    prompt_tokens = 0

    def forward(self, batch: ModelWorkerBatch) -> ModelWorkerOutput:
        """One step."""
        self.prompt_tokens += sum(batch.extend_lens) if batch.forward_mode != "decode" else 0
        return super().forward(batch)


def decode(n: int, sid: int, ids: list[int], new: int) -> SessionDecode:
    """A generation on session ``sid``."""
    return SessionDecode(
        rid=f"c1.r{n}",
        sid=f"c1.s{sid}",
        client=1,
        ids=ids,
        params=SamplingParams(max_new_tokens=new, temperature=0.0, ignore_eos=True),
        stops=[],
        stop_token_ids=[],
        eos_token_ids=[],
        label=Label(),
    )


def run(arms: int, common: int, own: int, least: int) -> tuple[int, int]:
    """(steps, prompt tokens) after the fork, with ``MIN_SHARED`` at ``least``."""
    before, prefill.MIN_SHARED = prefill.MIN_SHARED, least
    try:
        args = EngineArgs.make(runner="stub", max_total_tokens=8192, context_length=1024)
        runner = Counting(args)
        scheduler = Scheduler(args, runner, lambda message: None, lambda event: None)
        scheduler.receive(TokenTable(table=[bytes([i]) for i in range(256)] + [b""] * 3))
        scheduler.receive(SessionOpen(sid="c1.s0", client=1))
        scheduler.receive(decode(0, 0, list(range(97, 117)) * 5, 1))
        while scheduler.step():
            pass
        runner.steps = runner.prompt_tokens = 0
        scheduler.receive(SessionFork(sid="c1.s0", children=[f"c1.s{arm}" for arm in range(1, arms + 1)]))
        for arm in range(1, arms + 1):
            scheduler.receive(decode(arm, arm, [98] * common + [100 + arm] * own, 8))
        while scheduler.step():
            pass
        return runner.steps, runner.prompt_tokens
    finally:
        prefill.MIN_SHARED = before


def main() -> None:
    """Print the table."""
    print(
        f"{'arms':>5} {'common':>7} {'own':>4}   {'rule':>10} {'nobody':>10} {'always':>10}   rule nobody always (steps)"
    )
    for arms in (2, 4, 8, 16):
        for common in (1, 2, 4, 8, 16, 31):
            found = [run(arms, common, 6, least) for least in (prefill.MIN_SHARED, 10**6, 1)]
            costs = [steps + TOKEN_COST * tokens for steps, tokens in found]
            counts = " ".join(f"{steps:>3}/{tokens:<6}" for steps, tokens in found)
            mark = "" if costs[0] <= 1.05 * min(costs[1:]) else "  <"
            print(
                f"{arms:>5} {common:>7} {6:>4}   {counts}   {' '.join(f'{cost:6.1f}' for cost in costs)}{mark}"
            )


if __name__ == "__main__":
    main()
