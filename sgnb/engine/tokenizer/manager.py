"""Sessions and requests between clients and scheduler: text becomes ids, output becomes chunks.

Tokenizer process; one thread calls it (the process's loop, or a test): ``handle`` with what a client sent, ``on_batch``
with what a step gave, ``pump`` while it says that there is more. It answers through two callables, so it knows no sockets.
Each session is a queue of its own (``queues``): ops take effect in order. A Fork has its children at once, whose ops wait
for it. Short text is encoded at once; long text in pieces, one for each ``pump``, between which all other messages are
served (``sender``, ``steps``). A client may name only what it made: its ids start with ``c<client>.`` (``roster``). What
goes back is put together in ``replies``.

Every Decode and Select gets exactly one chunk with a finish. A failed op poisons its session: later ops fail with the
first cause. After an abort a session stays usable: its queued requests end with ``abort``, its queued text is still
appended, so that turns stay closed as the notebook wrote them. No scheduling, no model here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from sgnb.config import MAX_STATES, MAX_WAITING
from sgnb.engine.tokenizer.conversation import Conversation
from sgnb.engine.tokenizer.detokenizer import text_of_ids
from sgnb.engine.tokenizer.gate import Gate
from sgnb.engine.tokenizer.queues import SessionQueues
from sgnb.engine.tokenizer.replies import Replies, ToClient
from sgnb.engine.tokenizer.roster import Request, Roster
from sgnb.engine.tokenizer.session import Session, SessionOp, error_info
from sgnb.engine.tokenizer.steps import Steps
from sgnb.engine.tokenizer.tokenizer import ModelTokenizer, model_info
from sgnb.errors import RequestError, SgnbError
from sgnb.messages import (
    AbortReqs,
    BatchOutput,
    ClientGone,
    Decode,
    Decodes,
    ErrorInfo,
    Extend,
    Finish,
    Fork,
    Init,
    Join,
    ModelInfo,
    Op,
    Release,
    ReqOutput,
    SchedulerFrame,
    SchedulerReady,
    Select,
    SessionClose,
    SessionOpen,
    TokenTable,
)


def _nothing() -> None:
    """Who polls need not be woken."""


class TokenizerManager:
    """Sessions of all clients. ``incarnation`` goes into every message to a client.

    ``wake`` is called from another thread when ``pump`` has work again after it said there was none.
    """

    def __init__(
        self,
        tokenizer: ModelTokenizer,
        to_scheduler: Callable[[SchedulerFrame], None],
        to_client: ToClient,
        *,
        incarnation: str = "",
        max_sessions: int = MAX_STATES,
        max_waiting: int = MAX_WAITING,
        wake: Callable[[], None] = _nothing,
    ) -> None:
        self.tokenizer = tokenizer
        self._to_scheduler = Gate(to_scheduler)
        self._roster = Roster(max_sessions, max_waiting)
        self._replies = Replies(tokenizer.table, to_client, incarnation)
        self._queues = SessionQueues(tokenizer, self._to_scheduler, self._roster, self._replies, wake)

    # ------------------------------------------------------------ facts

    @property
    def vocab_size(self) -> int:
        """The model's own once ``model_info`` was told of it, until then the tokenizer's: what ids are checked against."""
        return self._queues.vocab_size

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
        self._queues.vocab_size = ready.vocab_size
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

        self._queues.jobs.start(steps(), _nothing, len(text))

    def detokenize(self, ids: list[int]) -> tuple[str, int]:
        """The text of ids up to the last that ends a character, and how many that are."""
        return text_of_ids(ids, self.tokenizer.table)

    def counts(self) -> dict[str, int]:
        """Sessions, requests in flight, requests queued here."""
        return self._roster.counts()

    # ------------------------------------------------------------ long work

    def pump(self) -> bool:
        """One piece of what is under way. True while another can be done now: call again, after looking at messages."""
        self._queues.jobs.step()
        self._replies.flush()
        return self._queues.jobs.ready

    @property
    def encoding(self) -> int:
        """Texts that are being encoded or rendered."""
        return len(self._queues.jobs)

    def close(self) -> None:
        """End the template's worker process. Nothing may be called after it."""
        self._queues.shut()

    # ------------------------------------------------------------ from clients

    def handle(self, client: int, ops: Sequence[Op]) -> None:
        """Carry out a client's ops in order. Never raises for what a client sent: it is told."""
        for op in ops:
            if isinstance(op, Init):
                self._init(client, op)
            elif isinstance(op, Release):
                self._release(client, op.sids)
            elif isinstance(op, Decodes):
                with self._to_scheduler.together():
                    for one in _each(op):
                        self._accept(client, one)
            else:
                self._accept(client, op)
        self._replies.flush()

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
            request = self._roster.requests.get(rid)
            session = self._roster.sessions.get(self._roster.queued.get(rid, ""))
            if request is not None and request.client == client:
                running.append(rid)
            elif session is not None and session.client == client:
                self._queues.drop_queued(session, only=rid)
                self._queues.pump(session)
        for session in list(self._roster.sessions.values()):
            mine = all_clients or session.client == client
            if mine and (everything or all_clients or session.sid in sids):
                self._queues.drop_queued(session)
                self._queues.pump(session)
                if session.running is not None:
                    running.append(session.running)
        if running:
            self._to_scheduler(AbortReqs(rids=list(dict.fromkeys(running))))
        self._replies.flush()

    def client_gone(self, client: int) -> None:
        """Forget a client: its sessions close, its requests end, nothing more is sent to it. Idempotent."""
        for session in self._roster.of_client(client):
            if session.job is not None:
                self._queues.jobs.cancel(session.job)
        for rid in self._roster.drop_client(client):
            self._replies.drop_request(rid)
        self._replies.drop_client(client)
        self._to_scheduler(ClientGone(client=client))

    # ------------------------------------------------------------ from the scheduler

    def on_batch(self, batch: BatchOutput) -> None:
        """Send one step's outputs to their clients; what waited behind a finished generation goes on."""
        self._replies.spare = batch.spare
        for out in batch.items:
            request = self._roster.requests.get(out.rid)
            if request is None:  # its client is gone
                self._replies.drop_request(out.rid)
                continue
            self._replies.output(out, request)
            session = self._roster.sessions.get(request.sid)
            if session is not None and session.running == out.rid:
                session.sampled(out.ids)
            if out.finish is not None:
                self._finished(out, request, out.finish)
        self._replies.flush()

    def _finished(self, out: ReqOutput, request: Request, finish: Finish) -> None:
        self._roster.end(out.rid)
        session = self._roster.sessions.get(request.sid)
        if session is None or session.running != out.rid:
            return  # released meanwhile
        if out.choice is not None:
            session.end_options(out.choice.index, request.options[out.choice.index])
        kept = out.meta.kept_tokens if out.meta is not None else 0
        session.finished(kept, out.leftover.decode("utf-8", "replace"), self.tokenizer)
        if finish.type == "error" and session.error is None:
            session.error = finish.error or ErrorInfo(kind="RequestError", message="the generation failed")
        self._queues.pump(session)

    # ------------------------------------------------------------ ops

    def _init(self, client: int, op: Init) -> None:
        if (session := self._roster.sessions.get(op.sid)) is not None and session.client == client:
            error = RequestError(f"session {op.sid!r} is open already", code="duplicate_session")
            self._queues.poison(session, error_info(error))
        elif (refused := self._roster.refuse_session(client, op.sid)) is not None:
            self._refuse(client, op.sid, refused)
        else:
            session = Session(op.sid, client)
            self._roster.add(session)
            template = self.tokenizer.template
            if not template.exact and not template.error:
                session.conversation = Conversation()
            self._to_scheduler(SessionOpen(sid=op.sid, client=client, extra_key=op.extra_key))

    def _refuse(self, client: int, sid: str, error: ErrorInfo) -> None:
        self._roster.remember(sid, error)
        self._replies.op_failed(client, sid, error)

    def _accept(self, client: int, op: SessionOp) -> None:
        """Check what can be checked at once, then carry the op out or queue it behind the running generation."""
        session = self._roster.usable(client, op.sid)
        if session is None:
            error = self._roster.recall(op.sid) or error_info(
                RequestError(f"no session {op.sid!r} of this client is open", code="unknown_session")
            )
            if isinstance(op, Decode | Select):
                self._replies.failed(client, op.rid, error)
            elif isinstance(op, Fork):
                for child in op.children:
                    self._refuse(client, child, error)
            else:
                self._replies.op_failed(client, op.sid, error)
            return
        if isinstance(op, Decode | Select):
            bad = self._roster.refuse_request(session.client, op, self.vocab_size)
            self._roster.waiting[client] += 1
            if bad is not None:
                self._queues.fail_request(session, op, bad)
                return
        elif isinstance(op, Fork):
            op = self._bear(session, op)
        elif isinstance(op, Extend | Join):
            try:
                session.admit(op) if isinstance(op, Extend) else self._queues.joins.link(session, op)
            except SgnbError as fault:
                self._queues.poison(session, error_info(fault))
                return
        self._queues.put(session, op)

    def _bear(self, parent: Session, op: Fork) -> Fork:
        """Make a fork's children, whose ops wait until it is carried out. The fork without those that cannot be."""
        children = []
        for child in op.children:
            error = self._roster.refuse_child(parent, child, len(op.children))
            if error is None:
                self._roster.add(Session(child, parent.client, unborn=True, depth=parent.depth + 1))
                children.append(child)
            elif (known := self._roster.sessions.get(child)) is not None and known.client == parent.client:
                self._queues.poison(known, error)
            else:
                self._refuse(parent.client, child, error)
        return Fork(sid=op.sid, children=children, base=op.base)

    def _release(self, client: int, sids: Sequence[str]) -> None:
        closed = []
        for sid in sids:
            self._roster.forget(sid)
            session = self._roster.sessions.get(sid)
            if session is not None and session.client == client and self._queues.release(session):
                closed.append(sid)
        if closed:
            self._to_scheduler(SessionClose(sids=closed))


def _each(op: Decodes) -> Iterator[Decode]:
    """What each of the generations would be alone."""
    for one in op.items:
        yield Decode(
            rid=one.rid,
            sid=one.sid,
            params=replace(op.params, seed=one.seed),
            label=replace(op.label, branch=one.branch),
            priority=op.priority,
        )
