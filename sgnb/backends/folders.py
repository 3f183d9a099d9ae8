"""Run folders: where an engine's record, secret, lock, log and sockets are; which are alive; what dead ones left.

Notebook process; called by ``backends.process`` and ``backends.engine``. Folders are private (mode 0700, never a link) and
swept at each start. Nothing is started here.

A run folder is alive while its ``lock`` is held. The lock is taken here, inherited by the tokenizer process as an open
descriptor and so held until that process ends, however it ends: there is no moment at which a live folder looks stale.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
from jupyter_core.paths import jupyter_runtime_dir

import sgnb
from sgnb.config import EngineArgs
from sgnb.errors import AuthFailed, EngineError, EngineStartError, NoEngine
from sgnb.liveness import is_alive, process_start_time
from sgnb.messages import EngineRecord, EngineSpec
from sgnb.transport import fits_socket_path, new_token

SOCKETS = {"client": "c", "telemetry": "t", "scheduler": "s"}
_NAMES = 99


@dataclass(slots=True)
class RunFolder:
    """A prepared folder: what the engine will be, its secret, and the lock that it will inherit."""

    path: Path
    spec: EngineSpec
    token: bytes
    lock: int

    @property
    def name(self) -> str:
        """The engine's name."""
        return self.spec.args.name


# ---------------------------------------------------------------- folders


