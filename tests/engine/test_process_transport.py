"""The wire of a running engine: foreign sockets, bad frames, slow readers, what a chat costs. Stub runner."""

from __future__ import annotations

import dataclasses
import os
import random
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import psutil
import pytest
import zmq

from sgnb.backends.base import Done, Failed
from sgnb.backends.client import EngineClient
from sgnb.backends.engine import launch
from sgnb.config import MAX_FRAME_BYTES
from sgnb.errors import AuthFailed, EngineError, SgnbError
from sgnb.lang.instruction import Block, Decode, Extend, Init, TextPart
from sgnb.liveness import process_start_time
from sgnb.messages import (
    PROTOCOL_VERSION,
    Chunk,
    Chunks,
    Dropped,
    Hello,
    Ping,
    ServerMessage,
    Text,
    Welcome,
)
from sgnb.messages import Block as WireBlock
from sgnb.messages import Decode as WireDecode
from sgnb.messages import Extend as WireExtend
from sgnb.messages import Init as WireInit
from sgnb.sampling_params import SamplingParams
from sgnb.transport import Zap, ZmqLink, ZmqRouter, encode


@pytest.fixture(scope="module")
def engine():
    with launch(runner="stub", name="wire") as engine:
        yield engine


@pytest.fixture
def context():
    context = zmq.Context()
    yield context
    for socket in list(context._sockets):  # the ZAP thread closes its own
        if socket.socket_type != zmq.REP:
            socket.close(0)
    context.term()


@pytest.fixture
def raw_client(context, engine):
    """Makes Raw clients and closes them."""
    made: list[Raw] = []

    def make(**options) -> Raw:
        made.append(Raw(context, engine, **options))
        return made[-1]

    yield make
    for raw in made:
        raw.link.close()


class Raw:
    """A client made by hand: it does only what the test says."""

    def __init__(self, context, engine, token: bytes | None = None) -> None:
        address = engine.client._address
        self.link = ZmqLink(
            context, address.socket, token=address.token if token is None else token, watch=True
        )
        self.read = 0
        self.incarnation = ""
        self.number = 0

    def hello(self) -> None:
        pid = os.getpid()
        start = process_start_time(pid)
        self.link.send(
            encode(Hello(version=PROTOCOL_VERSION, pid=pid, start_time=start, client_name="raw", owner=False))
        )
        welcome = self.next(Welcome)
        self.incarnation, self.number = welcome.incarnation, welcome.client

    def next(self, kind: type | tuple[type, ...] = object, seconds: float = 10.0):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            frame = self.link.recv()
            if frame is None:
                time.sleep(0.005)
                continue
            self.read += len(frame)
            message = msgspec.msgpack.decode(frame, type=ServerMessage)
            if isinstance(message, kind):
                return message
        raise AssertionError(f"no {kind} came")

    def decode(self, text: str, tokens: int, number: int = 1) -> None:
        sid, rid = f"c{self.number}.s{number}", f"c{self.number}.r{number}"
        params = SamplingParams(max_new_tokens=tokens, ignore_eos=True)
        ops = [
            WireInit(sid=sid),
            WireExtend(sid=sid, parts=[Text(text=text, literal=False)]),
            WireDecode(rid=rid, sid=sid, params=params),
        ]
        self.link.send(encode(WireBlock(incarnation=self.incarnation, ops=ops)))


def works(engine) -> None:
    assert engine.generate("still there", sampling_params={"max_new_tokens": 2})["text"]


def test_f21_wrong_token_is_refused_and_a_flood_of_them_changes_nothing(engine, raw_client):
    for number in range(50):
        raw = raw_client(token=f"guess{number}".encode())
        deadline = time.monotonic() + 5
        while "refused" not in raw.link.events():
            assert time.monotonic() < deadline
            time.sleep(0.002)
        raw.link.close()
    works(engine)


def test_client_raises_auth_failed(engine):
    wrong = dataclasses.replace(engine.client._address, token=b"wrong", owner=False)
    client = EngineClient(wrong, lambda: None)
    client.start()
    with pytest.raises(AuthFailed, match="refused the token"):
        client.number()
    client.close(EngineError("test"))


@pytest.mark.parametrize("squatter", ["silent", "no-auth", "nothing"])
def test_f19_stolen_or_foreign_socket_is_noticed_within_2_s(engine, context, squatter):
    path = str(engine._folder / "foreign")
    held = []
    if squatter == "silent":
        Zap(context, engine.client._address.token)
        held.append(ZmqRouter(context, path))
    elif squatter == "no-auth":
        held.append(context.socket(zmq.ROUTER))
        held[0].bind(f"ipc://{path}")
    address = dataclasses.replace(engine.client._address, socket=path, owner=False)
    client = EngineClient(address, lambda: None)
    client.start()
    started = time.monotonic()
    with pytest.raises(EngineError, match="no answer to hello"):
        client.number()
    assert 1.5 < time.monotonic() - started < 4
    client.close(EngineError("test"))
    for socket in held:
        socket.close(0)


def test_f22_garbage_ends_only_its_client(engine, raw_client):
    rng = random.Random(1)
    pid = psutil.Process(engine.pid)
    memory = pid.memory_info().rss
    for _ in range(20):
        raw = raw_client()
        raw.hello()
        for _ in range(100):
            raw.link.send(rng.randbytes(rng.randrange(2000)))
        assert isinstance(raw.next(Dropped), Dropped)
        raw.link.close()
    works(engine)
    assert pid.memory_info().rss - memory < 30 << 20


def test_f22_oversize_frame_ends_only_its_client(engine, raw_client):
    raw = raw_client()
    raw.hello()
    raw.link.send(b"x" * (MAX_FRAME_BYTES + 1))
    deadline = time.monotonic() + 5
    seen: list[str] = []
    while "disconnected" not in seen:
        seen += raw.link.events()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    works(engine)


