"""How a body is executed: as a compiled generator, or eagerly.

Notebook process. Holds the cache of compiled programs; ``function``, ``cell`` and ``hooks`` enter bodies through here.
``hooks`` fills ``hook_table`` when it is imported. Set ``EAGER`` to run everything eagerly (the differential test does).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from sgnb.errors import ProgramError
from sgnb.lang.frontend import Compiled, Located, NotCompiled, compile_twin, locate
from sgnb.lang.frontend.graph import parse_program
from sgnb.lang.frontend.state_uses import check_state_uses
from sgnb.lang.ir import Graph
from sgnb.lang.position import here, internal
from sgnb.runtime.asynchronous import awaits_here, finish_body
from sgnb.runtime.core import Core
from sgnb.runtime.state import State
from sgnb.runtime.task import Frame, Result, Task, enter_state, leave_state
from sgnb.runtime.variables import fresh
from sgnb.runtime.waiting import current_core

internal(__name__)

hook_table: dict[str, Any] = {}
"""Name in rewritten code → hook."""
EAGER: ContextVar[bool] = ContextVar("sgnb_eager", default=False)
"""True: nothing is compiled."""
MAX_CACHED = 1024


@dataclass(frozen=True, slots=True)
class Program:
    """``compiled`` makes the generator (None: eager, for ``reason``); ``graph`` is the static graph; ``fault``
    what the text alone shows to be wrong, for who calls it with a state."""

    compiled: Compiled | None
    graph: Graph | None = None
    reason: str = ""
    fault: ProgramError | None = None


_cache: dict[int, tuple[CodeType, Program]] = {}


def program_of(func: FunctionType) -> Program:
    """The compiled program of a Python function, made once for each code object."""
    if EAGER.get():
        return Program(None, None, "eager execution was asked for")
    code = func.__code__
    found = _cache.get(id(code))
    if found is not None and found[0] is code:
        return found[1]
    program = _compile(func)
    if len(_cache) >= MAX_CACHED:
        _cache.clear()
    _cache[id(code)] = (code, program)
    return program


def _compile(func: FunctionType) -> Program:
    try:
        located = locate(func)
    except NotCompiled as error:
        return Program(None, None, str(error))
    graph = parse_program(located.node, filename=located.filename, name=func.__qualname__)
    fault = _fault(located)
    try:
        return Program(_rewrite(func, located), graph, fault=fault)
    except (SyntaxError, RecursionError) as error:
        return Program(None, graph, f"its rewritten form does not compile ({error})", fault)


def _fault(located: Located) -> ProgramError | None:
    arguments = located.node.args
    first = next(iter((*arguments.posonlyargs, *arguments.args)), None)
    if first is None:
        return None
    try:
        check_state_uses(located.node, first.arg, located.filename)
    except ProgramError as error:
        return error
    return None


def refuse_fault(func: FunctionType) -> None:
    """Raise what a program's text alone shows to be wrong; before its first operation."""
    fault = program_of(func).fault
    if fault is not None:
        raise fresh(fault)


def _rewrite(func: FunctionType, located: Located) -> Compiled:
    return compile_twin(
        located.node,
        filename=located.filename,
        flags=located.flags,
        free=func.__code__.co_freevars,
        class_name=located.class_name,
        imports=located.imports,
        qualname=func.__qualname__,
        name=func.__code__.co_name,
    )


def twin_of(func: FunctionType) -> Callable[..., Any] | None:
    """The generator function of ``func``, or None when it runs eagerly."""
    compiled = program_of(func).compiled
    return None if compiled is None else compiled.make(func, hook_table)


# ---------------------------------------------------------------- entering bodies


def root_frame(
    core: Core, func: FunctionType, state: State, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Frame | Result:
    """Begin a body on a root state of its own; its value is kept as ``state.ret_value``. ``args`` include the state."""

    def keep(value: Any) -> State:
        state.ret = value
        return state

    refuse_fault(func)
    twin = twin_of(func)
    if twin is None:
        return Result(keep(call_eager(core, func, state, True, args, kwargs)))
    return Frame(twin(*args, **kwargs), func.__qualname__, state, own=True, wrap=keep)


def inline_frame(
    func: FunctionType, state: State, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Callable[[], Frame] | None:
    """How to begin a body on the caller's state; None when it runs eagerly."""
    refuse_fault(func)
    twin = twin_of(func)
    if twin is None:
        return None
    return lambda: Frame(twin(*args, **kwargs), func.__qualname__, state)


def call_inline(func: FunctionType, state: State, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Run a body on the state it is called with, on this thread, to its end."""
    core = current_core() or state.core
    enter = inline_frame(func, state, args, kwargs)
    if enter is None or core is not current_core():
        return call_eager(core, func, state, False, args, kwargs)
    return drive_nested(core, enter)


def drive_nested(core: Core, enter: Callable[[], Frame | Result]) -> Any:
    """Run a body inside host code of the same run: its waits block this thread."""
    task = Task(core, enter, nested=True)
    while (pause := task.advance()) is not None:
        core.flush()
        if pause.ready is not None:
            core.wait(pause.ready)
    if task.error is not None:
        raise task.error
    return task.result


def call_eager(
    core: Core,
    func: FunctionType,
    state: State,
    own: bool,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:
    """Call the function as it is; its reads block this thread and each append is sent at once.

    An ``async`` body or a generator runs to its end here; inside another ``async`` program it is awaited there.
    """
    saved = enter_state(state, own)
    eager, core.eager = core.eager, True
    try:
        if not own and awaits_here(core, func):
            return _awaited(core, func, state, args, kwargs)
        return finish_body(core, func(*args, **kwargs))
    except RecursionError:
        raise ProgramError(
            f"{func.__qualname__} calls itself too deeply for an eager run.",
            hint="A compiled program has no such limit; %sgl explain shows why this one is not compiled.",
            position=here(),
        ) from None
    finally:
        core.eager = eager
        leave_state(saved)


async def _awaited(
    core: Core,
    func: FunctionType,
    state: State,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:
    """An ``async`` program inside another one: its caller awaits it, on the caller's loop."""
    saved = enter_state(state, False)
    eager, core.eager = core.eager, True
    try:
        made = func(*args, **kwargs)
        return [item async for item in made] if inspect.isasyncgen(made) else await made
    finally:
        core.eager = eager
        leave_state(saved)


@contextmanager
def eager_execution() -> Iterator[None]:
    """Run everything eagerly inside this block."""
    token = EAGER.set(True)
    try:
        yield
    finally:
        EAGER.reset(token)
