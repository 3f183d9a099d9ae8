"""A recording in the place of an engine: what the page is sent, what it folds it to, what it is answered."""

from __future__ import annotations

import base64
import itertools
import json
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from recording_rig import RecordedRig, busy
from scheduler_rig import BYTES

import sgnb
from sgnb.engine.scheduler.picture import PICTURE_VERBS
from sgnb.engine.scheduler.snapshot import take_snapshot
from sgnb.errors import RecordingError
from sgnb.messages import SchedulerControl, Snapshot
from sgnb.recording.file import FORMAT, MAGIC, Events, FrameReader, FrameWriter, Gap, RecordingHeader
from sgnb.widgets.engine_view import EngineView
from sgnb.widgets.replay import NodeTexts, RecordedEngine, messages_of, picture_of
from sgnb.widgets.telemetry import feed_of

PERFETTO = Path(__file__).parents[1] / "js" / "perfetto_dump.mjs"
DUMP = Path(__file__).parents[1] / "js" / "replay_dump.mjs"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> RecordedRig:
    return busy(tmp_path_factory.mktemp("replay") / "busy.sgnb")


@pytest.fixture(scope="module")
def recording(rig: RecordedRig) -> sgnb.Recording:
    return rig.save()


def folded(
    recording: sgnb.Recording, times: list[float], folder: Path, end: dict[str, Any] | None = None
) -> Any:
    """What the page's own code makes of the recording at these moments."""
    about = {"span": [0, 0], "file": "x.sgnb", "end": False}
    lines: list[Any] = [{"times": times}]
    for number, (kind, _, data) in enumerate(messages_of(recording), 1):
        content = {"k": kind, "n": number, **({"replay": about} if kind == "snapshot" else {})}
        lines.append({"content": content, "buffer": base64.b64encode(data).decode()})
    lines.append(
        {"content": {"k": "replay", "replay": {**about, "end": True, **(end or {})}}, "buffer": None}
    )
    path = folder / "messages"
    path.write_text("\n".join(map(json.dumps, lines)))
    done = subprocess.run(["node", str(DUMP), str(path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_snapshot_is_the_engines_own_picture(tmp_path: Path) -> None:
    rig = RecordedRig(chunked_prefill_size=8)
    rig.run(1, b"0123456789", max_new_tokens=2, ignore_eos=True)
    rig.decode(2, b"01234567 and more", max_new_tokens=20, ignore_eos=True)
    rig.decode(3, b"0123 other", max_new_tokens=20, ignore_eos=True)
    rig.step(6)
    ask = SchedulerControl(client=1, id=1, verb="picture", args={})
    expected = msgspec.msgpack.decode(msgspec.msgpack.encode(PICTURE_VERBS["picture"](rig.scheduler, ask)))
    found = picture_of(
        msgspec.msgpack.decode(msgspec.msgpack.encode(take_snapshot(rig.scheduler)), type=Snapshot)
    )
    for moving in ("seq", "time", "stats", "runs_left_out"):
        expected.pop(moving, None), found.pop(moving, None)
    found["nodes"] = [[*row[:8], *row[8:]] for row in found["nodes"]]
    assert msgspec.to_builtins(found) == msgspec.to_builtins(expected)
    assert any(row[4] > 0 for row in found["nodes"]) and len(found["requests"]) == 2


def test_the_page_shows_what_python_computes_at_any_moment(recording: sgnb.Recording, tmp_path: Path) -> None:
    # Between what happens to the tree and whose the slots are then the page shows no moment.
    events = [numbered.event for numbered in recording.events()]
    told = [
        event.time
        for event, after in itertools.pairwise(events)
        if type(event).__name__ == "KVDelta" and after.time > event.time
    ]
    times = [told[int(len(told) * part)] for part in (0.05, 0.9, 0.33, 0.34, 0.999, 0.6)]
    page = folded(recording, times, tmp_path)
    for time_, seen in zip(times, page["moments"], strict=True):
        moment = recording.state_at(time_)
        owners = [run.owner for run in moment.slots() for _ in range(run.count)]
        assert seen["owners"] == owners
        assert seen["nodes"] == [
            [number, node.parent, node.start, node.length, node.locks]
            for number, node in sorted(moment.nodes.items())
        ]
        assert seen["live"] == sorted(moment.requests)
    steps = [n.event.step for n in recording.events() if type(n.event).__name__ == "StepEvent"]
    assert page["steps"] == steps and page["isLive"] and not page["gap"]
    assert page["replaying"]["end"] and page["seq"] == max(n.seq for n in recording.events())


def same_pictures(recording: sgnb.Recording, found: list[dict[str, Any]]) -> None:
    """The panel reads the moments of a recording as the kernel does: nodes, slots, requests, settings, memory."""
    pictures = [picture_of(item) for item in recording.items() if isinstance(item, Snapshot)]
    for mine, own in zip(found, pictures, strict=True):
        own = json.loads(msgspec.json.encode(own))
        settings = mine.pop("settings")
        assert {name: settings[name] for name in own["settings"]} == own.pop("settings")
        assert {"runs_left_out": 0, **own} == mine


def same_export(recording: sgnb.Recording) -> list[dict[str, Any]]:
    """The trace events for Perfetto, after comparing the side panel's with Python's, to a hundredth of a microsecond."""
    done = subprocess.run(
        ["node", str(PERFETTO), str(recording.path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    same_pictures(recording, json.loads(done.stdout)["pictures"])
    closed, opened = json.loads(done.stdout)["held"]
    assert closed == 0 < opened, "another recording takes the place of the one before"
    found = json.loads(done.stdout)["traceEvents"]
    expected = recording.to_perfetto()
    assert isinstance(expected, dict)
    for mine, own in zip(found, expected["traceEvents"], strict=True):
        for moved in ("ts", "dur"):
            assert mine.pop(moved, 0) == pytest.approx(own.pop(moved, 0), abs=0.01)
        assert mine == own
    return list(expected["traceEvents"])


def test_the_panel_exports_what_python_exports(recording: sgnb.Recording) -> None:
    kinds = {event["name"].split()[0] for event in same_export(recording) if event["ph"] == "X"}
    assert {"waiting", "prefill", "score", "decode", "extend", "schedule", "forward"} <= kinds


def test_after_a_gap_it_goes_on_from_the_next_snapshot(tmp_path: Path) -> None:
    rig = busy(tmp_path / "whole.sgnb", seed=3)
    rig.save()
    late = RecordedRig(chunked_prefill_size=8)
    late.run(1, b"0123456789", max_new_tokens=2, ignore_eos=True)
    path = tmp_path / "gap.sgnb"
    late.record(tmp_path / "one.sgnb")
    first = late.snapshot
    early = late.telemetry.history(first.seq + 1)
    late.run(2, b"between the two", max_new_tokens=2, ignore_eos=True)
    second = take_snapshot(late.scheduler)
    late.run(3, b"after all of it", max_new_tokens=3, ignore_eos=True)
    header = FrameReader(tmp_path / "whole.sgnb").items().__next__()
    assert isinstance(header, RecordingHeader)
    writer = FrameWriter(path, "0.1.0")
    for item in (header, first):
        writer.append(item)
    if early:
        writer.append(Events(items=early))
    writer.append(Gap(from_seq=first.seq + 1, to_seq=second.seq, reason="lost"))
    writer.append(second)
    writer.append(Events(items=late.telemetry.history(second.seq + 1)))
    writer.close()
    recording = sgnb.open_recording(path)
    page = folded(recording, [first.time, recording.span()[1]], tmp_path)
    assert page["seq"] == late.telemetry.last_seq and not page["gap"]
    assert page["span"][0] == first.time
    moment = recording.state_at(float("inf"))
    assert [row[0] for row in page["moments"][1]["nodes"]] == sorted(moment.nodes)
    names = {event["name"] for event in same_export(recording)}
    assert f"events {first.seq + 1} to {second.seq} are missing" in names


def test_nodes_have_the_text_the_engine_would_give(rig: RecordedRig, recording: sgnb.Recording) -> None:
    texts = NodeTexts(recording)
    nodes = {node.id: node for node in rig.scheduler.cache.nodes()}
    (rid, ids), *_ = texts._ids.items()
    said = texts.spans([[rid, 2, 5], [rid[:-1] + "x", 0, 1]])
    assert said == {rid: texts._text(ids[8:28])} and said[rid]
    with pytest.raises(RecordingError):
        texts.spans([[rid, "x", 1]])
    found = texts.nodes(list(nodes), recording.span()[1])
    assert {int(number): about["tokens"] for number, about in found.items()} == {
        number: len(node.key) for number, node in nodes.items()
    }
    own = {int(number): about["text"] for number, about in found.items() if "text" in about}
    assert len(own) > 5
    for number, text in own.items():
        expected = b"".join(BYTES[token] for token in nodes[number].key.tolist())
        assert text == expected.decode("utf-8", "replace")


def test_a_node_that_was_split_later_has_its_whole_text_before(tmp_path: Path) -> None:
    rig = RecordedRig()
    rig.record(tmp_path / "split.sgnb")
    rig.run(1, b"abcdefgh one", max_new_tokens=2, ignore_eos=True)
    before = rig.scheduler.clock()
    (node,) = [node.id for node in rig.scheduler.cache.nodes()][:1]
    time.sleep(0.002)
    rig.run(2, b"abcd other", max_new_tokens=2, ignore_eos=True)
    texts = NodeTexts(rig.save())
    assert texts.nodes([node], before)[str(node)]["text"].startswith("abcdefgh one")
    assert texts.nodes([node], rig.scheduler.clock())[str(node)]["text"].startswith("efgh one")


class Page:
    """A page that takes messages, and acknowledges them when told."""

    def __init__(self, engine: RecordedEngine) -> None:
        self.feed = feed_of(engine)
        self.messages: list[tuple[dict[str, Any], list[bytes]]] = []
        self.news = threading.Condition()

    def send(self, content: dict[str, Any], buffers: list[bytes]) -> None:
        with self.news:
            self.messages.append((content, buffers))
            self.news.notify_all()

    def say(self, **content: Any) -> None:
        self.feed.take({"page": "p", **content}, self.send)

    def until(self, kind: str, *, ack: bool = True) -> dict[str, Any]:
        deadline = time.monotonic() + 30
        with self.news:
            while time.monotonic() < deadline:
                for content, _ in self.messages:
                    if content["k"] == kind:
                        return content
                if ack and self.messages:
                    self.say(k="ack", n=max(content.get("n", 0) for content, _ in self.messages))
                self.news.wait(0.05)
        raise AssertionError(f"no {kind}: {[content['k'] for content, _ in self.messages]}")

    def ask(self, verb: str, **args: Any) -> dict[str, Any]:
        self.messages.clear()
        self.say(k="ask", id="1", verb=verb, args=args)
        return self.until("answer", ack=False)


def test_a_subscriber_gets_the_whole_file_and_its_end(recording: sgnb.Recording) -> None:
    page = Page(RecordedEngine(recording))
    page.say(k="sub", **{"from": 0})
    end = page.until("replay")
    assert end["replay"]["end"] and end["replay"]["trouble"] == "" and end["replay"]["file"] == "busy.sgnb"
    kinds = [content["k"] for content, _ in page.messages]
    assert kinds[:2] == ["engine", "snapshot"] and page.messages[0][0]["state"] == "recording"
    numbers = [
        numbered["seq"]
        for content, buffers in page.messages
        if content["k"] == "frames"
        for numbered in msgspec.msgpack.decode(buffers[0])["events"]
    ]
    assert numbers == [numbered.seq for numbered in recording.events()]
    page.messages.clear()
    page.say(k="sub", **{"from": numbers[-1]})
    page.until("replay")
    assert [content["k"] for content, _ in page.messages] == ["engine", "replay"]
    page.say(k="unsub")


def test_a_page_is_answered_from_the_file(recording: sgnb.Recording, tmp_path: Path) -> None:
    page = Page(RecordedEngine(recording))
    engine = RecordedEngine(recording)
    assert engine.ask("holders") == {"sessions": []}
    assert "no engine runs" in page.ask("pause")["error"]
    assert "recording already" in page.ask("record", action="start", file=str(tmp_path / "x"))["error"]
    done = page.ask("perfetto", file=str(tmp_path / "out.json"))
    assert done["data"]["file"] == str(tmp_path / "out.json")
    trace = json.loads((tmp_path / "out.json").read_text())
    steps = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == 1 and e["tid"] == 1]
    names = [n.event for n in recording.events() if type(n.event).__name__ == "StepEvent"]
    assert sum(event["name"].split()[0] in ("extend", "decode", "mixed", "score") for event in steps) == len(
        names
    )
    assert "exists" in page.ask("perfetto", file=str(tmp_path / "out.json"))["error"]


def test_settings_are_compared_on_the_recording(recording: sgnb.Recording) -> None:
    page = Page(RecordedEngine(recording))
    job = page.ask("compare", policies=["lpm", "fcfs"], chunks=[])["data"]["job"]
    deadline = time.monotonic() + 100
    while (done := page.ask("compared", job=job)["data"])["state"] == "running":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert done["state"] == "done", done
    assert [one["setting"] for one in done["settings"]] == ["policy lpm", "policy fcfs"]
    assert all(one["requests"] > 0 for one in done["settings"])
    job = page.ask("compare", policies=["no-such"], chunks=[])["data"]["job"]
    while (done := page.ask("compared", job=job)["data"])["state"] == "running":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert done["state"] == "failed" and "no-such" in done["error"]
    assert "not known" in page.ask("compared", job="none")["error"]


def test_a_part_of_the_recording_is_compared(recording: sgnb.Recording) -> None:
    page = Page(RecordedEngine(recording))
    first, last = recording.span()

    def compared(start: float, end: float) -> dict[str, Any]:
        job = page.ask("compare", policies=["lpm"], chunks=[], **{"from": start, "to": end})["data"]["job"]
        while (done := page.ask("compared", job=job)["data"])["state"] == "running":
            time.sleep(0.05)
        assert done["state"] == "done", done
        return dict(done["settings"][0])

    # A request is in the part in which it was asked for; it is queued in the step after that.
    asked = sorted(
        e.event.time for e in recording.events() if getattr(e.event, "kind", "") in ("decode", "select")
    )
    before = max(range(1, len(asked)), key=lambda place: asked[place] - asked[place - 1])
    middle = (asked[before - 1] + asked[before]) / 2  # in the widest gap
    begun, rest = compared(first, middle), compared(middle, last + 1)
    assert begun["requests"] == before
    assert begun["requests"] + rest["requests"] == len(asked)
    answer = page.ask("compare", policies=["lpm"], chunks=[], **{"from": first - 20, "to": first - 10})
    assert "began after what is in view" in answer["error"]


def test_replay_gives_the_three_views_and_their_static_form(
    recording: sgnb.Recording, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SGNB_DISPLAY", "static")
    replay = sgnb.replay(recording.path)
    assert repr(replay) == "<sgnb recording busy.sgnb of engine main>"
    for view, title in (
        (replay.timeline(), "Batch timeline"),
        (replay.radix_tree(), "Radix tree"),
        (replay.kv_map(), "KV map"),
    ):
        assert isinstance(view, EngineView)
        bundle, metadata = view._repr_mimebundle_()
        assert metadata == {}  # no widget that could be lost
        assert bundle["text/plain"].startswith(f"{title}: ") and set(bundle) == {"text/plain", "text/html"}
    replay._ipython_display_()
    assert "Batch timeline: " in capsys.readouterr().out


def test_a_recording_of_another_version_is_told_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "old.sgnb"
    path.write_bytes(MAGIC + (FORMAT + 1).to_bytes(2, "little") + bytes([3]) + b"0.2")
    with pytest.raises(RecordingError) as caught:
        sgnb.replay(path)
    assert caught.value.message == "This recording was written by sgnb 0.2 and cannot be read."
