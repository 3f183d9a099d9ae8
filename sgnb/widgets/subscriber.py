"""One page's line to an engine's feed: what waits for it, paced by what it acknowledges.

Notebook process. Made by ``telemetry.EngineFeed`` for each page that shows something of its engine; the kernel's one
publisher gives it its turns. Up to ``WINDOW`` messages may be unacknowledged; then frames wait, and beyond ``MAX_WAITING``
bytes they are dropped: the newest come later, the page sees the gap and says ``sub`` again with what it knows. A page
that is silent for ``DROP_AFTER`` seconds is forgotten. Nothing of a message is read here, and no engine asked.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from sgnb.widgets.publisher import get_publisher

WINDOW = 16
MAX_WAITING = 2 << 20
DROP_AFTER = 15.0
BEAT = 1.0
"""A page hears at least this often, so that it knows the engine's clock and that the line works."""

Send = Callable[[dict[str, Any], list[bytes]], None]


class Subscriber:
    """One page: what waits for it, what it has not acknowledged. A source of the publisher.

    ``drop`` is called with the page's name when it was silent for too long; messages are counted on from ``first``.
    """

    def __init__(self, drop: Callable[[str], None], page: str, send: Send, first: int = 0) -> None:
        self.due: float | None = None
        self._drop = drop
        self._page = page
        self._send = send
        self._lock = threading.Lock()
        self._first: deque[tuple[dict[str, Any], list[bytes]]] = deque()
        self._frames: list[bytes] = []
        self._bytes = 0
        self._sent = self._acked = first
        self._heard = self._beat = time.monotonic()
        self._live = False
        self._overrun = False

    @property
    def number(self) -> int:
        """Of the last message that was sent; the next is one more."""
        return self._sent

    @property
    def waiting(self) -> int:
        """Messages that are queued, or sent and not acknowledged."""
        return len(self._first) + self._sent - self._acked

    def put(self, content: dict[str, Any], buffers: list[bytes]) -> None:
        """Queue one message before all frames."""
        with self._lock:
            self._first.append((content, buffers))
        get_publisher().wake(self)

    def live(self) -> None:
        """The past is queued: what came since follows."""
        self._live = True
        get_publisher().wake(self)

    def frame(self, raw: bytes, news: bool) -> None:
        """I/O thread: a frame of the engine; an empty one only beats."""
        now = time.monotonic()
        with self._lock:
            if not news and (self._frames or now - self._beat < BEAT):
                return
            if self._bytes + len(raw) > MAX_WAITING:
                self._frames.clear()
                self._bytes = 0
            self._frames.append(raw)
            self._bytes += len(raw)
            self._beat = now
        get_publisher().wake(self)

    def acknowledge(self, number: int) -> None:
        """The page has taken all messages up to ``number``."""
        self._heard = time.monotonic()
        if number > self._acked:
            self._acked = min(number, self._sent)
            get_publisher().wake(self)

    def publish(self) -> bool:
        """Publisher's thread: at most one message."""
        now = time.monotonic()
        if self._sent == self._acked:
            self._heard = now
        self.due = now + DROP_AFTER
        if now - self._heard > DROP_AFTER:
            self._drop(self._page)
            return False
        if self._sent - self._acked >= WINDOW:
            return False  # its acknowledgement wakes us
        with self._lock:
            if self._first:
                content, buffers = self._first.popleft()
            elif self._live and self._frames:
                content, buffers, self._frames, self._bytes = {"k": "frames"}, self._frames, [], 0
            else:
                return False
            more = bool(self._first or (self._live and self._frames))
        self._sent += 1
        self._send({**content, "page": self._page, "n": self._sent}, buffers)
        if more:
            get_publisher().wake(self)
        return True
