"""One ``%%sgl`` cell from its parsed options to its last output: start, drive, stop, show, raise.

Notebook process; called by ``magics`` on the cell's thread. Errors leave as one message without our frames; an
interrupt aborts the run's requests, keeps the text and the engine, and comes back within a second. No option parsing
and no widget code here.
"""

from __future__ import annotations

import contextvars
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from IPython.core.error import UsageError

from sgnb import controls as control
from sgnb.backends.base import Backend
from sgnb.backends.engine import Engine
from sgnb.errors import Cancelled, SgnbError, a_type_of
from sgnb.grammars_ahead import compile_ahead
from sgnb.interrupts import InterruptGate, StoppedByUser
from sgnb.lang.passes import PASSES
from sgnb.run_source import RunSource
from sgnb.runtime.core import Core
from sgnb.runtime.events import HostNote, RunFinished
from sgnb.runtime.run import Run, run_cell
from sgnb.runtime.state import State
from sgnb.tap import LazyBackend, Tap
from sgnb.widgets import words
from sgnb.widgets.output import CellOutput, open_output

ABORT_WAIT = 0.2
"""Seconds a stopped cell waits for the engine to confirm."""
MAX_BACKGROUND = 64
"""Runs in the background at once; more wait for a place."""

_RECENT = 64
_recent: OrderedDict[str, weakref.ref[Core]] = OrderedDict()
"""The last run of a cell's text, while something else keeps it."""

_places = threading.BoundedSemaphore(MAX_BACKGROUND)


def core_of(text: str) -> Core | None:
    """The last run of a cell with this text below its magic line, if it is still there."""
    found = _recent.get(text.strip())
    return found() if found is not None else None


def named_state(namespace: Mapping[str, Any], name: str, wanted: str) -> State:
    """The state of that name in the notebook; UsageError with ``wanted`` and what it is instead."""
    found = namespace.get(name)
    if not isinstance(found, State):
        what = "is not defined" if name not in namespace else f"is {a_type_of(found)}"
        raise UsageError(f"{wanted}; {name!r} {what}")
    return found


@dataclass(frozen=True, slots=True)
class CellOptions:
    """The magic line of a cell, parsed."""

    out: str | None = None
    background: bool = False
    debug: bool = False
    engine: str | None = None
    start: str | None = None
    """Name of the state that the cell goes on with."""
    unoptimised: bool = False
    priority: int = 0
    """Higher goes first."""
    defaults: dict[str, Any] = field(default_factory=dict)


