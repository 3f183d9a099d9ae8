"""The benchmark of the passes keeps its promise: each pass saves what it is for, on a whole engine that counts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

from bench_passes import CASES, compare

from sgnb.lang.passes import PASSES

SAVES = {
    "prune_choices": ("requests", "instructions", "steps"),
    "fold_text": ("bytes",),
    "merge_forks": ("instructions", "bytes"),
    "share_generations": ("requests", "prefilled", "generated", "instructions"),
    "hoist_prefix": ("bytes",),
    "commit_prefixes": ("late",),
    "group_generations": ("bytes", "instructions", "frames"),
}


def test_every_pass_has_a_benchmark():

    assert {step.name for step in PASSES} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_a_pass_saves_what_it_is_for_and_never_costs_a_message_or_a_request(name):
    on, off = compare(name)
    for figure in SAVES[name]:
        assert on[figure] < off[figure], (figure, on, off)
    for figure in ("messages", "requests", "generated"):
        assert on[figure] <= off[figure], (figure, on, off)
