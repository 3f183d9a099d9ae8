"""A session: what the engine remembers of one state of a program between its requests.

Role: its token ids, who owns it, and a *soft* reference to where its prefix ends in the radix tree: that node is evicted
after every plain one, but it never blocks admission. Scheduler process; made and changed by ``Scheduler`` alone. Holds no
lock and no slot: if its KV was evicted, the next decode computes it again and reports fewer cached tokens. Behind a
join it has a part in that (``joint``): its prefix lies in a name space of its own there.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import numpy as np

from sgnb.engine.mem_cache.base import IntArray
from sgnb.engine.mem_cache.radix_cache import RadixCache
from sgnb.engine.mem_cache.tree_node import TreeNode
from sgnb.engine.scheduler.joint import Joined, Joint, before, keys_of
from sgnb.errors import LimitError
from sgnb.messages import ErrorInfo, ForkBase

if TYPE_CHECKING:
    from sgnb.engine.scheduler.req import Req


class Session:
    """Ids so far, owner, the request that runs on it now, and the soft reference."""

    __slots__ = (
        "_cache",
        "_node",
        "_pinned",
        "active",
        "cell",
        "client",
        "computed",
        "error",
        "extra_key",
        "family",
        "forked_at",
        "ids",
        "joined",
        "sid",
        "was_joined",
    )

    def __init__(self, sid: str, client: int, extra_key: str, cache: RadixCache) -> None:
        self.sid = sid
        self.client = client
        self.cell = ""
        """Where its last request came from, by its label; of a fork that has had none, its parent's."""
        self.extra_key = extra_key
        self.ids = array("i")
        self.active: Req | None = None
        self.computed = 0
        """Ids whose KV its last request, or the one before a fork, had at its end; whole pages of them are cached."""
        self.error: ErrorInfo | None = None
        """Set when its ids can no longer be trusted; every later decode fails with it."""
        self.family: object | None = None
        """Shared by all that came of one fork, and of forks of these."""
        self.forked_at = 0
        """Ids that it began with."""
        self.joined: list[Joined] = []
        """Joins whose copied KV it computes from, or is going to."""
        self.was_joined = False
        self._cache = cache
        self._node: TreeNode | None = None
        self._pinned: TreeNode | None = None

    def prompt_with(self, ids: list[int]) -> IntArray:
        """Everything the next decode computes from: the ids so far, then what was pending."""
        whole: IntArray = np.concatenate([np.array(self.ids, dtype=np.int32), np.array(ids, dtype=np.int32)])
        return whole

    def keys(self) -> IntArray:
        """What its ids are found by in the tree."""
        return keys_of(self.prompt_with([]), self.joined)

    @property
    def joined_kv(self) -> str:
        """``approximate``: some of its KV was copied from branches; ``exact``: it is joined, and none of it is; else
        empty."""
        if any(one.joint.copied for one in self.joined):
            return "approximate"
        return "exact" if self.was_joined else ""

    @property
    def node(self) -> TreeNode | None:
        """Where its prefix ended in the tree when that was looked at last."""
        return self._node

    def join(self, joint: Joint) -> None:
        """Take part in a join."""
        joint.enter()
        self.joined.append(Joined(joint, joint.end))

    def leave(self, gone: list[Joined]) -> None:
        """These joins are nothing to it any more."""
        for one in [one for one in self.joined if one in gone]:
            self.joined.remove(one)
            one.joint.leave()

    def fork(self, sid: str, base: ForkBase = "new") -> Session:
        """A copy under another name: the same ids, a soft reference of its own, no KV copied."""
        child = Session(sid, self.client, self.extra_key, self._cache)
        child.ids = array("i", self.ids)
        child.cell = self.cell
        child.error = self.error
        child.computed = self.computed
        child.forked_at = self.forked_at if base == "same" else len(self.ids)
        child.was_joined = self.was_joined
        child.joined = self.joined.copy()
        for one in child.joined:
            one.joint.enter()
        child.family = self.family = self.family or object()
        child.refer_to(self._node)
        return child

    def extend(self, ids: list[int]) -> None:
        """Append settled ids and bind them to what the cache has of them. Nothing is computed."""
        self.ids.extend(ids)
        self._refer()

    def cut(self, keep: int) -> int:
        """Forget all ids beyond the first ``keep``; how many that were. Their KV stays as plain cache."""
        count = len(self.ids) - keep
        if count > 0:
            del self.ids[keep:]
            self.computed = min(self.computed, keep)
            self.forked_at = min(self.forked_at, keep)
            stays = before(self.joined, keep)
            self.leave([one for one in self.joined if one.joint.start >= keep])
            self.joined = stays
            self._refer()
        return max(0, count)

    def _refer(self) -> None:
        self.refer_to(self._cache.match_prefix(self.keys(), self.extra_key).node)

    def keep(self, prompt: IntArray, output_ids: list[int]) -> None:
        """The state after a request: its whole prompt and the output tokens that are kept."""
        self.ids = array("i", prompt.tobytes())
        self.ids.extend(output_ids)

    def pin(self, most: int) -> int:
        """Keep what is cached of its ids now, until ``unpin`` or its end; how many tokens. LimitError beyond ``most`` slots
        pinned altogether, each counted once (what runs needs room); what it had pinned before stays then."""
        match = self._cache.match_prefix(self.keys(), self.extra_key)
        total = self._cache.pinned_with(match.node, self._pinned)
        if total > most:
            raise LimitError(
                f"{total} slots would be pinned then, at most {most} may be: half of the pool",
                hint="Unpin another state, or launch with a larger max_total_tokens.",
            )
        self._cache.pin(match.node)
        self.unpin()
        self._pinned = match.node
        return len(match.slots)

    def unpin(self) -> bool:
        """Undo ``pin``; False if nothing was pinned."""
        node, self._pinned = self._pinned, None
        return node is not None and self._cache.unpin(node)

    def refer_to(self, node: TreeNode | None) -> None:
        """Move the soft reference (``None``: give it up)."""
        if node is not None:
            node = self._cache.resolve(node)
            self._cache.soft_ref(node)
        if self._node is not None:
            self._cache.soft_unref(self._cache.resolve(self._node))
        self._node = node

    def release(self) -> None:
        """Forget the session; its cached prefix becomes plain cache. Idempotent."""
        self.refer_to(None)
        self.unpin()
        self.leave(self.joined.copy())
        self.ids = array("i")
