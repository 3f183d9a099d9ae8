"""The fifteen rules that decide hard cases of the language, one test each; more of each is in the files beside."""

from __future__ import annotations

import asyncio
import threading

import pytest
from whole_engine import WholeEngine

import sgnb as sgl
from sgnb.backends.mock import HANG, MockBackend
from sgnb.errors import SgnbError
from sgnb.lang.instruction import Extend, Fork, MarkPart
from sgnb.runtime.meta import gen_seed
from sgnb.runtime.program import eager_execution
from sgnb.runtime.run import run_cell


@pytest.fixture
def backend():
    mock = MockBackend({"x": "value", "y": "other", "bad": ValueError("broken"), "hang": HANG})
    yield mock
    mock.shutdown()


@pytest.fixture
def engine():
    found = WholeEngine()
    yield found
    found.shutdown()


@pytest.mark.parametrize("eager", [False, True])
def test_rule_01_a_bare_or_assigned_gen_appends_itself_in_a_module_level_turn(backend, eager):
    def first(state):
        with sgl.user():
            state += "Hi "
        with sgl.assistant():
            x = sgl.gen("x")
            sgl.gen("y")
        return x

    def second(anything):
        anything += sgl.user("Hi ") + sgl.assistant(sgl.gen("x") + sgl.gen("y"))
        return anything["x"]

    def go():
        return [sgl.function(program).run(backend=backend) for program in (first, second)]

    if eager:
        with eager_execution():
            states = go()
    else:
        states = go()
    assert [str(state.ret_value) for state in states] == ["value", "value"]
    assert states[0].text() == states[1].text() and states[0].messages() == states[1].messages()


def test_rule_02_forks_are_snapshots_and_joined_branches_refuse_appends(backend):
    @sgl.function
    def prog(s):
        s += "root " + sgl.gen("x")
        arms = s.fork(2)
        s += "parent "
        arms += "arm " + sgl.gen("y")
        arms.join()
        assert s["y"] == ["other", "other"] and s["x"] == "value"
        assert arms[0].text() == "root valuearm other"
        arms[0] += "more"

    with pytest.raises(sgl.ProgramError, match="was joined"):
        prog.run(backend=backend)


def test_rule_03_host_code_runs_on_the_driving_thread_and_reads_wait_for_one_variable(backend):
    seen = []

    @sgl.function
    def prog(s):
        arms = s.fork(2)
        arms[0] += sgl.gen("hang")
        arms[1] += sgl.gen("x")
        seen.append(threading.current_thread())
        value = arms[1]["x"]  # the hanging one is not waited for
        arms[0].close()
        return value

    assert prog.run(backend=backend).ret_value == "value"
    assert seen == [threading.current_thread()]
    prog.run_async(backend=backend).result(20)
    assert seen[1].name == "sgnb-run"


def test_rule_04_a_cell_waits_for_all_its_states_and_run_for_its_body(backend):
    run = run_cell("b = s.fork(2)\nb += gen('x')", cell_name="1", user_ns={}, backend=backend)
    run.drive(20)
    assert run.done and all(not state.open_slots() for state in run.core.states.values())

    @sgl.function
    def prog(s):
        s += sgl.gen("hang")
        return 1

    state = prog.run(backend=backend)
    assert state.ret_value == 1 and state.open_slots()
    state.core.stop()


def test_rule_05_names_of_a_cell_are_its_own(backend):
    names = {"count": 1, "gen": "mine"}
    run = run_cell(
        "count = count + 1\ns += str(count) + gen('x')", cell_name="1", user_ns=names, backend=backend
    )
    run.drive(20)
    assert run.state.text() == "2value" and names == {"count": 1, "gen": "mine"}


def test_rule_06_programs_and_helpers_are_inlined_on_the_state_they_get(backend):
    @sgl.function
    def sub(s):
        s += sgl.gen("x")
        return s["x"]

    def helper(state):
        state += sgl.gen("y")
        return state["y"]

    @sgl.function
    def prog(s):
        return sub(s), helper(s), sub.run().text(), sub().text()

    state = prog.run(backend=backend)
    assert state.ret_value == ("value", "other", "value", "value") and state.text() == "valueother"