def test_ids_of_others_cannot_be_used(engine, raw_client):
    raw = raw_client()
    raw.hello()
    raw.number -= 1
    raw.decode("steal", 1)
    assert "not its own" in raw.next(Dropped).reason
    works(engine)


def test_slow_reader_is_dropped_while_a_healthy_one_streams(engine, raw_client):
    """F: 4 MB unread. The slow one pings, so that its lease holds, but acknowledges nothing and reads nothing."""
    slow = raw_client()
    slow.hello()
    for number in range(1, 40):
        slow.decode("x" * 100, 4000, number)
    stop = threading.Event()
    counts: list[int] = []

    def healthy() -> None:
        while not stop.is_set():
            done = engine.generate("y", sampling_params={"max_new_tokens": 50, "ignore_eos": True})
            counts.append(done["meta_info"]["completion_tokens"])

    thread = threading.Thread(target=healthy)
    thread.start()
    deadline = time.monotonic() + 30
    try:
        while len(engine.clients()) > 1:
            slow.link.send(encode(Ping(incarnation=slow.incarnation, acked=0)))
            assert time.monotonic() < deadline, "it was not dropped"
            time.sleep(0.2)
    finally:
        stop.set()
        thread.join(30)
    assert counts and all(count == 50 for count in counts)
    assert "read" in slow.next(Dropped, 20).reason
    until_idle(engine)


def until_idle(engine) -> None:
    deadline = time.monotonic() + 10
    while engine.stats()["num_running_reqs"] or engine.stats()["num_queue_reqs"]:
        assert time.monotonic() < deadline, engine.stats()
        time.sleep(0.05)


def test_client_that_ends_is_noticed_at_once_and_its_requests_are_aborted(engine):
    code = (
        "from sgnb.backends.engine import attach\nimport sys\n"
        "e = attach('wire'); e.wait_ready()\n"
        "import threading\n"
        "threading.Thread(target=lambda: e.generate('z', sampling_params={'max_new_tokens': 4000,"
        " 'ignore_eos': True}), daemon=True).start()\n"
        "import time; time.sleep(0.2); print('go', flush=True); time.sleep(60)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "go\n"
    assert len(engine.clients()) == 2
    child.kill()
    started = time.monotonic()
    while len(engine.clients()) > 1:
        assert time.monotonic() - started < 2
        time.sleep(0.01)
    until_idle(engine)
    child.wait()
    child.stdout.close()


def test_dropped_client_says_hello_again_and_old_sessions_say_so(engine):
    guest = EngineClient(dataclasses.replace(engine.client._address, owner=False), lambda: None)
    guest.start()
    number = guest.number()
    failed: list[SgnbError] = []

    class Waiter:
        def take(self, chunks: list[Chunk]) -> None: ...

        def fail(self, error: SgnbError, *, rid: str = "", sid: str = "") -> None:
            failed.append(error)

    frame = encode(WireBlock(incarnation=guest.incarnation, ops=[WireInit(sid=f"c{number}.s1")]))
    guest.submit(frame, [f"c{number}.r1"], [f"c{number}.s1"], Waiter())
    guest.post(b"\xff garbage")  # the engine drops us for it
    deadline = time.monotonic() + 5
    while guest.welcome is None or guest.welcome.client == number:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert len(failed) == 1 and "dropped" in str(failed[0])
    with pytest.raises(SgnbError, match="renewed"):
        guest.submit(frame, [f"c{number}.r2"], [], Waiter())
    assert guest.control("stats")
    guest.close(EngineError("test"))


def test_turn_20_of_a_chat_costs_what_turn_2_cost(engine):
    """The wire carries new text and session ids only."""
    sid = engine.new_sid()
    costs: list[int] = []
    for turn in range(1, 21):
        done = threading.Event()

        def sink(events, done=done) -> None:
            if any(isinstance(event, (Done, Failed)) for event in events):
                done.set()

        rid = engine.new_rid()
        say = Extend(sid, (TextPart(f"turn {turn:02d}: some words of the same length each time."),))
        gen = Decode(rid, sid, "answer", SamplingParams(max_new_tokens=5, ignore_eos=True))
        first = (Init(sid),) if turn == 1 else ()
        before = engine.client.bytes_sent
        engine.submit(Block("run", (*first, say, gen)), sink)
        assert done.wait(10)
        time.sleep(0.02)
        costs.append(engine.client.bytes_sent - before)
    engine.release([sid])
    assert min(costs[1:4]) < 400
    assert min(costs[17:20]) <= min(costs[1:4]) + 64, costs


def test_f25_few_descriptors(engine):
    """With hardly any descriptors left a new client is refused with words, or served; the engine lives."""
    limits = resource.prlimit(engine.pid, resource.RLIMIT_NOFILE)
    used = len(list(Path(f"/proc/{engine.pid}/fd").iterdir()))
    resource.prlimit(engine.pid, resource.RLIMIT_NOFILE, (used + 1, limits[1]))
    code = "from sgnb.backends.engine import attach\ne = attach('wire'); print(e.state)"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False
        )
        assert "no answer to hello" in done.stderr or "idle" in done.stdout, done
    finally:
        resource.prlimit(engine.pid, resource.RLIMIT_NOFILE, limits)
    works(engine)


def test_chunks_of_a_step_share_a_frame(engine, raw_client):
    raw = raw_client()
    raw.hello()
    for number in range(1, 9):
        raw.decode("go", 20, number)
    frames = finished = 0
    while finished < 8:
        message = raw.next(Chunks)
        frames += 1
        finished += sum(chunk.finish is not None for chunk in message.items)
    assert frames < 8 * 20
