"""What is refused at the door: requests that can never run, or must not run now.

Role: a pure check of one message against the engine's limits; says what was asked, what is legal, and what to do. Scheduler
process; called by ``Scheduler`` when a message arrives, before anything is queued or any array is made of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sgnb.engine.scheduler.select import Selection
from sgnb.engine.scheduler.session import Session
from sgnb.messages import ErrorInfo, SessionDecode, SessionJoin

if TYPE_CHECKING:
    from sgnb.engine.scheduler.scheduler import Scheduler


MAX_LOGPROBS = 250_000
"""Of one prompt, alternatives included: what fits into one message, with the text of each token."""
MAX_SCORED = 1 << 19
"""Tokens of all options of one select, for the same reason."""


def refusal(
    scheduler: Scheduler, msg: SessionDecode, session: Session | None, selection: Selection | None = None
) -> ErrorInfo | None:
    """Why this request is refused; None if it may be queued."""
    if session is None or session.client != msg.client:
        return _error("session", f"request {msg.rid} names a session that is closed or was never opened")
    if session.error is not None:
        return session.error
    if session.active is not None:
        return _error("busy", f"session {session.sid} already generates ({session.active.rid})")
    if not scheduler.table:
        return _error("not_ready", "the engine is not ready: the tokenizer's table has not arrived")
    if b"" in msg.stops:
        return _error("input", "a stop string is empty: it would end every output at once", "Remove it.")
    kept = len(session.ids) if msg.keep is None else msg.keep
    wanted = _too_many_logprobs(msg, kept + len(msg.ids)) if selection is None else None
    if wanted is not None:
        return wanted
    if not 0 <= kept <= len(session.ids):
        hint = "This is a fault of sgnb: the tokenizer process lost count of this session."
        return _error("keep", f"session {session.sid} has {len(session.ids)} ids, not {kept} to keep", hint)
    bad = bad_ids(msg.ids, scheduler.runner.vocab_size)
    if selection is not None and not bad:
        bad = bad_ids(
            [token for option in selection.options for token in option], scheduler.runner.vocab_size
        )
        bad = bad or _too_long(scheduler, kept + len(msg.ids), selection)
    length = kept + len(msg.ids)
    scored = msg.params.return_logprob and 0 <= msg.params.logprob_start_len < length - 1
    new = msg.params.max_new_tokens if selection is None else 0  # what options take, _too_long has weighed
    return bad or _never_fits(scheduler, length, new, scored) or _queue_full(scheduler)


def join_refusal(scheduler: Scheduler, msg: SessionJoin, parent: Session) -> ErrorInfo | None:
    """Why these branches cannot be joined by their KV; None if they can."""
    hint = 'Leave out method="kv": the texts are appended, which is exact.'
    if not scheduler.runner.rotates:
        return _error("kv_join", "this runner's KV cannot be copied to other positions", hint)
    order = "This is a fault of sgnb: its text and tokens would be out of order."
    if parent.active is not None:
        return _error("order", f"branches were joined into session {msg.sid} while it generates", order)
    for part in msg.parts:
        branch = scheduler.sessions.get(part.sid)
        if branch is None or branch.client != parent.client or branch.extra_key != parent.extra_key:
            return _error("kv_join", f"branch {part.sid} is closed or not of this session's kind", hint)
        if branch.error is not None:
            return branch.error
        if branch.active is not None:
            return _error("order", f"branch {part.sid} was joined while it generates", order)
        if not 0 <= part.skip <= len(branch.ids) - branch.forked_at:
            return _error("kv_join", f"branch {part.sid} has fewer than {part.skip} ids to leave out", order)
    ids = [*msg.ids, *(token for part in msg.parts for token in part.ids)]
    return bad_ids(ids, scheduler.runner.vocab_size)


def bad_ids(ids: list[int], vocab_size: int) -> ErrorInfo | None:
    """Token ids outside the vocabulary."""
    if ids and (min(ids) < 0 or max(ids) >= vocab_size):
        found = next(token for token in ids if not 0 <= token < vocab_size)
        return _error("input", f"token id {found} is outside 0..{vocab_size - 1}")
    return None


def _never_fits(scheduler: Scheduler, prompt: int, new: int, scored: bool) -> ErrorInfo | None:
    """Nothing is computed of a prompt that draws nothing, unless its log-probabilities are wanted (``scored``)."""
    context, pool = scheduler.runner.context_length, scheduler.allocator.size
    if not prompt:
        return _error(
            "empty_prompt", "the prompt is empty: there is no token to start from", "Add some text."
        )
    if prompt > context or (prompt == context and new):
        return _error(
            "context",
            f"the prompt has {prompt} tokens, the model's context holds {context}, at least one of them new",
            "Shorten the prompt, or launch with a larger context_length if the model allows it.",
        )
    if prompt > pool and (new or scored):
        return _error(
            "context",
            f"the prompt has {prompt} tokens, the KV pool has {pool} slots: it can never fit",
            "Launch with a larger max_total_tokens, or shorten the prompt.",
        )
    return None


def _too_long(scheduler: Scheduler, prompt: int, selection: Selection) -> ErrorInfo | None:
    """A select's longest option must fit behind the prompt; its last token needs neither slot nor position. The prompt ends
    at a page border and the option's row holds the rest, so together they take the pages of one sequence. All options
    together must fit into the answer."""
    count = sum(map(len, selection.options))
    if count > MAX_SCORED:
        return _error(
            "input",
            f"the options have {count:,} tokens, at most {MAX_SCORED:,} are allowed",
            "Give fewer or shorter options.",
        )
    room, longest = min(scheduler.runner.context_length, scheduler.allocator.size), selection.longest
    if prompt + longest - 1 <= room:
        return None
    return _error(
        "context",
        f"the prompt has {prompt} tokens and the longest option {longest}; context and KV pool hold {room}",
        "Shorten the prompt or the options.",
    )


def _too_many_logprobs(msg: SessionDecode, prompt: int) -> ErrorInfo | None:
    """Log-probabilities of a prompt from beyond its end, or more of them than one message holds."""
    params = msg.params
    if not params.return_logprob or params.logprob_start_len < 0 or not prompt:
        return None
    if params.logprob_start_len >= prompt:
        return _error(
            "input",
            f"logprob_start_len must be in -1..{prompt - 1} for this prompt of {prompt} tokens, "
            f"not {params.logprob_start_len}",
        )
    count = (prompt - params.logprob_start_len) * (1 + params.top_logprobs_num)
    if count <= MAX_LOGPROBS:
        return None
    return _error(
        "input",
        f"{count:,} log-probabilities of the prompt are asked for, at most {MAX_LOGPROBS:,} are allowed",
        "Begin later (logprob_start_len), or ask for fewer alternatives (top_logprobs_num).",
    )


def _queue_full(scheduler: Scheduler) -> ErrorInfo | None:
    waiting = len(scheduler.waiting_queue) + len(scheduler.grammars.queue)
    most = scheduler.args.max_queued_requests
    if waiting < most:
        return None
    return _error(
        "queue_full",
        f"{waiting} requests wait already, max_queued_requests is {most}",
        "Send fewer at once, or let more wait: %sgl set max_queued_requests N.",
    )


def _error(code: str, message: str, hint: str = "") -> ErrorInfo:
    return ErrorInfo(kind="RequestError", code=code, message=message, hint=hint)
