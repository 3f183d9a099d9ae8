"""What a client is refused before anything is done: ids of others, too much at once, parameters that cannot be.

Tokenizer process; pure checks, called by ``roster``. The scheduler has checks of its own for what only it knows.
"""

from __future__ import annotations

from sgnb.config import MAX_FORK_DEPTH, MAX_FORK_WIDTH, MAX_OPTIONS, MAX_PROMPT_BYTES
from sgnb.engine.tokenizer.session import error_info
from sgnb.errors import LimitError, RequestError, SgnbError
from sgnb.messages import Decode, ErrorInfo, Select

METHODS = ("token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized")


def owns(client: int, name: str) -> bool:
    """True for an id that this client may make."""
    return name.startswith(f"c{client}.")


def foreign(what: str, name: str, client: int) -> ErrorInfo:
    """An id (of a ``session`` or a ``request``) that another client's begin with."""
    return error_info(
        RequestError(
            f"{what} id {name!r} is not this client's: its ids start with 'c{client}.'", code="foreign_id"
        )
    )


def full(count: int, most: int) -> ErrorInfo:
    """Too many sessions."""
    return error_info(
        LimitError(
            f"{count} states are live, at most {most} are allowed",
            hint="Drop references to states of finished programs.",
        )
    )


def refuse_request(
    client: int, op: Decode | Select, *, known: bool, waiting: int, max_waiting: int, vocab_size: int
) -> ErrorInfo | None:
    """Why this request is refused, or None. ``known``: its id is in use; ``waiting``: requests of this client."""
    if not owns(client, op.rid):
        return foreign("request", op.rid, client)
    if known:
        return error_info(RequestError(f"request {op.rid!r} exists already", code="duplicate_request"))
    if waiting >= max_waiting:
        return error_info(
            RequestError(
                f"{waiting} requests of this client wait or run, at most {max_waiting} are allowed",
                code="queue_full",
                hint="Run fewer programs at once (num_threads of run_batch).",
            )
        )
    try:
        if isinstance(op, Decode):
            op.params.check().check_model(vocab_size)
        else:
            _check_options(op)
    except SgnbError as fault:
        return error_info(fault)
    return None


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


def refuse_child(client: int, child: str, *, known: bool, width: int, depth: int) -> ErrorInfo | None:
    """Why a fork of ``width`` cannot open this child, ``depth`` forks down; None if it can."""
    if not owns(client, child):
        return foreign("session", child, client)
    if known:
        return error_info(RequestError(f"session {child!r} is open already", code="duplicate_session"))
    if width > MAX_FORK_WIDTH or depth > MAX_FORK_DEPTH:
        text = f"a fork has at most {MAX_FORK_WIDTH} children, {MAX_FORK_DEPTH} deep"
        return error_info(LimitError(f"{text}; here {width}, {depth} deep"))
    return None
