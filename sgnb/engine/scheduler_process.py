"""The scheduler process: torch, the model, the scheduler's loop, telemetry out.

Started by the tokenizer process through ``__main__``. Blocks in poll when idle, steps while there is work and looks at
its input between steps. What a step does is ``scheduler.scheduler``'s. ``create_runner`` imports torch, here at once and
in no other process, so that it loads while the tokenizer loads in the other one.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import zmq

from sgnb.config import HEARTBEAT_SECONDS
from sgnb.engine.launch import (
    read_spec,
    read_token,
    remove_folder,
    set_up_process,
    throttled,
    to_info,
)
from sgnb.engine.model_executor.drivers import Driver, make_driver
from sgnb.engine.model_executor.model_runner import Progress, create_runner
from sgnb.engine.model_executor.process_driver import ProcessDriver
from sgnb.engine.model_store import ModelPath, resolve
from sgnb.engine.pulse import Pulse
from sgnb.engine.scheduler.key_pictures import KeyPictures
from sgnb.engine.scheduler.picture import key_picture
from sgnb.engine.scheduler.scheduler import Scheduler
from sgnb.engine.scheduler.telemetry import Telemetry
from sgnb.engine.stacks import arm
from sgnb.errors import LimitError
from sgnb.liveness import open_pidfd
from sgnb.messages import (
    EngineSpec,
    ErrorInfo,
    SchedulerFailed,
    SchedulerFrame,
    SchedulerOutput,
    SchedulerReady,
    SchedulerReply,
    Stop,
)
from sgnb.transport import Link, Publisher, Wakeup, Zap, ZmqLink, encode

log = logging.getLogger("sgnb.engine")
_PARENT_SECONDS = 1.2
"""How long the tokenizer process may take to end after their owner before it is killed: it may be stopped."""


def run(folder: Path, parent: int) -> int:
    """The process: returns its exit code. ``parent`` is the tokenizer process."""
    set_up_process()
    arm(folder, "scheduler")
    spec = read_spec(folder)
    token = read_token(folder)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    Zap(context, token)
    publisher = Publisher(context, spec.sockets["telemetry"])
    link = ZmqLink(context, spec.sockets["scheduler"], token=token)
    try:
        _serve(folder, spec, parent, link, publisher)
        code = 0
    except Exception as error:
        log.exception("the scheduler process met a fault")
        link.send(encode(SchedulerFailed(error=to_info(error))))
        code = 1
    link.close(linger=1000)
    publisher.close()
    context.term()
    return code


def _serve(folder: Path, spec: EngineSpec, parent: int, link: Link, publisher: Publisher) -> None:
    def send(message: SchedulerOutput) -> None:
        link.send(frame_of(message))

    try:
        owner = open_pidfd(spec.owner_pid, spec.owner_start_time)
    except ProcessLookupError:
        _outlive_parent(folder, spec, parent)
        return
    model = _resolve(spec)
    driver = _open_driver(folder, spec, model, throttled(send), owner)
    if driver.notice:
        log.warning("%s", driver.notice)
    telemetry = Telemetry()
    scheduler = Scheduler(spec.args, driver, send, telemetry.emit)
    scheduler.pulse = Pulse(folder, own_thread=driver.name == "inline")
    scheduler.history = lambda start, limit=None: (
        telemetry.last_seq,
        telemetry.history(start, limit),
    )
    scheduler.pictures = KeyPictures(lambda: key_picture(scheduler), lambda: telemetry.first_seq)
    beat = Beat(lambda: publisher.send(encode(telemetry.take_frame(spec.incarnation, time.time()))))
    send(
        SchedulerReady(
            vocab_size=driver.vocab_size,
            context_length=driver.context_length,
            max_total_tokens=driver.max_total_tokens,
            dtype=driver.dtype,
            device=driver.device,
            attention_backend=driver.attention_backend,
            runner_pid=driver.runner_pid,
        )
    )
    try:
        if loop(scheduler, telemetry, beat, link, owner) == "owner ended":
            _outlive_parent(folder, spec, parent)
    finally:
        scheduler.grammars.close()
        driver.close()


def frame_of(message: SchedulerOutput) -> bytes:
    """The message as a frame. An answer that no frame holds is an error to who asked, never the engine's end."""
    try:
        return encode(message)
    except LimitError as fault:
        if not isinstance(message, SchedulerReply):
            raise
        error = ErrorInfo(kind="LimitError", code="limit", message=f"the answer: {fault.message}")
        return encode(SchedulerReply(client=message.client, id=message.id, error=error))


