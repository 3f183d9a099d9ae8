"""A cell's run as plain text in a terminal, which cannot go back: row after row, each once nothing above it will change.

Notebook process. One of ``widgets.output``'s ways to show a cell; called from the cell's thread, or for ``--background``
from the one that drives the run, and written from a thread of its own. What the cell's own code prints stands on its own
lines between the rows. The words are ``widgets.static``'s. No comm, no IPython.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, TextIO

from sgnb.runtime.events import EventLog
from sgnb.widgets.fold import ProgramFold
from sgnb.widgets.program import RunSource
from sgnb.widgets.static import fold_log, text_of, text_so_far

PRINT_EVERY = 0.03
"""Seconds between two writes of a terminal."""


class TerminalOutput:
    """Plain text as it comes, in the order of the source; a run in the background is printed whole at its end."""

    def __init__(self, *, background: bool) -> None:
        self._background = background
        self._log: EventLog | None = None
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._word = ""
        self._fold = ProgramFold()
        self._printed = ""
        self._between = False
        """What was written last is the cell's own, on a line that is its own."""
        self._printing = threading.RLock()
        self._shared: _Shared | None = None

    def begin(self, log: EventLog, on_stop: Callable[[], None], source: RunSource | None = None) -> None:
        """Start to print."""
        self._log = log
        if not self._background:
            self._shared = sys.stdout = _Shared(sys.stdout, self)
            self._thread = threading.Thread(target=self._follow, args=(log,), name="sgnb text", daemon=True)
            self._thread.start()

    def starting(self, word: str, detail: str) -> None:
        """One line when the engine begins to start, not one a step."""
        if word != self._word:
            print(f"{word} …", flush=True)
        self._word = word

    def finish(self, status: str | None = None) -> None:
        """Print what is missing and the last line."""
        if self._log is None:
            return
        self._ended.set()
        if self._thread is not None:
            self._thread.join(0.5)
        if self._shared is not None:
            self._shared.leave()
        whole = text_of(fold_log(self._log, status=status))
        with self._printing:
            if not whole.startswith(
                self._printed
            ):  # something came before what was printed: all of it once more
                self._printed = ""
                print()
            self._write(whole, sys.stdout)
            print(flush=True)

    def make_room(self, stream: TextIO) -> None:
        """The cell's own code prints: what the run has said by now stands before it, and its line is ended."""
        if self._log is None or self._ended.is_set():
            return
        with self._printing:
            self._catch_up(self._log, stream)
            if self._printed and not self._between:
                stream.write("\n")
            self._between = True

    def _follow(self, log: EventLog) -> None:
        while not self._ended.is_set():
            if log.since(self._fold.next_seq):
                with self._printing:
                    if self._shared is not None and not self._ended.is_set():
                        self._catch_up(log, self._shared.stream)
                self._ended.wait(PRINT_EVERY)
            elif log.closed:
                return
            else:
                log.wait(self._fold.next_seq, 0.1)

    def _catch_up(self, log: EventLog, stream: TextIO) -> None:
        self._fold.feed(log.since(self._fold.next_seq))
        text = text_so_far(self._fold)
        if text.startswith(self._printed):
            self._write(text, stream)

    def _write(self, text: str, stream: TextIO) -> None:
        """Write what ``text`` has beyond what was printed."""
        fresh = text[len(self._printed) :]
        if not fresh:
            return
        if self._between:  # behind lines of the cell's own a row goes on, or the next begins
            if self._shared is not None and not self._shared.at_line_start:
                stream.write("\n")
            fresh = fresh.removeprefix("\n")
            self._between = False
        stream.write(fresh)
        stream.flush()
        self._printed = text


class _Shared:
    """Standard output while a run is printed: whoever else writes gets lines of their own."""

    def __init__(self, stream: TextIO, output: TerminalOutput) -> None:
        self.stream = stream
        self.at_line_start = True
        self._output = output

    def write(self, text: str) -> int:
        """Write it where the run's own text has made room."""
        with self._output._printing:
            if text:
                self._output.make_room(self.stream)
                self.at_line_start = text.endswith("\n")
            return self.stream.write(text)

    def writelines(self, lines: Any) -> None:
        """Write each."""
        for line in lines:
            self.write(line)

    def leave(self) -> None:
        """Give the stream back; who kept this one still writes to it."""
        if sys.stdout is self:
            sys.stdout = self.stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)
