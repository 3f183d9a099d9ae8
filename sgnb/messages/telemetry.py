"""How events travel: numbered, in frames with a heartbeat.

Scheduler process → every kernel that shows or records something (PUB). The events themselves are in ``events`` and
``recorded``.
"""

from __future__ import annotations

import msgspec

from sgnb.messages.events import EngineStats, KnobEvent, KVDelta, RadixEvent, RequestEvent, StepEvent
from sgnb.messages.parts import Wire
from sgnb.messages.recorded import InputEvent, OutputEvent

TelemetryEvent = (
    EngineStats | RequestEvent | StepEvent | RadixEvent | KVDelta | KnobEvent | InputEvent | OutputEvent
)


class Numbered(Wire, frozen=True, kw_only=True):
    """One event with its number; numbers have no holes, so a gap is seen."""

    seq: int
    event: TelemetryEvent


class TelemetryFrame(Wire, frozen=True, kw_only=True):
    """Heartbeat every 250 ms, and events as they come. ``last_seq`` shows a lost tail."""

    incarnation: str
    last_seq: int
    time: float
    events: list[Numbered] = []


class EncodedFrame(Wire, frozen=True, kw_only=True, tag="TelemetryFrame"):
    """A ``TelemetryFrame`` as its sender has it: each of ``events`` is a ``Numbered`` that was encoded when it happened. On
    the wire both are the same."""

    incarnation: str
    last_seq: int
    time: float
    events: list[msgspec.Raw] = []
