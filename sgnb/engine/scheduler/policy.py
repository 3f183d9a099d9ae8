"""Scheduling policies: the order in which waiting requests are tried for admission.

Role: sorts ``waiting_queue`` in place. Scheduler process; called once for each pass that may admit. Looks at the tree
through ``peek`` only, which changes nothing, and remembers each length for as long as the tree's epoch lasts.

    lpm         longest cached prefix first; fcfs above 128 waiting (sorting would cost more than it saves)
    dfs-weight  the tree's branches with most waiting requests first, each branch together
    fcfs        order of arrival          lof   most new tokens allowed first          random   seeded
    priority    order of arrival, too: under every policy a higher priority goes first
Among equals who had fewer time slices goes first. Whatever the policy, a request that was overtaken ``MAX_OVERTAKEN`` times
comes before all others, in order of arrival; and admission never skips the head of the queue but for one whose prefix is
just being computed. So the wait of each is bounded: nobody starves.
"""

from __future__ import annotations

import random
from collections import Counter

from sgnb.config import EngineArgs
from sgnb.engine.mem_cache.radix_cache import RadixCache
from sgnb.engine.mem_cache.tree_node import TreeNode
from sgnb.engine.scheduler.req import Req

MAX_OVERTAKEN = 128
LPM_FALLBACK = 128
POLICIES = ("lpm", "fcfs", "random", "dfs-weight", "lof", "priority")


class SchedulePolicy:
    """One policy over one tree. ``name`` may be changed between passes."""

    def __init__(self, args: EngineArgs, cache: RadixCache) -> None:
        self.name: str = args.schedule_policy
        self._cache = cache
        self._random = random.Random(args.random_seed)
        self._sorted: tuple[str, int, list[Req]] = ("", -1, [])
        """Policy, tree epoch and queue as it was left last: in most passes of a full batch nothing has changed."""

    def calc_priority(self, waiting: list[Req]) -> None:
        """Sort ``waiting`` in place, the first to be tried first."""
        name, epoch, before = self._sorted
        if name == self.name != "random" and epoch == self._cache.epoch and waiting == before:
            return
        self._sort(waiting)
        self._sorted = (self.name, self._cache.epoch, waiting.copy())

    def _sort(self, waiting: list[Req]) -> None:
        waiting.sort(key=lambda req: req.ordinal)
        if self.name == "lpm" and len(waiting) <= LPM_FALLBACK:
            waiting.sort(key=lambda req: -self._matched(req))
        elif self.name == "dfs-weight":
            self._sort_by_branch(waiting)
        elif self.name == "lof":
            waiting.sort(key=lambda req: -req.params.max_new_tokens)
        elif self.name == "random":
            self._random.shuffle(waiting)
        if any(req.turns or req.priority for req in waiting):
            waiting.sort(key=lambda req: (-req.priority, req.turns))
        if any(req.overtaken >= MAX_OVERTAKEN for req in waiting):
            waiting.sort(key=lambda req: req.ordinal if req.overtaken >= MAX_OVERTAKEN else _LATER)

    def note_admitted(self, admitted: list[Req], waiting: list[Req]) -> None:
        """Count, for each request that still waits, how many later ones went before it. Who is admitted may come back with
        another rank, so the order is not remembered any longer."""
        if not admitted:
            return
        self._sorted = ("", -1, [])
        latest = max(req.ordinal for req in admitted)
        for req in waiting:
            if req.ordinal < latest:
                req.overtaken += sum(other.ordinal > req.ordinal for other in admitted)

    def _matched(self, req: Req) -> int:
        epoch, length, matched = req.peeked
        if epoch != self._cache.epoch or length != req.total_len:
            matched = self._cache.peek(req.fill_keys()[:-1], req.kv.extra_key).length
            req.peeked = (self._cache.epoch, req.total_len, matched)
        return matched

    def _sort_by_branch(self, waiting: list[Req]) -> None:
        """Depth first over the tree, heavier branches first and a node's own requests last: a path sorts by (weight, node)
        of each step, and its end after all that go on."""
        paths = {}
        weight: Counter[int] = Counter()
        for req in waiting:
            node: TreeNode | None = self._cache.peek(req.fill_keys()[:-1], req.kv.extra_key).node
            path = []
            while node is not None:
                path.append(node.id)
                node = node.parent
            weight.update(path)
            paths[req] = path[::-1]
        waiting.sort(key=lambda req: [*((-weight[id], id) for id in paths[req]), (1, 0)])


_LATER = 1 << 62
