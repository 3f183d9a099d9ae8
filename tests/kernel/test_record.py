"""``%sgl record`` in a real kernel: a notebook's cells go to a file, with their labels and text."""

from __future__ import annotations

from kernel_rig import Kernel

from sgnb.messages import RequestEvent
from sgnb.recording import open_recording


def test_cells_are_recorded_between_start_and_stop(kernel: Kernel, tmp_path) -> None:
    path = tmp_path / "cells"
    kernel.ok("%load_ext sgnb\n%sgl launch --runner stub --name recorded")
    for verb in ("stop", ""):
        assert "nothing is recorded" in kernel.run(f"%sgl record {verb}").stderr
    assert f"to {path}.sgnb" in kernel.ok(f"%sgl record start {path}").stdout
    kernel.ok('%%sgl -o one\ns += "hello there" + gen("word", max_tokens=5)')
    assert "recorded already" in kernel.run(f"%sgl record start {path}").error
    now = kernel.ok("%sgl record").stdout
    assert now.startswith(f"Recording engine recorded to {path}.sgnb: ") and "events" in now
    assert f"goes to {path}.sgnb" in kernel.run("%sgl record stop other").stderr
    told = kernel.ok(f"%sgl record stop {path}").stdout
    assert f"to {path}.sgnb" in told and "events" in told
    kernel.ok('%%sgl\ns += "not in it" + gen("word", max_tokens=5)')
    recording = open_recording(f"{path}.sgnb")
    assert [prompt for prompt, _ in recording.texts().values()] == ["hello there"]
    labels = {n.event.label.name for n in recording.events() if isinstance(n.event, RequestEvent)}
    assert labels == {"word"} and recording.gaps() == []
    assert "It had ended before. Recorded" in kernel.ok("%sgl record stop").stdout
    kernel.ok("%sgl pause")
    assert "Paused between two steps" in kernel.ok("%sgl status").stdout
    kernel.ok("%sgl resume")
    assert "Paused" not in kernel.ok("%sgl status").stdout
    kernel.ok("%sgl stop")
