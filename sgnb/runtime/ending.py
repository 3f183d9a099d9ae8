"""How a run ends: its body returns or raises, it is cancelled, its last generation settles.

Notebook process; the layer of ``runtime.core.Core`` that knows the run's status and tells who asked to be told. Called by
drivers, by readers that are interrupted, and by the backend's thread after each event.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from sgnb.backends.base import Backend
from sgnb.errors import Cancelled
from sgnb.lang.position import internal
from sgnb.runtime.events import Event, RunFinished
from sgnb.runtime.failing import STOPPED, Failing
from sgnb.runtime.times import split_times
from sgnb.runtime.variables import Failure

if TYPE_CHECKING:
    from sgnb.runtime.state import State

internal(__name__)


class Ending(Failing):
    """The end of a run, and its status."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.started_at = time.monotonic()
        self.over = False
        """Nothing is taken any more; the end is being logged."""
        self.finished = False
        """And has been: who waits for the run waits for this."""
        self.status = "running"
        self.error: BaseException | None = None
        self.body_error: BaseException | None = None
        self.bound: tuple[str, weakref.ref[State]] | None = None
        """The name that the notebook gives the state of the program, and that state."""
        self._appends = 0
        """Appends from outside the body that are being recorded: the end waits for them."""
        self._due = False
        """The end was due during one."""
        self._done_callbacks: list[Callable[[], None]] = []
        self._cancel_callbacks: list[Callable[[], object]] = []

    def end_body(self, error: BaseException | None) -> None:
        """The program's body returned or raised. What it left under way goes on unless it raised."""
        if error is not None:
            self.stop_generations()
        self.flush()
        with self.lock:
            if error is not None and self.body_error is None:
                self.body_error = self.error = error
                root = self.states.get(0)
                if root is not None and (root.failure is None or not self.cancelled):
                    root.failure = Failure(error)
                    root.failure.seen = True
            self.body_done = True
            self.notify()
        self.finish_if_over()

    def finish_if_over(self) -> None:
        """Log the end once the body has ended and nothing is under way.

        The log has the end before anybody who waits for it goes on: of a long run it takes a while to write.
        """
        with self.lock:
            over = self.body_done and not self.slots and not self.over
            if over and self._appends:
                over, self._due = False, True
            if over:
                self.over = True
                self.status = self._final_status()
        if not over:
            return
        ended = time.monotonic()
        times = split_times(self.log.since(0), self.started_at, ended)
        state = None if self.bound is None else self.bound[1]()
        bound, names = (
            ("", ()) if self.bound is None or state is None else (self.bound[0], tuple(state.names()))
        )
        self.append_event(RunFinished(self.status, ended - self.started_at, self.error, times, bound, names))
        with self.lock:
            self.finished = True
            self.notify()
            callbacks, self._done_callbacks = self._done_callbacks, []
        self._wake()
        self.on_wake = self.help_until = (
            None  # the driver knows the root state: a state must not keep itself alive
        )
        for callback in callbacks:
            callback()

    def enter_append(self) -> bool:
        """Code outside the body appends: the run does not end before ``leave_append``. False: it has ended already."""
        with self.lock:
            if self.over:
                return False
            self._appends += 1
            return True

    def leave_append(self) -> None:
        """See ``enter_append``. An end that was due meanwhile comes now, unless there is something to wait for."""
        with self.lock:
            self._appends -= 1
            due = self._due and not self._appends
            if due:
                self._due = False
        if due:
            self.finish_if_over()

    def cancel(self) -> None:
        """Mark the run as stopped and abort what is under way. The driver then throws into the program."""
        with self.lock:
            if self.over or self.cancelled:
                return
            self.cancelled = True
            for state in list(self.states.values()):
                if state.failure is None:
                    state.failure = Failure(Cancelled(STOPPED, hint="Start the program again."))
            self.notify()
            callbacks = list(self._cancel_callbacks)
        for callback in callbacks:
            callback()
        self.stop_generations()

    def stop(self) -> None:
        """``cancel`` by somebody who only waits: a body under way ends on its own driver."""
        self.cancel()
        self.finish_if_over()

    def end_cancelled(self) -> None:
        """End a cancelled run although its program still stands in host code; what it does later is refused."""
        with self.lock:
            self.body_done = True
        self.stop_generations()
        self.finish_if_over()

    def _final_status(self) -> str:
        if self.cancelled or isinstance(self.body_error, KeyboardInterrupt):
            self.error = self.error or Cancelled("The run was stopped; its text so far is kept.")
            return "stopped"
        if self.body_error is not None:
            return "failed"
        unread = [failure.error for failure in self.failures if not failure.seen]
        self.error = unread[0] if unread else None  # what the program read and survived is its own affair
        return "failed" if unread else "finished"

    def on_done(self, callback: Callable[[], None]) -> None:
        """Call ``callback()`` when the run has finished (at once if it has), on whichever thread ends it."""
        with self.lock:
            if not self.finished:
                self._done_callbacks.append(callback)
                return
        callback()

    def on_cancel(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call ``callback()`` when the run is cancelled (at once if it was); returns the function that ends it."""
        with self.lock:
            self._cancel_callbacks.append(callback)
            late = self.cancelled
        if late:
            callback()

        def forget() -> None:
            with self.lock:
                self._cancel_callbacks.remove(callback)

        return forget

    def append_event(self, event: Event) -> None:
        """Log an event."""
        self.log.append(event)
