"""A recording in the place of an engine: the views show it by the same messages, without any engine.

Notebook process; made by ``sgnb.views.replay``. ``RecordedEngine`` answers what a view may ask of a recording;
``ReplayFeed`` sends a page the snapshot and then all events of the file, as fast as the page takes them. Nothing is
folded or played here: the page's store does both, with its shared playhead. No engine is imported or started.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from sgnb.errors import RecordingError, SgnbError
from sgnb.knobs import LIVE
from sgnb.messages import (
    InputEvent,
    Numbered,
    OutputEvent,
    OwnTokensPart,
    RadixEvent,
    RequestEvent,
    Snapshot,
    TelemetryFrame,
)
from sgnb.recording import Recording
from sgnb.recording.file import Events, Gap
from sgnb.widgets.subscriber import Subscriber
from sgnb.widgets.telemetry import EngineFeed, register_feed

EVENTS_A_FRAME = 2000
WAITING_FRAMES = 8
"""Messages that wait for one page before the next part of the file is read."""
GIVE_UP = 60.0
_NODES = 256
_NODE_BYTES = 4096
_AROUND = 48


class RecordedEngine:
    """What stands for an engine: its name, its state ``recording``, and answers from the file."""

    state = "recording"
    since = 0.0

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.name = recording.header.engine
        self.span = recording.span()
        self._texts: NodeTexts | None = None
        self._lock = threading.Lock()
        register_feed(self, ReplayFeed(self))

    @property
    def recorder(self) -> _Made:
        """The recording itself, as one that was made."""
        return _Made(self.recording.path)

    def record(self, path: str | Path, *, text: bool = True) -> Any:
        """Refused: nothing runs."""
        raise RecordingError("This is a recording already; no engine runs that could be recorded.")

    def subscribe_frames(self, callback: Callable[[TelemetryFrame, bytes], None]) -> Callable[[], None]:
        """Nothing comes by itself: the feed reads the file."""
        return lambda: None

    def on_state(self, callback: Callable[[str], None]) -> Callable[[], None]:
        """Its state never changes."""
        return lambda: None

    def release(self, sids: Sequence[str]) -> None:
        """No session is open."""

    def ask(self, verb: str, args: dict[str, Any] | None = None, timeout: float = 10.0) -> dict[str, Any]:
        """What a recording can answer; RecordingError for what only an engine can do."""
        args = args or {}
        if verb == "history":
            return self._history(int(args.get("from_seq", 1)), int(args.get("limit", 1000)))
        if verb == "nodes":
            return {"nodes": self.texts.nodes(args.get("ids", []), float(args.get("at", self.span[1])))}
        if verb == "running":
            return {"texts": self.texts.spans(args.get("spans", []))}
        if verb == "prompt":
            return self.texts.prompt(str(args.get("rid", "")))
        if verb == "holders":
            return {"sessions": []}
        raise RecordingError("This is a recording: no engine runs.", hint="Launch one to change something.")

    @property
    def texts(self) -> NodeTexts:
        """Read from the file at the first question."""
        with self._lock:
            if self._texts is None:
                self._texts = NodeTexts(self.recording)
            return self._texts

    def _history(self, start: int, limit: int) -> dict[str, Any]:
        found: list[Any] = []
        last = 0
        for numbered in self.recording.events():
            last = numbered.seq
            if last >= start and len(found) < limit:
                found.append(numbered)
        return {"events": msgspec.to_builtins(found), "last_seq": last}


class _Made:
    """A recorder that has ended: what ``file_verbs`` looks at."""

    running = False

    def __init__(self, path: Path) -> None:
        self.path = path

    def result(self) -> Any:
        """It holds what it holds."""
        raise RecordingError("This is a recording already.")


# ---------------------------------------------------------------- to the page


class ReplayFeed(EngineFeed):
    """Sends whoever subscribes the whole file, from where the page is. One thread a subscription, ended with it."""

    def __init__(self, engine: RecordedEngine) -> None:
        super().__init__(engine)
        self._recorded = engine

    def _catch_up(self, subscriber: Subscriber, known: int) -> None:
        subscriber.live()
        threading.Thread(
            target=self._send_all, args=(subscriber, known), name="sgnb replay", daemon=True
        ).start()

    def _send_all(self, subscriber: Subscriber, known: int) -> None:
        whole = {"span": self._recorded.span, "file": self._recorded.recording.path.name, "end": False}
        trouble = ""
        try:
            for kind, seq, data in messages_of(self._recorded.recording):
                if known and seq <= known:
                    continue
                if not self._wait(subscriber):
                    return
                subscriber.put({"k": kind, **({"replay": whole} if kind == "snapshot" else {})}, [data])
        except RecordingError as error:
            trouble = error.message
        missing = self._recorded.recording.damage or trouble
        subscriber.put({"k": "replay", "replay": {**whole, "end": True, "trouble": missing}}, [])

    def _wait(self, subscriber: Subscriber) -> bool:
        """Until the page has taken enough; False when it is gone."""
        until = time.monotonic() + GIVE_UP
        while subscriber.waiting >= WAITING_FRAMES:
            if not self.knows(subscriber) or time.monotonic() > until:
                return False
            time.sleep(0.02)
        return self.knows(subscriber)


def messages_of(recording: Recording) -> Iterator[tuple[str, int, bytes]]:
    """The file as messages for a page: ``(kind, number of its last event, MessagePack)``."""
    for item in recording.items():
        if isinstance(item, Snapshot):
            yield "snapshot", item.seq, msgspec.msgpack.encode(picture_of(item))
        elif isinstance(item, Gap):
            continue  # the snapshot behind it says where it goes on
        elif isinstance(item, Events):
            for at in range(0, len(item.items), EVENTS_A_FRAME):
                part = [_shown(numbered) for numbered in item.items[at : at + EVENTS_A_FRAME]]
                yield "frames", part[-1].seq, _frame(part)


def _shown(numbered: Numbered) -> Numbered:
    """The event without what only a simulation reads; its number stays, so that no gap is seen."""
    event = numbered.event
    if isinstance(event, InputEvent):
        event = InputEvent(time=event.time, step=event.step, kind=event.kind)
    elif isinstance(event, OutputEvent):
        event = OutputEvent(time=event.time, rid=event.rid, type=event.type)
    else:
        return numbered
    return Numbered(seq=numbered.seq, event=event)


def _frame(events: list[Numbered]) -> bytes:
    last = events[-1]
    return msgspec.msgpack.encode(
        {"incarnation": "", "last_seq": last.seq, "time": last.event.time, "events": events, "past": True}
    )


def picture_of(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot in the form of an engine's answer to ``picture``. A node of an older recording counts one lock."""
    return {
        "seq": snapshot.seq,
        "time": snapshot.time,
        "step": snapshot.step,
        "slots": snapshot.max_total_tokens,
        "slot_bytes": snapshot.slot_bytes,
        "page_size": snapshot.args.page_size,
        "policy": snapshot.args.schedule_policy,
        "settings": {name: getattr(snapshot.args, name) for name in LIVE},
        "nodes": [
            [
                *(node.id, node.parent, node.start, node.length),
                *(node.locks or int(node.locked), node.read or node.hits, node.pins or int(node.pinned)),
                *(node.soft, node.used or snapshot.time, node.root or node.parent),
            ]
            for node in snapshot.nodes
        ],
        "next": snapshot.next,
        "runs": [[run.owner, run.start, run.count, run.kind] for run in snapshot.slots],
        "requests": [
            {
                "rid": req.rid,
                "client": req.client,
                "label": msgspec.to_builtins(req.label),
                "state": req.state,
                "prompt_tokens": req.prompt_tokens,
                "cached_tokens": req.cached_tokens,
                "completion_tokens": req.completion_tokens,
                "time_queued": req.time_queued or snapshot.time,
                "time_admitted": req.time_admitted,
                "node": req.node,
                "match": msgspec.to_builtins(req.match) if req.match is not None else None,
            }
            for req in snapshot.requests
        ],
        "stats": {"t": "stats", **msgspec.to_builtins(snapshot.stats)},
    }


