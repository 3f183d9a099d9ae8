"""Sessions and requests between clients and scheduler: text becomes ids, output becomes chunks.

Tokenizer process; one thread calls it (PROC's loop, or a test): ``handle`` with what a client sent, ``on_batch`` with
what a step gave. It answers through two callables, so it knows no sockets. Each session is a queue of its own: ops take
effect in order; while a Decode or Select is in flight its session's later ops wait here, because the output comes
between. A Fork that waits has its children at once, whose ops wait for it, and keeps a released parent open until then.
A client may name only what it made: its ids start with ``c<client>.``.

Every Decode and Select gets exactly one chunk with a finish. A failed op poisons its session: later ops fail with the
first cause. After an abort a session stays usable: its queued requests end with ``abort``, its queued text is still
appended, so that turns stay closed as the notebook wrote them. No scheduling, no model here.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from sgnb.config import (
    MAX_FORK_DEPTH,
    MAX_FORK_WIDTH,
    MAX_OPTIONS,
    MAX_PROMPT_BYTES,
    MAX_STATES,
    MAX_WAITING,
)
from sgnb.engine.tokenizer.detokenizer import DetokenizerManager
from sgnb.engine.tokenizer.session import MAX_QUEUED_OPS, Session, SessionOp, error_info
from sgnb.engine.tokenizer.tokenizer import ModelTokenizer
from sgnb.errors import LimitError, RequestError, SgnbError
from sgnb.messages import (
    AbortReqs,
    BatchOutput,
    Chunk,
    Chunks,
    ClientGone,
    Commit,
    Decode,
    ErrorInfo,
    Extend,
    Finish,
    Fork,
    Init,
    ModelInfo,
    Op,
    OpFailed,
    Release,
    ReqOutput,
    SchedulerInput,
    SchedulerReady,
    Select,
    ServerMessage,
    SessionClose,
    SessionCommit,
    SessionDecode,
    SessionExtend,
    SessionFork,
    SessionOpen,
    SessionSelect,
    TokenTable,
)

log = logging.getLogger(__name__)

GENERATE = "@generate"
"""Label of ``Engine.generate``: its prompt and output ids go back to the client."""
_REMEMBERED = 4096
METHODS = ("token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized")

ToScheduler = Callable[[SchedulerInput], None]
ToClient = Callable[[int, ServerMessage], None]


@dataclass(frozen=True, slots=True)
class _Request:
    client: int
    sid: str
    with_ids: bool
    options: tuple[str, ...] = ()
    """Of a select: as they were written."""


class TokenizerManager:
    """Sessions of all clients. ``incarnation`` goes into every message to a client."""

    def __init__(
        self,
        tokenizer: ModelTokenizer,
        to_scheduler: ToScheduler,
        to_client: ToClient,
        *,
        incarnation: str = "",
        max_sessions: int = MAX_STATES,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = tokenizer.vocab_size
        self._to_scheduler = to_scheduler
        self._to_client = to_client
        self._incarnation = incarnation
        self._max_sessions = max_sessions
        self._max_waiting = max_waiting
        self._detokenizer = DetokenizerManager(tokenizer.table)
        self._sessions: dict[str, Session] = {}
        self._requests: dict[str, _Request] = {}
        """In flight."""
        self._queued: dict[str, str] = {}
        """Decodes that wait in their session's queue: rid → sid."""
        self._open: Counter[int] = Counter()
        self._waiting: Counter[int] = Counter()
        self._refused: OrderedDict[str, ErrorInfo] = OrderedDict()
        """Sessions that could not be opened, so that their later ops name the first cause."""
        self._outbox: dict[int, list[Chunk]] = {}

    # ------------------------------------------------------------ facts

    def token_table(self) -> TokenTable:
        """The bytes of each id, for the scheduler's stops."""
        return TokenTable(table=self.tokenizer.table)

    def model_info(self, *, model: str, path: str, runner: str, ready: SchedulerReady) -> ModelInfo:
        """What clients are told of the model. Takes the model's own vocabulary size for the checks of ids."""
        self.vocab_size = ready.vocab_size
        template = self.tokenizer.template
        return ModelInfo(
            model=model,
            path=path,
            runner=runner,
            vocab_size=ready.vocab_size,
            context_length=ready.context_length,
            max_total_tokens=ready.max_total_tokens,
            dtype=ready.dtype,
            device=ready.device,
            attention_backend=ready.attention_backend,
            eos_token_ids=self.tokenizer.eos_token_ids,
            roles=template.roles,
            default_system=template.default_system,
            template_exact=template.exact,
            template_hash=template.hash,
        )

    def tokenize(self, text: str, *, literal: bool = False) -> list[int]:
        """Ids of a text as a prompt's start, without BOS (the ``tokenize`` control)."""
        return self.tokenizer.encode(text, parse=not literal)

    def counts(self) -> dict[str, int]:
        """Sessions, requests in flight, requests queued here."""
        return {"sessions": len(self._sessions), "running": len(self._requests), "queued": len(self._queued)}

    # ------------------------------------------------------------ from clients

    def handle(self, client: int, ops: Sequence[Op]) -> None:
        """Carry out a client's ops in order. Never raises for what a client sent: it is told."""
        for op in ops:
            if isinstance(op, Init):
                self._init(client, op)
            elif isinstance(op, Release):
                self._release(client, op.sids)
            else:
                self._accept(client, op)
        self._flush()

    def abort(
        self,
        client: int,
        *,
        rids: Sequence[str] = (),
        sids: Sequence[str] = (),
        everything: bool = False,
        all_clients: bool = False,
    ) -> None:
        """End requests: queued ones at once, running ones through the scheduler. Unknown and foreign ids are ignored."""
        running = []
        for rid in dict.fromkeys(rids):
            request = self._requests.get(rid)
            session = self._sessions.get(self._queued.get(rid, ""))
            if request is not None and request.client == client:
                running.append(rid)
            elif session is not None and session.client == client:
                self._drop_queued(session, only=rid)
        for session in list(self._sessions.values()):
            mine = all_clients or session.client == client
            if mine and (everything or all_clients or session.sid in sids):
                self._drop_queued(session)
                if session.running is not None:
                    running.append(session.running)
        if running:
            self._to_scheduler(AbortReqs(rids=list(dict.fromkeys(running))))
        self._flush()

    def client_gone(self, client: int) -> None:
        """Forget a client: its sessions close, its requests end, nothing more is sent to it. Idempotent."""
        for sid in [sid for sid, session in self._sessions.items() if session.client == client]:
            del self._sessions[sid]
        for rid in [rid for rid, request in self._requests.items() if request.client == client]:
            del self._requests[rid]
            self._detokenizer.drop(rid)
        self._queued = {rid: sid for rid, sid in self._queued.items() if sid in self._sessions}
        for counter in (self._open, self._waiting):
            counter.pop(client, None)
        self._outbox.pop(client, None)
        self._to_scheduler(ClientGone(client=client))

    # ------------------------------------------------------------ from the scheduler

    def on_batch(self, batch: BatchOutput) -> None:
        """Send one step's outputs to their clients; what waited behind a finished generation goes on."""
        for out in batch.items:
            request = self._requests.get(out.rid)
            if request is None:  # its client is gone
                self._detokenizer.drop(out.rid)
                continue
            chunk = self._detokenizer.feed(out, with_ids=request.with_ids)
            if out.choice is not None:
                chunk = msgspec.structs.replace(
                    chunk, text=request.options[out.choice.index], choice=out.choice
                )
            self._send(request.client, chunk)
            if out.finish is not None:
                self._finished(out, request, out.finish)
        self._flush()

    def _finished(self, out: ReqOutput, request: _Request, finish: Finish) -> None:
        del self._requests[out.rid]
        self._waiting[request.client] -= 1
        session = self._sessions.get(request.sid)
        if session is None or session.running != out.rid:
            return  # released meanwhile
        session.running = None
        if out.choice is not None:
            session.end_options()
        # Kept characters that no kept token covers: model text, so always literal.
        session.pending.add_text(out.leftover.decode("utf-8", "replace"), parse=False)
        if finish.type == "error" and session.error is None:
            session.error = finish.error or ErrorInfo(kind="RequestError", message="the generation failed")
        self._pump(session)

    def _pump(self, session: Session) -> None:
        """Carry out what waited, up to the next request; forks let their children's ops go on too."""
        ready = [session]
        while ready:
            one = ready.pop()
            while one.queue and not one.busy:
                op = one.queue.popleft()
                if isinstance(op, Decode | Select):
                    self._queued.pop(op.rid, None)
                ready += self._apply(one, op)
                if one.closing and not self._needed(one):
                    self._close(one)
                    break

    # ------------------------------------------------------------ ops

    def _init(self, client: int, op: Init) -> None:
        if not self._owns(client, op.sid):
            self._refuse(client, op.sid, _foreign("session", op.sid, client))
        elif (session := self._sessions.get(op.sid)) is not None:
            error = RequestError(f"session {op.sid!r} is open already", code="duplicate_session")
            self._poison(session, error_info(error))
        elif (full := self._full(client)) is not None:
            self._refuse(client, op.sid, full)
        else:
            self._refused.pop(op.sid, None)
            self._sessions[op.sid] = Session(op.sid, client)
            self._open[client] += 1
            self._to_scheduler(SessionOpen(sid=op.sid, client=client, extra_key=op.extra_key))

    def _refuse(self, client: int, sid: str, error: ErrorInfo) -> None:
        self._refused[sid] = error
        if len(self._refused) > _REMEMBERED:
            self._refused.popitem(last=False)
        self._op_failed(client, sid, error)

    def _accept(self, client: int, op: SessionOp) -> None:
        """Check what can be checked at once, then carry the op out or queue it behind the running request."""
        session = self._sessions.get(op.sid)
        if session is None or session.client != client or session.closing:
            error = self._refused.get(op.sid) or error_info(
                RequestError(f"no session {op.sid!r} of this client is open", code="unknown_session")
            )
            if isinstance(op, Decode | Select):
                self._end(client, op.rid, error)
            elif isinstance(op, Fork):
                for child in op.children:
                    self._refuse(client, child, error)
            else:
                self._op_failed(client, op.sid, error)
            return
        if isinstance(op, Decode | Select):
            bad = self._bad_request(session, op)
            self._waiting[client] += 1
            if bad is not None:
                self._fail_request(session, op, bad)
                return
        elif isinstance(op, Fork):
            op = self._bear(session, op)
        elif isinstance(op, Extend):
            try:
                session.admit(op)
            except SgnbError as fault:
                self._poison(session, error_info(fault))
                return
        if not session.busy:
            session.queue.append(op)
            self._pump(session)
        elif len(session.queue) >= MAX_QUEUED_OPS:
            error = error_info(LimitError(f"{MAX_QUEUED_OPS} operations wait behind one generation"))
            if isinstance(op, Decode | Select):
                self._fail_request(session, op, error)
            else:
                self._poison(session, error)
        else:
            session.queue.append(op)
            if isinstance(op, Decode | Select):
                self._queued[op.rid] = op.sid

    def _bear(self, parent: Session, op: Fork) -> Fork:
        """Make a fork's children, whose ops wait until it is carried out. The fork without those that cannot be."""
        children = []
        for child in op.children:
            error = self._bad_child(parent, child, len(op.children))
            if error is not None:
                known = self._sessions.get(child)
                if known is not None and known.client == parent.client:
                    self._poison(known, error)
                else:
                    self._refuse(parent.client, child, error)
                continue
            self._refused.pop(child, None)
            self._sessions[child] = Session(child, parent.client, unborn=True, depth=parent.depth + 1)
            self._open[parent.client] += 1
            children.append(child)
        return Fork(sid=op.sid, children=children)

    def _bad_child(self, parent: Session, child: str, width: int) -> ErrorInfo | None:
        if not self._owns(parent.client, child):
            return _foreign("session", child, parent.client)
        if child in self._sessions:
            return error_info(RequestError(f"session {child!r} is open already", code="duplicate_session"))
        if width > MAX_FORK_WIDTH or parent.depth >= MAX_FORK_DEPTH:
            text = f"a fork has at most {MAX_FORK_WIDTH} children, {MAX_FORK_DEPTH} deep"
            return error_info(LimitError(f"{text}; here {width}, {parent.depth + 1} deep"))
        return self._full(parent.client)

    def _full(self, client: int) -> ErrorInfo | None:
        if self._open[client] < self._max_sessions:
            return None
        return error_info(
            LimitError(
                f"{self._open[client]} states are live, at most {self._max_sessions} are allowed",
                hint="Drop references to states of finished programs.",
            )
        )

    def _bad_request(self, session: Session, op: Decode | Select) -> ErrorInfo | None:
        if not self._owns(session.client, op.rid):
            return _foreign("request", op.rid, session.client)
        if op.rid in self._requests or op.rid in self._queued:
            return error_info(RequestError(f"request {op.rid!r} exists already", code="duplicate_request"))
        if self._waiting[session.client] >= self._max_waiting:
            return error_info(
                RequestError(
                    f"{self._waiting[session.client]} requests of this client wait or run, at most "
                    f"{self._max_waiting} are allowed",
                    code="queue_full",
                    hint="Run fewer programs at once (num_threads of run_batch).",
                )
            )
        try:
            if isinstance(op, Decode):
                op.params.check().check_model(self.vocab_size)
            else:
                _check_options(op)
        except SgnbError as fault:
            return error_info(fault)
        return None

    def _apply(self, session: Session, op: SessionOp) -> list[Session]:
        """Carry out an op whose turn it is. Sessions that can go on because of it."""
        if isinstance(op, Fork):
            return self._fork(session, op)
        if session.error is not None:
            if isinstance(op, Decode | Select):
                self._fail_request(session, op, session.error)
            return []
        try:
            if isinstance(op, Decode):
                self._decode(session, op)
            elif isinstance(op, Select):
                self._select(session, op)
            elif isinstance(op, Commit):
                if ids := session.settle(self.tokenizer):
                    self._to_scheduler(SessionCommit(sid=session.sid, ids=ids))
            else:
                session.extend(op.parts, self.tokenizer, self.vocab_size)
                if ids := session.take_stable(self.tokenizer):
                    self._to_scheduler(SessionExtend(sid=session.sid, ids=ids))
        except (KeyboardInterrupt, SystemExit):
            raise
        except (
            BaseException
        ) as fault:  # a panic of the tokenizers library is no Exception; one session fails, no more
            if not isinstance(fault, SgnbError):
                log.exception("session %s", session.sid)
            if isinstance(op, Decode | Select):
                self._fail_request(session, op, error_info(fault))
            else:
                self._poison(session, error_info(fault))
        return []

    def _fork(self, session: Session, op: Fork) -> list[Session]:
        """Its children become copies. What can be settled of the pending text is, once for all of them."""
        if session.error is None and session.pending:
            try:
                if ids := session.settle(self.tokenizer):
                    self._to_scheduler(SessionExtend(sid=session.sid, ids=ids))
            except Exception as fault:
                log.exception("session %s", session.sid)
                self._poison(session, error_info(fault))
        born = [child for child in map(self._sessions.get, op.children) if child is not None and child.unborn]
        if born:
            self._to_scheduler(SessionFork(sid=session.sid, children=[child.sid for child in born]))
        for child in born:
            child.become_copy(session)
        return born

    def _select(self, session: Session, op: Select) -> None:
        settled, ids, options = session.take_options(op.options, self.tokenizer)
        if settled:
            self._to_scheduler(SessionExtend(sid=session.sid, ids=settled))
        session.running = op.rid
        self._requests[op.rid] = _Request(session.client, session.sid, False, tuple(op.options))
        self._to_scheduler(
            SessionSelect(
                rid=op.rid,
                sid=session.sid,
                client=session.client,
                ids=ids,
                options=options,
                method=op.method,
                label=op.label,
                priority=op.priority,
            )
        )

    def _decode(self, session: Session, op: Decode) -> None:
        ids = session.take(self.tokenizer)
        session.running = op.rid
        self._requests[op.rid] = _Request(session.client, session.sid, op.label.name == GENERATE)
        self._to_scheduler(
            SessionDecode(
                rid=op.rid,
                sid=session.sid,
                client=session.client,
                ids=ids,
                params=op.params,
                stops=[stop.encode() for stop in op.params.stop],
                stop_token_ids=list(op.params.stop_token_ids),
                eos_token_ids=session.stop_ids(self.tokenizer),
                label=op.label,
                priority=op.priority,
            )
        )

    def _release(self, client: int, sids: Sequence[str]) -> None:
        closed = []
        for sid in sids:
            self._refused.pop(sid, None)
            session = self._sessions.get(sid)
            if session is None or session.client != client:
                continue
            if self._needed(session):
                session.closing = True
                continue
            self._drop_queued(session)
            del self._sessions[sid]
            self._open[client] -= 1
            closed.append(sid)
        if closed:
            self._to_scheduler(SessionClose(sids=closed))

    def _needed(self, session: Session) -> bool:
        """Whether a queued fork still waits for this session, so that it must not be closed yet."""
        forks = [op for op in session.queue if isinstance(op, Fork)]
        return any((child := self._sessions.get(sid)) and child.unborn for op in forks for sid in op.children)

    def _close(self, session: Session) -> None:
        """Close a session that was released while a fork waited."""
        self._drop_queued(session)
        if self._sessions.pop(session.sid, None) is not None:
            self._open[session.client] -= 1
            self._to_scheduler(SessionClose(sids=[session.sid]))

    def _drop_queued(self, session: Session, only: str | None = None) -> None:
        """End queued generations of a session (or the one named); the text queued between them stays."""
        kept = []
        for op in session.queue:
            if isinstance(op, Decode | Select) and only in (None, op.rid):
                del self._queued[op.rid]
                self._waiting[session.client] -= 1
                self._send(session.client, Chunk(rid=op.rid, finish=Finish(type="abort")))
            else:
                kept.append(op)
        session.queue.clear()
        session.queue.extend(kept)

    # ------------------------------------------------------------ errors and answers

    def _owns(self, client: int, name: str) -> bool:
        return name.startswith(f"c{client}.")

    def _poison(self, session: Session, error: ErrorInfo) -> None:
        """An op without a request failed: tell the client once."""
        if session.error is None:
            session.error = error
            self._op_failed(session.client, session.sid, error)

    def _fail_request(self, session: Session, op: Decode | Select, error: ErrorInfo) -> None:
        self._waiting[session.client] -= 1
        if session.error is None:
            session.error = error
        if op.rid in self._requests or op.rid in self._queued:
            # A chunk would end the other request of that name.
            self._op_failed(session.client, session.sid, error)
        else:
            self._end(session.client, op.rid, error)

    def _end(self, client: int, rid: str, error: ErrorInfo) -> None:
        self._send(client, Chunk(rid=rid, finish=Finish(type="error", error=error)))

    def _op_failed(self, client: int, sid: str, error: ErrorInfo) -> None:
        self._flush()  # what happened before it is told before it
        self._to_client(client, OpFailed(incarnation=self._incarnation, sid=sid, error=error))

    def _send(self, client: int, chunk: Chunk) -> None:
        self._outbox.setdefault(client, []).append(chunk)

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, {}
        for client, chunks in outbox.items():
            self._to_client(client, Chunks(incarnation=self._incarnation, items=chunks))


def _check_options(op: Select) -> None:
    """Refuse a select that has nothing to choose from, too much, or an unknown method."""
    if not op.options:
        raise RequestError("a select has no options", code="options", hint="Give at least one.")
    if len(op.options) > MAX_OPTIONS:
        raise LimitError(f"a select has {len(op.options)} options, at most {MAX_OPTIONS} are allowed")
    if op.method not in METHODS:
        raise RequestError(
            f"choices_method {op.method!r} is not known",
            code="method",
            hint=f"Use one of {', '.join(METHODS)}.",
        )
    try:
        size = sum(len(option.encode()) for option in op.options)
    except UnicodeEncodeError as error:
        raise RequestError(f"an option is not valid Unicode: {error.reason}", code="bad_text") from None
    if size > MAX_PROMPT_BYTES:
        raise LimitError(f"the options have {size} bytes, at most {MAX_PROMPT_BYTES} are allowed")


def _foreign(what: str, name: str, client: int) -> ErrorInfo:
    return error_info(
        RequestError(
            f"{what} id {name!r} is not this client's: its ids start with 'c{client}.'", code="foreign_id"
        )
    )
