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
