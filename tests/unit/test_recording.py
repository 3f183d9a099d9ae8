"""Recordings: the file, what is read from it, and what must not be in it."""

from __future__ import annotations

import json
import struct
import zlib

import numpy as np
import pytest
from recording_rig import RecordedRig, busy
from scheduler_rig import BYTES

from sgnb import cli
from sgnb.errors import RecordingError
from sgnb.messages import InputEvent, KVDelta, OutputEvent, StepEvent
from sgnb.recording import open_recording, with_suffix
from sgnb.recording.file import FORMAT, MAGIC, FrameWriter, Gap


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    return busy(tmp_path_factory.mktemp("recording") / "busy.sgnb")


@pytest.fixture(scope="module")
def recording(rig):
    return rig.save()


def test_a_recording_has_every_event_in_order(rig, recording):
    numbers = [numbered.seq for numbered in recording.events()]
    assert numbers == list(range(rig.snapshot.seq + 1, rig.snapshot.seq + 1 + len(numbers)))
    assert recording.header.engine == "main" and recording.sgnb_version == "0.1.0"
    assert recording.gaps() == [] and recording.damage == ""
    first, last = recording.span()
    assert first < last


def test_the_last_moment_is_what_the_scheduler_knows(rig, recording):
    moment = recording.state_at(float("inf"))
    cache = rig.scheduler.cache
    assert {id: (node.parent, node.length) for id, node in moment.nodes.items()} == {
        node.id: (node.parent.id, len(node.key)) for node in cache.nodes()
    }
    owners = {slot: run.owner for run in moment.slots() for slot in range(run.start, run.start + run.count)}
    assert owners == dict.fromkeys(range(rig.args.max_total_tokens), "") | {
        slot: f"node:{node.id}" for node in cache.nodes() for slot in node.value.tolist()
    }
    assert not moment.requests and moment.complete
    assert json.dumps(moment.as_dict())


def test_any_moment_can_be_seen(tmp_path):
    rig = RecordedRig(chunked_prefill_size=8)
    warm = rig.run(1, b"0123456789", max_new_tokens=2, ignore_eos=True)
    assert warm.finish is not None
    running = rig.decode(2, b"01234567 and more", max_new_tokens=20, ignore_eos=True)
    rig.step(5)
    rig.record(tmp_path / "a.sgnb")
    begin = rig.scheduler.clock()
    rig.step(4)
    middle = rig.scheduler.clock()
    drawn = len(rig.scheduler.reqs[running].output_ids)
    rig.drain()
    recording = rig.save()
    at = recording.state_at(middle)
    assert at.requests[running].completion_tokens == drawn
    assert at.requests[running].state == "running"
    assert sum(run.count for run in at.slots() if run.owner == running) > 0
    assert recording.state_at(begin - 1e6).seq == rig.snapshot.seq, "before the beginning: the beginning"
    assert recording.state_at(begin).requests[running].completion_tokens < drawn
    assert not recording.state_at(float("inf")).requests


def test_it_has_the_text_of_its_makers_runs_only(rig, recording):
    texts = recording.texts()
    own = {rid for rid in rig.told if rid.startswith("c1.")}
    assert set(texts) == own
    compared = 0
    for rid in own:
        told = rig.told[rid]
        if told.prompt_ids:
            output = b"".join(BYTES[id] for id in told.ids).decode("utf-8", "replace")
            assert texts[rid] == (bytes(told.prompt_ids).decode(), output)
            compared += 1
    assert compared > 10


def test_live_telemetry_and_recordings_without_text_name_no_token(tmp_path):
    rig = RecordedRig()
    rig.record(tmp_path / "a.sgnb", text=False)
    secret = b"the quick brown fox"
    rig.run(1, secret, max_new_tokens=6, stop=["zebra"], logit_bias={"65": 3})
    rig.select(2, secret, [b"crimson", b"violet"])
    rig.drain()
    recording = rig.save()
    assert recording.texts() == {}
    raw = b"".join(
        zlib.decompress(frame) if deflated else frame for deflated, frame in stored(rig.path.read_bytes())
    )
    for word in (secret, b"crimson", b"zebra", struct.pack("<3i", *secret[:3])):
        assert word not in raw


def stored(data: bytes):
    at = len(MAGIC) + 3 + data[len(MAGIC) + 2]
    while at < len(data):
        length, _, deflated = struct.unpack_from("<IIB", data, at)
        yield deflated, data[at + 9 : at + 9 + length]
        at += 9 + length


