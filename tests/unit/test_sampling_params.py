"""Sampling parameters: penalties and biases, their ranges, and what is refused."""

from __future__ import annotations

import pytest

from sgnb.errors import LimitError
from sgnb.sampling_params import SamplingParams


def test_penalties_and_bias_are_taken():
    params = SamplingParams.make(
        {
            "frequency_penalty": 1,
            "presence_penalty": -0.5,
            "repetition_penalty": 1.2,
            "logit_bias": {"5": 2, 7: -1.5},
        }
    )
    assert params.logit_bias == ((5, 2.0), (7, -1.5)) and params.penalised
    assert not SamplingParams.make({"repetition_penalty": 1}).penalised
    params.check_model(8)


@pytest.mark.parametrize(
    "bad, words",
    [
        ({"frequency_penalty": 2.1}, "-2..2"),
        ({"presence_penalty": float("nan")}, "-2..2"),
        ({"repetition_penalty": 0}, "(0, 2]"),
        ({"repetition_penalty": True}, "bool"),
        ({"logit_bias": {"x": 1}}, "'x'"),
        ({"logit_bias": {3: True}}, "True"),
        ({"logit_bias": {3: float("inf")}}, "-1000..1000"),
        ({"logit_bias": [1, 2]}, "dict"),
        ({"logit_bias": dict.fromkeys(range(1025), 1.0)}, "1025"),
        ({"n": 2}, "n is not supported"),
    ],
)
def test_bad_values_are_refused_with_the_range(bad, words):
    with pytest.raises(LimitError) as caught:
        SamplingParams.make(bad)
    assert words in str(caught.value)


def test_B097_a_bias_outside_the_vocabulary_is_refused():
    params = SamplingParams.make({"logit_bias": {999_999_999: 5}})
    with pytest.raises(LimitError, match=r"999999999.*0\.\.99"):
        params.check_model(100)
    with pytest.raises(LimitError):
        SamplingParams.make({"logit_bias": {-1: 1}}).check_model(100)
