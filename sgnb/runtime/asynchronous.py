"""``async def`` and generator functions as programs: their bodies run eagerly, to their end.

Notebook process; called by ``runtime.program.call_eager`` with what the function gave. A coroutine gets an event loop of
its own: on the driving thread, or on a thread beside it where a loop already runs or interrupts
arrive (a notebook cell). Reads of a
state block that loop, awaiting a tool does not block the run's generations. Nothing is recorded here.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextvars import copy_context
from types import FunctionType
from typing import Any

from sgnb.lang.position import internal
from sgnb.runtime.core import Core
from sgnb.runtime.waiting import CancelRun, current_core

internal(__name__)

CANCEL_SECONDS = 2.0
"""How long an interrupted ``async`` body may take to end."""


def is_async(func: FunctionType) -> bool:
    """True for coroutine functions and asynchronous generators."""
    return inspect.iscoroutinefunction(func) or inspect.isasyncgenfunction(func)


def finish_body(core: Core, made: Any) -> Any:
    """The value of an eager body: what a coroutine returns, the list of what a generator yields, anything else as it is."""
    if inspect.iscoroutine(made):
        return run_coroutine(core, made)
    if inspect.isasyncgen(made):
        return run_coroutine(core, _collect(made))
    if inspect.isgenerator(made):
        return list(made)
    return made


async def _collect(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


def awaits_here(core: Core, func: FunctionType) -> bool:
    """True when the caller is an ``async`` program of this run, so that ``await sub(s)`` is the natural call."""
    if current_core() is not core or not is_async(func):
        return False
    return core.loops > 0 and _loop_runs()


def run_coroutine(core: Core, body: Coroutine[Any, Any, Any]) -> Any:
    """Run ``body`` to its end; a cancelled run cancels it, an interrupt cancels the run. Raises what it raises."""

    async def main() -> tuple[Any, BaseException | None]:
        task = asyncio.ensure_future(body)
        loop = asyncio.get_running_loop()

        def cancel() -> None:
            try:
                loop.call_soon_threadsafe(task.cancel)
            except RuntimeError:
                pass  # the loop has ended meanwhile: so has the body

        forget = core.on_cancel(cancel)
        try:
            return await task, None
        except BaseException as error:  # handed on by hand: the loop's own frames are nothing to the reader
            return None, CancelRun() if core.cancelled and isinstance(
                error, asyncio.CancelledError
            ) else error
        finally:
            forget()

    core.loops += 1
    try:
        # asyncio.run on the main thread would take interrupts for itself, and a blocking read there would not see them.
        aside = threading.current_thread() is threading.main_thread() or _loop_runs()
        value, error = _beside(core, lambda: asyncio.run(main())) if aside else asyncio.run(main())
        if error is not None:
            raise error
        return value
    finally:
        core.loops -= 1


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _beside(core: Core, call: Callable[[], Any]) -> Any:
    """``call()`` on a thread of its own, in this context. An interrupt stops the run, and with it the call."""
    out: list[Any] = []
    error: list[BaseException] = []
    done = threading.Event()

    def work() -> None:
        try:
            out.append(context.run(call))
        except BaseException as raised:
            error.append(raised)
        finally:
            done.set()

    context = copy_context()
    threading.Thread(target=work, name="sgnb-async", daemon=True).start()
    try:
        done.wait()
    except KeyboardInterrupt:
        core.cancel()
        done.wait(CANCEL_SECONDS)  # its ``finally`` blocks; one that hangs is left behind
        raise
    if error:
        raise error[0]
    return out[0]