def test_marks_are_equal_where_prefixes_are():
    marks = RecordedRig().scheduler.inputs.marks
    one, two = (
        marks.of(np.frombuffer(text, dtype=np.uint8).astype(np.int32)) for text in (b"abcdef", b"abcxef")
    )
    assert (one[:3] == two[:3]).all() and not (one[3:] == two[3:]).any()
    part, state = marks.go_on(0, np.uint64(0), np.array([97, 98], dtype=np.int32))
    rest, _ = marks.go_on(2, state, np.array([99, 100], dtype=np.int32))
    assert [*part, *rest] == one[:4].tolist()
    assert RecordedRig().scheduler.inputs.marks.of(np.array([97], dtype=np.int32))[0] != one[0], "salted"
    long = marks.of(np.arange(5000, dtype=np.int32) % 3)
    # Of 31 bits: two of 5,000 are equal by chance once in some 170 salts.
    assert len(set(long.tolist())) >= 4_990 and long.min() >= 0


def test_inputs_are_published_only_while_somebody_records(tmp_path):
    rig = RecordedRig()
    rig.run(1, b"a")
    assert not [e for e in rig.detail if isinstance(e, InputEvent | OutputEvent)]
    rig.record(tmp_path / "a.sgnb")
    rig.run(2, b"b")
    assert {e.kind for e in rig.detail if isinstance(e, InputEvent)} == {"open", "decode"}
    rig.ask("record_stop")
    before = len([e for e in rig.detail if isinstance(e, InputEvent | OutputEvent)])
    rig.run(3, b"c")
    rig.record(tmp_path / "b.sgnb", client=7)
    rig.gone(7)
    rig.run(4, b"d")
    after = [e for e in rig.detail if isinstance(e, InputEvent | OutputEvent)][before:]
    assert [e.kind for e in after if isinstance(e, InputEvent)] == ["gone"]


def test_hostile_ids_do_not_harm_the_recorder(tmp_path):
    rig = RecordedRig(context_length=64)
    rig.record(tmp_path / "a.sgnb")
    rig.decode(1, [1 << 62])
    rig.decode(2, [5] * 100_000)
    rig.step(2)
    assert {told.finish.type for told in rig.told.values()} == {"error"}
    assert [len(e.ids) for e in rig.detail if isinstance(e, InputEvent) and e.kind == "decode"] == [0, 0]


def test_token_ids_wait_in_bounded_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("sgnb.engine.scheduler.input_events._KEPT_BYTES", 200)
    rig = RecordedRig()
    rig.record(tmp_path / "a.sgnb")
    for n in range(10):
        rig.run(n, b"0123456789", max_new_tokens=4, ignore_eos=True)
    part = rig.scheduler.inputs.take(1)
    assert len(part.tokens) + part.lost == 10 and len(part.tokens) == 3
    assert rig.scheduler.inputs.take(2).tokens == []


# ---------------------------------------------------------------- the file


