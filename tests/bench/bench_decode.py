"""Speed of one stream against transformers ``generate`` in bf16, in one run, interleaved; prints ratios.

    python tests/bench/bench_decode.py [--rounds 3] [--tokens 64] [--check]

``--check`` exits 1 below the bar (decode: 2 times). Through the runner, without scheduler and sockets. Ratios count, not
values: the machine may be shared.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))

from tiny_models import Driver

from sgnb.config import EngineArgs
from sgnb.engine import model_store
from sgnb.engine.model_executor.model_runner import BaseRunner, create_runner

BAR = 2.0
PROMPT = list(range(1000, 1040))


def ours(runner: BaseRunner, tokens: int) -> tuple[float, float]:
    """(seconds a decoded token, seconds of a 512-token prefill)."""
    driver = Driver(runner)
    out = driver.forward({0: list(PROMPT)})
    started = time.perf_counter()
    for _ in range(tokens):
        out = driver.forward({0: [out.next_token_ids[0]]})
    decode = (time.perf_counter() - started) / tokens
    started = time.perf_counter()
    driver.forward({1: list(range(2000, 2512))})
    return decode, time.perf_counter() - started


def theirs(model, tokens: int) -> tuple[float, float]:
    """The same of transformers ``generate`` (its prefill taken off)."""
    import torch

    def generate(ids: list[int], n: int) -> float:
        started = time.perf_counter()
        inputs = torch.tensor([ids])
        model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            max_new_tokens=n,
            min_new_tokens=n,
            do_sample=False,
        )
        return time.perf_counter() - started

    with torch.inference_mode():
        first = generate(PROMPT, 1)
        decode = (generate(PROMPT, tokens + 1) - first) / tokens
        return decode, generate(list(range(2000, 2512)), 1)


def main() -> int:
    """Run the rounds, print medians and ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    model = model_store.resolve("smollm2-135m-instruct")
    started = time.perf_counter()
    runner = create_runner(EngineArgs(max_total_tokens=8000), model, lambda *a: None)
    print(f"load with imports: {time.perf_counter() - started:.1f} s, {runner.dtype}")

    import torch

    from sgnb.engine.model_executor.loader import open_weights
    from sgnb.engine.model_executor.transformers_runner import build_model

    with open_weights(model) as weights:
        reference = build_model(weights, torch.bfloat16)
    threads = len(__import__("os").sched_getaffinity(0))
    a, b = [], []
    for i in range(options.rounds + 1):
        mine = ours(runner, options.tokens)
        torch.set_num_threads(threads)
        runner._threads.current = threads  # what torch really has now
        other = theirs(reference, options.tokens)
        if i:  # the first round warms both
            a.append(mine)
            b.append(other)
    ratio = 0.0
    for k, (name, unit) in enumerate((("decode", options.tokens), ("prefill 512", 512))):
        mine_s, other_s = (statistics.median(x[k] for x in rounds) for rounds in (a, b))
        per = 1 if k == 0 else unit
        ratios = sorted(y[k] / x[k] for x, y in zip(a, b, strict=True))
        print(
            f"{name}: ours {per / mine_s:.0f} tokens/s, transformers {per / other_s:.0f}, "
            f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )
        ratio = ratio or statistics.median(ratios)
    if options.check and ratio < BAR:
        print(f"below the bar of {BAR}")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
