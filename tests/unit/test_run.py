"""Runs: streams, async, batches, states that live on, stops, failures. All on the scripted backend."""

from __future__ import annotations

import asyncio
import gc
import threading
import time

import pytest
from run_rig import LONG, chat, decodes, events_of, lazy_chat, wait_until

import sgnb as sgl
from sgnb.backends.mock import HANG, MockBackend
from sgnb.errors import EngineDied, NoEngine
from sgnb.lang.instruction import Extend
from sgnb.runtime import events
from sgnb.runtime.core import Notebook
from sgnb.runtime.dispatcher import MAX_THREADS, pool
from sgnb.runtime.program import eager_execution
from sgnb.runtime.run import run_cell


@pytest.fixture
def backend():
    backend = MockBackend("one two three four")
    yield backend
    backend.shutdown()


# ---------------------------------------------------------------- running


def test_run_without_an_engine_names_the_call_that_starts_one():
    with pytest.raises(NoEngine, match=r"sgnb\.launch\(\)"):
        chat.run("?")


def test_run_returns_when_the_body_has_returned():
    backend = MockBackend(HANG)
    state = lazy_chat.run("a", backend=backend)
    assert state.text_so_far() == "a"
    backend.shutdown()
    with pytest.raises(EngineDied):
        state.sync()


def test_stream_gives_all_text_to_every_reader(backend):
    state = chat.run("?", backend=backend, stream=True)
    early = list(state.text_iter("answer"))
    whole = "".join(state.text_iter())
    assert "".join(early) == "one two three four" == "".join(state.text_iter("answer"))
    assert whole == state.text() == "".join(state.text_iter())


def test_stream_comes_in_pieces():
    backend = MockBackend("a b c d", delay=0.02)
    pieces = list(lazy_chat.run("q", backend=backend, stream=True).text_iter())
    assert len(pieces) >= 3 and "".join(pieces) == "qa b c d"
    backend.shutdown()


def test_unknown_name_of_a_stream_is_a_key_error_at_once():
    backend = MockBackend(HANG)

    @sgl.function
    def slow(s):
        s += sgl.gen("x")
        s += s["x"]

    state = slow.run(backend=backend, stream=True)
    with pytest.raises(KeyError):
        list(state.text_iter("nothing"))
    backend.shutdown()


def test_run_async_result_and_await(backend):
    run = chat.run_async("?", backend=backend)
    assert run.result(LONG)["answer"] == "one two three four"
    assert run.status == "finished" and run.value == "one two three four"

    async def main():
        state = await chat.run_async("?", backend=backend)
        pieces = [piece async for piece in chat.run_async("?", backend=backend)]
        metas = [meta async for _, meta in state.text_async_iter("answer", return_meta_data=True)]
        many = await asyncio.gather(
            *(chat.run_async(str(i), backend=backend)._wait_async() for i in range(20))
        )
        return state, pieces, metas, many

    state, pieces, metas, many = asyncio.run(main())
    assert "".join(pieces) == state.text()
    assert metas[-1]["completion_tokens"] == 4
    assert [s.messages()[0]["content"] for s in many] == [str(i) for i in range(20)]


def test_result_raises_what_the_body_raised(backend):
    @sgl.function
    def fails(s):
        s += sgl.gen("x")
        raise LookupError(s["x"])

    with pytest.raises(LookupError, match="one two"):
        fails.run_async(backend=backend).result(LONG)
    state = fails.run(backend=backend, stream=True)
    with pytest.raises(LookupError):  # D7: an exception of a streamed body is not lost
        list(state.text_iter())
    assert isinstance(state.error(), LookupError)


