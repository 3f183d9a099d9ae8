"""The pulse of a scheduler: what it does now and since when, readable from outside without asking it.

Role: 48 bytes in a mapped file of the run folder. The scheduler process writes them (``Pulse``) at each change of phase,
which costs about a microsecond and no system call; the tokenizer process reads them (``read_pulse``), so a scheduler that is
stopped, blocked in a kernel or holds its GIL is seen all the same. Times are ``time.monotonic``, one clock for all
processes of a machine. No threads, no messages and no judgement here: that is ``watchdog``'s.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path

PULSE_NAME = "pulse"
PHASES = ("idle", "plan", "compute", "process")
_LAYOUT = struct.Struct("<ddQQQQ")


@dataclass(frozen=True, slots=True)
class Beat:
    """``since``: when ``phase`` began; ``answered``: when its input was last handled; ``step``: the one at hand."""

    since: float
    answered: float
    phase: str
    step: int
    running: int
    own_thread: bool
    """The scheduler's own thread computes (inline): it cannot answer meanwhile."""


class Pulse:
    """The writer. Without a folder (tests, simulations) it keeps its bytes to itself."""

    def __init__(self, folder: Path | None = None, *, own_thread: bool = True) -> None:
        self._own_thread = own_thread
        self._bytes: mmap.mmap | bytearray = bytearray(_LAYOUT.size)
        if folder is not None:
            flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
            descriptor = os.open(folder / PULSE_NAME, flags, 0o600)
            try:
                os.ftruncate(descriptor, _LAYOUT.size)
                self._bytes = mmap.mmap(descriptor, _LAYOUT.size)
            finally:
                os.close(descriptor)
        self._answered = time.monotonic()
        self.enter("idle")

    def enter(self, phase: str, step: int = 0, running: int = 0) -> None:
        """A phase begins; the one before is over."""
        self._step, self._running, self._phase = step, running, PHASES.index(phase)
        self._since = time.monotonic()
        self._write()

    def answer(self) -> None:
        """The scheduler handles its input."""
        self._answered = time.monotonic()
        self._write()

    def _write(self) -> None:
        _LAYOUT.pack_into(
            self._bytes,
            0,
            self._since,
            self._answered,
            self._phase,
            self._step,
            self._running,
            self._own_thread,
        )


def read_pulse(folder: Path) -> Beat | None:
    """What the scheduler of this run folder says; None before it runs, or when the folder is gone."""
    try:
        data = (folder / PULSE_NAME).read_bytes()
        since, answered, phase, step, running, own = _LAYOUT.unpack(data)
        return Beat(since, answered, PHASES[phase], step, running, bool(own))
    except (OSError, struct.error, IndexError):
        return None
