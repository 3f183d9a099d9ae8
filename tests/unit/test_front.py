"""Who may say what when: the front desk over memory, with the real TokenizerManager and the stub's tokenizer."""

from __future__ import annotations

import os
import random

import msgspec
import pytest

from sgnb.config import EngineArgs
from sgnb.engine import front as front_module
from sgnb.engine.front import MAX_DETOKENIZED, Front
from sgnb.engine.tokenizer.manager import TokenizerManager
from sgnb.engine.tokenizer.tokenizer import stub_tokenizer
from sgnb.liveness import process_start_time
from sgnb.memory_transport import MemoryRouter
from sgnb.messages import (
    PROTOCOL_VERSION,
    Abort,
    Block,
    Bye,
    ClientGone,
    Control,
    Decode,
    Decodes,
    Dropped,
    EngineSpec,
    ErrorInfo,
    Extend,
    Hello,
    Init,
    One,
    Ping,
    Pong,
    Progress,
    Ready,
    Refused,
    Release,
    Reply,
    SchedulerControl,
    SchedulerReady,
    ServerMessage,
    SessionDecode,
    SessionOpen,
    Text,
    Welcome,
)
from sgnb.sampling_params import SamplingParams
from sgnb.transport import encode

INC = "f00d"


class Desk:
    """A Front whose clients are memory links; ``sent`` is what went to the scheduler."""

    def __init__(self) -> None:
        spec = EngineSpec(
            args=EngineArgs(runner="stub"),
            incarnation=INC,
            version="0",
            owner_pid=os.getpid(),
            owner_start_time=0,
            sockets={"client": "c", "telemetry": "t", "scheduler": "s"},
        )
        self.sent: list[object] = []
        self.router = MemoryRouter()
        self.front = Front(spec, self.router, self.sent.append)

    def open(self) -> None:
        ready = SchedulerReady(
            vocab_size=259,
            context_length=100,
            max_total_tokens=100,
            dtype="stub",
            device="cpu",
            attention_backend="stub",
        )
        manager = TokenizerManager(
            stub_tokenizer(), self.sent.append, self.front.clients.send, incarnation=INC
        )
        self.front.open(manager, manager.model_info(model="stub", path="", runner="stub", ready=ready))

    def pump(self) -> None:
        while (found := self.router.recv()) is not None:
            self.front.take_client_frame(*found)

    def say(self, link, *records) -> list[object]:
        for record in records:
            link.send(record if isinstance(record, bytes) else encode(record))
        self.pump()
        return heard(link)

    def hello(self, **changes):
        link = self.router.connect()
        values = {
            "version": PROTOCOL_VERSION,
            "pid": os.getpid(),
            "start_time": process_start_time(os.getpid()),
            "client_name": "test",
            "owner": False,
        }
        return link, self.say(link, Hello(**{**values, **changes}))


def heard(link) -> list[object]:
    out = []
    while (frame := link.recv()) is not None:
        out.append(msgspec.msgpack.decode(frame, type=ServerMessage))
    return out


def block(client: int, number: int = 1, **changes) -> Block:
    sid, rid = f"c{client}.s{number}", f"c{client}.r{number}"
    ops = [
        Init(sid=sid),
        Extend(sid=sid, parts=[Text(text="hi", literal=False)]),
        Decode(rid=rid, sid=sid, params=SamplingParams()),
    ]
    return Block(**{"incarnation": INC, "ops": ops, **changes})


@pytest.fixture
def desk():
    desk = Desk()
    yield desk
    for client in desk.front.clients:
        desk.front.clients.remove(client)


def test_welcome_while_starting_then_progress_then_ready_then_what_waited(desk):
    link, answers = desk.hello()
    assert isinstance(answers[0], Welcome) and answers[0].info is None and answers[0].client == 1
    desk.front.progress("weights", 1, 2)
    assert [type(a) for a in heard(link)] == [Progress]
    assert desk.say(link, block(1)) == [] and desk.sent == []
    desk.open()
    kinds = [type(answer) for answer in heard(link)]
    assert kinds == [Progress, Ready]
    assert [type(message) for message in desk.sent] == [SessionOpen, SessionDecode]


