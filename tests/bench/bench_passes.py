"""What each pass saves: messages, operations, requests, prefilled tokens and steps of an engine, with the pass and without.

The engine is whole and in this process, on the stub runner, so its figures are exact and the same on every machine.
Run it: ``python tests/bench/bench_passes.py``; it prints one table.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from whole_engine import WholeEngine

import sgnb as sgl
from sgnb.lang.passes import PASSES, Pass

LONG = (
    "What every arm of this fork begins with, which is long enough to be computed once and for all of them. "
)
ARMS = 8


@sgl.function
def single_options(s):
    """Choices that are none: prune_choices."""
    for number in range(ARMS):
        s += f"Step {number}: " + sgl.select("c", ["only"]) + sgl.gen("x", max_tokens=4, ignore_eos=True)


@sgl.function
def many_pieces(s):
    """Text in small pieces: fold_text."""
    for word in LONG.split(" "):
        s += word
        s += " "
    s += sgl.gen("x", max_tokens=4, ignore_eos=True)


@sgl.function
def forks_in_a_row(s):
    """One branch at a time: merge_forks."""
    s += LONG
    branches = [s.fork(1) for _ in range(ARMS)]
    for number, branch in enumerate(branches):
        branch += f"Arm {number}. " + sgl.gen("x", max_tokens=4, ignore_eos=True)
    return branches


@sgl.function
def equal_arms(s):
    """Branches that write the same: share_generations."""
    s += LONG
    arms = s.fork(ARMS)
    for number, arm in enumerate(arms):
        arm += "First, " + sgl.gen("same", max_tokens=16, ignore_eos=True, temperature=0)
        arm += f" Arm {number}. " + sgl.gen("x", max_tokens=4, ignore_eos=True)
    arms.join()


@sgl.function
def common_beginning(s):
    """Branches that begin alike: hoist_prefix."""
    arms = s.fork(ARMS)
    for number, arm in enumerate(arms):
        arm += LONG + f"Arm {number}. " + sgl.gen("x", max_tokens=4, ignore_eos=True)
    arms.join()


@sgl.function
def tool_between(s, tool):
    """Long text, a tool, then branches that go on: commit_prefixes."""
    s += LONG * 12
    arms = s.fork(ARMS)
    tool()
    for number, arm in enumerate(arms):
        arm += f"Arm {number}. " + sgl.gen("x", max_tokens=4, ignore_eos=True)
    arms.join()


@sgl.function
def texts_between(s):
    """Generations with texts of other states between them: group_generations."""
    arms = s.fork(ARMS)
    for number, arm in enumerate(arms):
        arm += f"{number} begins in its own way. " + sgl.gen("x", max_tokens=4, ignore_eos=True)
    arms.join()


CASES: dict[str, Any] = {
    "prune_choices": single_options,
    "fold_text": many_pieces,
    "merge_forks": forks_in_a_row,
    "share_generations": equal_arms,
    "hoist_prefix": common_beginning,
    "commit_prefixes": tool_between,
    "group_generations": texts_between,
}
FIGURES = (
    "messages", "bytes", "instructions", "frames", "requests", "prefilled", "late", "generated", "steps",
)  # fmt: skip
"""``frames``: what the engine's tokenizer sends its scheduler. ``late``: the tokens computed after the tool has returned,
when somebody waits for them."""


def measure(program: Any, passes: tuple[Pass, ...]) -> dict[str, int]:
    """Counts of one run on an engine of its own."""
    engine = WholeEngine(max_total_tokens=16_384)
    try:
        meter = engine.scheduler.meter
        early = 0

        def tool() -> None:
            """It takes as long as the engine needs for what it has."""
            nonlocal early
            engine.resume()
            engine.settle()
            early = meter.prompt_total - meter.cached_total

        arguments = (tool,) if "tool" in program.arg_names else ()
        engine.pause()  # all of the program is there before the first step: what the order of threads does is no figure
        run = program.run_async(*arguments, backend=engine, seed=1, passes=passes)
        run.core.wait_plain(lambda: run.core.body_done or engine.messages > 0, 60)
        engine.resume()
        run.result(60)
        engine.settle()
        prefilled = meter.prompt_total - meter.cached_total
        return {
            "messages": engine.messages,
            "bytes": engine.bytes,
            "instructions": engine.ops,
            "frames": engine.frames,
            "requests": engine.requests,
            "prefilled": prefilled,
            "late": prefilled - early,
            "generated": meter.generated_total,
            "steps": meter.forward_steps,
        }
    finally:
        engine.shutdown()


def compare(name: str) -> tuple[dict[str, int], dict[str, int]]:
    """(with all passes, without this one)."""
    without = tuple(step for step in PASSES if step.name != name)
    return measure(CASES[name], PASSES), measure(CASES[name], without)


def main(write: Callable[[str], object] = print) -> None:
    """The table."""
    write(f"{'pass':<20}{'':<6}" + "".join(f"{figure:>14}" for figure in FIGURES))
    for name in CASES:
        on, off = compare(name)
        for title, row in (("on", on), ("off", off)):
            write(
                f"{name if title == 'on' else '':<20}{title:<6}"
                + "".join(f"{row[figure]:>14}" for figure in FIGURES)
            )


if __name__ == "__main__":
    main()