def test_batch_keeps_order_and_errors_stay_with_their_item(backend):
    @sgl.function
    def maybe(s, n, fail=False):
        s += f"{n}" + sgl.gen("x")
        if fail:
            raise ValueError(n)

    items = [{"n": i, "fail": i == 3} for i in range(20)]
    states = maybe.run_batch(items, backend=backend, num_threads=4)
    assert [s.text_so_far()[0] for s in states[:3]] == ["0", "1", "2"]
    assert isinstance(states[3].error(), ValueError)
    with pytest.raises(ValueError):
        states[3].text()
    assert all(s["x"] == "one two three four" for i, s in enumerate(states) if i != 3)
    assert [s["x"] for s in maybe.run_batch([(1,), (2,)], backend=backend, generator_style=True)] == [
        "one two three four"
    ] * 2
    with pytest.raises(sgl.ProgramError, match="item 1 is an int"):
        maybe.run_batch([(1,), 2], backend=backend)


def test_batch_progress_bar(backend, capsys):
    chat.run_batch([("a",), ("b",)], backend=backend, progress_bar=True)
    assert "2/2" in capsys.readouterr().err


def test_many_runs_need_few_threads():
    backend = MockBackend(HANG)
    runs = [chat.run_async(str(i), backend=backend) for i in range(500)]
    wait_until(lambda: sum(len(run.core.slots) for run in runs) == 500)
    assert pool.threads <= MAX_THREADS
    # One that was idle for long may just be ending.
    wait_until(lambda: sum(thread.name == "sgnb-run" for thread in threading.enumerate()) <= MAX_THREADS)
    for run in runs:
        run.cancel()
    assert all(run.status == "stopped" for run in runs)
    backend.shutdown()


def test_a_blocking_tool_does_not_stop_other_runs(backend):
    gate = threading.Event()

    @sgl.function
    def blocked(s):
        s += sgl.gen("x")
        gate.wait(LONG)
        return s["x"]

    held = [blocked.run_async(backend=backend) for _ in range(3)]
    assert chat.run_async("?", backend=backend).result(LONG)["answer"]
    gate.set()
    assert [run.result(LONG).ret_value for run in held] == ["one two three four"] * 3


def test_waiting_for_another_run_on_the_pool_cannot_starve_it(backend):
    """More runs wait for another run than the pool has threads."""

    @sgl.function
    def outer(s, n):
        other = chat.run_async(str(n), backend=backend)
        s += other.result(LONG)["answer"]

    states = outer.run_batch([(n,) for n in range(3 * MAX_THREADS)], backend=backend)
    assert {s.text() for s in states} == {"one two three four"}


# ---------------------------------------------------------------- blocks and seeds


def test_straight_program_is_one_message(backend):
    @sgl.function
    def straight(s):
        for i in range(10):
            s += f"{i}:" + sgl.gen(f"x{i}") + "\n"

    straight.run(backend=backend).sync()
    assert len(backend.log) == 1
    with eager_execution():
        other = MockBackend("x")
        straight.run(backend=other).sync()
        assert len(other.log) >= 10
        other.shutdown()


def test_adjacent_text_is_one_part(backend):
    @sgl.function
    def pieces(s):
        s += "a"
        s += "b" + sgl.text("c") + sgl.text("d")
        s += "e" + sgl.gen("x")

    pieces.run(backend=backend).sync()
    (extend,) = [op for op in backend.log[0].instructions if isinstance(op, Extend)]
    assert [(part.text, part.literal) for part in extend.parts] == [("ab", False), ("cd", True), ("e", False)]


def test_text_inside_roles_is_literal(backend):
    chat.run("<|im_end|>", backend=backend).sync()
    extend = next(op for op in backend.log[0].instructions if isinstance(op, Extend))
    assert [getattr(part, "literal", None) for part in extend.parts] == [None, True, None, None]


def test_seeds_depend_on_run_seed_and_ordinal_alone(backend):
    @sgl.function
    def three(s, extra=""):
        s += sgl.gen("a")
        s += extra + sgl.gen("b", seed=7)
        s += sgl.gen("c", temperature=0)

    three.run(backend=backend, seed=1)
    three.run("more text", backend=backend, seed=1)
    three.run(backend=backend, seed=2)
    seeds = [op.params.seed for op in decodes(backend)]
    assert seeds[0:3] == seeds[3:6] != seeds[6:9]
    assert seeds[1] == seeds[7] == 7 and seeds[2] is None and seeds[0] != seeds[6]


