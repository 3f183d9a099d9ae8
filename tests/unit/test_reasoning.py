"""``separate_reasoning``: the thought and the answer of one generation."""

from __future__ import annotations

import pytest

import sgnb as sgl
from sgnb.backends.mock import MockBackend
from sgnb.lang.reasoning import FAMILIES, split_reasoning


@pytest.mark.parametrize(
    ("text", "family", "halves"),
    [
        ("<think>why</think>\n\nBecause", "qwen3", ("why", "Because")),
        ("plain", "qwen3", ("", "plain")),
        ("plain", "deepseek-r1", ("plain", "")),
        ("why</think>Because", "deepseek-r1", ("why", "Because")),
        ("why</think>Because", "qwen3", ("why", "Because")),
        ("<think>cut short", "qwen3", ("cut short", "")),
        ("So <think>no</think>", "qwen3", ("", "So <think>no</think>")),
        ("◁think▷a◁/think▷b", "kimi", ("a", "b")),
        ("", "qwen3", ("", "")),
    ],
)
def test_the_marks_of_each_family(text, family, halves):
    assert split_reasoning(text, family) == halves
    assert family in FAMILIES


def test_both_halves_are_variables_and_the_text_keeps_both():
    backend = MockBackend({"x": "<think>two and two</think>4", "y": "plain"})

    @sgl.function
    def prog(s):
        s += sgl.user("2+2?")
        s += sgl.separate_reasoning(sgl.assistant(sgl.gen("x") + sgl.gen("y")), model_type="qwen3")
        arms = s.fork(2)
        arms += sgl.separate_reasoning(sgl.gen("x"))
        arms.join()
        return s["x"], s["x_reasoning_content"], s["y"], s["y_reasoning_content"]

    state = prog.run(backend=backend)
    assert state.ret_value == (["4", "4"], ["two and two"] * 2, "plain", "")
    assert "<think>two and two</think>4plain" in state.text()
    assert state.get_meta_info("y")["completion_tokens"] == 1
    backend.shutdown()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sgl.separate_reasoning(), "separate_reasoning() needs an expression."),
        (
            lambda: sgl.separate_reasoning(sgl.gen("x"), "gpt9"),
            "separate_reasoning(model_type='gpt9') is unknown.",
        ),
        (lambda: sgl.separate_reasoning(sgl.gen("x", n=2)), "separate_reasoning() takes no gen with n"),
    ],
)
def test_wrong_uses(call, message):
    with pytest.raises(sgl.ProgramError) as caught:
        call()
    assert caught.value.message.startswith(message) and caught.value.hint
