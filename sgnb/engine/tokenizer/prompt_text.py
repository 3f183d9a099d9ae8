"""What of a prompt is new, as text in tokens: told with a request's last chunk, so that a view can say what was reused.

Tokenizer process; kept by ``session`` between two requests, told by ``replies``. Only ids that were sent since the state's
last request, so no token is told twice to one state. Bounded: a longer stretch is not told at all. Nothing is encoded here.
"""

from __future__ import annotations

from collections.abc import Sequence

from sgnb.messages import PromptText

MAX_TOLD = 65_536
"""Tokens of one prompt that are told."""
MAX_TOLD_BYTES = 4 << 20
"""Bytes of all prompts that are told in one frame."""


def prompt_text(ids: Sequence[int], total: int, table: Sequence[bytes]) -> PromptText | None:
    """The last ids of a prompt of ``total`` tokens as text; None where they are too many, or cannot be its last ones."""
    if not ids or len(ids) > MAX_TOLD or len(ids) > total:
        return None
    pieces = [table[token] if 0 <= token < len(table) else b"" for token in ids]
    return PromptText(first=total - len(ids), lengths=[len(piece) for piece in pieces], raw=b"".join(pieces))
