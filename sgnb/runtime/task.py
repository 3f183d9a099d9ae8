"""The trampoline: one run's stack of suspended program bodies.

Notebook process. ``Task.advance`` runs on whichever thread drives the run (``runtime.dispatcher`` decides) until the
program must wait or has ended. Calls of programs and helpers are pushed here instead of nested, so depth costs no Python
stack. No locks and no waiting here.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Generator
from contextvars import Context, copy_context
from dataclasses import dataclass
from types import GeneratorType, TracebackType
from typing import Any

from sgnb.errors import ProgramError
from sgnb.lang import context
from sgnb.lang.position import INTERNAL, internal, place_of, position_of
from sgnb.runtime.core import Core
from sgnb.runtime.state import State
from sgnb.runtime.waiting import MAX_CANCEL_THROWS, CancelRun, set_current

internal(__name__)

MAX_DEPTH = 110_000
"""Program calls inside program calls; beyond it a program that calls itself without end is stopped."""


@dataclass(slots=True)
class Pause:
    """What a compiled body yields: a wait (``ready`` and ``value``) or a call (``enter``)."""

    ready: Callable[[], bool] | None = None
    value: Callable[[], Any] | None = None
    enter: Callable[[], Frame | Result] | None = None


@dataclass(slots=True)
class Result:
    """A call that ended at once."""

    value: Any


@dataclass(slots=True)
class Frame:
    """A body under way. ``state`` is what bare ``user()`` blocks in it mean; None keeps the caller's (helpers)."""

    body: Generator[Any, Any, Any]
    name: str
    state: State | None = None
    own: bool = False
    """True when the body has a root state of its own: the caller's open turn does not concern it."""
    wrap: Callable[[Any], Any] | None = None
    """Makes the call's value out of the body's."""
    saved: tuple[Any, Any] | None = None


class Task:
    """A run's bodies and the context they run in."""

    def __init__(self, core: Core, enter: Callable[[], Frame | Result], *, nested: bool = False) -> None:
        self.core = core
        self.stack: list[Frame] = []
        self.waiting: Pause | None = Pause(ready=lambda: True, enter=enter)
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False
        self.context: Context | None = None if nested else copy_context()
        """None: a body inside host code of the same run, which has a context already."""
        if self.context is not None:
            self.context.run(set_current, core)

    def go(self) -> Pause | None:
        """``advance`` in the task's own context."""
        assert self.context is not None
        self.core.driving = threading.get_ident()
        return self.context.run(self.advance)

    def advance(self) -> Pause | None:
        """Go on until the program waits (the Pause) or has ended (None: see ``result`` and ``error``)."""
        if self.done:
            return None
        pause = self.waiting
        if pause is not None and pause.ready is not None and not (self.core.cancelled or pause.ready()):
            return pause
        self.waiting = None
        value, error = self._answer(pause)
        while self.stack or isinstance(value, Frame):
            if isinstance(value, Frame):
                self._push(value)
                value = None
            frame = self.stack[-1]
            known: TracebackType | None = None
            if self.core.cancelled and error is None and (error := self._cancellation()) is None:
                break
            try:
                if error is not None:
                    known = error.__traceback__
                    thrown, error = error, None
                    out = frame.body.throw(thrown)
                else:
                    out = frame.body.send(value)
            except StopIteration as stop:
                self._pop(frame)
                value = stop.value if frame.wrap is None else frame.wrap(stop.value)
                continue
            except BaseException as raised:
                self._pop(frame)
                value, error = None, clean(raised, known)
                continue
            if out.__class__ is not Pause:
                value = out
            elif out.enter is not None or self.core.cancelled or out.ready is None or out.ready():
                value, error = self._answer(out)
            else:
                self.waiting = out
                return self.waiting
        self.result, self.error, self.done = value, error, True
        return None

    def _answer(self, pause: Pause | None) -> tuple[Any, BaseException | None]:
        """The value a Pause stands for (a Frame for a call that has just begun), or its error."""
        if pause is None:
            return None, None
        try:
            if self.core.cancelled:
                return None, self._cancellation()
            if pause.enter is None:
                return None if pause.value is None else pause.value(), None
            if len(self.stack) >= MAX_DEPTH:
                caller = self.stack[-1]
                assert isinstance(caller.body, GeneratorType) and caller.body.gi_frame is not None
                raise ProgramError(
                    f"Programs call each other {MAX_DEPTH} deep; {caller.name} seems to call itself without end.",
                    hint="Give the recursion an end.",
                    position=position_of(place_of(caller.body.gi_frame)),
                )
            entered = pause.enter()
            return (entered.value if isinstance(entered, Result) else entered), None
        except BaseException as error:
            return None, clean(error)

    def _push(self, frame: Frame) -> None:
        if frame.state is not None:
            frame.saved = enter_state(frame.state, frame.own)
        self.stack.append(frame)

    def _pop(self, frame: Frame) -> None:
        self.stack.pop()
        if frame.saved is not None:
            leave_state(frame.saved)

    def _cancellation(self) -> BaseException | None:
        """The exception to throw into a cancelled program; None when it was told often enough and is dropped."""
        self.core.cancel_throws += 1
        if self.core.cancel_throws <= MAX_CANCEL_THROWS:
            return CancelRun()
        for frame in self.stack:
            keep_for_ever(frame.body)
        self.stack.clear()
        return None


def keep_for_ever(body: object) -> None:
    """Never collect a body that would not end: collecting closes it, which runs its code on any thread, and when the
    interpreter ends without end. A count that is never taken back also outlives the clearing of modules."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(body))


def enter_state(state: State, own: bool) -> tuple[Any, Any]:
    """Make ``state`` the one that ``user()`` and ``gen()`` mean; returns what ``leave_state`` restores."""
    saved = (context.current_state.get(), context.open_turn.get())
    context.current_state.set(state)
    if own:
        context.open_turn.set(None)
    return saved


def leave_state(saved: tuple[Any, Any]) -> None:
    """Undo ``enter_state``."""
    context.current_state.set(saved[0])
    context.open_turn.set(saved[1])


def clean(error: BaseException, known: TracebackType | None = None) -> BaseException:
    """``error`` without sgnb's own frames in its traceback, and unwrapped where a generator turned it over (PEP 479).

    ``known`` is the part that is clean already: an error that leaves thousands of bodies is not walked anew at each.
    """
    cause = error.__cause__
    if isinstance(error, RuntimeError) and isinstance(cause, StopIteration) and "StopIteration" in str(error):
        error = cause
    frames: list[TracebackType] = []
    trace = error.__traceback__
    while trace is not None and trace is not known:
        if trace.tb_frame.f_globals.get("__name__") not in INTERNAL:
            frames.append(trace)
        trace = trace.tb_next
    chain = trace  # None, or what is known
    for trace in reversed(frames):
        chain = TracebackType(chain, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)
    error.__traceback__ = chain
    return error
