"""Runs that fail or are stopped. All on the scripted backend."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from run_rig import LONG, chat, events_of, lazy_chat, wait_until

import sgnb as sgl
from sgnb.backends.mock import HANG, MockBackend
from sgnb.errors import Cancelled, EngineDied, RequestError, UnknownVariable
from sgnb.runtime import events
from sgnb.runtime.run import run_cell


@pytest.fixture
def backend():
    backend = MockBackend("one two three four")
    yield backend
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
    with pytest.raises(EngineDied, match="Line 1, column 6: "):
        run_cell('s += gen("x")', cell_name="2", user_ns={}, backend=backend).drive()
    assert (
        backend._dead.position is None
    )  # it is the engine's end, shown in the panel too, and not that line's alone


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
