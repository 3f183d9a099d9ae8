"""What a view asks the kernel to make of an engine: a recording, a Perfetto file, a comparison of settings.

Notebook process. ``telemetry.EngineFeed`` passes the verbs of ``FILE_VERBS`` here, on its own thread, never on a comm's.
Files are named relative to the notebook's folder and never written over. Comparisons are run by ``python -m sgnb.engine
simulate`` in a process of their own, since the scheduler may not be imported here. No page, no words of views.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from sgnb.errors import RecordingError, SgnbError
from sgnb.liveness import engine_command
from sgnb.messages import Numbered
from sgnb.recording import open_recording, with_suffix
from sgnb.recording.perfetto import write_events

FILE_VERBS = frozenset({"record", "perfetto", "compare", "compared"})
SIMULATE_SECONDS = 120.0
_KEPT_JOBS = 8
_PAGE = 4000


class RecordedSource(Protocol):
    """What these verbs need of an engine, or of a recording that is shown."""

    @property
    def name(self) -> str:
        """Of the engine."""

    @property
    def recorder(self) -> Any:
        """The newest recording of it, or None."""

    def record(self, path: str | Path, *, text: bool = True) -> Any:
        """Begin one."""

    def ask(self, verb: str, args: dict[str, Any] | None = None, timeout: float = 10.0) -> dict[str, Any]:
        """``history`` is asked."""


def answer(engine: RecordedSource, verb: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to one verb; SgnbError with a sentence for the reader when it cannot be done."""
    if verb == "record":
        return _record(engine, args)
    if verb == "perfetto":
        return _perfetto(engine, args)
    if verb == "compare":
        return {"job": _jobs.start(_recording_of(engine), args)}
    return _jobs.state(str(args.get("job", "")), cancel=bool(args.get("cancel")))


# ---------------------------------------------------------------- recording


def _record(engine: RecordedSource, args: Mapping[str, Any]) -> dict[str, Any]:
    action, words = args.get("action"), ""
    if action == "start":
        path = _new_file(with_suffix(_name(args)))
        engine.record(path, text=bool(args.get("text", True)))
    elif action == "stop":
        recorder = engine.recorder
        if recorder is None:
            raise RecordingError("Nothing is recorded.", hint="Save recording… begins one.")
        words = str(recorder.stop())
    return {**_recording_state(engine.recorder), "words": words}


def _recording_state(recorder: Any) -> dict[str, Any]:
    if recorder is None:
        return {"recording": False, "file": "", "seconds": 0.0, "events": 0}
    done = recorder.result()
    return {
        "recording": recorder.running,
        "file": _shown(done.path),
        "seconds": done.seconds,
        "events": done.events,
    }


def _recording_of(engine: RecordedSource) -> Path:
    recorder = engine.recorder
    if recorder is None:
        raise RecordingError(
            "There is no recording to compare with.",
            hint="Record the programs you care about (Save recording…), then compare.",
        )
    return Path(recorder.path)


# ---------------------------------------------------------------- Perfetto


def _perfetto(engine: RecordedSource, args: Mapping[str, Any]) -> dict[str, Any]:
    path = Path(_name(args)).expanduser().resolve()
    if path.suffix not in ("", ".json"):
        raise RecordingError(f"a Perfetto file's name ends in .json, not {path.suffix!r}", hint="Rename it.")
    path = _new_file(path.with_suffix(".json"))
    start, end = args.get("from"), args.get("to")
    window = (float(start), float(end)) if start is not None and end is not None else None
    number = write_events(_history(engine), engine.name, path, window)
    return {"file": _shown(path), "events": number}


def _history(engine: RecordedSource) -> Iterator[Numbered]:
    """All events that are kept, oldest first."""
    start = 1
    while True:
        found = engine.ask("history", {"from_seq": start, "limit": _PAGE})
        events = msgspec.convert(found["events"], list[Numbered])
        yield from events
        if not events or events[-1].seq >= int(found["last_seq"]):
            return
        start = events[-1].seq + 1


# ---------------------------------------------------------------- comparisons


