"""A Run: the handle of one execution, and the start of a cell's.

Notebook process. Made by ``SglFunction`` and by the magics; ``drive`` is called by whoever waits (host code runs there).
A Run holds its root state; the core inside does not. Widgets read ``run.log`` and nothing else.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

from sgnb.backends.base import Backend, require_backend
from sgnb.errors import Cancelled
from sgnb.lang.passes import PASSES, Pass
from sgnb.lang.position import internal
from sgnb.runtime.core import Core
from sgnb.runtime.dispatcher import Driver, pool
from sgnb.runtime.events import EventLog, HostNote, RunStarted
from sgnb.runtime.state import State
from sgnb.runtime.task import Frame, Result
from sgnb.runtime.variables import fresh, resolved
from sgnb.runtime.waiting import tick
from sgnb.runtime.wrong_names import NamesOfRun

internal(__name__)


class Run(NamesOfRun):
    """One execution of a program or a cell: its log, its root state, its end.

    Who waits for it (``result``, ``await``, ``async for``, a read of its state) and is interrupted or cancelled stops it:
    requests are aborted, the text so far is kept. ``asyncio.shield(...)`` around an awaiting coroutine keeps it running.
    """

    def __init__(self, core: Core, state: State, enter: Callable[[], Frame | Result]) -> None:
        self.core = core
        self.state = state
        self.driver = Driver(core, enter)

    @property
    def log(self) -> EventLog:
        """Everything that happened, replayable."""
        return self.core.log

    @property
    def done(self) -> bool:
        """True when the body has ended and every generation is settled."""
        return self.core.finished

    @property
    def status(self) -> str:
        """``running``, ``finished``, ``stopped`` or ``failed``."""
        return self.core.status

    @property
    def error(self) -> BaseException | None:
        """Why it stopped or failed."""
        return self.core.error

    @property
    def value(self) -> Any:
        """What the body returned (a cell: its last expression). Waits for a lazy value; None before the end."""
        result = self.driver.task.result
        return self.state.ret_value if result is self.state else resolved(result)

    def start(self) -> Run:
        """Let the pool drive it; returns at once."""
        self.driver.start(pool)
        return self

    def drive(self, timeout: float | None = None) -> bool:
        """Run the program on this thread until every state has ended; False if ``timeout`` seconds passed before.

        Raises the run's error, Cancelled if it was stopped. KeyboardInterrupt leaves the run as it is: call ``cancel``.
        """
        if not self.driver.drive(timeout):
            return False
        if not self.core.wait(lambda: self.core.finished, timeout) and not self.core.cancelled:
            return False
        self._raise()
        return True

    def drive_body(self) -> None:
        """Run the program on this thread until its body has ended; raises what the body raised."""
        self.driver.drive()
        if self.core.body_error is not None:
            raise self.core.body_error
        if self.core.cancelled:
            self._raise()

    def _raise(self) -> None:
        self.core.wait(lambda: self.core.finished)
        if self.core.error is not None:
            raise fresh(self.core.error)
        if self.core.cancelled:  # its program still stands in host code: the reader need not wait for that
            raise Cancelled("The run was stopped; its text so far is kept.")

    def result(self, timeout: float | None = None) -> State:
        """Wait for the end and return the root state; raises the run's error, TimeoutError after ``timeout`` seconds."""
        if self.driver.pool is None and not self.driver.drive(timeout):
            raise TimeoutError("the run has not finished yet")
        if not self.core.wait(lambda: self.core.finished, timeout) and not self.core.cancelled:
            raise TimeoutError("the run has not finished yet")
        self._raise()
        return self.state

    def cancel(self) -> None:
        """Stop it: requests are aborted, partial text is kept, the program is told. Returns at once; idempotent."""
        self.core.cancel()
        self.driver.advance()
        if not self.core.finished:
            self.core.end_cancelled()

    def stream(self, name: str | None = None) -> Iterator[str]:
        """The root state's text (or one variable's) as it comes; starts the run if nobody drives it."""
        if self.driver.pool is None and not self.driver.task.done:
            self.start()
        return self.state.text_iter(name)

    def __aiter__(self) -> AsyncIterator[str]:
        if self.driver.pool is None and not self.driver.task.done:
            self.start()
        return self.state.text_async_iter()

    def __await__(self) -> Generator[Any, None, State]:
        return self._wait_async().__await__()

    async def _wait_async(self) -> State:
        loop = asyncio.get_running_loop()
        woken, ended = asyncio.Event(), threading.Event()

        def tell() -> None:
            ended.set()
            try:
                loop.call_soon_threadsafe(woken.set)
            except RuntimeError:
                pass  # the loop has ended: nobody waits there any more

        self.core.on_done(tell)
        if self.driver.pool is None and not self.done:
            self.start()
        try:
            while not ended.is_set():
                woken.clear()
                if not ended.is_set():
                    await tick(woken)
        except (asyncio.CancelledError, KeyboardInterrupt):
            self.cancel()  # as a task is that is awaited; asyncio.shield keeps it
            raise
        self._raise()
        return self.state

    def __repr__(self) -> str:
        return f"<Run {self.core.title or self.core.cell}: {self.status}>"


def note(core: Core, text: str, line: int = 0) -> None:
    """Tell the reader of a run something."""
    core.append_event(HostNote(text, line))


def begin(core: Core, graph: object = None, eager_reason: str = "") -> None:
    """Log the start of a run; before its states open."""
    model = core.backend.model_name
    core.append_event(RunStarted(core.title, core.cell, model, graph, eager_reason, core.backend_seconds))


def run_cell(
    text: str,
    *,
    cell_name: str,
    user_ns: Mapping[str, Any],
    backend: Backend | None = None,
    defaults: Mapping[str, Any] | None = None,
    first_line: int = 1,
    start: State | str | None = None,
    passes: Sequence[Pass] = PASSES,
    priority: int = 0,
    magic: str = "",
    bound: str = "",
) -> Run:
    """Start a ``%%sgl`` cell. ``first_line`` is the number of its first text line in the notebook cell, ``magic`` the line
    above it, for errors that concern that one.

    ``start`` is the state of an earlier cell that this one goes on with, on the same session, or its name (``--from NAME``);
    raises ProgramError when it is none, or cannot go on: it failed, was joined or closed, is still running, or has another
    backend.
    ``passes`` are those its blocks go through (``-O0``: none); ``priority``: higher goes first.
    ``bound``: the name that the caller binds the state to, for the reader of the run; nothing is bound here.

    Mistakes that can be known from the text raise ProgramError here, before anything is queued. Nothing runs until
    ``drive`` (or ``start``, for a background cell) is called.
    """
    from sgnb.runtime.cell import named_start, start_cell  # noqa: PLC0415  the cell's module needs Run

    if isinstance(start, str):
        start = named_start(user_ns, start, first_line - 1, magic)
    return start_cell(
        text,
        cell_name=cell_name,
        user_ns=user_ns,
        backend=start.backend if backend is None and start is not None else require_backend(backend),
        defaults=dict(defaults or {}),
        first_line=first_line,
        start=start,
        passes=passes,
        priority=priority,
        magic=magic,
        bound=bound,
    )


__all__ = ["Cancelled", "Run", "begin", "note", "run_cell"]
