"""States as files, and the list of states that live.

Notebook process; used by ``State.save``, ``sgnb.load_state`` and ``sgnb.states``. A file is JSON: what was appended, what
was bound, the meta of generations. Loading appends it all again, so the next generation computes the prefix anew.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sgnb.backends.base import Backend, require_backend
from sgnb.errors import ProgramError
from sgnb.lang import api
from sgnb.lang.position import here, internal, place_of, user_frame
from sgnb.runtime.core import Core
from sgnb.runtime.state import LIVE, State
from sgnb.runtime.tokens import parts_of
from sgnb.runtime.variables import Deferred, Slot, meta_of, read_value

internal(__name__)

FORMAT = "sgnb-state"
VERSION = 2
READABLE = (1, 2)
"""Version 1 had no token ids."""
MAX_FILE_BYTES = 64 << 20


class Saved(Deferred):
    """A generated value that came from a file."""

    __slots__ = ("_meta", "value")

    def __init__(self, value: Any, meta: Any) -> None:
        self.value = value
        self._meta = meta

    def open_slots(self) -> list[Slot]:
        """Nothing is under way."""
        return []

    def read(self) -> Any:
        """The value."""
        return self.value

    def meta(self) -> Any:
        """The meta it had."""
        return self._meta


def states() -> list[State]:
    """Every state of this process that still has a session, oldest first."""
    return sorted((state for state in list(LIVE) if state.open), key=lambda state: state.serial)


def release_states(only: Iterable[State] | None = None) -> int:
    """Close them all, or those of ``only`` (their text stays readable); how many had a session."""
    wanted = None if only is None else set(map(id, only))
    found = [state for state in states() if wanted is None or id(state) in wanted]
    for state in found:
        state.close()
    return len(found)


def save_state(state: State, path: str | os.PathLike[str]) -> None:
    """Write a state to a JSON file, generations waited for. Raises its error, ProgramError for what JSON lacks, OSError."""
    state.sync()
    data = {
        "format": FORMAT,
        "version": VERSION,
        "model": state.backend.model_name,
        "branch": state.branch,
        "path": state.path,
        "seed": state.seed,
        "gens": state._gens,
        "unnamed": state._unnamed,
        "text": state.text_so_far(),
        "messages": state.messages(),
        "steps": [_step(part) for step in state._history for part in _parts(step)],
        "variables": {name: _variable(name, value) for name, value in state._values.items()},
    }
    target = Path(path)
    part = target.with_name(target.name + ".part")
    text = json.dumps(data, ensure_ascii=False, indent=1)
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(target)
    except OSError as error:  # named after the file that was meant, and nothing is left beside it
        part.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(target)) from None


def _parts(step: Any) -> list[Any]:
    return list(parts_of(step)) if isinstance(step, Slot) else [step]


def _step(step: Any) -> list[Any]:
    if isinstance(step, api.Tokens):
        return ["tokens", step.value, list(step.ids)]
    if isinstance(step, api.Text):
        return ["text", step.value, step.literal]
    return ["begin" if isinstance(step, api.RoleBegin) else "end", step.role]


def _variable(name: str, value: Any) -> dict[str, Any]:
    out = {
        "value": read_value(value),
        "meta": meta_of(value),
        "generated": isinstance(value, Slot | Deferred),
    }
    try:
        json.dumps(out)
    except (TypeError, ValueError) as error:
        raise ProgramError(
            f"Variable {name!r} cannot be saved: {error}.",
            hint="Bind a value that JSON has, or remove the variable.",
            position=here(),
        ) from None
    return out


def load_state(path: str | os.PathLike[str], backend: Backend | None = None) -> State:
    """A state from a file, on ``backend`` (default: the default one). Raises ProgramError for a file that is not one."""
    data = _read(Path(path))
    core = Core(require_backend(backend, here), title="state", seed=data["seed"])
    core.begin_own_run(data["branch"])
    state = State(core, data["branch"], data["path"])
    place = place_of(user_frame())
    own_tokens = data.get("model") == state.backend.model_name
    for step in data["steps"]:
        kind, what = step[0], step[1]
        if kind == "tokens" and own_tokens:
            state.append_expr(api.Tokens(tuple(step[2]), what), place)
        elif kind == "tokens":  # another model has other tokens
            state.append_expr(api.Text(what, literal=True), place)
        elif kind == "text":
            state.append_expr(api.Text(what, bool(step[2])), place)
        else:
            state.append_expr(api.RoleBegin(what) if kind == "begin" else api.RoleEnd(what), place)
    for name, entry in data["variables"].items():
        value = Saved(entry["value"], entry["meta"]) if entry["generated"] else entry["value"]
        state._values[name] = value
    state._gens, state._unnamed = data["gens"], data["unnamed"]
    return state


_SHAPE: dict[str, type] = {
    "branch": str, "path": str, "seed": int, "gens": int, "unnamed": int, "steps": list, "variables": dict,
}  # fmt: skip


def _read(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise _unreadable(f"{path} has {size} bytes, at most {MAX_FILE_BYTES} are allowed.")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise _unreadable(f"{path} is no saved state: {error}.") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise _unreadable(f"{path} is no saved state.")
    if data.get("version") not in READABLE:
        raise _unreadable(f"{path} has version {data.get('version')!r}; this sgnb reads {VERSION}.")
    for key, kind in _SHAPE.items():
        if type(data.get(key)) is not kind:
            raise _unreadable(f"{path}: {key!r} is missing or wrong.")
    for step in data["steps"]:
        text = isinstance(step, list) and len(step) == 3 and step[0] == "text" and isinstance(step[1], str)
        mark = isinstance(step, list) and len(step) == 2 and step[0] in ("begin", "end")
        tokens = (
            isinstance(step, list)
            and len(step) == 3
            and step[0] == "tokens"
            and isinstance(step[1], str)
            and isinstance(step[2], list)
            and all(type(token) is int and token >= 0 for token in step[2])
        )
        if not text and not tokens and not (mark and step[1] in api.ROLES):
            raise _unreadable(f"{path}: the step {str(step)[:60]} is wrong.")
    for name, entry in data["variables"].items():
        if not isinstance(entry, dict) or {"value", "meta", "generated"} - entry.keys():
            raise _unreadable(f"{path}: variable {name!r} is wrong.")
    return data


def _unreadable(message: str) -> ProgramError:
    return ProgramError(message, hint="Write one with state.save(path).", position=here())
