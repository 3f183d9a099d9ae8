"""Leases and credit, with a clock that the test turns."""

from __future__ import annotations

import os

import msgspec
import pytest

from sgnb.config import LEASE_SECONDS, MAX_UNACKED_BYTES, MAX_UNACKED_SECONDS
from sgnb.engine.clients import ClientTable
from sgnb.liveness import process_start_time
from sgnb.memory_transport import MemoryRouter
from sgnb.messages import Chunk, Chunks, Dropped, Hello, Pong, Reply, ServerMessage


class Bench:
    """A table over a memory router with a clock of its own."""

    def __init__(self) -> None:
        self.now = 100.0
        self.gone: list[int] = []
        self.router = MemoryRouter()
        self.table = ClientTable(self.router, "inc", self.gone.append, lambda: self.now)

    def add(self):
        link = self.router.connect()
        link.send(b"x")
        peer, _ = self.router.recv()
        pid = os.getpid()
        hello = Hello(version=1, pid=pid, start_time=process_start_time(pid), client_name="t", owner=False)
        return link, self.table.add(peer, hello)

    def tick(self, seconds: float) -> None:
        """Time passes as it does for a loop that sweeps every second."""
        while seconds > 0:
            step = min(1.0, seconds)
            self.now += step
            seconds -= step
            self.table.sweep()


def last(link) -> object:
    found = None
    while (frame := link.recv()) is not None:
        found = msgspec.msgpack.decode(frame, type=ServerMessage)
    return found


@pytest.fixture
def bench():
    bench = Bench()
    yield bench
    for client in bench.table:
        bench.table.remove(client)


def test_lease_ends_a_silent_client_and_an_ack_renews_it(bench):
    link, client = bench.add()
    _other, kept = bench.add()
    bench.tick(LEASE_SECONDS - 1)
    kept.note_acked(0, bench.now)
    bench.tick(2)
    assert bench.gone == [client.number]
    assert isinstance(last(link), Dropped) and "silent" in bench.table._refused[client.peer][0]
    assert list(bench.table) == [kept]


def test_f16_after_a_suspension_there_is_one_grace_period(bench):
    _, client = bench.add()
    bench.now += 8 * 3600
    bench.table.sweep()
    assert not bench.gone
    bench.tick(LEASE_SECONDS + 1)
    assert bench.gone == [client.number]


def test_client_over_its_credit_is_dropped_and_the_others_are_served(bench):
    slow_link, slow = bench.add()
    link, healthy = bench.add()
    chunk = Chunks(incarnation="", items=[Chunk(rid="c1.r1", text="x" * 100_000)])
    sent = 0
    while bench.table.find(slow.peer):
        bench.table.send(slow.number, chunk)
        bench.table.send(healthy.number, chunk)
        healthy.note_acked(healthy.sent, bench.now)
        sent += 1
        assert sent < 100
    assert slow.sent - slow.acked <= MAX_UNACKED_BYTES + 110_000
    assert isinstance(last(slow_link), Dropped)
    assert bench.table.find(healthy.peer) is healthy
    assert isinstance(last(link), Chunks)


def test_one_answer_larger_than_the_credit_is_no_fault(bench):
    """A snapshot of a full cache, a picture or a prompt's log-probabilities: up to a whole frame."""
    link, client = bench.add()
    bench.table.send(client.number, Reply(incarnation="", id=1, data={"snapshot": b"x" * (15 << 20)}))
    bench.table.send(client.number, Chunks(incarnation="", items=[Chunk(rid="c1.r1", text="x" * 100_000)]))
    bench.tick(2)
    assert bench.table.find(client.peer) is client
    client.note_acked(client.sent, bench.now)
    assert client.unread == 0 and not client.large
    for number in (2, 3):  # but whoever asks and never reads is bounded as before
        bench.table.send(client.number, Reply(incarnation="", id=number, data={"x": b"x" * (5 << 20)}))
    assert bench.table.find(client.peer) is None
    assert isinstance(last(link), Dropped)


def test_an_answer_that_no_frame_holds_is_an_error_of_that_question(bench):
    link, client = bench.add()
    bench.table.send(client.number, Reply(incarnation="", id=7, data={"x": b"x" * (17 << 20)}))
    found = last(link)
    assert isinstance(found, Reply) and found.id == 7 and found.error is not None
    assert "limit" in found.error.message and bench.table.find(client.peer) is client


def test_client_that_reads_nothing_for_10_s_is_dropped_even_when_it_pings(bench):
    _link, client = bench.add()
    bench.table.send(client.number, Pong(incarnation="inc"))
    for _ in range(int(MAX_UNACKED_SECONDS) + 1):
        client.note_acked(0, bench.now)
        bench.tick(1)
    assert bench.gone == [client.number]


def test_old_bytes_do_not_count_once_they_were_read(bench):
    _, client = bench.add()
    for _ in range(60):
        bench.table.send(client.number, Pong(incarnation="inc"))
        client.note_acked(client.sent, bench.now)
        bench.tick(1)
    assert not bench.gone and not client.marks


def test_acks_cannot_be_forged_beyond_what_was_sent(bench):
    _, client = bench.add()
    client.note_acked(10**12, bench.now)
    assert client.acked == client.sent == 0


def test_strangers_are_answered_at_most_once_a_second(bench):
    link = bench.router.connect()
    link.send(b"x")
    peer, _ = bench.router.recv()
    for _ in range(1000):
        bench.table.refuse(peer)
    answers = 0
    while link.recv() is not None:
        answers += 1
    assert answers == 1
    bench.now += 1.1
    bench.table.refuse(peer)
    assert isinstance(last(link), Dropped)


def test_hello_of_a_dead_process_is_refused(bench):
    hello = Hello(version=1, pid=os.getpid(), start_time=1, client_name="t", owner=False)
    with pytest.raises(ProcessLookupError):
        bench.table.add(b"p", hello)
