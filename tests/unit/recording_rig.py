"""A recording of a stepped scheduler, without processes: what ``backends.recorder`` writes of a real engine."""

from __future__ import annotations

import random
import time
from pathlib import Path

import msgspec
from scheduler_rig import Rig

from sgnb.engine.scheduler.telemetry import Telemetry
from sgnb.messages import Numbered, OwnTokensPart, Snapshot
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

    def save(self, apart: float = 0.0) -> Recording:
        """Write the file and open it; ``apart``: seconds from each event to the next, in place of when they really were."""
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
        if apart:
            events = [
                Numbered(
                    seq=one.seq,
                    event=msgspec.structs.replace(one.event, time=self.snapshot.time + nth * apart),
                )
                for nth, one in enumerate(events, 1)
            ]
        for at in range(0, len(events), 100):
            writer.append(Events(items=events[at : at + 100]))
        part = self.ask("recorded_tokens", client=self.client).data["part"]
        writer.append(msgspec.msgpack.decode(part, type=OwnTokensPart))
        writer.append(End(time=started, reason="stopped"))
        writer.close()
        return open_recording(self.path)


def busy(path, seed: int = 0, **args) -> RecordedRig:
    """A rig with everything in it: chunks, retractions, forks, selects, aborts, two clients."""
    rng = random.Random(seed)
    rig = RecordedRig(
        max_total_tokens=100,
        context_length=100,
        chunked_prefill_size=9,
        schedule_conservativeness=0.1,
        **args,
    )
    rig.record(path)
    for n in range(40):
        ids = rng.choice([b"aaaa", b"aaaabbbb", b"q"]) + bytes(
            rng.choice(b"xy") for _ in range(rng.randint(1, 20))
        )
        kind = rng.random()
        if kind < 0.2:
            rig.select(n, ids, [b"one", b"two", b"on"])
        elif kind < 0.3:
            rig.open(100 + n)
            rig.extend(100 + n, ids)
            rig.fork(100 + n, 200 + n, 300 + n)
            rig.decode(1000 + n, b"left", sid=200 + n, fresh=False, max_new_tokens=9)
            rig.decode(2000 + n, b"right", sid=300 + n, fresh=False, max_new_tokens=9)
        else:
            rig.decode(n, ids, max_new_tokens=rng.randint(1, 30), ignore_eos=True, client=1 + n % 2)
        rig.step(rng.randint(0, 2))
        if rng.random() < 0.1 and rig.scheduler.reqs:
            rig.abort(rng.choice(list(rig.scheduler.reqs)))
    rig.drain()
    return rig