def test_rule_07_a_run_of_text_is_one_string_however_it_was_written(engine):
    def ids(*pieces, fork_at=None):
        @sgl.function
        def prog(s):
            for number, piece in enumerate(pieces):
                if number == fork_at:
                    s.fork(2).join()
                s += piece
            s += sgl.gen("x", max_tokens=1, ignore_eos=True, temperature=0)

        state = prog.run(backend=engine)
        state.sync()
        engine.settle()
        return list(engine.scheduler.sessions[state.sid].ids), state["x"]

    whole = ids("one two three ")
    assert ids("one ", "two ", "three ") == ids("on", "e two thr", "ee ") == whole
    assert ids("one ", "two ", "three ", fork_at=1) == whole


def test_rule_08_text_inside_roles_forms_no_special_token(engine):
    @sgl.function
    def prog(s):
        with s.user():
            s += "<|im_end|>"
        s += sgl.gen("x", max_tokens=1, ignore_eos=True)

    state = prog.run(backend=engine)
    state.sync()
    engine.settle()
    ids = list(engine.scheduler.sessions[state.sid].ids)
    assert ids.count(257) == 1, "the turn's own end is the only special one"
    assert bytes(i for i in ids if i < 256).count(b"<|im_end|>") == 1


def test_rule_09_a_stop_cuts_the_text_and_what_was_sampled_is_counted(engine):
    @sgl.function
    def prog(s, stop):
        s += "Once " + sgl.gen("x", max_tokens=60, ignore_eos=True, temperature=0, stop=stop)

    free = prog.run(None, backend=engine)["x"]
    stop = free[-6:-4]
    state = prog.run(stop, backend=engine)
    assert state["x"] == free[: free.index(stop)]
    meta = state.get_meta_info("x")
    assert meta["finish_reason"]["matched"] == stop
    assert meta["completion_tokens"] == meta["kept_tokens"] + len(stop)


def test_rule_10_the_winner_of_a_select_is_one_of_the_options_and_stays_cached(engine):
    @sgl.function
    def prog(s):
        s += "The best of the three is " + sgl.select("c", ["red", "reddish", "green"])
        s += sgl.gen("x", max_tokens=2, ignore_eos=True)

    state = prog.run(backend=engine)
    assert state["c"] in ("red", "reddish", "green")
    assert state.text().startswith("The best of the three is " + state["c"])
    cached = state.get_meta_info("x")["cached_tokens"]
    assert cached >= len("The best of the three is " + state["c"]) - 1


def test_rule_11_samples_are_lists_the_text_goes_on_with_the_first_and_seeds_come_from_the_path(engine):
    @sgl.function
    def prog(s):
        s += "Once " + sgl.gen("x", n=3, max_tokens=8, ignore_eos=True)

    one, again = (prog.run(backend=engine, seed=4) for _ in range(2))
    assert len(one["x"]) == 3 and one["x"] == again["x"] and len(set(one["x"])) == 3
    assert one.text() == "Once " + one["x"][0] and len(one.get_meta_info("x")) == 3
    seeds = {gen_seed(4, "0", ordinal, sample) for ordinal in range(3) for sample in range(3)}
    assert len(seeds) == 9


def test_rule_12_asking_for_log_probabilities_changes_no_token(engine):
    @sgl.function
    def prog(s, ask):
        s += "Once " + sgl.gen("x", max_tokens=16, ignore_eos=True, return_logprob=ask)

    plain, asked = (prog.run(ask, backend=engine, seed=8) for ask in (False, True))
    assert plain["x"] == asked["x"]
    logprobs = asked.get_meta_info("x")["output_token_logprobs"]
    assert len(logprobs) == 16 and all(value <= 0 for value, *_ in logprobs)


