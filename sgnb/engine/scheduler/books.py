"""The scheduler's books: its figures, and the proof that no slot and no lock is lost.

Role: ``EngineStats`` of a moment, and the sums that must hold whenever nothing runs. Scheduler process; called by
``Scheduler`` when it becomes idle, by ``control`` and by tests after each step. Repairs nothing: a broken book raises
IntegrityError and ends the engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sgnb.engine.mem_cache.base import IntegrityError
from sgnb.messages import EngineStats

if TYPE_CHECKING:
    from sgnb.engine.scheduler.scheduler import Scheduler


class Books:
    """One scheduler's."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.next_walk = 0.0
        """When the whole tree may be compared again; a simulation, which is checked elsewhere, puts it off for ever."""

    def on_idle(self) -> None:
        """What is right only when nothing runs: the books must be even, and estimates start over."""
        scheduler = self._scheduler
        if not scheduler.was_busy:
            return
        scheduler.was_busy = False
        scheduler.ratio.reset()
        started = scheduler.clock()
        walk = started >= self.next_walk
        self.check_integrity(walk=walk)
        if walk:
            # A walk over a tree of 10,000 nodes takes some 30 ms: it may cost one hundredth of the time, not more.
            self.next_walk = started + 100 * (scheduler.clock() - started)
        scheduler.mover.on_idle()
        scheduler.publish(self.stats())

    def stats(self) -> EngineStats:
        """The figures of this moment."""
        scheduler = self._scheduler
        return scheduler.meter.stats(
            running=len(scheduler.running_batch)
            + len(scheduler.scoring)
            + (scheduler.chunked_req is not None),
            queued=len(scheduler.waiting_queue),
            paused=scheduler.paused,
            held=len(scheduler.reqs) if scheduler.paused else 0,
            sessions=len(scheduler.sessions),
            free=scheduler.allocator.available,
            cached=scheduler.cache.evictable_size,
            locked=scheduler.cache.protected_size,
            total=scheduler.allocator.size,
            new_token_ratio=scheduler.ratio.value,
            evicted=scheduler.cache.evicted_total,
            half_filled=sum(len(req.kv.spare) for req in scheduler.reqs.values())
            if scheduler.allocator.page_size > 1
            else 0,
            compiling=len(scheduler.grammars.queue),
        )

    def spare(self) -> int:
        """Slots that could still be given away if all that runs wrote as long as it may; 0 when there are none."""
        scheduler = self._scheduler
        running = scheduler.running_batch
        if scheduler.allocator.page_size == 1:  # after each step: what ``lack`` of ``remaining`` is then
            owed = sum([req.params.max_new_tokens - len(req.output_ids) for req in running])
        else:
            owed = sum(req.kv.lack(req.remaining) for req in running)
        if (req := scheduler.chunked_req) is not None:
            owed += req.kv.lack(req.prefill_len - len(req.kv.slots) + req.remaining)
        return max(0, scheduler.allocator.available + scheduler.cache.evictable_size - owed)

    def check_integrity(self, walk: bool = True) -> None:
        """Raise IntegrityError unless free + cached + in flight == total and locks equal the requests that hold slots.

        ``walk``: the whole tree is compared with its books too, not only the books with each other.
        """
        scheduler = self._scheduler
        if walk:
            scheduler.allocator.check()
            scheduler.cache.check()
        holders = [req for req in scheduler.reqs.values() if req.kv.node is not None]
        flight = sum(req.kv.in_flight for req in holders)
        free, cached = (
            scheduler.allocator.available,
            scheduler.cache.evictable_size + scheduler.cache.protected_size,
        )
        if free + cached + flight != scheduler.allocator.size:
            raise IntegrityError(
                f"KV slots do not add up: {free} free + {cached} cached + {flight} in flight"
                f" = {free + cached + flight}, the pool has {scheduler.allocator.size}"
            )
        if scheduler.cache.lock_total != len(holders):
            raise IntegrityError(
                f"{scheduler.cache.lock_total} locks are held by {len(holders)} running requests"
            )
