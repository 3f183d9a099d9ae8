"""Sockets over zmq + msgspec: how processes of sgnb talk. Their twins without a process are ``memory_transport``'s.

Imported by the notebook's I/O thread (``backends.client``) and by both engine processes. What is here: encoding with
the size check, ZAP, the three socket shapes and wake-up pipes. No protocol: who says what when is in
``backends.client`` and ``engine``. Never pickle, never TCP, never ``Context.instance()`` (the kernel's own).

Facts the code rests on (libzmq 4.3): ``bind`` steals a path in use, so a lock is taken first; a wrong token gives no
exception, only a monitor event, and that socket never reconnects; ``MAXMSGSIZE`` drops the whole connection, so the
sender checks; a ROUTER without ``ROUTER_MANDATORY`` loses frames to dead peers in silence.
"""

from __future__ import annotations

import hmac
import os
import secrets
import threading
from pathlib import Path
from typing import Any, Protocol

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from sgnb.config import MAX_FRAME_BYTES
from sgnb.errors import LimitError

MAX_PATH_BYTES = 100
"""Socket paths up to here are used as they are; the kernel's limit is 107."""
TELEMETRY_FRAMES = 1000
"""Frames of telemetry that wait for a reader at most, on either side; it loses those beyond and gets them as history."""
_USER = b"sgnb"
_DOMAIN = b"sgnb"
_encoder = msgspec.msgpack.Encoder()

BadFrame = (msgspec.MsgspecError, RecursionError)
"""What decoding a foreign frame may raise."""


def encode(record: Any) -> bytes:
    """One frame. Raises LimitError when it is over MAX_FRAME_BYTES or holds text that is not Unicode."""
    try:
        frame = _encoder.encode(record)
    except UnicodeEncodeError as error:
        raise LimitError(
            f"text holds a lone surrogate ({error.object[error.start]!r}) and cannot be encoded"
        ) from None
    except OverflowError as error:
        raise LimitError(f"a number is out of range: {error}") from None
    if len(frame) > MAX_FRAME_BYTES:
        raise LimitError(
            f"a message of {len(frame):,} bytes is over the limit of {MAX_FRAME_BYTES:,}",
            hint="Split the prompt over several appends.",
        )
    return frame


def new_token() -> bytes:
    """A fresh secret for one engine."""
    return secrets.token_hex(32).encode()


# ---------------------------------------------------------------- shapes


class Link(Protocol):
    """One peer at the other end. Used by one thread."""

    def send(self, frame: bytes) -> None:
        """Queue a frame; never blocks."""

    def recv(self) -> bytes | None:
        """The next frame, or None when there is none now."""

    @property
    def pollable(self) -> Any:
        """What a zmq.Poller takes to wait for frames."""

    def close(self, linger: int = 0) -> None:
        """End it; frames not sent yet get ``linger`` milliseconds."""


class Router(Protocol):
    """Many peers, each named by bytes the transport chose. Used by one thread."""

    def send(self, peer: bytes, frame: bytes) -> bool:
        """Queue a frame; False when that peer is gone. Never blocks."""

    def recv(self) -> tuple[bytes, bytes] | None:
        """The next (peer, frame), or None."""

    @property
    def pollable(self) -> Any:
        """What a zmq.Poller takes to wait for frames."""

    def close(self, linger: int = 0) -> None:
        """End it; frames not sent yet get ``linger`` milliseconds."""


def _prepare(socket: zmq.Socket[bytes], frames: int = 0) -> None:
    """Options that hold for connections made after it: ``frames`` that a peer may be behind (0: any number; who sends
    counts them itself)."""
    socket.linger = 0
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    socket.setsockopt(zmq.SNDHWM, frames)
    socket.setsockopt(zmq.RCVHWM, frames)


def _serve(socket: zmq.Socket[bytes], path: str, frames: int = 0) -> None:
    """Bind with PLAIN, for processes of this user only. The caller holds the run folder's lock: a file at ``path`` is a
    dead one's. The folder's mode keeps other users out; the uid filter holds where somebody opened the folder.
    ``frames`` as in ``_prepare``.
    """
    _prepare(socket, frames)
    try:
        socket.setsockopt(zmq.IPC_FILTER_UID, os.geteuid())
    except zmq.ZMQError:
        pass  # no peer credentials on this system
    socket.plain_server = True
    socket.zap_domain = _DOMAIN
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    socket.bind(f"ipc://{path}")


def _login(socket: zmq.Socket[bytes], token: bytes, frames: int = 0) -> None:
    _prepare(socket, frames)
    socket.plain_username = _USER
    socket.plain_password = token
    socket.setsockopt(zmq.RECONNECT_IVL, 20)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)


