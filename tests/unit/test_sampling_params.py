"""Sampling parameters: penalties and biases, their ranges, and what is refused."""

from __future__ import annotations

import pytest

from sgnb.errors import LimitError
from sgnb.sampling_params import LEGAL, SamplingParams


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
        ({"repetition_penalty": True}, "a number in (0, 2], not True"),
        ({"logit_bias": {"x": 1}}, "'x'"),
        ({"logit_bias": {3: True}}, "True"),
        ({"logit_bias": {3: float("inf")}}, "-1000..1000"),
        ({"logit_bias": [1, 2]}, "dict"),
        ({"logit_bias": dict.fromkeys(range(1025), 1.0)}, "1025"),
        ({"n": 2}, "n is not supported"),
        ({"max_new_tokens": 10**30}, f"max_new_tokens must be a whole number in 0..2^31-1, not {10**30}"),
        ({"max_new_tokens": 2**31}, "in 0..2^31-1, not 2147483648"),
        ({"top_k": 2**64}, "in 1..2^31-1, or -1 (all)"),
        ({"logprob_start_len": 2**64}, "in -1..2^31-1"),
    ],
)
def test_bad_values_are_refused_with_the_range(bad, words):
    with pytest.raises(LimitError) as caught:
        SamplingParams.make(bad)
    assert words in str(caught.value)


@pytest.mark.sampler
def test_B096_stop_ids_outside_the_vocabulary_are_refused_with_the_range():
    for wrong in (100, -1, 2**63):
        for more in ({}, {"min_new_tokens": 1}):
            params = SamplingParams.make({"stop_token_ids": [5, wrong], **more})
            with pytest.raises(LimitError, match=rf"stop_token_ids holds {wrong}; legal ids are 0\.\.99"):
                params.check_model(100)
    SamplingParams.make({"stop_token_ids": [0, 99], "min_new_tokens": 1}).check_model(100)


@pytest.mark.sampler
def test_B097_a_bias_outside_the_vocabulary_is_refused():
    params = SamplingParams.make({"logit_bias": {999_999_999: 5}})
    with pytest.raises(LimitError, match=r"999999999.*0\.\.99"):
        params.check_model(100)
    with pytest.raises(LimitError):
        SamplingParams.make({"logit_bias": {-1: 1}}).check_model(100)
    with pytest.raises(LimitError, match="not 'x' to 1"):
        SamplingParams.make({"logit_bias": {999_999_999: 5, "x": 1}})


def test_F29_every_parameter_refuses_a_wrong_type_with_what_is_legal():
    assert {*LEGAL, "logit_bias", "reasoning"} == set(SamplingParams.__struct_fields__)
    with pytest.raises(LimitError, match="unknown sampling parameter 'reasoning'"):
        SamplingParams.make({"reasoning": "qwen3"})
    for name, legal in LEGAL.items():
        for wrong in (3.5j, object()):
            with pytest.raises(LimitError) as caught:
                SamplingParams.make({name: wrong})
            assert caught.value.message.startswith(f"{name} must be {legal}, not "), name


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"stop": ["a", 5]}, "stop must be a text or a list of at most 16 texts, but stop[1] is 5"),
        ({"stop_token_ids": [1, "x"]}, "stop_token_ids[1] is 'x'"),
        ({"stop": ["a"] * 17}, "stop must be a text or a list of at most 16 texts, not 17 of them"),
        (
            {"stop_token_ids": [1] * 20},
            "stop_token_ids must be a list of at most 16 token ids, not 20 of them",
        ),
        ({"temprature": 1}, "unknown sampling parameter 'temprature'. Did you mean 'temperature'?"),
        ({"stop_regex": "x"}, "stop_regex is not supported"),
        ({"seed": -1}, "seed must be a whole number in 0..2^63-1, not -1"),
        ({"json_schema": 3}, "json_schema must be a text or a dict, not 3"),
    ],
)
def test_the_words_of_a_refusal(bad, words):
    with pytest.raises(LimitError) as caught:
        SamplingParams.make(bad)
    assert words in caught.value.message
