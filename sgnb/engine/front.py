"""The engine's front desk: every frame of a client or of the scheduler comes here and is answered or passed on.

Tokenizer process, on its loop's thread; ``tokenizer_process`` owns the sockets and the clock and calls in. Decides who
may say what when: hello first, own ids only, nothing before the model is ready but kept for then. Tokenising is
``tokenizer.manager``'s; credit and leases are ``clients``'. No sockets of its own, so tests drive it with memory.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from sgnb.config import MAX_FRAME_BYTES, MAX_PROMPT_BYTES
from sgnb.engine.clients import Client, ClientTable
from sgnb.engine.launch import seconds_since_exec
from sgnb.messages import (
    PROTOCOL_VERSION,
    Abort,
    BatchOutput,
    Block,
    Bye,
    ClientMessage,
    Control,
    Decodes,
    EngineSpec,
    ErrorInfo,
    Hello,
    ModelInfo,
    Ping,
    Pong,
    Progress,
    Ready,
    Refused,
    Release,
    Reply,
    SchedulerControl,
    SchedulerFailed,
    SchedulerFrame,
    SchedulerOutput,
    SchedulerProgress,
    SchedulerReady,
    SchedulerReply,
    Welcome,
)
from sgnb.transport import BadFrame, Router

if TYPE_CHECKING:
    from sgnb.engine.tokenizer.manager import TokenizerManager

log = logging.getLogger("sgnb.engine")
_MAX_KEPT_BYTES = 4 * MAX_FRAME_BYTES
"""Blocks that wait for the model, all clients together."""
MAX_DETOKENIZED = MAX_PROMPT_BYTES // 4
"""Ids of one question; an id counts four bytes of a prompt."""
_TO_SCHEDULER = (
    *("stats", "flush_cache", "requests", "check", "set", "knobs", "pause", "step", "resume"),
    *("pin", "unpin", "memory", "defragment", "history", "past"),
    *("record_start", "record_stop", "recorded_tokens"),
    *("picture", "nodes", "holders", "prompt", "place", "slot", "running", "compile_grammar"),
)


class Front:
    """``state`` is starting, ready or failed; ``stopping`` says why the process must end now, or is empty; ``stopping_hint``
    what its clients can do then."""

    def __init__(
        self,
        spec: EngineSpec,
        router: Router,
        to_scheduler: Callable[[SchedulerFrame], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.spec = spec
        self.state = "starting"
        self.stopping = ""
        self.stopping_hint = "Start one with sgnb.launch() or %sgl launch."
        self.failure: ErrorInfo | None = None
        self.info: ModelInfo | None = None
        self.owner_told = False
        self.trouble = ""
        """What the watchdog says while a step does not end."""
        self.take_stacks: Callable[[Callable[[str], None]], None] | None = None
        """Collects the stacks of all threads of the engine's processes and hands them on, later."""
        self.scheduler_pid = 0
        self.scheduler_start_time = 0
        self.clients = ClientTable(router, spec.incarnation, self._client_gone, clock)
        self._to_scheduler = to_scheduler
        self._manager: TokenizerManager | None = None
        self._ready: SchedulerReady | None = None
        self.steps: dict[str, Progress] = {}
        self._kept: list[tuple[int, Block | Abort, int]] = []
        """(client, message, its bytes)."""
        self._kept_bytes = 0
        self._decoder = msgspec.msgpack.Decoder(ClientMessage)

    # ------------------------------------------------------------ from clients

    def take_client_frame(self, peer: bytes, frame: bytes) -> None:
        """One frame of a connection. A fault of a client ends that client, never the engine."""
        client = self.clients.find(peer)
        try:
            message: ClientMessage = self._decoder.decode(frame)
        except BadFrame as error:
            if client is not None:
                self.clients.drop(client, f"it sent a frame that is not of the protocol ({error})")
            return  # somebody who never said hello gets no answer to garbage
        if isinstance(message, Hello):
            self._hello(peer, client, message)
        elif client is None:
            self.clients.refuse(peer)
        elif message.incarnation != self.spec.incarnation:
            self.clients.drop(client, "it talks to an engine that ended; this is a new one")
        else:
            try:
                self._take(client, message, len(frame))
            except Exception:  # of ours; all that a client can do wrong is answered where it is found
                log.exception("a message of client %d failed", client.number)
                self.clients.drop(client, "a message of it met a fault of the engine; see its log")

    def _hello(self, peer: bytes, known: Client | None, hello: Hello) -> None:
        if known is not None:
            self.clients.drop(known, "it said hello twice")
            return
        if hello.version != PROTOCOL_VERSION:
            self.clients.refuse(
                peer,
                f"protocol version {hello.version} does not fit the engine's {PROTOCOL_VERSION}: "
                "kernel and engine run different versions of sgnb, restart the engine",
            )
            return
        try:
            client = self.clients.add(peer, hello)
        except ProcessLookupError:
            return
        log.info("%s (pid %d) is client %d", client.name, client.pid, client.number)
        welcome = Welcome(
            incarnation=self.spec.incarnation,
            client=client.number,
            version=PROTOCOL_VERSION,
            engine_name=self.spec.args.name,
            pid=os.getpid(),
            scheduler_pid=self.scheduler_pid,
            scheduler_start_time=self.scheduler_start_time,
            telemetry=self.spec.sockets["telemetry"],
            clients=len(self.clients),
            progress=list(self.steps.values()),
            info=self.info,
        )
        self.clients.send(client.number, welcome)
        if self.failure is not None:
            self._refuse(client, self.failure)

    def _take(self, client: Client, message: Ping | Bye | Block | Abort | Control, size: int) -> None:
        match message:
            case Ping():
                client.note_acked(message.acked, self.clients.now())
                self.clients.send(
                    client.number, Pong(incarnation=self.spec.incarnation, trouble=self.trouble)
                )
            case Bye():
                self.clients.remove(client)
            case Control():
                self._control(client, message)
            case Block() | Abort():
                foreign = self._foreign_id(client, message)
                if foreign:
                    self.clients.drop(client, f"it used the id {foreign!r}, which is not its own")
                elif self._manager is None:
                    self._keep(client, message, size)
                else:
                    self._carry_out(client.number, message)

    def _foreign_id(self, client: Client, message: Block | Abort) -> str:
        prefix = f"c{client.number}."
        if isinstance(message, Abort):
            ids = [*message.rids, *message.sids]
        else:
            ids = []
            for op in message.ops:
                for one in op.items if isinstance(op, Decodes) else (op,):
                    ids += one.sids if isinstance(one, Release) else [one.sid]
                    if hasattr(one, "rid"):
                        ids.append(one.rid)
                    ids += getattr(one, "children", ())
        return next((found for found in ids if not found.startswith(prefix)), "")

    def _keep(self, client: Client, message: Block | Abort, size: int) -> None:
        if self._kept_bytes + size > _MAX_KEPT_BYTES:
            self.clients.drop(client, "it sent too much before the model was ready")
        else:
            self._kept.append((client.number, message, size))
            self._kept_bytes += size

    def _carry_out(self, number: int, message: Block | Abort) -> None:
        assert self._manager is not None
        if isinstance(message, Block):
            self._manager.handle(number, message.ops)
        else:
            self._manager.abort(
                number,
                rids=message.rids,
                sids=message.sids,
                everything=message.everything,
                all_clients=message.all_clients,
            )

    def _control(self, client: Client, message: Control) -> None:
        if message.verb == "shutdown":
            self._reply(client.number, message.id, {"stopping": True})
            self.stopping = str(message.args.get("reason", "")) or f"stopped by {client.name}"
            self.stopping_hint = str(message.args.get("hint", "")) or self.stopping_hint
        elif message.verb == "info":
            names = [other.name for other in self.clients]
            self._reply(
                client.number,
                message.id,
                {"name": self.spec.args.name, "state": self.state, "clients": names},
            )
        elif message.verb == "stacks" and self.take_stacks is not None:
            self.take_stacks(lambda text: self._reply(client.number, message.id, {"stacks": text}))
        elif self._manager is None:
            error = ErrorInfo(kind="EngineError", message="The model is not loaded yet.", code="starting")
            self._reply(client.number, message.id, {}, error)
        elif message.verb in _TO_SCHEDULER:
            self._to_scheduler(
                SchedulerControl(client=client.number, id=message.id, verb=message.verb, args=message.args)
            )
        elif message.verb == "tokenize":
            self._tokenize(client.number, message)
        elif message.verb == "detokenize":
            self._detokenize(client.number, message)
        else:
            known = ", ".join(("info", "shutdown", "stacks", "tokenize", "detokenize", *_TO_SCHEDULER))
            error = ErrorInfo(
                kind="EngineError",
                message=f"the engine does not know {message.verb!r}",
                code="unknown_verb",
                hint=f"It knows {known}.",
            )
            self._reply(client.number, message.id, {}, error)

    def _tokenize(self, number: int, message: Control) -> None:
        """Token ids of a text; nobody's session is touched."""
        assert self._manager is not None
        text, literal = message.args.get("text", ""), bool(message.args.get("literal", False))
        if not isinstance(text, str) or len(text.encode(errors="replace")) > MAX_PROMPT_BYTES:
            error = ErrorInfo(
                kind="LimitError", message=f"text must be a str of at most {MAX_PROMPT_BYTES:,} bytes"
            )
            self._reply(number, message.id, {}, error)
            return

        def answer(found: list[int] | ErrorInfo) -> None:
            if isinstance(found, ErrorInfo):
                self._reply(number, message.id, {}, found)
            else:
                self._reply(number, message.id, {"ids": found})

        self._manager.tokenize(text, answer, literal=literal)

    def _detokenize(self, number: int, message: Control) -> None:
        """The text of token ids up to the last that ends a character, and how many that are."""
        assert self._manager is not None
        ids, size = message.args.get("ids"), self._manager.vocab_size
        if isinstance(ids, list) and len(ids) > MAX_DETOKENIZED:
            text = f"ids has {len(ids):,} entries, at most {MAX_DETOKENIZED:,} are allowed"
            self._reply(number, message.id, {}, ErrorInfo(kind="LimitError", code="limit", message=text))
            return
        if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < size for i in ids):
            error = ErrorInfo(
                kind="RequestError", code="bad_ids", message=f"ids must be ints of 0..{size - 1}"
            )
            self._reply(number, message.id, {}, error)
            return
        text, count = self._manager.detokenize(ids)
        self._reply(number, message.id, {"text": text, "count": count})

    def _reply(self, number: int, id: int, data: dict[str, Any], error: ErrorInfo | None = None) -> None:
        self.clients.send(number, Reply(incarnation=self.spec.incarnation, id=id, data=data, error=error))

    def _client_gone(self, number: int) -> None:
        log.info("client %d left", number)
        self._kept = [kept for kept in self._kept if kept[0] != number]
        self._kept_bytes = sum(size for _, _, size in self._kept)
        if self._manager is not None:
            self._manager.client_gone(number)

    def pump(self) -> bool:
        """A piece of the long work for clients, if there is any. True while another can be done now."""
        return self._manager is not None and self._manager.pump()

    def close(self) -> None:
        """End what the text side has running. Nothing may be called after it."""
        if self._manager is not None:
            self._manager.close()

    # ------------------------------------------------------------ from the scheduler

    def take_scheduler_output(self, message: SchedulerOutput) -> None:
        """One message of the scheduler process."""
        match message:
            case BatchOutput():
                if self._manager is not None:
                    self._manager.on_batch(message)
            case SchedulerReply():
                self._reply(message.client, message.id, message.data, message.error)
            case SchedulerProgress():
                self.progress(message.step, message.done, message.total)
            case SchedulerReady():
                self._ready = message
            case SchedulerFailed():
                self.fail(message.error)

    @property
    def scheduler_ready(self) -> SchedulerReady | None:
        """What the scheduler said when its model was loaded."""
        return self._ready

    # ------------------------------------------------------------ start and failure

    def progress(self, step: str, done: int, total: int) -> None:
        """A start step; kept for clients that come later."""
        frame = Progress(step=step, done=done, total=total, seconds=round(seconds_since_exec(), 3))
        self.steps[step] = frame
        self.clients.send_all(frame)

    def open(self, manager: TokenizerManager, info: ModelInfo) -> None:
        """The model is ready: tell everybody, carry out what waited."""
        self._manager, self.info, self.state = manager, info, "ready"
        self.progress("ready", 1, 1)
        self.clients.send_all(Ready(incarnation=self.spec.incarnation, info=info))
        kept, self._kept = self._kept, []
        for number, message, _ in kept:
            self._carry_out(number, message)

    def fail(self, error: ErrorInfo) -> None:
        """The engine cannot go on: tell everybody, and whoever still comes. The first cause stays."""
        if self.failure is None:
            log.error("%s", error.message)
            self.failure, self.state = error, "failed"
            for client in self.clients:
                self._refuse(client, error)

    def _refuse(self, client: Client, error: ErrorInfo) -> None:
        self.clients.send(client.number, Refused(incarnation=self.spec.incarnation, error=error))
        self.owner_told = self.owner_told or client.owner
