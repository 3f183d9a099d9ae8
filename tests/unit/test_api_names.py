"""SGLang's front end, name by name: each is there and does what it does there (the differential tests compare texts)."""

from __future__ import annotations

import asyncio
import inspect

import pytest

import sgnb as sgl
from sgnb.backends.mock import MockBackend

NAMES = [
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "select",
    "system",
    "user",
    "assistant",
    "system_begin",
    "system_end",
    "user_begin",
    "user_end",
    "assistant_begin",
    "assistant_end",
    "image",
    "video",
    "separate_reasoning",
    "set_default_backend",
    "flush_cache",
    "get_server_info",
    "token_length_normalized",
    "greedy_token_selection",
    "unconditional_likelihood_normalized",
]
PROGRAM = ["run", "run_batch", "run_async", "bind", "trace"]
STATE = [
    "system",
    "user",
    "assistant",
    "var_scope",
    "fork",
    "copy",
    "text",
    "messages",
    "sync",
    "error",
    "text_iter",
    "text_async_iter",
    "get_var",
    "set_var",
    "get_meta_info",
]


@pytest.fixture
def backend():
    mock = MockBackend({"x": "one two three", "y": "other"})
    yield mock
    mock.shutdown()


@sgl.function
def prog(s, topic, end="."):
    s += topic + end + sgl.gen("x")
    return s["x"]


def test_every_name_is_there():
    assert not [name for name in NAMES if not hasattr(sgl, name)]
    assert not [name for name in PROGRAM if not hasattr(sgl.SglFunction, name)]
    assert not [name for name in STATE if not hasattr(sgl.State, name)]
    assert {"join", "__getitem__", "__iadd__", "__len__"} <= set(dir(sgl.Group))


def test_function_takes_num_api_spec_tokens_and_bind_keeps_it(backend):
    @sgl.function(num_api_spec_tokens=64)
    def spec(s, topic):
        s += topic + sgl.gen("x")

    assert spec.num_api_spec_tokens == 64
    bound = spec.bind(topic="tea ")
    assert bound.num_api_spec_tokens == 64  # D9
    assert bound.run(backend=backend).text() == "tea one two three"


def test_trace_prints_what_a_program_records(capsys):
    trace = prog.trace("tea")
    trace.print_graph_dfs()
    assert capsys.readouterr().out.splitlines() == ["s0 open", "s0 text 'tea.'", "s0 gen x"]


@pytest.mark.parametrize("generator_style", [True, False])
@pytest.mark.parametrize("num_threads", ["auto", 1, 3])
def test_run_batch(backend, generator_style, num_threads, capsys):
    states = prog.run_batch(
        [{"topic": str(n)} for n in range(5)],
        backend=backend,
        generator_style=generator_style,
        num_threads=num_threads,
        progress_bar=True,
        end="!",
    )
    assert inspect.isgenerator(states) == generator_style
    assert [state.text() for state in states] == [f"{n}!one two three" for n in range(5)]
    assert "5/5" in capsys.readouterr().err


def test_text_async_iter_gives_pieces_and_meta(backend):
    async def go():
        run = prog.run("tea", stream=True, backend=backend)
        pairs = [pair async for pair in run.text_async_iter("x", return_meta_data=True)]
        whole = [piece async for piece in run.text_async_iter()]
        return pairs, whole

    pairs, whole = asyncio.run(go())
    assert "".join(text for text, _ in pairs) == "one two three" and "".join(whole) == "tea.one two three"
    assert pairs[-1][1]["completion_tokens"] == 3


def test_text_iter_early_late_and_of_a_variable(backend):
    state = prog.run("tea", stream=True, backend=backend)
    assert "".join(state.text_iter()) == "".join(state.text_iter()) == "tea.one two three"
    assert "".join(state.text_iter("x")) == "one two three"


def test_var_scope_set_var_get_meta_info_and_copy(backend):
    @sgl.function
    def scoped(s):
        s.set_var("given", 5)
        s["also"] = [1]
        with s.var_scope("both"):
            s += "a " + sgl.gen("x")
        with s.copy() as c:
            c += sgl.gen("y")
        return s.get_var("given"), s["also"], s["both"], s["y"], s.get_meta_info("x")["id"] != "", "z" in s

    assert scoped.run(backend=backend).ret_value == (5, [1], "a one two three", ["other"], True, False)


def test_begin_and_end_forms_are_the_turns(backend):
    @sgl.function
    def marks(s):
        s += sgl.system_begin() + "S" + sgl.system_end() + sgl.user_begin() + "U" + sgl.user_end()
        s += sgl.assistant_begin() + sgl.gen("y") + sgl.assistant_end()

    assert marks.run(backend=backend).messages() == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": "other"},
    ]


def test_the_default_backend_is_used_and_asked(backend):
    backend.stats = lambda: {"num_running_reqs": 0}
    backend.flush_cache = lambda: {"flushed": 3}
    sgl.set_default_backend(backend)
    try:
        assert prog("tea").text() == "tea.one two three"
        assert sgl.flush_cache() == {"flushed": 3}
        info = sgl.get_server_info()
        assert (
            info["model"] == "mock"
            and info["num_running_reqs"] == 0
            and info["instruction_queue_length"] >= 0
        )
    finally:
        sgl.set_default_backend(None)


def test_image_says_that_no_model_here_sees(backend):
    with pytest.raises(sgl.ProgramError, match="needs a model with vision") as caught:
        sgl.image("cat.png")
    assert caught.value.hint and caught.value.position is not None