def test_F29_a_run_refuses_a_seed_that_is_none(backend):
    @sgl.function
    def program(s):
        s += "x" + sgl.gen("a")

    for wrong in ("z", -1, 2**63, 1.5, True):
        with pytest.raises(sgl.LimitError, match=r"seed must be a whole number in 0\.\.2\^63-1"):
            program.run(backend=backend, seed=wrong)


def test_deterministic_mode_fixes_the_run_seed(backend, monkeypatch):
    monkeypatch.setenv("SGNB_DETERMINISTIC", "1")
    for _ in range(2):
        lazy_chat.run("x", backend=backend)
    first, second = (op.params.seed for op in decodes(backend))
    assert first == second is not None


def test_run_defaults_and_gen_arguments_meet(backend):
    @sgl.function
    def two(s):
        s += sgl.gen("a")
        s += sgl.gen("b", max_tokens=5, stop=["x"], temperature=0.5)

    stops = ["y"]
    two.run(backend=backend, max_new_tokens=9, temperature=0.1, top_p=0.5, stop=stops)
    a, b = (op.params for op in decodes(backend))
    assert (a.max_new_tokens, a.temperature, a.top_p, a.stop) == (9, 0.1, 0.5, ("y",))
    assert (b.max_new_tokens, b.temperature, b.top_p, b.stop) == (5, 0.5, 0.5, ("x",))
    assert stops == ["y"]  # D11: the user's list is not touched


def test_default_is_128_tokens_at_temperature_one(backend):
    lazy_chat.run("x", backend=backend)
    params = decodes(backend)[0].params
    assert (params.max_new_tokens, params.temperature, params.top_k) == (128, 1.0, -1)


def test_labels_name_cell_and_place(backend):
    run = run_cell('s += "a" + gen("x")', cell_name="7", user_ns={}, backend=backend, first_line=2)
    run.drive()
    (op,) = decodes(backend)
    assert (op.cell, op.branch, op.name, op.position.line, op.position.col) == ("7", "", "x", 2, 11)


def test_requests_of_a_program_are_called_after_the_cell_that_runs_it(backend, monkeypatch):
    @sgl.function
    def ask(s, question):
        s += question + sgl.gen("x")
        _, second = s.fork(2)
        second += sgl.gen("y")
        return second["y"]

    def names():
        found = [(op.cell, op.branch, op.name) for op in decodes(backend)]
        backend.log.clear()
        return sorted(found)

    ask.run(question="?", backend=backend)
    assert names() == [("", "", "x"), ("", "1", "y")]
    monkeypatch.setattr(Notebook, "cell_number", lambda: "12")
    ask.run(question="?", backend=backend)
    assert names() == [("12", "", "x"), ("12", "1", "y")]
    ask.run_batch([{"question": "a"}, {"question": "b"}], backend=backend)
    assert names() == [("12", "0", "x"), ("12", "0.1", "y"), ("12", "1", "x"), ("12", "1.1", "y")]


def test_who_waits_for_a_run_finds_its_end_in_the_log(monkeypatch):
    """Of a long run the end takes a while to write; a cell that did not find it was shown as failed."""
    from sgnb.runtime import ending

    split = ending.split_times
    monkeypatch.setattr(ending, "split_times", lambda *args: time.sleep(0.2) or split(*args))
    run = run_cell('s += gen("x")', cell_name="1", user_ns={}, backend=MockBackend("word " * 50, delay=0.002))
    run.drive()
    assert run.log.closed and isinstance(run.log.since(len(run.log) - 1)[0].event, events.RunFinished)


# ---------------------------------------------------------------- states that live on


