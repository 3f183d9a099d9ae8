"""The watchdog: a step that does not end is seen from outside, named, written down, and forgotten when it ends."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time

import pytest
from scheduler_rig import Rig

from sgnb.engine.pulse import Pulse, read_pulse
from sgnb.engine.stacks import as_text, collect
from sgnb.engine.watchdog import Watchdog


class Clock:
    def __init__(self) -> None:
        self.now = time.monotonic()

    def __call__(self) -> float:
        return self.now


def watched(folder, *, own_thread: bool = False, seconds: float = 60.0, runner: bool = False):
    clock = Clock()
    pids = {"scheduler": 1 << 22} | ({"runner": 1 << 22} if runner else {})
    return Watchdog(folder, seconds, lambda: pids, clock), Pulse(folder, own_thread=own_thread), clock


def test_an_idle_engine_is_never_stuck(tmp_path):
    dog, pulse, clock = watched(tmp_path)
    assert Watchdog(tmp_path / "none", 60, dict).look() == ""
    clock.now += 1000
    assert dog.look() == ""
    pulse.enter("idle")
    clock.now += 1000
    assert dog.look() == ""


def test_F40_stuck_after_ten_seconds_and_well_again_with_the_next_step(tmp_path, caplog):
    dog, pulse, clock = watched(tmp_path)
    pulse.enter("compute", 7, 3)
    clock.now += 9
    assert dog.look() == ""
    pulse.answer()
    clock.now = time.monotonic() + 0.2
    pulse._since = clock.now - 12
    pulse._write()
    expected = "No step for 12 s, 3 requests running. The scheduler answers. The forward thread does not."
    assert dog.look() == dog.trouble == expected
    with caplog.at_level(logging.WARNING):
        pulse.enter("plan", 8, 3)
        assert dog.look() == dog.trouble == ""
    assert "not stuck any more" in caplog.text


@pytest.mark.parametrize(
    ("phase", "own", "runner", "words"),
    [
        ("compute", True, False, "The scheduler's thread computes step 4 and does not answer."),
        ("compute", False, False, "The scheduler does not answer. The forward thread does not."),
        ("compute", False, True, "The scheduler does not answer. The runner process does not."),
        ("plan", False, False, "The scheduler does not answer: it plans a step."),
        ("process", False, False, "The scheduler does not answer: it processes a result."),
    ],
)
def test_it_names_who_does_not_answer(tmp_path, phase, own, runner, words):
    dog, pulse, clock = watched(tmp_path, own_thread=own, runner=runner)
    pulse.enter(phase, 4, 1)
    clock.now += 15
    assert dog.look() == f"No step for 15 s, 1 request running. {words}"


def test_F40_stacks_are_written_once_for_each_step_that_does_not_end(tmp_path, monkeypatch):
    dog, pulse, clock = watched(tmp_path, seconds=20)
    dumps = []
    monkeypatch.setattr(dog, "_dump", dumps.append)

    def look() -> None:
        dog.look()
        time.sleep(0.05)

    pulse.enter("compute", 4, 1)
    clock.now += 15
    look()
    assert not dumps
    clock.now += 10
    look()
    clock.now += 10
    look()
    assert len(dumps) == 1
    pulse.enter("compute", 5, 1)
    clock.now += 25
    look()
    assert len(dumps) == 2


CHILD = """
import sys, time
from pathlib import Path
from sgnb.engine.stacks import arm
def waits_here():
    time.sleep(60)
arm(Path(sys.argv[1]), "scheduler")
print("armed", flush=True)
waits_here()
"""


def test_stacks_of_another_process_come_as_text(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    with child.stdout:
        child.stdout.readline()
        for _ in range(100):
            if "waits_here" in collect(tmp_path, {"scheduler": child.pid})["scheduler"]:
                break
        for _ in range(2):
            stacks = collect(tmp_path, {"scheduler": child.pid, "runner": 1 << 22})
            assert "waits_here" in stacks["scheduler"]
            assert stacks["scheduler"].count("waits_here") == 1, "of this question, not of the last one"
            assert "cannot be asked" in stacks["runner"]
        assert "==== scheduler process" in as_text(stacks)
        os.kill(child.pid, 19)
        assert (
            collect(tmp_path, {"scheduler": child.pid}, 0.2)["scheduler"]
            == "It does not answer: it is stopped."
        )
        child.kill()
        child.wait()


def test_the_pulse_tells_what_the_scheduler_does(tmp_path):
    rig = Rig()
    rig.scheduler.pulse = Pulse(tmp_path)
    seen = []
    rig.runner.during = lambda batch: seen.append(read_pulse(tmp_path))
    rig.run(1, b"hello", max_new_tokens=3, ignore_eos=True)
    assert [(beat.phase, beat.step, beat.running, beat.own_thread) for beat in seen] == [
        ("compute", step, 1, True) for step in (1, 2, 3)
    ]
    after = read_pulse(tmp_path)
    assert after is not None and after.phase == "idle"
    (tmp_path / "pulse").write_bytes(b"short")
    assert read_pulse(tmp_path) is None
