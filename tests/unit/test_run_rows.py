"""Rows of the bug log about runs: depth, limits, many generations, names of arguments. On the scripted backend."""

from __future__ import annotations

import traceback

import pytest
from run_rig import decodes

import sgnb as sgl
from sgnb.backends.mock import MockBackend
from sgnb.lang.arguments import LATER_PARAMS
from sgnb.runtime import task
from sgnb.runtime.program import eager_execution
from sgnb.runtime.run_arguments import RUN_DEFAULTS, RUN_ONLY


@pytest.fixture
def backend():
    backend = MockBackend("one two three four")
    yield backend
    backend.shutdown()


@pytest.mark.dsl
def test_B118_chained_appends_and_deep_recursion_need_no_python_stack():
    backend = MockBackend("x")

    @sgl.function
    def chained(s):
        for i in range(3000):
            s += f"{i} "
        s += sgl.gen("x", max_tokens=4000)

    assert chained.run(backend=backend).text().endswith("2999 x")

    @sgl.function
    def down(s, n):
        return n if n == 0 else down(s, n - 1) + 1

    assert down.run(5000, backend=backend).ret_value == 5000
    backend.shutdown()


@pytest.mark.dsl
def test_B118_eager_recursion_is_a_language_error(backend):
    @sgl.function
    def forever(s):
        return forever(s)

    with eager_execution(), pytest.raises(sgl.ProgramError, match="forever calls itself"):
        forever.run(backend=backend)


def test_F18_endless_compiled_recursion_is_a_language_error(backend, monkeypatch):
    monkeypatch.setattr("sgnb.runtime.task.MAX_DEPTH", 500)

    @sgl.function
    def forever(s):
        return forever(s)

    with pytest.raises(sgl.ProgramError, match="seems to call itself without end"):
        forever.run(backend=backend)


def test_an_error_leaves_deep_programs_in_linear_time(backend, monkeypatch):
    """Each body it leaves adds its own frame to the traceback; what is clean already is not walked again."""
    made = []
    original = task.TracebackType

    def counted(*args):
        made.append(1)
        return original(*args)

    monkeypatch.setattr(task, "TracebackType", counted)

    @sgl.function
    def down(s, n):
        if n == 0:
            raise ZeroDivisionError("at the bottom")
        return down(s, n - 1)

    with pytest.raises(ZeroDivisionError) as raised:
        down.run(2000, backend=backend)
    frames = [frame for frame, _ in traceback.walk_tb(raised.value.__traceback__)]
    assert sum(frame.f_code.co_name == "down" for frame in frames) == 2001
    assert len(made) < 3 * 2001


@pytest.mark.dsl
def test_B121_max_tokens_is_exact():
    backend = MockBackend("word " * 5000)

    @sgl.function
    def long(s):
        s += sgl.gen("x", max_tokens=2048)

    state = long.run(backend=backend)
    info = state.get_meta_info("x")
    assert info["completion_tokens"] == 2048 and info["finish_reason"] == {"type": "length", "length": 2048}
    assert decodes(backend)[0].params.max_new_tokens == 2048
    backend.shutdown()


@pytest.mark.dsl
def test_B124_zero_tokens(backend):
    @sgl.function
    def none(s):
        s += sgl.gen("x", max_tokens=0)

    state = none.run(backend=backend)
    assert state["x"] == "" and state.get_meta_info("x")["finish"] == "length"


def test_ten_thousand_generations_do_not_pile_up():
    backend = MockBackend("x")

    @sgl.function
    def many(s):
        for _ in range(3000):
            s += sgl.gen("x")

    state = many.run(backend=backend)
    state.sync()
    assert len(state.text()) == 3000
    backend.shutdown()


def test_an_argument_of_run_that_the_program_has_too_is_the_programs(backend):
    values = {
        "max_new_tokens": 7, "n": 3, "stop": "!", "temperature": 0.3, "top_k": 5, "ignore_eos": True, "return_logprob": True,
        "logit_bias": {1: 2.0}, "seed": 11, "stream": True, "backend": "b", "priority": 4, "extra_key": "k", "passes": (),
        "stop_regex": "r",
    }  # fmt: skip
    assert set(RUN_DEFAULTS) | set(RUN_ONLY) | set(LATER_PARAMS) >= set(values)

    @sgl.function
    def own(
        s, max_new_tokens, n, stop, temperature, top_k, ignore_eos, return_logprob, logit_bias,
        seed, stream, backend, priority, extra_key, passes, *, stop_regex,
    ):  # fmt: skip
        got = dict(locals())
        s += sgl.gen("a")
        return {key: got[key] for key in values}

    sgl.set_default_backend(backend)
    try:
        bound = own.bind(**values)
        states = [own.run(**values), bound.run(), *own.run_batch([values]), *bound.run_batch([{}])]
    finally:
        sgl.set_default_backend(None)
    assert [state.ret_value for state in states] == [values] * 4
    for op in decodes(backend):
        assert (op.params.max_new_tokens, op.params.temperature, op.params.stop) == (128, 1.0, ())
        assert not op.params.ignore_eos and not op.params.return_logprob and not op.params.logit_bias


def test_the_name_of_the_state_takes_no_argument_from_run(backend):
    @sgl.function
    def program(n, question, stop="?"):
        n += question + stop + sgl.gen("a", stop=stop)

    state = program.run("Why", n=2, temperature=0.0, backend=backend, stop="!")
    ops = decodes(backend)
    assert len(state["a"]) == 2 and state.text().startswith("Why!")
    assert ops and all(op.params.greedy and op.params.stop == ("!",) for op in ops)
    assert program.run("Why", "?", temperature=0.5, backend=backend).text().startswith("Why?")
    assert decodes(backend)[-1].params.temperature == 0.5
