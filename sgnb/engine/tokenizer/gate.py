"""The way to the scheduler: messages one by one, or several in one frame.

Tokenizer process; used by ``manager`` and all it hands it to, on its one thread. What is sent while ``together`` is open
leaves when it closes, in order, so that no step of the scheduler lies between. No decisions here: ``manager`` says what
belongs together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sgnb.messages import SchedulerFrame, SchedulerInput, Together


class Gate:
    """``send`` takes one frame."""

    def __init__(self, send: Callable[[SchedulerFrame], None]) -> None:
        self._send = send
        self._kept: list[SchedulerInput] | None = None

    def __call__(self, message: SchedulerInput) -> None:
        """Send a message, or keep it for the frame that is being put together."""
        if self._kept is None:
            self._send(message)
        else:
            self._kept.append(message)

    @contextmanager
    def together(self) -> Iterator[None]:
        """One frame for all that is sent inside."""
        kept: list[SchedulerInput] = []
        self._kept = kept
        try:
            yield
        finally:
            self._kept = None
            if kept:
                self._send(kept[0] if len(kept) == 1 else Together(messages=kept))
