"""A recording of a stepped scheduler, without processes: what ``backends.recorder`` writes of a real engine."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
from scheduler_rig import Rig

from sgnb.engine.scheduler.telemetry import Telemetry
from sgnb.messages import OwnTokensPart, Snapshot
from sgnb.recording import Recording, open_recording
from sgnb.recording.file import End, Events, FrameWriter, RecordingHeader


class RecordedRig(Rig):
    """A rig whose events are numbered, and that can be recorded from any moment on."""

    def __init__(self, **args) -> None:
        self.telemetry = Telemetry(ring_seconds=1e9)
        super().__init__(**args)
        self.scheduler.history = lambda start, limit=None: (
            self.telemetry.last_seq,
            self.telemetry.history(start, limit),
        )

    def _publish(self, event) -> None:
        super()._publish(event)
        self.telemetry.emit(event)

    def record(self, path: Path, *, text: bool = True, client: int = 1) -> None:
        """Begin: everything from now on goes to ``path`` at ``save``."""
        self.path, self.text, self.client = path, text, client
        reply = self.ask("record_start", client=client, tokens=text)
        self.snapshot = msgspec.msgpack.decode(reply.data["snapshot"], type=Snapshot)

    def save(self) -> Recording:
        """Write the file and open it."""
        writer = FrameWriter(self.path, "0.1.0")
        started = time.time()
        writer.append(
            RecordingHeader(
                sgnb="0.1.0",
                engine="main",
                incarnation="i",
                started=started,
                client=self.client,
                text=self.text,
                args=self.args,
            )
        )
        writer.append(self.snapshot)
        events = self.telemetry.history(self.snapshot.seq + 1)
        for at in range(0, len(events), 100):
            writer.append(Events(items=events[at : at + 100]))
        part = self.ask("recorded_tokens", client=self.client).data["part"]
        writer.append(msgspec.msgpack.decode(part, type=OwnTokensPart))
        writer.append(End(time=started, reason="stopped"))
        writer.close()
        return open_recording(self.path)
