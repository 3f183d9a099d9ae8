"""Costs of the radix tree and what it saves: ``python tests/bench/bench_radix.py``.

Tree: a match of 4,000 tokens over 8 nodes, an insert that splits, an eviction of 1,000 nodes, in a tree of 10,000 nodes
(bars: 50 µs, 100 µs, 5 ms). Hit rate: prompts of five kinds, all submitted at once, against the optimum (each distinct
prefix token computed once, at least one token a request): bar 96 % of it at unlimited memory; half and a quarter are
printed. CPU time of the thread.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable

import numpy as np

from sgnb.config import EngineArgs
from sgnb.engine.mem_cache.allocator import TokenAllocator
from sgnb.engine.mem_cache.radix_cache import RadixCache
from sgnb.engine.model_executor.stub_runner import StubRunner
from sgnb.engine.scheduler.scheduler import Scheduler
from sgnb.messages import BatchOutput, Label, SessionDecode, SessionOpen, TokenTable
from sgnb.sampling_params import SamplingParams


def timed(call: Callable[[int], object], times: int) -> float:
    """Median seconds of ``call(i)``."""
    out = []
    for i in range(times):
        started = time.thread_time()
        call(i)
        out.append(time.thread_time() - started)
    return statistics.median(out)


def tree() -> None:
    """Print the three costs."""
    allocator = TokenAllocator(400_000)
    cache = RadixCache(allocator)
    rng = np.random.default_rng(0)
    long = rng.integers(0, 50_000, 4000, dtype=np.int32)
    for end in range(500, 4001, 500):  # eight nodes on the way
        cache.insert(long[:end], allocator.alloc(end))
    for _ in range(9992):
        ids = rng.integers(0, 50_000, 20, dtype=np.int32)
        cache.insert(ids, allocator.alloc(20))
    match = timed(lambda i: cache.match_prefix(long), 500)
    splits = [np.concatenate([long[: 4000 - i], np.array([i] * 4, dtype=np.int32)]) for i in range(10, 110)]
    slots = [[0] * (len(ids) - 4) + allocator.alloc(4) for ids in splits]
    insert = timed(lambda i: cache.insert(splits[i], slots[i]), len(splits))
    evict = timed(lambda i: cache.evict(20_000), 3)
    print(
        f"match {match * 1e6:.0f} µs   insert and split {insert * 1e6:.0f} µs   evict 1,000 nodes {evict * 1e3:.2f} ms"
    )


def workloads(rng: random.Random) -> dict[str, list[list[int]]]:
    """Prompts as byte ids, shuffled."""

    def text(size: int) -> list[int]:
        return [rng.randrange(97, 123) for _ in range(size)]

    shots = [text(300) for _ in range(4)]
    few = [shots[i % 4] + text(30) for i in range(80)]
    turns = []
    for _ in range(12):
        chat = text(100)
        for _ in range(6):
            chat = chat + text(60)
            turns.append(chat)
    root = text(200)
    thoughts = [root + text(50) for _ in range(4)]
    tot = [thought + text(50) + text(10) for thought in thoughts for _ in range(12)]
    bases = [text(250) for _ in range(6)]
    forks = [base + text(20) for base in bases for _ in range(12)]
    kinds = {"few-shot": few, "multi-turn": turns, "tree-of-thought": tot, "fork-join": forks}
    kinds["mixed"] = few[:25] + turns[:25] + tot[:20] + forks[:20]
    for prompts in kinds.values():
        rng.shuffle(prompts)
    return kinds


def optimum(prompts: list[list[int]]) -> tuple[int, int]:
    """(tokens reused when every distinct prefix is computed once, distinct prefix tokens)."""
    reused, distinct, before = 0, 0, []
    for prompt in sorted(prompts):
        common = next(
            (i for i, (a, b) in enumerate(zip(before, prompt, strict=False)) if a != b),
            min(len(before), len(prompt)),
        )
        reused += min(common, len(prompt) - 1)
        distinct += len(prompt) - common
        before = prompt
    return reused, distinct


def reused(prompts: list[list[int]], slots: int, page_size: int = 1) -> int:
    """Tokens that the shipped scheduler reuses."""
    args = EngineArgs.make(
        runner="stub",
        max_total_tokens=slots,
        context_length=4096,
        max_running_requests=16,
        page_size=page_size,
    )
    cached = 0

    def send(message: object) -> None:
        nonlocal cached
        if isinstance(message, BatchOutput):
            cached += sum(item.meta.cached_tokens for item in message.items if item.meta is not None)

    scheduler = Scheduler(args, StubRunner(args), send, lambda event: None)
    scheduler.receive(TokenTable(table=[bytes([i]) for i in range(256)] + [b""] * 3))
    params = SamplingParams(max_new_tokens=4, temperature=0.0, ignore_eos=True)
    for n, prompt in enumerate(prompts):
        scheduler.receive(SessionOpen(sid=f"c1.s{n}", client=1))
        scheduler.receive(
            SessionDecode(
                rid=f"c1.r{n}",
                sid=f"c1.s{n}",
                client=1,
                ids=prompt,
                params=params,
                stops=[],
                stop_token_ids=[],
                eos_token_ids=[],
                label=Label(),
            )
        )
    while scheduler.step():
        pass
    return cached


def main() -> None:
    """Print both tables."""
    tree()
    print(
        f"{'workload':>16} {'optimum':>8} {'unlimited':>10} {'half':>7} {'quarter':>8}   (share of the optimum)"
    )
    for name, prompts in workloads(random.Random(0)).items():
        best, distinct = optimum(prompts)
        whole = distinct + 4 * len(prompts)
        shares = [reused(prompts, slots) / best for slots in (whole + 4096, whole // 2, whole // 4)]
        print(f"{name:>16} {best:>8} {shares[0]:>10.1%} {shares[1]:>7.1%} {shares[2]:>8.1%}")


if __name__ == "__main__":
    main()
