"""One node of the radix tree, and the ways up from it.

Role: the record that the tree, its eviction and its log of misses share. Scheduler process; made by ``RadixCache`` alone.
No choice is made here, and no slot is allocated or freed.
"""

from __future__ import annotations

from collections.abc import Iterator

from sgnb.engine.mem_cache.base import IntArray

HeapKey = int
First = int | bytes
"""What tells the children of a node apart: their first token, or with larger pages the bytes of their first page."""


class TreeNode:
    """One edge of the tree. ``parent`` of a dead (evicted) node still points to where its prefix now ends."""

    __slots__ = (
        "alive",
        "children",
        "doomed",
        "extra_key",
        "first",
        "heap_key",
        "hits",
        "id",
        "key",
        "last_access",
        "lock_ref",
        "parent",
        "pin_ref",
        "priority",
        "soft_ref",
        "value",
    )

    def __init__(
        self,
        parent: TreeNode | None,
        key: IntArray,
        value: IntArray,
        extra_key: str,
        id: int,
        first: First = -1,
    ) -> None:
        self.parent = parent
        self.key = key
        self.value = value
        self.extra_key = extra_key
        self.id = id
        self.first = first
        self.children: dict[First, TreeNode] = {}
        self.lock_ref = 0
        self.soft_ref = 0
        self.pin_ref = 0
        self.hits = 0
        self.priority = 0
        self.last_access = 0
        self.heap_key: HeapKey | None = None
        self.doomed = False
        self.alive = True

    @property
    def held(self) -> bool:
        """Locked or pinned: not to be evicted."""
        return bool(self.lock_ref or self.pin_ref)

    @property
    def evictable(self) -> bool:
        """A free leaf of the tree; roots never are."""
        return (
            self.alive
            and not self.lock_ref
            and not self.pin_ref
            and not self.children
            and self.parent is not None
        )


def path_up(node: TreeNode) -> Iterator[TreeNode]:
    """The node and everything above it, its root last."""
    here: TreeNode | None = node
    while here is not None:
        yield here
        here = here.parent


def place_of(node: TreeNode) -> int | str:
    """A node as the key of what went from below it; roots come and go with their name space."""
    return node.id if node.parent is not None else node.extra_key
