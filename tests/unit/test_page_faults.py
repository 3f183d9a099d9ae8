"""Rows of the fault list about what reaches a page and how much (F67, F68, F70, F75): in every field, with nobody
reading, and where no script is loaded."""

from __future__ import annotations

import logging
import re
import threading
import unicodedata
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from ipykernel.comm.comm import BaseComm

from sgnb.engine.launch import CleanFormatter
from sgnb.errors import RequestError
from sgnb.runtime import events as ev
from sgnb.widgets import output, program, subscriber, telemetry
from sgnb.widgets.comms import answer_on_any_shell
from sgnb.widgets.program import MIME_WIDGET
from sgnb.widgets.static import fold_log, html_of, text_of
from sgnb.widgets.subscriber import DROP_AFTER, MAX_WAITING, WINDOW, Subscriber
from sgnb.widgets.telemetry import EngineFeed

SOURCES = Path(__file__).parents[2] / "labextension" / "src"
TAGS = {"table", "tr", "th", "td", "b", "br", "code", "pre", "details", "summary"}
FIELDS = (
    *("cell", "model", "branch", "role", "text", "name", "shape", "option", "stop", "delta", "note"),
    *("state error", "gen error", "run error", "hint"),
)
MARKUP = "<img src=x onerror=alert(1)></td><script>1</script>{{7*7}}[a](javascript:1)"
CONTROLS = "a\x1b[31mb\x1b]0;t\x07c\rd\x08e\u202ef\u2066g\u200bh\ufeffi\x9bj"


def run_with(field: str, bad: str) -> ev.EventLog:
    """A run that has ``bad`` in one field and plain words in all others."""

    def say(name: str, plain: str) -> str:
        return bad if name == field else plain

    log = ev.EventLog()
    log.append(ev.RunStarted("[7]", say("cell", "7"), say("model", "m")))
    log.append(ev.StateOpened(0, ""))
    log.append(ev.RoleBegan(0, say("role", "user")))
    log.append(ev.TextAppended(0, say("text", "asked"), 1))
    log.append(ev.RoleEnded(0, say("role", "user")))
    for state in (1, 2):
        log.append(ev.StateOpened(state, say("branch", str(state - 1)), 0, 1))
        rid, name = f"r{state}", say("name", "x")
        options = (say("option", "yes"), "no") if state == 2 else ()
        log.append(ev.GenQueued(state, rid, name, 2, 9, options=options, shape=say("shape", "")))
        log.append(ev.GenDelta(rid, say("delta", "yes"), 1))
        reason = {"type": "stop", "matched": say("stop", "\n")}
        meta = {"prompt_tokens": 9, "cached_tokens": 3, "completion_tokens": 1, "finish_reason": reason}
        choice = {"choice": 0, "normalized_prompt_logprobs": [-0.1, -2.0]} if options else {}
        log.append(ev.GenDone(rid, meta | choice))
    log.append(ev.HostNote(say("note", "noted")))
    log.append(ev.GenQueued(0, "r9", "y", 3, 9))
    log.append(ev.GenFailed("r9", RequestError(say("gen error", "no"))))
    log.append(ev.StateFailed(0, RequestError(say("state error", "off"))))
    error = RequestError(say("run error", "ended"), hint=say("hint", "again"))
    log.append(ev.RunFinished("failed", 0.1, error))
    return log


