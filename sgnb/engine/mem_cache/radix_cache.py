"""Radix tree over token ids: which prefixes have their KV in the pool, and in which slots.

Role: the prefix cache of the engine. Scheduler process; called through ``ReqKV``, ``Session`` and ``SchedulePolicy``.
Arrays are compared whole (numpy), never token by token. No request, no clock and no message here: last use is a counter.

A node holds an edge, ``key`` (token ids) and ``value`` (their slots), of equal length. From a root down::

    root ──[a b c]── ──[d e]──            prefix a b c d e, slots = value + value
              └──────[x y z]──            children of a node differ in the first token of their key

Invariants, checked by ``check`` and by a state machine in the tests:
    evictable_size + protected_size == sum of len(value);   protected ⇔ lock_ref > 0
    lock_ref(node) ≥ sum of lock_ref over its children;     a lock counts on the whole path up to the root
    no edge is empty but the root's;                        eviction takes free leaves, in the order of the policy
A pin is a lock of nobody's: it has a counter of its own (``pin_ref``), and gives way when nothing else can.
A split of ``[a b c]`` at 1 makes a *new upper* node ``[a]`` with the same lock_ref; the old node keeps its identity and
becomes ``[b c]``, so a handle to it still names the same prefix.

Sessions hold *soft* references: such a leaf is evicted after every plain one, but it never blocks. When it goes, the
reference moves to its parent (``resolve``). Each name space (``extra_key``) has a root of its own: prefixes of different
name spaces can never meet.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
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
from sgnb.messages import Match

_REMEMBERED = 65_536
_EMPTY: IntArray = np.empty(0, dtype=np.int32)
_HeapKey = tuple[bool, int, int, int]


class TreeNode:
    """One edge of the tree. ``parent`` of a dead (evicted) node still points to where its prefix now ends."""

    __slots__ = (
        "alive",
        "children",
        "doomed",
        "extra_key",
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
        self, parent: TreeNode | None, key: IntArray, value: IntArray, extra_key: str, id: int
    ) -> None:
        self.parent = parent
        self.key = key
        self.value = value
        self.extra_key = extra_key
        self.id = id
        self.children: dict[int, TreeNode] = {}
        self.lock_ref = 0
        self.soft_ref = 0
        self.pin_ref = 0
        self.hits = 0
        self.priority = 0
        self.last_access = 0
        self.heap_key: _HeapKey | None = None
        self.doomed = False
        self.alive = True

    @property
    def held(self) -> bool:
        """Locked or pinned: not to be evicted."""
        return bool(self.lock_ref or self.pin_ref)

    @property
    def evictable(self) -> bool:
        """A free leaf of the tree; roots never are."""
        return self.alive and not self.held and not self.children and self.parent is not None


class RadixCache(BasePrefixCache):
    """The tree, its sizes and its eviction. ``disabled`` keeps the contract and stores nothing."""

    def __init__(self, allocator: BaseAllocator, disabled: bool = False, eviction: str = "lru") -> None:
        self.allocator = allocator
        self.eviction = eviction
        self.disabled = disabled
        self.evictable_size = 0
        self.protected_size = 0
        self.epoch = 0
        self.evicted_total = 0
        self._roots: dict[str, TreeNode] = {}
        self._tick = 0
        self._ids = 0
        self._pushes = 0
        self._heap: list[tuple[_HeapKey, int, TreeNode]] = []
        self._pins: list[TreeNode] = []
        self.on_change: Callable[[str, TreeNode], None] | None = None
        """Told of insert, split, evict, flush, pin, unpin, lock and unlock, after it; of a removal and an unlock before."""
        self._gone: OrderedDict[tuple[int | str, int], str] = OrderedDict()
        """What was evicted or flushed lately: (parent, first token) → which of the two."""
        self._flushing = False
        self._wanted = 0
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
            for above in _path(node):
                above.doomed = False
                above.hits += 1
                above.priority = max(above.priority, priority)
        return MatchResult(np.concatenate(values) if values else _EMPTY, node)

    def peek(self, ids: IntArray, extra_key: str = "") -> PeekResult:
        """Length of the longest cached prefix; changes nothing."""
        node, pos = self._roots.get(extra_key) or TreeNode(None, _EMPTY, _EMPTY, extra_key, -1), 0
        while not self.disabled and pos < len(ids):
            child = node.children.get(int(ids[pos]))
            if child is None:
                break
            common = _common(child.key, ids, pos)
            pos, node = pos + common, child
            if common < len(child.key):
                break
        return PeekResult(pos, node)

    def insert(self, ids: IntArray, slots: Sequence[int] | IntArray, extra_key: str = "") -> InsertResult:
        """Store ``slots`` as the KV of ``ids``; what exists keeps its own slots."""
        if self.disabled:
            return InsertResult(0, 0, self._root(extra_key))
        node, existing, _ = self._descend(ids, extra_key)
        if existing < len(ids):
            value = np.array(slots[existing:], dtype=np.int32)
            child = self._new_node(node, ids[existing:].copy(), value, extra_key)
            child.last_access, child.doomed = self._tick, node.doomed
            node.children[int(child.key[0])] = child
            self.evictable_size += len(child.key)
            self.epoch += 1
            self._push(child)
            self._gone.pop((_place(node), int(child.key[0])), None)
            self._tell("insert", child)
            node = child
        return InsertResult(existing, len(ids), node)

    def _descend(self, ids: IntArray, extra_key: str) -> tuple[TreeNode, int, list[IntArray]]:
        """Walk down as far as ``ids`` go, splitting at the end: (last node, matched length, its slots by node)."""
        self._tick += 1
        node, pos, values = self._root(extra_key), 0, []
        while pos < len(ids):
            child = node.children.get(int(ids[pos]))
            if child is None:
                break
            common = _common(child.key, ids, pos)
            if common < len(child.key):
                child = self._split(child, common)
            child.last_access = self._tick
            values.append(child.value)
            pos, node = pos + common, child
        return node, pos, values

    def _split(self, node: TreeNode, length: int) -> TreeNode:
        """Cut an edge; returns the new upper node, which ends after ``length`` tokens."""
        parent = node.parent
        assert parent is not None and 0 < length < len(node.key), "split inside an edge only"
        upper = self._new_node(parent, node.key[:length], node.value[:length], node.extra_key)
        upper.lock_ref, upper.last_access, upper.doomed = node.lock_ref, node.last_access, node.doomed
        upper.pin_ref, upper.hits, upper.priority = node.pin_ref, node.hits, node.priority
        parent.children[int(upper.key[0])] = upper
        node.key, node.value, node.parent = node.key[length:], node.value[length:], upper
        upper.children[int(node.key[0])] = node
        self._tell("split", upper)
        return upper

    def _tell(self, kind: str, node: TreeNode) -> None:
        if self.on_change is not None:
            self.on_change(kind, node)

    def _new_node(self, parent: TreeNode | None, key: IntArray, value: IntArray, extra_key: str) -> TreeNode:
        self._ids += 1
        return TreeNode(parent, key, value, extra_key, self._ids)

    # ------------------------------------------------------------ locks and soft references

    def lock(self, node: TreeNode) -> None:
        """Protect the path from ``node`` to its root, until ``unlock``."""
        if not node.alive:
            raise IntegrityError(f"lock of evicted node {node.id}")
        for above in _path(node):
            self._note_held(above)
            above.lock_ref += 1
        self._tell("lock", node)

    def unlock(self, node: TreeNode) -> None:
        """Undo one ``lock``; flushed nodes leave now if this was the last one."""
        self._tell("unlock", node)
        for above in list(_path(node)):
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
                self._push(node)
        self._forget_root(node)

    def pin(self, node: TreeNode) -> None:
        """Keep the path to ``node`` until ``unpin``."""
        for above in _path(node):
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
        for above in list(_path(node)):
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

    def soft_ref(self, node: TreeNode) -> None:
        """Note a session's interest: evicted after every plain node, but never blocking."""
        node.soft_ref += 1

    def soft_unref(self, node: TreeNode) -> None:
        """Undo one ``soft_ref`` (of the node that ``resolve`` gives)."""
        if node.soft_ref < 1:
            raise IntegrityError(f"soft reference of node {node.id} is given back twice")
        node.soft_ref -= 1
        if node.evictable:
            self._push(node)
        self._forget_root(node)

    def resolve(self, node: TreeNode) -> TreeNode:
        """Where a soft reference lies now: the node itself, or the nearest one above that is left."""
        while not node.alive and node.parent is not None:
            node = node.parent
        return node

    # ------------------------------------------------------------ eviction

    def evict(self, count: int) -> int:
        """Free at least ``count`` slots of unlocked leaves, if there are so many, oldest use first."""
        freed, gone = 0, []
        self._wanted = count
        while freed < count and self._heap:
            key, _, node = heapq.heappop(self._heap)
            if key != node.heap_key:
                continue  # superseded by a smaller entry
            node.heap_key = None
            if not node.evictable:
                continue  # comes back when it is an unlocked leaf again
            if self._order(node) > key:
                self._push(node)  # used since it was pushed
                continue
            freed += len(node.key)
            gone.append(self._remove(node))
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

    def next_victims(self, count: int) -> list[int]:
        """Ids of the nodes that eviction would take next, as far as leaves are known now."""
        # The k-th smallest entry of a heap lies in its first 2^k - 1 places; twice that, since some are out of date.
        known = {node for _, _, node in self._heap[: 2 << count] if node.evictable}
        return [node.id for node in sorted(known, key=self._order)[:count]]

    def explain(self, ids: IntArray, extra_key: str, matched: int) -> Match:
        """What the cache had of ``ids``, of which ``matched`` tokens were found, and why no more."""
        node, pos = self._root(extra_key), 0
        if self.disabled or matched >= len(ids) - 1:
            return Match(matched=matched, node=node.id, cause="disabled" if self.disabled else "hit")
        while pos < matched and (child := node.children.get(int(ids[pos]))) is not None:
            node, pos = child, pos + len(child.key)
        gone = self._gone.get((_place(node), int(ids[matched])))
        if pos > matched or gone is not None or not node.children:
            short = "short" if matched else "cold"
            return Match(matched=matched, node=node.id, cause=gone or short)  # type: ignore[arg-type]
        rest = ids[matched + 1 : -1]
        again = max(_common(child.key[1:], rest, 0) for child in node.children.values())
        return Match(
            matched=matched,
            node=node.id,
            cause="diverged" if matched else "cold",
            diverged_at=matched,
            equal_again=again,
        )

    def elsewhere(self, ids: IntArray, extra_key: str) -> bool:
        """True when another name space has a prefix of ``ids``."""
        return any(
            len(ids) and int(ids[0]) in root.children for key, root in self._roots.items() if key != extra_key
        )

    def set_eviction(self, policy: str) -> None:
        """Change the order of eviction from now on."""
        self.eviction = policy
        self._heap.clear()
        for node in self.nodes():
            node.heap_key = None
            self._push(node)

    def _order(self, node: TreeNode) -> _HeapKey:
        """Smallest goes first; grows with use only, as the heap needs it."""
        if self.eviction == "lru":
            return (node.soft_ref > 0, 0, node.last_access, node.id)
        rank, used = 0, node.last_access
        if self.eviction == "lfu":
            rank = node.hits
        elif self.eviction == "slru":
            rank = int(node.hits > 1)
        elif self.eviction == "priority":
            rank = node.priority
        else:
            used = 0  # fifo
        return (node.soft_ref > 0, rank, used, node.id)

    def _push(self, node: TreeNode) -> None:
        """Enter an unlocked leaf in the heap, unless an entry that is due no later is there already.

        Last use only grows, so an old entry is a lower bound: ``evict`` corrects it when it comes up.
        """
        key = self._order(node)
        if node.evictable and (node.heap_key is None or key < node.heap_key):
            node.heap_key = key
            self._pushes += 1
            heapq.heappush(self._heap, (key, self._pushes, node))

    def _remove(self, node: TreeNode) -> IntArray:
        """Take an unlocked leaf out of the tree; returns its slots, which the caller frees."""
        parent = node.parent
        assert parent is not None and node.evictable, "only an unlocked leaf is removed"
        slots = node.value
        count, first = len(slots), int(node.key[0])
        flushed = self._flushing or node.doomed
        self.last_eviction = not flushed and self._wanted <= count
        self._wanted -= count
        if self.on_change is not None:
            self.on_change("flush" if flushed else "evict", node)
        self._gone[_place(parent), first] = "flushed" if flushed else "evicted"
        if len(self._gone) > _REMEMBERED:
            self._gone.popitem(last=False)
        self.evictable_size -= count
        self.epoch += 1
        del parent.children[first]
        node.alive = False
        node.key = node.value = _EMPTY
        parent.soft_ref += node.soft_ref
        if parent.parent is None:
            self._forget_root(parent)
        elif not parent.children:
            self._push(parent)
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
            if parent is None or parent.children.get(int(node.key[0])) is not node or not node.alive:
                raise IntegrityError(f"node {node.id} is not its parent's child by its first token")
            if not len(node.key) or len(node.key) != len(node.value):
                raise IntegrityError(f"node {node.id} has {len(node.key)} tokens and {len(node.value)} slots")
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


def _place(node: TreeNode) -> int | str:
    """A node as the key of what went from below it; roots come and go with their name space."""
    return node.id if node.parent is not None else node.extra_key


def _path(node: TreeNode) -> Iterator[TreeNode]:
    """The node and everything above it, its root last."""
    here: TreeNode | None = node
    while here is not None:
        yield here
        here = here.parent


_common = common_length
