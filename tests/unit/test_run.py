"""Runs: streams, async, batches, states that live on, stops, failures. All on the scripted backend."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import traceback

import pytest

import sgnb as sgl
from sgnb.backends.mock import HANG, MockBackend
from sgnb.errors import Cancelled, EngineDied, NoEngine, RequestError, UnknownVariable
from sgnb.lang.arguments import LATER_PARAMS
from sgnb.lang.instruction import Decode, Extend
from sgnb.runtime import events, task
from sgnb.runtime.dispatcher import MAX_THREADS, pool
from sgnb.runtime.program import eager_execution
from sgnb.runtime.run import run_cell
from sgnb.runtime.run_arguments import RUN_DEFAULTS, RUN_ONLY

LONG = 20.0


@sgl.function
def chat(s, question):
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("answer", max_tokens=64))
    return s["answer"]


@sgl.function
def lazy_chat(s, question):
    s += question + sgl.gen("answer")


@pytest.fixture
def backend():
    backend = MockBackend("one two three four")
    yield backend
    backend.shutdown()


def events_of(log, kind):
    return [entry.event for entry in log.since(0) if isinstance(entry.event, kind)]


def wait_until(ready, seconds=LONG):
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.002)


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


def decodes(backend):
    return [op for block in backend.log for op in block.instructions if isinstance(op, Decode)]


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


# ---------------------------------------------------------------- failures


def test_error_is_raised_where_it_is_read():
    backend = MockBackend({"bad": RequestError("broken"), "good": "fine"})

    @sgl.function
    def two(s):
        s += sgl.gen("good")
        s += "then" + sgl.gen("bad")
        s += sgl.gen("good2")

    state = two.run(backend=backend)
    assert state["good"] == "fine"
    for read in (lambda: state["bad"], lambda: state["good2"], state.text, state.sync, state.messages):
        with pytest.raises(RequestError, match="broken") as caught:  # D1
            read()
        assert caught.value.position.line == two.func.__code__.co_firstlineno + 3
    state += sgl.gen("never")  # D2: refused, no hang
    with pytest.raises(RequestError, match="broken"):
        state["never"]
    assert isinstance(state.error(), RequestError)
    backend.shutdown()


def test_endless_appends_to_a_failed_state_end():
    backend = MockBackend(RequestError("broken"))

    @sgl.function
    def endless(s):
        while True:
            s += sgl.gen("x")

    with pytest.raises(RequestError, match="broken"):
        endless.run(backend=backend)
    backend.shutdown()


def test_cell_raises_an_unread_failure_and_forgives_a_handled_one():
    backend = MockBackend(RequestError("broken"))
    run = run_cell('s += gen("x")', cell_name="1", user_ns={}, backend=backend)
    with pytest.raises(RequestError, match="broken"):
        run.drive()
    assert run.status == "failed"
    handled = run_cell(
        "s += gen('x')\ntry:\n    s['x']\nexcept Exception as e:\n    kind = type(e).__name__\nkind",
        cell_name="2", user_ns={}, backend=backend,
    )  # fmt: skip
    handled.drive()
    assert handled.status == "finished" and handled.value == "RequestError"
    backend.shutdown()


def test_engine_death_fails_the_run_and_keeps_the_text():
    backend = MockBackend("word " * 200, delay=0.005)
    run = run_cell('s += gen("x", max_tokens=500)\ns["x"]', cell_name="1", user_ns={}, backend=backend)
    threading.Timer(0.05, backend.kill).start()
    with pytest.raises(EngineDied):
        run.drive()
    assert run.status == "failed" and run.state.text_so_far().startswith("word")
    with pytest.raises(EngineDied):
        run_cell('s += gen("x")', cell_name="2", user_ns={}, backend=backend).drive()


def test_failures_at_every_submit(backend):
    """Whatever block the backend refuses, the run ends with that error."""

    @sgl.function
    def steps(s):
        for i in range(4):
            s += sgl.gen(f"x{i}")
            s += s[f"x{i}"]

    for fatal in range(4):
        other = MockBackend("ok")
        submit, count = other.submit, [0]

        def refuse(block, sink, submit=submit, count=count, fatal=fatal):
            count[0] += 1
            if count[0] > fatal:
                raise EngineDied("gone")
            submit(block, sink)

        other.submit = refuse
        with pytest.raises(EngineDied, match="gone"):
            steps.run(backend=other).sync()
        other.shutdown()


def test_unknown_variable_suggests(backend):
    state = chat.run("?", backend=backend)
    with pytest.raises(UnknownVariable, match="Did you mean 'answer'"):
        state["anwser"]
    assert "answer" in state and "x" not in state


# ---------------------------------------------------------------- stopping


def test_interrupt_and_cancel_keep_the_text_and_end_at_once():
    backend = MockBackend("word " * 1000, delay=0.005)
    run = run_cell(
        'try:\n    s += gen("x", max_tokens=5000)\n    print(s["x"])\nfinally:\n    note("finally")',
        cell_name="1", user_ns={"note": (seen := []).append}, backend=backend,
    )  # fmt: skip
    threading.Timer(0.15, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        run.drive()
    started = time.monotonic()
    run.cancel()
    assert time.monotonic() - started < 0.2
    assert run.status == "stopped" and seen == ["finally"]
    assert run.state.text_so_far().startswith("word") and run.state["x"].startswith("word")
    assert run.state.get_meta_info("x")["finish_reason"]["type"] == "abort"
    assert isinstance(events_of(run.log, events.RunFinished)[0].error, Cancelled)
    wait_until(lambda: backend.aborted)
    with pytest.raises(Cancelled):
        run.state += sgl.gen("y")
        run.state["y"]
    backend.shutdown()


def test_cancel_of_a_silent_backend_ends_at_once():
    backend = MockBackend(HANG)
    run = chat.run_async("?", backend=backend)
    wait_until(lambda: run.core.slots)
    started = time.monotonic()
    run.cancel()
    assert run.done and run.status == "stopped" and time.monotonic() - started < 0.2
    with pytest.raises(Cancelled):
        run.result(LONG)
    run.cancel()
    backend.shutdown()


def test_cancel_while_host_code_runs(backend):
    gate, reached = threading.Event(), threading.Event()
    after = []

    @sgl.function
    def stubborn(s):
        s += sgl.gen("x")
        reached.set()
        gate.wait(LONG)
        s += "more"
        after.append("ran on")
        s += s["x"]
        after.append("not reached")

    run = stubborn.run_async(backend=backend)
    assert reached.wait(LONG)
    run.cancel()
    assert run.done and run.status == "stopped"
    gate.set()
    wait_until(lambda: run.driver.task.done)
    assert "not reached" not in after and "more" not in run.state.text_so_far()


def test_program_that_swallows_its_cancellation_is_dropped():
    backend = MockBackend(HANG)

    @sgl.function
    def deaf(s):
        while True:
            try:
                s += sgl.gen("x")
                s["x"]
            except BaseException:
                continue

    run = deaf.run_async(backend=backend)
    wait_until(lambda: run.core.slots)
    run.cancel()
    assert run.done
    wait_until(lambda: run.driver.task.done)
    backend.shutdown()


DEAF = """
import linecache, sys, time
import sgnb as sgl
from sgnb.backends.mock import MockBackend

