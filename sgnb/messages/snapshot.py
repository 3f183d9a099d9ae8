"""The scheduler at one moment: where a late view or a recording begins.

Made in the scheduler process when asked; the events with higher numbers go on from it.
"""

from __future__ import annotations

from sgnb.config import EngineArgs
from sgnb.messages.events import EngineStats, Match, SlotRun
from sgnb.messages.parts import Label, Wire
from sgnb.sampling_params import SamplingParams


class SnapshotNode(Wire, frozen=True, kw_only=True, array_like=True):
    """A node of the tree; ``marks`` as in InputEvent, empty when they were too many for one message."""

    id: int
    parent: int
    start: int
    length: int
    locked: bool
    pinned: bool
    hits: int
    last_access: int
    extra_key: str
    marks: bytes
    locks: int = 0
    pins: int = 0
    soft: int = 0
    """Sessions that refer to it."""
    used: float = 0.0
    """When it was used last."""
    root: int = 0
    """The root it hangs from: its name space."""
    read: int = 0
    """Requests that reused it."""


class SnapshotSession(Wire, frozen=True, kw_only=True, array_like=True):
    """A session and the marks of its ids."""

    sid: str
    client: int
    extra_key: str
    marks: bytes


class SnapshotRequest(Wire, frozen=True, kw_only=True):
    """A request that had not ended. ``marks``: of its prompt, then of what it had drawn."""

    rid: str
    sid: str
    client: int
    label: Label
    state: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    params: SamplingParams
    priority: int
    extra_key: str
    marks: bytes
    time_queued: float = 0.0
    time_admitted: float = 0.0
    node: int = 0
    """The last node of its path that it locks."""
    match: Match | None = None


class Snapshot(Wire, frozen=True, kw_only=True, tag="snapshot"):
    """The scheduler at one moment: what the events with higher numbers than ``seq`` go on from."""

    time: float
    seq: int
    step: int
    args: EngineArgs
    """With the knobs as they were then."""
    context_length: int
    max_total_tokens: int
    slot_bytes: int = 0
    """Memory of one KV slot; 0 where it is not known."""
    max_running: int
    stats: EngineStats
    nodes: list[SnapshotNode]
    """Parents first."""
    slots: list[SlotRun]
    """All that are not free."""
    sessions: list[SnapshotSession]
    requests: list[SnapshotRequest]
    next: list[int] = []
    """The nodes that would be evicted next, at most six."""
