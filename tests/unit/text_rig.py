"""A TokenizerManager between a recording client and a scheduler that answers when told; short makers of ops."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from sgnb.engine.tokenizer.manager import TokenizerManager
from sgnb.engine.tokenizer.tokenizer import ModelTokenizer, stub_tokenizer
from sgnb.messages import (
    BatchOutput,
    Chunk,
    Chunks,
    Decode,
    ErrorInfo,
    Extend,
    Finish,
    Init,
    Label,
    Mark,
    Op,
    OpFailed,
    Part,
    ReqOutput,
    SessionDecode,
    SessionExtend,
    Text,
)
from sgnb.sampling_params import SamplingParams

START, END = 256, 257  # the stub's ChatML tokens


class Scripted:
    """A manager between a recording client and a scheduler that answers when told."""

    def __init__(self, tokenizer: ModelTokenizer | None = None, **limits: int) -> None:
        self.asked: list[Any] = []
        self.told: list[tuple[int, Any]] = []
        self.ask: Callable[[Any], None] = self.asked.append
        self.manager = TokenizerManager(
            tokenizer or stub_tokenizer(),
            lambda message: self.ask(message),
            lambda client, message: self.told.append((client, message)),
            incarnation="i1",
            **limits,
        )

    def send(self, *ops: Op, client: int = 1) -> None:
        self.manager.handle(client, ops)
        self.drain()

    def drain(self) -> None:
        """As the process's loop: a piece after the other, until nothing is under way."""
        end = time.monotonic() + 60
        while self.manager.encoding:
            if not self.manager.pump():
                time.sleep(0.001)
            assert time.monotonic() < end, "some text is never encoded"

    def answer(self, rid: str, text: str | bytes = "", *, finish: str = "stop", **more: Any) -> None:
        data = text if isinstance(text, bytes) else text.encode()
        done = Finish(type=finish, error=more.pop("error", None))  # type: ignore[arg-type]
        out = ReqOutput(rid=rid, ids=list(data), visible=len(data), finish=done, **more)
        self.manager.on_batch(BatchOutput(items=[out]))
        self.drain()

    def decodes(self) -> list[SessionDecode]:
        return [message for message in self.asked if isinstance(message, SessionDecode)]

    def ids(self) -> list[int]:
        """All prompt ids asked for so far, in order."""
        return [i for m in self.asked if isinstance(m, SessionDecode | SessionExtend) for i in m.ids]

    def chunks(self) -> list[Chunk]:
        return [chunk for _, message in self.told if isinstance(message, Chunks) for chunk in message.items]

    def ends(self) -> dict[str, str]:
        return {chunk.rid: chunk.finish.type for chunk in self.chunks() if chunk.finish}

    def failed(self) -> list[OpFailed]:
        return [message for _, message in self.told if isinstance(message, OpFailed)]

    def error(self, rid: str) -> ErrorInfo:
        (error,) = (c.finish.error for c in self.chunks() if c.rid == rid and c.finish)
        assert error is not None
        return error


def init(sid: str = "c1.s1") -> Init:
    return Init(sid=sid)


def add(*parts: str | Part, sid: str = "c1.s1") -> Extend:
    return Extend(sid=sid, parts=[Text(text=p, literal=False) if isinstance(p, str) else p for p in parts])


def gen(rid: str = "c1.r1", sid: str = "c1.s1", label: str = "x", **params: Any) -> Decode:
    return Decode(rid=rid, sid=sid, params=SamplingParams.make(params), label=Label(name=label))


def begin(role: str) -> Mark:
    return Mark(role=role, begin=True)


def end(role: str) -> Mark:
    return Mark(role=role, begin=False)


def turn(role: str, *parts: str | Part) -> list[Part]:
    return [
        begin(role),
        *(Text(text=p, literal=False) if isinstance(p, str) else p for p in parts),
        end(role),
    ]


def b(text: str) -> list[int]:
    return list(text.encode())
