"""Events of steps, of the tree and of slots, made where the thing happens.

Role: collects what one pass decides and does, and publishes it as ``StepEvent``, ``RadixEvent`` and ``KVDelta``. Scheduler
process; ``Scheduler`` calls it at fixed places of a pass, the cache and the allocator through their hooks. Lengths, ids and
slots only, never tokens. Decides nothing and changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sgnb.engine.mem_cache.base import BaseAllocator, IntArray
from sgnb.engine.mem_cache.radix_cache import RadixCache
from sgnb.engine.mem_cache.tree_node import TreeNode
from sgnb.engine.model_executor.drivers import Ran
from sgnb.engine.scheduler.batch import ScheduleBatch
from sgnb.engine.scheduler.node_book import NodeBook
from sgnb.messages import (
    KVDelta,
    RadixEvent,
    SlotRun,
    StepEvent,
    StepNote,
    StepRow,
    TelemetryEvent,
)

if TYPE_CHECKING:
    from sgnb.engine.scheduler.select import ScoreBatch

_NEXT = 6
MAX_RUNS = 50_000
"""Of one event: some 1.5 MB."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What is known of a step before it is computed; ``began``: when its planning began."""

    known: dict[str, Any]
    began: float


class StepRecorder:
    """One scheduler's. ``for_rid``: the request on whose behalf slots and nodes change now."""

    def __init__(
        self,
        clock: Callable[[], float],
        publish: Callable[[TelemetryEvent], None],
        cache: RadixCache,
        allocator: BaseAllocator,
    ) -> None:
        self.for_rid = ""
        self.between = False
        """A pass was computed and its results are not taken yet."""
        self.book = NodeBook()
        self._clock = clock
        self._publish = publish
        self._cache = cache
        self._allocator = allocator
        self._notes: list[StepNote] = []
        self._runs: list[SlotRun] = []
        self._evicted: tuple[str, int, int] | None = None
        """What one need of slots has evicted so far: for whom, how many were short, how many were freed."""
        self._began = 0.0
        self._last_end = 0.0
        """When the runner had computed the last step; 0: it rests, and nobody waits."""
        cache.on_change = self._tree_changed
        allocator.on_free = self._freed

    # ------------------------------------------------------------ steps

    def begin(self) -> None:
        """A pass begins."""
        self.between = False
        self._began = time.perf_counter()

    def rest(self) -> None:
        """There is no work: what time passes until the next step is nobody's loss."""
        self._last_end = 0.0

    def note(
        self, rid: str, what: str, reason: str, unit: str = "", needs: int = 0, has: int = 0, leader: str = ""
    ) -> None:
        """A decision of this pass."""
        note = StepNote(
            rid=rid,
            what=what,  # type: ignore[arg-type]
            reason=reason,
            unit=unit,
            needs=needs,
            has=has,
            leader=leader,
        )
        self._notes.append(note)

    def scheduled(
        self, batch: ScheduleBatch | ScoreBatch, figures: tuple[int, int, float], under: int
    ) -> Draft:
        """The batch is made. ``figures``: running, queued, new-token ratio; ``under``: the step in flight, or 0."""
        if isinstance(batch, ScheduleBatch):
            mode, rows = batch.forward_mode, self._rows(batch)
        else:
            mode = "score"  # type: ignore[assignment]
            rows = [
                StepRow(rid=row.req.rid, kind="score", tokens=len(row.ids), prefix=len(row.prefix))
                for row in batch.rows
            ]
            for row in batch.rows:
                self._runs += runs_of(row.req.rid, row.slots)
        self._close_eviction()
        notes, self._notes = self._notes, []
        known = {
            "time": self._clock(),
            "mode": mode,
            "rows": rows,
            "free": self._allocator.available,
            "evictable": self._cache.evictable_size,
            "running": figures[0],
            "queued": figures[1],
            "new_token_ratio": figures[2],
            "notes": notes,
            "schedule_under": under,
            "schedule_seconds": time.perf_counter() - self._began,
        }
        return Draft(known, self._began)

    def _rows(self, batch: ScheduleBatch) -> list[StepRow]:
        rows = []
        for row, req in enumerate(batch.reqs):
            count = batch.extend_lens[row]
            kind = "prefill" if row < batch.prompts else "decode"
            rows.append(StepRow(rid=req.rid, kind=kind, tokens=count, prefix=batch.prefix_lens[row]))  # type: ignore[arg-type]
            fresh = batch.fresh[row]
            if len(fresh) == 1:
                self._runs.append(SlotRun(owner=req.rid, start=fresh[0], count=1, kind=kind))
            else:
                self._runs += runs_of(req.rid, fresh, kind)
        return rows

    def landing(self) -> None:
        """The results of a step are waited for: what comes now is handled before they are taken."""
        self.between = True

    def processed(self, draft: Draft, ran: Ran, process_seconds: float, wasted: int) -> None:
        """The results are taken: the step's event is complete."""
        self.between = False
        since = self._last_end or draft.began
        self._last_end = ran.ended
        result = ran.output
        self._publish(
            StepEvent(
                **draft.known,
                step=result.step,
                forward_seconds=result.forward_seconds,
                sample_seconds=result.sample_seconds,
                process_seconds=process_seconds,
                exposed_host_seconds=max(0.0, ran.began - since),
                drawn=sum(token >= 0 for token in result.next_token_ids),
                bad_rows=len(result.bad_rows),
                wasted_rows=wasted,
            )
        )

    def failed(self, draft: Draft, step: int, how: str, wasted: int) -> None:
        """It was not computed. Nobody knows when the runner gave it up: what follows is measured from its own planning."""
        self.between = False
        self._last_end = 0.0
        self._publish(StepEvent(**draft.known, step=step, failed=how, wasted_rows=wasted))  # type: ignore[arg-type]

    # ------------------------------------------------------------ tree and slots

    def _tree_changed(self, kind: str, node: TreeNode) -> None:
        now = self._clock()
        self.book.take(kind, node, now, self.for_rid)
        parent = node.parent
        start, above = 0, parent
        while above is not None:
            start, above = start + len(above.key), above.parent
        gone = kind == "evict"
        self._publish(
            RadixEvent(
                time=now,
                kind=kind,  # type: ignore[arg-type]
                node=node.id,
                parent=parent.id if parent is not None else 0,
                start=start,
                length=len(node.key),
                for_rid=self.for_rid if kind in ("insert", "evict") else "",
                policy=self._cache.eviction if gone else "",
                next=self._cache.next_victims(_NEXT) if gone and self._cache.last_eviction else [],
                child=next(iter(node.children.values())).id if kind == "split" else 0,
            )
        )
        if gone:
            self._note_eviction(len(node.key))
        if kind in ("insert", "split"):
            self._runs += runs_of(f"node:{node.id}", node.value)

    def _note_eviction(self, freed: int) -> None:
        """All nodes that one need of slots takes are one decision."""
        if self._evicted is None:
            self._evicted = (self.for_rid, self._cache.wanted + freed, 0)
        rid, short, before = self._evicted
        self._evicted = (rid, short, before + freed)
        if self._cache.last_eviction:
            self._close_eviction()

    def _close_eviction(self) -> None:
        if self._evicted is not None:
            rid, short, freed = self._evicted
            self._evicted = None
            self.note(rid, "evicted", self._cache.eviction, "slots", short, freed)

    def _freed(self, slots: IntArray) -> None:
        self._runs += runs_of("", slots)

    def relocated(self, runs: list[SlotRun]) -> None:
        """All slots were dealt anew: ``runs`` tell the whole map."""
        self._runs += runs

    def flush_slots(self, step: int) -> None:
        """Publish which slots changed hands, if any; many runs (a flush, a defragmentation) as several events."""
        runs, self._runs = self._runs, []
        for at in range(0, len(runs), MAX_RUNS):
            self._publish(KVDelta(time=self._clock(), step=step, runs=runs[at : at + MAX_RUNS]))


def runs_of(owner: str, slots: list[int] | IntArray, kind: str = "") -> list[SlotRun]:
    """Slots as runs of consecutive numbers, in their order."""
    if len(slots) == 1:
        return [SlotRun(owner=owner, start=int(slots[0]), count=1, kind=kind)]
    if not len(slots):
        return []
    given = np.asarray(slots, dtype=np.int64)
    starts = [0, *(np.flatnonzero(np.diff(given) != 1) + 1).tolist()]
    ends = [*starts[1:], len(given)]
    return [
        SlotRun(owner=owner, start=int(given[start]), count=end - start, kind=kind)
        for start, end in zip(starts, ends, strict=True)
    ]
