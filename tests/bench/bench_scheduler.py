"""Scheduling time per step, the runner's own time taken out: ``python tests/bench/bench_scheduler.py``.

64 running rows, first with an empty queue, then with 128 waiting requests under lpm. The runner returns at once. Times
are CPU time of the thread, so a busy machine does not show. Bar: mean ≤ 1 ms a step.
"""

from __future__ import annotations

import argparse
import statistics
import time

from sgnb.config import EngineArgs
from sgnb.engine.scheduler.scheduler import Scheduler
from sgnb.messages import (
    Label,
    ModelWorkerBatch,
    ModelWorkerOutput,
    SessionDecode,
    SessionOpen,
    TokenTable,
)
from sgnb.sampling_params import SamplingParams

VOCAB = 1000


class InstantRunner:
    """Draws a fixed token; counts its own seconds."""

    vocab_size = VOCAB
    context_length = 8192
    max_total_tokens = 200_000
    max_running = 64

    def __init__(self) -> None:
        self.seconds = 0.0

    def forward(self, batch: ModelWorkerBatch) -> ModelWorkerOutput:
        started = time.thread_time()
        rows = len(batch.sample)
        out = ModelWorkerOutput(
            step=batch.step,
            next_token_ids=[7 if drawn else -1 for drawn in batch.sample],
            logprobs=[None] * rows,
            bad_rows=[],
            forward_seconds=0.0,
            sample_seconds=0.0,
        )
        self.seconds += time.thread_time() - started
        return out


def measure(waiting: int, steps: int, prompt: int) -> list[float]:
    """Milliseconds of ``steps`` decode steps with 64 running rows."""
    runner = InstantRunner()
    scheduler = Scheduler(EngineArgs.make(runner="stub"), runner, lambda message: None, lambda event: None)
    scheduler.receive(TokenTable(table=[b"word%d " % i for i in range(VOCAB)]))
    params = SamplingParams.make({"max_new_tokens": 4000, "ignore_eos": True, "stop": ["never seen", "\n\n"]})
    for n in range(64 + waiting):
        scheduler.receive(SessionOpen(sid=f"c1.s{n}", client=1))
        scheduler.receive(
            SessionDecode(
                rid=f"c1.r{n}",
                sid=f"c1.s{n}",
                client=1,
                ids=[(n * 31 + i) % VOCAB for i in range(prompt)],
                params=params,
                stops=[stop.encode() for stop in params.stop],
                stop_token_ids=[],
                eos_token_ids=[2],
                label=Label(),
            )
        )
    while len(scheduler.running_batch) < min(64, runner.max_running):
        scheduler.step()
        if scheduler.chunked_req is None and not scheduler.free_rows:
            break
    times = []
    for _ in range(steps):
        runner.seconds, started = 0.0, time.thread_time()
        scheduler.step()
        times.append((time.thread_time() - started - runner.seconds) * 1e3)
    return times


def main() -> None:
    """Print a row for each load."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--prompt", type=int, default=200)
    args = parser.parse_args()
    print(f"{'running':>8} {'waiting':>8} {'mean ms':>9} {'p50 ms':>9} {'p99 ms':>9}")
    for waiting in (0, 128):
        times = sorted(measure(waiting, args.steps, args.prompt))
        p50, p99 = times[len(times) // 2], times[int(len(times) * 0.99)]
        print(f"{64:>8} {waiting:>8} {statistics.mean(times):>9.3f} {p50:>9.3f} {p99:>9.3f}")


if __name__ == "__main__":
    main()
