"""Sockets: sizes, auth, dead peers, and that the in-memory pair behaves like them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from sgnb import transport
from sgnb.config import MAX_FRAME_BYTES
from sgnb.errors import LimitError
from sgnb.memory_transport import MemoryRouter, memory_pair
from sgnb.messages import Abort, Bye, Text
from sgnb.transport import (
    TELEMETRY_FRAMES,
    Publisher,
    Wakeup,
    Zap,
    ZmqLink,
    ZmqRouter,
    encode,
    subscribe,
)


@pytest.fixture
def context() -> Iterator[zmq.Context]:
    found = zmq.Context()
    yield found
    for socket in list(found._sockets):  # what a failed test left; the ZAP thread closes its own
        if socket.socket_type != zmq.REP:
            socket.close(0)
    found.term()


@pytest.fixture
def folder(tmp_path_factory) -> Path:
    path = Path("/tmp") / f"sgt-{os.getpid()}-{time.monotonic_ns() % 10**9}"
    path.mkdir(mode=0o700)
    yield path
    for file in path.iterdir():
        file.unlink()
    path.rmdir()


def until(poll: Callable[[], Any], seconds: float = 5.0) -> Any:
    deadline = time.monotonic() + seconds
    while (found := poll()) is None or found == []:
        assert time.monotonic() < deadline, "nothing came"
        time.sleep(0.005)
    return found


def test_sender_refuses_a_frame_over_the_limit():
    with pytest.raises(LimitError, match="over the limit"):
        encode(Text(text="x" * (MAX_FRAME_BYTES + 1), literal=False))


def test_lone_surrogate_is_an_error_of_ours():
    with pytest.raises(LimitError, match="surrogate"):
        encode(Text(text="a\ud800b", literal=False))


def test_router_and_link_exchange_frames(context, folder):
    Zap(context, b"secret")
    router = ZmqRouter(context, str(folder / "c"))
    link = ZmqLink(context, str(folder / "c"), token=b"secret", watch=True)
    link.send(b"hello")
    peer, frame = until(router.recv)
    assert frame == b"hello"
    assert router.send(peer, b"welcome")
    assert until(link.recv) == b"welcome"
    assert "connected" in until(link.events)
    link.close()
    deadline = time.monotonic() + 5
    while router.send(peer, b"x"):  # ROUTER_MANDATORY: a dead peer is known, not ignored
        assert time.monotonic() < deadline
        time.sleep(0.01)
    router.close()


@pytest.mark.parametrize("token", [b"wrong", b"secre", b"secret2"])
def test_wrong_token_is_seen_by_the_monitor(context, folder, token):
    Zap(context, b"secret")
    router = ZmqRouter(context, str(folder / "c"))
    link = ZmqLink(context, str(folder / "c"), token=token, watch=True)
    link.send(b"hello")
    assert "refused" in until(link.events)
    assert router.recv() is None
    link.close()
    router.close()


def test_without_zap_everything_is_refused(context, folder):
    router = ZmqRouter(context, str(folder / "c"))
    link = ZmqLink(context, str(folder / "c"), token=b"secret")
    link.send(b"hello")
    time.sleep(0.2)
    assert router.recv() is None
    link.close()
    router.close()


def test_oversize_frame_ends_only_its_connection(context, folder):
    Zap(context, b"secret")
    router = ZmqRouter(context, str(folder / "c"))
    good = ZmqLink(context, str(folder / "c"), token=b"secret")
    bad = ZmqLink(context, str(folder / "c"), token=b"secret", watch=True)
    good.send(b"1")
    assert until(router.recv)[1] == b"1"
    bad.send(b"x" * (MAX_FRAME_BYTES + 1))
    seen = []
    until(lambda: seen.extend(bad.events()) or "disconnected" in seen or None)
    good.send(b"2")
    assert until(router.recv)[1] == b"2"
    for link in (good, bad):
        link.close()
    router.close()


def test_multipart_is_not_ours(context, folder):
    Zap(context, b"secret")
    router = ZmqRouter(context, str(folder / "c"))
    link = ZmqLink(context, str(folder / "c"), token=b"secret")
    link.pollable.send_multipart([b"a", b"b"])
    link.send(b"c")
    assert until(router.recv)[1] == b"c"
    link.close()
    router.close()


def test_publisher_never_blocks_on_a_reader_that_sleeps(context, folder):
    Zap(context, b"secret")
    publisher = Publisher(context, str(folder / "t"))
    reader = subscribe(context, str(folder / "t"), b"secret")
    deadline = time.monotonic() + 5
    while not reader.poll(10):
        publisher.send(b"warm")
        assert time.monotonic() < deadline
    started = time.monotonic()
    for _ in range(20_000):
        publisher.send(b"x" * 1000)
    assert time.monotonic() - started < 5
    reader.close(0)
    publisher.close()


def test_R12_telemetry_for_a_reader_that_sleeps_is_bounded(context, folder):
    """Frames beyond the bound are lost, not kept: one closed laptop must not fill the engine's memory."""
    Zap(context, b"secret")
    publisher = Publisher(context, str(folder / "t"))
    reader = subscribe(context, str(folder / "t"), b"secret")
    deadline = time.monotonic() + 5
    while not reader.poll(10):
        publisher.send(b"warm")
        assert time.monotonic() < deadline
    for _ in range(8 * TELEMETRY_FRAMES):
        publisher.send(b"x" * 20_000)
    kept = 0
    while reader.poll(500):
        kept += len(reader.recv()) == 20_000
    assert 0 < kept <= 3 * TELEMETRY_FRAMES, kept
    reader.close(0)
    publisher.close()


