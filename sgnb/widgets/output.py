"""Where a ``%%sgl`` cell shows its run: a widget in a notebook, one static table, or plain text in a terminal.

Notebook process. ``magics`` picks one with ``open_output`` and calls ``begin``, ``starting``, ``finish``; the calls come
from the cell's thread, or for ``--background`` from the thread that drives the run. Keeps the count of live widgets
bounded. Runs no program; the words are ``widgets.static``'s, the live view is ``widgets.program``'s.
"""

from __future__ import annotations

import contextvars
import itertools
import logging
import os
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, Protocol
from uuid import uuid4

from sgnb.runtime.events import EventLog
from sgnb.widgets.program import MIME_WIDGET, ProgramView, RunSource, output_metadata
from sgnb.widgets.publisher import get_publisher
from sgnb.widgets.static import fold_log, html_of, text_of
from sgnb.widgets.terminal import TerminalOutput

KEPT_VIEWS = 32
"""Finished views that stay live; older ones are left to their static form."""

PLAIN_EVERY = 0.5
"""Seconds between two tables of a running view that a page cannot draw."""

_numbers = itertools.count(1)
logger = logging.getLogger("sgnb")


class CellOutput(Protocol):
    """What a cell shows of its run."""

    def begin(self, log: EventLog, on_stop: Callable[[], None], source: RunSource | None = None) -> None:
        """The run exists: show it. ``source`` answers a live view's questions about it."""

    def starting(self, word: str, detail: str) -> None:
        """The engine starts; may come before ``begin``."""

    def finish(self, status: str | None = None) -> None:
        """The run ended, or is shown as ``status`` because it does not answer. Called once."""


def display_mode(shell: Any) -> str:
    """``terminal`` without a kernel; in one what ``SGNB_DISPLAY`` says (``static`` or ``widget``), else what can be shown.

    A notebook that runs from top to bottom without anybody there (nbconvert --execute, nbclient, papermill) has no page: a
    widget's view would only stand in the way of the HTML, as exporters prefer it and have no scripts to draw it. Such a
    client says that it answers no input; each front end with a page says that it does.
    """
    kernel = getattr(shell, "kernel", None)
    if kernel is None:
        return "terminal"
    asked = os.environ.get("SGNB_DISPLAY", "").lower()
    if asked in ("static", "widget"):
        return asked
    return "widget" if getattr(kernel, "_allow_stdin", True) else "static"


def open_output(shell: Any, *, background: bool) -> CellOutput:
    """The output for the cell that runs now."""
    mode = display_mode(shell)
    if mode == "terminal":
        return TerminalOutput(background=background)
    return StaticOutput(shell) if mode == "static" else WidgetOutput(shell, background=background)


class WidgetOutput:
    """A live widget under a display id, made into one bundle (widget view, HTML, plain text) at the end."""

    def __init__(self, shell: Any, *, background: bool) -> None:
        self.due: float | None = None
        self._shell = shell
        self._background = background
        self._display_id = f"sgnb-{uuid4().hex}"
        self._context = (
            contextvars.copy_context()
        )  # holds the parent message: late output stays with this cell
        self._cell = _cell_key(shell)
        self._view: ProgramView | None = None
        self.number = next(_numbers)
        self._plain = self._ended = False
        self._sending = threading.Lock()  # the last table is that of the run's end
        self._steps: deque[Callable[[], None]] = deque()

    def begin(self, log: EventLog, on_stop: Callable[[], None], source: RunSource | None = None) -> None:
        """Display the widget; the output is created here and changed once, at the end."""
        if self._view is not None:  # it was shown while the engine started
            self._view.on_stop = on_stop
            self._view.follow(log, source)
            return
        self._open(ProgramView(log, on_stop=on_stop, source=source))

    def starting(self, word: str, detail: str) -> None:
        """Show a start step in the header; the first one shows the view, before there is a run."""
        if self._view is None:
            self._open(ProgramView(EventLog()))
        if self._view is not None:
            self._view.show_start(word, detail)

    def _open(self, view: ProgramView) -> None:
        self._view = view
        _forget(self._cell)
        view.open()
        data = view.bundle()
        with _kept_lock:
            _shown[str(data[MIME_WIDGET]["model_id"])] = self
        self._publish(data, update=False)

    def finish(self, status: str | None = None) -> None:
        """Last picture, then the bundle: at once in the foreground, in the publisher's turn in the background."""
        if self._view is None:
            return
        self._view.end(status, now=not self._background)
        with self._sending:
            self._ended, self.due = True, None
        if self._background:
            self._later(self._view.send_snapshot, self._send_bundle, self._kept)
        else:
            get_publisher().send_now(self._send_bundle)
            self._kept()

    def make_plain(self) -> None:
        """A page cannot draw the widget: the output is a table from now on, renewed until the run ends."""
        with self._sending:
            first, self._plain = not self._plain, True
            ended = self._ended
        if first and ended:
            self._later(self._send_static)
        elif first:
            get_publisher().add(self)

    def publish(self) -> bool:
        """Publisher's thread: one of the messages that wait, or the table of a view that cannot be drawn."""
        if not self._steps:
            return self._publish_table()
        try:
            self._steps.popleft()()
        except Exception:  # those behind it still come: a widget that is closed, the table in its place
            logger.debug("a message of a cell's output was not sent", exc_info=True)
        if self._steps or (self._plain and not self._ended):
            get_publisher().wake(self)
        else:
            get_publisher().remove(self)
            if self._steps:  # they came meanwhile
                get_publisher().add(self)
        return True

    def _publish_table(self) -> bool:
        with self._sending:
            now = time.monotonic()
            if not self._plain or self._ended:
                get_publisher().remove(self)
                return False
            if self.due is not None and now < self.due:
                return False
            self.due = now + PLAIN_EVERY
            self._send_static()
            return True

    def retire(self, *, visible: bool, now: bool = False) -> None:
        """Close the widget; ``visible``: its output is still on the page and becomes the static form first.

        In the publisher's turn, or at once with ``now``.
        """
        if self._view is None:
            return
        steps = [self._send_static, self._view.close] if visible else [self._view.close]
        if not now:
            self._later(*steps)
            return
        for step in steps:
            get_publisher().send_now(step)

    def _later(self, *steps: Callable[[], None]) -> None:
        self._steps.extend(steps)
        get_publisher().add(self)

    def _kept(self) -> None:
        _keep(self._cell, self)

    def _send_static(self) -> None:
        self._publish(self._static_bundle(), update=True)

    def _static_bundle(self) -> dict[str, Any]:
        return self._view.bundle(widget=False) if self._view else {}

    def _send_bundle(self) -> None:
        if self._view is not None:
            self._publish(self._view.bundle(widget=not self._plain), update=True)

    def _publish(self, data: dict[str, Any], *, update: bool) -> None:
        publish = self._shell.display_pub.publish
        context = self._context.copy()  # a context can be entered once at a time
        metadata, transient = output_metadata(data), {"display_id": self._display_id}
        context.run(publish, data, metadata=metadata, transient=transient, update=update)


