"""Choices: the three methods, what is refused, what a choice leaves in text, variable and meta."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sgnb as sgl
from sgnb.backends.mock import MockBackend
from sgnb.backends.mock_script import choice_score
from sgnb.errors import LimitError, ProgramError, ProgramTypeError
from sgnb.lang.choices import METHODS, ChoicesMethod
from sgnb.lang.instruction import Select

NUMBERS = {
    "choices": ["ox", "oxen", "rhinoceroses"],
    "normalized_prompt_logprobs": [-0.3, -0.45, -0.1],
    "input_token_logprobs": [
        [(-0.3, 1, None)],
        [(-0.3, 1, None), (-0.6, 2, None)],
        [(-0.4, 3, None), (0.0, 4, None), (0.0, 5, None), (0.0, 6, None)],
    ],
    "output_token_logprobs": [[], [], []],
    "unconditional_token_logprobs": [
        [(None, 1, None)],
        [(None, 1, None), (-9.0, 2, None)],
        [(None, 3, None), (-0.1, 4, None), (-0.1, 5, None), (-0.1, 6, None)],
    ],
}


@pytest.mark.parametrize(
    ("method", "winner"),
    [
        (sgl.token_length_normalized, "rhinoceroses"),
        (sgl.greedy_token_selection, "ox"),
        (sgl.unconditional_likelihood_normalized, "oxen"),
    ],
)
def test_methods_decide_as_documented(method, winner):
    decision = method(**NUMBERS)
    assert decision.decision == winner
    assert decision.meta_info["normalized_prompt_logprobs"] == NUMBERS["normalized_prompt_logprobs"]


def test_extra_numbers_of_the_methods():
    matrix = sgl.greedy_token_selection(**NUMBERS).meta_info["greedy_logprob_matrix"]
    assert matrix[0] == [-0.3] * 4 and matrix[1][2] == pytest.approx(-0.45)
    gains = sgl.unconditional_likelihood_normalized(**NUMBERS).meta_info[
        "normalized_unconditional_prompt_logprobs"
    ]
    assert gains[1] == pytest.approx((-0.3 + 8.4) / 2)  # a zero counts (D15)
    with pytest.raises(ValueError, match="unconditional_token_logprobs"):
        sgl.unconditional_likelihood_normalized(**{**NUMBERS, "unconditional_token_logprobs": None})


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.floats(-30, 0), min_size=1, max_size=5), min_size=1, max_size=6))
def test_greedy_takes_the_lexicographically_best_padded_row(rows):
    tokens = [[(value, 0, None) for value in row] for row in rows]
    names = [str(number) for number in range(len(rows))]
    decided = sgl.greedy_token_selection(
        choices=names, normalized_prompt_logprobs=[0.0] * len(rows), input_token_logprobs=tokens
    ).decision
    width = max(map(len, rows))
    padded = [row + [sum(row) / len(row)] * (width - len(row)) for row in rows]
    assert padded[int(decided)] == max(padded)


@pytest.fixture
def backend():
    made = MockBackend({"pick": "no", "x": "text"})
    yield made
    made.shutdown()


@pytest.mark.select
@pytest.mark.parametrize(
    "make",
    [
        lambda: sgl.select("pick", choices=["yes", "no"]),
        lambda: sgl.select("pick", ["yes", "no"], 0.0, sgl.greedy_token_selection),
        lambda: sgl.gen("pick", choices=["yes", "no"], max_tokens=5, temperature=0.7),
        lambda: sgl.gen(
            "pick", choices=("yes", "no"), choices_method=sgl.unconditional_likelihood_normalized
        ),
        lambda: sgl.gen("pick", choices=(c for c in ["yes", "no"]), choices_method="greedy_token_selection"),
    ],
)
def test_B077_exactly_the_winner_is_in_the_text(backend, make):
    @sgl.function
    def prog(s):
        s += "Really? " + make() + "."
        s += sgl.gen("x")

    state = prog.run(backend=backend)
    assert state["pick"] == "no"
    assert state.text() == "Really? no.text"
    meta = state.get_meta_info("pick")
    assert meta["choice"] == 1 and len(meta["scores"]) == len(meta["input_token_logprobs"]) == 2
    assert backend.prompts == [("pick", "Really? "), ("x", "Really? no.")]


@pytest.mark.select
@pytest.mark.parametrize(
    "options",
    [["go", "gopher"], [" Ann", " Bob"], ["Ann", "Bob"], [" "], ["é", "e\u0301"], ["a", "a" * 3000]],
)
def test_F52_B075_B076_every_option_is_reachable_exactly(options):
    for wanted in options:
        backend = MockBackend({"pick": wanted})

        @sgl.function
        def prog(s):
            s += "Hello," + sgl.select("pick", options)

        state = prog.run(backend=backend)
        assert state["pick"] == wanted and state.text() == "Hello," + wanted
        backend.shutdown()


@pytest.mark.select
def test_B078_always_one_of_the_options_and_by_score():
    backend = MockBackend()
    options = ["Ja", "Nein", "Vielleicht"]

    @sgl.function
    def prog(s):
        s += "Is it raining? " + sgl.select("pick", options)

    best = max(options, key=lambda option: choice_score("Is it raining? ", option))
    assert prog.run(backend=backend)["pick"] == best
    backend.shutdown()


@pytest.mark.select
def test_B115_choices_can_be_iterated_and_end(backend):
    @sgl.function
    def prog(s):
        with s.assistant():
            s += sgl.gen("pick", choices=["yes", "no"]) + sgl.gen("x")

    state = prog.run(backend=backend, stream=True)
    assert "".join(state.text_iter("pick")) == "no"
    assert "".join(state.text_iter("x")) == "text"
    with pytest.raises(KeyError):
        next(state.text_iter("other"))


def test_choice_in_a_block_and_unnamed(backend):
    @sgl.function
    def prog(s):
        with sgl.assistant():
            pick = sgl.select("pick", ["yes", "no"])
            sgl.select(choices=["only"])
        if pick == "no":
            s += "refused"
        return pick

    state = prog.run(backend=backend)
    assert state.ret_value == "no" and state.text().endswith("refused") and state["gen_0"] == "only"


REFUSED = [
    (lambda: sgl.select("x", []), ProgramError, "no options"),
    (lambda: sgl.select("x"), ProgramTypeError, "needs choices"),
    (lambda: sgl.select("x", "yes"), ProgramTypeError, "not one text"),
    (lambda: sgl.select("x", 5), ProgramTypeError, "not int"),
    (lambda: sgl.select("x", ["a", 1]), ProgramTypeError, "option 1 is an int"),
    (lambda: sgl.select("x", ["a", ""]), ProgramError, "option 1 is empty"),
    (lambda: sgl.select("x", ["a", "b", "a"]), ProgramError, "options 0 and 2 are the same"),
    (lambda: sgl.select("x", ["\ud800"]), ProgramError, "not valid Unicode"),
    (lambda: sgl.select("x", map(str, range(1025))), LimitError, "at most 1024"),
    (lambda: sgl.select("x", ["a"], temperature=0.5), ProgramError, "not sampled"),
    (lambda: sgl.select("x", ["a"], choices_method="best"), ProgramTypeError, "no choices method"),
    (lambda: sgl.select(["a"]), ProgramTypeError, "select's name"),
    (lambda: sgl.gen("x", choices=[]), ProgramError, "gen has no options"),
    (lambda: sgl.gen("x", choices=["a"], n=2), ProgramError, "takes no n"),
    (lambda: sgl.gen("x", choices=["a"], regex="a"), ProgramError, "neither a constraint nor parse"),
]


@pytest.mark.select
@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_F52_wrong_options_are_refused_at_their_place(number):
    make, kind, message = REFUSED[number]
    with pytest.raises(kind, match=message) as caught:
        make()
    assert caught.value.position.file == __file__


def test_names_of_methods():
    assert sorted(METHODS) == sorted(
        name for name in METHODS if isinstance(getattr(sgl, name), ChoicesMethod)
    )


def test_a_thousand_options_are_one_instruction(backend):
    options = [f"option {number}" for number in range(1024)]

    @sgl.function
    def prog(s):
        s += sgl.select("many", options)

    assert prog.run(backend=backend)["many"] in options
    (select,) = [op for block in backend.log for op in block.instructions if isinstance(op, Select)]
    assert select.options == tuple(options) and select.method == "token_length_normalized"


@pytest.mark.select
def test_B080_a_predictable_tail_favours_long_options_under_the_default_method_alone():
    """The default takes the mean a token, as documented; the two other methods choose the short right answer."""
    choices = ["Rome", "Floccinaucinihilipilification"]
    given = [[(-0.9, 1, None)], [(-6.0, 2, None), *[(-0.01, n, None) for n in range(3, 12)]]]
    alone = [[(-7.0, 1, None)], [(-6.5, 2, None), *[(-0.01, n, None) for n in range(3, 12)]]]
    means = [sum(token[0] for token in tokens) / len(tokens) for tokens in given]

    def winner(name):
        return METHODS[name](
            choices=choices,
            normalized_prompt_logprobs=means,
            input_token_logprobs=given,
            unconditional_token_logprobs=alone,
        ).decision

    assert winner("token_length_normalized") == choices[1]
    assert winner("greedy_token_selection") == winner("unconditional_likelihood_normalized") == "Rome"
    docs = Path(__file__).parents[2] / "docs" / "language-fork-select.md"
    assert "long options with a predictable end profit" in docs.read_text(encoding="utf-8")
