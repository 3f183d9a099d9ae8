"""Each session's ops in their order: what waits behind a generation goes on when it ends, is dropped, or fails.

Tokenizer process; used by ``manager`` alone, on its one thread. While a Decode or Select of a session is in flight, or its
text is being encoded, its later ops wait here, because the output comes between. A Fork that waits keeps a released parent
open; a Join waits until its branches have nothing to do. How an op is encoded and sent is the ``sender``'s affair.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from sgnb.engine.tokenizer.borders import PIECE_CHARS
from sgnb.engine.tokenizer.joins import Joins
from sgnb.engine.tokenizer.replies import Replies
from sgnb.engine.tokenizer.roster import Roster
from sgnb.engine.tokenizer.sender import Sender, ToScheduler
from sgnb.engine.tokenizer.session import MAX_QUEUED_OPS, Session, SessionOp, error_info
from sgnb.engine.tokenizer.steps import Jobs, Steps
from sgnb.engine.tokenizer.tokenizer import ModelTokenizer
from sgnb.errors import LimitError, SgnbError
from sgnb.messages import Decode, ErrorInfo, Extend, Fork, Join, Select, SessionClose

log = logging.getLogger(__name__)


class SessionQueues:
    """``roster`` and ``replies`` are the manager's own. ``wake`` as there."""

    def __init__(
        self,
        tokenizer: ModelTokenizer,
        to_scheduler: ToScheduler,
        roster: Roster,
        replies: Replies,
        wake: Callable[[], None],
    ) -> None:
        self.vocab_size = tokenizer.vocab_size
        self.jobs = Jobs(wake, 2 * PIECE_CHARS)
        self.joins = Joins(roster.sessions, tokenizer, to_scheduler)
        self._tokenizer = tokenizer
        self._to_scheduler = to_scheduler
        self._roster = roster
        self._replies = replies
        self._sender = Sender(tokenizer, to_scheduler, roster, self.joins)
        self._born: list[Session] = []
        """Children of forks just carried out: what they queued can go on."""

    def shut(self) -> None:
        """End the template's worker process."""
        self._sender.close()

    def put(self, session: Session, op: SessionOp) -> None:
        """Carry an op out, or queue it behind what is in flight."""
        if not session.busy:
            session.queue.append(op)
            self.pump(session)
        elif len(session.queue) >= MAX_QUEUED_OPS:
            error = error_info(LimitError(f"{MAX_QUEUED_OPS} operations wait behind one generation"))
            if isinstance(op, Decode | Select):
                self.fail_request(session, op, error)
            else:
                self.poison(session, error)
        else:
            session.queue.append(op)
            if isinstance(op, Decode | Select):
                self._roster.queued[op.rid] = op.sid

    def pump(self, session: Session) -> None:
        """Carry out what waited, up to the next request; forks let their children's ops go on too."""
        ready = [session]
        while ready:
            one = ready.pop()
            while one.queue and not one.busy and not (one.closing and not self._needed(one)):
                op = one.queue.popleft()
                if isinstance(op, Decode | Select):
                    self._roster.queued.pop(op.rid, None)
                self._apply(one, op)
            if one.closing and not one.busy and not self._needed(one):
                self._close(one)
            joined = self.joins.awaited(one)
            if joined is not None and joined.awaiting and not one.busy and not one.queue:
                joined.awaiting = False
                ready.append(joined)
            ready += self._born
            self._born = []

    def _apply(self, session: Session, op: SessionOp) -> None:
        """Carry out an op whose turn it is; a join whose branches have something to do goes back to wait for them."""
        if isinstance(op, Join):
            if session.error is not None:
                self._born += self.joins.unlink(op)
            elif not self.joins.ready(op):
                session.queue.appendleft(op)
                session.awaiting = True
                return
        if session.error is not None and not isinstance(op, Fork):
            if isinstance(op, Decode | Select):
                self.fail_request(session, op, session.error)
            return
        if isinstance(op, Decode | Select):
            self._roster.queued[op.rid] = op.sid
        if isinstance(op, Decode | Select | Fork | Join):
            session.encoding = op
        elif isinstance(op, Extend):
            try:
                session.extend(op.parts, self._tokenizer, self.vocab_size)
            except SgnbError as fault:
                self.poison(session, error_info(fault))
                return

        def go_on() -> None:
            session.job = session.encoding = None
            self.pump(session)

        job = self.jobs.start(self._encode(session, op), go_on, session.cost(op))
        if job.done:
            session.encoding = None
        else:
            session.job = job

    def _encode(self, session: Session, op: SessionOp) -> Steps[None]:
        """An op in steps. Ended between two of them its request was not sent, and its text is pending still."""
        try:
            yield from self._sender.steps(session, op)
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except (
            BaseException
        ) as fault:  # a panic of the tokenizers library is no Exception; one session fails, no more
            if not isinstance(fault, SgnbError):
                log.exception("session %s", session.sid)
            if isinstance(op, Decode | Select):
                self._roster.queued.pop(op.rid, None)
                self.fail_request(session, op, error_info(fault))
            else:
                self.poison(session, error_info(fault))
        if isinstance(op, Fork):
            self._born += self._sender.fork(session, op)
        elif isinstance(op, Join):
            self._born += self.joins.unlink(op)

    def release(self, session: Session) -> bool:
        """Close a session, at once or when no fork or join waits for it any more. True if the caller must say that it is
        closed."""
        if self._needed(session):
            session.closing = True
            return False
        self.drop_queued(session)
        self._drop_joins(session)
        return self._roster.remove(session)

    def _close(self, session: Session) -> None:
        """Close a session that was released while a fork waited."""
        if self.release(session):
            self._to_scheduler(SessionClose(sids=[session.sid]))

    def _needed(self, session: Session) -> bool:
        """Whether a fork or a join still waits for this session, so that it must not be closed yet."""
        if self.joins.awaited(session) is not None:
            return True
        forks = [op for op in (*session.queue, session.encoding) if isinstance(op, Fork)]
        return any(
            (child := self._roster.sessions.get(sid)) and child.unborn for op in forks for sid in op.children
        )

    def _drop_joins(self, session: Session) -> None:
        """A session is closed: nobody waits for the branches that it was to be joined with."""
        branches = [
            branch
            for op in (*session.queue, session.encoding)
            if isinstance(op, Join)
            for branch in self.joins.unlink(op)
        ]
        session.queue.clear()
        for branch in branches:
            self.pump(branch)

    def drop_queued(self, session: Session, only: str | None = None) -> None:
        """End generations of a session that are queued or being encoded (or the one named); the text between them stays."""
        job, encoding = session.job, session.encoding
        if job is not None and (only is None or getattr(encoding, "rid", None) == only):
            self.jobs.cancel(job)
            session.cancelled()
            if encoding is not None:
                session.queue.appendleft(encoding)  # it is ended as those that wait are
        kept = []
        for op in session.queue:
            if isinstance(op, Decode | Select) and only in (None, op.rid):
                del self._roster.queued[op.rid]
                self._roster.waiting[session.client] -= 1
                self._replies.aborted(session.client, op.rid)
            else:
                kept.append(op)
        session.queue.clear()
        session.queue.extend(kept)

    def poison(self, session: Session, error: ErrorInfo) -> None:
        """An op without a request failed: tell the client once."""
        if session.error is None:
            session.error = error
            self._replies.op_failed(session.client, session.sid, error)

    def fail_request(self, session: Session, op: Decode | Select, error: ErrorInfo) -> None:
        """A request fails before it was sent: its session with it."""
        self._roster.waiting[session.client] -= 1
        if session.error is None:
            session.error = error
        if self._roster.known(op.rid):
            # A chunk would end the other request of that name.
            self._replies.op_failed(session.client, session.sid, error)
        else:
            self._replies.failed(session.client, op.rid, error)
