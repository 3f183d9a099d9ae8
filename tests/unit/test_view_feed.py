"""An engine's feed to the page: what is answered, and how its messages are counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sgnb.widgets import subscriber, telemetry
from sgnb.widgets.subscriber import WINDOW
from sgnb.widgets.telemetry import EngineFeed


class Kept:
    """A publisher that sends when the test says so."""

    def add(self, source: object) -> None: ...
    def wake(self, source: object) -> None: ...
    def remove(self, source: object) -> None: ...
    def send_now(self, send: Callable[[], None]) -> None:
        send()

    def send_in_turn(self, send: Callable[[], None]) -> None:
        send()


class Ended:
    """An engine that ended a while ago."""

    name, state, recorder, since = "main", "died", None, 1234.5

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def subscribe_frames(self, _callback: Any) -> Callable[[], None]:
        return lambda: None

    def on_state(self, callback: Callable[[str], None]) -> Callable[[], None]:
        self.tell = callback
        return lambda: None

    def ask(self, verb: str, args: dict[str, Any] | None = None, timeout: float = 0) -> dict[str, Any]:
        self.asked.append((verb, args or {}))
        if verb == "flush_cache":
            raise OSError("no space left on device")
        return {}

    def record(self, path: str, *, text: bool = True) -> Any:
        raise PermissionError("not there")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Ended:
    publisher = Kept()
    for module in (subscriber, telemetry):
        monkeypatch.setattr(module, "get_publisher", lambda: publisher)
    return Ended()


def test_a_message_on_its_way_is_not_counted_for_the_next_subscription(engine: Ended) -> None:
    """Else the page would acknowledge a number that was not sent yet, and then nothing until it is reached."""
    feed, sent = EngineFeed(engine), []
    send = lambda content, _buffers: sent.append(content)  # noqa: E731
    feed._catch_up = lambda subscriber, _known: subscriber.live()  # type: ignore[method-assign]
    feed._later = lambda work: work()  # type: ignore[method-assign]
    for begin in range(3):
        feed.take({"k": "sub", "page": "p", "from": 0}, send)
        page = feed._subscribers["p"]
        received = 0
        for number in range(2 * WINDOW):
            page.frame(bytes([begin, number]), True)
            page.publish()
            if sent[-1]["n"] > received:
                received = sent[-1]["n"]
                feed.take({"k": "ack", "page": "p", "n": received}, send)
        if begin == 1:
            feed.take({"k": "unsub", "page": "p"}, send)
    numbers = [content["n"] for content in sent]
    assert numbers == list(range(1, 6 * WINDOW + 1)), "each is later than all before, whoever asked for it"


def test_a_question_that_fails_in_any_way_is_answered(engine: Ended) -> None:
    feed, sent = EngineFeed(engine), []
    questions = [
        ("flush_cache", {}, "flush_cache failed: no space left on device"),
        ("perfetto", {"file": "x.json", "from": "a", "to": "b"}, "perfetto failed: could not convert"),
        ("record", {"action": "start", "file": "r.sgnb"}, "record failed: not there"),
        ("release", [1], "has no attribute 'release'"),
        ("nodes\x1b", None, "views may not ask"),
    ]
    for number, (verb, args, _) in enumerate(questions):
        feed._answer(
            {"k": "ask", "id": number, "verb": verb, "args": args}, lambda content, _: sent.append(content)
        )
    assert [content["id"] for content in sent] == list(range(len(questions)))
    for content, (_, _, words) in zip(sent, questions, strict=True):
        assert words in content["error"] and "\x1b" not in content["error"]


def test_a_page_that_comes_late_hears_when_the_engine_ended(engine: Ended) -> None:
    feed, sent = EngineFeed(engine), []
    feed._later = lambda work: work()  # type: ignore[method-assign]
    feed.take({"k": "sub", "page": "p", "from": 7}, lambda content, _: sent.append(content))
    feed._subscribers["p"].publish()
    assert (sent[0]["state"], sent[0]["at"]) == ("died", 1234.5)
