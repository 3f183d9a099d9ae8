"""Joined KV: branches whose keys and values are copied behind their parent's, keys rotated by the shift of their positions.

Role: what a session remembers of a join until its KV is evicted, and which copies a prefill step can make of it. Scheduler
process; ``Intake`` makes a ``Joint`` of a ``SessionJoin``, ``PrefillAdder`` asks ``plan_copies`` when it admits a request,
``Session`` shares joints with its forks. Moves no KV itself: the runner does, told by the record.

A branch's tokens were computed after the parent's alone, so what is copied approximates what they would be after all
branches before them. Nobody else may ever match it: in the tree the first joined token stands under a *private* id, negative
and used once, so that it and all that follows is reachable through the joint only::

    ids    p p p p │ a a a │ b b b b │ …        p: the parent's, shared with all who have it
    keys   p p p p │ -7 a a │ b b b b │ …       -7: the private id, in the place of the first a
                     ↑ start            ↑ end

What of a branch cannot be copied (its KV is gone, or never was) is computed. Once copied KV is gone from the tree its
joint is dropped: the same ids are computed from true keys, which is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from sgnb.engine.mem_cache.base import IntArray
from sgnb.engine.mem_cache.radix_cache import RadixCache
from sgnb.engine.mem_cache.tree_node import TreeNode


@dataclass(frozen=True, slots=True, eq=False)
class Patch:
    """``count`` tokens from ``start`` on are a branch's from its position ``source`` on. ``keys``: the branch's, whole."""

    start: int
    count: int
    source: int
    keys: IntArray
    extra_key: str


class Joint:
    """One join. Shared by the sessions that were forked behind it; the last to leave it gives its KV back."""

    __slots__ = (
        *("_cache", "_ids", "_nodes", "_users"),
        *("copied", "end", "keys", "patches", "private", "reach", "start", "waits"),
    )

    def __init__(
        self,
        cache: RadixCache,
        ids: PrivateIds,
        first: int,
        keys: IntArray,
        patches: list[Patch],
        waits: frozenset[str],
    ) -> None:
        self._cache = cache
        self._ids = ids
        self.private = ids.new(first)
        self.patches = patches
        self.start = patches[0].start
        self.end = patches[-1].start + patches[-1].count
        self.keys = keys
        """Of all before ``start``."""
        self.waits = waits
        """Requests that compute the last tokens of its branches: whoever copies waits for them."""
        self.copied = 0
        """Tokens that were copied so far; with none all is exact."""
        self.reach = 0
        """Behind the last token that was copied."""
        self._users = 0
        self._nodes: list[TreeNode] = []

    @property
    def extra_key(self) -> str:
        """The name space of parent and branches."""
        return self.patches[0].extra_key

    def refer_to(self, nodes: Sequence[TreeNode]) -> None:
        """Branches are worth keeping until they were copied, though their sessions are closed."""
        for node in map(self._cache.resolve, nodes):
            self._cache.soft_ref(node)
            self._nodes.append(node)

    def note_copied(self, count: int, end: int) -> None:
        """So many tokens, up to ``end``, are in its own name space now; its branches are plain cache from now on."""
        self.copied += count
        self.reach = max(self.reach, end)
        self._let_go()

    def _let_go(self) -> None:
        nodes, self._nodes = self._nodes, []
        for node in nodes:
            self._cache.soft_unref(self._cache.resolve(node))

    def enter(self) -> None:
        """One more session has it."""
        self._users += 1

    def leave(self) -> None:
        """A session is closed, was cut before it or has become exact. With the last one its KV, which nobody can find any
        more, is freed (as far as nobody computes on it)."""
        self._users -= 1
        if not self._users:
            self._let_go()
            self._ids.forget(self.private)
            self._cache.discard(self.keys, self.private, self.extra_key)


class Joined(NamedTuple):
    """A session's, or a request's, part in a joint: all of it, or what lies before ``end``."""

    joint: Joint
    end: int


@dataclass(slots=True)
class Copies:
    """What a row copies before it computes: slot ``src[i]`` by ``shift[i]`` positions. ``nodes`` are locked until it has its
    slots."""

    src: list[int] = field(default_factory=list)
    shift: list[int] = field(default_factory=list)
    nodes: list[TreeNode] = field(default_factory=list)
    joints: list[tuple[Joint, int, int]] = field(default_factory=list)
    """How many tokens are of which joint, and behind which position they end."""
    until: int | None = None
    """The position at which the next copy can begin: until there all is computed."""

    def __len__(self) -> int:
        return len(self.src)

    def unlock(self, cache: RadixCache) -> None:
        """The slots that are read may be freed from now on: whoever gets them writes after the copy."""
        for node in self.nodes:
            cache.unlock(node)
        self.nodes = []


def keys_of(ids: IntArray, joined: Sequence[Joined]) -> IntArray:
    """What ``ids`` are found by in the tree."""
    if not joined:
        return ids
    keys = ids.copy()
    for one in joined:
        if one.joint.start < len(keys):
            keys[one.joint.start] = one.joint.private
    return keys


def before(joined: Sequence[Joined], length: int) -> list[Joined]:
    """What is left when only ``length`` ids stay."""
    return [Joined(one.joint, min(one.end, length)) for one in joined if one.joint.start < length]


def lost(joined: Sequence[Joined], ids: IntArray, cache: RadixCache) -> list[Joined]:
    """Those whose copies are not all in the tree any more, and those of which nothing was ever copied nor can be now."""
    keys = keys_of(ids, joined)
    page = cache.page_size
    gone = []
    for one in joined:
        have = cache.peek(keys, one.joint.extra_key).length
        if one.joint.copied:
            missing = have < min(one.joint.reach, one.end, len(ids)) // page * page
        else:
            missing = have <= one.joint.start and not any(
                _cached(patch, cache) for patch in one.joint.patches
            )
        if missing:
            gone.append(one)
    return gone


def _cached(patch: Patch, cache: RadixCache) -> bool:
    return cache.peek(patch.keys, patch.extra_key).length > patch.source


def plan_copies(joined: Sequence[Joined], position: int, end: int, cache: RadixCache) -> Copies:
    """Copies that continue a request whose first ``position`` tokens have KV, at most to ``end``."""
    copies = Copies()
    for one in joined:
        for patch in one.joint.patches:
            stop = min(patch.start + patch.count, one.end, end)
            if stop <= position:
                continue
            if patch.start > position:
                if _cached(patch, cache):
                    copies.until = patch.start
                    return copies
                continue
            match = cache.match_prefix(patch.keys, patch.extra_key, renew=False)
            stop = min(stop, patch.start + len(match.slots) - patch.source)
            if stop <= position:
                continue
            shift = patch.start - patch.source
            copies.src += match.slots[position - shift : stop - shift].tolist()
            copies.shift += [shift] * (stop - position)
            copies.joints.append((one.joint, stop - position, stop))
            cache.lock(match.node)
            copies.nodes.append(match.node)
            position = stop
    return copies


class PrivateIds:
    """Ids of first joined tokens: each negative, given once, and the token it stands for as long as its joint lives."""

    def __init__(self) -> None:
        self._last = -1
        self._tokens: dict[int, int] = {}

    def new(self, token: int) -> int:
        """A fresh id that stands for ``token``. After 2^31 joins they begin again."""
        self._last = self._last - 1 if self._last > np.iinfo(np.int32).min else -2
        self._tokens[self._last] = token
        return self._last

    def forget(self, private: int) -> None:
        """Its joint is gone."""
        self._tokens.pop(private, None)

    def true_ids(self, keys: Sequence[int]) -> list[int]:
        """Token ids of keys."""
        return [self._tokens.get(key, key) if key < 0 else key for key in keys]
