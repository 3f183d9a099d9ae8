"""When Ctrl-C may land: a cell's own bookkeeping is shielded, its program is not.

Notebook process, main thread. Used by ``cell`` around a ``%%sgl`` cell: an interrupt that arrives while the output is
built or a run is being cancelled is kept and raised at the next open stretch, so that no lock is left held and no
message half sent. Outside the main thread (subshells) signals do not arrive and the gate does nothing.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

BURST_SECONDS = 0.5


class StoppedByUser(KeyboardInterrupt):
    """A KeyboardInterrupt that IPython shows as one line, without our frames."""

    def _render_traceback_(self) -> list[str]:
        """One line instead of a stack."""
        return [f"KeyboardInterrupt: {self}"]


StoppedByUser.__name__ = StoppedByUser.__qualname__ = "KeyboardInterrupt"  # what users and tools know it as


class InterruptGate:
    """A context manager; shielded except within ``open()``. ``count`` says how many interrupts came."""

    def __init__(self) -> None:
        self.count = 0
        self._last = 0.0
        self._open = False
        self._pending = False
        self._previous: Any = None
        self._installed = False

    def __enter__(self) -> InterruptGate:
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.getsignal(signal.SIGINT)
            if callable(self._previous) or self._previous == signal.SIG_DFL:
                signal.signal(signal.SIGINT, self._on_signal)
                self._installed = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, self._absorb if self.count else self._previous)
            self._installed = False

    def _absorb(self, number: int, frame: FrameType | None) -> None:
        """After an interrupted cell: a second press of the same burst must not land in the kernel's own reply code,
        where it would be lost together with the reply. ipykernel sets its handler anew after the reply.
        """
        if time.monotonic() - self._last < BURST_SECONDS:
            return
        signal.signal(signal.SIGINT, self._previous)
        if callable(self._previous):
            self._previous(number, frame)

    @contextmanager
    def open(self) -> Iterator[None]:
        """A stretch in which KeyboardInterrupt is raised where it arrives, or at once if one is waiting."""
        self._open = True
        try:
            if self._pending:
                self._pending = False
                raise KeyboardInterrupt
            yield
        finally:
            self._open = False

    @contextmanager
    def closed(self) -> Iterator[None]:
        """A shielded stretch within an open one; an interrupt that came meanwhile is raised at its end."""
        was, self._open = self._open, False
        try:
            yield
        finally:
            self._open = was
        if was and self._pending:
            self._pending, self._open = False, False
            raise KeyboardInterrupt

    def shield(self) -> None:
        """Close the open stretch from an ``except`` clause, whatever was interrupted."""
        self._open = False

    @property
    def pending(self) -> bool:
        """True when an interrupt came while shielded and was not raised yet."""
        return self._pending

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
        self._last = time.monotonic()
        if self._open:
            self._open = False  # the next one must not land in the unwinding of this one
            raise KeyboardInterrupt
        self._pending = True
