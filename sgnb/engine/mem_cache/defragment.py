"""Moving live KV so that what belongs together lies together, and all free slots are one run.

Role: the plan of a defragmentation and its execution in tree, requests and allocator. Scheduler process; called by
``Scheduler`` between two steps only, when no batch holds slot numbers of its own. The memory itself is moved by ``move``,
the runner's. Whose slot is whose does not change, so nothing that is computed later does.

The order is depth first over the tree, so that a path which does not branch is one run; what a request has in flight
follows its leaf; the rest comes after the tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sgnb.engine.mem_cache.base import BaseAllocator, IntArray
from sgnb.engine.mem_cache.radix_cache import RadixCache
from sgnb.engine.mem_cache.req_kv import ReqKV
from sgnb.engine.mem_cache.tree_node import TreeNode

Move = Callable[[list[int], list[int]], None]


def defragment(cache: RadixCache, kvs: Sequence[ReqKV], allocator: BaseAllocator, move: Move) -> int:
    """Move everything live to the lowest slots; how many slots moved. ``kvs``: of all requests that hold slots.

    ``move(src, dst)`` copies the KV of each slot ``src[i]`` to ``dst[i]``, all at once: a slot may be in both. If it
    raises, nothing was changed here.
    """
    parts = _layout(cache, kvs)
    live: IntArray = np.concatenate(parts).astype(np.int32) if parts else np.empty(0, dtype=np.int32)
    places = np.arange(len(live), dtype=np.int32)
    changed = live != places
    if not changed.any():
        return 0
    moved = np.arange(allocator.size, dtype=np.int32)
    moved[live] = places
    move(live[changed].tolist(), places[changed].tolist())
    cache.relocate(moved)
    for kv in kvs:
        kv.relocate(moved)
    allocator.compact(len(live))
    return int(changed.sum())


def _layout(cache: RadixCache, kvs: Sequence[ReqKV]) -> list[IntArray]:
    """Live slots in the order in which they are to lie, whole pages each."""
    tails: dict[TreeNode | None, list[ReqKV]] = {}
    for kv in kvs:
        tails.setdefault(kv.node, []).append(kv)
    parts = []
    for node in cache.nodes():
        parts.append(node.value)
        if not node.children:
            parts += [_own(kv) for kv in tails.pop(node, ())]
    parts += [_own(kv) for rest in tails.values() for kv in rest]
    return parts


def _own(kv: ReqKV) -> IntArray:
    return np.array(kv.own_slots, dtype=np.int32)
