"""Launch, attach, list: the engines of this kernel, by name.

Notebook process; called by the magics, the panel and user code. ``Engine`` itself is in ``backends.handle``. Never
imports torch, nor ``sgnb.engine``: the engine is started by name. A fork of the kernel owns none of them.
"""

from __future__ import annotations

import atexit
import os
import threading
from pathlib import Path
from typing import Any

from sgnb.backends.base import set_default_backend
from sgnb.backends.connection import Address
from sgnb.backends.folders import RunFolder, list_records, prepare, read_folder, runtime_root
from sgnb.backends.handle import Engine
from sgnb.backends.process import EngineProcess
from sgnb.config import DEFAULT_MODEL, EngineArgs
from sgnb.errors import EngineStartError
from sgnb.messages import EngineRecord

__all__ = ["Engine", "EngineRecord", "attach", "engines", "launch", "own_engines"]

_engines: dict[str, Engine] = {}
_lock = threading.RLock()


def launch(model: str | None = None, *, name: str = "main", wait: bool = True, **engine_args: Any) -> Engine:
    """Start an engine and make it the default backend.

    ``model``: a known name, a ``.gguf`` file, a safetensors folder or a hub id; ``engine_args``: the fields of
    ``EngineArgs``. An engine of that name which this kernel runs already is returned when its arguments are equal. With
    ``wait`` it returns when the model is loaded; an interrupt meanwhile ends the engine.
    Raises LimitError (arguments), EngineStartError with the last log lines, ModelFileError.
    """
    args = _arguments(model, name, engine_args)
    with _lock:
        engine = _engines.get(name)
        if engine is not None and engine.state in ("died", "failed", "stopped"):
            engine.shutdown()
            engine = None
        if engine is None:
            engine = _engines[name] = _start(args)
        elif engine.args is not None and _requested(engine.args, args) != args:
            raise EngineStartError(
                f"The engine {engine.name!r} runs already, with other arguments: {_difference(engine.args, args)}.",
                hint="Start it again with these: %sgl restart, or Engine.shutdown() first; or use another name.",
            )
        set_default_backend(engine)
    if wait:
        try:
            engine.wait_ready()
        except BaseException:
            engine.shutdown()
            raise
    return engine


def attach(name: str) -> Engine:
    """Use an engine that another kernel launched, and make it the default backend. It ends with its owner.

    Raises NoEngine, AuthFailed, EngineError.
    """
    with _lock:
        for known in _engines.values():
            if known.name == name and known.state in ("starting", "idle", "running", "stuck"):
                set_default_backend(known)
                return known
        folder = runtime_root() / name
        record, token = read_folder(folder)
        address = Address(
            socket=record.sockets["client"],
            token=token,
            pid=record.pid,
            start_time=record.start_time,
            owner_pid=record.owner_pid,
            owner_start_time=record.owner_start_time,
            owner=False,
            client_name=_client_name(),
        )
        engine = Engine(
            args=None,
            address=address,
            folder=folder,
            name=record.name,
            model=record.model,
            process=None,
            forget=_forget,
        )
        engine.client.number()
        _engines[f"attached:{name}"] = engine
        set_default_backend(engine)
        return engine


def engines() -> list[EngineRecord]:
    """All engines of this user that run now, whichever kernel owns them."""
    return list_records()


def own_engines() -> list[Engine]:
    """The engines that this kernel launched or attached to."""
    return list(_engines.values())


def _arguments(model: str | None, name: str, values: dict[str, Any]) -> EngineArgs:
    model = DEFAULT_MODEL if model is None else os.fspath(model)
    if model.startswith("~") or os.path.exists(model):
        model = str(Path(model).expanduser().resolve())  # the engine works in another folder
    if os.environ.get("SGNB_DETERMINISTIC") == "1":
        values.setdefault("deterministic", True)
    return EngineArgs.make(model=model, name=name, **values)


def _requested(running: EngineArgs, wanted: EngineArgs) -> EngineArgs:
    """The running arguments under the name that was asked for (the default name may have got a number)."""
    values = {field: getattr(running, field) for field in running.__struct_fields__}
    return EngineArgs(**{**values, "name": wanted.name})


def _difference(running: EngineArgs, wanted: EngineArgs) -> str:
    pairs = ((f, getattr(running, f), getattr(wanted, f)) for f in wanted.__struct_fields__ if f != "name")
    return ", ".join(f"{field} is {old!r}, not {new!r}" for field, old, new in pairs if old != new)


def _start(args: EngineArgs) -> Engine:
    folder: RunFolder = prepare(args)
    process = EngineProcess(folder)
    address = Address(
        socket=folder.spec.sockets["client"],
        token=folder.token,
        pid=process.pid,
        start_time=process.start_time,
        owner_pid=folder.spec.owner_pid,
        owner_start_time=folder.spec.owner_start_time,
        owner=True,
        client_name=_client_name(),
        returncode=lambda: process.returncode(0.5),
    )
    try:
        return Engine(
            args=folder.spec.args,
            address=address,
            folder=folder.path,
            name=folder.name,
            model=folder.spec.args.shown_model,
            process=process,
            forget=_forget,
        )
    except BaseException:  # an interrupt at this moment must not leave an engine that nobody holds
        process.end(0.0)
        raise


def _client_name() -> str:
    return f"kernel {os.getpid()}"


def _forget(engine: Engine) -> None:
    with _lock:
        for key in [key for key, known in _engines.items() if known is engine]:
            del _engines[key]


def _at_exit() -> None:
    """The polite end, when the interpreter ends normally; the engine's own watch covers every other way."""
    for engine in list(_engines.values()):
        try:
            engine.shutdown()
        except Exception:
            pass  # at exit nobody can be told, and the engine ends with its owner anyway


def _in_forked_child() -> None:
    """A fork owns no engine: it must neither stop one at its exit nor wait for a lock a lost thread holds."""
    global _lock
    _lock = threading.RLock()
    _engines.clear()
    set_default_backend(None)


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_in_forked_child)
