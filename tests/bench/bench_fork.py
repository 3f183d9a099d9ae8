"""256 branches of a prefix of about 1,000 tokens on the real model: is the prefix computed once, and when do all answer?

    python tests/bench/bench_fork.py [--arms 256] [--model MODEL]

From the engine's step events: prompt tokens computed, slots held at the end, the time from the end of the prefix's own
computation to the first token of the last branch, and a decode step of that many rows (the median of later ones). The bar:
the first within 2 times the second, beyond what the branches' own text costs to compute.
"""

from __future__ import annotations

import argparse
import statistics

import sgnb as sgl
from sgnb.messages import StepEvent

PREFIX = (
    "The harbour was quiet that morning, and the fishermen spoke of the weather as they always did. " * 50
)


@sgl.function
def fork(s, arms):
    """A prefix, and branches that add one word each."""
    s += PREFIX
    group = s.fork(arms)
    for number, arm in enumerate(group):
        arm += f" {number}:" + sgl.gen("x", max_tokens=8, ignore_eos=True)
    group.join()
    return s["x"]


def main() -> None:
    """One run; prints the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--arms", type=int, default=256)
    parser.add_argument("--model", default=None)
    options = parser.parse_args()
    args = {} if options.model is None else {"model": options.model}
    launched = sgl.launch(
        name="bench-fork", max_running_requests=options.arms, max_total_tokens=16_384, **args
    )
    with launched as engine:
        steps: list[StepEvent] = []
        engine.wait_ready(300)
        stop = engine.subscribe(lambda event: steps.append(event) if isinstance(event, StepEvent) else None)
        fork.run(1, backend=engine, temperature=0.0).sync()
        engine.flush_cache()
        before = engine.stats()
        steps.clear()
        state = fork.run(options.arms, backend=engine, temperature=0.0)
        assert len(state.ret_value) == options.arms
        after = engine.stats()
        state.sync()
        stop()
        report(options.arms, steps, before, after)


def report(arms: int, steps: list[StepEvent], before: dict, after: dict) -> None:
    """Print what the events say."""
    prompt = after["prompt_tokens_total"] - before["prompt_tokens_total"]
    cached = after["cached_tokens_total"] - before["cached_tokens_total"]
    print(f"{arms} branches: {prompt} prompt tokens, {prompt - cached} computed")
    print(f"slots: {after['num_used_tokens'] + after['num_cached_tokens']} used or cached")
    decodes = [s.forward_seconds for s in steps if s.mode == "decode" and len(s.rows) == arms]
    extends = [s for s in steps if s.mode != "decode"]
    arms_prefill = [s.forward_seconds for s in extends[1:] if len(s.rows) > 1]
    if decodes:
        step = statistics.median(decodes)
        print(f"a decode step of {arms} rows: {step * 1e3:.0f} ms")
        print(f"prefix: {sum(s.forward_seconds for s in extends if len(s.rows) == 1) * 1e3:.0f} ms")
        first = sum(arms_prefill)
        print(
            f"first token of all branches: {first * 1e3:.0f} ms after the prefix, {first / step:.1f} decode steps"
        )
    print(f"retracted: {after['num_retracted_reqs'] - before['num_retracted_reqs']}, steps {len(steps)}")


if __name__ == "__main__":
    main()
