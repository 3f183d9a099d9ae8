"""What each policy and cache option saves, on and off, from the scheduler's own events: exact, on a virtual clock.

    python tests/bench/bench_options.py

Load: few-shot, multi-turn, tree-of-thought and fork prompts mixed, arriving over time, into a pool of half of what they
need. Costs of a step are those of the embedded model on two cores (``bench_rig.Costs``). Columns: share of the prompt tokens
that were reused, prompt tokens computed, time to the first token (median, 95th), longest gap between tokens (95th),
tokens a second, requests retracted.
"""

from __future__ import annotations

import random
from itertools import pairwise

from bench_radix import optimum, workloads
from bench_rig import Bench, Costs, percentile

from sgnb.config import OBJECTIVES
from sgnb.knobs import KNOBS
from sgnb.messages import RequestEvent

ARRIVALS_PER_SECOND = 4.0
NEW_TOKENS = 24


def load() -> list[tuple[float, list[int], int, int]]:
    """(arrival, prompt, new tokens, priority), every tenth prompt four times as long."""
    rng = random.Random(1)
    kinds = workloads(random.Random(0))
    prompts = [
        prompt
        for kind in ("few-shot", "multi-turn", "tree-of-thought", "fork-join")
        for prompt in kinds[kind][:50]
    ]
    rng.shuffle(prompts)
    at, out = 0.0, []
    for n, prompt in enumerate(prompts):
        at += rng.expovariate(ARRIVALS_PER_SECOND)
        if n % 10 == 0:
            prompt = prompt + [rng.randrange(97, 123) for _ in range(3 * len(prompt))]
        out.append((at, prompt, rng.choice([4, NEW_TOKENS, 2 * NEW_TOKENS]), 0))
    return out


def run(work: list[tuple[float, list[int], int, int]], **args: object) -> dict[str, float]:
    """Figures of one setting."""
    _, distinct = optimum([prompt for _, prompt, _, _ in work])
    given = {
        "max_total_tokens": max(6000, distinct // 2),
        "context_length": 8192,
        "max_running_requests": 16,
        **args,
    }
    bench = Bench(costs=Costs(), **given)
    todo, arrival = list(work), {}
    while todo or bench.scheduler.reqs or bench.scheduler._inbox:
        while todo and (todo[0][0] <= bench.now or not (bench.scheduler.reqs or bench.scheduler._inbox)):
            at, prompt, new, priority = todo.pop(0)
            bench.now = max(bench.now, at)
            arrival[bench.ask(prompt, max_new_tokens=new, priority=priority)] = at
        bench.scheduler.step()
    ttft = [bench.tokens[rid][0] - at for rid, at in arrival.items()]
    gaps = [max((b - a for a, b in pairwise(times)), default=0.0) for times in bench.tokens.values()]
    steps = bench.steps()
    computed = sum(row.tokens for step in steps for row in step.rows if row.kind == "prefill")
    prompt = sum(len(one[1]) for one in work)
    return {
        "reused": sum(meta.cached_tokens for meta in bench.metas.values()) / prompt,
        "computed": computed,
        "ttft50": percentile(ttft, 0.5),
        "ttft95": percentile(ttft, 0.95),
        "gap95": percentile(gaps, 0.95),
        "throughput": sum(map(len, bench.tokens.values())) / bench.now,
        "retracted": sum(
            isinstance(event, RequestEvent) and event.state == "retracted" for event in bench.events
        ),
        "steps": len(steps),
    }


def main() -> None:
    """Print one table: the defaults, then each option alone."""
    work = load()
    settings: list[tuple[str, dict[str, object]]] = [("defaults", {})]
    settings += [
        (f"schedule_policy={name}", {"schedule_policy": name})
        for name in KNOBS["schedule_policy"].choices[1:]
    ]
    settings += [
        (f"radix_eviction_policy={name}", {"radix_eviction_policy": name})
        for name in KNOBS["radix_eviction_policy"].choices[1:]
    ]
    for name, value in (
        ("disable_radix_cache", True),
        ("radix_cache_size", 0),
        ("radix_cache_size", 1000),
        ("enable_mixed_chunk", True),
        ("decode_quantum", 8),
        ("prefill_decode_interval", 8),
        ("chunked_prefill_size", 128),
        ("chunked_prefill_size", -1),
        ("schedule_conservativeness", 0.1),
        ("max_running_requests", 4),
    ):
        settings.append((f"{name}={value}", {name: value}))
    settings += [(f"objective={name}", {"objective": name}) for name in OBJECTIVES]
    print(
        f"{'setting':>32} {'reused':>7} {'computed':>9} {'TTFT p50':>9} {'p95':>7} {'gap p95':>8} {'tokens/s':>9}"
        f" {'retracted':>10} {'steps':>6}"
    )
    for name, args in settings:
        f = run(work, **args)
        print(
            f"{name:>32} {f['reused']:>7.1%} {f['computed']:>9.0f} {f['ttft50']:>9.2f} {f['ttft95']:>7.2f}"
            f" {f['gap95']:>8.2f} {f['throughput']:>9.1f} {f['retracted']:>10.0f} {f['steps']:>6.0f}"
        )


if __name__ == "__main__":
    main()
