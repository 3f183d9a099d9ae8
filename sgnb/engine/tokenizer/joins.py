"""Joins by KV in the tokenizer process: branches that wait to be appended to their parent, and how they are.

Tokenizer process; used by ``queues``, ``sender`` and ``manager``, on their one thread. A join waits in its parent's
queue like any op; its branches are kept open until it is carried out, though they may be released meanwhile, and it
waits until they have nothing to do. What they have pending is tokenised then; which ids lie where in the cache is the
scheduler's affair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sgnb.engine.tokenizer.session import Session
from sgnb.engine.tokenizer.steps import Steps
from sgnb.engine.tokenizer.tokenizer import ModelTokenizer
from sgnb.errors import RequestError
from sgnb.messages import Join, JoinPart, SchedulerInput, SessionExtend, SessionJoin

HINT = 'Leave out method="kv": the texts are appended, which is exact.'


class Joins:
    """``sessions`` are the manager's own."""

    def __init__(
        self,
        sessions: Mapping[str, Session],
        tokenizer: ModelTokenizer,
        to_scheduler: Callable[[SchedulerInput], None],
    ) -> None:
        self._sessions = sessions
        self._tokenizer = tokenizer
        self._to_scheduler = to_scheduler

    def link(self, parent: Session, op: Join) -> None:
        """Keep the branches for this join. RequestError when one cannot be joined to ``parent``."""
        for sid in op.branches:
            branch = self._sessions.get(sid)
            if branch is None or branch.client != parent.client or branch.closing:
                raise RequestError(f"no branch {sid!r} of this client is open", code="unknown_session")
            if branch is parent or branch.awaited_by is not None:
                raise RequestError(f"branch {sid!r} is joined twice", code="kv_join", hint=HINT)
        for sid in op.branches:
            self._sessions[sid].awaited_by = parent.sid

    def ready(self, op: Join) -> bool:
        """Its branches have nothing to do any more."""
        return not any(branch.busy or branch.queue for branch in self._branches(op))

    def awaited(self, branch: Session) -> Session | None:
        """The session that waits to join this branch, if there is one."""
        return self._sessions.get(branch.awaited_by) if branch.awaited_by is not None else None

    def unlink(self, op: Join) -> list[Session]:
        """The join is over, one way or another: its branches, which may be closed now."""
        branches = self._branches(op)
        for branch in branches:
            branch.awaited_by = None
        return branches

    def _branches(self, op: Join) -> list[Session]:
        return [self._sessions[sid] for sid in op.branches if sid in self._sessions]

    def steps(self, parent: Session, op: Join) -> Steps[None]:
        """Carry it out. Ended between two steps nothing is lost: what was pending is pending still, or its branch's own."""
        branches = self._branches(op)
        self._check(parent, branches)
        parts = []
        for branch in branches:
            ids = yield from branch.take_rest(self._tokenizer)
            if ids:
                self._to_scheduler(SessionExtend(sid=branch.sid, ids=ids))
            assert branch.beginning is not None, "checked"
            skip, instead = yield from branch.beginning.part(self._tokenizer)
            parts.append(JoinPart(sid=branch.sid, skip=skip, ids=instead))
        ids = yield from parent.take_rest(self._tokenizer)
        parent.append_branches(branches)
        self._to_scheduler(SessionJoin(sid=parent.sid, ids=ids, parts=parts))

    def _check(self, parent: Session, branches: list[Session]) -> None:
        for number, branch in enumerate(branches):
            if branch.error is not None:
                raise RequestError(branch.error.message, code=branch.error.code, hint=branch.error.hint)
            if branch.beginning is None:
                raise RequestError(
                    f'what is branch {branch.sid!r}\'s own is not known: a pass, or join("best"), put another in its place',
                    code="kv_join",
                    hint=HINT,
                )
            if branch.renders or parent.renders:
                raise RequestError(
                    f"the chat template of {self._tokenizer.name} renders conversations whole: their KV cannot be joined",
                    code="kv_join",
                    hint=HINT,
                )
            if branch.role != parent.role and number + 1 < len(branches):
                raise RequestError(
                    f"a branch ends with {_turn(branch)}, but the next one begins with {_turn(parent)}",
                    code="role",
                    hint="End in each branch the turns that it begins.",
                )


def _turn(session: Session) -> str:
    return f"an open turn of {session.role!r}" if session.role else "no open turn"
