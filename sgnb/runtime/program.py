"""How a body is executed: as a compiled generator, or eagerly.

Notebook process. Holds the cache of compiled programs; ``function``, ``cell`` and ``hooks`` enter bodies through here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sgnb.errors import ProgramError
from sgnb.lang.position import internal
from sgnb.runtime.core import Core
from sgnb.runtime.state import State
from sgnb.runtime.task import Frame, Result, enter_state, leave_state

internal(__name__)


@dataclass(frozen=True, slots=True)
class Program:
    """``twin`` makes the generator (None: eager, for ``reason``); ``graph`` is the static graph."""

    twin: Callable[..., Any] | None
    graph: object = None
    reason: str = ""


def program_of(func: Callable[..., Any]) -> Program:
    """The compiled program of a Python function."""
    return Program(None, None, "not compiled")


def enter_program(
    core: Core, func: Callable[..., Any], state: State, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Frame | Result:
    """Begin the body of a run's root program."""
    core.eager = True
    value = call_eager(func, state, True, (state, *args), kwargs)
    state.ret = value
    return Result(value)


def call_inline(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Run a body on the state that is its first argument, on this thread, to its end."""
    return call_eager(func, args[0], False, args, kwargs)


def call_eager(
    func: Callable[..., Any], state: State, own: bool, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Call the function as it is; its reads block this thread."""
    saved = enter_state(state, own)
    try:
        return func(*args, **kwargs)
    except RecursionError:
        raise ProgramError(
            f"{func.__qualname__} calls itself too deeply for an eager run.",
            hint="A compiled program has no such limit; %sgl explain shows why this one is not compiled.",
        ) from None
    finally:
        leave_state(saved)
