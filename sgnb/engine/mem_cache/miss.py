"""Why a prompt reused no more of the cache than it did.

Role: a bounded log of what left the radix tree, and the one place where the cause of a miss is told, at the match.
Scheduler process; owned by ``RadixCache``. Changes nothing in the tree.
"""

from __future__ import annotations

from itertools import islice

import numpy as np

from sgnb.engine.mem_cache.base import IntArray, common_length
from sgnb.engine.mem_cache.tree_node import First, TreeNode, place_of
from sgnb.messages import Match

EQUAL_AGAIN = 8
"""So many equal tokens behind a difference are no chance: the same text, changed, be it at its first token."""
_REMEMBERED = 65_536
"""At least; at most twice as many."""
_COMPARED = 64
"""Branches of one node that are compared with a prompt that leaves it: the youngest."""
_ALIGNED = 8
"""So many of them also for a change of several tokens, which costs more to find."""
_CHANGED = 16
"""Tokens, on either side, that such a change has at most: a time, an id, a name."""


_TOKEN = np.dtype(np.int32).itemsize


class MissLog:
    """What was evicted or flushed lately: (parent, first token or page) → which of the two, and how its edge began."""

    def __init__(self) -> None:
        self._gone: dict[tuple[int | str, First], tuple[str, bytes]] = {}
        """Oldest first."""

    def note(self, parent: TreeNode, first: First, how: str, key: IntArray) -> None:
        """A child of ``parent`` with the edge ``key`` leaves the tree; ``how``: ``evicted`` or ``flushed``."""
        gone = self._gone
        gone[place_of(parent), first] = how, _head(key)
        if len(gone) > 2 * _REMEMBERED:  # all at once: an eviction of a thousand nodes pays for each note
            self._gone = dict(islice(gone.items(), _REMEMBERED, None))

    def forget(self, parent: TreeNode, first: First) -> None:
        """It is there again."""
        self._gone.pop((place_of(parent), first), None)

    def explain(
        self, node: TreeNode, ids: IntArray, matched: int, first: First, page: int, computed: int
    ) -> Match:
        """``matched`` tokens of ``ids`` were found and end at ``node``; ``first``: what a child that goes on would begin
        with. ``computed``: tokens of ``ids`` whose KV its session had before, the last of them perhaps in a page that
        was never full."""
        limit = len(ids) - 1  # the last token of a prompt is always computed
        gone, head = self._gone.get((place_of(node), first), (None, b""))
        if gone is not None and not _head(ids[matched:limit]).startswith(head[: (limit - matched) * _TOKEN]):
            gone = (
                None  # it began with the same token only: had it stayed, this prompt would have left it soon
            )
        if page > 1 and (limit - matched < page or matched < computed < matched + page):
            half = min(limit, max(computed, matched)) - matched or limit - matched
            return Match(matched=matched, node=node.id, cause="page", half_page=half)
        if gone is not None or not node.children:
            short = "short" if matched else "cold"
            return Match(matched=matched, node=node.id, cause=gone or short)  # type: ignore[arg-type]
        return self._diverged(node, ids, matched)

    @staticmethod
    def _diverged(node: TreeNode, ids: IntArray, matched: int) -> Match:
        """What is cached goes on differently: from which token on, and how much agrees again behind it."""
        rest = ids[matched:-1]
        most = (0, 0)
        for place, child in enumerate(islice(reversed(node.children.values()), _COMPARED)):
            same = common_length(child.key, rest, 0)
            again = common_length(child.key[same + 1 :], rest, same + 1)
            if again < EQUAL_AGAIN and place < _ALIGNED:
                again = max(again, _aligned(child.key[same:], rest[same:]))
            most = max(most, (same, again))
        if not matched and not most[0] and most[1] < EQUAL_AGAIN:
            return Match(matched=0, node=node.id, cause="cold")
        return Match(
            matched=matched,
            node=node.id,
            cause="diverged",
            diverged_at=matched + most[0],
            equal_again=most[1],
        )


def _head(ids: IntArray) -> bytes:
    """The first ``EQUAL_AGAIN`` tokens."""
    return ids[:EQUAL_AGAIN].astype(np.int32, copy=False).tobytes()


def _aligned(key: IntArray, rest: IntArray) -> int:
    """How many tokens agree again behind a change of several tokens, be they as many on both sides or not; 0: none, or so
    few that they are what all prompts have in common, as the template's words around a question."""
    wide = _CHANGED + EQUAL_AGAIN
    mine, other = key[:wide].tolist(), rest[:wide].tolist()
    places = {tuple(other[at : at + EQUAL_AGAIN]): at for at in range(len(other) - EQUAL_AGAIN, -1, -1)}
    starts = [
        (start, places[run])
        for start in range(len(mine) - EQUAL_AGAIN + 1)
        if (run := tuple(mine[start : start + EQUAL_AGAIN])) in places
    ]
    if not starts:
        return 0
    first, second = min(starts, key=sum)
    length = common_length(key[first:], rest, second)
    return length if length >= 2 * max(EQUAL_AGAIN, first, second) else 0
