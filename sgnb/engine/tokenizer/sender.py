"""An op on its way to the scheduler: what is pending becomes ids, and the message that carries them is sent.

Tokenizer process; used by ``queues`` alone, on its one thread, which decides when an op's turn has come and what becomes
of a failed one. The work comes in steps: ended between two of them, the op's message was not sent and its text is pending
still.
"""

from __future__ import annotations

from collections.abc import Callable

from sgnb.engine.tokenizer.joins import Joins
from sgnb.engine.tokenizer.roster import Request, Roster
from sgnb.engine.tokenizer.session import Session, SessionOp
from sgnb.engine.tokenizer.steps import Steps
from sgnb.engine.tokenizer.template_renderer import TemplateRenderer
from sgnb.engine.tokenizer.tokenizer import ModelTokenizer
from sgnb.messages import (
    Commit,
    Decode,
    Fork,
    Join,
    SchedulerInput,
    Select,
    SessionCommit,
    SessionDecode,
    SessionExtend,
    SessionFork,
    SessionSelect,
)

GENERATE = "@generate"
"""Label of ``Engine.generate``: its prompt and output ids go back to the client."""

ToScheduler = Callable[[SchedulerInput], None]


class Sender:
    """``roster`` and ``joins`` are the manager's own."""

    def __init__(
        self, tokenizer: ModelTokenizer, to_scheduler: ToScheduler, roster: Roster, joins: Joins
    ) -> None:
        self._tokenizer = tokenizer
        self._to_scheduler = to_scheduler
        self._roster = roster
        self._joins = joins
        self._renderer = TemplateRenderer(tokenizer.chat_template or "", tokenizer.variables)

    def close(self) -> None:
        """End the template's worker process."""
        self._renderer.close()

    def steps(self, session: Session, op: SessionOp) -> Steps[None]:
        """Encode and send. An Extend's text was appended already: what of it is long and settled is sent. Of a Fork what
        is settled; ``fork`` then sends the fork itself."""
        if isinstance(op, Decode):
            yield from self._decode(session, op)
        elif isinstance(op, Select):
            yield from self._select(session, op)
        elif isinstance(op, Join):
            yield from self._joins.steps(session, op)
        elif isinstance(op, Commit):
            if session.error is None:
                ids = yield from session.settle(self._tokenizer)
                # Without new ids too: those sent before are to be computed now.
                session.sends(ids)
                self._to_scheduler(SessionCommit(sid=session.sid, ids=ids))
        elif isinstance(op, Fork):
            if session.error is None:
                self._extend(session, (yield from session.settle(self._tokenizer)))
        else:
            self._extend(session, (yield from session.take_stable(self._tokenizer)))

    def _extend(self, session: Session, ids: list[int]) -> None:
        if ids:
            session.sends(ids)
            self._to_scheduler(SessionExtend(sid=session.sid, ids=ids))

    def fork(self, session: Session, op: Fork) -> list[Session]:
        """The fork's children become copies: those that were born."""
        children = map(self._roster.sessions.get, op.children)
        born = [child for child in children if child is not None and child.unborn]
        if born:
            sids = [child.sid for child in born]
            self._to_scheduler(SessionFork(sid=session.sid, children=sids, base=op.base))
        for child in born:
            child.become_copy(session, op.base)
        return born

    def _select(self, session: Session, op: Select) -> Steps[None]:
        self._extend(session, (yield from session.settle(self._tokenizer)))
        options = yield from session.take_options(op.options, self._tokenizer, self._renderer.render)
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
        session.running, session.options = op.rid, options
        fresh = session.take_fresh(options.ids, options.keep)
        self._roster.launch(
            op.rid, Request(session.client, session.sid, options=tuple(op.options), fresh=fresh)
        )

    def _decode(self, session: Session, op: Decode) -> Steps[None]:
        prompt = yield from session.prompt(self._tokenizer, self._renderer.render)
        self._to_scheduler(
            SessionDecode(
                rid=op.rid,
                sid=session.sid,
                client=session.client,
                ids=prompt.ids,
                params=op.params,
                stops=[stop.encode() for stop in op.params.stop],
                stop_token_ids=list(op.params.stop_token_ids),
                eos_token_ids=session.stop_ids(self._tokenizer),
                label=op.label,
                keep=prompt.keep,
                priority=op.priority,
            )
        )
        session.running = op.rid
        self._roster.launch(
            op.rid,
            Request(
                session.client,
                session.sid,
                with_ids=op.label.name == GENERATE,
                notes=prompt.notes,
                with_text=op.params.return_text_in_logprobs,
                fresh=session.take_fresh(prompt.ids, prompt.keep),
            ),
        )
