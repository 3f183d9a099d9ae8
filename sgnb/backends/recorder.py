"""The recorder: writes what an engine does to a file, while it does it.

Notebook process; made by ``Engine.record``. Frames of telemetry come on the I/O thread and are queued; a thread of its own
numbers them off, gets what is missing from the engine's history, asks for the token ids of this kernel's own requests, and
appends to the file. Bounded: a queue that is full drops frames, which are then got from the history or told as a gap. A
disk that is full ends the recording with a warning, never the engine or a run. No display here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import msgspec

import sgnb
from sgnb.backends.client import EngineClient
from sgnb.config import EngineArgs
from sgnb.errors import RecordingError, SgnbError
from sgnb.messages import Numbered, OwnTokensPart, Snapshot, TelemetryFrame
from sgnb.recording import with_suffix
from sgnb.recording.file import End, Events, FrameWriter, Gap, Item, Lost, RecordingHeader

log = logging.getLogger("sgnb.recorder")
_QUEUED_EVENTS = 50_000
_WRITE_SECONDS = 0.25
_TOKENS_SECONDS = 1.0
_HISTORY_EVENTS = 2000
_STOP_SECONDS = 5.0
_MAX_HOLES = 10
"""Snapshots after gaps in one recording; more of them and it ends: the machine cannot follow."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a recording has become. ``error`` is empty, or says why it ended before it was stopped."""

    path: Path
    seconds: float
    events: int
    bytes: int
    gaps: int
    error: str

    @property
    def size(self) -> str:
        """``56 events, 4,129 bytes``."""
        gaps = f", {self.gaps} gaps" if self.gaps else ""
        return f"{self.events:,} events, {self.bytes:,} bytes{gaps}"

    def __str__(self) -> str:
        text = f"Recorded {self.seconds:.1f} s to {self.path}: {self.size}."
        return f"{text} It ended early: {self.error}." if self.error else text


