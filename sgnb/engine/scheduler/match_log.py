"""Why a prompt was not cached further, told once at its match, and both texts around the place where they part.

Role: completes the cache's own ``Match`` with what only the scheduler knows: when and for whom the rest was evicted, whom
the request waited for, other name spaces, equal text cut into other tokens. Scheduler process; ``Scheduler`` calls
``explain`` when it admits a request. Remembers the last 200 prompts, some tokens of each; these stay here until their
own client asks (``picture``). Changes nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from sgnb.engine.mem_cache.base import IntArray, common_length
from sgnb.engine.mem_cache.radix_cache import RadixCache
from sgnb.engine.mem_cache.tree_node import TreeNode
from sgnb.engine.scheduler.node_book import NodeBook
from sgnb.messages import Match

if TYPE_CHECKING:
    from sgnb.engine.scheduler.req import Req

KEPT = 200
KEPT_IDS = 1 << 20
"""Ids of whole prompts that are kept, all together; of older ones only what lies around the parting."""
BEFORE = 16
AFTER = 48
_COMPARED = 64
_LOOK = 16
"""Tokens that are compared as text."""


@dataclass(frozen=True, slots=True)
class Parting:
    """Token ids around the end of a match: ``same`` from ``start`` on, then the prompt's and the cached path's."""

    client: int
    start: int
    diverged: int
    same: list[int]
    prompt: list[int]
    cached: list[int]
    node: int
    """The node whose edge goes on differently; 0: none does."""
    space: str = ""
    keys: IntArray | None = None
    """The whole prompt, as the tree finds it; None once it was let go."""
    cell: str = ""
    """Where in the notebook it comes of."""


class MatchLog:
    """``table`` gives the bytes of each token id; empty until the tokenizer process has sent them."""

    def __init__(self, cache: RadixCache, book: NodeBook, table: Callable[[], Sequence[bytes]]) -> None:
        self._table = table
        self._cache = cache
        self._book = book
        self._kept: OrderedDict[str, Parting] = OrderedDict()
        self._whole: OrderedDict[str, int] = OrderedDict()
        """Requests whose whole prompt is kept → its ids."""

    def find(self, rid: str, client: int) -> Parting | None:
        """What is remembered of a request of this client."""
        parting = self._kept.get(rid)
        return parting if parting is not None and parting.client == client else None

    def maker(self, node: int) -> str:
        """The request that computed a node of the tree; empty where that is not known."""
        return self._book.maker(node)

    def explain(self, req: Req, matched: int, now: float) -> Match:
        """What the cache had of the prompt of ``req``, and why no more; remembers both sides."""
        ids, space = req.fill_keys(), req.kv.extra_key
        computed = req.session.computed if req.session is not None else 0
        match = self._cache.explain(ids, space, matched, computed)
        child = self._nearest(ids, space, matched)
        self._remember(req, ids, matched, child)
        changes: dict[str, object] = {}
        if req.leader:
            changes |= {"waited_for": req.leader, "waited": max(0.0, now - req.leader_since)}
        if match.cause == "evicted" and (gone := self._book.gone(req.kv.node, int(ids[matched]))) is not None:
            changes |= {
                "gone_at": gone.time,
                "gone_for": gone.for_rid,
                "gone_tokens": gone.tokens,
                "gone_policy": self._cache.eviction,
            }
        elif (
            match.cause in ("diverged", "cold") and child is not None and self._same_text(ids, matched, child)
        ):
            changes |= {"cause": "retokenized", "diverged_at": matched}
        elif not matched and match.cause in ("diverged", "cold") and self._cache.elsewhere(ids, space):
            changes |= {"cause": "namespace", "diverged_at": 0, "equal_again": 0}
        return msgspec.structs.replace(match, **changes) if changes else match

    def _nearest(self, ids: IntArray, space: str, matched: int) -> TreeNode | None:
        """Of what follows the match in the tree (the youngest edges of it), the one that agrees longest behind its first
        token."""
        found = self._cache.peek(ids[:matched], space)
        if found.length != matched or not found.node.children:
            return None
        rest = ids[matched + 1 :]
        youngest = islice(reversed(found.node.children.values()), _COMPARED)
        return max(youngest, key=lambda child: common_length(child.key[1:], rest, 0))

    def _remember(self, req: Req, ids: IntArray, matched: int, child: TreeNode | None) -> None:
        start = max(0, matched - BEFORE)
        # Another client's tokens are not this one's to read: it sees its own side only.
        readable = child is not None and self._book.may_read(child, req.client)
        self._kept[req.rid] = Parting(
            client=req.client,
            start=start,
            diverged=matched,
            same=ids[start:matched].tolist(),
            prompt=ids[matched : matched + AFTER].tolist(),
            cached=child.key[:AFTER].tolist() if child is not None and readable else [],
            node=child.id if child is not None else 0,
            space=req.kv.extra_key,
            keys=ids.copy(),
            cell=req.label.cell,
        )
        self._whole.pop(req.rid, None)
        self._whole[req.rid] = len(ids)
        while len(self._kept) > KEPT:
            self._whole.pop(self._kept.popitem(last=False)[0], None)
        while len(self._whole) > 1 and sum(self._whole.values()) > KEPT_IDS:
            rid, _ = self._whole.popitem(last=False)
            self._kept[rid] = replace(self._kept[rid], keys=None)

    def _same_text(self, ids: IntArray, matched: int, child: TreeNode) -> bool:
        """True when both sides spell the same bytes from the parting on, in other tokens."""
        ours, theirs = (self._bytes(side[:_LOOK]) for side in (ids[matched:], child.key))
        length = min(len(ours), len(theirs))
        different = not np.array_equal(ids[matched : matched + 1], child.key[:1])
        return different and length >= 4 and ours[:length] == theirs[:length]

    def _bytes(self, ids: IntArray) -> bytes:
        table = self._table()
        return b"".join(table[token] for token in ids.tolist() if 0 <= token < len(table))
