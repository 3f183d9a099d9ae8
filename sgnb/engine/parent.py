"""Tie this process's life to its parent's: the very first thing either engine process does.

Called by ``__main__`` before anything slow is imported, so that no moment of the start is left in which a killed owner
would leave an engine behind. Standard library only.

The chain of lives. The notebook kernel owns the tokenizer process, which owns the scheduler process:

- tokenizer process: watches the owner's pidfd, tells attached clients, ends the scheduler and removes the run folder.
  PDEATHSIG is SIGHUP, whose handler is libc's own ``alarm``: called with the signal's number, 1, it makes the kernel
  end this process one second later whatever Python is doing (a watcher in Python waits for the GIL; SIGKILL at once
  would leave the folder and tell nobody).
- scheduler process: PDEATHSIG is SIGKILL; it also watches the owner, and ends a stopped parent.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def tie_life_to_parent(parent_pid: int, *, at_once: bool) -> bool:
    """Arm PDEATHSIG, then look whether the parent is still ours. False: it is gone, end now.

    ``at_once``: SIGKILL. Else one second for a clean end (module docstring). Without prctl only the caller's watch is left.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        number = signal.SIGKILL
        if not at_once:
            libc.signal.restype = ctypes.c_void_p
            libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
            libc.signal(int(signal.SIGHUP), ctypes.cast(libc.alarm, ctypes.c_void_p))
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            number = signal.SIGHUP
        libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    return os.getppid() == parent_pid