def test_later_clients_see_the_steps_so_far_and_the_model(desk):
    desk.front.progress("weights", 2, 2)
    desk.open()
    _, answers = desk.hello()
    assert answers[0].info.model == "stub" and answers[0].clients == 1
    assert [step.step for step in answers[0].progress] == ["weights", "ready"]


def test_wrong_version_is_refused_with_both_numbers(desk):
    _, answers = desk.hello(version=99)
    assert isinstance(answers[0], Dropped) and "99" in answers[0].reason and "restart" in answers[0].reason
    assert len(desk.front.clients) == 0


def test_nothing_works_before_hello(desk):
    link = desk.router.connect()
    answers = desk.say(link, block(1), Ping(incarnation=INC, acked=0))
    assert [type(answer) for answer in answers] == [Dropped]
    assert desk.sent == []


@pytest.mark.parametrize(
    "record",
    [
        block(2),
        Abort(incarnation=INC, rids=["c2.r1"]),
        Block(incarnation=INC, ops=[Release(sids=["c11.s1"])]),
        Block(incarnation=INC, ops=[Decode(rid="c9.r1", sid="c1.s1", params=SamplingParams())]),
        Block(
            incarnation=INC,
            ops=[Decodes(items=[One(rid="c1.r1", sid="c2.s1")], params=SamplingParams())],
        ),
        b"\xff garbage",
        Hello(version=PROTOCOL_VERSION, pid=os.getpid(), start_time=0, client_name="x", owner=False),
        Ping(incarnation="old", acked=0),
    ],
)
def test_fault_of_a_client_ends_that_client_only(desk, record):
    desk.open()
    link, _ = desk.hello()
    other, _ = desk.hello()
    answers = desk.say(link, record)
    assert isinstance(answers[-1], Dropped)
    assert ClientGone(client=1) in desk.sent
    assert [type(answer) for answer in desk.say(other, Ping(incarnation=INC, acked=0))] == [Pong]
    assert isinstance(desk.say(link, Ping(incarnation=INC, acked=0))[-1:] or [None], list)
    assert len(desk.front.clients) == 1


def test_bye_releases(desk):
    desk.open()
    link, _ = desk.hello()
    desk.say(link, block(1), Bye(incarnation=INC))
    assert desk.sent[-1] == ClientGone(client=1)


def test_controls(desk):
    desk.open()
    link, _ = desk.hello()

    def ask(verb: str, **args) -> Reply | None:
        answers = desk.say(link, Control(incarnation=INC, id=7, verb=verb, args=args))
        return answers[0] if answers else None

    assert ask("info").data["clients"] == ["test"]
    assert ask("tokenize", text="hi").data["ids"] == [104, 105]
    assert ask("tokenize", text=5).error.kind == "LimitError"
    assert ask("nonsense").error.code == "unknown_verb"
    assert ask("stats") is None and desk.sent[-1] == SchedulerControl(client=1, id=7, verb="stats")
    assert ask("shutdown").data == {"stopping": True} and desk.front.stopping


def test_control_before_the_model_is_ready_says_so(desk):
    link, _ = desk.hello()
    answer = desk.say(link, Control(incarnation=INC, id=1, verb="stats"))[0]
    assert answer.error.code == "starting"


def test_what_waited_for_the_model_is_forgotten_with_its_client(desk, monkeypatch):
    monkeypatch.setattr(front_module, "_MAX_KEPT_BYTES", 2000)
    for _ in range(20):  # clients that come, ask and go while the model loads
        link, (welcome,) = desk.hello()
        desk.say(link, block(welcome.client), Bye(incarnation=INC))
    link, (welcome,) = desk.hello()
    assert not [m for m in desk.say(link, block(welcome.client)) if isinstance(m, Dropped)]
    assert [
        m for m in desk.say(link, *[block(welcome.client, n) for n in range(2, 40)]) if isinstance(m, Dropped)
    ]


