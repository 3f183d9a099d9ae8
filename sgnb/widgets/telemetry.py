"""The way of an engine's events to the pages that show them: raw frames, paced, acknowledged, none when none is shown.

Notebook process. One ``EngineFeed`` an engine, made by ``feed_of``; each page that shows something of it is a
``subscriber.Subscriber``, which says how many messages may be on their way and what becomes of the others. Frames pass as
the bytes they came in: nothing is decoded again or folded here. The feed listens to the engine only while a subscriber is
there. No views, no words.

Page → kernel (over a widget's or the panel's comm; ``page`` names the page load)::

    {"k": "sub", "page": p, "from": n}     begin; n: number of the last event it knows, 0: nothing
    {"k": "unsub", "page": p}              nothing is shown any more
    {"k": "ack", "page": p, "n": m}        all messages up to number m were taken
    {"k": "ask", "id": i, "verb": v, "args": {…}}     a question to the engine, see ASKS and ``file_verbs``

Kernel → page; frames and snapshots are MessagePack in binary buffers::

    {"k": "snapshot", "page": p, "n": m}   buffer: the engine's answer to ``picture``, with ``past``: what is kept of
                                           events before it, as ``{seq, event}``, for the lists of steps and requests
    {"k": "frames", "page": p, "n": m}     buffers: TelemetryFrames as the engine sent them, or made of its history
    {"k": "engine", "state": s, "at": t}   the engine's state changed
    {"k": "answer", "id": i, "data": …}    or ``"error": "…"``; of ``past`` and ``events`` with a buffer

``past`` (``time``) is answered with a snapshot of a moment before ``time``, as far back as the engine has one; ``events``
(``from_seq``, ``limit``) with a frame made of the engine's history, and ``last_seq``. So a page that looked late gets the
minutes before.

Of a recording (``replay``), the snapshot carries ``"replay": {span, file, end}``, a further one goes on after a gap, and at
its end comes ``{"k": "replay", "replay": {…, "end": true, "trouble": "…"}}``.
"""

from __future__ import annotations

import logging
import queue
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from sgnb.errors import SgnbError
from sgnb.messages import TelemetryFrame
from sgnb.widgets import file_verbs, words
from sgnb.widgets.file_verbs import FILE_VERBS
from sgnb.widgets.publisher import get_publisher
from sgnb.widgets.subscriber import Send, Subscriber

HISTORY_EVENTS = 4000
HISTORY_MESSAGES = 16
"""A gap of more events than these two allow is answered with a snapshot."""
PAST_EVENTS = 8000
ASKS = frozenset(
    {
        "nodes",
        "holders",
        "prompt",
        "slot",
        "running",
        "memory",
        "stats",
        "requests",
        "pause",
        "step",
        "resume",
        "flush_cache",
        "set",
    }
)
ASK_SECONDS = 5.0

logger = logging.getLogger("sgnb")


