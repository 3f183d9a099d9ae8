"""The program view of one run: folds its event log, streams it to the page, ends with one static bundle.

Notebook process. Made by ``widgets.output`` for a ``%%sgl`` cell and by users (``ProgramView(run.log)``). The widget gets
deltas by custom messages, and the whole picture in a trait at most twice a second and at the end, so a reloaded page
or a second view is complete. ``publish`` runs on the publisher's thread; messages of the page arrive on whatever thread
the kernel handles comms on, also while the cell runs. No program is driven here and nothing is printed.

Page → kernel: ``{"k": "stop"}``, ``{"k": "hello"}`` (asks for a snapshot), ``{"k": "ack", "seq": n}``; questions, which
``sgnb.run_source`` answers: ``{"k": "token" | "fork" | "open", "id": i, …}``; where the tokens of a prompt text end:
``{"k": "ends", "id": i, "row": r, "seg": n}``; the run at an earlier moment: ``{"k": "past", "id": i, …}``
(``widgets.past``); and those of the engine's store (``widgets.telemetry``), which name their
page.
Kernel → page: ``{"k": "delta", …}``, ``{"k": "snapshot", …}`` (``widgets.fold_messages``), ``{"k": "stopping"}``,
``{"k": "told", "id": i, "data": …}`` or ``"error"``.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from sgnb.errors import SgnbError
from sgnb.runtime.events import EventLog
from sgnb.widgets import words
from sgnb.widgets.fold import ProgramFold
from sgnb.widgets.fold_messages import FoldMessages
from sgnb.widgets.past import Moment, picture_at
from sgnb.widgets.publisher import get_publisher
from sgnb.widgets.static import html_of, text_of
from sgnb.widgets.telemetry import FeedEngine, feed_of

if TYPE_CHECKING:
    from sgnb.widgets.program_widget import ProgramWidget

SNAPSHOT_EVERY = 0.5
HEARTBEAT = 1.0
"""A running view with no news says so once in this many seconds: the page's clock may go on."""
NUMBERS_EVERY = 0.25
"""Seconds between two messages with the numbers of running rows: the page draws them no oftener (program_data.js)."""
CARRIED_WITHIN = 0.15
"""Seconds for which numbers and pictures that are due wait for text that carries them: a message of their own would hold up
the text behind it."""
PICTURE_CHARS = 200_000
"""Characters a second that whole pictures may have: of a long run they come less often than twice a second."""
PICTURE_SECONDS = 5.0
"""Seconds between two pictures at most."""
ACK_WINDOW = 4
"""Snapshots on their way at most: a page acknowledges four times a second, for all its running cells together."""
ACK_PATIENCE = 2.0
"""Seconds without any acknowledgement after which a page that did acknowledge is served slowly."""
MIME_WIDGET = "application/vnd.jupyter.widget-view+json"

QUESTIONS = frozenset({"token", "fork", "open", "ends", "past"})

_numbers = itertools.count(1)
logger = logging.getLogger("sgnb")


def output_metadata(data: Mapping[str, Any]) -> dict[str, Any]:
    """What marks an output with a widget of ours: the page shows its HTML when the kernel has that widget no more."""
    return {"sgnb": {"static": "text/html"}} if MIME_WIDGET in data else {}


class RunSource(Protocol):
    """A run, as its view asks about it: ``sgnb.run_source``."""

    def engine(self) -> FeedEngine | None:
        """The engine that carries the run."""

    def facts(self) -> dict[str, Any]:
        """What the page's header needs."""

    def answer(self, content: Mapping[str, Any], details: Mapping[str, Any] | None) -> dict[str, Any]:
        """The answer to a question of ``QUESTIONS``; ``details``: the token it names, in numbers. Raises SgnbError."""

    def close(self) -> None:
        """Free the views that were opened."""


def number_in(content: Mapping[str, Any], name: str) -> int:
    """The number that a message gives under a name; -1 when it gives none."""
    number = content.get(name)
    return number if isinstance(number, int) else -1


def place_in(content: Mapping[str, Any]) -> int:
    """The token's place that a message names; -1 when it names none."""
    return number_in(content, "place")


