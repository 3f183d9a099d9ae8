"""What telemetry costs, and what scheduling takes of a real step: 16 streams of the embedded model, paired in one run.

    python tests/bench/bench_telemetry.py [--rounds 12] [--steps 40] [--streams 16] [--check]

Segments of decode steps with every event made, kept and framed as the engine's process does, alternate with segments whose
events go nowhere. On a shared machine the paired ratio is noise of several per cent, so the CPU seconds that telemetry
itself takes are given too, against the quietest tenth of the steps. Bars: 2 % of throughput; scheduling 3 % of a step.
With ``--stub`` the model answers at once, so that the milliseconds are the scheduler's alone.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from bench_rig import Bench

from sgnb.config import EngineArgs
from sgnb.engine.scheduler.telemetry import Telemetry
from sgnb.messages import StepEvent
from sgnb.transport import encode

TELEMETRY_BAR, SHARE_BAR = 0.02, 0.03


def main() -> int:
    """Print both shares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--stub", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    sizes = {"context_length": 2048, "max_total_tokens": 32_768, "max_running_requests": options.streams}
    runner: Any = None
    if not options.stub:
        from sgnb.engine import model_store
        from sgnb.engine.model_executor.model_runner import create_runner

        model = model_store.resolve("smollm2-135m-instruct")
        runner = create_runner(EngineArgs.make(**sizes), model, lambda *a: None)
    telemetry, steps, spent, on = Telemetry(), [], [0.0], True

    def publish(event: Any) -> None:
        if isinstance(event, StepEvent):
            steps.append(event)
        if on:
            began = time.thread_time()
            telemetry.emit(event)
            spent[0] += time.thread_time() - began

    bench = Bench(runner, publish=publish, **sizes)
    for n in range(options.streams):
        bench.ask([100 + n, *range(30, 60)], max_new_tokens=2000)
    for _ in range(options.streams + 20):
        bench.scheduler.step()

    def segment() -> float:
        began = time.perf_counter()
        for _ in range(options.steps):
            bench.scheduler.step()
            if on:
                framed = time.thread_time()
                encode(telemetry.take_frame("bench", began))
                spent[0] += time.thread_time() - framed
        return (time.perf_counter() - began) / options.steps

    ratios, spent[0] = [], 0.0
    for turn in range(options.rounds):
        pair = {}
        for on in (True, False) if turn % 2 else (False, True):
            pair[on] = segment()
        ratios.append(pair[True] / pair[False] - 1)
    done = steps[-options.rounds * options.steps :]
    share = statistics.median(
        (step.schedule_seconds + step.process_seconds)
        / (step.schedule_seconds + step.process_seconds + step.forward_seconds + step.sample_seconds)
        for step in done
    )
    told = spent[0] / (options.rounds * options.steps)
    quiet = statistics.quantiles([step.forward_seconds + step.sample_seconds for step in done], n=10)[0]
    forward = statistics.median(step.forward_seconds + step.sample_seconds for step in done)
    host = statistics.median(step.schedule_seconds + step.process_seconds for step in done)
    cost = statistics.median(ratios)
    print(
        f"a step of {options.streams} streams: model {forward * 1e3:.2f} ms, scheduling {host * 1e3:.2f} ms ({share:.2%})"
    )
    print(
        f"telemetry: {told * 1e6:.0f} µs of CPU a step, {told / quiet:.2%} of a quiet step of {quiet * 1e3:.2f} ms"
    )
    print(
        f"telemetry, paired: {cost:+.2%} of a step's time (quartiles {quartiles(ratios)}), {options.rounds} pairs"
    )
    return int(options.check and (told / quiet > TELEMETRY_BAR or share > SHARE_BAR))


def quartiles(values: list[float]) -> str:
    """``-0.10 % to +1.20 %``."""
    low, _, high = statistics.quantiles(values, n=4)
    return f"{low:+.2%} to {high:+.2%}"


if __name__ == "__main__":
    raise SystemExit(main())
