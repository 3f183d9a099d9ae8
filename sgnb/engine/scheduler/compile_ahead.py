"""The control ``compile_grammar``: a constraint is compiled before the request that needs it comes.

Role: from one control to its answer, which is sent when the grammar is there. Scheduler process; called by ``intake``. What
is compiled, kept and given out is the grammar manager's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sgnb.constraints import KINDS, Constraint, check_constraint
from sgnb.engine.grammar.base import CompiledGrammar
from sgnb.errors import SgnbError
from sgnb.messages import ErrorInfo, SchedulerControl, SchedulerReply

if TYPE_CHECKING:
    from sgnb.engine.scheduler.grammar_manager import Outcome
    from sgnb.engine.scheduler.scheduler import Scheduler

MOST = 64
"""Constraints that may wait to be compiled though no request waits for them, of all clients together."""


def compile_ahead(scheduler: Scheduler, msg: SchedulerControl) -> None:
    """Compile ``kind`` and ``text``; answered with the ``seconds`` that it took, or the error that a request would meet."""

    def send(data: dict[str, Any], error: ErrorInfo | None = None) -> None:
        scheduler.send(SchedulerReply(client=msg.client, id=msg.id, data=data, error=error))

    def told(outcome: Outcome) -> None:
        if isinstance(outcome, CompiledGrammar):
            send({"seconds": outcome.seconds})
        else:
            send({}, outcome)

    kind, text = msg.args.get("kind"), msg.args.get("text")
    if kind not in KINDS or not isinstance(text, str):
        message = f"kind must be one of {', '.join(KINDS)}, and text a text"
        return send({}, ErrorInfo(kind="RequestError", code="refused", message=message))
    try:
        check_constraint(kind, text)
    except SgnbError as fault:
        error = ErrorInfo(kind=type(fault).__name__, code="refused", message=fault.message, hint=fault.hint)
        return send({}, error)
    if scheduler.grammars.ahead >= MOST:
        message = f"{MOST} constraints are to be compiled ahead already"
        return send({}, ErrorInfo(kind="LimitError", code="refused", message=message))
    return scheduler.grammars.prepare(Constraint(kind, text), told)
