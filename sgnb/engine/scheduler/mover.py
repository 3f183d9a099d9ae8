"""Defragmentation on request: when it may happen, how the runner learns of it, and what is told.

Role: behind the control ``defragment``. Scheduler process; ``Scheduler`` calls ``answer`` at the start of a pass, the one
moment at which no batch holds slot numbers that are not the requests' own, and puts ``take`` into the next record. What is
to lie where is ``mem_cache.defragment``'s.

The runner moves KV when it gets the next record, before it computes: all records reach it in order, whatever driver it has,
so a slot is never read at its new place before its KV is there. With no record to come nothing is moved at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sgnb.engine.mem_cache.defragment import defragment
from sgnb.engine.scheduler.picture import slot_runs
from sgnb.messages import SchedulerControl, SchedulerReply, SlotRun

if TYPE_CHECKING:
    from sgnb.engine.scheduler.scheduler import Scheduler


class Mover:
    """One scheduler's."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._asked: list[SchedulerControl] = []
        self._moves: dict[int, int] = {}
        """Where KV lies in the runner → where the scheduler has it by now."""

    def ask(self, msg: SchedulerControl) -> None:
        """Defragment at the start of the next pass, then answer."""
        self._asked.append(msg)

    @property
    def waiting(self) -> bool:
        """Somebody asked."""
        return bool(self._asked)

    def answer(self) -> None:
        """Do what was asked, once for all who did."""
        if not self._asked:
            return
        scheduler, asked = self._scheduler, self._asked
        self._asked = []
        scheduler.settle()
        data = self.defragment()
        for msg in asked:
            scheduler.send(SchedulerReply(client=msg.client, id=msg.id, data=data))

    def on_idle(self) -> None:
        """Nothing runs: a good moment, if free slots are scattered more than the knob allows."""
        scheduler, above = self._scheduler, self._scheduler.args.defragment_above
        if above is None or scheduler.flights or scheduler.allocator.scattered <= above:
            return
        self.defragment()
        scheduler.recorder.flush_slots(scheduler.meter.forward_steps)

    def defragment(self) -> dict[str, Any]:
        """Move live KV together; nothing may be in flight. How many slots moved, and the runs of free slots, before and
        after."""
        scheduler = self._scheduler
        before, _ = scheduler.allocator.fragmentation()
        kvs = [req.kv for req in scheduler.reqs.values() if req.kv.node is not None]
        moved = defragment(scheduler.cache, kvs, scheduler.allocator, self._note)
        if moved:
            free = SlotRun(owner="", start=0, count=scheduler.allocator.size)
            scheduler.recorder.relocated([free, *slot_runs(scheduler)])
        after, longest = scheduler.allocator.fragmentation()
        return {
            "moved": moved,
            "free_runs_before": before,
            "free_runs": after,
            "longest_free_run": longest,
        }

    def _note(self, src: list[int], dst: list[int]) -> None:
        """Remember moves for the runner, after those it has not made yet."""
        moves = dict(zip(src, dst, strict=True))
        taken, brought = set(dst), set(self._moves.values())
        later = {
            place: moves.get(now, now)
            for place, now in self._moves.items()
            if now in moves or now not in taken  # else it was freed meanwhile, and its slot goes to another
        }
        fresh = {place: now for place, now in moves.items() if place not in brought}
        self._moves = {place: now for place, now in (fresh | later).items() if place != now}

    def take(self) -> tuple[list[int], list[int]]:
        """Moves that the runner has to make before the next step: (from, to)."""
        if not self._moves:
            return [], []
        moves, self._moves = self._moves, {}
        return list(moves), list(moves.values())
