"""Is exactly that process still there? Start times and pidfds; and commands that end with the process that started them.

A leaf, used by the notebook's I/O thread, by the sweep of run folders and by both engine processes. A pid alone names
nothing for long: every check here compares the start time too. Nothing here sends a signal.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path


def process_start_time(pid: int) -> int | None:
    """Start of a process in clock ticks since boot; 0 where the system does not tell; None when it is not running.

    A zombie counts as not running. With the pid it names one process for good: pids are used again, starts are not.
    """
    if not Path("/proc/self/stat").exists():
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            pass
        return 0
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may hold anything
    return None if fields[0] in "ZX" else int(fields[19])


def is_alive(pid: int, start_time: int) -> bool:
    """True while exactly this process runs. ``start_time`` 0: unknown, not compared."""
    now = process_start_time(pid) if pid > 0 else None
    return now is not None and (not start_time or not now or now == start_time)


def open_pidfd(pid: int, start_time: int) -> int | None:
    """A descriptor that gets readable when exactly this process ends; None where the system has none.

    Raises ProcessLookupError when it is gone already, or the pid belongs to another process by now.
    """
    opener = getattr(os, "pidfd_open", None)
    if opener is None:
        return None
    try:
        fd: int = opener(pid)
    except ProcessLookupError:
        raise
    except OSError:
        return None
    if not is_alive(pid, start_time):  # looked at after opening: the descriptor cannot change its process
        os.close(fd)
        raise ProcessLookupError(f"process {pid} is gone")
    return fd


COMMAND_OF = "--command-of"


def engine_command(words: Sequence[str]) -> list[str]:
    """How a command of the engine's side (``simulate``, ``models``, ``doctor``) is started by this process, so that it ends
    when this one does, however that ends."""
    return [sys.executable, "-m", "sgnb.engine", COMMAND_OF, str(os.getpid()), *words]
