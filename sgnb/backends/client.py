"""One connection to an engine: the notebook's only thread that touches sockets.

Notebook process; owned by ``backends.engine.Engine``. Frames are encoded on the caller's thread and queued; the I/O
thread sends them, reads answers, hands them to the waiter of their request, keeps lease and credit, and watches the
pidfds of both engine processes: when one ends, every waiter fails at once. It never prints and never calls user code
other than sinks and listeners. No language, no run folders.

``post`` may be called from a finaliser: it appends to a deque and writes a byte to a pipe, and takes no lock.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Protocol

import zmq

import sgnb.errors
from sgnb.backends.connection import START_SECONDS, Address, Connection, Lost, guarded
from sgnb.errors import EngineError, RequestError, SgnbError
from sgnb.messages import (
    Chunk,
    Chunks,
    Control,
    Dropped,
    ErrorInfo,
    ModelInfo,
    OpFailed,
    Pong,
    Progress,
    Ready,
    Refused,
    Reply,
    ServerMessage,
    TelemetryEvent,
    TelemetryFrame,
    Welcome,
)
from sgnb.transport import Wakeup, encode

log = logging.getLogger("sgnb.client")
_RECONNECTS = 3
_RECONNECT_SECONDS = 30.0
"""More losses of the connection than _RECONNECTS in this time are the end."""


class Waiter(Protocol):
    """Takes what comes for a request or a session; called on the I/O thread, must return at once."""

    def take(self, chunks: list[Chunk]) -> None:
        """New output, in order, maybe of several requests."""

    def fail(self, error: SgnbError, *, rid: str = "", sid: str = "") -> None:
        """This request ended with an error, or this session is poisoned."""


class EngineClient:
    """Thread-safe. ``end`` is None while the connection works, then the error that everything fails with."""

    def __init__(self, address: Address, on_change: Callable[[], None]) -> None:
        self.welcome: Welcome | None = None
        self.info: ModelInfo | None = None
        self.progress: list[Progress] = []
        self.end: SgnbError | None = None
        self.ended_at = 0.0
        self.answering = True
        self.trouble = ""
        """While no step ends: since when, and who does not answer."""
        self.spare: int | None = None
        """What the engine's newest output says it can still hold, in KV slots."""
        self.bytes_sent = 0
        self.bytes_read = 0
        self._address = address
        self._on_change = on_change
        self.pid = os.getpid()
        self._outbox: deque[tuple[int, bytes]] = deque()
        """(client number it was made for, frame); 0: for whichever connection there is."""
        self._incarnation = ""
        self.wakeup = Wakeup()
        self._waiters: dict[str, Waiter] = {}
        self._sessions: dict[str, Waiter] = {}
        self._controls: dict[int, Future[dict[str, Any]]] = {}
        self._control_ids = itertools.count(1)
        self.listeners: tuple[Callable[[TelemetryEvent], None], ...] = ()
        self.frame_listeners: tuple[Callable[[TelemetryFrame, bytes], None], ...] = ()
        self._changed = threading.Condition()
        self.closing = False
        self._thread = threading.Thread(target=self._run, name="sgnb-io", daemon=True)

    def start(self) -> None:
        """Start the I/O thread. Separate, so that ``on_change`` finds its owner complete."""
        self._thread.start()

    # ------------------------------------------------------------ any thread

    @property
    def pending(self) -> int:
        """Requests that have not ended."""
        return len(self._waiters)

    def check_usable(self) -> None:
        """Raise the error that ended the connection, if it ended, or EngineError in a forked child."""
        if os.getpid() != self.pid:
            raise EngineError(
                f"This engine belongs to process {self.pid}; a forked child cannot use it.",
                hint="Use it in the parent, or start processes with the spawn method and launch or attach there.",
            )
        if self.end is not None:
            raise self.end

    def post(self, frame: bytes, number: int = 0) -> None:
        """Queue an encoded frame. Never blocks, takes no lock. It is dropped after the end, or when the connection was
        renewed since and this client has another ``number`` now: ids of the old one would be refused as forged.
        """
        if self.end is None and os.getpid() == self.pid:
            self._outbox.append((number, frame))
            self.wakeup.set()

    def submit(self, frame: bytes, rids: Iterable[str], sids: Iterable[str], waiter: Waiter) -> None:
        """Queue a block whose requests and sessions report to ``waiter``. Raises when the connection has ended."""
        self.check_usable()
        number = self.number()
        prefix = f"c{number}."
        rids, sids = list(rids), list(sids)
        for known in (*rids, *sids):
            if not known.startswith(prefix):
                raise RequestError(
                    "The session of this state ended when the connection to the engine was renewed.",
                    code="session_lost",
                    hint="Run its program again.",
                )
        for rid in rids:
            self._waiters[rid] = waiter
        for sid in sids:
            self._sessions[sid] = waiter
        self.post(frame, number)
        if self.end is not None:  # it ended meanwhile: either the I/O thread failed them, or we do
            left = [rid for rid in rids if self._waiters.pop(rid, None) is not None]
            if len(left) == len(rids):
                raise self.end
            for rid in left:
                waiter.fail(self.end, rid=rid)

    def forget(self, rids: Iterable[str] = (), sids: Iterable[str] = ()) -> None:
        """No more events of these requests and sessions (finaliser-safe)."""
        for rid in rids:
            self._waiters.pop(rid, None)
        for sid in sids:
            self._sessions.pop(sid, None)

    def number(self) -> int:
        """This client's number at the engine: its ids start with ``c<number>.``. Waits for the welcome; raises when
        none comes.
        """
        while True:
            welcome = self.welcome
            if welcome is not None:
                return welcome.client
            self.wait(lambda: self.welcome is not None, START_SECONDS)

    @property
    def incarnation(self) -> str:
        """Of the engine; empty before the first welcome."""
        return self._incarnation

    def wait(self, ready: Callable[[], bool], timeout: float | None) -> None:
        """Block until ``ready()``. Raises the error that ended the connection, or EngineError after ``timeout`` seconds."""
        if ready():
            return
        self.check_usable()
        with self._changed:
            done = self._changed.wait_for(lambda: ready() or self.end is not None, timeout)
        if not ready():
            if self.end is not None:
                raise self.end
            if not done:
                raise EngineError(
                    f"The engine was not ready after {timeout:g} s.", hint="See its log: %sgl log"
                )

    def control(self, verb: str, args: dict[str, Any] | None = None, timeout: float = 10.0) -> dict[str, Any]:
        """Ask the engine; its answer. Raises EngineError when none comes within ``timeout`` seconds."""
        self.check_usable()
        self.number()
        number = next(self._control_ids)
        future: Future[dict[str, Any]] = Future()
        self._controls[number] = future
        try:
            self.post(encode(Control(incarnation=self.incarnation, id=number, verb=verb, args=args or {})))
            self.check_usable()
            return future.result(timeout)
        except FutureTimeout:
            raise EngineError(
                f"The engine did not answer {verb!r} within {timeout:.0f} s.",
                hint="It may be stuck: %sgl log, %sgl restart.",
            ) from None
        finally:
            self._controls.pop(number, None)

    def listen(self, listener: Callable[[TelemetryEvent], None]) -> Callable[[], None]:
        """Call ``listener`` with telemetry events on the I/O thread; returns the function that ends it."""
        with self._changed:
            self.listeners = (*self.listeners, listener)
        self.wakeup.set()

        def stop() -> None:
            with self._changed:
                self.listeners = tuple(other for other in self.listeners if other is not listener)
            self.wakeup.set()

        return stop

    def listen_frames(self, listener: Callable[[TelemetryFrame, bytes], None]) -> Callable[[], None]:
        """Call ``listener`` with each telemetry frame, decoded and as it came, on the I/O thread; returns its end."""
        with self._changed:
            self.frame_listeners = (*self.frame_listeners, listener)
        self.wakeup.set()

        def stop() -> None:
            with self._changed:
                self.frame_listeners = tuple(other for other in self.frame_listeners if other is not listener)
            self.wakeup.set()

        return stop

    def close(self, error: SgnbError, timeout: float = 2.0) -> None:
        """Leave politely; whatever still waits fails with ``error``."""
        if os.getpid() != self.pid:
            return
        self._close_error = error
        self.closing = True
        self.wakeup.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    # ------------------------------------------------------------ the I/O thread

    def _run(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        error: SgnbError = EngineError("The connection to the engine ended.")
        losses: deque[float] = deque(maxlen=_RECONNECTS)
        try:
            while True:
                try:
                    Connection(self, context, self._address, first=not self._incarnation).run()
                    error = self._close_error
                    break
                except Lost as lost:
                    error = EngineError(
                        f"The engine dropped this client: {lost}.", hint="Run the cell again."
                    )
                    log.info("connection lost: %s", lost)
                    self.welcome = None
                    self._fail_all(error)
                    if len(losses) == _RECONNECTS and time.monotonic() - losses[0] < _RECONNECT_SECONDS:
                        break
                    losses.append(time.monotonic())
        except SgnbError as ended:
            error = ended
        except Exception as fault:
            log.exception("the I/O thread met a fault")
            error = EngineError(f"the connection to the engine failed: {type(fault).__name__}: {fault}")
        finally:
            self.ended_at = time.time()
            self.end = error
            self._fail_all(error)
            self.notify()
            context.term()

    _close_error: SgnbError = EngineError("The connection to the engine was closed.")

    def notify(self) -> None:
        """Something that others wait for, or show, changed."""
        with self._changed:
            self._changed.notify_all()
        try:
            self._on_change()
        except Exception:
            log.exception("a state listener failed")

    def _fail_all(self, error: SgnbError) -> None:
        while self._waiters:
            rid, waiter = self._waiters.popitem()
            guarded(waiter.fail, error, rid=rid)
        self._sessions.clear()
        for future in list(self._controls.values()):
            if not future.done():
                future.set_exception(error)

    def next_frame(self, number: int) -> bytes | None:
        """The next frame for the connection of client ``number``; those of an older one are dropped, their requests fail."""
        while self._outbox:
            made_for, frame = self._outbox.popleft()
            if made_for in (0, number):
                return frame
            error = RequestError("The connection to the engine was renewed.", code="session_lost")
            for rid in [rid for rid in list(self._waiters) if not rid.startswith(f"c{number}.")]:
                waiter = self._waiters.pop(rid, None)
                if waiter is not None:
                    guarded(waiter.fail, error, rid=rid)
        return None

    def welcomed(self, message: Welcome) -> None:
        """The engine knows this client now."""
        self.progress = list(message.progress)
        self.info = message.info
        self._incarnation = message.incarnation
        self.welcome = message
        self.notify()

    def take(self, message: ServerMessage) -> None:
        """One message of the engine. Raises what ends the connection."""
        match message:
            case Chunks():
                if message.spare >= 0:
                    self.spare = message.spare
                self._take_chunks(message.items)
            case OpFailed():
                waiter = self._sessions.get(message.sid)
                if waiter is not None:
                    guarded(waiter.fail, make_error(message.error), sid=message.sid)
            case Reply():
                future = self._controls.get(message.id)
                if future is not None and not future.done():
                    if message.error is not None:
                        future.set_exception(make_error(message.error))
                    else:
                        future.set_result(message.data)
            case Progress():
                self.progress = [*(p for p in self.progress if p.step != message.step), message]
                self.notify()
            case Ready():
                self.info = message.info
                self.notify()
            case Refused():
                raise make_error(message.error)
            case Dropped():
                if self.welcome is None:  # hello itself was refused: another try would be refused too
                    raise EngineError(f"The engine refused this client: {message.reason}.")
                raise Lost(message.reason)
            case Pong():
                if message.trouble != self.trouble:
                    self.trouble = message.trouble
                    self.notify()
            case Welcome():
                pass

    def _take_chunks(self, items: list[Chunk]) -> None:
        groups: dict[int, tuple[Waiter, list[Chunk]]] = {}
        for chunk in items:
            waiter = self._waiters.get(chunk.rid)
            if waiter is None:
                continue
            if chunk.finish is not None:
                del self._waiters[chunk.rid]
            groups.setdefault(id(waiter), (waiter, []))[1].append(chunk)
        for waiter, chunks in groups.values():
            guarded(waiter.take, chunks)
        if groups and not self._waiters:
            self.notify()


def make_error(info: ErrorInfo) -> SgnbError:
    """The exception that an ErrorInfo stands for."""
    kind = getattr(sgnb.errors, info.kind, None)
    if not (isinstance(kind, type) and issubclass(kind, SgnbError)):
        kind = EngineError
    if issubclass(kind, RequestError):
        return RequestError(info.message, code=info.code, hint=info.hint)
    return kind(info.message, hint=info.hint)
