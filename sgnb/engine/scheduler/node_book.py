"""What is known of tree nodes beside the tree: when each was last used, and which clients gave its tokens.

Role: answers a view's questions about a node (its age; whether a client may read its text). Scheduler process; kept by
``StepRecorder`` from the tree's own changes. A client may read what it has sent or generated itself: those tokens it
knows. No token and no slot here, no decision of the engine depends on it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from sgnb.engine.mem_cache.tree_node import TreeNode

_REMEMBERED = 16_384


class Gone(NamedTuple):
    """An eviction: when, for whom, how many tokens."""

    time: float
    for_rid: str
    tokens: int


class NodeBook:
    """Grows and shrinks with the tree."""

    def __init__(self) -> None:
        self._used: dict[int, float] = {}
        self._clients: dict[int, set[int]] = {}
        self._hits: dict[int, int] = {}
        self._makers: dict[int, str] = {}
        self._gone: OrderedDict[tuple[int, int], Gone] = OrderedDict()

    def take(self, kind: str, node: TreeNode, now: float, for_rid: str) -> None:
        """The tree changed: see ``RadixCache.on_change``."""
        if kind in ("evict", "flush"):
            self._used.pop(node.id, None)
            self._clients.pop(node.id, None)
            self._hits.pop(node.id, None)
            self._makers.pop(node.id, None)
            if kind == "evict" and node.parent is not None:
                self._gone[node.parent.id, int(node.key[0])] = Gone(now, for_rid, len(node.key))
                if len(self._gone) > _REMEMBERED:
                    self._gone.popitem(last=False)
        elif kind == "split":
            (lower,) = node.children.values()
            self._used[node.id] = self._used.get(lower.id, now)
            self._clients[node.id] = set(self._clients.get(lower.id, ()))
            self._hits[node.id] = self._hits.get(lower.id, 0)
            self._makers[node.id] = self._makers.get(lower.id, "")
        elif kind == "insert":
            self._used[node.id] = now
            self._makers[node.id] = for_rid
            self._seen(node, client_of(for_rid))
        elif kind == "lock":
            here: TreeNode | None = node
            while here is not None:
                self._used[here.id] = now
                here = here.parent

    def admitted(self, node: TreeNode | None, client: int) -> None:
        """A request of this client reuses the prefix that ends with ``node``."""
        self._seen(node, client)
        while node is not None:
            self._hits[node.id] = self._hits.get(node.id, 0) + 1
            node = node.parent

    def hits(self, node: TreeNode) -> int:
        """How many requests reused it when they were admitted."""
        return self._hits.get(node.id, 0)

    def _seen(self, node: TreeNode | None, client: int) -> None:
        while node is not None and client not in (known := self._clients.setdefault(node.id, set())):
            known.add(client)
            node = node.parent

    def gone(self, parent: TreeNode | None, first: int) -> Gone | None:
        """The last eviction of an edge that began with token ``first`` below ``parent``."""
        return self._gone.get((parent.id, first)) if parent is not None else None

    def used(self, node: TreeNode) -> float:
        """When it was last used, by the engine's clock; 0 if that is not known."""
        return self._used.get(node.id, 0.0)

    def maker(self, node: int) -> str:
        """The request that computed it; empty where that is not known."""
        return self._makers.get(node, "")

    def may_read(self, node: TreeNode, client: int) -> bool:
        """True when this client has given the node's tokens itself."""
        return client in self._clients.get(node.id, ())


def client_of(rid: str) -> int:
    """The number of the client in a request id ``c3.r21``; 0 for none."""
    number = rid[1:].partition(".")[0]
    return int(number) if rid.startswith("c") and number.isdigit() else 0
