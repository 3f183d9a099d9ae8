"""What is refused at the door: requests that can never run, or must not run now.

Role: a pure check of one request against the engine's limits; says what was asked, what is legal, and what to do. Scheduler
process; called by ``Scheduler`` when a request arrives, before it is queued.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sgnb.engine.scheduler.req import Req
from sgnb.messages import ErrorInfo

if TYPE_CHECKING:
    from sgnb.engine.scheduler.scheduler import Scheduler


def refusal(scheduler: Scheduler, req: Req) -> ErrorInfo | None:
    """Why this request is refused; None if it may be queued."""
    session = req.session
    if session is None:
        return _error("session", f"request {req.rid} names a session that is closed or was never opened")
    if session.error is not None:
        return session.error
    if session.active is not None:
        return _error("busy", f"session {session.sid} already generates ({session.active.rid})")
    if not scheduler.table:
        return _error("not_ready", "the engine is not ready: the tokenizer's table has not arrived")
    return _bad_prompt(scheduler, req) or _queue_full(scheduler)


def _bad_prompt(scheduler: Scheduler, req: Req) -> ErrorInfo | None:
    prompt, context, pool = len(req.prompt), scheduler.runner.context_length, scheduler.allocator.size
    if not prompt:
        return _error(
            "empty_prompt", "the prompt is empty: there is no token to start from", "Add some text."
        )
    low, high = int(req.prompt.min()), int(req.prompt.max())
    if low < 0 or high >= scheduler.runner.vocab_size:
        found = low if low < 0 else high
        return _error("input", f"token id {found} is outside 0..{scheduler.runner.vocab_size - 1}")
    if prompt > context or (prompt == context and req.params.max_new_tokens):
        return _error(
            "context",
            f"the prompt has {prompt} tokens, the model's context holds {context}, at least one of them new",
            "Shorten the prompt, or launch with a larger context_length if the model allows it.",
        )
    if prompt > pool and req.params.max_new_tokens:
        return _error(
            "context",
            f"the prompt has {prompt} tokens, the KV pool has {pool} slots: it can never fit",
            "Launch with a larger max_total_tokens, or shorten the prompt.",
        )
    return None


def _queue_full(scheduler: Scheduler) -> ErrorInfo | None:
    waiting, most = len(scheduler.waiting_queue), scheduler.args.max_queued_requests
    if waiting < most:
        return None
    return _error(
        "queue_full",
        f"{waiting} requests wait already, max_queued_requests is {most}",
        "Send fewer at once, or launch with a larger max_queued_requests.",
    )


def _error(code: str, message: str, hint: str = "") -> ErrorInfo:
    return ErrorInfo(kind="RequestError", code=code, message=message, hint=hint)
