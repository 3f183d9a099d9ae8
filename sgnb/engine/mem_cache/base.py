"""What the scheduler may expect of a prefix cache and of an allocator of KV slots.

Role: the vocabulary of this package (arrays, results, errors) and the two contracts. Scheduler process only; called by
``sgnb.engine.scheduler`` and implemented beside it. No tensors here: slots are numbers, the runner owns the memory.

Every slot of the pool belongs to exactly one of three owners, at every moment::

    total = free (allocator) + cached (tree: evictable + protected) + in flight (running requests)

A page is ``page_size`` slots in a row, the first of them at a multiple of it. Slots change hands by whole pages only, and
position ``p`` of a request lies at place ``p % page_size`` of its page.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from sgnb.engine.mem_cache.tree_node import TreeNode

IntArray = npt.NDArray[np.int32]
"""Token ids or slots; never changed in place once handed over."""


class IntegrityError(RuntimeError):
    """Slots or locks do not add up. A fault of ours: reported loudly, never repaired."""


class OutOfSlots(RuntimeError):
    """More slots were asked for than are free; callers evict or retract first."""


class MatchResult(NamedTuple):
    """The longest cached prefix: its slots and the node it ends on (which ends exactly there)."""

    slots: IntArray
    node: TreeNode


class PeekResult(NamedTuple):
    """Length of the longest cached prefix and the node in which it ends (maybe inside it)."""

    length: int
    node: TreeNode


class InsertResult(NamedTuple):
    """``existing``: tokens that were there already, whose slots were *not* taken over by the cache.
    ``stored``: tokens the cache now holds, whole pages (0 when it is disabled). ``node`` ends at ``stored``."""

    existing: int
    stored: int
    node: TreeNode


class FlushResult(NamedTuple):
    """Tokens a flush freed at once, and tokens that leave when their requests unlock them."""

    flushed: int
    locked: int


def common_length(key: IntArray, ids: IntArray, start: int) -> int:
    """How many tokens of ``key`` agree with ``ids[start:]``."""
    length = min(len(key), len(ids) - start)
    if length <= 0:
        return 0
    differs = key[:length] != ids[start : start + length]
    first = int(differs.argmax())
    return first if differs[first] else length


class BaseAllocator(ABC):
    """Free slots of the KV pool. ``page_size`` is the granularity of what it hands out."""

    page_size: int = 1
    size: int
    """Slots of the pool, whole pages."""
    order: str
    """``lifo``: last freed, first used; ``lowest``: lowest numbers first. May be changed at any time."""
    on_free: Callable[[IntArray], None] | None
    """Told which slots are given back."""

    @property
    @abstractmethod
    def available(self) -> int:
        """Slots that ``alloc`` can give now."""

    def round_up(self, count: int) -> int:
        """Slots that ``count`` tokens of one row take: whole pages."""
        return -(-count // self.page_size) * self.page_size

    @abstractmethod
    def alloc(self, count: int) -> list[int]:
        """Take ``count`` slots, rounded up to whole pages; raises OutOfSlots and takes none when they are not there."""

    @abstractmethod
    def free(self, slots: Sequence[int] | IntArray) -> None:
        """Give whole pages of slots back, in order; raises IntegrityError for a slot that is free already or foreign, and
        for a part of a page."""

    @abstractmethod
    def fragmentation(self) -> tuple[int, int]:
        """(runs of consecutive free slots, length of the longest)."""

    @property
    def scattered(self) -> float:
        """Share of the free slots that lies outside their longest run: 0 when they are one run."""
        return 1 - self.fragmentation()[1] / self.available if self.available else 0.0

    @abstractmethod
    def compact(self, live: int) -> None:
        """Whatever was taken lies in slots ``0 … live - 1`` now, all others are free."""

    @abstractmethod
    def check(self) -> None:
        """Raise IntegrityError when the books of the allocator itself do not agree."""


class BasePrefixCache(ABC):
    """Maps token prefixes, by name space, to the slots that hold their KV."""

    evictable_size: int
    """Slots of nodes that nobody locks."""
    protected_size: int
    """Slots of nodes that some running request locks."""
    epoch: int
    """Changes whenever a match may have a different length."""

    @abstractmethod
    def match_prefix(
        self, ids: IntArray, extra_key: str = "", renew: bool = True, priority: int = 0
    ) -> MatchResult:
        """Longest cached prefix of ``ids``. May split a node; refreshes last use. Not safe from eviction until the
        node is locked. Callers that need logits pass ``ids`` without their last token. ``renew``: a new user of the
        prefix, which takes it out of an earlier flush."""

    @abstractmethod
    def peek(self, ids: IntArray, extra_key: str = "") -> PeekResult:
        """As ``match_prefix``, but changes nothing: for policies that only need the length."""

    @abstractmethod
    def insert(self, ids: IntArray, slots: Sequence[int] | IntArray, extra_key: str = "") -> InsertResult:
        """Store KV. The cache takes ``slots[existing:]``; ``slots[:existing]`` stay with the caller, who frees those
        that are not the cache's own."""

    @abstractmethod
    def lock(self, node: TreeNode) -> None:
        """Protect the path from ``node`` to its root from eviction, until ``unlock``."""

    @abstractmethod
    def unlock(self, node: TreeNode) -> None:
        """Undo one ``lock``."""

    @abstractmethod
    def evict(self, count: int) -> int:
        """Free at least ``count`` slots of unlocked leaves if there are so many; returns how many were freed."""

    @abstractmethod
    def flush(self) -> FlushResult:
        """Forget everything: unlocked nodes now, locked ones when they are unlocked."""
