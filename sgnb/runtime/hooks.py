"""What rewritten code calls at the places where a wait can happen.

Notebook process; runs inside the user's frames, so it is short and decides by the object's type alone: a state's value
that is not there yet becomes a ``Pause`` (the body is suspended), a program or a helper that gets a state becomes a call
on the trampoline, everything else is plain Python with what was recorded sent first. A missing flush delays tokens and
never changes a result; the read itself is the only barrier.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from sgnb.errors import ProgramTypeError
from sgnb.lang.api import Turn, assistant, system, user
from sgnb.lang.position import INTERNAL, here, internal, place_of, user_frame
from sgnb.runtime.core import Core
from sgnb.runtime.fork import By, CopyScope, Group
from sgnb.runtime.function import SglFunction
from sgnb.runtime.own_names import OWN_NAMES
from sgnb.runtime.program import hook_table, inline_frame, twin_of
from sgnb.runtime.scopes import StateTurn, VarScope
from sgnb.runtime.state import State
from sgnb.runtime.task import Frame, Pause
from sgnb.runtime.threads import carrying
from sgnb.runtime.variables import Deferred, Slot, open_slots_of
from sgnb.runtime.waiting import MAX_CANCEL_THROWS, CancelRun, current_core

internal(__name__)

QUICK_CONTAINERS = frozenset((dict, list, tuple, str, bytes, Group))
QUICK_ITERABLES = frozenset((list, tuple, range, dict, str, set, frozenset, enumerate, zip, Group))
QUICK_OWNERS = frozenset((str, list, dict, set, tuple, frozenset, bytes, int, float))
QUICK_CALLS: frozenset[Any] = frozenset(
    (len, str, int, float, bool, list, dict, tuple, set, frozenset, range, enumerate, zip, isinstance, issubclass,
     repr, abs, round, ord, chr, hash, id, type, getattr, hasattr, callable, divmod, format, iter, reversed, super)
)  # fmt: skip
"""Calls that need no flush before them: they are short and show nothing."""
STATEFUL = (State, Group)
GENERATOR_FLAGS = 0x20 | 0x80 | 0x200


def get(owner: Any, key: Any) -> Any:
    """``owner[key]``; a state's variable that is not there yet parks the body."""
    kind = owner.__class__
    if kind is State:
        core = current_core()
        return _cancel(core) if core is not None and core.cancelled else _read(owner, key)
    if kind not in QUICK_CONTAINERS:
        if kind is MethodType:
            _refuse_bare(owner)
        flush()
    return owner[key]


def _refuse_bare(method: MethodType) -> None:
    """A method of a state or of branches where its value is meant: the text does not show it, or it would be refused."""
    if isinstance(method.__self__, STATEFUL):
        name = method.__name__
        raise ProgramTypeError(
            f"`{name}` without brackets is the method itself, not what it gives.",
            hint=f"Call it: {name}(…).",
            position=here(),
        )


def _read(state: State, name: str) -> Any:
    value = state.find(name)
    if isinstance(value, Slot):
        return value.value() if value.settled else _wait(state, (value,), value.value)
    if isinstance(value, Deferred):
        slots = value.open_slots()
        return _wait(state, slots, value.read) if slots else value.read()
    return value


def _wait(state: State, slots: Any, value: Callable[[], Any]) -> Any:
    """Park until the slots are settled; where the body may not be suspended, wait on this thread."""
    flush()
    state.core.flush()
    core = current_core()
    foreign = any(slot.core is not core for slot in slots)
    if core is None or core.pins or foreign:
        for slot in slots:
            slot.core.wait(lambda slot=slot: slot.settled)
        if core is not None:
            core.check_cancelled()
        return value()
    return Pause(lambda: all(slot.settled for slot in slots), value)