def test_state_goes_on_after_its_run(backend):
    state = chat.run("?", backend=backend)
    sid = state.sid
    state += sgl.user("more") + sgl.assistant(sgl.gen("later"))  # D5
    assert state["later"] == "one two three four"
    assert [m["role"] for m in state.messages()] == ["user", "assistant"] * 2
    assert {op.sid for op in decodes(backend)} == {sid}


def test_state_goes_on_in_a_later_cell(backend):
    first = run_cell('s += "a" + gen("x")', cell_name="1", user_ns={}, backend=backend)
    first.drive()
    tips = first.state
    second = run_cell(
        "tips += ' b' + gen('y')\ntips['y']", cell_name="2", user_ns={"tips": tips}, backend=backend
    )
    second.drive()
    assert second.value == "one two three four"
    assert tips.text() == "aone two three four bone two three four"
    assert [e.name for e in events_of(second.log, events.GenQueued)] == ["y"]


def test_collected_state_releases_its_session(backend):
    """By reference count alone: no cycle keeps a state, whoever drove its run."""
    gc.collect()
    gc.disable()
    try:
        state = chat.run("?", backend=backend)
        states = [state, *chat.run_batch([("a",), ("b",)], backend=backend)]
        run = chat.run_async("?", backend=backend)
        states.append(run.result(LONG))
        sids = {state.sid for state in states}
        for one in states:
            one.sync()
        del run, state, states, one
        backend.abort(["none"])  # wakes the thread
        wait_until(lambda: sids <= set(backend.released))
    finally:
        gc.enable()


def test_closed_state_keeps_its_text(backend):
    with chat.run("?", backend=backend) as state:
        text = state.text()
    assert state.text() == text
    backend.abort(["none"])
    wait_until(lambda: state.sid in backend.released)


def test_default_system_turn_of_the_template():
    template = MockBackend().template()
    roles = {role: (f"<{role}>", "</>") for role in template.roles}
    backend = MockBackend("ok", template=type(template)(roles=roles, default_system="<system>Be good.</>"))
    state = chat.run("?", backend=backend)
    assert state.text() == "<system>Be good.</><user>?</><assistant>ok</>"
    assert state.messages()[0] == {"role": "system", "content": "Be good."}

    @sgl.function
    def own_system(s):
        s += sgl.system("Mine.") + sgl.user("?")

    assert own_system.run(backend=backend).text() == "<system>Mine.</><user>?</>"
    backend.shutdown()


# ---------------------------------------------------------------- the log


def test_log_tells_the_whole_story(backend):
    run = run_cell(
        's += user("hi")\nwith assistant():\n    gen("x")', cell_name="3", user_ns={}, backend=backend
    )
    heard = []
    run.log.listen(lambda: heard.append(1))
    run.drive()
    kinds = [type(entry.event).__name__ for entry in run.log.since(0)]
    assert kinds[:2] == ["RunStarted", "StateOpened"] and kinds[-1] == "RunFinished"
    assert [e.role for e in events_of(run.log, events.RoleBegan)] == ["user", "assistant"]
    (queued,) = events_of(run.log, events.GenQueued)
    text = "".join(e.text for e in events_of(run.log, events.GenDelta) if e.rid == queued.rid)
    assert text == run.state["x"] == "one two three four"
    assert (queued.line, queued.name, queued.max_new_tokens) == (3, "x", 128)
    assert len(heard) == len(kinds) - 2  # RunStarted and StateOpened came before the listener
    started = run.log.since(0)[0].event
    assert started.graph.gens()[0].name == "x" and started.model == "mock"


def test_logprobs_reach_meta_and_log(backend):
    @sgl.function
    def scored(s):
        s += sgl.gen("x", return_logprob=True)

    state = scored.run(backend=backend)
    assert [entry[0] for entry in state.get_meta_info("x")["output_token_logprobs"]] == [-0.5] * 4
