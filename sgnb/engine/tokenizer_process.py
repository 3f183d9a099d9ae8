"""The tokenizer process: sockets, the scheduler child, and the end of them all.

Started by the notebook kernel (``backends.process``) through ``__main__``. One loop on the main thread polls clients,
scheduler, pidfds and timers and hands frames to ``front``; a helper thread loads the tokenizer while clients are
welcomed already. No torch, no transformers, no decisions about messages here.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import zmq

from sgnb.engine.front import Front
from sgnb.engine.launch import (
    bound_log,
    describe_end,
    read_spec,
    read_token,
    remove_folder,
    set_up_process,
    to_info,
    write_record,
)
from sgnb.engine.model_store import ModelPath, resolve
from sgnb.engine.stacks import arm, as_text, collect
from sgnb.engine.watchdog import Watchdog
from sgnb.errors import EngineDied
from sgnb.liveness import open_pidfd, process_start_time
from sgnb.messages import EngineRecord, SchedulerFrame, SchedulerOutput, Stop
from sgnb.transport import BadFrame, Wakeup, Zap, ZmqLink, ZmqRouter, encode

if TYPE_CHECKING:
    from sgnb.engine.tokenizer.manager import TokenizerManager

log = logging.getLogger("sgnb.engine")
_TICK_SECONDS = 1.0
_NO_PIDFD_TICK_SECONDS = 0.25
_FRAMES_A_TURN = 256
_STOP_SECONDS = 1.0
"""How long the scheduler may take to end politely."""
_TELL_SECONDS = 2.0
"""How long a failed engine waits for its owner, to tell it why."""
_FLUSH_MILLISECONDS = 300


def run(folder: Path, *, orphaned: bool) -> int:
    """The process: returns its exit code. ``orphaned``: the owner ended before this process could watch it."""
    set_up_process()
    if orphaned:
        remove_folder(folder, read_spec(folder), everything=True)
        return 1
    arm(folder, "tokenizer")
    process = TokenizerProcess(folder)
    try:
        process.loop()
    except Exception as error:
        log.exception("the tokenizer process met a fault")
        process.front.fail(to_info(error))
    process.close()
    return 0 if process.front.failure is None else 1


class TokenizerProcess:
    """The loop around Front."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._spec = read_spec(folder)
        self._started = time.time()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        token = read_token(folder)
        Zap(self._context, token)
        self._router = ZmqRouter(self._context, self._spec.sockets["client"])
        self._link = ZmqLink(self._context, self._spec.sockets["scheduler"], bind=True)
        self._decoder = msgspec.msgpack.Decoder(SchedulerOutput)
        self.front = Front(self._spec, self._router, self._to_scheduler)
        self.front.take_stacks = self._take_stacks
        self._watchdog = Watchdog(folder, self._spec.args.watchdog_seconds, self._pids)
        self._collected: deque[str] = deque()
        self._asked_stacks: list[Callable[[str], None]] = []
        """Who waits for the stacks that are being collected: one collection at a time, for all."""
        self._wakeup = Wakeup()
        self._loaded: list[tuple[TokenizerManager, ModelPath | None] | BaseException] = []
        self._owner_pidfd = self._watch_owner()
        self._child = self._spawn_scheduler()
        self._child_pidfd = open_pidfd(self._child.pid, 0)
        self.front.progress("process", 1, 1)
        self._write_record()
        threading.Thread(target=self._load, name="sgnb-load", daemon=True).start()
        signal.signal(signal.SIGTERM, self._on_sigterm)

    # ------------------------------------------------------------ start

    def _watch_owner(self) -> int | None:
        try:
            return open_pidfd(self._spec.owner_pid, self._spec.owner_start_time)
        except ProcessLookupError:
            self.front.stopping = "owner ended"
            return None

    def _spawn_scheduler(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-X", "faulthandler", "-m", "sgnb.engine", "--role", "scheduler"]
        command += ["--folder", str(self._folder), "--parent", str(os.getpid())]
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        self.front.scheduler_pid = child.pid
        self.front.scheduler_start_time = process_start_time(child.pid) or 0
        return child

    def _load(self) -> None:
        # Imported here: the scheduler process starts, and clients are welcomed, before these have loaded.
        from sgnb.engine.tokenizer.manager import TokenizerManager  # noqa: PLC0415
        from sgnb.engine.tokenizer.tokenizer import load_tokenizer, stub_tokenizer  # noqa: PLC0415

        model: ModelPath | None = None
        try:
            if self._spec.args.runner == "stub":
                tokenizer = stub_tokenizer()
            else:
                model = resolve(self._spec.args.model)
                tokenizer = load_tokenizer(model)
            manager = TokenizerManager(
                tokenizer,
                self._to_scheduler,
                self.front.clients.send,
                incarnation=self._spec.incarnation,
                wake=self._wakeup.set,
            )
            self._loaded.append((manager, model))
        except BaseException as error:  # it is looked at on the loop's thread
            self._loaded.append(error)
        self._wakeup.set()

    def _open_when_ready(self) -> None:
        ready = self.front.scheduler_ready
        if not self._loaded or self.front.state != "starting":
            return
        loaded = self._loaded[0]
        if isinstance(loaded, BaseException):
            self.front.fail(to_info(loaded))
            return
        if "tokenizer" not in self.front.steps:
            self.front.progress("tokenizer", 1, 1)
        if ready is None:
            return
        manager, model = loaded
        args = self._spec.args
        info = manager.model_info(
            model=model.name if model else args.runner,
            path=str(model.path) if model else "",
            runner=args.runner,
            ready=ready,
        )
        self._to_scheduler(manager.token_table())
        self.front.open(manager, info)
        self._write_record()

    def _write_record(self) -> None:
        states: dict[str, Any] = {"starting": "starting", "ready": "ready", "failed": "failed"}
        record = EngineRecord(
            name=self._spec.args.name,
            incarnation=self._spec.incarnation,
            version=self._spec.version,
            pid=os.getpid(),
            start_time=process_start_time(os.getpid()) or 0,
            owner_pid=self._spec.owner_pid,
            owner_start_time=self._spec.owner_start_time,
            scheduler_pid=self.front.scheduler_pid,
            scheduler_start_time=self.front.scheduler_start_time,
            model=self._spec.args.shown_model,
            sockets=self._spec.sockets,
            state=states[self.front.state],
            started=self._started,
        )
        write_record(self._folder, record)

    # ------------------------------------------------------------ watching

    def _pids(self) -> dict[str, int]:
        """The engine's processes by role."""
        pids = {"tokenizer": os.getpid(), "scheduler": self.front.scheduler_pid}
        ready = self.front.scheduler_ready
        return pids | ({"runner": ready.runner_pid} if ready is not None and ready.runner_pid else {})

    def _take_stacks(self, answer: Callable[[str], None]) -> None:
        """Collect stacks beside the loop, which goes on; ``answer`` is called by it when they are there."""

        def run() -> None:
            self._collected.append(as_text(collect(self._folder, self._pids())))
            self._wakeup.set()

        self._asked_stacks.append(answer)
        if len(self._asked_stacks) == 1:
            threading.Thread(target=run, name="sgnb-stacks", daemon=True).start()

    def _hand_out_stacks(self) -> None:
        while self._collected:
            text, asked = self._collected.popleft(), self._asked_stacks
            self._asked_stacks = []
            for answer in asked:
                answer(text)

    # ------------------------------------------------------------ loop

    def loop(self) -> None:
        """Until something says stop. Blocks when there is nothing to do."""
        last_tick = time.monotonic()
        tick = _TICK_SECONDS if self._owner_pidfd is not None else _NO_PIDFD_TICK_SECONDS
        failed_at = 0.0
        busy = False
        while not self.front.stopping:
            ready = self._poll(0 if busy else tick)
            self._look_at_processes(ready)
            self._wakeup.clear()
            self._drain_scheduler()
            self._drain_clients()
            self._hand_out_stacks()
            self._open_when_ready()
            busy = self.front.pump()  # long texts: a piece a turn, between the messages of all
            now = time.monotonic()
            if now - last_tick >= tick or self.front.failure:
                last_tick = now
                self.front.clients.sweep()
                bound_log(self._folder)
                self.front.trouble = self._watchdog.look()
                if os.getppid() != self._spec.owner_pid:
                    self.front.stopping = "owner ended"
            if self.front.failure is not None:
                failed_at = failed_at or now
                if self.front.owner_told or now - failed_at > _TELL_SECONDS:
                    return
                tick = 0.05

    def _poll(self, tick: float) -> set[Any]:
        poller = zmq.Poller()
        for item in (self._router.pollable, self._link.pollable, self._wakeup.fileno()):
            poller.register(item, zmq.POLLIN)
        fds = [self._owner_pidfd, self._child_pidfd, *(client.pidfd for client in self.front.clients)]
        for fd in fds:
            if fd is not None:
                poller.register(fd, zmq.POLLIN)
        return {item for item, _ in poller.poll(int(tick * 1000))}

    def _look_at_processes(self, ready: set[Any]) -> None:
        if self._owner_pidfd in ready:
            self.front.stopping = "owner ended"
        for client in self.front.clients:
            if client.pidfd in ready:
                self.front.clients.remove(client)
        if (self._child_pidfd in ready or self._child_pidfd is None) and self._child.poll() is not None:
            self._drain_scheduler()  # it may have said why
            words = describe_end(self._child.returncode)
            error = EngineDied(f"The engine's scheduler process {words}.", hint="Start again: %sgl restart")
            self.front.fail(to_info(error, code="died"))

    def _drain_scheduler(self) -> None:
        for _ in range(_FRAMES_A_TURN):
            frame = self._link.recv()
            if frame is None:
                return
            try:
                message = self._decoder.decode(frame)
            except BadFrame as error:
                log.error("a frame of the scheduler cannot be read: %s", error)
                continue
            self.front.take_scheduler_output(message)

    def _drain_clients(self) -> None:
        for _ in range(_FRAMES_A_TURN):
            found = self._router.recv()
            if found is None or self.front.stopping:
                return
            self.front.take_client_frame(*found)

    def _to_scheduler(self, message: SchedulerFrame) -> None:
        self._link.send(encode(message))

    # ------------------------------------------------------------ end

    def _on_sigterm(self, *_: object) -> None:
        self.front.stopping = self.front.stopping or "terminated by a signal"
        self._wakeup.set()

    def close(self) -> None:
        """Tell everybody, end the scheduler, take the sockets away. The folder stays only after a fault (its log)."""
        reason = self.front.stopping
        log.info("ending: %s", reason or "fault")
        if reason:
            said = EngineDied(reason[0].upper() + reason[1:] + ".", hint=self.front.stopping_hint)
            self.front.fail(to_info(said, code="ended"))
        self.front.close()
        self._router.close(_FLUSH_MILLISECONDS)
        if self._child.poll() is None and self.front.info is not None and reason != "owner ended":
            self._to_scheduler(Stop(reason=reason or "fault"))
            try:
                self._child.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                pass
        if self._child.poll() is None:
            self._child.kill()
            self._child.wait()
        self._write_record()
        remove_folder(self._folder, self._spec, everything=bool(reason))
        self._link.close()
        self._context.term()
