from __future__ import annotations

import msgspec
import pytest

from sgnb.engine.scheduler.telemetry import Meter, Telemetry, steady_clock
from sgnb.messages import EncodedFrame, Label, RequestEvent, TelemetryFrame
from sgnb.transport import encode


def event(time: float, rid: str = "c1.r1") -> RequestEvent:
    return RequestEvent(time=time, rid=rid, client=1, label=Label(), state="queued")


def received(frame: EncodedFrame) -> TelemetryFrame:
    """As a kernel has it."""
    return msgspec.msgpack.decode(encode(frame), type=TelemetryFrame)


def test_events_are_numbered_without_holes_and_leave_once():
    telemetry = Telemetry()
    for n in range(3):
        telemetry.emit(event(n))
    assert telemetry.pending
    frame = received(telemetry.take_frame("inc", 5.0))
    assert [numbered.seq for numbered in frame.events] == [1, 2, 3]
    assert [numbered.event for numbered in frame.events] == [event(n) for n in range(3)]
    assert frame.last_seq == 3
    assert not telemetry.pending
    beat = received(telemetry.take_frame("inc", 5.25))
    assert (beat.events, beat.last_seq, beat.time) == ([], 3, 5.25), "a heartbeat carries the last number"


def test_a_frame_is_bounded_and_the_rest_is_pending(monkeypatch):
    monkeypatch.setattr("sgnb.engine.scheduler.telemetry.FRAME_BYTES", 200)
    telemetry = Telemetry()
    for n in range(9):
        telemetry.emit(event(n))
    telemetry.emit(event(9, "c1.r" + "1" * 300))
    seen = []
    while telemetry.pending:
        frame = received(telemetry.take_frame("inc", 1.0))
        assert frame.events and frame.last_seq == frame.events[-1].seq, "what is pending is not lost yet"
        seen += [numbered.seq for numbered in frame.events]
        assert len(encode(frame.events)) <= 210 or len(frame.events) == 1
    assert seen == list(range(1, 11)) and len(seen) == telemetry.last_seq


def test_ring_is_bounded_by_bytes_and_by_age():
    telemetry = Telemetry(ring_bytes=6000, ring_seconds=10.0)
    for _n in range(100):
        telemetry.emit(event(0.0))
    kept = telemetry.history(0)
    assert 10 < len(kept) < 100
    assert kept[-1].seq == 100
    assert telemetry.history(97, 2) == kept[-4:-2] and telemetry.history(1, 3) == kept[:3]
    telemetry.emit(event(11.0))
    assert [numbered.seq for numbered in telemetry.history(0)] == [101]
    assert telemetry.history(102) == []


def test_meter_rates_forget_the_past():
    now = [100.0]
    meter = Meter(lambda: now[0])
    meter.note_prompt(100, 25)
    meter.note_generated(10)
    now[0] += 1.0
    meter.note_generated(10)
    assert meter.rates() == (0.25, pytest.approx(20.0))
    now[0] += 30
    assert meter.rates() == (0.25, 0.0)
    now[0] += 60
    assert meter.rates() == (0.0, 0.0)
    assert meter.generated_total == 20


def test_meter_beats_every_heartbeat():
    now = [0.0]
    meter = Meter(lambda: now[0])
    assert meter.due()
    assert not meter.due()
    now[0] = 0.3
    assert meter.due()


def test_figures_of_an_idle_engine():
    stats = Meter(lambda: 1.0).stats(
        running=0,
        queued=0,
        sessions=2,
        free=60,
        cached=30,
        locked=10,
        total=100,
        new_token_ratio=0.7,
        evicted=5,
    )
    assert (stats.num_used_tokens, stats.token_usage, stats.evicted_tokens_total) == (10, 0.1, 5)
    assert stats.num_locked_tokens == 10


def test_clock_is_steady_and_near_the_wall():
    clock = steady_clock()
    first = clock()
    assert first <= clock()
    assert first > 1.6e9