def _open_driver(
    folder: Path, spec: EngineSpec, model: ModelPath, progress: Progress, owner: int | None
) -> Driver:
    """Load the model behind the driver that the arguments name."""
    if spec.args.runner_driver == "process":
        return ProcessDriver(spec.args, model, progress, folder=folder, alive=lambda: not _ended(owner))
    return make_driver(spec.args, create_runner(spec.args, model, progress))


def _ended(pidfd: int | None) -> bool:
    return pidfd is not None and bool(select.select([pidfd], [], [], 0)[0])


class Beat:
    """When the next heartbeat is due; ``send`` publishes a frame with everything new, or none."""

    def __init__(self, send: Callable[[], None]) -> None:
        self._send = send
        self._next = 0.0

    def send(self) -> None:
        """Publish now; the next heartbeat moves."""
        self._send()
        self._next = time.monotonic() + HEARTBEAT_SECONDS

    @property
    def wait(self) -> float:
        """Seconds until one is due; 0 or less: now."""
        return self._next - time.monotonic()


def loop(scheduler: Scheduler, telemetry: Telemetry, beat: Beat, link: Link, owner: int | None) -> str:
    """Step while there is work, block otherwise, until a Stop comes or the owner ends. Returns why it ended."""
    decoder = msgspec.msgpack.Decoder(SchedulerFrame)
    poller = zmq.Poller()
    poller.register(link.pollable, zmq.POLLIN)
    if owner is not None:
        poller.register(owner, zmq.POLLIN)
    wakeup = Wakeup()
    poller.register(wakeup, zmq.POLLIN)
    scheduler.grammars.wake = wakeup.set
    stop: list[str] = []

    def take_input() -> None:
        while (frame := link.recv()) is not None:
            message = decoder.decode(frame)
            if isinstance(message, Stop):
                stop.append(message.reason)
            else:
                scheduler.receive(message)

    def attend() -> None:
        """A step takes its time: the scheduler answers meanwhile."""
        take_input()
        scheduler.attend()
        if telemetry.pending or beat.wait <= 0:
            beat.send()

    scheduler.driver.while_waiting = attend
    while True:
        scheduler.heartbeat()
        if scheduler.pictures is not None:
            scheduler.pictures.attend(scheduler.clock(), idle=scheduler.idle)
        if telemetry.pending or beat.wait <= 0:
            beat.send()
        wait = int(max(0.0, beat.wait) * 1000) + 1 if scheduler.idle else 0
        ready = dict(poller.poll(wait))
        if owner in ready:
            return "owner ended"
        if wakeup.fileno() in ready:
            wakeup.clear()
        take_input()
        if stop:
            return stop[0]
        if not scheduler.idle:
            scheduler.step()


def _resolve(spec: EngineSpec) -> ModelPath:
    if spec.args.runner == "stub":
        return ModelPath(name="stub", path=Path(), kind="gguf")
    return resolve(spec.args.model)


def _outlive_parent(folder: Path, spec: EngineSpec, parent: int) -> None:
    """The owner ended: normally the tokenizer process ends us first. It does not when it is stopped."""
    deadline = time.monotonic() + _PARENT_SECONDS
    while time.monotonic() < deadline and os.getppid() == parent:
        time.sleep(0.02)
    if os.getppid() == parent:
        remove_folder(folder, spec, everything=True)
        os.kill(
            parent, signal.SIGKILL
        )  # still our parent, so it is no other process; our own end follows at once
