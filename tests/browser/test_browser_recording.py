"""A recording opened in the side panel, beside no kernel: its figures, its moments, playing, export, files that are none."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from sgnb import Recording
from sgnb.recording.file import FORMAT, MAGIC

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from recording_rig import busy

THIN = "\u202f"
NEWER = MAGIC + (FORMAT + 1).to_bytes(2, "little") + bytes([5]) + b"9.9.9"


@pytest.fixture
def recording(lab_server: Any) -> Recording:
    """A recording in the server's folder, and beside it a file that is none and one of a later version."""
    folder = Path(lab_server.folder)
    (folder / "none.sgnb").write_bytes(b"no recording at all")
    (folder / "newer.sgnb").write_bytes(NEWER)
    path = folder / "busy.sgnb"
    path.unlink(missing_ok=True)
    return busy(path, seed=5).save(apart=0.004)  # however fast the machine was


def half_told(recording: Recording, time: float) -> bool:
    """Whether a moment lies between what happens to the tree and whose the slots are then."""
    half = False
    for event in (numbered.event for numbered in recording.events()):
        if event.time > time:
            break
        kind = getattr(event, "kind", "") if type(event).__name__ == "RadixEvent" else ""
        half = (half or kind in ("insert", "split", "evict", "flush")) and type(event).__name__ != "KVDelta"
    return half


def test_a_recording_in_the_panel(lab: Any, recording: Recording) -> None:
    first, last = recording.span()
    began = [one.event for one in recording.events() if type(one.event).__name__ == "StepEvent"]
    steps = [event.step for event in began]
    lab.open()
    lab.open_panel()
    content = lab.panel_state("no-kernel")
    lab.page.locator(".jp-Launcher").wait_for()  # views beside it are narrow, alone they have the whole width
    message = content.locator(".sgnb-Panel-message")
    for name, words in (
        ("none.sgnb", "This file is no recording of sgnb."),
        ("newer.sgnb", "This recording was written by sgnb 9.9.9 and cannot be read."),
    ):
        lab.page.evaluate("path => window.jupyterapp.commands.execute('sgnb:open-recording', {path})", name)
        message.filter(has_text=words).wait_for()
    lab.panel_state("no-kernel")

    content.get_by_role("button", name="Open recording…").click()
    dialog = lab.page.get_by_role("dialog")
    dialog.locator(".jp-DirListing-item", has_text="busy.sgnb").click()
    dialog.get_by_role("button", name="Select", exact=True).click()
    content = lab.panel_state("replay")
    text = content.inner_text()
    assert "Recording" in text and "no engine" in text
    assert f"{last - first:.1f} s, {len(steps)} steps" in text.replace(THIN, "")
    assert not content.get_by_role("button", name="Engines and actions").is_visible()

    content.get_by_role("button", name="Timeline").click()
    lab.page.locator('.sgnb-view-timeline[data-state="ok"]').wait_for()  # a view draws when it is seen
    content.get_by_role("button", name="KV map").click()
    kv = lab.page.locator(".sgnb-view-kv")
    kv.wait_for()
    lab.page.locator('.sgnb-view-kv[data-ready="1"]').wait_for()
    if kv.get_attribute("data-width") == "narrow":
        kv.get_by_role("button", name="Details").click()
    lab.page.locator('.sgnb-view-kv[data-state="ok"]').wait_for()

    # Any moment: panel and views say what the file says, read by other code.
    slider = content.get_by_label("Position")
    assert float(slider.get_attribute("max") or 0) == pytest.approx(last - first)
    for part in (0.4, 0.9, 0.15):
        place = round((last - first) * part, 2)
        while half_told(recording, first + place):  # of this the page shows no moment
            place = round(place + 0.01, 2)
        slider.evaluate(
            "(node, value) => { node.value = value; node.dispatchEvent(new Event('input')); }", str(place)
        )
        seconds = float(slider.input_value())
        assert seconds == place
        moment = recording.state_at(first + seconds)
        # The playhead is in a step from its beginning on, before it has changed anything.
        step = max(event.step for event in began if event.time <= first + seconds)
        assert step - moment.step in (0, 1)
        content.get_by_text(f"step {step}, ").wait_for()
        shown = float(content.locator(".sgnb-Panel-text", has_text="step ").inner_text().split()[-2])
        assert shown == pytest.approx(seconds, abs=0.06)
        lab.page.wait_for_function(
            "step => document.querySelector('.sgnb-view-kv').dataset.step === step", arg=str(step)
        )
        used = sum(run.count for run in moment.slots() if run.owner)
        kv.locator(".sgnb-kv-big", has_text=f" used, {used} of 100 slots").wait_for()
    lab.shot("panel-replay")

    content.get_by_label("Speed").select_option("0.1")
    content.get_by_role("button", name="Play").click()
    content.get_by_role("button", name="Pause").wait_for()
    content.get_by_role("button", name="Pause").click()
    content.get_by_label("Speed").select_option("10")
    content.get_by_role("button", name="Play").click()
    content.get_by_text(f"step {steps[-1]}, ").wait_for()
    content.get_by_role("button", name="Play").wait_for()

    with lab.page.expect_download() as download:
        content.get_by_role("button", name="Export Perfetto…").click()
    trace = json.loads(download.value.path().read_text())
    assert download.value.suggested_filename == "busy.json"
    own = recording.to_perfetto()
    assert isinstance(own, dict)
    for pid in (1, 2):
        assert lanes(trace, pid) == lanes(own, pid)

    content.get_by_role("button", name="Close recording").click()
    lab.panel_state("no-kernel")
    lab.check_clean()


def lanes(trace: dict[str, Any], pid: int) -> list[tuple[str, str]]:
    """Every bar of one process: the name of its lane and its own, in order of lane and time."""
    events = trace["traceEvents"]
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["ph"] == "M" and event["name"] == "thread_name"
    }
    bars = [event for event in events if event["ph"] == "X" and event["pid"] == pid]
    return sorted((names.get((pid, event["tid"]), ""), event["name"]) for event in bars)
