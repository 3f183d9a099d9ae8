"""One DEALER to an engine, from its hello to its end: lease, credit, pidfds, telemetry.

Notebook process, on the I/O thread of ``backends.client``, which makes one Connection after another. Nothing of
requests here: messages go to the client, frames come from it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import zmq

from sgnb.errors import AuthFailed, EngineDied, EngineError
from sgnb.liveness import is_alive, open_pidfd, process_start_time
from sgnb.messages import PROTOCOL_VERSION, Bye, Hello, Ping, ServerMessage, TelemetryFrame, Welcome
from sgnb.transport import BadFrame, ZmqLink, encode, subscribe

if TYPE_CHECKING:
    from sgnb.backends.client import EngineClient

log = logging.getLogger("sgnb.client")
HELLO_SECONDS = 2.0
SILENT_SECONDS = 5.0
"""Without a frame for this long the engine counts as not answering."""
START_SECONDS = 60.0
"""From exec of the engine to its welcome; loading the model comes after that and has no limit."""
_PING_SECONDS = 0.9
_ACK_BYTES = 64 << 10
_SCHEDULER_END_SECONDS = 1.0
"""How long to wait for the engine's own words after its scheduler process ended."""
_FRAMES_A_TURN = 512


@dataclass(frozen=True, slots=True)
class Address:
    """Where an engine is, and as whom to go there. ``returncode`` asks for the end of a process of our own."""

    socket: str
    token: bytes
    pid: int
    start_time: int
    owner_pid: int
    owner_start_time: int
    owner: bool
    client_name: str
    returncode: Callable[[], int | None] | None = None


class Lost(Exception):
    """The connection is gone but the engine may live: hello again."""


