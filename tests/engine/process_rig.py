"""What the tests of real engine processes share: waiting, a stream in a thread, a process that owns an engine."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable

from sgnb.backends.engine import Engine

LONG = {"max_new_tokens": 4000, "ignore_eos": True}


def until(check: Callable[[], object], seconds: float = 10.0) -> float:
    """Wait for it; how long it took."""
    started = time.monotonic()
    while not check():
        assert time.monotonic() - started < seconds, "it did not happen in time"
        time.sleep(0.01)
    return time.monotonic() - started


def streaming(engine: Engine) -> tuple[threading.Thread, list[BaseException]]:
    """A generation that runs in a thread, and what it raised."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            engine.generate("tell me", sampling_params=LONG)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: engine.state == "running")
    time.sleep(0.05)
    return thread, errors


OWNER = """
import sys, time, sgnb
from sgnb.backends.engine import launch
engine = launch(runner="stub", stub_step_seconds=0.002, wait=%s)
print(engine.pid, flush=True)
%s
"""


def owner(body: str, *, wait: bool = True) -> tuple[subprocess.Popen[str], int]:
    """A Python process that owns an engine; and the engine's pid."""
    child = subprocess.Popen(
        [sys.executable, "-c", OWNER % (wait, body)],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )
    return child, int(child.stdout.readline())


def finish(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.wait()
    child.stdin.close()
    child.stdout.close()


def until_idle(engine: Engine) -> None:
    """Nothing runs, and every slot is free or cached. A lost connection may be seen by its lease only (10 s)."""

    def idle() -> bool:
        stats = engine.stats()
        return not stats["num_running_reqs"] and not stats["num_queue_reqs"] and not stats["num_used_tokens"]

    until(idle, 20)
    engine.client.control("check")


def works(engine: Engine) -> None:
    assert engine.generate("still there", sampling_params={"max_new_tokens": 2})["text"]