class Recorder:
    """One recording. Thread-safe; a context manager that stops it."""

    def __init__(
        self,
        client: EngineClient,
        path: str | Path,
        *,
        name: str,
        args: EngineArgs | None,
        text: bool,
        seconds: float | None,
    ) -> None:
        if seconds is not None and not 0 < seconds < float("inf"):
            raise RecordingError(
                f"seconds must be above 0, not {seconds!r}", hint="Leave it out to stop by hand."
            )
        self.path = with_suffix(path)
        self._client = client
        self._name = name
        self._args = args
        self._text = text
        self._seconds = seconds
        self._frames: deque[TelemetryFrame] = deque()
        self._came = self._left = 0
        """Events that were queued, counted by the I/O thread; and taken from the queue, by this recorder's."""
        self._wake = threading.Event()
        self._ending = ""
        self._stop_lock = threading.Lock()
        self._started = 0.0
        self._ended = 0.0
        self._next = 1
        """Number of the event that is written next."""
        self._number = 0
        """This client's number at the engine when it was told to record."""
        self._events = self._gaps = 0
        self._error = ""
        self._next_tokens = 0.0
        self._thread = threading.Thread(target=self._run, name="sgnb-record", daemon=True)

    def __repr__(self) -> str:
        return f"Recorder({str(self.path)!r}, {'running' if self.running else 'ended'})"

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        """It writes still."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Make the file and begin. Raises RecordingError, EngineError."""
        try:
            self._file = FrameWriter(self.path, sgnb.__version__)
        except OSError as error:
            raise RecordingError(
                f"{self.path} cannot be written: {error.strerror or error}", hint="Give another folder."
            ) from None
        self._started = time.monotonic()
        self._unlisten = self._client.listen_frames(self._take)
        try:
            self._write(
                RecordingHeader(
                    sgnb=sgnb.__version__,
                    engine=self._name,
                    incarnation=self._client.incarnation,
                    started=time.time(),
                    client=self._client.number(),
                    text=self._text,
                    args=self._args,
                    model=self._client.info,
                )
            )
            self._begin()
        except BaseException as error:
            self._unlisten()
            self._file.close()
            if isinstance(error, OSError):
                raise RecordingError(f"{self.path} cannot be written: {error.strerror or error}") from None
            raise
        self._thread.start()

    def stop(self, reason: str = "stopped") -> Recorded:
        """End it, with all that happened up to now in the file. Idempotent; bounded by some 10 s."""
        with self._stop_lock:
            self._ending = self._ending or reason
            self._wake.set()
            if threading.current_thread() is not self._thread:
                self._thread.join(2 * _STOP_SECONDS)
        return self.result()

    def result(self) -> Recorded:
        """What there is in the file so far."""
        until = self._ended or time.monotonic()
        seconds = until - self._started
        return Recorded(self.path, seconds, self._events, self._file.size, self._gaps, self._error)

    # ------------------------------------------------------------ the I/O thread

    def _take(self, frame: TelemetryFrame, _raw: bytes) -> None:
        """Queue a frame; beyond the bound only its last number stays, so that the hole is seen."""
        if self._came - self._left + len(frame.events) > _QUEUED_EVENTS:
            frame = msgspec.structs.replace(frame, events=[])
        self._came += len(frame.events)
        self._frames.append(frame)

    # ------------------------------------------------------------ the recorder's thread

    def _run(self) -> None:
        try:
            deadline = None if self._seconds is None else self._started + self._seconds
            while not self._ending:
                self._wake.wait(_WRITE_SECONDS)
                if deadline is not None and time.monotonic() >= deadline:
                    self._ending = f"{self._seconds:g} s are over"
                self._turn()
            self._finish()
        except OSError as error:
            self._give_up(f"{self.path} cannot be written: {error.strerror or error}")
        except SgnbError as error:
            self._give_up(error.message)
        except Exception as error:
            log.exception("the recorder met a fault")
            self._give_up(f"{type(error).__name__}: {error}")
        finally:
            self._ended = time.monotonic()
            self._unlisten()
            self._file.close()

    def _turn(self) -> None:
        ended = self._client.end
        if ended is None and self._client.welcome is not None and self._client.number() != self._number:
            self._hole(self._next, "the connection to the engine was renewed")
        frames = [self._frames.popleft() for _ in range(len(self._frames))]
        self._left += sum(len(frame.events) for frame in frames)
        fresh: list[Numbered] = []
        for frame in frames:
            for numbered in frame.events:
                if numbered.seq > self._next + len(fresh):
                    self._write_events(fresh)
                    fresh = []
                    self._fill(numbered.seq)
                if numbered.seq == self._next + len(fresh):
                    fresh.append(numbered)
        self._write_events(fresh)
        if ended is not None:
            raise ended
        if frames and frames[-1].last_seq >= self._next:
            self._fill(frames[-1].last_seq + 1)
        if self._text and time.monotonic() >= self._next_tokens:
            self._take_tokens()

    def _fill(self, until: int) -> None:
        """Get events up to ``until`` (not included) from the engine's history."""
        while self._next < until:
            limit = min(_HISTORY_EVENTS, until - self._next)
            answer = self._client.control("history", {"from_seq": self._next, "limit": limit})
            found = msgspec.convert(answer["events"], list[Numbered])
            if not found or found[0].seq != self._next:
                first = found[0].seq if found else until
                self._hole(first, "they were older than what the engine keeps")
                return
            self._write_events(found)

    def _hole(self, until: int, reason: str) -> None:
        """Events cannot be had any more: say so, and begin anew."""
        self._gaps += 1
        if self._gaps > _MAX_HOLES:
            raise RecordingError("events came faster than they could be written, again and again")
        gap = Gap(from_seq=self._next, to_seq=max(self._next, until - 1), reason=reason)
        self._write(gap)
        log.warning(
            "recording %s: events %d to %d are missing: %s", self.path, gap.from_seq, gap.to_seq, reason
        )
        self._begin()

    def _begin(self) -> None:
        self._number = self._client.number()
        answer = self._client.control("record_start", {"tokens": self._text})
        snapshot = msgspec.msgpack.decode(answer["snapshot"], type=Snapshot)
        self._write(snapshot)
        self._next = snapshot.seq + 1

    def _take_tokens(self) -> None:
        self._next_tokens = time.monotonic() + _TOKENS_SECONDS
        more = True
        while more:
            answer = self._client.control("recorded_tokens")
            part = msgspec.msgpack.decode(answer["part"], type=OwnTokensPart)
            more = part.more
            if part.lost:
                self._gaps += 1
                self._write(Lost(requests=part.lost))
            if part.tokens:
                self._write(msgspec.structs.replace(part, more=False, lost=0))

    def _finish(self) -> None:
        """All that happened before the stop is written, then the end."""
        last = int(self._client.control("record_stop", timeout=_STOP_SECONDS)["last_seq"])
        self._turn()
        if self._next <= last:
            self._fill(last + 1)
        if self._text:
            self._take_tokens()
        self._write(End(time=time.time(), reason=self._ending))

    def _give_up(self, why: str) -> None:
        self._error = why = why.rstrip(".")
        log.warning("The recording %s has ended: %s. What was written before can be read.", self.path, why)
        try:
            if self._client.end is None:
                self._client.control("record_stop", timeout=1.0)
            self._write(End(time=time.time(), reason=why))
        except (OSError, SgnbError) as error:
            log.info("the recording's end was not written: %s", error)

    # ------------------------------------------------------------ the file

    def _write_events(self, events: list[Numbered]) -> None:
        if events:
            self._write(Events(items=events))
            self._events += len(events)
            self._next = events[-1].seq + 1

    def _write(self, item: Item) -> None:
        self._file.append(item)