def test_a_fault_of_ours_ends_the_client_whose_message_met_it(desk, monkeypatch, caplog):
    desk.open()
    link, (welcome, *_) = desk.hello()
    other, _ = desk.hello()
    monkeypatch.setattr(desk.front._manager, "handle", lambda *_: 1 / 0)
    found = desk.say(link, block(welcome.client))
    assert isinstance(found[-1], Dropped) and "see its log" in found[-1].reason
    assert "ZeroDivisionError" in caplog.text
    (reply,) = desk.say(other, Control(incarnation=INC, id=6, verb="info"))
    assert reply.data["state"] == "ready"


def test_detokenize_is_bounded(desk):
    desk.open()
    link, _ = desk.hello()
    ids = [65] * (MAX_DETOKENIZED + 1)
    (reply,) = desk.say(link, Control(incarnation=INC, id=1, verb="detokenize", args={"ids": ids}))
    assert reply.error is not None and f"{MAX_DETOKENIZED:,}" in reply.error.message
    (reply,) = desk.say(link, Control(incarnation=INC, id=2, verb="detokenize", args={"ids": ids[:9]}))
    assert reply.data == {"text": "A" * 9, "count": 9}


def test_failure_is_told_to_all_and_to_whoever_still_comes(desk):
    link, _ = desk.hello(owner=True)
    desk.front.fail(ErrorInfo(kind="ModelFileError", message="truncated"))
    desk.front.fail(ErrorInfo(kind="EngineDied", message="second"))
    assert [answer.error.message for answer in heard(link)] == ["truncated"]
    assert desk.front.owner_told
    _, answers = desk.hello()
    assert [type(answer) for answer in answers] == [Welcome, Refused]


def test_f22_mutated_frames_end_nothing_but_their_client(desk):
    """Fuzz: 6,000 mutations of recorded frames; the desk never raises and a healthy client is served throughout."""
    desk.open()
    rng = random.Random(22)
    good, _ = desk.hello()
    seeds = [
        encode(block(1)),
        encode(Ping(incarnation=INC, acked=3)),
        encode(Abort(incarnation=INC, everything=True)),
        encode(Control(incarnation=INC, id=1, verb="stats", args={"a": [1, {"b": None}]})),
        encode(Bye(incarnation=INC)),
        b"\x91" * 5000,
        b"",
    ]
    link, _ = desk.hello()
    for turn in range(6_000):
        frame = bytearray(rng.choice(seeds))
        for _ in range(rng.randrange(4)):
            if frame:
                frame[rng.randrange(len(frame))] = rng.randrange(256)
        link.send(bytes(frame[: rng.randrange(len(frame) + 1)] if turn % 3 == 0 else frame))
        desk.pump()
        desk.front.stopping = ""
        desk.sent.clear()
        if any(isinstance(answer, Dropped) for answer in heard(link)) or len(desk.front.clients) < 2:
            link.close()
            link, _ = desk.hello()
        if turn % 1000 == 0:
            assert [type(answer) for answer in desk.say(good, Ping(incarnation=INC, acked=0))] == [Pong]


def test_a_long_prompt_does_not_hold_up_others(desk):
    desk.open()
    (one, _), (two, _) = desk.hello(), desk.hello()
    long = Extend(sid="c1.s1", parts=[Text(text="word " * 600_000, literal=False)])
    decode = Decode(rid="c1.r1", sid="c1.s1", params=SamplingParams())
    assert desk.say(one, Block(incarnation=INC, ops=[Init(sid="c1.s1"), long, decode])) == []
    for number in range(5):
        assert [type(answer) for answer in desk.say(two, Ping(incarnation=INC, acked=0))] == [Pong]
        desk.say(two, block(2, number))
        assert any(isinstance(m, SessionDecode) and m.rid == f"c2.r{number}" for m in desk.sent)
        assert desk.front.pump(), "the long one is not done yet"
    while desk.front.pump():
        pass
    assert desk.sent[-1].rid == "c1.r1"
    desk.front.close()
