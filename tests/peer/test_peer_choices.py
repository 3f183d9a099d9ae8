"""The three ways to choose give SGLang's numbers: its own pure functions are the reference."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_peer import peer_module

import sgnb

METHODS = ("token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized")
CASES = {
    "one option": [[-0.5]],
    "a word in a longer word": [[-0.1, -0.2], [-0.1, -0.2, -4.0], [-0.3, -0.1, -0.1, -0.1, -0.1]],
    "a short one that begins badly": [[-3.0], [-0.25, -9.0], [-0.25, -8.0, -0.5]],
    "all alike": [[-1.0, -1.0], [-1.0], [-1.0, -1.0, -1.0]],
    "certain tokens": [[0.0, 0.0, 0.0], [0.0, -0.125], [-0.125, 0.0, 0.0, 0.0]],
    "far from likely": [[-40.5, -80.25], [-75.0], [-60.0, -60.75, -61.5]],
}
UNCONDITIONAL = [-7.0, -3.5, -0.25, -2.0, -0.125]


def decide(methods, name, rows):
    tokens = [[[value, 100 + i, f"t{i}"] for i, value in enumerate(row)] for row in rows]
    alone = [
        [[None if i == 0 else UNCONDITIONAL[(i + n) % 5], 100 + i, f"t{i}"] for i in range(len(row))]
        for n, row in enumerate(rows)
    ]
    return getattr(methods, name)(
        choices=[f"option {number}" for number in range(len(rows))],
        normalized_prompt_logprobs=[sum(row) / len(row) for row in rows],
        input_token_logprobs=tokens,
        output_token_logprobs=[[] for _ in rows],
        unconditional_token_logprobs=alone,
    )


def same(name, rows):
    mine, theirs = decide(sgnb, name, rows), decide(peer_module("lang.choices"), name, rows)
    assert mine.decision == theirs.decision
    assert mine.meta_info.keys() == theirs.meta_info.keys()
    for key, value in theirs.meta_info.items():
        if key == "greedy_logprob_matrix":
            for row, expected in zip(mine.meta_info[key], value, strict=True):
                assert row == pytest.approx(expected, abs=1e-12)
        elif key == "normalized_unconditional_prompt_logprobs":
            assert mine.meta_info[key] == pytest.approx(value, abs=1e-12)
        else:
            assert mine.meta_info[key] == value


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("rows", CASES.values(), ids=CASES)
def test_numbers_are_sglangs(name, rows):
    same(name, rows)


# Multiples of 1/16: sums and means are exact, so both sides see the same ties.
VALUES = st.integers(-480, 0).map(lambda n: n / 16)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(METHODS), st.lists(st.lists(VALUES, min_size=1, max_size=6), min_size=1, max_size=8))
def test_random_numbers_decide_alike(name, rows):
    if name == "greedy_token_selection":
        rows = [
            (row * 4)[: 1 << (len(row).bit_length() - 1)] for row in rows
        ]  # lengths whose means are exact
    same(name, rows)


@pytest.mark.parametrize("name", METHODS)
def test_the_same_methods_need_unconditional_numbers(name):
    theirs = getattr(peer_module("lang.choices"), name)
    mine = getattr(sgnb, name)
    assert mine.requires_unconditional_logprobs == theirs.requires_unconditional_logprobs
    given = {
        "choices": ["a"], "normalized_prompt_logprobs": [-1.0], "input_token_logprobs": [[[-1.0, 1, "a"]]],
        "output_token_logprobs": [[]],
    }  # fmt: skip
    if mine.requires_unconditional_logprobs:
        for method in (mine, theirs):
            with pytest.raises(ValueError):
                method(**given)
    else:
        assert mine(**given).decision == theirs(**given).decision == "a"
