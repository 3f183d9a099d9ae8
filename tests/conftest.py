"""For every suite: a Jupyter runtime folder of its own, short enough for sockets, and no engine left at the end.

The folder's path is in the command line of each engine process, so that the check at the end sees exactly the engines
of this session, whoever started them (tests, kernels of tests, their children).
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

_RUNTIME = Path(tempfile.mkdtemp(prefix="sgt-"))
os.environ["JUPYTER_RUNTIME_DIR"] = str(_RUNTIME)
# A shell starts a background job with SIGINT ignored, and children inherit that: the tests that interrupt need it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def engine_processes(mark: str | None = None) -> list[int]:
    """Pids of living engine processes whose command line holds ``mark`` (default: this session's folder)."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue  # it ended while we looked
        if (
            state not in "ZX"
            and b"sgnb.engine" in words
            and (mark or str(_RUNTIME)).encode() in b" ".join(words)
        ):
            found.append(int(entry.name))
    return found


@pytest.fixture(scope="session")
def runtime_dir() -> Path:
    """JUPYTER_RUNTIME_DIR of this session."""
    return _RUNTIME


@pytest.fixture
def find_engines() -> Callable[..., list[int]]:
    """``engine_processes``, for tests."""
    return engine_processes


@pytest.fixture(scope="session", autouse=True)
def no_engine_left() -> Iterator[None]:
    """Fail the run when an engine process is left over (F13)."""
    yield
    deadline = time.monotonic() + 3.0
    while (left := engine_processes()) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(_RUNTIME, ignore_errors=True)
    assert not left, f"engine processes were left over: {left}"
