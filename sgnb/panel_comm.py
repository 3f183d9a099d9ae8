"""One panel of a page: its states, at most two a second, and its side of the conversation that ``panel`` describes.

Notebook process; made by ``panel.PanelHub`` when a page opens the comm, and a source of the publisher: the panel's messages
count in the kernel's budget. Commands go to the hub's thread, messages of docked views to the engine's feed. No command is
carried out here, and no state put together.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sgnb.widgets import words
from sgnb.widgets.comms import answer_on_any_shell, close_comm, run_no_hooks
from sgnb.widgets.publisher import get_publisher
from sgnb.widgets.telemetry import EngineFeed

if TYPE_CHECKING:
    from sgnb.panel import PanelHub

STATE_EVERY = {"all": 0.5, "figures": 1.0, "nothing": 4.0}
"""Seconds between two states, by what the page shows."""
KEEPALIVE = 4.0
DROP_AFTER = 15.0

logger = logging.getLogger("sgnb")


class PanelComm:
    """One attached panel: a source of the publisher."""

    def __init__(self, hub: PanelHub, comm: Any, client: str | None) -> None:
        self.client = client
        self.due: float | None = 0.0
        self.shown = "all"
        self._hub = hub
        self._comm = comm
        self._seq = 0
        self._heard = time.monotonic()
        self._sent_at = 0.0
        self._last: dict[str, Any] = {}
        self._outbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._feeds: dict[str, tuple[EngineFeed, set[str]]] = {}
        run_no_hooks(comm)
        answer_on_any_shell(comm)
        comm.on_msg(self._on_message)
        comm.on_close(lambda _message: self.close(tell=False))

    def show(self, what: object) -> None:
        """What the page shows from now on; an unknown word means ``all``."""
        self.shown = what if isinstance(what, str) and what in STATE_EVERY else "all"

    def wake(self) -> None:
        """There may be a new state; too early ones wait for their time."""
        if not self._outbox.empty() or time.monotonic() - self._sent_at >= STATE_EVERY[self.shown]:
            get_publisher().wake(self)

    def send(self, data: dict[str, Any]) -> None:
        """Send something beside states, in the publisher's turn."""
        self._outbox.put(data)
        get_publisher().wake(self)

    def close(self, *, tell: bool = True) -> None:
        """Stop serving this panel."""
        get_publisher().remove(self)
        self._hub.forget(self)
        feeds, self._feeds = self._feeds, {}
        for feed, pages in feeds.values():
            for page in pages:
                feed.drop(page)
        if tell:
            close_comm(self._comm)

    def publish(self) -> bool:
        """Publisher's thread: at most one message."""
        now = time.monotonic()
        if now - self._heard > DROP_AFTER:  # an earlier page load, or a page that is asleep: it attaches anew
            self.close()
            return False
        if not self._outbox.empty():
            self._send(self._outbox.get())
            return True
        every = STATE_EVERY[self.shown]
        self.due = now + every
        if now - self._sent_at < every:
            self.due = self._sent_at + every
            return False
        state = self._hub.state()
        if state == self._last and now - self._sent_at < KEEPALIVE:
            return False
        self._last, self._sent_at = state, now
        self._seq += 1
        self._send({**state, "seq": self._seq})
        return True

    def _send(self, data: dict[str, Any], buffers: list[bytes] | None = None) -> None:
        self._comm.send(data, buffers=buffers)
        answer_on_any_shell(self._comm)

    def _on_message(self, message: Mapping[str, Any]) -> None:
        self._heard = time.monotonic()
        data = message.get("content", {}).get("data")
        if not isinstance(data, dict):
            return
        verb = data.get("verb")
        if isinstance(data.get("k"), str):
            self._view(data)
        elif verb in ("check", "about"):
            self.send({"kind": "answer", "id": data.get("id"), **self._help(verb, data)})
        elif verb == "show":
            self.show(data.get("what"))
            self._hub.look()
            self.due = 0.0
            get_publisher().wake(self)
        elif isinstance(verb, str) and verb not in ("ping", "ack"):
            self._hub.submit(verb, data, self)

    def _help(self, verb: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """The data of an answer to the editor, or why there are none."""
        try:
            return {"data": self._hub.check(data.get("source")) if verb == "check" else self._hub.about(data)}
        except Exception as error:  # whatever stands in a cell: the page must not wait for an answer
            logger.debug("panel question %s", verb, exc_info=True)
            return {"error": words.visible(f"{verb} failed: {error}")}

    def _view(self, data: Mapping[str, Any]) -> None:
        """A message of a docked view: to the feed of the engine it shows, whose answers go back with the same key."""
        key, page = str(data.get("key", "")), str(data.get("page", ""))[:64]
        known = self._feeds.get(key)
        if known is None:
            feed = self._hub.feed(key)
            if feed is None:
                if data["k"] == "ask":
                    words_ = "The engine of this view has ended."
                    self.send({"k": "answer", "key": key, "id": data.get("id"), "error": words_})
                elif (
                    data["k"] == "sub"
                ):  # one of an earlier kernel, or before the present one: it will say nothing more
                    self.send(
                        {"k": "engine", "key": key, "page": page, "state": "stopped", "at": time.time()}
                    )
                return
            known = self._feeds[key] = (feed, set())
        feed, pages = known
        pages.add(page)
        feed.take(data, lambda content, buffers: self._send({**content, "key": key}, buffers))
