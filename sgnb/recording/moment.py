"""One moment of a recording: a fold over its events.

Any process; made by ``Recording.state_at``. The views fold the same events in the browser; this fold is for programs, the
Perfetto export and the tests. Knows no file and no engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby

import msgspec

from sgnb.errors import RecordingError
from sgnb.messages import (
    EngineStats,
    KVDelta,
    Label,
    RadixEvent,
    RequestEvent,
    SlotRun,
    Snapshot,
    SnapshotNode,
    StepEvent,
    TelemetryEvent,
)


@dataclass(slots=True)
class NodeNow:
    """A node of the tree: it covers tokens ``start … start + length`` of its prefix."""

    parent: int
    start: int
    length: int
    pinned: bool = False
    locks: int = 0
    """Running requests that use it or what hangs below it."""


@dataclass(slots=True)
class RequestNow:
    """A request that has not ended; counts in tokens."""

    rid: str
    client: int
    label: Label
    state: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


@dataclass(slots=True)
class Moment:
    """Tree, slots, requests and figures at ``time``. ``complete`` is False when events before it are missing."""

    time: float = 0.0
    seq: int = 0
    step: int = 0
    complete: bool = True
    stats: EngineStats | None = None
    last_step: StepEvent | None = None
    nodes: dict[int, NodeNow] = field(default_factory=dict)
    requests: dict[str, RequestNow] = field(default_factory=dict)
    _owners: list[int] = field(default_factory=list)
    """Of each slot, the place of its owner and kind in ``_names``."""
    _names: list[tuple[str, str]] = field(default_factory=lambda: [("", "")])
    _numbers: dict[tuple[str, str], int] = field(default_factory=lambda: {("", ""): 0})

    @classmethod
    def of(cls, snapshot: Snapshot) -> Moment:
        """The moment of a snapshot."""
        moment = cls(time=snapshot.time, seq=snapshot.seq, step=snapshot.step, stats=snapshot.stats)
        moment._owners = [0] * snapshot.max_total_tokens
        moment.nodes = {n.id: _node_of(n) for n in snapshot.nodes}
        moment._take_slots(snapshot.slots)
        for req in snapshot.requests:
            moment.requests[req.rid] = RequestNow(
                req.rid,
                req.client,
                req.label,
                req.state,
                req.prompt_tokens,
                req.cached_tokens,
                req.completion_tokens,
            )
        return moment

    def apply(self, seq: int, event: TelemetryEvent) -> None:
        """Go on by one event."""
        self.seq, self.time = seq, max(self.time, event.time)
        match event:
            case RequestEvent():
                self._take_request(event)
            case RadixEvent():
                self._take_node(event)
            case KVDelta():
                self._take_slots(event.runs)
            case StepEvent():
                self.step, self.last_step = event.step, event
                for row in event.rows:
                    req = self.requests.get(row.rid)
                    # The chunk that completes a prompt draws a token, too.
                    if (
                        req is not None
                        and row.prefix + row.tokens == req.prompt_tokens + req.completion_tokens
                    ):
                        req.completion_tokens += 1
            case EngineStats():
                self.stats = event
            case _:
                pass  # inputs and outputs are for simulations

    def _take_request(self, event: RequestEvent) -> None:
        if event.state == "finished":
            self.requests.pop(event.rid, None)
            return
        state = {"admitted": "prefill", "first_token": "running"}.get(event.state, "waiting")
        self.requests[event.rid] = RequestNow(
            event.rid,
            event.client,
            event.label,
            state,
            event.prompt_tokens,
            event.cached_tokens,
            event.completion_tokens,
        )

    def _take_node(self, event: RadixEvent) -> None:
        if event.kind in ("evict", "flush"):
            self.nodes.pop(event.node, None)
        elif event.kind in ("insert", "split"):
            made = self.nodes[event.node] = NodeNow(event.parent, event.start, event.length)
            lower = self.nodes.get(event.child)
            if event.kind == "split" and lower is not None:
                made.locks = lower.locks
                lower.parent, lower.start = event.node, event.start + event.length
                lower.length -= event.length
        elif event.kind in ("pin", "unpin") and event.node in self.nodes:
            self.nodes[event.node].pinned = event.kind == "pin"
        elif event.kind in ("lock", "unlock"):
            node = self.nodes.get(event.node)
            while node is not None:
                node.locks = max(0, node.locks + (1 if event.kind == "lock" else -1))
                node = self.nodes.get(node.parent)

    def _take_slots(self, runs: list[SlotRun]) -> None:
        for run in runs:
            owner = (run.owner, run.kind)
            number = self._numbers.get(owner)
            if number is None:
                number = self._numbers[owner] = len(self._names)
                self._names.append(owner)
            if not 0 <= run.start <= run.start + run.count <= len(self._owners):
                raise RecordingError(
                    f"slots {run.start} to {run.start + run.count} are outside the pool of {len(self._owners)}"
                )
            self._owners[run.start : run.start + run.count] = [number] * run.count

    def slots(self, *, kinds: bool = False) -> list[SlotRun]:
        """Who owns each slot, in runs; an empty owner: free. ``kinds``: a request's parted by what computed them."""
        runs, start = [], 0
        for (owner, kind), same in groupby(self._owners, lambda number: self._name(number, kinds)):
            count = sum(1 for _ in same)
            runs.append(SlotRun(owner=owner, start=start, count=count, kind=kind))
            start += count
        return runs

    def _name(self, number: int, kinds: bool) -> tuple[str, str]:
        owner, kind = self._names[number]
        return owner, kind if kinds else ""

    def as_dict(self) -> dict[str, object]:
        """Plain data: what ``msgspec.to_builtins`` makes of it."""
        found: dict[str, object] = msgspec.to_builtins(
            {
                "time": self.time,
                "seq": self.seq,
                "step": self.step,
                "complete": self.complete,
                "stats": self.stats,
                "nodes": {str(id): [n.parent, n.start, n.length, n.pinned] for id, n in self.nodes.items()},
                "requests": [msgspec.to_builtins(req) for req in self.requests.values()],
                "slots": self.slots(),
            }
        )
        return found


def _node_of(node: SnapshotNode) -> NodeNow:
    locks = node.locks or int(node.locked)  # older recordings do not count them
    return NodeNow(node.parent, node.start, node.length, node.pinned, locks)