class FeedEngine(Protocol):
    """What a feed needs of an engine (``backends.engine.Engine``)."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def state(self) -> str:
        """``idle``, ``running``, ``died``, …"""

    @property
    def since(self) -> float:
        """Epoch seconds of its start, of its readiness, or of its end."""

    def subscribe_frames(self, callback: Callable[[TelemetryFrame, bytes], None]) -> Callable[[], None]:
        """Call with every frame; returns its end."""

    def on_state(self, callback: Callable[[str], None]) -> Callable[[], None]:
        """Call at each change of state; returns its end."""

    def release(self, sids: Sequence[str]) -> None:
        """Close sessions of this kernel."""

    def ask(self, verb: str, args: dict[str, Any] | None = None, timeout: float = 10.0) -> dict[str, Any]:
        """One control of the engine."""

    @property
    def recorder(self) -> Any:
        """The newest recording of it, or None."""

    def record(self, path: str | Path, *, text: bool = True) -> Any:
        """Begin a recording."""


class EngineFeed:
    """All pages that show one engine. Thread-safe; talks to the engine on a thread of its own, never on a comm's."""

    def __init__(self, engine: FeedEngine) -> None:
        self.engine = engine
        self._lock = threading.Lock()
        self._subscribers: dict[str, Subscriber] = {}
        self._number = 0
        """Of the last message to a page that is gone. Numbers go on: one still on its way is none of the next page's."""
        self._ends: list[Callable[[], None]] = []
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._worker: threading.Thread | None = None

    @property
    def listening(self) -> bool:
        """True while the engine's telemetry is subscribed."""
        return bool(self._ends)

    def take(self, message: Mapping[str, Any], send: Send) -> None:
        """One message of a page; answers go by ``send``. Returns at once."""
        kind, page = message.get("k"), str(message.get("page", ""))[:64]
        if kind == "sub" and page:
            known = message.get("from", 0)
            self._subscribe(page, known if isinstance(known, int) and known > 0 else 0, send)
        elif kind == "unsub":
            self.drop(page)
        elif kind == "ack" and isinstance(message.get("n"), int):
            if (subscriber := self._subscribers.get(page)) is not None:
                subscriber.acknowledge(message["n"])
        elif kind == "ask":
            self._later(lambda: self._answer(message, send))

    def drop(self, page: str) -> None:
        """This page shows nothing any more; the last one ends the subscription."""
        with self._lock:
            subscriber = self._subscribers.pop(page, None)
            self._number = max(self._number, subscriber.number if subscriber is not None else 0)
            ends, self._ends = ([], self._ends) if self._subscribers else (self._ends, [])
            if not self._subscribers and self._worker is not None:
                self._work.put(None)
                self._worker = None
        if subscriber is not None:
            get_publisher().remove(subscriber)
        for end in ends:
            end()

    def _subscribe(self, page: str, known: int, send: Send) -> None:
        with self._lock:
            old = self._subscribers.get(page)
            self._number = max(self._number, old.number if old is not None else 0)
            subscriber = self._subscribers[page] = Subscriber(self.drop, page, send, self._number)
            if not self._ends:
                self._ends = [self.engine.subscribe_frames(self._frame), self.engine.on_state(self._state)]
        if old is not None:
            get_publisher().remove(old)
        get_publisher().add(subscriber)
        subscriber.put(self._engine_words(self.engine.state), [])
        self._later(lambda: self._catch_up(subscriber, known))

    def knows(self, subscriber: Subscriber) -> bool:
        """This subscription has not been ended or renewed."""
        return subscriber in self._subscribers.values()

    # ------------------------------------------------------------ the engine's I/O thread

    def _frame(self, frame: TelemetryFrame, raw: bytes) -> None:
        for subscriber in list(self._subscribers.values()):
            subscriber.frame(raw, bool(frame.events))

    def _state(self, state: str) -> None:
        for subscriber in list(self._subscribers.values()):
            subscriber.put(self._engine_words(state), [])

    def _engine_words(self, state: str) -> dict[str, Any]:
        return {"k": "engine", "state": state, "at": self.engine.since}

    # ------------------------------------------------------------ the worker's thread

    def _later(self, work: Callable[[], None]) -> None:
        with self._lock:
            if self._worker is None:
                self._work = queue.SimpleQueue()
                self._worker = threading.Thread(
                    target=self._run, args=(self._work,), name="sgnb feed", daemon=True
                )
                self._worker.start()
            self._work.put(work)

    def _run(self, work: queue.SimpleQueue[Callable[[], None] | None]) -> None:
        while (job := work.get()) is not None:
            try:
                job()
            except SgnbError as error:  # the engine ended meanwhile: its state says so
                logger.debug("a view's question failed: %s", error.message)
            except Exception:
                logger.debug("a view could not be served", exc_info=True)
            if not self._subscribers and work.empty():
                with self._lock:
                    if work is self._work and not self._subscribers and work.empty():
                        self._worker = None
                        return

    def _answer(self, message: Mapping[str, Any], send: Send) -> None:
        verb = str(message.get("verb"))
        told = message.get("args")
        args: dict[str, Any] = dict(told) if isinstance(told, dict) else {}
        answer: dict[str, Any] = {"k": "answer", "id": message.get("id")}
        buffers: list[bytes] = []
        try:
            if verb == "release":
                self.engine.release([str(sid) for sid in args.get("sids", [])][:64])
                answer["data"] = {}
            elif verb in FILE_VERBS:
                answer["data"] = file_verbs.answer(self.engine, verb, args)
            elif verb in ("past", "events"):
                answer["data"], buffer = self._older(verb, args)
                buffers = [buffer]
            elif verb not in ASKS:
                raise SgnbError(f"views may not ask {verb!r}")
            else:
                answer["data"] = self.engine.ask(verb, args, ASK_SECONDS)
        except SgnbError as error:
            answer["error"] = " ".join(filter(None, (error.message, error.hint)))
        except (
            Exception
        ) as error:  # a full disk, arguments of another shape: who asked is told, whatever it was
            logger.debug("a view's question %s", verb, exc_info=True)
            answer["error"] = words.visible(f"{verb} failed: {error}")
        page = self._subscribers.get(str(message.get("page", "")))
        if page is not None:
            page.put(answer, buffers)
        else:
            get_publisher().send_in_turn(lambda: send(answer, buffers))

    def _older(self, verb: str, args: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        if verb == "past":
            found = self.engine.ask("past", {"time": args.get("time")}, ASK_SECONDS)
            picture = msgspec.msgpack.decode(found["picture"])
            picture["past"] = self._past(int(picture["seq"]))
            return {"seq": picture["seq"]}, msgspec.msgpack.encode(picture)
        wanted = {"from_seq": args.get("from_seq"), "limit": HISTORY_EVENTS}
        found = self.engine.ask("history", wanted, ASK_SECONDS)
        last = int(found["last_seq"])
        events = found["events"]
        frame = _frame_of(events, last) if events else msgspec.msgpack.encode({"events": []})
        return {"last_seq": last}, frame

    def _catch_up(self, subscriber: Subscriber, known: int) -> None:
        """Send what the page lacks: the events since ``known`` if the engine still has them all, else the whole picture."""
        if self.engine.state not in ("idle", "running"):
            subscriber.live()
            return
        frames = self._missing(known) if known else None
        if frames is None:
            picture = self.engine.ask("picture", timeout=ASK_SECONDS)
            picture["past"] = self._past(int(picture["seq"]))
            subscriber.put({"k": "snapshot"}, [msgspec.msgpack.encode(picture)])
        else:
            for frame in frames:
                subscriber.put({"k": "frames"}, [frame])
        subscriber.live()

    def _missing(self, known: int) -> list[bytes] | None:
        frames: list[bytes] = []
        start = known + 1
        for _ in range(HISTORY_MESSAGES):
            found = self.engine.ask(
                "history", {"from_seq": start, "limit": HISTORY_EVENTS}, timeout=ASK_SECONDS
            )
            events, last = found["events"], int(found["last_seq"])
            if last < known:
                return None  # another engine's numbers
            if last < start:
                return frames
            if not events or int(events[0]["seq"]) != start:
                return None
            frames.append(_frame_of(events, last))
            start = int(events[-1]["seq"]) + 1
        return None

    def _past(self, seq: int) -> list[Any]:
        start = max(1, seq - PAST_EVENTS + 1)
        events: list[Any] = []
        while start <= seq:
            found = self.engine.ask(
                "history", {"from_seq": start, "limit": HISTORY_EVENTS}, timeout=ASK_SECONDS
            )["events"]
            if not found:
                break
            events += found
            start = int(found[-1]["seq"]) + 1
        # Slots before the snapshot are not known, so their changes are of no use.
        return [numbered for numbered in events if numbered["seq"] <= seq and numbered["event"]["t"] != "kv"]


def _frame_of(events: list[Any], last: int) -> bytes:
    time_of_last = events[-1]["event"].get("time", 0.0)
    return msgspec.msgpack.encode(
        {"incarnation": "", "last_seq": last, "time": time_of_last, "events": events, "past": True}
    )


_feeds: weakref.WeakKeyDictionary[Any, EngineFeed] = weakref.WeakKeyDictionary()
_feeds_lock = threading.Lock()


def register_feed(engine: FeedEngine, feed: EngineFeed) -> None:
    """Give ``engine`` a feed of its own kind, before anything shows it."""
    with _feeds_lock:
        _feeds[engine] = feed


def feed_of(engine: FeedEngine) -> EngineFeed:
    """The one feed of this engine."""
    with _feeds_lock:
        feed = _feeds.get(engine)
        if feed is None:
            feed = _feeds[engine] = EngineFeed(engine)
        return feed
