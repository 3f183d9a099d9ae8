"""The KV slots of one request, from its first match to its one release.

Role: every way slots move between a request, the tree and the allocator is a method here, so that there is one place
that frees and one that locks. Scheduler process; called by ``batch`` and ``scheduler`` only. Knows nothing of sampling,
queues or messages.

``slots`` holds one slot for each token whose KV is computed, in order of position::

    0 ………………… tree_len ………………… len(slots)
    │ the tree's, locked │ own: in flight  │

``store`` (a chunk or the prompt is finished; ``k = len(slots)``) and ``release`` (``k`` = kept length) insert ``ids[:k]``::

    0 ………… tree_len ………… existing ………… k ………… len(slots)
    │ tree's  │ duplicates:   │ taken over  │ past the cut:
    │         │ freed at once │ by the tree │ freed, never inserted

With ``page_size`` above 1 the tree takes whole pages only (``k`` is rounded down): the last page, not full yet, stays the
request's own and its slots without a token are ``spare``. It is the tree's once it is full, or freed at the end.
"""

from __future__ import annotations

from sgnb.engine.mem_cache.base import BaseAllocator, BasePrefixCache, IntArray
from sgnb.engine.mem_cache.tree_node import TreeNode


class ReqKV:
    """Owner of a request's slots; holds the only hard lock of that request while ``node`` is set."""

    def __init__(self, cache: BasePrefixCache, allocator: BaseAllocator, extra_key: str = "") -> None:
        self._cache = cache
        self._allocator = allocator
        self.extra_key = extra_key
        self.page_size = allocator.page_size
        self.slots: list[int] = []
        self.side: list[int] = []
        """Slots beside the sequence: of options that are being scored after it."""
        self._held: list[int] = []
        self._held_used = 0
        self.spare: list[int] = []
        """Slots of its last page that hold no token yet."""
        self.tree_len = 0
        self.duplicates = 0
        """Tokens that were computed here although another request had stored them meanwhile."""
        self.node: TreeNode | None = None
        self.table_stale = True
        """The runner's table for this request must be written anew up to the prefix of its next step."""

    @property
    def in_flight(self) -> int:
        """Slots that are neither free nor the tree's."""
        return len(self.slots) - self.tree_len + len(self.spare) + len(self.side)

    @property
    def own_slots(self) -> list[int]:
        """Slots that are neither free nor the tree's, in whole pages."""
        return self.slots[self.tree_len :] + self.spare + self.side

    def lack(self, count: int) -> int:
        """Slots, of whole pages, that must be allocated for ``count`` more tokens."""
        short = count - len(self.spare)
        return -(-short // self.page_size) * self.page_size if short > 0 else 0

    def room(self, slots: int) -> int:
        """How many more tokens fit if ``slots`` can be allocated."""
        return len(self.spare) + slots // self.page_size * self.page_size

    def bind(self, ids: IntArray, priority: int = 0, limit: int | None = None) -> int:
        """Match all but the last of ``ids`` (logits need one computed token), at most ``limit``, and lock it. Returns its
        length."""
        assert self.node is None and not self.slots, "bind on a request that holds slots"
        match = self._cache.match_prefix(ids[:-1][:limit], self.extra_key, priority=priority)
        self._cache.lock(match.node)
        self.node = match.node
        self.slots = match.slots.tolist()
        self.tree_len = len(self.slots)
        self.table_stale = True
        return self.tree_len

    def grow(self, fresh: list[int], count: int | None = None) -> list[int]:
        """Take over freshly allocated slots; those of the next ``count`` tokens (``None``: of as many as slots)."""
        taken = fresh
        if self.page_size > 1:
            have = self.spare + fresh
            count = len(fresh) if count is None else count
            taken, self.spare = have[:count], have[count:]
        self.slots += taken
        return taken

    def hold(self, slots: list[int], used: int) -> None:
        """Of all slots beside the sequence these are worth keeping, ``used`` of them hold tokens; what was held before is
        freed."""
        self.drop(self._held)
        self._held, self._held_used = slots, used

    def let_go(self) -> bool:
        """Free what is held beside the sequence; False if nothing is."""
        held, self._held = self._held, []
        self.drop(held)
        return bool(held)

    def drop(self, slots: list[int]) -> None:
        """Free slots beside the sequence."""
        self._allocator.free(slots)
        gone = set(slots)
        self.side = [slot for slot in self.side if slot not in gone]

    def take_held(self) -> None:
        """The held slots continue the sequence, which ends at a page border; the rest beside it is freed."""
        held, self._held = self._held, []
        kept = set(held)
        self.side = [slot for slot in self.side if slot not in kept]
        self.drop(self.side)
        if held:
            self.slots += held[: self._held_used]
            self.spare = held[self._held_used :]

    def truncate(self, length: int) -> None:
        """Free own slots from ``length`` on: what they hold must not be used or cached."""
        keep = max(length, self.tree_len)
        if keep >= len(self.slots):
            return
        rest = self.slots[keep:] + self.spare
        stays = -keep % self.page_size  # of the page that the last kept token lies in
        self._allocator.free(rest[stays:])
        del self.slots[keep:]
        self.spare = rest[:stays]

    def store(self, ids: IntArray) -> None:
        """Insert computed tokens (``ids``; slots beyond them belong to a step in flight), whole pages of them, and hold them
        through the tree from now on."""
        assert self.node is not None and len(ids) <= len(self.slots), "store needs one slot an id"
        result = self._cache.insert(ids, self.slots[: len(ids)], self.extra_key)
        if not result.stored:
            return
        if result.existing > self.tree_len:
            theirs = self._cache.match_prefix(ids, self.extra_key, renew=False).slots
            self._allocator.free(self.slots[self.tree_len : result.existing])
            self.duplicates += result.existing - self.tree_len
            self.slots[: len(theirs)] = theirs.tolist()
            self.table_stale = True
        self._cache.lock(result.node)
        self._cache.unlock(self.node)
        self.node, self.tree_len = result.node, result.stored

    def release(self, ids: IntArray | None = None) -> TreeNode | None:
        """Give everything up, once; later calls do nothing.

        ``ids``: tokens to leave in the tree (at most as many as slots); ``None``, or a flush since ``bind``, leaves
        nothing new there. Returns the tree's node for ``ids``, for a soft reference (dead when it was under a flushed
        prefix that others still hold: nothing new stays there either).
        """
        if self.node is None:
            return None
        held, kept, free_from = self.node, None, self.tree_len
        self.drop(self.side)
        self._held = []
        if ids is not None and not held.doomed:
            result = self._cache.insert(ids, self.slots[: len(ids)], self.extra_key)
            kept = result.node
            self._allocator.free(self.slots[self.tree_len : min(result.existing, result.stored)])
            free_from = max(result.stored, self.tree_len)
        self._allocator.free(self.slots[free_from:] + self.spare)
        self._cache.unlock(held)
        if kept is not None and kept.doomed:
            self._cache.lock(kept)  # what is flushed leaves with its last holder, and nobody else may be one
            self._cache.unlock(kept)
        self.node, self.slots, self.spare, self.tree_len, self.table_stale = None, [], [], 0, True
        return kept

    def relocate(self, moved: IntArray) -> None:
        """The KV of slot ``s`` lies in ``moved[s]`` now."""
        self.slots = moved[self.slots].tolist() if self.slots else []
        self.spare = moved[self.spare].tolist() if self.spare else []
        self.side = moved[self.side].tolist() if self.side else []
        self._held = moved[self._held].tolist() if self._held else []
        self.table_stale = True
