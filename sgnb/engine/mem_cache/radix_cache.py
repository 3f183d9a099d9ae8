"""Radix tree over token ids: which prefixes have their KV in the pool, and in which slots.

Role: the prefix cache of the engine. Scheduler process; called through ``ReqKV``, ``Session`` and ``SchedulePolicy``.
Arrays are compared whole (numpy), never token by token. No request, no clock and no message here: last use is a counter.
Beside it: ``tree_node`` (a node), ``eviction`` (who goes first), ``miss`` (why no more was found).

A node holds an edge, ``key`` (token ids) and ``value`` (their slots), of equal length. From a root down::

    root ──[a b c]── ──[d e]──            prefix a b c d e, slots = value + value
              └──────[x y z]──            children of a node differ in the first token (page) of their key

Invariants, checked by ``check`` and by a state machine in the tests:
    evictable_size + protected_size == sum of len(value);   protected ⇔ lock_ref > 0
    lock_ref(node) ≥ sum of lock_ref over its children;     a lock counts on the whole path up to the root
    no edge is empty but the root's;                        eviction takes free leaves, in the order of the policy
    edges begin and end at page borders;                    a doomed node is held: without holders it leaves at once
A pin is a lock of nobody's: it has a counter of its own (``pin_ref``), and gives way when nothing else can.
A split of ``[a b c]`` at 1 makes a *new upper* node ``[a]`` with the same lock_ref; the old node keeps its identity and
becomes ``[b c]``, so a handle to it still names the same prefix.

With ``page_size`` above 1 everything here is whole pages: a match, a split and what an insert stores are rounded down to
one, and the rest of a request's last page stays its own (``ReqKV``).

Sessions hold *soft* references: such a leaf is evicted after every plain one, but it never blocks. When it goes, the
reference moves to its parent (``resolve``). Each name space (``extra_key``) has a root of its own: prefixes of different
name spaces can never meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from sgnb.engine.mem_cache.base import (
    BaseAllocator,
    BasePrefixCache,
    FlushResult,
    InsertResult,
    IntArray,
    IntegrityError,
    MatchResult,
    PeekResult,
    common_length,
)
from sgnb.engine.mem_cache.eviction import EvictionQueue
from sgnb.engine.mem_cache.miss import MissLog
from sgnb.engine.mem_cache.tree_node import First, TreeNode, path_up
from sgnb.messages import Match

_EMPTY: IntArray = np.empty(0, dtype=np.int32)


class RadixCache(BasePrefixCache):
    """The tree, its sizes and its eviction. ``disabled`` keeps the contract and stores nothing."""

    def __init__(self, allocator: BaseAllocator, disabled: bool = False, eviction: str = "lru") -> None:
        self.allocator = allocator
        self.page_size = allocator.page_size
        self.disabled = disabled
        self.evictable_size = 0
        self.protected_size = 0
        self.epoch = 0
        self.evicted_total = 0
        self._roots: dict[str, TreeNode] = {}
        self._tick = 0
        self._ids = 0
        self._queue = EvictionQueue(eviction)
        self._misses = MissLog()
        self._pins: list[TreeNode] = []
        self.on_change: Callable[[str, TreeNode], None] | None = None
        """Told of insert, split, evict, flush, pin, unpin, lock and unlock, after it; of a removal and an unlock before."""
        self._flushing = False
        self.wanted = 0
        """Slots that ``evict`` still has to free, the node that is being evicted taken off; below 0: it freed more."""
        self.last_eviction = False
        """The node that is being evicted is the last that this call needs."""

    # ------------------------------------------------------------ match and insert

    def match_prefix(
        self, ids: IntArray, extra_key: str = "", renew: bool = True, priority: int = 0
    ) -> MatchResult:
        """Longest cached prefix of ``ids``; splits the node in which it ends, refreshes last use on the path.

        ``renew``: a new user of the prefix (of that ``priority``), which takes it out of an earlier flush.
        """
        if self.disabled:
            return MatchResult(_EMPTY, self._root(extra_key))
        node, _, values = self._descend(ids, extra_key)
        if renew:
            for above in path_up(node):
                above.doomed = False
                above.hits += 1
                above.priority = max(above.priority, priority)
        return MatchResult(np.concatenate(values) if values else _EMPTY, node)

    def peek(self, ids: IntArray, extra_key: str = "") -> PeekResult:
        """Length of the longest cached prefix; changes nothing."""
        node, pos = self._roots.get(extra_key) or TreeNode(None, _EMPTY, _EMPTY, extra_key, -1), 0
        end = 0 if self.disabled else self._whole(len(ids))
        while pos < end:
            child = node.children.get(self._first(ids, pos))
            if child is None:
                break
            common = self._whole(_common(child.key, ids, pos))
            pos, node = pos + common, child
            if common < len(child.key):
                break
        return PeekResult(pos, node)

    def insert(self, ids: IntArray, slots: Sequence[int] | IntArray, extra_key: str = "") -> InsertResult:
        """Store ``slots`` as the KV of the whole pages of ``ids``; what exists keeps its own slots."""
        if self.disabled:
            return InsertResult(0, 0, self._root(extra_key))
        node, existing, _ = self._descend(ids, extra_key)
        end = self._whole(len(ids))
        if existing < end:
            value = np.array(slots[existing:end], dtype=np.int32)
            child = self._new_node(node, ids[existing:end].copy(), value, extra_key)
            child.last_access, child.doomed = self._tick, node.doomed
            node.children[child.first] = child
            self.evictable_size += len(child.key)
            self.epoch += 1
            self._queue.push(child)
            self._misses.forget(node, child.first)
            self._tell("insert", child)
            node = child
        return InsertResult(existing, end, node)

    def _descend(self, ids: IntArray, extra_key: str) -> tuple[TreeNode, int, list[IntArray]]:
        """Walk down as far as whole pages of ``ids`` go, splitting at the end: (last node, matched length, its slots by
        node)."""
        self._tick += 1
        node, pos, values = self._root(extra_key), 0, []
        end = self._whole(len(ids))
        while pos < end:
            child = node.children.get(self._first(ids, pos))
            if child is None:
                break
            common = self._whole(_common(child.key, ids, pos))
            if common < len(child.key):
                child = self._split(child, common)
            child.last_access = self._tick
            values.append(child.value)
            pos, node = pos + common, child
        return node, pos, values

    def _whole(self, length: int) -> int:
        """Whole pages of that many tokens, in tokens."""
        return length - length % self.page_size

    def _first(self, ids: IntArray, pos: int) -> First:
        """Under what a child that begins with ``ids[pos:]`` is found."""
        page = self.page_size
        return int(ids[pos]) if page == 1 else ids[pos : pos + page].tobytes()

    def _split(self, node: TreeNode, length: int) -> TreeNode:
        """Cut an edge; returns the new upper node, which ends after ``length`` tokens."""
        parent = node.parent
        assert parent is not None and 0 < length < len(node.key), "split inside an edge only"
        upper = self._new_node(parent, node.key[:length], node.value[:length], node.extra_key)
        upper.lock_ref, upper.last_access, upper.doomed = node.lock_ref, node.last_access, node.doomed
        upper.pin_ref, upper.hits, upper.priority = node.pin_ref, node.hits, node.priority
        parent.children[upper.first] = upper
        node.key, node.value, node.parent = node.key[length:], node.value[length:], upper
        node.first = self._first(node.key, 0)
        upper.children[node.first] = node
        self._tell("split", upper)
        return upper

    def _tell(self, kind: str, node: TreeNode) -> None:
        if self.on_change is not None:
            self.on_change(kind, node)

    def _new_node(self, parent: TreeNode | None, key: IntArray, value: IntArray, extra_key: str) -> TreeNode:
        self._ids += 1
        first = self._first(key, 0) if len(key) else -1
        return TreeNode(parent, key, value, extra_key, self._ids, first)

    # ------------------------------------------------------------ locks and soft references

    def lock(self, node: TreeNode) -> None:
        """Protect the path from ``node`` to its root, until ``unlock``."""
        if not node.alive:
            raise IntegrityError(f"lock of evicted node {node.id}")
        for above in path_up(node):
            self._note_held(above)
            above.lock_ref += 1
        self._tell("lock", node)

    def unlock(self, node: TreeNode) -> None:
        """Undo one ``lock``; flushed nodes leave now if this was the last one."""
        self._tell("unlock", node)
        for above in list(path_up(node)):
            if above.lock_ref < 1:
                raise IntegrityError(f"unlock of node {above.id}, which nobody locks")
            above.lock_ref -= 1
            self._note_free(above)

    def _note_held(self, node: TreeNode) -> None:
        """Before a lock or pin is added."""
        if not node.held:
            self.evictable_size -= len(node.key)
            self.protected_size += len(node.key)

    def _note_free(self, node: TreeNode) -> None:
        """After a lock or pin is gone: flushed nodes leave now, others may be evicted from now on."""
        if node.held:
            return
        self.evictable_size += len(node.key)
        self.protected_size -= len(node.key)
        if node.evictable:
            if node.doomed:
                self.allocator.free(self._remove(node))
            else:
                self._queue.push(node)
        self._forget_root(node)

    def pin(self, node: TreeNode) -> None:
        """Keep the path to ``node`` until ``unpin``."""
        for above in path_up(node):
            self._note_held(above)
            above.pin_ref += 1
        self._pins.append(node)
        self._tell("pin", node)

    def unpin(self, node: TreeNode) -> bool:
        """Undo one ``pin`` of this node; False if there is none."""
        if node not in self._pins:
            return False
        self._pins.remove(node)
        self._tell("unpin", node)
        for above in list(path_up(node)):
            above.pin_ref -= 1
            self._note_free(above)
        return True

    def unpin_all(self) -> int:
        """Undo all pins; how many there were."""
        count = len(self._pins)
        for node in list(self._pins):
            self.unpin(node)
        return count

    @property
    def pinned_size(self) -> int:
        """Slots of pinned nodes."""
        return sum(len(node.key) for node in self.nodes() if node.pin_ref)

    def pinned_with(self, node: TreeNode, instead_of: TreeNode | None) -> int:
        """Slots that would be pinned if ``node`` were, too, and one pin of ``instead_of`` were gone; each counted once."""
        fresh = set(path_up(node))
        given_up = set(path_up(instead_of)) if instead_of is not None and instead_of in self._pins else set()
        return sum(len(one.key) for one in self.nodes() if one in fresh or one.pin_ref > (one in given_up))

    def soft_ref(self, node: TreeNode) -> None:
        """Note a session's interest: evicted after every plain node, but never blocking."""
        node.soft_ref += 1

    def soft_unref(self, node: TreeNode) -> None:
        """Undo one ``soft_ref`` (of the node that ``resolve`` gives)."""
        if node.soft_ref < 1:
            raise IntegrityError(f"soft reference of node {node.id} is given back twice")
        node.soft_ref -= 1
        if node.evictable:
            self._queue.push(node)
        self._forget_root(node)

    def resolve(self, node: TreeNode) -> TreeNode:
        """Where a soft reference lies now: the node itself, or the nearest one above that is left."""
        while not node.alive and node.parent is not None:
            node = node.parent
        return node

    # ------------------------------------------------------------ eviction

    @property
    def eviction(self) -> str:
        """The policy in force."""
        return self._queue.policy

    def set_eviction(self, policy: str) -> None:
        """Change the order of eviction from now on."""
        self._queue.set_policy(policy, self.nodes())

    def next_victims(self, count: int) -> list[int]:
        """Ids of the nodes that eviction would take next, as far as leaves are known now."""
        return self._queue.next_victims(count)

    def evict(self, count: int) -> int:
        """Free at least ``count`` slots of unlocked leaves, if there are so many, in the order of the policy."""
        freed, gone = 0, []
        self.wanted = count
        while freed < count and (node := self._queue.pop()) is not None:
            slots = self._remove(node)
            freed += len(slots)
            gone.append(slots)
        if gone:
            self.allocator.free(np.concatenate(gone))
        self.evicted_total += freed
        return freed

    def trim(self, most: int | None) -> None:
        """Evict until at most ``most`` slots are cached that nobody locks; None: there is no such limit."""
        if most is not None and self.evictable_size > most:
            self.evict(self.evictable_size - most)

    def flush(self) -> FlushResult:
        """Free what is unlocked at once; what is locked now leaves when it is unlocked."""
        for node in self.nodes():
            node.doomed = node.held and not node.pin_ref
        self._flushing = True
        freed = self.evict(self.evictable_size)
        self._flushing = False
        return FlushResult(freed, self.protected_size)

    def discard(self, ids: IntArray, first: int, extra_key: str = "") -> None:
        """Forget what goes on behind ``ids`` with token ``first``: nobody will ask for it again. As ``flush`` does, what is
        held leaves when it is unlocked."""
        whole = self._whole(len(ids))
        if extra_key not in self._roots or self.peek(ids[:whole], extra_key).length < whole:
            return
        match = self.match_prefix(ids[:whole], extra_key, renew=False)
        place = len(ids) - whole
        below = [child for child in match.node.children.values() if child.key[place] == first]
        for node in below:
            below += (
                node.children.values()
            )  # a list that grows while it is gone through: all below, parents first
        for node in reversed(below):
            node.doomed = node.held and not node.pin_ref
            if not node.held:
                node.doomed = True
                self.allocator.free(self._remove(node))

    def explain(self, ids: IntArray, extra_key: str, matched: int, computed: int = 0) -> Match:
        """What the cache had of ``ids``, of which ``matched`` tokens were found, and why no more. ``computed``: how many of
        them had KV when their session's last request ended."""
        node, pos = self._root(extra_key), 0
        if self.disabled or matched >= len(ids) - 1:
            return Match(matched=matched, node=node.id, cause="disabled" if self.disabled else "hit")
        while pos < matched and (child := node.children.get(self._first(ids, pos))) is not None:
            node, pos = child, pos + len(child.key)
        return self._misses.explain(node, ids, matched, self._first(ids, matched), self.page_size, computed)

    def elsewhere(self, ids: IntArray, extra_key: str) -> bool:
        """True when another name space has a prefix of ``ids``."""
        if len(ids) < self.page_size:
            return False
        first = self._first(ids, 0)
        return any(first in root.children for key, root in self._roots.items() if key != extra_key)

    def _remove(self, node: TreeNode) -> IntArray:
        """Take an unlocked leaf out of the tree; returns its slots, which the caller frees."""
        parent, first, slots = node.parent, node.first, node.value
        assert parent is not None and not node.children, "only a leaf is removed"
        count = len(slots)
        flushed = self._flushing or node.doomed
        self.last_eviction = self.wanted <= count and not flushed
        self.wanted -= count
        if self.on_change is not None:
            self.on_change("flush" if flushed else "evict", node)
        self._misses.note(parent, first, "flushed" if flushed else "evicted", node.key)
        self.evictable_size -= count
        self.epoch += 1
        siblings = parent.children
        del siblings[first]
        node.alive = False
        node.key = node.value = _EMPTY
        if node.soft_ref:
            parent.soft_ref += node.soft_ref
        if not siblings:
            if parent.parent is None:
                self._forget_root(parent)
            else:
                self._queue.push(parent)
        return slots

    # ------------------------------------------------------------ name spaces and books

    def _root(self, extra_key: str) -> TreeNode:
        root = self._roots.get(extra_key)
        if root is None:
            root = self._roots[extra_key] = self._new_node(None, _EMPTY, _EMPTY, extra_key)
        return root

    def _forget_root(self, node: TreeNode) -> None:
        """Drop a name space that holds nothing, so that many short-lived ones do not pile up."""
        unused = not node.children and not node.held and not node.soft_ref
        if node.parent is None and unused and self._roots.get(node.extra_key) is node:
            del self._roots[node.extra_key]
            node.alive = False

    def relocate(self, moved: IntArray) -> None:
        """The KV of slot ``s`` lies in ``moved[s]`` now."""
        for node in self.nodes():
            node.value = moved[node.value]

    @property
    def lock_total(self) -> int:
        """Locks held now, each counted once: it passes exactly one root."""
        return sum(root.lock_ref for root in self._roots.values())

    def nodes(self) -> Iterator[TreeNode]:
        """All nodes but the roots, parents before children."""
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            if node.parent is not None:
                yield node
            stack.extend(node.children.values())

    def check(self) -> None:
        """Raise IntegrityError when sizes, links, locks or edges do not agree (walks the whole tree)."""
        sizes = [0, 0]
        for node in self.nodes():
            sizes[node.held] += len(node.key)
            parent = node.parent
            if parent is None or parent.children.get(node.first) is not node or not node.alive:
                raise IntegrityError(f"node {node.id} is not its parent's child by its first token")
            if not len(node.key) or len(node.key) != len(node.value):
                raise IntegrityError(f"node {node.id} has {len(node.key)} tokens and {len(node.value)} slots")
            if len(node.key) % self.page_size or node.first != self._first(node.key, 0):
                raise IntegrityError(f"node {node.id} does not begin and end at page borders")
            if node.doomed and not node.held:
                raise IntegrityError(f"node {node.id} was flushed and nobody holds it, yet it is there")
            if node.evictable and node.heap_key is None:
                raise IntegrityError(f"node {node.id} is an unlocked leaf that eviction does not know")
        for node in [*self._roots.values(), *self.nodes()]:
            if node.lock_ref < sum(child.lock_ref for child in node.children.values()):
                raise IntegrityError(f"node {node.id} has fewer locks than its children")
        if sizes != [self.evictable_size, self.protected_size]:
            raise IntegrityError(
                f"tree holds {sizes[0]} evictable and {sizes[1]} protected slots,"
                f" its books say {self.evictable_size} and {self.protected_size}"
            )


_common = common_length
