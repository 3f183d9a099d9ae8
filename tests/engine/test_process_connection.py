"""F23: an engine behind a connection that is cut, delayed and split. Stub runner, a proxy socket in between."""

from __future__ import annotations

import dataclasses
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from process_rig import until, until_idle, works
from socket_proxy import Proxy

from sgnb.backends.base import Delta, Done, Failed
from sgnb.backends.engine import launch
from sgnb.backends.handle import Engine
from sgnb.errors import EngineError, SgnbError
from sgnb.lang.instruction import Block, Decode, Extend, Init, TextPart
from sgnb.sampling_params import SamplingParams

PROMPT = "tell me a story"
TOKENS = 150


@pytest.fixture(scope="module")
def wire_engine() -> Iterator[Engine]:
    with launch(runner="stub", name="wire") as engine:
        yield engine


@pytest.fixture
def through(wire_engine, tmp_path) -> Iterator[Callable[..., tuple[Engine, Proxy]]]:
    """Attach to the engine through a proxy."""
    made: list[tuple[Engine, Proxy]] = []

    def make(**how: Any) -> tuple[Engine, Proxy]:
        address = wire_engine.client._address
        proxy = Proxy(wire_engine._folder / f"p{len(made)}", address.socket, **how)
        guest = Engine(
            args=None,
            address=dataclasses.replace(address, socket=proxy.path, owner=False, returncode=None),
            folder=wire_engine._folder,
            name="wire",
            model="stub",
            process=None,
            forget=lambda _: None,
        )
        made.append((guest, proxy))
        return guest, proxy

    yield make
    for guest, proxy in made:
        guest.shutdown()
        proxy.close()
        os.unlink(proxy.path)


@dataclasses.dataclass
class Outcome:
    """What a reader of one generation saw."""

    pieces: list[str] = dataclasses.field(default_factory=list)
    end: Done | SgnbError | None = None
    ended: threading.Event = dataclasses.field(default_factory=threading.Event)

    def take(self, events: Any) -> None:
        for event in events:
            assert self.end is None, f"{event} after the end"
            if isinstance(event, Delta):
                self.pieces.append(event.text)
            elif isinstance(event, Done | Failed):
                self.end = event.error if isinstance(event, Failed) else event
                self.ended.set()

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def tell(engine: Engine) -> Outcome:
    """One greedy generation, its pieces as they come; an Outcome that has ended."""
    out = Outcome()
    try:
        sid, rid = engine.new_sid(), engine.new_rid()
        params = SamplingParams(max_new_tokens=TOKENS, temperature=0.0, ignore_eos=True)
        ops = (Init(sid), Extend(sid, (TextPart(PROMPT),)), Decode(rid, sid, "x", params))
        engine.submit(Block("run", ops), out.take)
    except SgnbError as error:
        out.end = error
        out.ended.set()
    assert out.ended.wait(30), "it hangs"
    return out


@pytest.mark.parametrize("how", [{"piece": 1}, {"piece": 3, "delay": 0.01}, {"delay": 0.1}])
def test_f23_delayed_and_split_bytes_lose_and_double_nothing(wire_engine, through, how):
    expected = tell(wire_engine)
    assert isinstance(expected.end, Done) and len(expected.text) > 50
    guest, _ = through(**how)
    guest.wait_ready(20)
    for _ in range(2):
        got = tell(guest)
        assert isinstance(got.end, Done), got.end
        assert got.text == expected.text
    until_idle(wire_engine)


def cut_rounds(rounds: int, seed: int, wire_engine: Engine, through: Callable[..., Any]) -> None:
    """Cut one way at a random byte, anywhere from the handshake to the last piece."""
    expected = tell(wire_engine).text
    guest, proxy = through()
    guest.wait_ready(20)
    assert tell(guest).text == expected
    total = list(proxy.passed)
    dice = random.Random(seed)
    ends = {Done: 0, "failed": 0}
    for number in range(rounds):
        way = dice.randrange(2)
        at = dice.randrange(1, total[way])
        guest, proxy = through(cuts=((at, None) if way == 0 else (None, at),))
        began = time.monotonic()
        out = tell(guest)
        where = f"round {number}: way {way} cut at byte {at} of {total[way]}: {out.end}"
        assert time.monotonic() - began < 20, where
        if isinstance(out.end, Done):
            assert out.text == expected, where
            ends[Done] += 1
        else:
            assert isinstance(out.end, EngineError) and expected.startswith(out.text), where
            ends["failed"] += 1
        if guest.client.end is None:  # it said hello again, or the cut was before its hello
            assert tell(guest).text == expected, where
        else:
            assert isinstance(guest.client.end, SgnbError) and guest.client.end.hint, where
    assert ends["failed"], ends
    until_idle(wire_engine)
    works(wire_engine)


def test_f23_a_cut_connection_fails_cleanly_or_loses_nothing(wire_engine, through):
    cut_rounds(8, 1, wire_engine, through)


@pytest.mark.soak
def test_f23_a_cut_connection_fails_cleanly_or_loses_nothing_200(wire_engine, through):
    cut_rounds(200, 2, wire_engine, through)


def test_f23_a_connection_that_is_cut_again_and_again_ends_with_words(wire_engine, through):
    guest, proxy = through(cuts=((None, None), *((None, 600),) * 20))
    guest.wait_ready(20)
    for end in list(proxy._open):
        end.shutdown(socket.SHUT_RDWR)
    until(lambda: guest.client.end is not None, 30)
    assert guest.state == "died" and guest.error is not None and guest.error.hint
    with pytest.raises(SgnbError):
        guest.generate("x")
    works(wire_engine)