@pytest.mark.parametrize("texts", [False, True])
def test_rule_12_the_pieces_of_a_stream_tell_of_their_tokens_what_the_end_tells(engine, texts):
    @sgl.function
    def prog(s):
        asked = {"return_logprob": True, "top_logprobs_num": 2, "return_text_in_logprobs": texts}
        s += "Once " + sgl.gen("x", max_tokens=16, ignore_eos=True, **asked)

    async def pieces(run):
        return [piece async for piece in run.text_async_iter("x", return_meta_data=True)]

    run = prog.run(backend=engine, seed=8, stream=True)
    told = asyncio.run(pieces(run))
    end = run.get_meta_info("x")
    for name in ("output_token_logprobs", "output_top_logprobs"):
        assert [row for _, meta in told for row in meta[name]] == end[name], name
    assert told[-1][1]["output_token_logprobs_length"] == len(end["output_token_logprobs"]) == 16
    rows = end["output_token_logprobs"]
    tops = [row for top in end["output_top_logprobs"] for row in top]
    assert len(tops) == 32
    if texts:
        assert "".join(text for _, _, text in rows) == run["x"]
        assert all(text == chr(token) for _, token, text in tops)
    else:
        assert {text for _, _, text in rows + tops} == {None}


def test_rule_13_var_scope_binds_the_states_own_text_and_holds_an_error(backend):
    @sgl.function
    def prog(s):
        s += "before "
        with s.var_scope("part"):
            s += "a " + sgl.gen("x") + " b"
        try:
            with s.var_scope("broken"):
                raise ValueError("mine")
        except ValueError:
            pass
        assert s["part"] == "a value b"
        return s["broken"]

    with pytest.raises(ValueError, match="mine"):
        prog.run(backend=backend)


def test_rule_14_joining_texts_is_exact_and_joining_kv_is_never_done_in_silence(backend):
    @sgl.function
    def prog(s, method):
        s += "root "
        arms = s.fork(2)
        for number, arm in enumerate(arms):
            arm += f"{number} " + sgl.gen("x") + " "
        arms.join("concate_and_append", method=method)
        s += sgl.gen("y")

    state = prog.run("text", backend=backend)
    assert state.text() == "root 0 value 1 value other"
    assert backend.prompts[-1] == ("y", "root 0 value 1 value ")
    with pytest.raises(sgl.ProgramError, match="no KV of its own"):
        prog.run("kv", backend=backend)


def test_rule_15_a_failure_poisons_its_state_alone_and_is_raised_where_it_is_read(backend):
    ended = []

    @sgl.function
    def prog(s):
        arms = s.fork(2)
        try:
            arms[0] += sgl.gen("bad")
            arms[1] += sgl.gen("x")
            arms[0].error()
            arms[0] += "appends never raise what comes later"
            assert arms[1]["x"] == "value"
            return arms[0]["bad"]
        finally:
            arms[0] += sgl.gen("late")  # refused with the first cause
            ended.append(True)

    with pytest.raises(SgnbError, match="broken") as caught:
        prog.run(backend=backend)
    assert ended == [True] and caught.value.position.text.strip() == 'arms[0] += sgl.gen("bad")'
    assert [name for name, _ in backend.prompts] == ["bad", "x"]


def test_both_role_forms_take_any_first_parameter_name_and_open_the_same_turns(backend):
    def with_methods(conversation):
        with conversation.system():
            conversation += "Be brief."
        with conversation.user():
            conversation += "Hi"
        with conversation.assistant():
            conversation += sgl.gen("x")

    def with_module(q):
        with sgl.system():
            q += "Be brief."
        with sgl.user():
            q += "Hi"
        with sgl.assistant():
            sgl.gen("x")

    def with_marks(_):
        _ += sgl.system_begin() + "Be brief." + sgl.system_end() + sgl.user_begin() + "Hi" + sgl.user_end()
        _ += sgl.assistant_begin() + sgl.gen("x") + sgl.assistant_end()

    states = [sgl.function(one).run(backend=backend) for one in (with_methods, with_module, with_marks)]
    assert len({state.text() for state in states}) == 1
    marks = [
        [
            (part.role, part.begin)
            for op in block.instructions
            if isinstance(op, Extend)
            for part in op.parts
            if isinstance(part, MarkPart)
        ]
        for block in backend.log
    ]
    flat = [mark for block in marks for mark in block]
    assert flat == flat[:6] * 3 and not any(
        isinstance(op, Fork) for b in backend.log for op in b.instructions
    )
