"""Recordings: what an engine did, in a file that can be looked at, exported and simulated without that engine.

Any process; ``backends.recorder`` writes them, the command line, the views and the simulator read them through
``open_recording``. A leaf but for ``messages``: it imports no engine and starts nothing.
"""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from sgnb.errors import RecordingError
from sgnb.liveness import engine_command
from sgnb.messages import Numbered, OwnTokensPart, Snapshot
from sgnb.recording.file import (
    SUFFIX,
    End,
    Events,
    FrameReader,
    Gap,
    Item,
    Lost,
    RecordingHeader,
)
from sgnb.recording.moment import Moment
from sgnb.recording.perfetto import write_perfetto

__all__ = ["Moment", "Recording", "RecordingHeader", "open_recording"]


def open_recording(path: str | Path) -> Recording:
    """Open a recording. Raises RecordingError when the file is missing, no recording, of another version or damaged at its
    beginning; damage further on is told when it is reached."""
    return Recording(Path(path).expanduser())


class Recording:
    """A recording, read from its file each time it is asked; only one moment is kept in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader = FrameReader(path)
        self.sgnb_version = self._reader.version
        first = next(self._reader.items(), None)
        if not isinstance(first, RecordingHeader):
            raise RecordingError(
                f"{path} has no beginning: it was cut before its first frame was whole",
                hint="Record again.",
            )
        self.header = first

    def __repr__(self) -> str:
        return f"Recording({str(self.path)!r}, engine {self.header.engine}, sgnb {self.sgnb_version})"

    @property
    def damage(self) -> str:
        """What ended the last reading before the end of the recording; empty: nothing."""
        return self._reader.damage

    def items(self) -> Iterator[Item]:
        """Everything in the file but its header, in order."""
        items = self._reader.items()
        next(items, None)
        yield from items

    def events(self) -> Iterator[Numbered]:
        """All events, in the order of their numbers."""
        for item in self.items():
            if isinstance(item, Events):
                yield from item.items

    def snapshot(self) -> Snapshot:
        """The moment at which it begins. RecordingError when the file was cut before it."""
        for item in self.items():
            if isinstance(item, Snapshot):
                return item
        raise RecordingError(f"{self.path} was cut before its first snapshot", hint="Record again.")

    def gaps(self) -> list[str]:
        """What is missing, in sentences; empty for a whole recording."""
        found, ended = [], False
        for item in self.items():
            if isinstance(item, Gap):
                found.append(f"events {item.from_seq} to {item.to_seq} are missing: {item.reason}")
            elif isinstance(item, Lost):
                found.append(f"token ids of {item.requests} requests are missing")
            ended = isinstance(item, End)
        if not ended:
            found.append(f"{self.damage or 'it was not ended'}; what was written before is whole")
        return found

    def span(self) -> tuple[float, float]:
        """First and last time, in seconds since the epoch."""
        first = last = self.snapshot().time
        for numbered in self.events():
            last = max(last, numbered.event.time)
        return first, last

    def state_at(self, time: float) -> Moment:
        """Tree, slots, requests and figures as they were at ``time`` (seconds since the epoch; before the beginning: at
        the beginning)."""
        moment: Moment | None = None
        for item in self.items():
            if isinstance(item, Snapshot) and (moment is None or item.time <= time):
                moment = Moment.of(item)
            elif isinstance(item, Gap) and moment is not None:
                moment.complete = False
            elif isinstance(item, Events) and moment is not None:
                for numbered in item.items:
                    if numbered.event.time > time:
                        return moment
                    if numbered.seq > moment.seq:
                        moment.apply(numbered.seq, numbered.event)
        if moment is None:
            raise RecordingError(f"{self.path} was cut before its first snapshot", hint="Record again.")
        return moment

    def texts(self) -> dict[str, tuple[str, str]]:
        """Prompt and output of each finished request of the recorder's own; nothing when it was made without text."""
        table: dict[int, bytes] = {}
        found = {}
        for item in self.items():
            if isinstance(item, OwnTokensPart):
                table.update(item.table)
                for tokens in item.tokens:
                    prompt, output = _text(tokens.prompt_ids, table), _text(tokens.output_ids, table)
                    found[tokens.rid] = (prompt, output)
        return found

    def simulate(self, *options: str, timeout: float = 600.0) -> dict[str, Any]:
        """What ``sgnb simulate`` finds for it, as data; ``options`` are that command's: ``"--policy", "lpm,fcfs"``.

        Runs in a process of its own: the scheduler is not imported here. RecordingError with the command's words when
        it fails, or takes longer than ``timeout`` seconds.
        """
        command = engine_command(["simulate", str(self.path), "--json", *options])
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
        except subprocess.TimeoutExpired:
            raise RecordingError(
                f"the simulation of {self.path} took more than {timeout:g} s",
                hint="Give fewer settings, or timeout=.",
            ) from None
        if done.returncode:
            words = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
            raise RecordingError(f"{self.path} was not simulated: {words[0]}")
        found: dict[str, Any] = msgspec.json.decode(done.stdout)
        return found

    def to_perfetto(self, path: str | Path | None = None) -> Path | dict[str, Any]:
        """Export for Perfetto (ui.perfetto.dev) and chrome://tracing: with ``path`` into that file, else as data."""
        return write_perfetto(
            self.items(), self.header, Path(path).expanduser() if path is not None else None
        )


def _text(ids: bytes, table: dict[int, bytes]) -> str:
    if len(ids) % 4:
        raise RecordingError("token ids in the recording are not whole numbers of four bytes")
    found = b"".join(table.get(id, b"") for (id,) in struct.iter_unpack("<i", ids))
    return found.decode("utf-8", "replace")


def with_suffix(path: str | Path) -> Path:
    """The path of a new recording: ``.sgnb`` is added when there is no suffix; RecordingError for another one, and for
    what is no path."""
    if not isinstance(path, str | Path) or not Path(path).name or "\0" in str(path):
        raise RecordingError(
            f"a recording needs the name of a file, not {path!r}", hint='For example "run.sgnb".'
        )
    whole = Path(path).expanduser().resolve()
    if whole.suffix not in ("", SUFFIX):
        raise RecordingError(f"a recording's name ends in {SUFFIX}, not {whole.suffix!r}", hint="Rename it.")
    return whole.with_suffix(SUFFIX)