def _cancel(core: Core) -> Pause:
    """End a cancelled program. One that has caught this often is suspended, so that its driver can drop it.

    Host code of ``finally`` and ``except`` blocks runs on: once told, a program is told again only where it reads.
    """
    core.cancel_throws += 1
    if core.cancel_throws > MAX_CANCEL_THROWS:
        return Pause()
    raise CancelRun


def flush() -> None:
    """Send what the running program has recorded; ends it if it was cancelled."""
    core = current_core()
    if core is None:
        return
    if core.cancelled and not core.cancel_throws:
        _cancel(core)
    core.send()


def pre(func: Any, *names: Any) -> Any:
    """What to call in the place of ``func``: itself, a waiter, or the entry of a program or helper."""
    kind = func.__class__
    core = current_core()
    if core is not None and core.cancelled and not 0 < core.cancel_throws <= MAX_CANCEL_THROWS:
        stopped = _cancel(core)
        return lambda *_, **__: stopped
    if kind is FunctionType:
        if func.__module__ in INTERNAL:
            return func  # the language itself
        if sys.exc_info()[1] is None and _gets_state(func, names):
            entry = _helper(func, func)
            if entry is not None:
                return entry
    elif kind is BuiltinFunctionType:
        if func in QUICK_CALLS or func.__self__.__class__ in QUICK_OWNERS:
            return func
        if func in OWN_NAMES:
            return OWN_NAMES[func]
    elif kind is MethodType:
        return _method(func, names)
    elif kind is type:
        if func in QUICK_CALLS:
            return func
    elif kind is SglFunction and sys.exc_info()[1] is None:
        return _program(func)
    flush()
    return func


def _method(func: MethodType, names: tuple[Any, ...]) -> Any:
    owner = func.__self__
    if owner.__class__ is State:
        waiter = WAITERS.get(func.__func__.__name__)
        return func if waiter is None else waiter(owner, func)
    if owner.__class__ is Group:
        return _join(owner) if func.__func__ is Group.join else func
    if owner.__class__ is SglFunction and sys.exc_info()[1] is None:
        if func.__func__ is SglFunction.run:
            return _own_program(owner)
    elif sys.exc_info()[1] is None and isinstance(func.__func__, FunctionType):
        plain = func.__func__
        if plain.__module__ not in INTERNAL and _gets_state(plain, (owner, *names)):
            entry = _helper(plain, func)
            if entry is not None:
                return entry
    flush()
    return carrying(func) or func


# ---------------------------------------------------------------- programs and helpers


def _gets_state(func: FunctionType, names: tuple[Any, ...]) -> bool:
    """Whether a helper gets a state: as an argument that is a plain name, or in a closure cell."""
    for value in names:
        if value.__class__ in STATEFUL:
            return True
    for cell in func.__closure__ or ():
        try:
            if cell.cell_contents.__class__ in STATEFUL:
                return True
        except ValueError:
            continue  # a name that is not bound yet
    return False


def _helper(func: FunctionType, called: Any) -> Callable[..., Any] | None:
    """The entry of an undecorated helper; None when its source is not known: then it is host code."""
    if func.__code__.co_flags & GENERATOR_FLAGS:
        return None
    twin = twin_of(func)
    if twin is None:
        return None
    bound: Callable[..., Any] = twin if called is func else MethodType(twin, called.__self__)

    def enter(*args: Any, **kwargs: Any) -> Pause:
        return Pause(enter=lambda: Frame(bound(*args, **kwargs), func.__qualname__))

    return enter


def _program(func: SglFunction) -> Callable[..., Any]:
    """The entry of a program: inlined when its first argument is a state, else with a root state of its own."""

    def enter(*args: Any, **kwargs: Any) -> Any:
        state = func.state_in(args)
        if state is None:
            return _own_program(func)(*args, **kwargs)
        frame = inline_frame(func.func, state, args, {**func.bind_arguments, **kwargs})
        return func(*args, **kwargs) if frame is None else Pause(enter=frame)

    return enter


