"""The kernel side's own cost: a block of 64 parallel states on the mock backend, and the compilation of a program.

``python tests/bench/bench_language.py`` prints microseconds a block (recording, passes, lowering, events, reads: all that
is not the backend's) and milliseconds a compilation, with their bars.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from corpus.case import load

import sgnb as sgl
from sgnb.lang.frontend import NotCompiled, compile_twin, locate
from sgnb.lang.frontend.graph import parse_program
from sgnb.lang.frontend.state_uses import check_state_uses
from sgnb.lang.passes import PASSES
from sgnb.runtime.tracing import Tracer

STATES = 64
BLOCKS = 20


class Silent(Tracer):
    """Answers at once and keeps nothing; the time it takes is measured beside."""

    seconds = 0.0

    def submit(self, block: Any, sink: Any) -> None:
        began = time.thread_time()
        events = []

        def collect(new: Any) -> None:
            events.extend(new)

        super().submit(block, collect)
        self.blocks.clear()
        Silent.seconds += time.thread_time() - began
        sink(events)


@sgl.function
def parallel(s, blocks):
    """Each turn of the loop is a text and a generation in one state, and a read: one block."""
    for number in range(blocks):
        s += f"Step {number} " + sgl.gen("x", max_tokens=8)
        assert s["x"]


def block_cost(rounds: int = 5) -> float:
    """Microseconds of the kernel's own work for one block, with 64 states in flight side by side."""
    best = float("inf")
    for _ in range(rounds):
        backend = Silent()
        Silent.seconds = 0.0
        runs = [
            parallel.prepare((BLOCKS,), {}, parallel.split({"backend": backend, "passes": PASSES})[0])
            for _ in range(STATES)
        ]
        began = time.thread_time()
        for run in runs:
            run.drive_body()
        spent = time.thread_time() - began - Silent.seconds
        best = min(best, spent / (STATES * BLOCKS))
    return best * 1e6


def compile_costs() -> list[float]:
    """Milliseconds of finding, checking, graphing and rewriting each program of the corpus."""
    costs = []
    for case in load():
        func = case.program.func
        began = time.thread_time()
        try:
            found = locate(func)
            parse_program(found.node, filename=found.filename, name=func.__qualname__)
            check_state_uses(found.node, "s", found.filename)
            compile_twin(
                found.node, filename=found.filename, flags=found.flags, free=func.__code__.co_freevars,
                class_name=found.class_name, imports=found.imports, qualname=func.__qualname__,
                name=func.__code__.co_name,
            )  # fmt: skip
        except NotCompiled:
            continue
        costs.append((time.thread_time() - began) * 1e3)
    return costs


def main() -> None:
    """Both figures."""
    print(f"kernel side of a block, {STATES} states: {block_cost():.0f} µs (bar: 150 µs)")
    costs = compile_costs()
    print(
        f"compilation of a program: median {statistics.median(costs):.2f} ms, "
        f"90 % under {sorted(costs)[int(len(costs) * 0.9)]:.2f} ms (bar: 5 ms), {len(costs)} programs"
    )


if __name__ == "__main__":
    main()