def test_a_file_cut_anywhere_is_read_up_to_its_last_whole_frame(recording, tmp_path):
    whole = recording.path.read_bytes()
    count = sum(1 for _ in recording.events())
    seen = set()
    for at in [*range(0, 200, 7), *range(200, len(whole), len(whole) // 60)]:
        cut = tmp_path / "cut.sgnb"
        cut.write_bytes(whole[:at])
        try:
            opened = open_recording(cut)
        except RecordingError as error:
            assert str(cut) in str(error)
            continue
        found = sum(1 for _ in opened.events())
        assert found <= count and opened.gaps()
        seen.add(found)
    assert len(seen) > 3


def test_another_version_is_refused_by_name(tmp_path):
    path = tmp_path / "new.sgnb"
    path.write_bytes(MAGIC + struct.pack("<HB", FORMAT + 1, 3) + b"0.2")
    with pytest.raises(RecordingError) as caught:
        open_recording(path)
    assert caught.value.message == "This recording was written by sgnb 0.2 and cannot be read."


@pytest.mark.parametrize(
    ("stored", "crc", "deflated", "says"),
    [
        (b"x", 0, 0, "checksum"),
        (b"x", None, 0, "not of the format"),
        (b"x", None, 1, "cannot be inflated"),
        (zlib.compress(b"whole")[:-2], None, 1, "is cut"),
        (zlib.compress(bytes(65 << 20)), None, 1, "inflates to more"),
        (b"\x91" * 3000, None, 0, "not of the format"),
    ],
)
def test_a_hostile_frame_is_an_error_with_its_place(tmp_path, recording, stored, crc, deflated, says):
    path = tmp_path / "bad.sgnb"
    crc = zlib.crc32(stored) if crc is None else crc
    good = recording.path.read_bytes()
    path.write_bytes(good + struct.pack("<IIB", len(stored), crc, deflated) + stored)
    with pytest.raises(RecordingError, match=says) as caught:
        open_recording(path).gaps()
    assert f"at byte {len(good):,}" in str(caught.value)


def test_a_giant_length_allocates_nothing(tmp_path, recording):
    path = tmp_path / "bad.sgnb"
    path.write_bytes(recording.path.read_bytes() + struct.pack("<IIB", 0xFFFFFFF0, 0, 0))
    with pytest.raises(RecordingError, match="claims"):
        open_recording(path).gaps()


def test_what_is_no_recording_is_refused_and_never_overwritten(tmp_path):
    path = tmp_path / "a.sgnb"
    with pytest.raises(RecordingError, match="cannot be read"):
        open_recording(path)
    path.write_text("my thesis")
    with pytest.raises(RecordingError, match="no recording"):
        open_recording(path)
    with pytest.raises(RecordingError, match="is no recording"):
        FrameWriter(path, "0.1.0")
    assert path.read_text() == "my thesis"
    fresh = FrameWriter(tmp_path / "b.sgnb", "0.1.0")
    fresh.append(Gap(from_seq=1, to_seq=2, reason="x"))
    fresh.close()
    with pytest.raises(RecordingError, match="no beginning"):
        open_recording(tmp_path / "b.sgnb")
    assert (tmp_path / "b.sgnb").stat().st_mode & 0o777 == 0o600


def test_the_name_of_a_recording_ends_in_sgnb(tmp_path):
    assert with_suffix(tmp_path / "run") == tmp_path / "run.sgnb"
    with pytest.raises(RecordingError, match=r"'\.json'"):
        with_suffix(tmp_path / "run.json")
    for wrong in ("", ".", "a\0b", None, 5):
        with pytest.raises(RecordingError, match="needs the name of a file"):
            with_suffix(wrong)


# ---------------------------------------------------------------- Perfetto


def test_the_trace_is_one_that_perfetto_reads(recording, tmp_path):
    path = recording.to_perfetto(tmp_path / "out.json")
    events = json.loads(path.read_text())["traceEvents"]
    body = [event for event in events if event["ph"] != "M"]
    assert [event["ts"] for event in body] == sorted(event["ts"] for event in body), "in order of time"
    assert all({"ph", "name", "pid", "tid"} <= set(event) for event in events)
    assert all(event["dur"] >= 0 for event in events if event["ph"] == "X")
    lanes: dict[tuple[int, int], list[float]] = {}
    for event in body:
        if event["ph"] != "X":
            continue
        ends = lanes.setdefault((event["pid"], event["tid"]), [])
        while ends and ends[-1] <= event["ts"] + 1e-3:
            ends.pop()
        end = event["ts"] + event["dur"]
        assert not ends or end <= ends[-1] + 2e-3, f"{event} is not inside the slice around it"
        ends.append(end)
    names = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert set(lanes) <= names, "every lane has a name"


def test_the_trace_tells_each_request_and_step(rig, recording):
    events = recording.to_perfetto()["traceEvents"]
    steps = [e for e in rig.detail if isinstance(e, StepEvent)]
    named = {e["args"]["name"]: e["tid"] for e in events if e["name"] == "thread_name" and e["pid"] == 2}
    assert len(named) == len({row.rid for step in steps for row in step.rows} | set(rig.told))
    assert sum(e["name"] == "forward" for e in events) == len(steps)
    drawn = sum(e["args"]["tokens"] for e in events if e["ph"] == "X" and e["name"] == "decode")
    assert drawn == sum(row.kind == "decode" for step in steps for row in step.rows)
    chunks = [e["name"] for e in events if e["ph"] == "X" and e["name"].startswith("prefill ")]
    assert sorted(chunks) == sorted(
        f"prefill {row.tokens}" for step in steps for row in step.rows if row.kind == "prefill"
    )
    assert any(e["name"] == "retracted: kv_full" for e in events)
    finished = [e for e in events if e["name"].startswith("finished: ")]
    assert len(finished) == len(named)
    for name in ("KV slots", "requests"):
        assert any(e["ph"] == "C" and e["name"] == name for e in events)
    assert [e for e in rig.detail if isinstance(e, KVDelta)]


def test_the_command_writes_it_and_says_what_is_missing(recording, tmp_path, capsys):
    out = tmp_path / "out.json"
    assert cli.main(["export", str(recording.path), str(out)]) == 0
    assert str(out) in capsys.readouterr().out and out.exists()
    cut = tmp_path / "cut.sgnb"
    cut.write_bytes(recording.path.read_bytes()[:-5])
    assert cli.main(["export", str(cut), str(out)]) == 0
    assert "stops inside a frame" in capsys.readouterr().out
    assert cli.main(["export", str(tmp_path / "none.sgnb"), str(out)]) == 1
    assert "cannot be read" in capsys.readouterr().err
    assert cli.main(["export", str(cut), str(tmp_path / "no folder" / "out.json")]) == 1
