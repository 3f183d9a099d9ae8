"""``separate_reasoning``: the thought and the answer of one generation."""

from __future__ import annotations

import pytest
from whole_engine import WholeEngine

import sgnb as sgl
from sgnb.backends.mock import MockBackend
from sgnb.reasoning import FAMILIES, Marks, split_reasoning


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


def test_both_halves_are_variables_and_the_state_goes_on_with_the_answer():
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
    assert "<think>" not in state.text() and "4plain" in state.text()
    assert state.messages()[-1] == {"role": "assistant", "content": "4plain"}
    assert state.get_meta_info("y")["completion_tokens"] == 1
    prompts = [prompt for name, prompt in backend.prompts if name == "x"]
    assert len(prompts) == 3 and all("4plain" in prompt for prompt in prompts[1:])
    assert not any("two and two" in prompt for _, prompt in backend.prompts)
    backend.shutdown()


def test_a_stream_shows_the_thought_as_it_comes():
    backend = MockBackend({"x": "<think>two and two</think>4"})

    @sgl.function
    def prog(s):
        s += "2+2? " + sgl.separate_reasoning(sgl.gen("x")) + "."

    state = prog.run(backend=backend, stream=True)
    assert "".join(state.text_iter()) == "2+2? <think>two and two</think>4."
    assert state.text() == "2+2? 4." and "".join(state.text_iter("x")) == "4"
    backend.shutdown()


@pytest.fixture
def engine():
    found = WholeEngine()
    yield found
    found.shutdown()


@sgl.function
def plain(s, text):
    s += text + sgl.gen("x", max_tokens=9, ignore_eos=True)


@pytest.mark.parametrize("marked", ["both", "end", "begin", "none"])
def test_the_engine_keeps_the_answer_alone(engine, monkeypatch, tmp_path, marked):
    """The stub's own letters are taken for marks; what follows is as if the answer had been written."""
    out = plain.run("Why? ", backend=engine, temperature=0.0)["x"]
    begin, end = out[0], out[3]
    assert len(out) == 9 and end not in out[:3]
    if marked == "both":
        thought, answer, marks = out[1:3].strip(), out[4:].lstrip(), Marks(begin, end)
    elif marked == "end":
        thought, answer, marks = out[:3].strip(), out[4:].lstrip(), Marks("\x00", end, opened=True)
    elif marked == "begin":
        thought, answer, marks = out[1:].strip(), "", Marks(begin, "\x00")
    else:
        thought, answer, marks = "", out, Marks("\x00", "\x01")
    monkeypatch.setitem(FAMILIES, "qwen3", marks)

    @sgl.function
    def prog(s):
        s += "Why? " + sgl.separate_reasoning(sgl.gen("x", max_tokens=9, ignore_eos=True))
        arm = s.fork(1)[0]
        s += " So" + sgl.gen("y", max_tokens=4, ignore_eos=True)
        arm += " So" + sgl.gen("y", max_tokens=4, ignore_eos=True)
        return arm["y"]

    state = prog.run(backend=engine, temperature=0.0)
    assert (state["x_reasoning_content"], state["x"]) == (thought, answer)
    assert state.text() == "Why? " + answer + " So" + state["y"] and state.ret_value == state["y"]

    @sgl.function
    def written(s):
        s += "Why? " + answer + " So" + sgl.gen("y", max_tokens=4, ignore_eos=True)

    expected = written.run(backend=engine, temperature=0.0)
    assert state["y"] == expected["y"]
    tokens = [one.get_meta_info("y")["prompt_tokens"] for one in (state, expected)]
    assert tokens[0] == tokens[1]
    state.save(tmp_path / "state.json")
    again = sgl.load_state(tmp_path / "state.json", backend=engine)
    assert again.text() == state.text() and again["x_reasoning_content"] == thought


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
