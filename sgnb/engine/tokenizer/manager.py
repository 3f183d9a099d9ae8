"""Sessions and requests between clients and scheduler: text becomes ids, output becomes chunks.

Tokenizer process; one thread calls it (the process's loop, or a test): ``handle`` with what a client sent, ``on_batch``
with what a step gave, ``pump`` while it says that there is more. It answers through two callables, so it knows no sockets.
Each session is a queue of its own: ops take effect in order; while a Decode or Select is in flight its session's later ops
wait here, because the output comes between. A Fork that waits has its children at once, whose ops wait for it, and keeps a
released parent open until then. Short text is encoded at once; long text in pieces, one for each ``pump``, between which
all other messages are served. A client may name only what it made: its ids start with ``c<client>.``.

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

from sgnb.config import MAX_STATES, MAX_WAITING
from sgnb.engine.tokenizer.borders import PIECE_CHARS
from sgnb.engine.tokenizer.conversation import Conversation
from sgnb.engine.tokenizer.detokenizer import DetokenizerManager, text_of_ids
from sgnb.engine.tokenizer.joins import Joins
from sgnb.engine.tokenizer.refusals import foreign, full, owns, refuse_child, refuse_request
from sgnb.engine.tokenizer.session import MAX_QUEUED_OPS, Session, SessionOp, error_info
from sgnb.engine.tokenizer.steps import Jobs, Steps
from sgnb.engine.tokenizer.template_renderer import TemplateRenderer
from sgnb.engine.tokenizer.tokenizer import ModelTokenizer, model_info
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
    Join,
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
    TokenLogprob,
    TokenTable,
)

log = logging.getLogger(__name__)

GENERATE = "@generate"
"""Label of ``Engine.generate``: its prompt and output ids go back to the client."""
_REMEMBERED = 4096

ToScheduler = Callable[[SchedulerInput], None]
ToClient = Callable[[int, ServerMessage], None]


@dataclass(frozen=True, slots=True)
class _Request:
    client: int
    sid: str
    with_ids: bool
    notes: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    """Of a select: as they were written."""
    with_text: bool = False
    """Log-probabilities carry the text of their tokens."""


def _nothing() -> None:
    """Who polls need not be woken."""


class TokenizerManager:
    """Sessions of all clients. ``incarnation`` goes into every message to a client.

    ``wake`` is called from another thread when ``pump`` has work again after it said there was none.
    """

    def __init__(
        self,
        tokenizer: ModelTokenizer,
        to_scheduler: ToScheduler,
        to_client: ToClient,
        *,
        incarnation: str = "",
        max_sessions: int = MAX_STATES,
        max_waiting: int = MAX_WAITING,
        wake: Callable[[], None] = _nothing,
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
        self._joins = Joins(self._sessions, tokenizer, to_scheduler)
        self._requests: dict[str, _Request] = {}
        """In flight."""
        self._queued: dict[str, str] = {}
        """Decodes that wait in their session's queue: rid → sid."""
        self._open: Counter[int] = Counter()
        self._waiting: Counter[int] = Counter()
        self._refused: OrderedDict[str, ErrorInfo] = OrderedDict()
        """Sessions that could not be opened, so that their later ops name the first cause."""
        self._outbox: dict[int, list[Chunk]] = {}
        self._spare = -1
        """What the scheduler said last: see ``Chunks.spare``."""
        self._born: list[Session] = []
        """Children of forks just carried out: what they queued can go on."""
        self._jobs = Jobs(wake, 2 * PIECE_CHARS)
        self._renderer = TemplateRenderer(tokenizer.chat_template or "", tokenizer.variables)

    # ------------------------------------------------------------ facts

    def token_table(self) -> TokenTable:
        """The bytes of each id, for the scheduler's stops."""
        tokenizer = self.tokenizer
        special = [token.id for token in tokenizer.added if token.special or token.content.strip()]
        return TokenTable(
            table=tokenizer.table,
            special_ids=sorted({*special, *tokenizer.eos_token_ids}),
            eos_token_ids=tokenizer.eos_token_ids,
        )

    def model_info(self, *, model: str, path: str, runner: str, ready: SchedulerReady) -> ModelInfo:
        """What clients are told of the model. Takes the model's own vocabulary size for the checks of ids."""
        self.vocab_size = ready.vocab_size
        return model_info(self.tokenizer, model=model, path=path, runner=runner, ready=ready)

    def tokenize(self, text: str, answer: Callable[[list[int] | ErrorInfo], None], *, literal: bool) -> None:
        """Ids of a text as a prompt's start, without BOS (the ``tokenize`` control); ``answer`` is called once, perhaps
        from a later ``pump``."""

        def steps() -> Steps[None]:
            try:
                ids = yield from self.tokenizer.encode_steps(text, parse=not literal)
            except (KeyboardInterrupt, SystemExit, GeneratorExit):
                raise
            except BaseException as fault:  # a panic of the tokenizers library is no Exception
                answer(error_info(fault))
            else:
                answer(ids)

        self._jobs.start(steps(), _nothing, len(text))

    def detokenize(self, ids: list[int]) -> tuple[str, int]:
        """The text of ids up to the last that ends a character, and how many that are."""
        return text_of_ids(ids, self.tokenizer.table)

    def counts(self) -> dict[str, int]:
        """Sessions, requests in flight, requests queued here."""
        return {"sessions": len(self._sessions), "running": len(self._requests), "queued": len(self._queued)}

    # ------------------------------------------------------------ long work

    def pump(self) -> bool:
        """One piece of what is under way. True while another can be done now: call again, after looking at messages."""
        self._jobs.step()
        self._flush()
        return self._jobs.ready

    @property
    def encoding(self) -> int:
        """Texts that are being encoded or rendered."""
        return len(self._jobs)

    def close(self) -> None:
        """End the template's worker process. Nothing may be called after it."""
        self._renderer.close()

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
                self._pump(session)
        for session in list(self._sessions.values()):
            mine = all_clients or session.client == client
            if mine and (everything or all_clients or session.sid in sids):
                self._drop_queued(session)
                self._pump(session)
                if session.running is not None:
                    running.append(session.running)
        if running:
            self._to_scheduler(AbortReqs(rids=list(dict.fromkeys(running))))
        self._flush()

    def client_gone(self, client: int) -> None:
        """Forget a client: its sessions close, its requests end, nothing more is sent to it. Idempotent."""
        for session in [one for one in self._sessions.values() if one.client == client]:
            if session.job is not None:
                self._jobs.cancel(session.job)
            del self._sessions[session.sid]
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
        self._spare = batch.spare
        for out in batch.items:
            request = self._requests.get(out.rid)
            if request is None:  # its client is gone
                self._detokenizer.drop(out.rid)
                continue
            if out.meta is not None and request.notes:
                meta = msgspec.structs.replace(out.meta, notes=[*out.meta.notes, *request.notes])
                out = msgspec.structs.replace(out, meta=meta)
            if out.meta is not None and out.leftover:
                meta = msgspec.structs.replace(out.meta, leftover=out.leftover.decode("utf-8", "replace"))
                out = msgspec.structs.replace(out, meta=meta)
            chunk = self._detokenizer.feed(out, with_ids=request.with_ids)
            if out.input_logprobs:
                chunk = msgspec.structs.replace(chunk, input_logprobs=out.input_logprobs)
            if chunk.logprobs or (request.with_text and chunk.input_logprobs):
                chunk = self._with_texts(chunk, request.with_text)
            if out.choice is not None:
                chunk = msgspec.structs.replace(
                    chunk, text=request.options[out.choice.index], choice=out.choice
                )
            self._send(request.client, chunk)
            session = self._sessions.get(request.sid)
            if session is not None and session.running == out.rid:
                session.sampled(out.ids)
            if out.finish is not None:
                self._finished(out, request, out.finish)
        self._flush()

    def _with_texts(self, chunk: Chunk, with_text: bool) -> Chunk:
        """Log-probabilities with the bytes of their tokens, and with their text where that was asked for."""
        table = self.tokenizer.table

        def told(one: TokenLogprob) -> TokenLogprob:
            raw = table[one.id] if one.id < len(table) else b""
            text = raw.decode("utf-8", "replace") if with_text else ""
            return msgspec.structs.replace(one, text=text, raw=raw)

        return msgspec.structs.replace(
            chunk, logprobs=[*map(told, chunk.logprobs)], input_logprobs=[*map(told, chunk.input_logprobs)]
        )

    def _finished(self, out: ReqOutput, request: _Request, finish: Finish) -> None:
        del self._requests[out.rid]
        self._waiting[request.client] -= 1
        session = self._sessions.get(request.sid)
        if session is None or session.running != out.rid:
            return  # released meanwhile
        if out.choice is not None:
            session.end_options(out.choice.index, request.options[out.choice.index])
        kept = out.meta.kept_tokens if out.meta is not None else 0
        session.finished(kept, out.leftover.decode("utf-8", "replace"), self.tokenizer)
        if finish.type == "error" and session.error is None:
            session.error = finish.error or ErrorInfo(kind="RequestError", message="the generation failed")
        self._pump(session)

    def _pump(self, session: Session) -> None:
        """Carry out what waited, up to the next request; forks let their children's ops go on too."""
        ready = [session]
        while ready:
            one = ready.pop()
            while one.queue and not one.busy and not (one.closing and not self._needed(one)):
                op = one.queue.popleft()
                if isinstance(op, Decode | Select):
                    self._queued.pop(op.rid, None)
                self._apply(one, op)
            if one.closing and not one.busy and not self._needed(one):
                self._close(one)
            joined = self._joins.awaited(one)
            if joined is not None and joined.awaiting and not one.busy and not one.queue:
                joined.awaiting = False
                ready.append(joined)
            ready += self._born
            self._born = []

    # ------------------------------------------------------------ ops

    def _init(self, client: int, op: Init) -> None:
        if not owns(client, op.sid):
            self._refuse(client, op.sid, foreign("session", op.sid, client))
        elif (session := self._sessions.get(op.sid)) is not None:
            error = RequestError(f"session {op.sid!r} is open already", code="duplicate_session")
            self._poison(session, error_info(error))
        elif self._open[client] >= self._max_sessions:
            self._refuse(client, op.sid, full(self._open[client], self._max_sessions))
        else:
            self._refused.pop(op.sid, None)
            session = self._sessions[op.sid] = Session(op.sid, client)
            template = self.tokenizer.template
            if not template.exact and not template.error:
                session.conversation = Conversation()
            self._open[client] += 1
            self._to_scheduler(SessionOpen(sid=op.sid, client=client, extra_key=op.extra_key))

    def _refuse(self, client: int, sid: str, error: ErrorInfo) -> None:
        self._refused[sid] = error
        if len(self._refused) > _REMEMBERED:
            self._refused.popitem(last=False)
        self._op_failed(client, sid, error)

    def _accept(self, client: int, op: SessionOp) -> None:
        """Check what can be checked at once, then carry the op out or queue it behind the running generation."""
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
            bad = refuse_request(
                session.client,
                op,
                known=op.rid in self._requests or op.rid in self._queued,
                waiting=self._waiting[client],
                max_waiting=self._max_waiting,
                vocab_size=self.vocab_size,
            )
            self._waiting[client] += 1
            if bad is not None:
                self._fail_request(session, op, bad)
                return
        elif isinstance(op, Fork):
            op = self._bear(session, op)
        elif isinstance(op, Extend | Join):
            try:
                session.admit(op) if isinstance(op, Extend) else self._joins.link(session, op)
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
        client = parent.client
        for child in op.children:
            known = self._sessions.get(child)
            error = refuse_child(
                client, child, known=known is not None, width=len(op.children), depth=parent.depth + 1
            )
            if error is None and self._open[client] >= self._max_sessions:
                error = full(self._open[client], self._max_sessions)
            if error is None:
                self._refused.pop(child, None)
                self._sessions[child] = Session(child, client, unborn=True, depth=parent.depth + 1)
                self._open[client] += 1
                children.append(child)
            elif known is not None and known.client == client:
                self._poison(known, error)
            else:
                self._refuse(client, child, error)
        return Fork(sid=op.sid, children=children, base=op.base)

    def _apply(self, session: Session, op: SessionOp) -> None:
        """Carry out an op whose turn it is; a join whose branches have something to do goes back to wait for them."""
        if isinstance(op, Join):
            if session.error is not None:
                self._born += self._joins.unlink(op)
            elif not self._joins.ready(op):
                session.queue.appendleft(op)
                session.awaiting = True
                return
        if session.error is not None and not isinstance(op, Fork):
            if isinstance(op, Decode | Select):
                self._fail_request(session, op, session.error)
            return
        if isinstance(op, Decode | Select):
            self._queued[op.rid] = op.sid
        if isinstance(op, Decode | Select | Fork | Join):
            session.encoding = op
        elif isinstance(op, Extend):
            try:
                session.extend(op.parts, self.tokenizer, self.vocab_size)
            except SgnbError as fault:
                self._poison(session, error_info(fault))
                return

        def go_on() -> None:
            session.job = session.encoding = None
            self._pump(session)

        job = self._jobs.start(self._encode(session, op), go_on, session.cost(op))
        if job.done:
            session.encoding = None
        else:
            session.job = job

    def _encode(self, session: Session, op: SessionOp) -> Steps[None]:
        """An op in steps. Ended between two of them its request was not sent, and its text is pending still."""
        try:
            if isinstance(op, Decode):
                yield from self._decode(session, op)
            elif isinstance(op, Select):
                yield from self._select(session, op)
            elif isinstance(op, Join):
                yield from self._joins.steps(session, op)
            elif isinstance(op, Fork | Commit):
                if session.error is None:
                    ids = yield from session.settle(self.tokenizer)
                    if isinstance(
                        op, Commit
                    ):  # without new ids too: those sent before are to be computed now
                        self._to_scheduler(SessionCommit(sid=session.sid, ids=ids))
                    elif ids:
                        self._to_scheduler(SessionExtend(sid=session.sid, ids=ids))
            elif ids := (yield from session.take_stable(self.tokenizer)):
                self._to_scheduler(SessionExtend(sid=session.sid, ids=ids))
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except (
            BaseException
        ) as fault:  # a panic of the tokenizers library is no Exception; one session fails, no more
            if not isinstance(fault, SgnbError):
                log.exception("session %s", session.sid)
            if isinstance(op, Decode | Select):
                self._queued.pop(op.rid, None)
                self._fail_request(session, op, error_info(fault))
            else:
                self._poison(session, error_info(fault))
        if isinstance(op, Fork):
            self._fork(session, op)
        elif isinstance(op, Join):
            self._born += self._joins.unlink(op)

    def _fork(self, session: Session, op: Fork) -> None:
        """Its children become copies, and what they queued can go on."""
        born = [child for child in map(self._sessions.get, op.children) if child is not None and child.unborn]
        if born:
            sids = [child.sid for child in born]
            self._to_scheduler(SessionFork(sid=session.sid, children=sids, base=op.base))
        for child in born:
            child.become_copy(session, op.base)
        self._born += born

    def _select(self, session: Session, op: Select) -> Steps[None]:
        if ids := (yield from session.settle(self.tokenizer)):
            self._to_scheduler(SessionExtend(sid=session.sid, ids=ids))
        options = yield from session.take_options(op.options, self.tokenizer, self._renderer.render)
        self._to_scheduler(
            SessionSelect(
                rid=op.rid,
                sid=session.sid,
                client=session.client,
                ids=options.ids,
                options=options.rests,
                method=op.method,
                keep=options.keep,
                label=op.label,
                priority=op.priority,
            )
        )
        del self._queued[op.rid]
        session.running, session.options = op.rid, options
        self._requests[op.rid] = _Request(session.client, session.sid, False, options=tuple(op.options))

    def _decode(self, session: Session, op: Decode) -> Steps[None]:
        prompt = yield from session.prompt(self.tokenizer, self._renderer.render)
        self._to_scheduler(
            SessionDecode(
                rid=op.rid,
                sid=session.sid,
                client=session.client,
                ids=prompt.ids,
                params=op.params,
                stops=[stop.encode() for stop in op.params.stop],
                stop_token_ids=list(op.params.stop_token_ids),
                eos_token_ids=session.stop_ids(self.tokenizer),
                label=op.label,
                keep=prompt.keep,
                priority=op.priority,
            )
        )
        del self._queued[op.rid]
        session.running = op.rid
        self._requests[op.rid] = _Request(
            session.client,
            session.sid,
            op.label.name == GENERATE,
            prompt.notes,
            with_text=op.params.return_text_in_logprobs,
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
            self._drop_joins(session)
            del self._sessions[sid]
            self._open[client] -= 1
            closed.append(sid)
        if closed:
            self._to_scheduler(SessionClose(sids=closed))

    def _needed(self, session: Session) -> bool:
        """Whether a fork or a join still waits for this session, so that it must not be closed yet."""
        if self._joins.awaited(session) is not None:
            return True
        forks = [op for op in (*session.queue, session.encoding) if isinstance(op, Fork)]
        return any((child := self._sessions.get(sid)) and child.unborn for op in forks for sid in op.children)

    def _drop_joins(self, session: Session) -> None:
        """A session is closed: nobody waits for the branches that it was to be joined with."""
        branches = [
            branch
            for op in (*session.queue, session.encoding)
            if isinstance(op, Join)
            for branch in self._joins.unlink(op)
        ]
        session.queue.clear()
        for branch in branches:
            self._pump(branch)

    def _close(self, session: Session) -> None:
        """Close a session that was released while a fork waited."""
        self._drop_queued(session)
        self._drop_joins(session)
        if self._sessions.pop(session.sid, None) is not None:
            self._open[session.client] -= 1
            self._to_scheduler(SessionClose(sids=[session.sid]))

    def _drop_queued(self, session: Session, only: str | None = None) -> None:
        """End generations of a session that are queued or being encoded (or the one named); the text between them stays."""
        job, encoding = session.job, session.encoding
        if job is not None and (only is None or getattr(encoding, "rid", None) == only):
            self._jobs.cancel(job)
            session.cancelled()
            if encoding is not None:
                session.queue.appendleft(encoding)  # it is ended as those that wait are
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
            self._to_client(client, Chunks(incarnation=self._incarnation, items=chunks, spare=self._spare))
