"""Random work against the oracle: every request says what it says alone, whatever runs beside it (R4, R5, R10, R11)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from random_load import EVICTIONS, PAGES, POLICIES, Load

from sgnb.config import EngineArgs
from sgnb.engine.model_executor.process_driver import ProcessDriver
from sgnb.engine.model_store import ModelPath

CASES = 60
"""Loads of 14 requests in the short version."""
TINY_CASES = 100


def settings_of(rng: random.Random) -> dict:
    """A random engine."""
    return {
        "max_total_tokens": rng.choice([48, 64, 150, 1000]),
        "page_size": rng.choice(PAGES),
        "chunked_prefill_size": rng.choice([-1, 1, 3, 8, 16, 512]),
        "max_running_requests": rng.choice([1, 2, 5, 16]),
        "schedule_policy": rng.choice(POLICIES),
        "schedule_conservativeness": rng.choice([0.01, 1.0]),
        "decode_quantum": rng.choice([0, 0, 1, 5]),
        "enable_mixed_chunk": rng.random() < 0.5,
        "enable_overlap": rng.random() < 0.5,
        "runner_driver": rng.choice(["inline", "inline", "thread"]),
        "radix_eviction_policy": rng.choice(EVICTIONS),
        "disable_radix_cache": rng.random() < 0.15,
        "allocator_order": rng.choice(["lifo", "lowest"]),
        "prefill_decode_interval": rng.choice([1, 3]),
    }


def run_load(seed: int, requests: int) -> None:
    rng = random.Random(seed)
    load = Load(seed, **settings_of(rng))
    load.run(requests, retract_every=rng.choice([0, 0, 3, 7]))


@pytest.mark.parametrize("part", range(4))
def test_every_request_says_what_it_says_alone(part):
    for seed in range(part, CASES, 4):
        run_load(seed, 14)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(50))
def test_every_request_says_what_it_says_alone_long(seed):
    """5,000 requests altogether."""
    run_load(10_000 + seed, 100)


def run_over_processes(seed: int, page: int, requests: int) -> None:
    """The runner in a process of its own: records, moves of slots and results cross a socket."""
    settings = settings_of(random.Random(seed)) | {"page_size": page, "runner_driver": "process"}
    args = EngineArgs.make(runner="stub", context_length=96, **settings)
    driver = ProcessDriver(args, ModelPath(name="stub", path=Path(), kind="gguf"), lambda *_: None)
    load = Load(seed, driver=driver, **settings)
    load.run(requests, retract_every=5)
    assert any(event.state == "retracted" for event in load.rig.events)


@pytest.mark.parametrize("page", [1, 2, 4, 16])
def test_every_request_says_what_it_says_alone_over_a_process(page):
    run_over_processes(30_000 + page, page, 30)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(12))
def test_every_request_says_what_it_says_alone_over_a_process_long(seed):
    run_over_processes(31_000 + seed, [1, 2, 4, 16][seed % 4], 200)


def run_tiny(seed: int) -> None:
    """A pool of some pages, sessions that nobody closes, forks and selects, no aborts: each request ends, and none for lack
    of room but at its own limit. ``Load`` compares the end of each with that of the request alone."""
    rng = random.Random(seed)
    page = rng.choice(PAGES)
    settings = settings_of(rng) | {
        "page_size": page,
        "max_total_tokens": rng.randint(max(8, 3 * page), max(64, 4 * page)),
        "schedule_conservativeness": 0.01,
        "runner_driver": "inline",
    }
    load = Load(seed, aborts=False, context_length=64, **settings)
    load.run(rng.randint(3, 12))
    assert all(told.finish.type != "abort" for told in load.rig.told.values())


def test_R11_what_fits_alone_always_finishes():
    for seed in range(TINY_CASES):
        run_tiny(seed)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(20))
def test_R11_what_fits_alone_always_finishes_long(part):
    """10,000 cases altogether."""
    for seed in range(part, 10_000, 20):
        run_tiny(100_000 + seed)