class Connection:
    """One DEALER from hello to its end. Lives on the I/O thread; ``run`` returns when the client closes."""

    def __init__(
        self, client: EngineClient, context: zmq.Context[zmq.Socket[bytes]], address: Address, *, first: bool
    ) -> None:
        self._client = client
        self._context = context
        self._address = address
        self._deadline = START_SECONDS if first and address.owner else HELLO_SECONDS
        self._read = 0
        self._acked = 0
        self._pidfds: dict[str, int] = {}
        self._sub: zmq.Socket[bytes] | None = None
        self._scheduler_ended: float | None = None
        self._heard = time.monotonic()
        self._next_ping = 0.0
        self._decoder = msgspec.msgpack.Decoder(ServerMessage)
        self._telemetry_decoder = msgspec.msgpack.Decoder(TelemetryFrame)

    def run(self) -> None:
        """Raises SgnbError when the engine ended or refused, _Lost when only the connection did."""
        self._link = ZmqLink(self._context, self._address.socket, token=self._address.token, watch=True)
        try:
            self._watch("engine", self._address.pid, self._address.start_time)
            self._hello()
            while not self._client.closing:
                self._turn(self._wait_seconds())
            self._leave()
        finally:
            for fd in self._pidfds.values():
                os.close(fd)
            if self._sub is not None:
                self._sub.close(0)
            self._link.close(200)

    def _watch(self, which: str, pid: int, start_time: int) -> None:
        try:
            fd = open_pidfd(pid, start_time)
        except ProcessLookupError:
            raise self._death() from None
        if fd is not None:
            self._pidfds[which] = fd

    def _hello(self) -> None:
        pid = os.getpid()
        hello = Hello(
            version=PROTOCOL_VERSION,
            pid=pid,
            start_time=process_start_time(pid) or 0,
            client_name=self._address.client_name,
            owner=self._address.owner,
        )
        self._link.send(encode(hello))
        started = time.monotonic()
        while self._client.welcome is None:
            if self._client.closing:
                return
            if time.monotonic() - started > self._deadline:
                raise EngineError(
                    f"The engine's socket {self._address.socket} gave no answer to hello within "
                    f"{self._deadline:.0f} s.",
                    hint="Is it another program's? See %sgl engines and %sgl log.",
                )
            self._turn(0.2)

    def _leave(self) -> None:
        client = self._client
        if client.welcome is not None:
            self._send_all()
            self._send(encode(Bye(incarnation=client.incarnation)))

    def _wait_seconds(self) -> float:
        return max(0.0, min(_PING_SECONDS, self._next_ping - time.monotonic()))

    # ------------------------------------------------------------ one turn

    def _turn(self, seconds: float) -> None:
        client = self._client
        before = time.monotonic()
        ready = self._poll(seconds)
        client.wakeup.clear()
        now = time.monotonic()
        if now - before > seconds + 3.0:
            self._heard = now  # we stood still (suspended): silence says nothing
        self._receive()
        for event in self._link.events():
            if event == "refused":
                raise AuthFailed(
                    f"The engine's socket {self._address.socket} refused the token.",
                    hint="It belongs to another engine; launch a new one.",
                )
            if event == "disconnected" and client.welcome is not None:
                self._disconnected()
        if self._pidfds.get("engine") in ready:
            self._receive()
            raise self._death()
        self._look_at_scheduler(ready, now)
        if client.welcome is not None:
            self._send_all()
            self._ping(now)
            self._telemetry(ready)

    def _poll(self, seconds: float) -> set[Any]:
        poller = zmq.Poller()
        poller.register(self._link.pollable, zmq.POLLIN)
        poller.register(self._link.monitor, zmq.POLLIN)
        poller.register(self._client.wakeup.fileno(), zmq.POLLIN)
        if self._sub is not None:
            poller.register(self._sub, zmq.POLLIN)
        for which, fd in self._pidfds.items():
            if which == "engine" or self._scheduler_ended is None:
                poller.register(fd, zmq.POLLIN)
        return {item for item, _ in poller.poll(int(seconds * 1000) + 1)}

    def _receive(self) -> None:
        client = self._client
        for _ in range(_FRAMES_A_TURN):
            frame = self._link.recv()
            if frame is None:
                return
            self._read += len(frame)
            client.bytes_read += len(frame)
            self._heard = time.monotonic()
            try:
                message = self._decoder.decode(frame)
            except BadFrame as error:
                raise EngineError(f"The engine sent a frame that is not of the protocol: {error}") from None
            if isinstance(message, Welcome):
                self._welcome(message)
            elif getattr(message, "incarnation", client.incarnation) != client.incarnation:
                continue  # of an engine that ended; its frames were still on the way
            client.take(message)
            if self._read - self._acked >= _ACK_BYTES:
                self._next_ping = 0.0
                self._ping(self._heard)

    def _welcome(self, message: Welcome) -> None:
        client = self._client
        if message.version != PROTOCOL_VERSION:
            raise EngineError(
                f"The engine speaks protocol version {message.version}, this sgnb speaks {PROTOCOL_VERSION}.",
                hint="Restart the engine with this version: %sgl restart.",
            )
        if message.scheduler_pid:
            self._watch("scheduler", message.scheduler_pid, message.scheduler_start_time)
        client.welcomed(message)

    def _send_all(self) -> None:
        welcome = self._client.welcome
        while welcome is not None and (frame := self._client.next_frame(welcome.client)) is not None:
            self._send(frame)

    def _send(self, frame: bytes) -> None:
        self._client.bytes_sent += len(frame)
        self._link.send(frame)

    def _ping(self, now: float) -> None:
        if now >= self._next_ping:
            self._next_ping = now + _PING_SECONDS
            self._acked = self._read
            self._send(encode(Ping(incarnation=self._client.incarnation, acked=self._read)))
        answering = now - self._heard < SILENT_SECONDS
        if answering != self._client.answering:
            self._client.answering = answering
            self._client.notify()

    def _telemetry(self, ready: set[Any]) -> None:
        client = self._client
        listeners, frame_listeners = client.listeners, client.frame_listeners
        wanted = bool(listeners or frame_listeners)
        if wanted and self._sub is None and client.welcome is not None:
            self._sub = subscribe(self._context, client.welcome.telemetry, self._address.token)
        elif not wanted and self._sub is not None:
            self._sub.close(0)
            self._sub = None
        if self._sub is None or self._sub not in ready:
            return
        for _ in range(_FRAMES_A_TURN):
            try:
                raw = self._sub.recv(zmq.NOBLOCK)
                frame = self._telemetry_decoder.decode(raw)
            except zmq.Again:
                return
            except BadFrame:
                continue
            if frame.incarnation == client.incarnation:
                for take in frame_listeners:
                    guarded(take, frame, raw)
                for numbered in frame.events:
                    for listener in listeners:
                        guarded(listener, numbered.event)

    # ------------------------------------------------------------ ends

    def _disconnected(self) -> None:
        """The engine closed the connection, or it ended: its pidfd decides, shortly after."""
        deadline = time.monotonic() + 0.3
        while time.monotonic() < deadline:
            if self._pidfds.get("engine") in self._poll(0.05) or not is_alive(
                self._address.pid, self._address.start_time
            ):
                self._receive()
                raise self._death()
        self._receive()
        raise Lost("the connection was closed")

    def _look_at_scheduler(self, ready: set[Any], now: float) -> None:
        if self._scheduler_ended is None and self._pidfds.get("scheduler") in ready:
            self._scheduler_ended = now
        if self._scheduler_ended is not None and now - self._scheduler_ended > _SCHEDULER_END_SECONDS:
            raise EngineDied("The engine's scheduler process ended.", hint="Start again: %sgl restart")
        if self._scheduler_ended is not None:
            self._next_ping = min(self._next_ping, now + 0.1)

    def _death(self) -> EngineDied:
        address = self._address
        hint = "Start again: %sgl restart. Its last words: %sgl log"
        if not address.owner and not is_alive(address.owner_pid, address.owner_start_time):
            return EngineDied("owner ended", hint="Launch an engine of your own: %sgl launch")
        code = address.returncode() if address.returncode else None
        if code is None:
            return EngineDied("The engine ended.", hint=hint)
        if code < 0:
            memory = "; often this means that the machine ran out of memory" if code == -9 else ""
            return EngineDied(f"The engine was killed (signal {-code}){memory}.", hint=hint)
        return EngineDied(f"The engine ended with exit code {code}.", hint=hint)


def guarded(call: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Sinks and listeners promise not to raise; one that does must not end the others."""
    try:
        call(*args, **kwargs)
    except Exception:
        log.exception("a listener of the engine failed")