def _own_program(func: SglFunction) -> Callable[..., Any]:
    def enter(*args: Any, **kwargs: Any) -> Any:
        core = current_core()
        entered = None if core is None else func.enter_here(core, args, kwargs)
        if entered is None:
            flush()
            return func.run(*args, **kwargs)
        return Pause(enter=entered)

    return enter


# ---------------------------------------------------------------- waiters


def _all_settled(state: State, func: Any) -> Any:
    if not state.open_slots():
        flush()
        return func
    return lambda *args, **kwargs: _wait(state, state.open_slots(), lambda: func(*args, **kwargs))


def _one_settled(state: State, func: Any) -> Any:
    def enter(*args: Any, **kwargs: Any) -> Any:
        name = args[0] if args else kwargs.get("name")
        slots = open_slots_of(state.find(name)) if isinstance(name, str) else []
        return _wait(state, slots, lambda: func(*args, **kwargs)) if slots else func(*args, **kwargs)

    return enter


def _join(group: Group) -> Any:
    """A join that must know the branches' texts parks until they are there."""

    def join(mode: str = "gather_variable", *, by: By = None, method: str = "text") -> Any:
        place = place_of(user_frame())
        slots = group.waits_for(mode)
        if not slots:
            return group.join_at(mode, place, by=by, method=method)
        return _wait(group.parent, slots, lambda: group.join_at(mode, place, by=by, method=method))

    join.__qualname__ = "Group.join"  # Python's own errors about arguments name it
    return join


WAITERS: dict[str, Callable[[State, Any], Any]] = {
    "text": _all_settled,
    "sync": _all_settled,
    "messages": _all_settled,
    "error": _all_settled,
    "get_var": _one_settled,
    "get_meta_info": _one_settled,
}
"""Methods of a state that wait."""


# ---------------------------------------------------------------- loops and managers


def it(iterable: Any) -> Any:
    """The iterable of a ``for``; one whose steps may take long sends what was recorded before each."""
    kind = iterable.__class__
    if kind is MethodType:
        _refuse_bare(iterable)
    return iterable if kind in QUICK_ITERABLES else FlushingIterator(iterable)


class FlushingIterator:
    """Sends what was recorded before each step of a foreign iterator."""

    __slots__ = ("_iterator",)

    def __init__(self, iterable: Any) -> None:
        self._iterator = iter(iterable)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        flush()
        return next(self._iterator)


ROLES = (system, user, assistant)
OWN_MANAGERS = frozenset((StateTurn, VarScope, Turn, State, CopyScope))


def ctx(manager: Any) -> Any:
    """The manager of a ``with``; inside a foreign one (a lock, say) reads block instead of parking."""
    kind = manager.__class__
    if kind is MethodType:
        _refuse_bare(manager)
    elif kind is FunctionType and any(manager is role for role in ROLES):
        raise ProgramTypeError(
            f"`with {manager.__name__}:` lacks its brackets.",
            hint=f"Write `with {manager.__name__}():`.",
            position=here(),
        )
    if kind in OWN_MANAGERS or not (hasattr(kind, "__enter__") and hasattr(kind, "__exit__")):
        return manager
    return Pin(manager)


class Pin:
    """A foreign context manager: while it is open its body is not suspended."""

    __slots__ = ("_core", "_manager")

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._core: Core | None = current_core()

    def __enter__(self) -> Any:
        flush()
        value = self._manager.__class__.__enter__(self._manager)
        if self._core is not None:
            self._core.pins += 1
        return value

    def __exit__(self, *error: Any) -> Any:
        if self._core is not None:
            self._core.pins -= 1
        return self._manager.__class__.__exit__(self._manager, *error)


hook_table.update(
    {
        "_sg_get_": get,
        "_sg_pre_": pre,
        "_sg_it_": it,
        "_sg_ctx_": ctx,
        "_sg_flush_": flush,
        "_sg_pause_": Pause,
    }
)
