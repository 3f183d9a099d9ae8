"""Which tokens of a prompt a row's text is, and how many of them were reused: for its cost line, its shade, its inspector.

Notebook process; used by ``widgets.program_rows`` and ``widgets.fold_messages``. What the engine tells of a prompt
(``messages.PromptText``) is one string with the template's texts between the program's; the rows' texts are found in it one
after another. A text that is not found, as where a template rewrites it, has no cost line. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from sgnb.messages import PromptText


@dataclass(frozen=True, slots=True)
class TextTokens:
    """The tokens that begin in a text: ``first`` is the position of the first in the prompt of ``rid``; ``cached`` of
    ``count`` were reused, which is ``units`` UTF-16 units of the text. ``ends``: bytes of the text where each one ends."""

    rid: str
    first: int
    count: int
    cached: int
    units: int
    ends: tuple[int, ...]


def find_texts(
    told: PromptText, rid: str, cached: int, texts: Iterable[tuple[str, int]]
) -> list[TextTokens | None]:
    """The tokens of each text, in order; None for one that is not there. ``cached``: tokens of the whole prompt that were
    reused. A text is given with the bytes that follow what is kept of it."""
    ends = list(accumulate(told.lengths))
    found: list[TextTokens | None] = []
    at = token = 0
    for text, hidden in texts:
        raw = text.encode("utf-8", "replace")
        begin = told.raw.find(raw, at) if raw else -1
        if begin < 0:
            found.append(None)
            continue
        at = begin + len(raw) + hidden
        while token < len(ends) and ends[token] - told.lengths[token] < begin:
            token += 1
        first = token
        while token < len(ends) and ends[token] - told.lengths[token] < at:
            token += 1
        own = ends[first:token]
        kept = max(0, min(len(own), cached - told.first - first))
        cut = own[kept - 1] - begin if kept else 0
        found.append(
            TextTokens(
                rid,
                told.first + first,
                len(own),
                kept,
                units_before(raw, cut),
                tuple(min(end - begin, len(raw)) for end in own),
            )
        )
    return found


def units_before(raw: bytes, end: int) -> int:
    """UTF-16 units of the whole characters that end at or before byte ``end``."""
    text = raw[: max(0, end)].decode("utf-8", "ignore")
    return len(text) + sum(char > "\uffff" for char in text)


def ends_in_units(raw: bytes, ends: Iterable[int]) -> list[int]:
    """Each end as UTF-16 units of the whole characters before it; in one pass."""
    out = []
    at = units = 0
    for end in ends:
        piece = raw[at:end].decode("utf-8", "ignore")
        units += len(piece) + sum(char > "\uffff" for char in piece)
        at += len(piece.encode())
        out.append(units)
    return out
