"""The engine's processes as the notebook sees them: starting, reading the log, ending.

Notebook process; called by ``backends.engine``. Spawns the engine in a prepared folder (``backends.folders``) from one
long-lived thread (PDEATHSIG follows the spawning *thread*). No messages to the engine here (``backends.client``);
nothing is imported of it: it is started by name.
"""

from __future__ import annotations

import os
import queue
import re
import shutil
import site
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sgnb
from sgnb.backends.folders import RunFolder, discard, is_live, is_private
from sgnb.errors import EngineStartError
from sgnb.liveness import process_start_time

_LOG_TAIL_BYTES = 128 << 10
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


# ---------------------------------------------------------------- the spawner thread


class _Spawner:
    """One thread that lives as long as the kernel and starts all engines. Made at the first start."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._guard = threading.Lock()

    def post(self, job: Callable[[], Any]) -> queue.SimpleQueue[Any]:
        """Run ``job`` on the thread, after those posted before; where its result will be."""
        with self._guard:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="sgnb-spawner", daemon=True)
                self._thread.start()
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._jobs.put((job, answer))
        return answer

    def call(self, job: Callable[[], Any]) -> Any:
        """Run ``job`` on the thread; its result, or its exception."""
        answer = self.post(job)
        result = answer.get(timeout=30)
        if isinstance(result, BaseException):
            raise result
        return result

    def _run(self) -> None:
        while True:
            job, answer = self._jobs.get()
            try:
                answer.put(job())
            except BaseException as error:  # handed to the caller
                answer.put(error)

    def forget(self) -> None:
        """In a forked child: the thread is not here, its locks may be held for ever."""
        self.__init__()  # type: ignore[misc]


_spawner = _Spawner()
os.register_at_fork(after_in_child=_spawner.forget)


# ---------------------------------------------------------------- the process


class EngineProcess:
    """The tokenizer process that this kernel owns; the scheduler process is its child."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.path = folder.path
        self.start_time = 0
        self._popen: subprocess.Popen[bytes] | None = None
        try:
            _spawner.call(self._spawn)
        except BaseException:  # an interrupt: the spawner may be about to start it all the same
            _spawner.post(lambda: self.end(0.0))
            raise

    @property
    def pid(self) -> int:
        """Of the tokenizer process."""
        return self._popen.pid if self._popen else 0

    def _spawn(self) -> None:
        command = [sys.executable, "-X", "faulthandler", "-m", "sgnb.engine", "--folder", str(self.path)]
        command += ["--parent", str(os.getpid())]
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        log = -1
        try:
            log = os.open(self.path / "engine.log", flags, 0o600)
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=_environment(),
                start_new_session=True,
                pass_fds=(self.folder.lock,),
            )
        except OSError as error:
            shutil.rmtree(self.path, ignore_errors=True)
            raise EngineStartError(
                f"the engine process could not be started: {error}",
                hint="Is the disk full, or are there too many processes?",
            ) from None
        finally:
            if log >= 0:
                os.close(log)
            os.close(self.folder.lock)  # the child's copy holds the lock from here on
        self.start_time = process_start_time(self.pid) or 0

    def returncode(self, wait: float = 0.0) -> int | None:
        """Exit code, negative for a signal; None while it runs (after waiting up to ``wait`` seconds)."""
        if self._popen is None:
            return 0
        try:
            return self._popen.wait(wait) if wait else self._popen.poll()
        except subprocess.TimeoutExpired:
            return None

    def end(self, polite_seconds: float = 1.0) -> None:
        """SIGTERM, then SIGKILL; waits for it, removes the folder. Our own unreaped child, so the pid is still its."""
        if self._popen is not None and self.returncode() is None:
            self._popen.terminate()
            if self.returncode(polite_seconds) is None:
                self._popen.kill()
                self.returncode(5.0)
        self.clean()

    def clean(self) -> None:
        """Remove the folder of the ended engine, and its scheduler if that one outlived it."""
        if self.path.exists() and is_private(self.path) and not is_live(self.path):
            discard(self.path)

    def log_lines(self, count: int) -> list[str]:
        """The newest lines of the log, without escapes and control characters."""
        return log_lines(self.path, count)


def log_lines(folder: Path, count: int) -> list[str]:
    """The newest ``count`` lines of an engine's log."""
    try:
        with (folder / "engine.log").open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LOG_TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    lines = _CONTROLS.sub("", _ESCAPES.sub("", text.replace("\r\n", "\n"))).split("\n")
    return [line.rstrip() for line in lines if line.strip()][-count:]


def _environment() -> dict[str, str]:
    """The kernel's, with sgnb found where this process found it and nothing imported from the current folder."""
    env = dict(os.environ)
    env["PYTHONSAFEPATH"] = "1"
    home = str(Path(sgnb.__file__).resolve().parent.parent)
    if home not in site.getsitepackages() and home != site.getusersitepackages():
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [home, env.get("PYTHONPATH", "")]))
    return env