@sgl.function
def deaf(s):
    while True:
        try:
            s += sgl.gen("x")
            s["x"]
        except BaseException:
            continue

run = deaf.run_async(backend=MockBackend("word " * 1000, delay=0.01))
while not run.core.slots:
    time.sleep(0.01)
run.cancel()
while not run.driver.task.done:
    time.sleep(0.01)
print("ended")
"""


def test_interpreter_ends_after_a_program_that_swallowed_its_cancellation(tmp_path):
    script = tmp_path / "deaf.py"
    script.write_text(DEAF)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert done.stdout == "ended\n" and done.returncode == 0, done.stderr


def test_interrupt_of_run_cancels_it():
    backend = MockBackend(HANG)
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        chat.run("?", backend=backend)
    wait_until(lambda: backend.aborted)
    backend.shutdown()


def test_F10_await_is_interruptible_and_stops_the_run():
    backend = MockBackend("word " * 1000, delay=0.005)
    runs = []

    async def main():
        runs.append(chat.run_async("?", backend=backend))
        await runs[0]

    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert time.monotonic() - started < 5
    assert runs[0].status == "stopped" and "word" in runs[0].state.text_so_far()
    wait_until(lambda: backend.aborted)
    backend.shutdown()


WAYS = {
    "result": lambda run: run.result(),
    "text": lambda run: run.state.text(),
    "sync": lambda run: run.state.sync(),
    "variable": lambda run: run.state["answer"],
    "stream": lambda run: list(run.stream()),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", [chat, lazy_chat])
def test_F8_an_interrupted_reader_stops_what_it_waits_for(way, program):
    backend = MockBackend(HANG)
    run = program.run_async("?", backend=backend)
    wait_until(lambda: run.core.slots)
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        WAYS[way](run)
    wait_until(lambda: run.done)
    assert run.status == "stopped"
    wait_until(lambda: backend.aborted)
    backend.shutdown()


def test_F8_an_interrupt_after_run_has_returned_aborts_too():
    backend = MockBackend(HANG)
    state = lazy_chat.run("?", backend=backend)
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        state["answer"]
    wait_until(lambda: backend.aborted)
    assert state.text() == "?"
    backend.shutdown()


def test_F8_an_interrupted_batch_aborts_all_of_it():
    backend = MockBackend(HANG)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        lazy_chat.run_batch([{"question": str(i)} for i in range(5)], backend=backend)
    wait_until(lambda: len(set(backend.aborted)) == 5)
    backend.shutdown()


@pytest.mark.parametrize("way", ["await", "async for", "async for of a state"])
def test_F10_a_cancelled_waiter_stops_the_run_and_a_shielded_one_does_not(way):
    backend = MockBackend(HANG)

    async def wait(run):
        if way == "await":
            return await run
        return [piece async for piece in (run if way == "async for" else run.state.text_async_iter("answer"))]

    async def main():
        run = lazy_chat.run_async("?", backend=backend)
        kept = asyncio.ensure_future(wait(run))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(kept), 0.2)
        shielded = run.status
        kept.cancel()
        with pytest.raises(asyncio.CancelledError):
            await kept
        return shielded, run

    shielded, run = asyncio.run(main())
    assert shielded == "running" and run.status == "stopped"
    wait_until(lambda: backend.aborted)
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


# ---------------------------------------------------------------- bug-log rows


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
