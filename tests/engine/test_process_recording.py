"""Recordings of a real engine: what a kernel writes while its programs run, and what ends it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time

import pytest
from process_rig import until, works

import sgnb
from sgnb.backends.connection import Address
from sgnb.backends.engine import Engine
from sgnb.backends.folders import read_folder, runtime_root
from sgnb.engine.scheduler.simulate.cost import fit
from sgnb.engine.scheduler.simulate.play import differences, play, replay
from sgnb.engine.scheduler.simulate.reader import from_recording
from sgnb.errors import EngineError, RecordingError
from sgnb.messages import InputEvent, StepEvent
from sgnb.recording import open_recording
from sgnb.recording.file import End, FrameWriter


@pytest.fixture(scope="module")
def engine():
    engine = sgnb.launch(runner="stub", name="recording", stub_step_seconds=0.001)
    yield engine
    engine.shutdown()


def test_a_run_is_recorded_whole(engine: Engine, tmp_path):
    with engine.record(tmp_path / "run") as recorder:
        answers = engine.generate(
            ["tell me one", "tell me two"], sampling_params={"max_new_tokens": 40, "temperature": 0}
        )
        assert recorder.running
    done = recorder.stop()
    assert done.path == tmp_path / "run.sgnb" and not done.error and not done.gaps
    recording = open_recording(done.path)
    assert recording.gaps() == [] and recording.header.model.model == "stub"
    numbers = [numbered.seq for numbered in recording.events()]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) and len(numbers) == done.events
    assert numbers[0] == recording.snapshot().seq + 1
    texts = sorted(recording.texts().values())
    assert [prompt for prompt, _ in texts] == ["tell me one", "tell me two"]
    assert all(output.startswith(answer["text"]) for (_, output), answer in zip(texts, answers, strict=True))
    steps = [n.event for n in recording.events() if isinstance(n.event, StepEvent)]
    assert sum(step.drawn for step in steps) == sum(a["meta_info"]["completion_tokens"] for a in answers)
    assert not recording.state_at(float("inf")).requests


def test_without_text_there_is_none(engine: Engine, tmp_path):
    with engine.record(tmp_path / "run.sgnb", text=False):
        engine.generate("my secret", sampling_params={"max_new_tokens": 4})
    recording = open_recording(tmp_path / "run.sgnb")
    assert recording.texts() == {} and not recording.header.text
    assert any(isinstance(n.event, InputEvent) for n in recording.events())


def test_it_ends_after_its_seconds_and_one_runs_at_a_time(engine: Engine, tmp_path):
    recorder = engine.record(tmp_path / "run.sgnb", seconds=0.6)
    with pytest.raises(EngineError, match="recorded already"):
        engine.record(tmp_path / "other.sgnb")
    assert not (tmp_path / "other.sgnb").exists()
    until(lambda: not recorder.running)
    (*_, end) = open_recording(recorder.path).items()
    assert isinstance(end, End) and end.reason == "0.6 s are over"
    with engine.record(tmp_path / "run.sgnb"):
        works(engine)


def test_frames_that_are_lost_are_got_from_the_history(engine: Engine, tmp_path, monkeypatch):
    monkeypatch.setattr("sgnb.backends.recorder._QUEUED_EVENTS", 20)
    with engine.record(tmp_path / "run.sgnb") as recorder:
        engine.generate(["a", "b", "c"], sampling_params={"max_new_tokens": 200, "ignore_eos": True})
    numbers = [numbered.seq for numbered in open_recording(tmp_path / "run.sgnb").events()]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) and len(numbers) > 200
    assert recorder.result().gaps == 0


def test_a_full_disk_ends_the_recording_and_nothing_else(engine: Engine, tmp_path, monkeypatch, caplog):
    recorder = engine.record(tmp_path / "run.sgnb")
    works(engine)
    until(lambda: recorder.result().events > 0)

    def full(self, data):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "sgnb.recorder"):
        patch.setattr(FrameWriter, "_write", full)
        works(engine)
        until(lambda: not recorder.running)
    assert "No space left on device" in caplog.text and str(recorder.path) in caplog.text
    works(engine)
    assert "No space left" in recorder.stop().error
    recording = open_recording(recorder.path)
    assert "not ended" in recording.gaps()[-1] and list(recording.events())
    with pytest.raises(RecordingError, match="No space left"), monkeypatch.context() as patch:
        patch.setattr(FrameWriter, "_write", full)
        engine.record(tmp_path / "next.sgnb")
    with engine.record(tmp_path / "again.sgnb"):
        works(engine)


def test_another_kernels_text_is_not_in_it(engine: Engine, tmp_path):
    """Two clients of one engine: each records lengths of all, text of its own."""
    record, token = read_folder(runtime_root() / engine.name)
    address = Address(
        socket=record.sockets["client"],
        token=token,
        pid=record.pid,
        start_time=record.start_time,
        owner_pid=record.owner_pid,
        owner_start_time=record.owner_start_time,
        owner=False,
        client_name="the other",
    )
    other = Engine(
        args=None,
        address=address,
        folder=runtime_root() / engine.name,
        name=engine.name,
        model="stub",
        process=None,
        forget=lambda engine: None,
    )
    try:
        with engine.record(tmp_path / "run.sgnb"):
            other.generate("not for you", sampling_params={"max_new_tokens": 4})
            engine.generate("for you", sampling_params={"max_new_tokens": 4})
    finally:
        other.shutdown()
    recording = open_recording(tmp_path / "run.sgnb")
    assert [prompt for prompt, _ in recording.texts().values()] == ["for you"]
    decodes = [n.event for n in recording.events() if isinstance(n.event, InputEvent) and n.event.rid]
    assert sorted(len(event.ids) // 4 for event in decodes) == [len("for you"), len("not for you")]


def test_the_end_of_the_engine_is_the_end_of_its_recording(tmp_path, caplog):
    engine = sgnb.launch(runner="stub", name="recording-end")
    recorder = engine.record(tmp_path / "run.sgnb")
    works(engine)
    started = time.monotonic()
    engine.shutdown()
    assert time.monotonic() - started < 10
    done = recorder.stop()
    assert not recorder.running and not done.error
    assert open_recording(recorder.path).gaps() == []


def test_an_engine_that_dies_leaves_a_recording_that_can_be_read(tmp_path, caplog):
    engine = sgnb.launch(runner="stub", name="recording-kill")
    recorder = engine.record(tmp_path / "run.sgnb")
    works(engine)
    until(lambda: recorder.result().events > 0)
    os.kill(engine.pid, signal.SIGKILL)
    until(lambda: not recorder.running)
    assert "killed" in recorder.stop().error
    recording = open_recording(recorder.path)
    assert recording.gaps() == [] and list(recording.events())
    engine.shutdown()


@sgnb.function
def branches(s, topic):
    s += f"Some words about {topic}, and then a list of things that one may say: "
    arms = s.fork(3)
    for at, arm in enumerate(arms):
        arm += f"{at}. " + sgnb.gen("thing", max_tokens=20, stop=["e "])
    arms.join()
    s += sgnb.select("choice", [" good", " bad", " neither of them"])
    s += sgnb.gen("end", max_tokens=30)


def test_a_recorded_run_is_simulated_batch_by_batch(tmp_path):
    """Through whole processes: chunks, retractions, forks, selects and aborts at any moment."""
    limits = {"max_total_tokens": 700, "chunked_prefill_size": 24, "schedule_conservativeness": 0.1}
    engine = sgnb.launch(runner="stub", name="recording-exact", stub_step_seconds=0.001, **limits)
    with engine, engine.record(tmp_path / "run.sgnb"):
        runs = [branches.run_async(topic=f"topic {n % 3}", backend=engine) for n in range(8)]
        prompts = [f"Tell me all of {n % 4} and more" for n in range(16)]
        engine.generate(prompts, sampling_params={"max_new_tokens": 60, "temperature": 0.0})
        engine.abort_all()
        for run in runs:
            with contextlib.suppress(sgnb.SgnbError):  # most were aborted
                run.result(30)
    script = from_recording(open_recording(tmp_path / "run.sgnb"))
    played = replay(script)
    assert differences(script.steps, played.events) == [] and played.followed
    assert len(script.steps) > 60 and played.retractions > 0
    kinds = {row.kind for step in script.steps for row in step.rows}
    assert {"prefill", "decode", "score"} <= kinds
    cost = fit(script.steps)
    assert cost.fixed > 0.0005 and cost.error < 1.0
    free = play(script, cost)
    assert abs(free.generated_tokens - played.generated_tokens) <= 0.05 * played.generated_tokens
