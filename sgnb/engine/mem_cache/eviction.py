"""In which order unlocked leaves leave the radix tree.

Role: a heap over the leaves, by the policy in force. Scheduler process; owned by ``RadixCache``, which pushes every leaf
when it becomes one and takes out what ``pop`` names. Removes nothing itself.

    lru       least recently used first          fifo      oldest node first
    lfu       fewest uses first                  priority  lowest priority first, then lru
    slru      used once before used again
Under every policy a leaf that a session refers to comes after all that nobody does.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from sgnb.engine.mem_cache.tree_node import HeapKey, TreeNode

_AGES = 1 << 48
"""More than a tree counts accesses or nodes in years."""
_SOFT = 1 << 64
_ID_BITS = 48
_IDS = (1 << _ID_BITS) - 1


class EvictionQueue:
    """See the module. Entries may be out of date: keys only grow with use, so an old entry is a lower bound, and ``pop``
    corrects it when it comes up. An entry is one number, the key and behind it the node's id: a heap compares numbers in a
    third of the time it takes for tuples, and comparing is most of what an eviction costs."""

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self._heap: list[int] = []
        self._nodes: dict[int, TreeNode] = {}
        """By id: nodes with an entry that counts."""

    def order(self, node: TreeNode) -> HeapKey:
        """Smallest goes first; grows with use only, as the heap needs it. One number, since a heap compares it often: soft
        reference, then rank, then age, each in bits of its own."""
        rank, age = 0, node.last_access
        if self.policy == "lfu":
            rank = node.hits
        elif self.policy == "slru":
            rank = node.hits > 1
        elif self.policy == "priority":
            rank = node.priority
        elif self.policy == "fifo":
            age = node.id
        return ((_SOFT if node.soft_ref else 0) + rank) * _AGES + age

    def push(self, node: TreeNode) -> None:
        """Enter an unlocked leaf, unless an entry that is due no later is there already."""
        if not node.evictable:
            return
        key = self.order(node)
        if node.heap_key is None or key < node.heap_key:
            node.heap_key = key
            self._nodes[node.id] = node
            heapq.heappush(self._heap, key << _ID_BITS | node.id)

    def pop(self) -> TreeNode | None:
        """The leaf that goes next, taken out of the queue; None when there is no unlocked leaf."""
        heap, nodes, heappop = self._heap, self._nodes, heapq.heappop
        while heap:
            entry = heappop(heap)
            node, key = nodes.get(entry & _IDS), entry >> _ID_BITS
            if node is None or key != node.heap_key:
                continue  # superseded by a smaller entry
            node.heap_key = None
            del nodes[node.id]
            if node.children or node.lock_ref or node.pin_ref or not node.alive:
                continue  # comes back when it is an unlocked leaf again
            if self.order(node) > key:
                self.push(node)  # used since it was pushed
                continue
            return node
        return None

    def set_policy(self, policy: str, nodes: Iterable[TreeNode]) -> None:
        """Another order from now on; ``nodes``: all of the tree."""
        self.policy = policy
        self._heap.clear()
        self._nodes.clear()
        for node in nodes:
            node.heap_key = None
            self.push(node)

    def next_victims(self, count: int) -> list[int]:
        """Ids of the nodes that would go next, as far as leaves are known now."""
        # The k-th smallest entry of a heap lies in its first 2^k - 1 places; twice that, since some are out of date.
        entries = [self._nodes.get(entry & _IDS) for entry in self._heap[: 2 << count]]
        known = {node for node in entries if node is not None and node.evictable}
        return [node.id for node in sorted(known, key=self.order)[:count]]
