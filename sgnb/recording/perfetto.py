"""A recording as Chrome trace events, for ui.perfetto.dev and chrome://tracing.

Any process; called by ``Recording.to_perfetto`` and ``sgnb export``. One lane for each request (waiting, prefill, score,
decode), two for the scheduler (``steps`` with forward, sample and process inside, ``schedule`` beside it, since with overlap
it runs under the step before), counters for KV slots and requests. Times are microseconds from the beginning.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from sgnb.errors import RecordingError
from sgnb.messages import (
    EngineStats,
    Label,
    Numbered,
    RequestEvent,
    Snapshot,
    StepEvent,
    StepRow,
    TelemetryEvent,
)
from sgnb.recording.file import Events, Gap, Item, RecordingHeader

SCHEDULER, REQUESTS = 1, 2
STEPS, SCHEDULE = 1, 2
_Event = dict[str, Any]


@dataclass(slots=True)
class _Lane:
    """One request: the slice that is open in its lane, and since when."""

    tid: int
    doing: str = ""
    since: float = 0.0
    until: float = 0.0
    tokens: int = 0
    args: dict[str, Any] = field(default_factory=dict)


class TraceBuilder:
    """Collects trace events. Slices of one lane never overlap but by nesting."""

    def __init__(self, started: float, engine: str) -> None:
        self.events: list[_Event] = []
        self._zero = started
        self._last = started
        self._held: deque[RequestEvent] = deque()
        self._lanes: dict[str, _Lane] = {}
        self._busy = {STEPS: started, SCHEDULE: started}
        """Where the next slice of a lane of the scheduler may begin."""
        self._name("process_name", SCHEDULER, 0, f"scheduler of {engine}")
        self._name("process_name", REQUESTS, 0, "requests")
        self._name("thread_name", SCHEDULER, STEPS, "steps")
        self._name("thread_name", SCHEDULER, SCHEDULE, "schedule")

    # ------------------------------------------------------------ in

    def begin(self, snapshot: Snapshot) -> None:
        """What there was when the recording began, or began anew after a gap."""
        self._counters(snapshot.stats)
        for req in snapshot.requests:
            lane = self._lane(req.rid, req.label)
            if not lane.doing:
                self._open(lane, "waiting" if req.state == "waiting" else req.state, snapshot.time)

    def take(self, event: TelemetryEvent) -> None:
        """One event of the recording."""
        self._last = max(self._last, event.time)
        match event:
            case RequestEvent():
                self._held.append(event)
            case StepEvent():
                self._release(event.time)
                self._step(event)
                self._release()
            case EngineStats():
                self._release()
                self._counters(event)
            case _:
                pass

    def _release(self, until: float | None = None) -> None:
        """Requests' events are told before the step in which they happened; here they come after its rows."""
        while self._held and (until is None or self._held[0].time <= until):
            self._request(self._held.popleft())

    def gap(self, item: Gap) -> None:
        """Events are missing: what was open is closed where it was seen last."""
        self._instant(STEPS, SCHEDULER, f"events {item.from_seq} to {item.to_seq} are missing", self._last)
        for lane in self._lanes.values():
            self._shut(lane, max(lane.since, lane.until))

    def end(self) -> list[_Event]:
        """Close what is open. All events, metadata first, then in order of time, outer slices before inner ones."""
        self._release()
        for lane in self._lanes.values():
            self._shut(lane, self._last)
        self.events.sort(key=lambda e: (e["ph"] != "M", e.get("ts", 0.0), -e.get("dur", 0.0)))
        return self.events

    # ------------------------------------------------------------ requests

    def _lane(self, rid: str, label: Label) -> _Lane:
        lane = self._lanes.get(rid)
        if lane is None:
            lane = self._lanes[rid] = _Lane(tid=len(self._lanes) + 1)
            place = f"{label.cell}.{label.branch}".strip(".")
            words = " ".join(part for part in (place, label.name, rid) if part)
            self._name("thread_name", REQUESTS, lane.tid, words)
        return lane

    def _request(self, event: RequestEvent) -> None:
        lane = self._lane(event.rid, event.label)
        if event.state == "queued":
            self._open(lane, "waiting", event.time, prompt=event.prompt_tokens)
        elif event.state == "admitted":
            self._shut(lane, event.time)
            cause = event.match.cause if event.match is not None else ""
            self._instant(lane.tid, REQUESTS, "admitted", event.time, cached=event.cached_tokens, cause=cause)
        elif event.state == "retracted":
            self._shut(lane, event.time)
            self._instant(lane.tid, REQUESTS, f"retracted: {event.reason}", event.time)
            self._open(lane, "waiting", event.time, reason=event.reason)
        elif event.state == "finished":
            self._shut(lane, event.time)
            drawn = event.completion_tokens
            self._instant(lane.tid, REQUESTS, f"finished: {event.reason}", event.time, tokens=drawn)

    def _open(self, lane: _Lane, doing: str, time: float, **args: Any) -> None:
        self._shut(lane, time)
        lane.doing, lane.since, lane.until, lane.tokens, lane.args = (
            doing,
            max(time, lane.until),
            time,
            0,
            args,
        )

    def _shut(self, lane: _Lane, time: float) -> None:
        if not lane.doing:
            return
        name = lane.doing
        args = {**lane.args, **({"tokens": lane.tokens} if lane.tokens else {})}
        if name.startswith("prefill"):
            name = f"prefill {lane.tokens}"
        end = max(time, lane.since)
        self._slice(lane.tid, REQUESTS, name, lane.since, end, args)
        lane.doing, lane.until = "", end

    def _row(self, row: StepRow, step: int, start: float, end: float) -> None:
        lane = self._lanes.get(row.rid)
        if lane is None:
            return
        if row.kind != "decode" or lane.doing != "decode":
            self._open(lane, row.kind, start, step=step)
        lane.tokens += row.tokens
        lane.until = end
        if row.kind != "decode":
            self._shut(lane, end)

    # ------------------------------------------------------------ the scheduler

    def _step(self, event: StepEvent) -> None:
        begin = max(event.time, self._busy[STEPS])
        computed = begin + event.forward_seconds
        sampled = computed + event.sample_seconds
        end = sampled + event.process_seconds
        name = f"{event.mode} {event.step}"
        args = {
            "rows": len(event.rows),
            "tokens": sum(row.tokens for row in event.rows),
            "notes": [
                f"evicted for {n.rid}: {n.reason}" if n.what == "evicted" else f"{n.rid} {n.what}: {n.reason}"
                for n in event.notes
            ],
        }
        self._slice(STEPS, SCHEDULER, name, begin, end, args)
        inner = (("forward", begin, computed), ("sample", computed, sampled), ("process", sampled, end))
        for what, start, stop in inner:
            self._slice(STEPS, SCHEDULER, what, start, stop, {})
        self._busy[STEPS] = end
        before = max(event.time - event.schedule_seconds, self._busy[SCHEDULE])
        self._slice(SCHEDULE, SCHEDULER, "schedule", before, max(before, event.time), {"step": event.step})
        self._busy[SCHEDULE] = max(before, event.time)
        for row in event.rows:
            self._row(row, event.step, begin, sampled)
        self._counter("requests", event.time, running=event.running, waiting=event.queued)

    def _counters(self, stats: EngineStats) -> None:
        self._counter(
            "KV slots",
            stats.time,
            used=stats.num_used_tokens,
            cached=stats.num_cached_tokens,
            free=stats.num_free_tokens,
        )
        self._counter("requests", stats.time, running=stats.num_running_reqs, waiting=stats.num_queue_reqs)

    # ------------------------------------------------------------ out

    def _at(self, time: float) -> float:
        return round(max(0.0, time - self._zero) * 1e6, 3)

    def _name(self, kind: str, pid: int, tid: int, name: str) -> None:
        self.events.append({"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}})

    def _slice(self, tid: int, pid: int, name: str, start: float, end: float, args: dict[str, Any]) -> None:
        at = self._at(start)
        length = round(self._at(end) - at, 3)
        event = {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": at, "dur": length}
        self.events.append({**event, "args": args} if args else event)

    def _instant(self, tid: int, pid: int, name: str, time: float, **args: Any) -> None:
        self.events.append(
            {"ph": "i", "s": "t", "name": name, "pid": pid, "tid": tid, "ts": self._at(time), "args": args}
        )

    def _counter(self, name: str, time: float, **values: int) -> None:
        self.events.append(
            {"ph": "C", "name": name, "pid": SCHEDULER, "tid": 0, "ts": self._at(time), "args": values}
        )


def write_perfetto(items: Iterable[Item], header: RecordingHeader, path: Path | None) -> Path | _Event:
    """The trace as data, or written to ``path`` whole or not at all. RecordingError when it cannot be written."""
    builder: TraceBuilder | None = None
    for item in items:
        if isinstance(item, Snapshot):
            builder = builder or TraceBuilder(item.time, header.engine)
            builder.begin(item)
        elif builder is None:
            continue
        elif isinstance(item, Events):
            for numbered in item.items:
                builder.take(numbered.event)
        elif isinstance(item, Gap):
            builder.gap(item)
    about = {"sgnb": header.sgnb, "started": header.started}
    trace = _trace(builder.end() if builder is not None else [], about)
    if path is None:
        return trace
    return _write(trace, path)


def write_events(
    events: Iterable[Numbered], engine: str, path: Path, window: tuple[float, float] | None = None
) -> int:
    """Write events of a running engine, all or those that touch ``window`` (seconds of its clock). How many trace events
    there are; RecordingError when the file cannot be written."""
    builder: TraceBuilder | None = None
    started = 0.0
    for numbered in events:
        if builder is None:
            started = numbered.event.time
            builder = TraceBuilder(started, engine)
        builder.take(numbered.event)
    found = builder.end() if builder is not None else []
    if window is not None:
        first, last = ((time - started) * 1e6 for time in window)
        found = [
            e for e in found if e["ph"] == "M" or (e["ts"] <= last and e["ts"] + e.get("dur", 0.0) >= first)
        ]
    _write(_trace(found, {"started": started}), path)
    return len(found)


def _trace(events: list[_Event], about: _Event) -> _Event:
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


def _write(trace: _Event, path: Path) -> Path:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(msgspec.json.encode(trace))
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RecordingError(f"{path} was not written: {error.strerror or error}") from None
    return path