class CellRun:
    """A cell's run and its output. ``engine()`` gives the backend and what to tell the reader about it, when it is
    first needed; ``model`` is the name to show until then.
    """

    def __init__(
        self,
        shell: Any,
        options: CellOptions,
        gate: InterruptGate,
        engine: Callable[[], tuple[Backend, str]],
        model: str,
    ) -> None:
        self._shell = shell
        self._options = options
        self._gate = gate
        self._engine = engine
        self._note = ""
        self._output: CellOutput = open_output(shell, background=options.background)
        kind = Tap if options.debug else LazyBackend
        self.backend = kind(self._weakly_ready_engine(), model)
        self.run: Run | None = None

    def start(self, text: str, first_line: int, magic: str) -> Run:
        """Compile, get the engine, begin to show. A mistake in the text, which begins at ``first_line`` below its ``magic``
        line, is raised before anything is started or shown."""
        __tracebackhide__ = True
        began = False
        try:
            start = self._options.start
            with self._gate.open():
                run = self.run = run_cell(
                    text,
                    cell_name=cell_number(self._shell),
                    user_ns=self._shell.user_ns,
                    backend=self.backend if start is None else None,
                    defaults=self._options.defaults,
                    priority=self._options.priority,
                    first_line=first_line,
                    start=start,
                    passes=() if self._options.unoptimised else PASSES,
                    magic=magic,
                    bound=self._options.out or "",
                )
            began = True
            _recent[text.strip()] = weakref.ref(run.core)
            if len(_recent) > _RECENT:
                _recent.popitem(last=False)
        except KeyboardInterrupt:
            raise StoppedByUser("stopped before the program began; an engine that starts goes on") from None
        finally:
            if not began:
                self._output.finish("stopped" if self._gate.count else "failed")
        if self._note:
            run.log.append(HostNote(self._note))
        if self._options.defaults.get("return_logprob"):  # its tokens can be inspected, and forked from
            run.core.kept_states = []
        source = RunSource(run.core, self._shell.user_ns)
        self._output.begin(run.log, run.cancel, source)
        compile_ahead(run.log, self._shell.user_ns, source.engine)
        return run

    def drive(self) -> None:
        """Run to the end on this thread; returns, or raises what the cell shows."""
        __tracebackhide__ = True
        assert self.run is not None
        failure: BaseException | None = None
        try:
            with self._gate.open():
                self.run.drive()
        except KeyboardInterrupt:
            self._gate.shield()
            self._stop()
        except BaseException as error:
            self._gate.shield()
            failure = error
        self._finish(failure)

    def drive_in_background(self) -> None:
        """Run to the end on a thread of its own; prints of host code stay with this cell."""
        assert self.run is not None
        context = contextvars.copy_context()  # holds the message that this cell answers
        thread = threading.Thread(
            target=context.run, args=(self._background,), name="sgnb background", daemon=True
        )
        thread.start()
        self._bind()

    # ------------------------------------------------------------ inside

    def _weakly_ready_engine(self) -> Callable[[], Backend]:
        """``_ready_engine`` for the backend, which the run's states keep: they must not keep their own run by it. A state
        that outlives its cell gets the engine without the cell's output."""
        ready, engine = weakref.WeakMethod(self._ready_engine), self._engine

        def get() -> Backend:
            method = ready()
            return engine()[0] if method is None else method()

        return get

    def _ready_engine(self) -> Backend:
        """Called when the program first needs its backend: start it if there is none, show how it loads."""
        with self._gate.closed():
            backend, self._note = self._engine()
        if isinstance(backend, Engine) and backend.state == "starting":
            control.await_ready(backend, self._report)
        return backend

    def _report(self, detail: str) -> None:
        with self._gate.closed():
            self._output.starting("Starting engine", detail)

    def _stop(self) -> None:
        """Cancel, and wait a moment for the end unless the user is impatient."""
        assert self.run is not None
        before = self._gate.count
        self.run.cancel()
        deadline = time.monotonic() + ABORT_WAIT
        while not self.run.log.closed and self._gate.count == before and time.monotonic() < deadline:
            self.run.log.wait(len(self.run.log), 0.02)

    def _finish(self, failure: BaseException | None) -> None:
        __tracebackhide__ = True
        assert self.run is not None
        interrupted = self._gate.count > 0
        if failure is not None and not self.run.log.closed:
            self.run.cancel()
            self.run.log.wait(len(self.run.log), ABORT_WAIT)
        ended = last_event(self.run)
        stopped = (
            interrupted or isinstance(failure, Cancelled) or (ended is not None and ended.status == "stopped")
        )
        self._output.finish(None if ended is not None else "stopped" if stopped else "failed")
        self._bind()
        if stopped:
            raise StoppedByUser(f"stopped, {words.count(tokens_of(self.run))} tok kept") from None
        if failure is not None:
            raise shown(failure, self._shell) from None

    def _bind(self) -> None:
        """``-o NAME``: the only name a cell writes into the notebook."""
        if self._options.out and self.run is not None:
            self._shell.user_ns[self._options.out] = self.run.state

    def _background(self) -> None:
        """The background thread: an error is shown in the view, it has no cell to be raised in."""
        assert self.run is not None
        with _places:
            try:
                self.run.drive()
            except BaseException:  # the log holds it, the view shows it
                self.run.cancel()
            self.run.log.wait(len(self.run.log), ABORT_WAIT)
            self._output.finish(None if self.run.log.closed else "failed")


def cell_number(shell: Any) -> str:
    """The number in the prompt of the running cell (``shell.execution_count`` is one ahead in newer IPythons)."""
    history = getattr(shell, "history_manager", None)
    number = len(history.input_hist_parsed) - 1 if history is not None else 0
    return str(number if number > 0 else shell.execution_count)


def last_event(run: Run) -> RunFinished | None:
    """The run's last event once it has ended."""
    if not len(run.log):
        return None
    event = run.log.since(len(run.log) - 1)[-1].event
    return event if isinstance(event, RunFinished) else None


def tokens_of(run: Run) -> int:
    """Tokens generated so far."""
    from sgnb.widgets.static import fold_log  # noqa: PLC0415  only a stopped cell needs it

    return fold_log(run.log).tokens


def shown(error: BaseException, shell: Any) -> BaseException:
    """The error as the cell shows it: ours are one message already; others lose the frames that are ours."""
    if isinstance(error, SgnbError) or shell is None or not hasattr(shell, "InteractiveTB"):
        return error
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] == "sgnb":
        trace = trace.tb_next
    try:
        lines = shell.InteractiveTB.structured_traceback(type(error), error, trace, tb_offset=0)
        error._render_traceback_ = lambda: lines  # type: ignore[attr-defined]
    except Exception:  # an exception that takes no attributes keeps its whole stack
        pass
    return error
