"""The runner process: one runner behind one socket, for the ``process`` driver.

Role: loads the model it is told, then computes record after record until the stream ends. A process of its own, started by
``process_driver`` through ``__main__``; it dies with its parent and has no clients, no tree and no queue. A step that
fails is answered with its error; nothing may end the process but the end of the stream.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec

from sgnb.engine.launch import set_up_process, throttled, to_info
from sgnb.engine.model_executor.drivers import ForwardSide, OutOfMemory, StepSkipped
from sgnb.engine.model_executor.model_runner import create_runner
from sgnb.engine.model_executor.process_driver import FrameBuffer, send_frame
from sgnb.engine.model_store import ModelPath
from sgnb.engine.stacks import arm
from sgnb.messages import (
    ModelWorkerBatch,
    RunnerFailed,
    RunnerMessage,
    RunnerReady,
    RunnerResult,
    RunnerStart,
)

log = logging.getLogger("sgnb.engine")
_READ_BYTES = 1 << 18


def run(fd: int, folder: Path | None) -> int:
    """The process: returns its exit code. ``fd``: the inherited socket; ``folder``: the engine's run folder, if any."""
    set_up_process()
    if folder is not None:
        arm(folder, "runner")
    stream = socket.socket(fileno=fd)
    encoder = msgspec.msgpack.Encoder()

    def send(message: RunnerMessage) -> None:
        send_frame(stream, encoder.encode(message))

    frames = _frames(stream)
    first = next(frames, None)
    if first is None:
        return 1
    start = msgspec.msgpack.decode(first, type=RunnerStart)
    model = ModelPath(name=start.name, path=Path(start.path), kind=start.kind)
    try:
        runner = create_runner(start.args, model, throttled(send))
    except Exception as error:
        log.exception("the runner process cannot start")
        send(RunnerFailed(error=to_info(error)))
        return 1
    send(
        RunnerReady(
            vocab_size=runner.vocab_size,
            context_length=runner.context_length,
            max_total_tokens=runner.max_total_tokens,
            max_running=runner.max_running,
            dtype=runner.dtype,
            device=runner.device,
            attention_backend=runner.attention_backend,
            notice=runner.notice,
            slot_bytes=runner.slot_bytes,
            rotates=runner.rotates,
        )
    )
    side, decoder = ForwardSide(runner), msgspec.msgpack.Decoder(ModelWorkerBatch)
    for frame in frames:
        try:
            ran = side.run(decoder.decode(frame))
        except (OutOfMemory, StepSkipped) as error:  # the scheduler knows what to do, and says so
            send(RunnerFailed(error=to_info(error)))
        except Exception as error:
            log.exception("a step failed")
            send(RunnerFailed(error=to_info(error)))
        else:
            send(RunnerResult(output=ran.output, began=ran.began, ended=ran.ended))
    runner.close()
    return 0


def _frames(stream: socket.socket) -> Iterator[bytes]:
    """Frames until the stream ends."""
    buffer = FrameBuffer()
    while True:
        frame = buffer.take()
        if frame is not None:
            yield frame
            continue
        try:
            data = stream.recv(_READ_BYTES)
        except ConnectionError:
            return
        if not data:
            return
        buffer.feed(data)
