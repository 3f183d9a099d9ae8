"""The process driver: a runner in a process of its own, and the socket to it.

Role: starts ``python -m sgnb.engine --role runner``, sends it records and reads results. Scheduler process; used through
``drivers.Driver``. One stream socket made before the start and inherited: MessagePack frames behind their length, nothing
else, so there is no path to steal and no port. Its end is seen as the end of the stream, at once: EngineDied, never a hang.
The other side is ``runner_process``.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from sgnb.config import EngineArgs
from sgnb.engine.launch import describe_end
from sgnb.engine.model_executor.drivers import WAIT_SECONDS, Driver, OutOfMemory, Ran, StepSkipped
from sgnb.engine.model_executor.model_runner import Progress
from sgnb.engine.model_store import ModelPath
from sgnb.errors import EngineDied, EngineError, EngineStartError, ModelFileError
from sgnb.messages import (
    ErrorInfo,
    ModelWorkerBatch,
    RunnerFailed,
    RunnerMessage,
    RunnerReady,
    RunnerResult,
    RunnerStart,
    SchedulerProgress,
)

log = logging.getLogger("sgnb.engine")
HEADER = struct.Struct("<I")
_READ_BYTES = 1 << 18
_SEND_BYTES = 4 << 20
"""Asked of the kernel, which may give less: a record behind the one that is computed should fit."""
_END_SECONDS = 2.0
_HINT = "Start again: %sgl restart"


class FrameBuffer:
    """Bytes of a stream, cut into frames."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> None:
        """Append what was read."""
        self._bytes += data

    def take(self) -> bytes | None:
        """The next whole frame, or None."""
        if len(self._bytes) < HEADER.size:
            return None
        (size,) = HEADER.unpack_from(self._bytes)
        end = HEADER.size + size
        if len(self._bytes) < end:
            return None
        frame = bytes(self._bytes[HEADER.size : end])
        del self._bytes[:end]
        return frame


class ProcessDriver(Driver):
    """See the module. Made with the runner loaded; raises EngineStartError, ModelFileError or EngineDied."""

    name = "process"

    def __init__(
        self,
        args: EngineArgs,
        model: ModelPath,
        progress: Progress,
        *,
        folder: Path | None = None,
        alive: Callable[[], bool] = lambda: True,
    ) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[RunnerMessage] = msgspec.msgpack.Decoder(RunnerMessage)
        self._frames = FrameBuffer()
        self._out = bytearray()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
        self._socket.setblocking(False)
        command = [sys.executable, "-X", "faulthandler", "-m", "sgnb.engine", "--role", "runner"]
        command += ["--fd", str(theirs.fileno()), "--parent", str(os.getpid())]
        command += ["--folder", str(folder)] if folder is not None else []
        with theirs:
            self._child = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        self.runner_pid = self._child.pid
        try:
            start = RunnerStart(args=args, name=model.name, path=str(model.path), kind=model.kind)
            self._send(start)
            self._start(progress, alive)
        except BaseException:
            self.close()
            raise

    def _start(self, progress: Progress, alive: Callable[[], bool]) -> None:
        while True:
            message = self._wait(lambda: _check(alive))
            if isinstance(message, RunnerReady):
                for name in message.__struct_fields__:
                    setattr(self, name, getattr(message, name))
                return
            if isinstance(message, RunnerFailed):
                raise _to_error(message.error)
            if isinstance(message, SchedulerProgress):
                progress(message.step, message.done, message.total)

    def launch(self, batch: ModelWorkerBatch) -> None:
        """Send a record, as far as the socket takes it: a process that reads nothing (it computes, or is stopped) must not
        keep the scheduler from ``collect``, where it answers meanwhile and what is left is sent."""
        self._send(batch)

    def collect(self) -> Ran:
        """Wait for the oldest result."""
        message = self._wait(self._attend)
        self._flush()
        if isinstance(message, RunnerResult):
            return Ran(message.output, message.began, message.ended)
        if isinstance(message, RunnerFailed):
            raise _to_error(message.error)
        raise EngineError(f"the runner's process sent {type(message).__name__} where a result was due")

    def _send(self, record: RunnerStart | ModelWorkerBatch) -> None:
        frame = self._encoder.encode(record)
        self._out += HEADER.pack(len(frame)) + frame
        self._flush()

    def _flush(self) -> None:
        """Write what can be written now."""
        while self._out and self._pump(0.0):
            pass

    def _wait(self, meanwhile: Callable[[], None]) -> RunnerMessage:
        while (frame := self._frames.take()) is None:
            if not self._pump(WAIT_SECONDS):
                meanwhile()
        return self._decoder.decode(frame)

    def _pump(self, seconds: float) -> bool:
        """Read and write what can be now; False if there was nothing for so long. Reading while a write waits keeps the two
        from blocking each other."""
        poller = select.poll()
        poller.register(self._socket, select.POLLIN | (select.POLLOUT if self._out else 0))
        ready = dict(poller.poll(seconds * 1000)).get(self._socket.fileno(), 0)
        try:
            if ready & (select.POLLIN | select.POLLHUP | select.POLLERR):
                data = self._socket.recv(_READ_BYTES)
                if not data:
                    raise self._died()
                self._frames.feed(data)
            if ready & select.POLLOUT and self._out:
                del self._out[: self._socket.send(self._out)]
        except BlockingIOError:
            pass  # poll said otherwise; the next turn asks again
        except ConnectionError:
            raise self._died() from None
        return bool(ready)

    def _died(self) -> EngineDied:
        try:
            words = describe_end(self._child.wait(_END_SECONDS))
        except subprocess.TimeoutExpired:
            words = "closed its socket"
        return EngineDied(f"The engine's runner process {words}.", hint=_HINT)

    def close(self) -> None:
        """End of the stream ends the process; one that does not answer is killed."""
        self._socket.close()
        try:
            self._child.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


def _check(alive: Callable[[], bool]) -> None:
    if not alive():
        raise EngineDied("The engine's owner ended while the model was loading.", hint=_HINT)


def _to_error(error: ErrorInfo) -> Exception:
    kinds: dict[str, type[EngineError | EngineStartError | ModelFileError]] = {
        "OutOfMemory": OutOfMemory,
        "StepSkipped": StepSkipped,
        "EngineDied": EngineDied,
        "EngineStartError": EngineStartError,
        "ModelFileError": ModelFileError,
    }
    return kinds.get(error.kind, EngineError)(error.message, hint=error.hint)


def send_frame(stream: socket.socket, frame: bytes) -> None:
    """Write one frame to a blocking socket."""
    stream.sendall(HEADER.pack(len(frame)) + frame)
