"""The scheduler at one moment, as a record: what a recording, or a late view, goes on from.

Role: a pure reading of tree, pool, sessions and requests. Scheduler process; called by ``control`` between two steps. Marks
instead of token ids (``input_events``), so it may go to every client. Changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from sgnb.config import MAX_FRAME_BYTES
from sgnb.engine.scheduler.input_events import bare
from sgnb.engine.scheduler.picture import last_seq, slot_runs
from sgnb.engine.scheduler.req import Req
from sgnb.errors import LimitError
from sgnb.messages import Snapshot, SnapshotNode, SnapshotRequest, SnapshotSession

if TYPE_CHECKING:
    from sgnb.engine.scheduler.scheduler import Scheduler

_MOST_BYTES = MAX_FRAME_BYTES - (64 << 10)
"""Of a snapshot: the answer that carries it must fit in one frame."""


def take_snapshot(scheduler: Scheduler) -> Snapshot:
    """See the module. Slots that changed hands since the last pass are published before, so that ``seq`` covers them."""
    scheduler.recorder.flush_slots(scheduler.meter.forward_steps)
    snapshot = Snapshot(
        time=scheduler.clock(),
        seq=last_seq(scheduler),
        step=scheduler.meter.forward_steps,
        args=scheduler.args,
        context_length=scheduler.runner.context_length,
        max_total_tokens=scheduler.allocator.size,
        slot_bytes=scheduler.runner.slot_bytes,
        max_running=scheduler.runner.max_running,
        stats=scheduler.stats(),
        nodes=_nodes(scheduler),
        slots=slot_runs(scheduler),
        sessions=[
            SnapshotSession(
                sid=session.sid,
                client=session.client,
                extra_key=scheduler.inputs.marks.of_name(session.extra_key),
                marks=scheduler.inputs.marks.of(session.keys()).tobytes(),
            )
            for session in scheduler.sessions.values()
        ],
        requests=[_request(scheduler, req) for req in sorted(scheduler.reqs.values(), key=_by_ordinal)],
        next=scheduler.cache.next_victims(6),
    )
    return _bounded(snapshot)


def _bounded(snapshot: Snapshot) -> Snapshot:
    """A snapshot that fits in one frame: without the marks of sessions, then of the tree, if it does not. LimitError when
    even that is too large."""
    for field in ("", "sessions", "nodes"):
        if field:
            parts = [msgspec.structs.replace(part, marks=b"") for part in getattr(snapshot, field)]
            snapshot = msgspec.structs.replace(snapshot, **{field: parts})
        size = len(msgspec.msgpack.encode(snapshot))
        if size <= _MOST_BYTES:
            return snapshot
    raise LimitError(
        f"the scheduler's state takes {size:,} bytes, one message holds {_MOST_BYTES:,}",
        hint="Flush the cache (%sgl flush) or release states, then record.",
    )


def _by_ordinal(req: Req) -> int:
    return req.ordinal


def _nodes(scheduler: Scheduler) -> list[SnapshotNode]:
    """The tree, parents first."""
    marks, book = scheduler.inputs.marks, scheduler.recorder.book
    ends: dict[int, tuple[int, np.uint64]] = {}
    roots: dict[int, int] = {}
    out = []
    for node in scheduler.cache.nodes():
        parent = node.parent
        assert parent is not None, "roots are not listed"
        start, state = ends.get(parent.id, (0, np.uint64(0)))
        of_key, after = marks.go_on(start, state, node.key)
        ends[node.id] = (start + len(node.key), after)
        roots[node.id] = roots.get(parent.id, parent.id)
        out.append(
            SnapshotNode(
                id=node.id,
                parent=parent.id,
                start=start,
                length=len(node.key),
                locked=bool(node.lock_ref),
                pinned=bool(node.pin_ref),
                hits=node.hits,
                last_access=node.last_access,
                extra_key=marks.of_name(node.extra_key),
                marks=of_key.tobytes(),
                locks=node.lock_ref,
                pins=node.pin_ref,
                soft=node.soft_ref,
                used=book.used(node),
                root=roots[node.id],
                read=book.hits(node),
            )
        )
    return out


def _request(scheduler: Scheduler, req: Req) -> SnapshotRequest:
    return SnapshotRequest(
        rid=req.rid,
        sid=req.session.sid if req.session is not None else "",
        client=req.client,
        label=req.label,
        state=req.state.value,
        prompt_tokens=len(req.prompt),
        cached_tokens=req.cached_tokens,
        completion_tokens=len(req.output_ids),
        params=bare(req.params),
        priority=req.priority,
        extra_key=scheduler.inputs.marks.of_name(req.kv.extra_key),
        marks=scheduler.inputs.marks.of(
            np.concatenate([req.prompt_keys, np.array(req.output_ids, dtype=np.int32)])
        ).tobytes(),
        time_queued=req.time_received,
        time_admitted=req.time_admitted or 0.0,
        node=req.kv.node.id if req.kv.node is not None else 0,
        match=req.match,
    )
