"""Stacks of the engine's threads as text, whatever those threads do.

Role: ``arm`` makes a process write the stacks of all its threads into a file of the run folder on SIGUSR1; the handler is C
and needs no GIL, so a process that hangs in an operator answers too (one that is stopped does not). ``collect`` asks. Called
in all engine processes at their start, and in the tokenizer process for ``watchdog`` and the control ``stacks``. Standard
library only.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from pathlib import Path

_POLL_SECONDS = 0.02
_SETTLED_SECONDS = 0.06


def arm(folder: Path, role: str) -> None:
    """From now on this process writes its stacks when it is asked. Its file is there only then: nobody signals before."""
    path = folder / f"stacks-{role}"
    new = folder / f"stacks-{role}.new"
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)
    os.rename(new, path)


def collect(folder: Path, pids: dict[str, int], seconds: float = 1.0) -> dict[str, str]:
    """The stacks of each process by role; a sentence instead for one that did not write them in time. Blocks that long."""
    asked: dict[str, Path | None] = {}
    for role, pid in pids.items():
        path = folder / f"stacks-{role}"
        try:
            os.truncate(path, 0)
            os.kill(pid, signal.SIGUSR1)
            asked[role] = path
        except OSError:
            asked[role] = None
    deadline = time.monotonic() + seconds
    return {
        role: _read(path, deadline)
        if path is not None
        else "It cannot be asked: it ended, or has just begun."
        for role, path in asked.items()
    }


def _read(path: Path, deadline: float) -> str:
    """The file once it has stopped growing."""
    text, quiet = b"", 0.0
    while time.monotonic() < deadline:
        try:
            now = path.read_bytes()
        except OSError:
            return "Its file is gone."
        if now and now == text:
            quiet += _POLL_SECONDS
            if quiet >= _SETTLED_SECONDS:
                break
        else:
            text, quiet = now, 0.0
        time.sleep(_POLL_SECONDS)
    return text.decode("utf-8", "replace") or "It does not answer: it is stopped."


def as_text(stacks: dict[str, str]) -> str:
    """All of them under headings."""
    return "\n".join(f"==== {role} process\n{text.rstrip()}\n" for role, text in stacks.items())
