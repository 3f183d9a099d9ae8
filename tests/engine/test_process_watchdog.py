"""A whole engine whose step does not end: it is seen as stuck, it answers, its stacks can be read, and it recovers."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from process_rig import until

from sgnb.backends.engine import launch
from sgnb.errors import EngineDied, RequestError

SLOW = {"runner": "stub", "stub_step_seconds": 3.0, "watchdog_seconds": 0.5, "max_total_tokens": 4096}


def generating(engine):
    """A generation in a thread; its result or error."""
    found = []

    def run() -> None:
        try:
            found.append(engine.generate("hello", sampling_params={"max_new_tokens": 2, "ignore_eos": True}))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


@pytest.mark.parametrize(
    ("driver", "words", "frame"),
    [
        ("inline", "The scheduler's thread computes step", "stub_runner.py"),
        ("thread", "The scheduler answers. The forward thread does not.", "drivers.py"),
        ("process", "The scheduler answers. The runner process does not.", "process_driver.py"),
    ],
)
def test_a_step_that_does_not_end_is_shown_and_forgotten(driver, words, frame):
    with launch(name=f"slow-{driver}", runner_driver=driver, **SLOW) as engine:
        thread, found = generating(engine)
        until(lambda: engine.state == "stuck", 10)
        assert words in engine.trouble and "1 request running" in engine.trouble
        stacks = engine.stacks()
        assert "==== scheduler process" in stacks and frame in stacks and "==== tokenizer process" in stacks
        assert ("==== runner process" in stacks) == (driver == "process")
        if driver != "inline":
            assert engine.stats()["num_running_reqs"] == 1, "the scheduler answers while the step is computed"
        until(lambda: any("==== scheduler process" in line for line in engine.log(400)), 10)
        thread.join(30)
        assert found[0]["text"], found
        until(lambda: engine.state == "idle", 10)
        assert engine.trouble == ""


def test_R12_many_who_ask_for_stacks_share_one_collection():
    """A thread for each question would let a client fill the tokenizer process with threads."""
    with launch(name="asked", **{**SLOW, "stub_step_seconds": 0.01}) as engine:
        process = psutil.Process(engine.pid)
        engine.stacks()
        before = most = process.num_threads()
        with ThreadPoolExecutor(40) as pool:
            asked = [pool.submit(engine.stacks) for _ in range(40)]
            while not all(one.done() for one in asked):
                most = max(most, process.num_threads())
                time.sleep(0.002)
        assert all("==== scheduler process" in one.result() for one in asked)
        assert most <= before + 2


def test_a_stopped_scheduler_is_seen_too():
    with launch(name="stopped", **{**SLOW, "stub_step_seconds": 0.01}) as engine:
        pid = engine.client.welcome.scheduler_pid
        thread, found = generating(engine)
        thread.join(20)
        os.kill(pid, signal.SIGSTOP)
        try:
            assert "It does not answer: it is stopped." in engine.stacks()
        finally:
            os.kill(pid, signal.SIGCONT)
        assert generating(engine)[0].join(20) is None and found


@pytest.mark.parametrize("overlap", [False, True])
def test_F40_a_stopped_runner_process_is_named_and_everything_else_answers(overlap, find_engines):
    """Stuck is said with the one to blame; an abort ends its request though its step never does; what waits can be aborted,
    too; with SIGCONT all goes on, nothing twice; and a shutdown ends a runner that is stopped."""
    args = {**SLOW, "stub_step_seconds": 0.02, "enable_overlap": overlap, "max_running_requests": 1}
    engine = launch(name=f"hung-{overlap:d}", runner_driver="process", **args)
    try:
        (pid,) = _children_of(engine.client.welcome.scheduler_pid)
        same = {"max_new_tokens": 40, "ignore_eos": True, "temperature": 0}
        expected = engine.generate("again", sampling_params=same)
        long = {"max_new_tokens": 2000, "ignore_eos": True}
        with ThreadPoolExecutor(4) as pool:
            lost = [pool.submit(engine.generate, text, sampling_params=long) for text in ("one", "two")]
            until(lambda: engine.stats()["num_queue_reqs"] == 1, 20)
            os.kill(pid, signal.SIGSTOP)
            until(lambda: engine.state == "stuck", 20)
            assert engine.trouble.endswith("The scheduler answers. The runner process does not.")
            assert "It does not answer: it is stopped." in engine.stacks()
            engine.abort_all()
            for one in lost:
                assert one.result(20)["meta_info"]["finish_reason"]["type"] == "abort"
            stats = engine.stats()
            assert (stats["num_running_reqs"], stats["num_queue_reqs"]) == (0, 0)
            waits = pool.submit(engine.generate, "again", sampling_params=same)
            until(lambda: engine.stats()["num_queue_reqs"] == 1, 20)
            os.kill(pid, signal.SIGCONT)
            assert waits.result(30)["text"] == expected["text"]
        until(lambda: engine.state == "idle" and not engine.trouble, 20)
        assert engine.ask("check")["locks"] == 0
        thread, found = generating(engine)
        thread.join(20)
        assert found[0]["text"]
        os.kill(pid, signal.SIGSTOP)
        thread, found = generating(engine)
        until(lambda: engine.stats()["num_running_reqs"] == 1, 20)
    finally:
        engine.shutdown()
    thread.join(20)
    assert isinstance(found[0], EngineDied)
    until(lambda: not find_engines() and not os.path.exists(f"/proc/{pid}"), 20)


def test_a_killed_runner_process_ends_the_engine_with_its_reason():
    args = {**SLOW, "stub_step_seconds": 0.05}
    with launch(name="killed", runner_driver="process", **args) as engine:
        assert engine.generate("hi", sampling_params={"max_new_tokens": 2})["text"] is not None
        stacks = engine.stacks()
        assert "==== runner process" in stacks
        (pid,) = _children_of(engine.client.welcome.scheduler_pid)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises((EngineDied, RequestError), match="runner process was killed"):
            engine.generate("hello", sampling_params={"max_new_tokens": 4})
        until(lambda: engine.state == "died", 10)


def _children_of(parent: int) -> list[int]:
    out = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat") as file:
                    if int(file.read().rpartition(")")[2].split()[1]) == parent:
                        out.append(int(name))
            except (FileNotFoundError, ProcessLookupError):
                pass
    return out