def is_private(path: Path) -> bool:
    """True when ``path`` is a folder of ours that nobody else can write to or look into. ``lstat``: never a link."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def _temporary_base() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    return Path(runtime) if runtime and os.access(runtime, os.W_OK) else Path(tempfile.gettempdir())


_fallback: list[Path] = []


def runtime_root() -> Path:
    """``<jupyter runtime dir>/sgnb``, made with mode 0700. A planted, foreign or read-only one is not used: then it is a
    fresh private folder, one for this process (such engines cannot be attached to by name). Raises EngineStartError.
    """
    root = Path(jupyter_runtime_dir()) / "sgnb"
    try:
        root.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.suppress(FileExistsError):
            root.mkdir(mode=0o700)
        status = root.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022:
            if status.st_mode & 0o077:
                root.chmod(
                    0o700
                )  # readable by others through a lax umask; never writable, so nothing was planted
            if os.access(root, os.W_OK | os.X_OK):
                return root
    except OSError:
        pass
    if not _fallback or not is_private(_fallback[0]):
        try:
            _fallback[:] = [Path(tempfile.mkdtemp(prefix="sgnb-", dir=_temporary_base()))]
        except OSError as error:
            raise EngineStartError(
                f"no private folder for the engine: {root} and {_temporary_base()} cannot be used ({error})",
                hint="Set JUPYTER_RUNTIME_DIR to a folder of yours.",
            ) from None
    return _fallback[0]


@contextlib.contextmanager
def _root_locked(root: Path, seconds: float = 5.0) -> Iterator[None]:
    """One launcher or sweeper at a time."""
    fd = os.open(root / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + seconds
        while not _try_lock(fd):
            if time.monotonic() > deadline:
                raise EngineStartError(f"{root / '.lock'} is held by another start for over {seconds:.0f} s")
            time.sleep(0.02)
        yield
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def is_live(folder: Path) -> bool:
    """True while an engine (or one being started) holds the folder's lock."""
    try:
        fd = os.open(folder / "lock", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _try_lock(fd)
    finally:
        os.close(fd)


def prepare(args: EngineArgs) -> RunFolder:
    """Sweep, choose the name, make the folder with everything the engine reads. The default name gets a number when
    another kernel uses it; any other name in use is an EngineStartError that says how to attach.
    """
    root = runtime_root()
    try:
        with _root_locked(root):
            _sweep(root)
            return _new_folder(root, args)
    except OSError as error:
        raise EngineStartError(
            f"no folder for the engine can be made in {root}: {error}", hint="Is the disk full?"
        ) from None


def _new_folder(root: Path, args: EngineArgs) -> RunFolder:
    for number in range(1, _NAMES + 1):
        name = args.name if number == 1 else f"{args.name[:29]}-{number}"
        path = root / name
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            if args.name != "main" and is_private(path):
                raise EngineStartError(
                    f"An engine named {args.name!r} runs already, for another kernel.",
                    hint=f"Use it with %sgl attach {args.name}, or launch with another name.",
                ) from None
            continue
        try:
            return _fill(path, msgspec.structs.replace(args, name=name))
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
    raise EngineStartError(f"{root} holds {_NAMES} engines or foreign files of that name")


def _fill(path: Path, args: EngineArgs) -> RunFolder:
    lock = os.open(path / "lock", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_CREAT, 0o600)
    sockets = path
    try:
        if not _try_lock(lock):
            raise EngineStartError(f"{path / 'lock'} cannot be taken")
        if not fits_socket_path(path, tuple(SOCKETS.values())):
            sockets = Path(tempfile.mkdtemp(prefix="sgnb-", dir=_temporary_base()))
        spec = EngineSpec(
            args=args,
            incarnation=secrets.token_hex(8),
            version=sgnb.__version__,
            owner_pid=os.getpid(),
            owner_start_time=process_start_time(os.getpid()) or 0,
            sockets={role: str(sockets / file) for role, file in SOCKETS.items()},
        )
        token = new_token()
        for file, data in (("token", token), ("spec.json", msgspec.json.encode(spec))):
            fd = os.open(path / file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(fd, "wb") as out:
                out.write(data)
    except BaseException:
        os.close(lock)
        if sockets != path:
            shutil.rmtree(sockets, ignore_errors=True)
        raise
    return RunFolder(path, spec, token, lock)


def read_folder(path: Path) -> tuple[EngineRecord, bytes]:
    """Record and token of a running engine. Raises AuthFailed when the folder is not ours alone, NoEngine when none runs."""
    if not is_private(path):
        if not path.is_symlink() and not path.exists():
            raise NoEngine(f"No engine is named {path.name!r}.", hint="%sgl engines lists those that run.")
        raise AuthFailed(
            f"{path} must be a folder of this user with mode 0700, and not a link; it is not used"
        )
    if not is_live(path):
        raise NoEngine(f"The engine {path.name!r} has ended.", hint="%sgl engines lists those that run.")
    try:
        record = msgspec.json.decode(_read_own(path / "engine.json"), type=EngineRecord)
        return record, _read_own(path / "token")
    except FileNotFoundError:
        raise EngineError(f"The engine {path.name!r} is just being started.", hint="Try again.") from None
    except msgspec.MsgspecError as error:
        raise EngineError(
            f"{path / 'engine.json'} cannot be read ({error}): another version of sgnb?"
        ) from None


def _read_own(path: Path) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if status.st_uid != os.geteuid() or status.st_mode & 0o077 or not stat.S_ISREG(status.st_mode):
            raise AuthFailed(f"{path} must be a file of this user with mode 0600; it is not used")
        return file.read(1 << 20)


def list_records() -> list[EngineRecord]:
    """The engines of this user that run now, by name."""
    found = []
    root = runtime_root()
    for path in sorted(root.iterdir()) if root.is_dir() else []:
        with contextlib.suppress(EngineError, OSError):
            found.append(read_folder(path)[0])
    return found


# ---------------------------------------------------------------- sweep


def sweep() -> None:
    """Remove what dead engines left. Only folders of ours whose lock nobody holds."""
    root = runtime_root()
    with _root_locked(root):
        _sweep(root)


def _sweep(root: Path) -> None:
    for path in root.iterdir():
        if path.name.startswith(".") or not is_private(path):
            continue
        if not is_live(path):
            discard(path)


def discard(path: Path) -> None:
    """Remove a folder whose engine is gone: end the processes it names if they still run, its sockets, itself."""
    sockets: dict[str, str] = {}
    with contextlib.suppress(OSError, msgspec.MsgspecError, AuthFailed):
        sockets = msgspec.json.decode(_read_own(path / "spec.json"), type=EngineSpec).sockets
    with contextlib.suppress(OSError, msgspec.MsgspecError, AuthFailed):
        record = msgspec.json.decode(_read_own(path / "engine.json"), type=EngineRecord)
        end_process(record.scheduler_pid, record.scheduler_start_time)
        end_process(record.pid, record.start_time)
    for socket in map(Path, sockets.values()):
        parent = socket.parent
        if parent != path and parent.name.startswith("sgnb-") and is_private(parent):
            shutil.rmtree(parent, ignore_errors=True)
    shutil.rmtree(path, ignore_errors=True)


def end_process(pid: int, start_time: int) -> None:
    """SIGKILL exactly that engine process, if it still runs: same start time, same program."""
    if not start_time or not is_alive(pid, start_time):
        return
    with contextlib.suppress(OSError):
        if b"sgnb.engine" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
