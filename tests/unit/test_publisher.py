"""The publisher: one thread, a budget, fairness, and an end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from sgnb.widgets import publisher as module
from sgnb.widgets.publisher import MESSAGES_PER_SECOND, Publisher


class Source:
    """Counts what it sent; always has more when ``endless``."""

    def __init__(
        self, publisher: Publisher, *, endless: bool = False, log: list[float] | None = None
    ) -> None:
        self.due: float | None = None
        self.sent = 0
        self._publisher = publisher
        self._endless = endless
        self._log = log

    def publish(self) -> bool:
        self.sent += 1
        if self._log is not None:
            self._log.append(time.monotonic())
        if self._endless:
            self._publisher.wake(self)
        return True


def until(ready: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_many_sources_share_one_budget_fairly() -> None:
    publisher, times = Publisher(), []
    sources = [Source(publisher, endless=True, log=times) for _ in range(10)]
    for source in sources:
        publisher.add(source)
    time.sleep(2.0)
    publisher.stop()
    assert len(times) <= 2 * MESSAGES_PER_SECOND + 2
    for index, first in enumerate(times):
        assert sum(1 for other in times[index:] if other - first < 1.0) <= MESSAGES_PER_SECOND + 1
    counts = [source.sent for source in sources]
    assert max(counts) - min(counts) <= 2, counts


def test_urgent_messages_count_in_the_budget() -> None:
    publisher, times = Publisher(), []
    publisher.add(Source(publisher, endless=True, log=times))
    for _ in range(20):
        publisher.send_now(lambda: times.append(time.monotonic()))
    time.sleep(1.0)
    publisher.stop()
    assert len(times) <= MESSAGES_PER_SECOND + 25


def test_answers_wait_for_their_turn() -> None:
    """However many questions pages ask at once, a second has no more messages than the budget allows."""
    publisher, times = Publisher(), []
    answer = lambda: times.append(time.monotonic())  # noqa: E731
    threads = [threading.Thread(target=publisher.send_in_turn, args=(answer,)) for _ in range(45)]
    for thread in threads:
        thread.start()
    publisher.send_now(answer)
    for thread in threads:
        thread.join(60)
    assert len(times) == 46
    times.sort()
    for index, first in enumerate(times):
        assert sum(1 for other in times[index:] if other - first < 1.0) <= MESSAGES_PER_SECOND + 2


def test_due_sources_are_served_without_being_woken() -> None:
    publisher = Publisher()
    source = Source(publisher)
    publisher.add(source)
    until(lambda: source.sent == 1)
    source.due = time.monotonic() + 0.1
    publisher.add(source)
    until(lambda: source.sent >= 2)
    source.due = None
    publisher.stop()


def test_a_broken_source_is_dropped_and_the_others_go_on() -> None:
    class Broken(Source):
        def publish(self) -> bool:
            raise OSError("the socket is closed")

    publisher = Publisher()
    broken, good = Broken(publisher), Source(publisher)
    publisher.add(broken)
    publisher.add(good)
    until(lambda: good.sent == 1)
    publisher.wake(broken)
    publisher.wake(good)
    until(lambda: good.sent == 2)
    publisher.stop()


def test_the_thread_ends_when_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINGER", 0.1)
    publisher = Publisher()
    source = Source(publisher)
    publisher.add(source)
    until(lambda: source.sent == 1)
    publisher.remove(source)
    until(lambda: not publisher.running)
    publisher.add(source)
    until(lambda: source.sent == 2)
    publisher.stop()
    assert not [t for t in threading.enumerate() if t.name == "sgnb publisher"]
