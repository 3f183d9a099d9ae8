"""What a program view sends while its run goes on, and when: by a clock of the test's own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from program_logs import a_log

from sgnb.runtime import events as ev
from sgnb.widgets import program


class Widget:
    """What reached the page."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.pictures: list[dict[str, Any]] = []

    def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    snapshot = property(fset=lambda self, picture: self.pictures.append(picture))


def opened(monkeypatch: pytest.MonkeyPatch) -> tuple[program.ProgramView, Widget, list[float]]:
    """A view of a run whose first generation goes on; its picture was just sent."""
    clock, widget = [100.0], Widget()
    monkeypatch.setattr(program, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    view = program.ProgramView(a_log(ended=False))
    view._widget = widget  # type: ignore[assignment]
    view._wants_snapshot = True
    assert view.publish() and len(widget.pictures) == 1
    return view, widget, clock


def text(view: program.ProgramView, words: str) -> None:
    rid = next(entry.event.rid for entry in view.log.since(0) if isinstance(entry.event, ev.GenQueued))
    view.log.append(ev.GenDelta(rid, words, 1))


def test_numbers_come_with_text_and_alone_only_when_none_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    view, widget, clock = opened(monkeypatch)
    clock[0] += 0.1
    text(view, "a")
    assert view.publish() and widget.sent[-1]["text"] and not widget.sent[-1]["rows"]
    assert view.due == pytest.approx(100.0 + program.NUMBERS_EVERY + program.CARRIED_WITHIN)
    clock[0] = 100.0 + program.NUMBERS_EVERY + 0.1
    text(view, "b")
    assert view.publish() and widget.sent[-1]["text"] and widget.sent[-1]["rows"], "both in one message"
    assert len(widget.sent) == 2 and view.due is not None
    text(view, "c")
    clock[0] += 0.01
    assert view.publish() and widget.sent[-1]["text"] and not widget.sent[-1]["rows"]
    view._next_snapshot = 200.0
    clock[0] += program.NUMBERS_EVERY + program.CARRIED_WITHIN
    assert view.publish() and not widget.sent[-1]["text"] and widget.sent[-1]["rows"], "nothing else came"


@pytest.mark.parametrize(
    ("length", "pause"),
    [(10, program.SNAPSHOT_EVERY), (300_000, 1.5), (20 * program.PICTURE_CHARS, program.PICTURE_SECONDS)],
)
def test_the_picture_of_a_long_run_comes_less_often(
    length: int, pause: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    view, widget, clock = opened(monkeypatch)
    view._fold._room = 10**8
    clock[0] += program.SNAPSHOT_EVERY
    text(view, "x" * length)
    assert view.publish() and len(widget.pictures) == 2
    for share in (0.5, 0.99):
        clock[0] = 100.5 + share * pause
        text(view, "y")
        assert view.publish() and len(widget.pictures) == 2, "the text itself comes at once"
    clock[0] = 100.5 + 1.01 * pause
    text(view, "z")
    assert view.publish() and len(widget.pictures) == 3
