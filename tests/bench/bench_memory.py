"""What pages and defragmentation cost and give: ``python tests/bench/bench_memory.py [--no-model]``.

Pages: reused prompt tokens by page size, as a share of the optimum (exact; the workloads of ``bench_radix``), at unlimited
memory and at half of it. Defragmentation: a pool full of holes, what the scheduler's side of a move costs (CPU time of the
thread), and what the copy of as many slots costs on the embedded model (by the clock, beside a decode step of 8 rows).
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

from bench_radix import optimum, reused, workloads
from bench_rig import Bench

from sgnb.config import EngineArgs

PAGES = (1, 2, 4, 16)
SLOTS = 32_768


def pages() -> None:
    """Print reuse by page size."""
    print(f"{'workload':>16} " + " ".join(f"{f'page {page}, all':>13} {'half':>7}" for page in PAGES))
    for name, prompts in workloads(random.Random(0)).items():
        best, distinct = optimum(prompts)
        cells = []
        for page in PAGES:
            whole = distinct + (4 + page) * len(prompts)
            for slots in (whole + 4096, whole // 2):
                cells.append(f"{reused(prompts, slots, page) / best:>{13 if slots > whole else 7}.1%}")
        print(f"{name:>16} " + " ".join(cells))


def scattered(page_size: int, requests: int = 160) -> Bench:
    """A pool with holes all over: every other prefix was evicted."""
    bench = Bench(max_total_tokens=SLOTS, context_length=4096, page_size=page_size, max_running_requests=16)
    rng = random.Random(page_size)
    for _ in range(requests):
        bench.ask([rng.randrange(97, 123) for _ in range(rng.randint(60, 180))], max_new_tokens=8)
    while bench.scheduler.step():
        pass
    bench.scheduler.cache.evict(SLOTS // 4)
    for _ in range(8):
        bench.ask([rng.randrange(97, 123) for _ in range(100)], max_new_tokens=400)
    for _ in range(16):
        bench.scheduler.step()
    return bench


def moves() -> int:
    """Print what a move costs the scheduler; how many slots one moved."""
    print(f"{'page':>6} {'moved':>7} {'free runs':>10} {'after':>6} {'scheduler, ms':>14}")
    moved = 0
    for page in PAGES:
        times, done = [], {}
        for _ in range(3):
            bench = scattered(page)
            began = time.thread_time()
            done = bench.scheduler.mover.defragment()
            times.append(time.thread_time() - began)
        moved = max(moved, done["moved"])
        print(
            f"{page:>6} {done['moved']:>7,} {done['free_runs_before']:>10} {done['free_runs']:>6}"
            f" {statistics.median(times) * 1e3:>14.1f}"
        )
    return moved


def copies(moved: int) -> None:
    """Print the clock time of the copy on the embedded model, and of a decode step."""
    from sgnb.engine import model_store
    from sgnb.engine.model_executor.model_runner import create_runner

    sizes = {"context_length": 2048, "max_total_tokens": SLOTS, "max_running_requests": 8}
    model = model_store.resolve("smollm2-135m-instruct")
    runner = create_runner(EngineArgs.make(**sizes), model, lambda *told: None)
    bench = Bench(runner, **sizes)
    for n in range(8):
        bench.ask([100 + n, *range(30, 130)], max_new_tokens=60)
    for _ in range(40):
        bench.scheduler.step()
    steps = [step.forward_seconds for step in bench.steps() if step.mode == "decode"]
    order = list(range(SLOTS))
    random.Random(0).shuffle(order)
    src, times = order[:moved], []
    for _ in range(3):
        began = time.perf_counter()
        runner.move_slots(src, sorted(src))
        times.append(time.perf_counter() - began)
    print(
        f"copy of {moved:,} slots: {statistics.median(times) * 1e3:.0f} ms; a decode step of 8 rows:"
        f" {statistics.median(steps) * 1e3:.0f} ms"
    )


def main() -> None:
    """Print all three."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-model", action="store_true")
    options = parser.parse_args()
    pages()
    moved = moves()
    if not options.no_model:
        copies(moved)


if __name__ == "__main__":
    main()