# ---------------------------------------------------------------- text


class NodeTexts:
    """Text of the tree's nodes at any moment, from the token ids that the recorder's own requests left in the file."""

    def __init__(self, recording: Recording) -> None:
        self._ids: dict[str, bytes] = {}
        self._prompts: dict[str, int] = {}
        self._table: dict[int, bytes] = {}
        self._ranges: dict[int, list[tuple[float, int, int]]] = {}
        """Of each node, ``(from when, start, length)``."""
        self._source: dict[int, str] = {}
        """A request whose tokens run through it."""
        self._parent: dict[int, int] = {}
        self._matched: dict[str, tuple[int, int]] = {}
        self._read(recording)

    def _read(self, recording: Recording) -> None:
        try:
            for item in recording.items():
                if isinstance(item, Snapshot):
                    for node in item.nodes:
                        self._parent[node.id] = node.parent
                        self._ranges.setdefault(node.id, []).append((item.time, node.start, node.length))
                elif isinstance(item, Events):
                    for numbered in item.items:
                        self._take(numbered.event)
                elif isinstance(item, OwnTokensPart):
                    self._table.update(item.table)
                    for tokens in item.tokens:
                        self._ids[tokens.rid] = tokens.prompt_ids + tokens.output_ids
                        self._prompts[tokens.rid] = len(tokens.prompt_ids) // 4
        except SgnbError:
            pass  # what comes before the damage is of use; the page is told of it by the feed

    def _take(self, event: object) -> None:
        if isinstance(event, RadixEvent) and event.kind in ("insert", "split"):
            self._parent[event.node] = event.parent
            self._ranges.setdefault(event.node, []).append((event.time, event.start, event.length))
            if event.kind == "insert" and event.for_rid:
                self._source[event.node] = event.for_rid
            elif event.kind == "split":
                self._split(event)
        elif isinstance(event, RequestEvent) and event.state == "admitted" and event.match is not None:
            self._matched[event.rid] = (event.match.matched, event.match.node)
            node = event.match.node
            while node in self._parent and node not in self._source:
                self._source[node] = event.rid
                node = self._parent[node]

    def _split(self, event: RadixEvent) -> None:
        if event.child in self._source:
            self._source[event.node] = self._source[event.child]
        self._parent[event.child] = event.node
        _, start, length = self._ranges.get(event.child, [(0.0, event.start, event.length)])[-1]
        cut = event.start + event.length
        self._ranges.setdefault(event.child, []).append((event.time, cut, start + length - cut))

    def nodes(self, wanted: object, at: float) -> dict[str, Any]:
        """The answer to ``nodes``: tokens, and the text where it is known, as they were at that time."""
        if (
            not isinstance(wanted, list)
            or len(wanted) > _NODES
            or any(type(node) is not int for node in wanted)
        ):
            raise RecordingError(f"ids must be a list of at most {_NODES} node numbers")
        found: dict[str, Any] = {}
        for node in wanted:
            ranges = self._ranges.get(node)
            if not ranges:
                continue
            _, start, length = next((r for r in reversed(ranges) if r[0] <= at), ranges[0])
            about: dict[str, Any] = {"tokens": length, "locked_by": []}
            ids = self._ids.get(self._source.get(node, ""), b"")
            if len(ids) >= 4 * (start + length):
                about["text"] = self._text(ids[4 * start : 4 * (start + length)])
            found[str(node)] = about
        return found

    def spans(self, wanted: object) -> dict[str, str]:
        """The answer to ``running``: of each ``[rid, start, count]`` the text of these tokens of prompt and output."""
        if not isinstance(wanted, list) or len(wanted) > _NODES:
            raise RecordingError(f"spans must be a list of at most {_NODES}")
        found: dict[str, str] = {}
        for span in wanted:
            try:
                rid, start, count = span
                first, last = max(0, int(start)), max(0, int(start)) + max(0, int(count))
            except (TypeError, ValueError):
                raise RecordingError("a span is [rid, start, count]") from None
            if str(rid) in self._ids:
                found[str(rid)] = self._text(self._ids[str(rid)][4 * first : 4 * last])
        return found

    def prompt(self, rid: str) -> dict[str, Any]:
        """The answer to ``prompt``: the text around the place up to which a prompt was cached."""
        ids, matched = self._ids.get(rid), self._matched.get(rid)
        if ids is None or matched is None:
            raise RecordingError("The text of that prompt is not in the recording.")
        length, node = matched
        end = min(self._prompts[rid], length + _AROUND)
        return {
            "from": max(0, length - _AROUND),
            "same": self._text(ids[4 * max(0, length - _AROUND) : 4 * length]),
            "prompt": self._text(ids[4 * length : 4 * end]),
            "cached": "",
            "cached_node": node,
        }

    def _text(self, ids: bytes) -> str:
        raw = b"".join(self._table.get(id, b"") for (id,) in struct.iter_unpack("<i", ids))
        return raw[:_NODE_BYTES].decode("utf-8", "replace")


def last_picture(recording: Recording) -> dict[str, Any]:
    """The last moment of a recording in the form of ``picture``, for static tables."""
    moment = recording.state_at(float("inf"))
    return {
        "slots": recording.snapshot().max_total_tokens,
        "page_size": recording.snapshot().args.page_size,
        "nodes": [
            [number, node.parent, node.start, node.length, node.locks, 0, int(node.pinned), 0, 0.0, 0]
            for number, node in sorted(moment.nodes.items(), key=lambda item: (item[1].start, item[0]))
        ],
        "next": [],
        "runs": [
            [run.owner, run.start, run.count, run.kind] for run in moment.slots(kinds=True) if run.owner
        ],
        "requests": [msgspec.to_builtins(req) for req in moment.requests.values()],
    }