class ProgramView:
    """A live view of ``log``. ``on_stop``: called when the page's Stop is pressed, on a comm thread. ``source``: the run
    and its backend, for questions about tokens, forks and other views."""

    def __init__(
        self, log: EventLog, *, on_stop: Callable[[], None] | None = None, source: RunSource | None = None
    ) -> None:
        self.log = log
        self.due: float | None = None
        self.key = f"{os.getpid()}.{next(_numbers)}"
        self.on_stop = on_stop
        self.source = source
        self._fold = ProgramFold()
        self._messages = FoldMessages(self._fold)
        self._lock = threading.RLock()
        self._widget: ProgramWidget | None = None
        self._unlisten: Callable[[], None] | None = None
        self._extra: dict[str, Any] = {}
        self._next_snapshot = 0.0
        self._next_numbers = 0.0
        self._wants_snapshot = False
        self._made = time.monotonic()
        self._sent_at = self._made
        self._trait_version = -1
        self._unacked: list[int] = []
        self._acks = False
        self._last_ack = 0.0
        self._closed = False

    def __repr__(self) -> str:
        """Stable: the cell and the state, no address."""
        started = self._fold.started
        return f"<sgnb run [{started.cell if started else ''}], {self._fold.word().lower()}>"

    # ------------------------------------------------------------ life

    def open(self) -> None:
        """Make the widget and begin to stream."""
        if self._widget is not None or self._closed:
            return
        from sgnb.widgets.program_widget import ProgramWidget  # noqa: PLC0415  ipywidgets loads at first display

        with self._lock:
            self._fold.feed(self.log.since(self._fold.next_seq))
            self._widget = ProgramWidget(self.key, self._picture())
            self._widget.on_msg(self._on_message)
            self._next_snapshot = time.monotonic() + SNAPSHOT_EVERY
            self._trait_version = self._fold.version
        self._unlisten = self.log.listen(self._wake)
        get_publisher().add(self)

    def follow(self, log: EventLog, source: RunSource | None = None) -> None:
        """Show this log from now on: the run that an early view was waiting for."""
        with self._lock:
            self.source = source
            if self._unlisten:
                self._unlisten()
            shown = self._fold.version
            self.log, self._fold = log, ProgramFold()
            self._messages = FoldMessages(self._fold)
            self._fold.version = shown + 1  # the page takes nothing older than what it shows
            self._wants_snapshot = True
            self._extra = {}
            self._unlisten = log.listen(self._wake)
        self._wake()

    def show_start(self, word: str, detail: str) -> None:
        """Show what the engine does before there is a run."""
        with self._lock:
            self._extra = {"word": word, "facts": [detail]}
            self._fold.bump()
        self._wake()

    def end(self, status: str | None = None, *, now: bool = True) -> None:
        """Send the last picture and stop streaming. ``now``: on this thread, else in the publisher's turn."""
        with self._lock:
            self._extra = {}
            self._fold.feed(self.log.since(self._fold.next_seq))
            if status:
                self._fold.end_as(status)
        if self._unlisten:
            self._unlisten()
            self._unlisten = None
        get_publisher().remove(self)
        self.due = None
        if now and self._widget is not None and self._trait_version != self._fold.version:
            get_publisher().send_now(self.send_snapshot)

    def close(self) -> None:
        """Free the widget on both sides; the page falls back to the static form it was given."""
        self._closed = True
        get_publisher().remove(self)
        if self._unlisten:
            self._unlisten()
        if self.source is not None:
            self.source.close()
        if self._widget is not None:
            self._widget.close()

    # ------------------------------------------------------------ display

    def bundle(self, *, widget: bool = True) -> dict[str, Any]:
        """The output of the cell: widget view, HTML and plain text of the same moment."""
        with self._lock:
            self._fold.feed(self.log.since(self._fold.next_seq))
            data: dict[str, Any] = {"text/plain": text_of(self._fold), "text/html": html_of(self._fold)}
        if widget and self._widget is not None and not self._closed:
            data[MIME_WIDGET] = {"version_major": 2, "version_minor": 0, "model_id": self._widget.model_id}
        return data

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        self.open()
        data = self.bundle()
        return data, output_metadata(data)

    # ------------------------------------------------------------ streaming

    def _wake(self) -> None:
        get_publisher().wake(self)

    def publish(self) -> bool:
        """Publisher's thread: the changes since the last message, or the whole picture when its time has come."""
        now = time.monotonic()
        if self._held_back(now):
            return False
        with self._lock:
            self._fold.feed(self.log.since(self._fold.next_seq))
            ended, news = self._fold.finished is not None, self._messages.news()
            stale = self._trait_version != self._fold.version
            whole = self._wants_snapshot or (stale and (ended or now >= self._next_snapshot))
            numbers = now >= self._next_numbers
            beat = not ended and (
                now - self._sent_at >= HEARTBEAT or (numbers and self._messages.owes_numbers)
            )
            if whole:
                self.send_snapshot()
            elif (news or beat) and self._widget is not None:
                self._widget.send(self._with_facts(self._messages.delta(numbers=numbers)))
            if whole or news or beat:
                self._sent_at = now
                self._next_numbers = now + NUMBERS_EVERY if whole or numbers else self._next_numbers
            self.due = None if ended else self._next_due(now)
        return whole or news or beat

    def _next_due(self, now: float) -> float:
        """When something is to be sent though nothing new comes: numbers that are owed, the snapshot, a sign of life."""
        due = now + HEARTBEAT
        if self._trait_version != self._fold.version:
            due = min(due, self._next_snapshot + CARRIED_WITHIN)
        if self._messages.owes_numbers:
            due = min(due, self._next_numbers + CARRIED_WITHIN)
        return max(now + 0.001, due)

    def _held_back(self, now: float) -> bool:
        """True while a page that acknowledges has not done so for ``ACK_WINDOW`` snapshots: the newest comes later."""
        with self._lock:
            if not self._acks or len(self._unacked) < ACK_WINDOW:
                return False
            if now - self._last_ack > ACK_PATIENCE:  # hidden, asleep or gone: one snapshot each two seconds
                del self._unacked[: 1 - ACK_WINDOW]  # the one that follows makes it full again
                self._last_ack = now
                self._wants_snapshot = True
                return False
            self.due = now + 0.1
            return True

    def send_snapshot(self) -> None:
        """Put the whole picture into the widget's trait: one message."""
        with self._lock:
            self._wants_snapshot = False
            if self._widget is None:
                return
            picture = self._picture()
            size = sum(len(segment["text"]) for row in picture["rows"] for segment in row["segs"])
            pause = min(PICTURE_SECONDS, max(SNAPSHOT_EVERY, size / PICTURE_CHARS))
            self._next_snapshot = time.monotonic() + pause
            self._trait_version = self._fold.version
            self._unacked.append(picture["seq"])
            del self._unacked[:-8]
            self._widget.snapshot = picture

    def _picture(self) -> dict[str, Any]:
        return self._with_facts(self._messages.snapshot())

    def _with_facts(self, message: dict[str, Any]) -> dict[str, Any]:
        """A delta or snapshot, whose head also says what the fold does not know."""
        head = message["head"]
        if self.source is not None:
            head |= self.source.facts()
        if self._extra:
            head |= self._extra | {"seconds": round(time.monotonic() - self._made, 3)}
        return message

    def _answer(self, content: dict[str, Any]) -> None:
        """A question is answered on a thread of its own: it may wait for the engine, and a comm must not."""

        def work() -> None:
            reply: dict[str, Any] = {"k": "told", "id": content.get("id")}
            try:
                reply["data"] = self._answer_to(content)
            except SgnbError as error:
                reply["error"] = error.message
            except Exception as error:  # who asked is told, and the notebook's cell is not
                logger.debug("a question of a page", exc_info=True)
                reply["error"] = words.visible(f"{content['k']} failed: {error}")
            widget = self._widget
            if widget is not None and not self._closed:
                get_publisher().send_in_turn(lambda: widget.send(reply))

        threading.Thread(target=work, name="sgnb question", daemon=True).start()

    def _answer_to(self, content: dict[str, Any]) -> dict[str, Any]:
        if content["k"] == "past":
            past = picture_at(self.log, Moment.of(content))
            facts = self.source.facts() if self.source is not None else {}
            return past | {"head": past["head"] | facts}
        if content["k"] == "ends":
            with self._lock:
                row, number = number_in(content, "row"), number_in(content, "seg")
                return {"ends": self._messages.text_ends(row, number)}
        if self.source is None:
            raise SgnbError("This view has no run to ask.")
        with self._lock:
            details = self._details(content)
        return self.source.answer(content, details)

    def _details(self, content: Mapping[str, Any]) -> dict[str, Any] | None:
        """The token that a question names: by its prompt text, or by its generation."""
        if "row" in content:
            return self._messages.prompt_token(
                number_in(content, "row"), number_in(content, "seg"), place_in(content)
            )
        return self._messages.token(str(content.get("rid", "")), place_in(content))

    def _on_message(self, _widget: object, content: Any, _buffers: object) -> None:
        kind = content.get("k") if isinstance(content, dict) else None
        if kind in QUESTIONS:
            self._answer(content)
        elif kind is not None and "page" in content:
            engine = None if self.source is None else self.source.engine()
            if engine is not None and self._widget is not None:
                feed_of(engine).take(content, self._widget.send)
        elif kind == "stop":
            widget = self._widget
            if widget is not None:
                get_publisher().send_now(lambda: widget.send({"k": "stopping"}))
            if self.on_stop is not None and not self.log.closed:
                self.on_stop()
        elif kind == "hello":
            self._wants_snapshot = True
            self._acks = False  # a new page: it has to show that it answers while a cell runs
            self._wake()
        elif kind == "ack" and isinstance(content.get("seq"), int):
            with self._lock:
                self._acks = not self.log.closed
                self._last_ack = time.monotonic()
                self._unacked = [seq for seq in self._unacked if seq > content["seq"]]