class Tags(HTMLParser):
    """All tags of a text, and whether one had an attribute that does something."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


@pytest.mark.security
@pytest.mark.parametrize("field", FIELDS)
def test_F67_markup_in_any_field_is_text(field: str) -> None:
    plain = html_of(fold_log(run_with("", ""), times=False))
    html = html_of(fold_log(run_with(field, MARKUP), times=False))
    found = Tags(html)
    assert found.tags <= TAGS and found.attributes <= Tags(plain).attributes
    assert "<img" not in html and "<script" not in html


@pytest.mark.security
def test_F67_the_panel_makes_no_element_of_text() -> None:
    """The panel, its panes and menus: what comes from the kernel has no way into the page but as text."""
    makers = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|\beval\("
    )
    found = [path.name for path in SOURCES.glob("*.ts") if re.search(makers, path.read_text())]
    assert found == []


@pytest.mark.security
@pytest.mark.parametrize("field", FIELDS)
def test_F68_control_characters_of_any_field_are_shown_as_signs(field: str) -> None:
    fold = fold_log(run_with(field, CONTROLS), times=False)
    for text in (html_of(fold), text_of(fold)):
        odd = {char for char in text if unicodedata.category(char) in ("Cc", "Cf")} - {"\n"}
        assert not odd, [f"{ord(char):04X}" for char in odd]
    if field in ("text", "delta", "note", "run error"):
        assert "[U+001B]" in text_of(fold) and "[U+202E]" in text_of(fold)


class StillEngine:
    """An engine whose frames come from the test."""

    name, state, recorder, since = "main", "running", None, 1.0

    def __init__(self) -> None:
        self.frame: Callable[[Any, bytes], None] = lambda *_: None

    def subscribe_frames(self, callback: Callable[[Any, bytes], None]) -> Callable[[], None]:
        self.frame = callback
        return lambda: None

    def on_state(self, callback: Callable[[str], None]) -> Callable[[], None]:
        return lambda: None

    def ask(self, verb: str, args: Any = None, timeout: float = 0) -> dict[str, Any]:
        return {"seq": 0, "events": [], "last_seq": 0}


class Frame(msgspec.Struct):
    events: list[int]


def test_F70_a_page_that_reads_nothing_costs_bounded_memory_and_gets_the_newest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(subscriber.time, "monotonic", lambda: clock[0])
    woken: list[object] = []
    publisher = type(
        "P", (), {"wake": lambda _, s: woken.append(s), "add": lambda *_: None, "remove": lambda *_: None}
    )()
    for module in (subscriber, telemetry):
        monkeypatch.setattr(module, "get_publisher", lambda: publisher)
    feed, sent = EngineFeed(StillEngine()), []
    page = Subscriber(feed.drop, "p", lambda content, buffers: sent.append((content, buffers)))
    feed._subscribers["p"] = page
    page.live()
    for number in range(400):
        page.frame(bytes(20_000) + number.to_bytes(2, "big"), True)
        page.publish()
    assert len(sent) == WINDOW
    assert sum(len(raw) for raw in page._frames) <= MAX_WAITING
    page.acknowledge(WINDOW)
    assert page.publish()
    content, buffers = sent[-1]
    assert content["n"] == WINDOW + 1 and buffers[-1].endswith((399).to_bytes(2, "big"))
    clock[0] += DROP_AFTER + 1
    assert not page.publish() and not feed.knows(page), "silent for so long, it is forgotten"


class Still:
    """A publisher whose turns the test gives."""

    def add(self, source: object) -> None: ...
    def wake(self, source: object) -> None: ...
    def remove(self, source: object) -> None: ...
    def send_now(self, send: Callable[[], None]) -> None:
        send()

    send_in_turn = send_now


def test_F70_a_program_view_whose_page_stops_reading_gets_little_and_then_the_newest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A minute of 30 flushes a second for a page that fell asleep: a picture in two seconds, and none of it is kept."""
    clock = [1000.0]
    monkeypatch.setattr(program, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(program, "get_publisher", Still)
    log = ev.EventLog()
    view = program.ProgramView(log)
    log.append(ev.RunStarted("[7]", "7", "m"))
    log.append(ev.StateOpened(0, ""))
    log.append(ev.GenQueued(0, "r1", "x", 2, 9))
    view.open()
    widget, sent = view._widget, []
    assert widget is not None
    monkeypatch.setattr(widget, "send", lambda content, *_: sent.append(content))
    widget.observe(lambda change: sent.append(change["new"]), "snapshot")

    def flush(number: int) -> None:
        log.append(ev.GenDelta("r1", f"w{number} ", 1))
        clock[0] += 1 / 30
        view.publish()

    for number in range(60):  # two seconds of a page that answers
        flush(number)
        view._on_message(widget, {"k": "ack", "seq": sent[-1]["seq"]}, [])
    assert len(sent) >= 60, "as it comes"
    sent.clear()
    for number in range(60, 1860):
        flush(number)
    pictures = [message for message in sent if message["k"] == "snapshot"]
    assert 10 < len(pictures) <= 2 + 60 / program.ACK_PATIENCE + 1 and len(view._unacked) <= 8
    until = 15 * program.ACK_WINDOW  # deltas, a picture each half second
    assert len(sent) < until + len(pictures), (
        "some seconds of deltas until it is held back, then pictures alone"
    )
    sent.clear()
    view._on_message(widget, {"k": "ack", "seq": pictures[-1]["seq"]}, [])
    for _ in range(3):
        clock[0] += 1
        view.publish()
    newest = next(message for message in reversed(sent) if message["k"] == "snapshot")
    text = "".join(f"w{number} " for number in range(1860))
    assert newest["rows"][0]["segs"][0]["text"] == text
    view.end("stopped")
    view.close()


class Displayed:
    """What the shell displays, in order."""

    def __init__(self) -> None:
        self.sent: list[tuple[dict[str, Any], bool]] = []

    def publish(
        self, data: dict[str, Any], metadata: Any, transient: Any = None, update: bool = False
    ) -> None:
        self.sent.append((data, update))


def test_F75_where_the_script_does_not_load_the_table_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(output, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    for module in (output, program):
        monkeypatch.setattr(module, "get_publisher", Still)
    display = Displayed()
    shown = output.WidgetOutput(type("Shell", (), {"display_pub": display})(), background=False)
    log = ev.EventLog()
    log.append(ev.RunStarted("[7]", "7", "m"))
    log.append(ev.StateOpened(0, ""))
    shown.begin(log, lambda: None)
    view = display.sent[0][0][MIME_WIDGET]["model_id"]
    shown.publish()
    assert len(display.sent) == 1, "a view that is drawn needs no table"
    output.show_plain("of no view")
    output.show_plain(view)
    log.append(ev.GenQueued(0, "r1", "x", 2, 9))
    for piece in ("one ", "two "):
        log.append(ev.GenDelta("r1", piece, 1))
        clock[0] += output.PLAIN_EVERY
        assert shown.publish() and not shown.publish(), "one table in half a second"
        data, update = display.sent[-1]
        assert update and piece.strip() in data["text/html"] and MIME_WIDGET not in data
        assert "kept" not in data["text/plain"], "it goes on"
    log.append(ev.GenDelta("r1", "three", 1))
    log.append(ev.RunFinished("finished", 0.1))
    shown.finish()
    assert "one two three" in display.sent[-1][0]["text/plain"] and MIME_WIDGET not in display.sent[-1][0]
    clock[0] += output.PLAIN_EVERY
    assert not shown.publish(), "nothing comes after the end"
    output.retire_all()


def test_F72_a_page_is_heard_on_its_shell_while_we_send() -> None:
    """The Stop that arrives in the middle of a send from the cell's shell does not wait for the cell."""
    comm = BaseComm(target_name="sgnb.test")
    answer_on_any_shell(comm)
    comm._reply_subshell_id = None  # the cell's shell, as ipykernel notes it before it sends
    comm._reply_subshell_ids["p.1"] = None
    assert comm._reply_subshell_for({"content": {"k": "stop"}}, "the page's") == "the page's"
    assert comm._reply_subshell_for({"content": {"id": "p.1"}}, "the page's") == "the page's"
    answer_on_any_shell(comm)
    assert not comm._reply_subshell_ids and not hasattr(comm, "_reply_subshell_id")


def test_what_waits_of_a_cells_output_is_sent_though_one_message_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    added: list[object] = []

    class Turning(Still):
        def add(self, source: object) -> None:
            added.append(source)

        def remove(self, source: object) -> None:
            if not added:  # the run ends on another thread just as its last table was sent
                shown._later(lambda: sent.append("later"))
            added.append("removed")

    for module in (output, program):
        monkeypatch.setattr(module, "get_publisher", Turning)
    shown, sent = output.WidgetOutput(object(), background=True), []

    def fails() -> None:
        raise OSError("the socket is closed")

    shown._steps.extend([fails, lambda: sent.append("next")])
    assert shown.publish() and shown.publish() and sent == ["next"]
    assert added == [shown, "removed", shown], "what came between is not left behind"
    assert shown.publish() and sent == ["next", "later"]


def test_a_question_of_a_page_that_fails_in_any_way_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "get_publisher", Still)
    at_once = SimpleNamespace(Thread=lambda target, **_: SimpleNamespace(start=target), RLock=threading.RLock)
    monkeypatch.setattr(program, "threading", at_once)

    def answer(_content: object, _details: object) -> dict[str, Any]:
        raise RuntimeError("\x1bno")

    source: Any = SimpleNamespace(facts=dict, close=lambda: None, engine=lambda: None, answer=answer)
    view = program.ProgramView(ev.EventLog(), source=source)
    view.open()
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(view._widget, "send", lambda content, *_: sent.append(content))
    view._on_message(view._widget, {"k": "token", "id": 7, "rid": "r", "place": 0}, [])
    assert sent == [{"k": "told", "id": 7, "error": "token failed: [U+001B]no"}]
    view.close()


@pytest.mark.security
def test_F68_no_character_of_a_log_line_acts_on_a_terminal() -> None:
    record = logging.LogRecord("sgnb", logging.INFO, "", 0, "client %d: %s", (3, CONTROLS + "é😀"), None)
    line = CleanFormatter("%(levelname)s %(message)s").format(record)
    assert not [char for char in line if unicodedata.category(char) in ("Cc", "Cf", "Cs")]
    assert line.startswith("INFO client 3: a\\x1b[31mb") and "\\u202e" in line and line.endswith("é😀")
