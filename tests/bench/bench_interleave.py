"""A 4,000-token prompt while streams run, by chunk size; and how soon a high priority starts among 16 long ones.

    python tests/bench/bench_interleave.py [--virtual] [--streams 4] [--chunks 128 512] [--check]

With the embedded model (several minutes on a busy machine); ``--virtual``: the stub and a cost model, exact and at once.
For each chunk size: TTFT of the prompt, the longest wait of a stream for its next token, and that wait in chunk steps.
Bar at the default of 512: 1.5 chunk steps (with a real model on a shared machine the median counts, since a single wait may
be another program's turn); a high priority starts within 2 steps.
"""

from __future__ import annotations

import argparse
import statistics
from itertools import pairwise

from bench_rig import Bench, Costs

from sgnb.config import EngineArgs, default_of

PROMPT = 4000
CHUNKS = (64, 128, 256, 512, 1024, 2048, -1)
WAIT_BAR, START_BAR = 1.5, 2


def measure(
    runner: object, costs: Costs | None, chunk: int, streams: int
) -> tuple[float, list[float], float]:
    """(TTFT in s, waits of the streams for a token meanwhile, median seconds of a chunk step)."""
    bench = Bench(
        runner,
        costs,
        chunked_prefill_size=chunk,
        context_length=8192,
        max_total_tokens=20_000,
        max_running_requests=16,
    )
    rids = [bench.ask([100 + n, *range(200, 230)], max_new_tokens=3000) for n in range(streams)]
    for _ in range(streams + 12):
        bench.scheduler.step()
    asked, first = bench.clock(), len(bench.steps())
    rid = bench.ask(
        [(7 * n) % 200 + 300 if costs is None else 97 + n % 20 for n in range(PROMPT)], max_new_tokens=2
    )
    while rid not in bench.metas:
        bench.scheduler.step()
    gaps = [
        b - a
        for stream in rids
        for a, b in pairwise(bench.tokens[stream])
        if b > asked and a < bench.tokens[rid][0]
    ]
    steps = bench.steps()[first:]
    chunks = [
        end.time - begin.time
        for begin, end in pairwise(steps)
        if begin.mode == "extend" and sum(row.tokens for row in begin.rows) >= min(abs(chunk), PROMPT // 2)
    ]
    step = statistics.median(chunks) if chunks else max(gaps)
    return bench.tokens[rid][0] - asked, gaps, step


def starts() -> int:
    """Steps between the arrival of a high priority among 16 long streams, all rows taken, and its first one."""
    bench = Bench(costs=Costs(), max_running_requests=16, context_length=8192, max_total_tokens=60_000)
    for n in range(16):
        bench.ask([97 + n] * 40, max_new_tokens=2000)
    for _ in range(40):
        bench.scheduler.step()
    before = bench.scheduler.meter.forward_steps
    rid = bench.ask([65] * 40, max_new_tokens=1, priority=5)
    while rid not in bench.metas:
        bench.scheduler.step()
    return bench.metas[rid].first_step - before


def main() -> int:
    """Print a row for each chunk size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--virtual", action="store_true")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--chunks", type=int, nargs="+", default=CHUNKS)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    runner, costs = None, Costs()
    if not options.virtual:
        from sgnb.engine import model_store
        from sgnb.engine.model_executor.model_runner import create_runner

        costs = None
        args = EngineArgs.make(context_length=8192, max_total_tokens=20_000, max_running_requests=16)
        runner = create_runner(args, model_store.resolve("smollm2-135m-instruct"), lambda *a: None)
    print(
        f"{'chunk':>6} {'TTFT s':>8} {'longest wait s':>15} {'chunk step s':>13} {'in chunk steps':>15} {'median':>7}"
    )
    default, ratio, longest = default_of("chunked_prefill_size"), 0.0, 0.0
    for chunk in options.chunks:
        ttft, waits, step = measure(runner, costs, chunk, options.streams)
        longest = longest or ttft
        worst, typical = max(waits) / step, statistics.median(waits) / step
        if chunk == default:
            ratio = worst if options.virtual else typical
        bar = "#" * round(30 * ttft / longest)
        shown = chunk if chunk > 0 else "none"
        print(
            f"{shown:>6} {ttft:>8.2f} {max(waits):>15.3f} {step:>13.3f} {worst:>15.2f} {typical:>7.2f}   {bar}",
            flush=True,
        )
    start = starts()
    print(f"a high priority among 16 long ones starts in step {start} after its arrival")
    return int(options.check and (ratio > WAIT_BAR or start > START_BAR))


if __name__ == "__main__":
    raise SystemExit(main())
