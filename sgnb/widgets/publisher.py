"""The one thread of a kernel that sends to the browser: at most 30 messages a second over all comms together.

Notebook process. Sources (program views, panels) say ``wake`` when they have something new, from any thread, and the
publisher calls their ``publish`` in turn; each sends at most one message, the newest state of what it shows, so a slow
page or many sources cost freshness, never memory and never text. Runs only while something is shown. It never prints.
No knowledge of what is sent.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Protocol

MESSAGES_PER_SECOND = 30
INTERVAL = 1.0 / MESSAGES_PER_SECOND
MAX_DEBT = 0.5
"""Seconds at most that urgent messages hold up the others."""
LINGER = 2.0
"""Seconds the thread stays after its last source left."""

logger = logging.getLogger("sgnb")


class Source(Protocol):
    """Something with a comm. All three are used on the publisher's thread only, ``due`` too."""

    due: float | None
    """Monotonic time at which to publish though nothing woke it, or None."""

    def publish(self) -> bool:
        """Send at most one message; True if one was sent."""


class Publisher:
    """Round robin over woken sources, paced. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._sources: list[Source] = []
        self._woken: set[int] = set()
        self._thread: threading.Thread | None = None
        self._turn = 0
        self._next = 0.0
        self._pid = os.getpid()

    @property
    def running(self) -> bool:
        """True while the thread lives."""
        return self._thread is not None

    def add(self, source: Source) -> None:
        """Begin to serve ``source``."""
        with self._changed:
            if source not in self._sources:
                self._sources.append(source)
            self._woken.add(id(source))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sgnb publisher", daemon=True)
                self._thread.start()
            self._changed.notify()

    def remove(self, source: Source) -> None:
        """Serve it no more; unknown ones are fine."""
        with self._changed:
            if source in self._sources:
                self._sources.remove(source)
                self._changed.notify()  # the last one: the thread's end is near
            self._woken.discard(id(source))

    def wake(self, source: Source) -> None:
        """``source`` has something new. Cheap: called for every event of every run."""
        key = id(source)
        if key in self._woken:  # racing with its publish only costs one turn: publish reads what is newest
            return
        with self._changed:
            if source in self._sources:
                self._woken.add(key)
                self._changed.notify()

    def send_now(self, send: Callable[[], None]) -> None:
        """Send one message at once on the caller's thread (an end of a cell), counted in the budget."""
        with self._changed:
            now = (
                time.monotonic()
            )  # bounded: many cells one after another must not silence the others for long
            self._next = max(self._next, min(max(now, self._next) + INTERVAL, now + MAX_DEBT))
        send()

    def send_in_turn(self, send: Callable[[], None]) -> None:
        """Send one message on the caller's thread, which waits until the budget has room for it (an answer to a page)."""
        with self._changed:
            now = time.monotonic()
            at = max(now, self._next)
            self._next = at + INTERVAL
        time.sleep(at - now)
        send()

    def stop(self) -> None:
        """Forget all sources; the thread ends."""
        with self._changed:
            self._sources.clear()
            self._woken.clear()
            thread = self._thread
            self._changed.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join(LINGER + 1)

    def forget_after_fork(self) -> None:
        """In a forked child there is no thread and the lock may be held for ever: begin anew."""
        self._reset()

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                source = self._pick()
                if source is None:
                    if self._sources:
                        self._changed.wait(self._pause())
                    elif not self._changed.wait(LINGER) and not self._sources:
                        self._thread = None
                        return
                    continue
                delay = self._next - time.monotonic()
            if delay > 0:
                time.sleep(delay)
            if self._serve(source):
                with self._changed:
                    self._next = max(time.monotonic(), self._next) + INTERVAL

    def _pick(self) -> Source | None:
        """The next woken or due source after the last one served."""
        now = time.monotonic()
        for step in range(len(self._sources)):
            source = self._sources[(self._turn + step) % len(self._sources)]
            if id(source) in self._woken or (source.due is not None and source.due <= now):
                self._turn = (self._turn + step + 1) % len(self._sources)
                return source
        return None

    def _pause(self) -> float | None:
        due = [source.due for source in self._sources if source.due is not None]
        return max(0.001, min(due) - time.monotonic()) if due else None

    def _serve(self, source: Source) -> bool:
        self._woken.discard(id(source))
        try:
            return source.publish()
        except Exception:  # a closed comm or socket must not end the others' stream
            logger.debug("a view could not be updated", exc_info=True)
            self.remove(source)
            return False


_publisher = Publisher()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_publisher.forget_after_fork)


def get_publisher() -> Publisher:
    """The publisher of this kernel."""
    return _publisher
