"""The model of the overlap loop is right, and finds each mistake that is put into it."""

from __future__ import annotations

import random

import pytest
from overlap_model import BUGS, Host, Request, alone

WORKLOADS = 100


def differs(seed: int, bug: str, depth: int) -> bool:
    """True if a workload of requests says something else than each of them alone; an impossible access counts."""
    rng = random.Random(seed)
    requests = [Request([rng.randint(1, 5) for _ in range(rng.randint(1, 5))]) for _ in range(25)]
    try:
        Host(seed, bug, depth).run(requests)
    except (IndexError, ValueError):
        return True
    return any(req.out != alone(req.prompt) for req in requests)


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_the_loop_says_what_each_request_says_alone(depth):
    assert not any(differs(seed, "", depth) for seed in range(WORKLOADS))


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("bug", BUGS)
def test_the_model_finds_the_mistake(bug, depth):
    found = sum(differs(seed, bug, depth) for seed in range(WORKLOADS))
    assert found >= 0.9 * WORKLOADS, f"{bug} showed in {found} of {WORKLOADS} workloads"