def test_zap_compares_in_constant_time_and_logs_nothing(context, folder, monkeypatch, caplog):
    seen = []
    monkeypatch.setattr(transport.hmac, "compare_digest", lambda a, b: seen.append((a, b)) or a == b)
    caplog.set_level("DEBUG")
    Zap(context, b"secret")
    router = ZmqRouter(context, str(folder / "c"))
    link = ZmqLink(context, str(folder / "c"), token=b"secret")
    link.send(b"hello")
    until(router.recv)
    assert seen == [(b"secret", b"secret")]
    assert "secret" not in caplog.text
    link.close()
    router.close()


def test_memory_pair_and_router_act_like_sockets():
    left, right = memory_pair()
    left.send(b"1")
    assert (right.recv(), right.recv(), left.recv()) == (b"1", None, None)
    router = MemoryRouter()
    link = router.connect()
    link.send(b"hello")
    peer, frame = until(router.recv)
    assert frame == b"hello"
    assert router.send(peer, b"answer")
    assert link.recv() == b"answer"
    poller = zmq.Poller()
    poller.register(router.pollable, zmq.POLLIN)
    assert router.recv() is None
    assert not poller.poll(0)
    link.send(b"again")
    assert poller.poll(1000)
    link.close()
    assert not router.send(peer, b"late")
    for end in (left, right, router):
        end.close()


def test_wakeup_from_many_threads():
    wakeup = Wakeup()
    poller = zmq.Poller()
    poller.register(wakeup.fileno(), zmq.POLLIN)
    threads = [threading.Thread(target=lambda: [wakeup.set() for _ in range(10_000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert poller.poll(1000)
    wakeup.clear()
    assert not poller.poll(0)
    wakeup.close()
    wakeup.set()  # after close: nothing happens


def test_socket_path_is_counted_in_bytes(tmp_path):
    assert transport.fits_socket_path(Path("/tmp/é"), ("c",))
    assert not transport.fits_socket_path(Path("/tmp") / ("é" * 50), ("c",))


def test_records_without_content_are_small():
    assert len(encode(Bye(incarnation="0" * 16))) < 50
    assert len(encode(Abort(incarnation="0" * 16, rids=["c1.r1"]))) < 60


def test_f20_sockets_are_for_this_user_only(context, folder, monkeypatch):
    """The peer's uid is looked at: with another one expected, even the right token gets no handshake."""
    Zap(context, b"secret")
    uid = os.geteuid()
    monkeypatch.setattr("sgnb.transport.os.geteuid", lambda: uid + 1)
    router = ZmqRouter(context, str(folder / "c"))
    monkeypatch.undo()
    link = ZmqLink(context, str(folder / "c"), token=b"secret", watch=True)
    link.send(b"x")
    time.sleep(0.5)
    assert router.recv() is None
    assert "connected" not in link.events()
    link.close()
    router.close()
