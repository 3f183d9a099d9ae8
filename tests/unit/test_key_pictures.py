"""Whole pictures of earlier moments: when they are taken, which one leads to a moment, how many stay."""

from __future__ import annotations

import msgspec
import pytest
from scheduler_rig import BYTES, Rig

from sgnb.engine.scheduler.key_pictures import KEEP_SECONDS, MAX_BYTES, KeyPicture, KeyPictures
from sgnb.engine.scheduler.picture import key_picture, text_of
from sgnb.engine.scheduler.telemetry import RING_SECONDS, Telemetry
from sgnb.messages import Label, RequestEvent


class Taker:
    """An engine of which a picture is one number and as many bytes as one says."""

    def __init__(self, size: int = 100) -> None:
        self.now = 0.0
        self.seq = 0
        self.first = 1
        self.size = size
        self.pictures = KeyPictures(
            lambda: KeyPicture(self.seq, self.now, bytes(self.size)), lambda: self.first
        )

    def run(self, until: float, *, idle: bool = False) -> None:
        while self.now < until:
            self.pictures.attend(self.now, idle=idle)
            self.now += 1.0
            self.seq += 10


def test_the_first_is_taken_at_once_and_then_one_a_minute() -> None:
    taker = Taker()
    taker.run(601.0)
    assert [taker.pictures.before(time).time for time in (0.0, 59.0, 61.0, 500.0)] == [0.0, 0.0, 60.0, 480.0]


def test_an_idle_engine_takes_the_next_one_early() -> None:
    taker = Taker()
    taker.run(40.0, idle=True)
    assert taker.pictures.before(40.0).time == 30.0


def test_a_picture_whose_events_are_gone_is_no_longer_given() -> None:
    taker = Taker()
    taker.run(300.0)
    taker.first = 1301  # events of the first 130 s left the ring
    assert taker.pictures.before(10.0).time == 180.0, "the oldest from which the events lead on"
    taker.first = 10_000
    assert taker.pictures.before(10.0) is None


def test_large_pictures_come_less_often_and_keep_to_the_bytes() -> None:
    taker = Taker(size=4 << 20)
    taker.run(600.0)
    kept = [picture.time for picture in taker.pictures._kept]
    assert kept == [0.0, 150.0, 300.0, 450.0]
    taker.size = MAX_BYTES
    taker.run(602.0)
    assert [picture.time for picture in taker.pictures._kept] == [600.0]


def test_the_ring_reaches_back_to_a_picture_of_ten_minutes_ago() -> None:
    assert RING_SECONDS >= KEEP_SECONDS + 60.0
    telemetry = Telemetry(ring_seconds=10.0)
    assert telemetry.first_seq == 1
    for time in (0.0, 5.0, 12.0):
        telemetry.emit(RequestEvent(time=time, rid="c1.r1", client=1, label=Label(), state="queued"))
    assert telemetry.first_seq == 2


def test_a_schedulers_picture_holds_what_the_answer_to_picture_holds() -> None:
    rig = Rig()
    taken = key_picture(rig.scheduler)
    picture = msgspec.msgpack.decode(taken.data)
    assert (picture["seq"], picture["time"]) == (taken.seq, pytest.approx(taken.time))
    assert picture["slots"] == rig.scheduler.allocator.size and picture["nodes"] == []


def test_a_slot_says_which_token_it_holds_to_its_own_client_alone() -> None:
    rig = Rig()
    rid = rig.decode(1, b"hello", max_new_tokens=6, ignore_eos=True)
    rig.step(3)
    req = rig.scheduler.reqs[rid]
    position = len(req.prompt)
    held = int(req.kv.slots[position])
    said = rig.ask("slot", slot=held, owner=rid).data
    assert (said["position"], said["output"]) == (position, 1)
    assert said["text"] == bytes(req.output_ids[:1]).decode()
    assert rig.ask("slot", client=2, slot=held, owner=rid).data["text"] == ""
    assert rig.ask("slot", slot=held, owner="c1.r9").data == {}
    rig.drain()
    assert rig.ask("slot", slot=held, owner=rid).data == {}, "it is the tree's now, or free"
    leaf = next(node for node in rig.scheduler.cache.nodes() if held in node.value.tolist())
    said = rig.ask("slot", slot=held, owner=f"node:{leaf.id}").data
    assert (said["position"], said["text"]) == (position, bytes(req.output_ids[:1]).decode())
    assert rig.ask("slot", client=2, slot=held, owner=f"node:{leaf.id}").data["text"] == ""
    assert rig.ask("slot", slot="x", owner=rid).error is not None


def test_text_of_what_runs_and_is_not_in_the_tree_is_its_own_clients_alone() -> None:
    rig = Rig()
    rid = rig.decode(1, b"hello", max_new_tokens=6, ignore_eos=True)
    rig.step(4)
    req = rig.scheduler.reqs[rid]
    whole = [*req.prompt, *req.output_ids]
    assert len(req.output_ids) > 2
    spans = [[rid, 3, 4], ["c1.r9", 0, 4]]
    assert rig.ask("running", spans=spans).data == {"texts": {rid: text_of(BYTES, whole[3:7])}}
    beyond = rig.ask("running", spans=[[rid, len(req.prompt), 1000]]).data["texts"][rid]
    assert beyond and text_of(BYTES, list(req.output_ids)).startswith(beyond), "asking lets it go on"
    assert rig.ask("running", client=2, spans=spans).data == {"texts": {}}
    for bad in ("x", [[1]], [[rid, "x", 1]], [[rid, 0, 1]] * 65):
        assert rig.ask("running", spans=bad).error is not None
    rig.drain()
    assert rig.ask("running", spans=spans).data == {"texts": {}}, "it has ended: its text is the tree's"
