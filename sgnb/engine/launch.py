"""What both engine processes do first: read the run folder, set up signals and log, say how things ended.

Called by ``tokenizer_process`` and ``scheduler_process``, which have the loops; ``parent`` has tied this process to its
parent before. No sockets and no torch here.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from sgnb.errors import AuthFailed, EngineStartError, SgnbError
from sgnb.liveness import process_start_time
from sgnb.messages import EngineRecord, EngineSpec, ErrorInfo, SchedulerProgress

_ACTING = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
LOG_BYTES = 1 << 20
"""The log is cut to its newest half beyond this."""
_PROGRESS_SECONDS = 0.05
log = logging.getLogger("sgnb.engine")
_loaded = time.monotonic()


def read_spec(folder: Path) -> EngineSpec:
    """The run folder's ``spec.json``. Raises EngineStartError naming the file."""
    path = folder / "spec.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=EngineSpec)
    except (OSError, msgspec.MsgspecError) as error:
        raise EngineStartError(f"{path} cannot be used: {error}") from None


def read_token(folder: Path) -> bytes:
    """The secret of this engine; refused unless the file is ours alone."""
    path = folder / "token"
    status = path.lstat()
    if path.is_symlink() or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise AuthFailed(f"{path} must be a file of this user with mode 0600, found {status.st_mode:o}")
    return path.read_bytes()


def write_record(folder: Path, record: EngineRecord) -> None:
    """``engine.json``, by atomic rename. A full disk is a warning: nothing essential needs it."""
    temporary = folder / f"engine.json.{os.getpid()}"
    try:
        temporary.write_bytes(msgspec.json.encode(record))
        temporary.rename(folder / "engine.json")
    except OSError as error:
        temporary.unlink(missing_ok=True)
        log.warning("engine.json was not written: %s", error)


class CleanFormatter(logging.Formatter):
    """Log lines in which no character acts on a terminal: names and texts of clients stand in them (ESC as ``\\x1b``)."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, line ends and tabs as they are."""
        return _ACTING.sub(lambda found: found[0].encode("unicode_escape").decode(), super().format(record))


def set_up_process() -> None:
    """Umask, log format, SIGINT (Stop in a notebook is for the cell, never for the engine)."""
    os.umask(0o077)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.raiseExceptions = False  # a full disk must not end a process
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(CleanFormatter("%(asctime)s %(process)d %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def seconds_since_exec() -> float:
    """Age of this process, from the kernel where it tells."""
    ticks = process_start_time(os.getpid())
    if ticks and hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - _loaded


def bound_log(folder: Path) -> None:
    """Cut the log to its newest half when it is over LOG_BYTES. Both processes append to it (O_APPEND)."""
    path = folder / "engine.log"
    try:
        if path.stat().st_size <= LOG_BYTES:
            return
        with path.open("r+b") as file:
            file.seek(-LOG_BYTES // 2, os.SEEK_END)
            tail = file.read()
            file.seek(0)
            file.truncate()
            file.write(b"... older lines were dropped\n" + tail.partition(b"\n")[2])
    except OSError:
        pass  # the log is a help, not a need


def remove_folder(folder: Path, spec: EngineSpec, *, everything: bool) -> None:
    """Take the sockets away, and with ``everything`` the run folder too (else its log stays to be read)."""
    for path in map(Path, spec.sockets.values()):
        path.unlink(missing_ok=True)
        if path.parent != folder:
            shutil.rmtree(path.parent, ignore_errors=True)
    if everything:
        shutil.rmtree(folder, ignore_errors=True)


def to_info(error: BaseException, *, code: str = "error") -> ErrorInfo:
    """An exception as it crosses to the notebook."""
    if isinstance(error, SgnbError):
        return ErrorInfo(kind=type(error).__name__, message=error.message, code=code, hint=error.hint)
    return ErrorInfo(kind="EngineError", message=f"{type(error).__name__}: {error}", code=code)


def describe_end(returncode: int) -> str:
    """How a child ended, for people."""
    if returncode >= 0:
        return f"ended with exit code {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = "unknown"
    words = f"was killed (signal {-returncode}, {name})"
    return words + "; often this means that the machine ran out of memory" if returncode == -9 else words


def throttled(send: Callable[[SchedulerProgress], None]) -> Callable[[str, int, int], None]:
    """Start steps as messages, some twenty a second; first and last of each always."""
    last: tuple[str, float] = ("", 0.0)

    def progress(step: str, done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if step == last[0] and done < total and now - last[1] < _PROGRESS_SECONDS:
            return
        last = (step, now)
        send(SchedulerProgress(step=step, done=done, total=total))

    return progress
