"""What telemetry costs, and what scheduling takes of a real step: 16 streams of the embedded model, in one run.

    python tests/bench/bench_telemetry.py [--steps 400] [--streams 16] [--stub] [--check]

*On*: every event is made, kept in the ring and framed for the socket, as the engine's process does. *Off*: none is made.
On and off take turns, a step each, in the order on-off-off-on, so that a drift (longer contexts, a busier machine) meets
both alike. What differs between them is work of the scheduler's thread alone, so its CPU seconds outside of the model are
compared: other processes do not count there, and the model's own noise, a hundred times the difference, is left out. The
cost is the difference of the medians, its spread the middle nine tenths of 1,000 resamplings; the bar, 2 % of throughput,
is held against the quietest tenth of the model's steps. The ratio of whole steps by the clock is printed too: on a shared
machine it is noise of some per cent. Bars: 2 % of throughput; scheduling 3 % of a step. With ``--stub`` the model answers
at once, so that the milliseconds are the scheduler's alone.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from typing import Any

from bench_rig import Bench

from sgnb.config import EngineArgs
from sgnb.engine.model_executor.stub_runner import StubRunner
from sgnb.engine.scheduler.step_events import Draft, StepRecorder
from sgnb.engine.scheduler.telemetry import Telemetry
from sgnb.transport import encode

TELEMETRY_BAR, SHARE_BAR = 0.02, 0.03
SAMPLES = 1000


class Metered:
    """A runner whose share of a step is known: CPU seconds of the calling thread, and seconds."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self.cpu = self.wall = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def forward(self, batch: Any) -> Any:
        """As the runner's."""
        cpu, wall = time.thread_time(), time.perf_counter()
        out = self._runner.forward(batch)
        self.cpu, self.wall = time.thread_time() - cpu, time.perf_counter() - wall
        return out


class Silent(StepRecorder):
    """Makes no event: what the scheduler costs without telemetry."""

    def __init__(self, real: StepRecorder) -> None:
        self.for_rid, self.between, self.book = "", False, real.book

    def begin(self) -> None:
        """Nothing."""

    def rest(self) -> None:
        """Nothing."""

    def note(self, *_: Any, **__: Any) -> None:
        """Nothing."""

    def scheduled(self, *_: Any) -> Draft:
        """Nothing."""
        return Draft({}, 0.0)

    def landing(self) -> None:
        """Nothing."""

    def processed(self, *_: Any) -> None:
        """Nothing."""

    def relocated(self, runs: Any) -> None:
        """Nothing."""

    def flush_slots(self, step: int) -> None:
        """Nothing."""


class Switch:
    """The scheduler of a bench with its telemetry on or off."""

    def __init__(self, bench: Bench, telemetry: Telemetry) -> None:
        self.bench, self.telemetry = bench, telemetry
        scheduler = bench.scheduler
        self._on = (scheduler.recorder, scheduler.cache.on_change, scheduler.allocator.on_free)
        self._off = (Silent(scheduler.recorder), None, None)

    def step(self, on: bool) -> float:
        """One step, and its frame; CPU seconds of this thread."""
        scheduler = self.bench.scheduler
        scheduler.recorder, scheduler.cache.on_change, scheduler.allocator.on_free = (
            self._on if on else self._off
        )
        began = time.thread_time()
        scheduler.step()
        if on:
            encode(self.telemetry.take_frame("bench", began))
        return time.thread_time() - began


def main() -> int:
    """Print both shares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--stub", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    sizes = {
        "context_length": 2048,
        "max_total_tokens": 32_768,
        "max_running_requests": options.streams,
    }
    if options.stub:
        runner = Metered(StubRunner(EngineArgs.make(runner="stub", **sizes)))
    else:
        from sgnb.engine import model_store
        from sgnb.engine.model_executor.model_runner import create_runner

        model = model_store.resolve("smollm2-135m-instruct")
        runner = Metered(create_runner(EngineArgs.make(**sizes), model, lambda *a: None))
    telemetry = Telemetry()
    bench = Bench(runner, publish=telemetry.emit, **sizes)
    for n in range(options.streams):
        bench.ask([100 + n, *range(30, 60)], max_new_tokens=2000)
    switch = Switch(bench, telemetry)
    for _ in range(options.streams + 20):
        switch.step(True)
    host: dict[bool, list[float]] = {True: [], False: []}
    whole: dict[bool, list[float]] = {True: [], False: []}
    model_wall: list[float] = []
    for turn in range(options.steps):
        on = turn % 4 in (0, 3)
        began = time.perf_counter()
        cpu = switch.step(on)
        host[on].append(cpu - runner.cpu)
        whole[on].append(time.perf_counter() - began)
        model_wall.append(runner.wall)
    return report(options, host, whole, model_wall)


def report(
    options: argparse.Namespace,
    host: dict[bool, list[float]],
    whole: dict[bool, list[float]],
    model_wall: list[float],
) -> int:
    """Print what was measured; 1 with ``--check`` and over a bar."""
    cost = statistics.median(host[True]) - statistics.median(host[False])
    low, high = spread(host[True], host[False])
    quiet = statistics.quantiles(model_wall, n=10)[0]
    model = statistics.median(model_wall)
    scheduling = statistics.median(host[True])
    ratio = statistics.median(whole[True]) / statistics.median(whole[False]) - 1
    print(
        f"a step of {options.streams} streams: model {model * 1e3:.2f} ms (a quiet one {quiet * 1e3:.2f}), "
        f"scheduler and telemetry {scheduling * 1e6:.0f} µs of CPU ({scheduling / (scheduling + model):.2%})"
    )
    print(
        f"telemetry on against off, CPU of the scheduler's thread: {statistics.median(host[True]) * 1e6:.0f} against "
        f"{statistics.median(host[False]) * 1e6:.0f} µs a step: {cost * 1e6:+.0f} µs "
        f"({low * 1e6:+.0f} to {high * 1e6:+.0f}), {options.steps} steps in turn"
    )
    print(
        f"that is {cost / quiet:+.3%} ({low / quiet:+.3%} to {high / quiet:+.3%}) of a quiet step; "
        f"by the clock, noise and all: {ratio:+.2%}"
    )
    over = high / quiet > TELEMETRY_BAR or scheduling / (scheduling + model) > SHARE_BAR
    return int(options.check and over)


def spread(on: list[float], off: list[float]) -> tuple[float, float]:
    """The middle nine tenths of the difference of the medians, over resamplings of the steps."""
    rng = random.Random(0)
    found = sorted(
        statistics.median(rng.choices(on, k=len(on))) - statistics.median(rng.choices(off, k=len(off)))
        for _ in range(SAMPLES)
    )
    return found[SAMPLES // 20], found[-SAMPLES // 20]


if __name__ == "__main__":
    raise SystemExit(main())