class Zap:
    """Answers libzmq's PLAIN questions of one Context. A blocked thread: costs nothing when idle, logs nothing."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], token: bytes) -> None:
        self._token = token
        self._socket = context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.bind("inproc://zeromq.zap.01")
        threading.Thread(target=self._run, name="sgnb-zap", daemon=True).start()

    def _run(self) -> None:
        try:
            while True:
                frames = self._socket.recv_multipart()
                version, request = [*frames, b"", b""][:2]
                good = (
                    len(frames) == 8
                    and frames[5] == b"PLAIN"
                    and frames[6] == _USER
                    and hmac.compare_digest(frames[7], self._token)
                )
                status = [b"200", b"OK", _USER] if good else [b"400", b"refused", b""]
                self._socket.send_multipart([version, request, *status, b""])
        except zmq.ZMQError:
            pass  # the Context is being terminated
        finally:
            self._socket.close(0)


class ZmqRouter:
    """The engine's side of all clients: a bound ROUTER."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], path: str) -> None:
        self._socket = context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        _serve(self._socket, path)

    def send(self, peer: bytes, frame: bytes) -> bool:
        """Queue a frame; False when that peer is gone."""
        try:
            self._socket.send_multipart([peer, frame], zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def recv(self) -> tuple[bytes, bytes] | None:
        """The next (peer, frame), or None. Messages of more than one frame are not ours and are dropped."""
        while True:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return None
            if len(frames) == 2:
                return frames[0], frames[1]

    @property
    def pollable(self) -> Any:
        """The socket."""
        return self._socket

    def close(self, linger: int = 0) -> None:
        """Close the socket; frames still queued get ``linger`` milliseconds (in ``Context.term``)."""
        self._socket.close(linger)


class ZmqLink:
    """A DEALER: a client's connection, or either end of the pair between the engine's processes.

    ``watch=True`` adds a monitor: poll ``monitor`` too and ask ``events()`` what happened to the connection.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        path: str,
        *,
        bind: bool = False,
        token: bytes = b"",
        watch: bool = False,
    ) -> None:
        self._socket = context.socket(zmq.DEALER)
        self.monitor: Any = None
        if bind:
            _serve(self._socket, path)
            return
        _login(self._socket, token)
        if watch:
            self.monitor = self._socket.get_monitor_socket(
                zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
            )
        self._socket.connect(f"ipc://{path}")

    def send(self, frame: bytes) -> None:
        """Queue a frame; never blocks."""
        try:
            self._socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            pass  # a refused or dead connection: its monitor and the peer's pidfd say so

    def recv(self) -> bytes | None:
        """The next frame, or None. Messages of more than one frame are not ours and are dropped."""
        while True:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return None
            if len(frames) == 1:
                return frames[0]

    @property
    def pollable(self) -> Any:
        """The socket."""
        return self._socket

    def events(self) -> list[str]:
        """What the monitor saw since the last call: ``connected``, ``refused`` (token), ``disconnected``."""
        seen = []
        names = {
            int(zmq.EVENT_HANDSHAKE_SUCCEEDED): "connected",
            int(zmq.EVENT_HANDSHAKE_FAILED_AUTH): "refused",
            int(zmq.EVENT_DISCONNECTED): "disconnected",
        }
        while self.monitor is not None:
            try:
                event = recv_monitor_message(self.monitor, zmq.NOBLOCK)
            except zmq.Again:
                break
            seen.append(names.get(int(event["event"]), "other"))
        return seen

    def close(self, linger: int = 0) -> None:
        """Close the socket and its monitor; frames still queued get ``linger`` milliseconds (in ``Context.term``)."""
        if self.monitor is not None:
            self._socket.disable_monitor()
            self.monitor.close(0)
            self.monitor = None
        self._socket.close(linger)


class Publisher:
    """A bound PUB for telemetry: never blocks, drops for readers that are behind (they see it by the numbers)."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], path: str) -> None:
        self._socket = context.socket(zmq.PUB)
        _serve(self._socket, path, TELEMETRY_FRAMES)

    def send(self, frame: bytes) -> None:
        """Give a frame to all subscribers there are."""
        self._socket.send(frame, zmq.NOBLOCK)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close(0)


def subscribe(context: zmq.Context[zmq.Socket[bytes]], path: str, token: bytes) -> zmq.Socket[bytes]:
    """A SUB that hears all of a Publisher."""
    socket = context.socket(zmq.SUB)
    _login(socket, token, TELEMETRY_FRAMES)
    socket.subscribe(b"")
    socket.connect(f"ipc://{path}")
    return socket


def fits_socket_path(folder: Path, names: tuple[str, ...]) -> bool:
    """True when every socket of ``folder`` fits the limit of a unix path, counted in bytes."""
    return max(len(os.fsencode(folder / name)) for name in names) <= MAX_PATH_BYTES


# ---------------------------------------------------------------- wake-up


class Wakeup:
    """A pipe in a poller: ``set`` may be called from any thread and from a finaliser (it takes no lock)."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def set(self) -> None:
        """Make the poller return."""
        try:
            os.write(self._write, b"x")
        except OSError:
            pass  # full: it will wake anyway; closed: nobody waits

    def clear(self) -> None:
        """Take back all sets."""
        try:
            while os.read(self._read, 4096):
                pass
        except OSError:
            pass  # empty

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._read

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close both ends; only when no other thread may ``set`` any more (descriptors are used again)."""
        read, write, self._read, self._write = self._read, self._write, -1, -1
        for fd in (read, write):
            if fd >= 0:
                os.close(fd)
