"""Free slots of the KV pool: token by token, or by pages.

Role: hands out slot numbers ``0 … size-1`` and takes them back, noticing every slot given back twice. Scheduler process;
called by the radix cache (evict), by ``ReqKV`` (free) and by the batch (alloc). No memory and no policy of eviction here.

    free stack  [ ………… deepest | …………… | top ]      available = its height
    is_free     one flag a slot; a slot is in the stack exactly when its flag is set

``PagedAllocator`` keeps the same books over pages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sgnb.engine.mem_cache.base import BaseAllocator, IntArray, IntegrityError, OutOfSlots


class TokenAllocator(BaseAllocator):
    """A stack of free slots, in ascending runs as long as the pool is young."""

    page_size = 1

    def __init__(self, size: int, order: str = "lifo") -> None:
        if size < 1:
            raise ValueError(f"a KV pool needs at least 1 slot, not {size}")
        self.size = size
        self.order = order
        self._stack: IntArray = np.arange(size - 1, -1, -1, dtype=np.int32)
        self._is_free = np.ones(size, dtype=np.bool_)
        self._scratch: IntArray = np.zeros(size, dtype=np.int32)
        self._top = size
        self.on_free: Callable[[IntArray], None] | None = None

    @property
    def available(self) -> int:
        """Slots that ``alloc`` can give now."""
        return self._top

    def alloc(self, count: int) -> list[int]:
        """Take ``count`` slots; raises OutOfSlots and takes none when they are not there."""
        if count > self._top:
            raise OutOfSlots(f"{count} KV slots are needed, {self._top} of {self.size} are free")
        if self.order == "lowest" and count:
            self._stack[: self._top] = np.flatnonzero(self._is_free)[::-1]
        taken = self._stack[self._top - count : self._top][::-1]
        self._top -= count
        self._is_free[taken] = False
        out: list[int] = taken.tolist()
        return out

    def free(self, slots: Sequence[int] | IntArray) -> None:
        """Give slots back; raises IntegrityError for a slot that is free already or foreign."""
        if not len(slots):
            return
        given = np.asarray(slots, dtype=np.int32)
        if int(given.min()) < 0 or int(given.max()) >= self.size:
            raise IntegrityError(f"slots outside 0..{self.size - 1} are given back: {given.tolist()[:8]}")
        order = np.arange(len(given), dtype=np.int32)
        self._scratch[given] = order
        wrong = self._is_free[given] | (self._scratch[given] != order)  # free already, or twice in ``given``
        if wrong.any():
            raise IntegrityError(f"double free of KV slots, first of them: {given[wrong].tolist()[:8]}")
        self._is_free[given] = True
        self._stack[self._top : self._top + len(given)] = given[::-1]
        self._top += len(given)
        if self.on_free is not None:
            self.on_free(given)

    def fragmentation(self) -> tuple[int, int]:
        """(runs of consecutive free slots, length of the longest)."""
        edges = np.flatnonzero(np.diff(self._is_free.astype(np.int8), prepend=0, append=0))
        lengths = edges[1::2] - edges[::2]
        return len(lengths), int(lengths.max(initial=0))

    def compact(self, live: int) -> None:
        """Whatever was taken lies in slots ``0 … live - 1`` now, all others are free."""
        if live != self.size - self._top:
            raise IntegrityError(f"{live} slots are said to be taken, {self.size - self._top} are")
        self._is_free[:live] = False
        self._is_free[live:] = True
        self._stack[: self._top] = np.arange(self.size - 1, live - 1, -1, dtype=np.int32)

    def check(self) -> None:
        """Raise IntegrityError when stack and flags disagree."""
        flagged = int(self._is_free.sum())
        if flagged != self._top or not self._is_free[self._stack[: self._top]].all():
            raise IntegrityError(f"allocator: {self._top} slots on the stack, {flagged} flagged as free")


class PagedAllocator(BaseAllocator):
    """Slots by whole pages: page ``p`` is slots ``p * page_size …``. What a pool has beyond whole pages is not used."""

    def __init__(self, size: int, page_size: int, order: str = "lifo") -> None:
        if size < page_size:
            raise ValueError(f"a KV pool needs at least one page of {page_size} slots, not {size}")
        self.page_size = page_size
        self._pages = TokenAllocator(size // page_size, order)
        self.size = self._pages.size * page_size
        self._within: IntArray = np.arange(page_size, dtype=np.int32)
        self.on_free: Callable[[IntArray], None] | None = None

    @property
    def order(self) -> str:
        """``lifo`` or ``lowest``, as in ``TokenAllocator``, over pages."""
        return self._pages.order

    @order.setter
    def order(self, order: str) -> None:
        self._pages.order = order

    @property
    def available(self) -> int:
        """Slots of free pages."""
        return self._pages.available * self.page_size

    def alloc(self, count: int) -> list[int]:
        """Take the pages that ``count`` slots need, all their slots in order; OutOfSlots when they are not there."""
        pages = -(-count // self.page_size)
        if pages > self._pages.available:
            raise OutOfSlots(
                f"{count} KV slots are needed, {pages} pages of {self.page_size}; {self._pages.available} pages are free"
            )
        taken = np.array(self._pages.alloc(pages), dtype=np.int32)
        out: list[int] = (taken[:, None] * self.page_size + self._within).ravel().tolist()
        return out

    def free(self, slots: Sequence[int] | IntArray) -> None:
        """Give whole pages back; raises IntegrityError for a part of one, and for one that is free already or foreign."""
        if not len(slots):
            return
        given = np.asarray(slots, dtype=np.int32)
        firsts = given[:: self.page_size]
        whole = (firsts[:, None] + self._within).ravel()
        if len(given) != len(whole) or (given != whole).any() or (firsts % self.page_size).any():
            raise IntegrityError(
                f"not whole pages of {self.page_size} slots: {given.tolist()[:8]} are given back"
            )
        self._pages.free(firsts // self.page_size)
        if self.on_free is not None:
            self.on_free(given)

    def fragmentation(self) -> tuple[int, int]:
        """(runs of consecutive free pages, slots of the longest)."""
        runs, longest = self._pages.fragmentation()
        return runs, longest * self.page_size

    def compact(self, live: int) -> None:
        """Whatever was taken lies in the first ``live`` slots now, whole pages; all others are free."""
        taken = self._pages.size - self._pages.available
        if live != taken * self.page_size:
            raise IntegrityError(f"{live // self.page_size} pages are said to be taken, {taken} are")
        self._pages.compact(taken)

    def check(self) -> None:
        """Raise IntegrityError when the books of pages disagree."""
        self._pages.check()


def make_allocator(size: int, page_size: int = 1, order: str = "lifo") -> BaseAllocator:
    """The allocator of a page size."""
    return TokenAllocator(size, order) if page_size == 1 else PagedAllocator(size, page_size, order)