class _Job:
    """One simulation. ``state``: ``running``, ``done``, ``failed``."""

    def __init__(self, command: list[str]) -> None:
        self.state = "running"
        self.result: dict[str, Any] = {}
        self._command = command
        self._child: subprocess.Popen[bytes] | None = None
        self._cancelled = False
        self._lock = threading.Lock()
        threading.Thread(target=self._run, name="sgnb-simulate", daemon=True).start()

    def cancel(self) -> None:
        """End it; its state is ``failed`` soon after."""
        with self._lock:
            self._cancelled = True
            if self._child is not None:
                self._child.kill()

    def _run(self) -> None:
        try:
            with self._lock:
                if self._cancelled:
                    raise SgnbError("The comparison was cancelled.")
                # In a session of its own: an interrupt of the cell is not meant for it.
                self._child = subprocess.Popen(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
            out, err = self._child.communicate(timeout=SIMULATE_SECONDS)
            if self._cancelled:
                raise SgnbError("The comparison was cancelled.")
            if self._child.returncode:
                raise SgnbError(
                    _last_words(err) or f"The simulator ended with code {self._child.returncode}."
                )
            self.result = msgspec.json.decode(out, type=dict[str, Any])
            self.state = "done"
        except subprocess.TimeoutExpired:
            self.cancel()
            self._fail(
                f"The simulation took longer than {SIMULATE_SECONDS:.0f} s. Record a shorter run, or give fewer settings."
            )
        except (SgnbError, OSError, msgspec.DecodeError) as error:
            self._fail(error.message if isinstance(error, SgnbError) else f"The simulator failed: {error}")

    def _fail(self, why: str) -> None:
        self.result = {"error": why}
        self.state = "failed"


def _part_of(path: Path, args: Mapping[str, Any]) -> list[str]:
    """The simulator's options for the part that the page shows, ``from`` to ``to`` in seconds of the engine's clock."""
    start, end = args.get("from"), args.get("to")
    if start is None or end is None:
        return []
    first = open_recording(path).snapshot().time
    since, until = max(0.0, float(start) - first), float(end) - first
    if until <= since:
        raise RecordingError(
            f"{_shown(path)} began after what is in view.", hint="Move there, or compare the whole recording."
        )
    return ["--from", f"{since:.6f}", "--to", f"{until:.6f}"]


class _Jobs:
    """The comparisons of this kernel; the newest few are kept."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, _Job] = OrderedDict()
        self._lock = threading.Lock()

    def start(self, path: Path, args: Mapping[str, Any]) -> str:
        """Begin one on the recording ``path``; its number."""
        command = engine_command(["simulate", str(path), "--json", *_part_of(path, args)])
        policies = [str(name) for name in args.get("policies", [])]
        chunks = [int(size) for size in args.get("chunks", [])]
        if policies:
            command += ["--policy", ",".join(policies)]
        if chunks:
            command += ["--chunk", ",".join(map(str, chunks))]
        number = secrets.token_hex(4)
        with self._lock:
            self._jobs[number] = _Job(command)
            while len(self._jobs) > _KEPT_JOBS:
                self._jobs.popitem(last=False)[1].cancel()
        return number

    def state(self, number: str, *, cancel: bool = False) -> dict[str, Any]:
        """``state`` of a comparison, with its figures or its error."""
        with self._lock:
            job = self._jobs.get(number)
        if job is None:
            raise SgnbError("That comparison is not known any more.", hint="Compare again.")
        if cancel:
            job.cancel()
        return {"state": job.state, **job.result}


_jobs = _Jobs()


# ---------------------------------------------------------------- names of files


def _name(args: Mapping[str, Any]) -> str:
    name = str(args.get("file", "")).strip()
    if not name or len(name) > 1000 or not name.isprintable():
        raise RecordingError("The file needs a name, for example run.sgnb.")
    return name


def _new_file(path: Path) -> Path:
    if path.exists():
        raise RecordingError(f"{_shown(path)} exists.", hint="Give another name.")
    return path


def _shown(path: Path) -> str:
    """Relative to the notebook's folder where it lies in it."""
    try:
        return str(Path(path).relative_to(os.getcwd()))
    except ValueError:
        return str(path)


def _last_words(err: bytes) -> str:
    """What the simulator said, or the last line of a traceback."""
    lines = [line.strip() for line in err.decode("utf-8", "replace").splitlines() if line.strip()]
    if any(line.startswith("Traceback") for line in lines):
        lines = lines[-1:]
    return " ".join(lines)[:600]
