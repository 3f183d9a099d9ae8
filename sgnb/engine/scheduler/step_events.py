"""Events of steps, of the tree and of slots, made where the thing happens.

Role: collects what one pass decides and does, and publishes it as ``StepEvent``, ``RadixEvent`` and ``KVDelta``. Scheduler
process; ``Scheduler`` calls it at fixed places of a pass, the cache and the allocator through their hooks. Lengths, ids and
slots only, never tokens. Decides nothing and changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from sgnb.engine.mem_cache.allocator import TokenAllocator
from sgnb.engine.mem_cache.base import IntArray
from sgnb.engine.mem_cache.radix_cache import RadixCache, TreeNode
from sgnb.engine.scheduler.batch import ScheduleBatch
from sgnb.messages import (
    KVDelta,
    ModelWorkerOutput,
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


class StepRecorder:
    """One scheduler's. ``for_rid``: the request on whose behalf slots and nodes change now."""

    def __init__(
        self,
        clock: Callable[[], float],
        publish: Callable[[TelemetryEvent], None],
        cache: RadixCache,
        allocator: TokenAllocator,
    ) -> None:
        self.for_rid = ""
        self.between = False
        """A pass was computed and its results are not taken yet."""
        self._clock = clock
        self._publish = publish
        self._cache = cache
        self._allocator = allocator
        self._notes: list[StepNote] = []
        self._runs: list[SlotRun] = []
        self._draft: dict[str, Any] = {}
        self._marks = [0.0] * 3
        cache.on_change = self._tree_changed
        allocator.on_free = self._freed

    # ------------------------------------------------------------ steps

    def begin(self) -> None:
        """A pass begins."""
        self.between = False
        self._marks[0] = time.perf_counter()

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

    def scheduled(self, batch: ScheduleBatch | ScoreBatch, figures: tuple[int, int, float]) -> None:
        """The batch is made. ``figures``: running, queued, new-token ratio."""
        if isinstance(batch, ScheduleBatch):
            mode, rows = batch.forward_mode, self._rows(batch)
        else:
            mode = "score"  # type: ignore[assignment]
            rows = [
                StepRow(rid=row.req.rid, kind="score", tokens=len(row.ids), prefix=len(row.prefix))
                for row in batch.rows
            ]
            for row in batch.rows:
                self._add_runs(row.req.rid, row.slots)
        self._draft = {
            "time": self._clock(),
            "mode": mode,
            "rows": rows,
            "free": self._allocator.available,
            "evictable": self._cache.evictable_size,
            "running": figures[0],
            "queued": figures[1],
            "new_token_ratio": figures[2],
        }
        self._marks[1] = time.perf_counter()

    def _rows(self, batch: ScheduleBatch) -> list[StepRow]:
        rows, at = [], 0
        for row, req in enumerate(batch.reqs):
            count = batch.extend_lens[row]
            kind = "prefill" if row < batch.prompts else "decode"
            rows.append(StepRow(rid=req.rid, kind=kind, tokens=count, prefix=batch.prefix_lens[row]))  # type: ignore[arg-type]
            self._add_runs(req.rid, batch.out_cache_loc[at : at + count])
            at += count
        return rows

    def computed(self) -> None:
        """The runner has answered."""
        self.between = True
        self._marks[2] = time.perf_counter()

    def processed(self, result: ModelWorkerOutput, wasted: int) -> None:
        """The results are taken: the step's event is complete."""
        self.between = False
        scheduled = self._marks[1] - self._marks[0]
        processing = time.perf_counter() - self._marks[2]
        notes, self._notes = self._notes, []
        self._publish(
            StepEvent(
                **self._draft,
                step=result.step,
                notes=notes,
                schedule_seconds=scheduled,
                forward_seconds=result.forward_seconds,
                sample_seconds=result.sample_seconds,
                process_seconds=processing,
                exposed_host_seconds=scheduled + processing,
                drawn=sum(token >= 0 for token in result.next_token_ids),
                bad_rows=len(result.bad_rows),
                wasted_rows=wasted,
            )
        )

    # ------------------------------------------------------------ tree and slots

    def _tree_changed(self, kind: str, node: TreeNode) -> None:
        parent = node.parent
        start, above = 0, parent
        while above is not None:
            start, above = start + len(above.key), above.parent
        gone = kind == "evict"
        self._publish(
            RadixEvent(
                time=self._clock(),
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
        if kind in ("insert", "split"):
            self._add_runs(f"node:{node.id}", node.value)

    def _freed(self, slots: IntArray) -> None:
        self._add_runs("", slots)

    def _add_runs(self, owner: str, slots: list[int] | IntArray) -> None:
        self._runs += runs_of(owner, slots)

    def flush_slots(self, step: int) -> None:
        """Publish which slots changed hands, if any."""
        if self._runs:
            runs, self._runs = self._runs, []
            self._publish(KVDelta(time=self._clock(), step=step, runs=runs))


def runs_of(owner: str, slots: list[int] | IntArray) -> list[SlotRun]:
    """Slots of one owner as runs of consecutive numbers, in their order."""
    if len(slots) == 1:
        return [SlotRun(owner=owner, start=int(slots[0]), count=1)]
    given = np.asarray(slots, dtype=np.int64)
    cuts = np.flatnonzero(np.diff(given) != 1) + 1
    starts = [0, *cuts.tolist()] if len(given) else []
    return [
        SlotRun(owner=owner, start=int(given[start]), count=end - start)
        for start, end in (zip(starts, [*starts[1:], len(given)], strict=True) if starts else ())
    ]
