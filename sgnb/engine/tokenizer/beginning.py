"""What a branch began with and was given since, up to its first generation: so that a join can leave out the parent's part.

Tokenizer process; kept by ``Session``. A fork copies the parent's pending text, so the first ids of a branch stand
for the end of the parent's text and the beginning of its own. A join appends the branch's own part only. Mostly a
token ends where the parent's text does; where none does (``:`` and a line break are one token), the branch's own text
is tokenised again, by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from sgnb.engine.tokenizer.pending import Pending
from sgnb.engine.tokenizer.steps import Steps
from sgnb.engine.tokenizer.tokenizer import ModelTokenizer


class Beginning:
    """Of one branch. ``started``: its parent had sent ids, so none of the branch's is BOS."""

    __slots__ = ("_ids", "_own", "_started", "_tail", "open", "size")

    def __init__(self, tail: Pending, size: int, *, started: bool) -> None:
        self._tail = tail
        self._own = Pending()
        self._ids: list[int] = []
        self._started = started
        self.size = size
        """Bytes of text that the parent had."""
        self.open = True
        """No generation came yet."""

    def add_text(self, text: str, *, parse: bool) -> None:
        """The branch was given text."""
        if self.open:
            self._own.add_text(text, parse=parse)

    def add_ids(self, ids: list[int]) -> None:
        """The branch was given raw ids."""
        if self.open:
            self._own.add_ids(ids)

    def taken(self, ids: list[int]) -> None:
        """What was pending, or some of it, has become these ids."""
        if self.open:
            self._ids += ids

    def copy(self) -> Beginning:
        """The same, independent of this one."""
        twin = Beginning(self._tail, self.size, started=self._started)
        twin._own, twin._ids, twin.open = self._own.copy(), self._ids.copy(), self.open
        return twin

    def part(self, tokenizer: ModelTokenizer) -> Steps[tuple[int, list[int]]]:
        """How many of the branch's ids a join leaves out, and the ids it puts in their place."""
        skip = self._border(tokenizer.table)
        if skip is not None:
            return skip, []
        own = self._own.copy()
        ids = yield from own.take(tokenizer, first=False)
        return len(self._ids), ids

    def _border(self, table: Sequence[bytes]) -> int | None:
        """How many ids stand for the parent's text; None when no token ends there."""
        tail = self._tail.raw(table)
        if not self._started:
            return None
        size, found = 0, b""
        for count, token in enumerate(self._ids):
            if size >= len(tail):
                return count if found == tail else None
            piece = table[token] if token < len(table) else b""
            size, found = size + len(piece), found + piece
        return len(self._ids) if found == tail else None
