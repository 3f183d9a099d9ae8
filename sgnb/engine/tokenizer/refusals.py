"""What a client is refused before anything is done: ids of others, too much at once, parameters that cannot be.

Tokenizer process; pure checks, called by ``manager.py``. The scheduler has checks of its own for what only it knows.
"""

from __future__ import annotations

from sgnb.engine.tokenizer.session import error_info
from sgnb.errors import LimitError, RequestError
from sgnb.messages import Decode, ErrorInfo


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


def refuse_decode(
    client: int, op: Decode, *, known: bool, waiting: int, max_waiting: int, vocab_size: int
) -> ErrorInfo | None:
    """Why this generation is refused, or None. ``known``: its id is in use; ``waiting``: requests of this client."""
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
        op.params.check().check_model(vocab_size)
    except LimitError as fault:
        return error_info(fault)
    return None
