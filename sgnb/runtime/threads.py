"""Threads that a program starts belong to it: what they read and append is the program's own.

Notebook process; ``runtime.hooks`` asks here when a body calls a method. Without this, a thread of a program would read as
a stranger does, who waits for the program's end, and a program that joins such a thread would never end. Covers
``Thread.start`` and the ``submit`` and ``map`` of a ThreadPoolExecutor; ``asyncio`` carries the context itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextvars import copy_context
from types import MethodType
from typing import Any

from sgnb.lang.position import internal
from sgnb.runtime.waiting import CancelRun, current_core

internal(__name__)


def belonging(call: Callable[..., Any]) -> Callable[..., Any]:
    """``call`` for another thread, as part of the program that asks; may be called many times, at once too."""
    context, core = copy_context(), current_core()

    def inside(*args: Any, **kwargs: Any) -> Any:
        try:
            return context.copy().run(call, *args, **kwargs)
        finally:
            if core is not None:
                core.send()  # what it recorded last: the body may be waiting for this thread

    return inside


def _start(thread: threading.Thread) -> Callable[[], None]:
    run = belonging(thread.run)

    def inside() -> None:
        try:
            run()
        except CancelRun:
            pass  # the program was stopped, and its threads with it

    thread.run = inside  # type: ignore[method-assign]
    return thread.start


def _of_executor(method: Callable[..., Any]) -> Callable[..., Any]:
    def enter(call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return method(belonging(call), *args, **kwargs)

    return enter


def carrying(func: MethodType) -> Callable[..., Any] | None:
    """What to call in the place of a method that starts work on another thread; None for any other method."""
    plain = func.__func__
    owner: object = func.__self__
    if plain is threading.Thread.start and isinstance(owner, threading.Thread):
        return _start(owner)
    if plain in (ThreadPoolExecutor.submit, Executor.map) and isinstance(owner, ThreadPoolExecutor):
        return _of_executor(func)
    return None