class StaticOutput:
    """One ``display_data`` with HTML and plain text at the end; nothing before it."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._context = contextvars.copy_context()
        self._log: EventLog | None = None

    def begin(self, log: EventLog, on_stop: Callable[[], None], source: RunSource | None = None) -> None:
        """Remember the log."""
        self._log = log

    def starting(self, word: str, detail: str) -> None:
        """Nothing moves in the static form."""

    def finish(self, status: str | None = None) -> None:
        """Display the table."""
        if self._log is None:
            return
        fold = fold_log(self._log, status=status)
        data = {"text/html": html_of(fold), "text/plain": text_of(fold)}
        self._context.run(self._shell.display_pub.publish, data, metadata={})


# ---------------------------------------------------------------- finished views that are still live

_kept: OrderedDict[str, WidgetOutput] = OrderedDict()
_shown: weakref.WeakValueDictionary[str, WidgetOutput] = weakref.WeakValueDictionary()
"""By the widget's id."""
_kept_lock = threading.Lock()


def _cell_key(shell: Any) -> str:
    """The notebook's id of the running cell, so that running it again frees its old widget; else a new key."""
    parent = shell.get_parent() if hasattr(shell, "get_parent") else {}
    cell = (parent.get("metadata") or {}).get("cellId")
    return f"cell {cell}" if cell else f"output {uuid4().hex}"


def _keep(key: str, output: WidgetOutput) -> None:
    """Remember a finished view; beyond ``KEPT_VIEWS`` the oldest becomes static."""
    with _kept_lock:
        previous = _kept.pop(key, None)
        if previous is not None and previous.number > output.number:  # an old run of this cell ended late
            previous, output = output, previous
        _kept[key] = output
        oldest = _kept.popitem(last=False)[1] if len(_kept) > KEPT_VIEWS else None
    if previous is not None and previous is not output:
        previous.retire(visible=False)
    if oldest is not None:
        oldest.retire(visible=True)


def _forget(key: str) -> None:
    """The cell runs again: its old output is gone from the page."""
    with _kept_lock:
        previous = _kept.pop(key, None)
    if previous is not None:
        previous.retire(visible=False, now=True)


def show_plain(model_id: str) -> None:
    """A page could not load the script of this widget; for one that is not known, or is gone, nothing is to be done."""
    with _kept_lock:
        output = _shown.get(model_id)
    if output is not None:
        output.make_plain()


def live_views() -> int:
    """How many finished views are live."""
    return len(_kept)


def retire_all() -> None:
    """The extension is unloaded: every finished view becomes its static form and its comm closes."""
    with _kept_lock:
        outputs = list(_kept.values())
        _kept.clear()
    for output in outputs:
        output.retire(visible=True, now=True)
