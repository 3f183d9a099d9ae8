"""The kernel side of the panel without a kernel: the live requests, full KV, and what is wrong in a cell's text."""

from __future__ import annotations

import queue
import threading
import time
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from sgnb import panel, panel_edit, panel_state
from sgnb.controls import Controls
from sgnb.errors import AuthFailed
from sgnb.messages import EngineRecord, EngineStats, Label, RequestEvent, StepEvent, StepNote, StepRow
from sgnb.panel_requests import LiveRequests


def request(
    rid: str, state: Any, *, cell: str = "7", client: int = 1, time: float = 1.0, **more: Any
) -> RequestEvent:
    label = Label(cell=cell, branch="0", name="tip")
    return RequestEvent(time=time, rid=rid, client=client, label=label, state=state, **more)


def stats(used: int, *, running: int = 1, queued: int = 1) -> EngineStats:
    numbers = dict.fromkeys(EngineStats.__struct_fields__, 0)
    numbers.update(num_running_reqs=running, num_queue_reqs=queued, num_used_tokens=used)
    return msgspec.convert(numbers | {"max_total_num_tokens": 1000, "time": 9.0}, EngineStats, strict=False)


def step(*rows: StepRow, notes: list[StepNote] | None = None, time: float = 2.0) -> StepEvent:
    return StepEvent(time=time, step=1, mode="decode", rows=list(rows), notes=notes or [])


def words(live: LiveRequests, client: int = 1) -> list[tuple[str, str]]:
    return [(row["name"], row["words"]) for row in live.rows(client)[0]]


def test_requests_are_followed_from_arrival_to_end() -> None:
    live = LiveRequests()
    live.take(request("a", "compiling"))
    assert words(live) == [("7.0 tip", "compiling grammar")]
    live.take(request("a", "queued", prompt_tokens=10))
    live.take(step(StepRow(rid="a", kind="prefill", tokens=10, prefix=0)))
    assert words(live) == [("7.0 tip", "prefill")]
    live.take(request("a", "first_token"))
    live.take(step(StepRow(rid="a", kind="decode", tokens=1, prefix=13)))
    assert words(live) == [("7.0 tip", "decode 5")]
    live.take(request("a", "retracted"))
    assert words(live) == [("7.0 tip", "retracted")]
    live.take(request("a", "finished"))
    assert words(live) == []


def test_six_are_named_and_other_notebooks_requests_have_no_id() -> None:
    live = LiveRequests()
    for number in range(8):
        live.take(request(f"r{number}", "queued", client=number % 2))
    rows, more = live.rows(1)
    assert len(rows) == 6 and more == 2
    assert [row["rid"] for row in rows] == ["", "r1", "", "r3", "", "r5"]


def test_waiting_for_a_leader_and_for_slots_is_said() -> None:
    live = LiveRequests()
    live.take(request("a", "queued", cell="18"))
    live.take(request("b", "queued", cell="19"))
    note = StepNote(rid="b", what="deferred", reason="leader", leader="a")
    live.take(step(notes=[note]))
    assert words(live)[1] == ("19.0 tip", "waits for 18.0")
    live.take(step(notes=[StepNote(rid="b", what="deferred", reason="kv", needs=680, has=412)]))
    assert words(live)[1] == ("19.0 tip", "waits for slots")


def test_full_names_who_waits_and_who_holds() -> None:
    live = LiveRequests()
    live.take(request("a", "first_token", cell="13"))
    live.take(request("b", "queued", time=3.0))
    live.take(step(StepRow(rid="a", kind="decode", tokens=1, prefix=959), time=9.2))
    assert live.full(stats(100), 1) is None
    full = live.full(stats(960), 1)
    assert full == {
        "waiting": 1, "oldest": 6.2, "holder": "13.0 tip", "slots": 960, "cell": "13", "rids": ["a"],
    }  # fmt: skip
    assert live.full(stats(960), 2)["rids"] == []  # type: ignore[index]
    live.take(stats(0, running=0, queued=0))
    assert live.number == 0 and live.full(stats(960), 1) is None


def test_full_offers_to_abort_one_program_and_not_others_without_a_cell_or_of_another_notebook() -> None:
    for cell, cells in (("", ["a"]), ("4", ["a", "b"])):
        live = LiveRequests()
        live.take(request("a", "first_token", cell=cell))
        live.take(request("b", "first_token", cell=cell))
        live.take(request("other", "first_token", cell=cell, client=2))
        live.take(request("c", "queued", cell="5"))
        live.take(step(StepRow(rid="a", kind="decode", tokens=1, prefix=959), time=9.2))
        full = live.full(stats(960), 1)
        assert full is not None and full["rids"] == cells
        assert full["cell"] == (cell or full["holder"])


def test_a_late_panel_begins_with_what_lives() -> None:
    live = LiveRequests()
    live.take(request("a", "first_token"))
    row = {
        "id": "b",
        "client": 1,
        "label": {"cell": "8", "name": "x"},
        "state": "waiting",
        "time_queued": 0.5,
    }
    live.seed({"requests": [row | {"prompt_tokens": 5, "completion_tokens": 0}, row | {"id": "a"}]})
    assert words(live) == [("7.0 tip", "decode 0"), ("8 x", "waiting")]


@pytest.mark.parametrize(
    ("source", "where", "words_"),
    [
        ('%%sgl\ns += gen("t", max_tokenz=3)', (2, 14, "error"), "Did you mean 'max_tokens'?"),
        ("\n%%sgl --bogus\ns += gen()", (2, 6, "error"), "unrecognized arguments: --bogus"),
        ('%%sgl\ns += genn("x")', (2, 5, "warning"), "Did you mean `gen`?"),
        ('%%sgl\ns += "é" + gen("x"', (2, 14, "error"), "was never closed"),
        ("%%sgl\nx = '😀é' + s.txt()", (2, 11, "warning"), "Did you mean 'text'?"),
        ("%%sgl\nfor f in s.fork(2):\n    f.usr('x')", (3, 4, "warning"), "Did you mean 'user'?"),
    ],
)
def test_mistakes_have_their_place(source: str, where: tuple[int, int, str], words_: str) -> None:
    marks = panel_edit.check_source(source, {})
    assert [(mark["line"], mark["col"], mark["severity"]) for mark in marks] == [where]
    assert words_ in marks[0]["message"]


def test_good_cells_and_other_cells_have_no_mistakes() -> None:
    assert panel_edit.check_source('%%sgl\ns += user(topic) + gen("x")', {"topic": 1}) == []
    assert (
        panel_edit.check_source("%%sgl\ns.kept = s.mark()\ns.rewind(s.kept)\ns.txt = 1\nx = s.txt", {}) == []
    )
    assert panel_edit.check_source("x = (", {}) == []
    assert panel_edit.check_source("%%sgl\n", {}) == []


def test_names_are_found_while_a_line_is_typed() -> None:
    text = 'a = 1\nfor b in c:\n    d, e = 1, 2\ns += gen("tip") + select(name="sev", choices=x)\ny = foo('
    assert panel_edit.bound_names(text) == ["a", "b", "d", "e", "s"]
    assert panel_edit.variable_names(text) == ["tip", "sev"]


def test_names_are_found_beside_brackets_that_stand_too_deep() -> None:
    """Python calls that a lack of memory."""
    assert panel_edit.bound_names(f"a = 1\nb = {'(' * 300}\nc = 2") == ["a", "c"]


def test_every_name_of_the_language_is_explained() -> None:
    language = panel_edit.language()
    assert language["names"]["gen"]["signature"].startswith("gen(name, max_tokens, min_tokens, n, stop,")
    assert all(about["text"] for about in language["names"].values())
    assert {"fork", "text"} <= set(language["methods"])
    assert language["parameters"]["gen"]["max_tokens"]["signature"] == "gen(… max_tokens: int | None = None)"


def test_the_graph_of_a_cell_needs_no_run() -> None:
    data = panel_edit.graph_of('%%sgl\ns += gen("x")', {})
    assert data is not None and "gen(x)" in data["graph_text"] and data["source"] == {"2": 's += gen("x")'}
    broken = panel_edit.graph_of("%%sgl\ns += (", {})
    assert broken is not None and broken["errors"][0]["line"] == 2
    assert panel_edit.graph_of("x = 1", {"x": 1}) is None


class Refusing(Controls):
    """Controls of a notebook without an engine; the one there is does not take its token."""

    asked = 0

    def current(self) -> None:
        return None

    def records(self) -> list[EngineRecord]:
        return []

    def attach(self, name: str) -> Any:
        self.asked += 1
        raise AuthFailed("The engine's socket refused the token.", hint="Launch a new one.")


def test_F76_a_wrong_token_is_said_once_and_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(panel, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    controls = Refusing()
    hub = panel.PanelHub(controls)
    hub._run("attach", {"name": "main"}, None)  # type: ignore[arg-type]
    state = hub.state()
    assert state["message"] == "The engine's socket refused the token. Launch a new one."
    assert state["engine"] is None and state["stats"] is None and state["engines"] == []
    clock[0] += panel.MESSAGE_SECONDS
    assert hub.state()["message"] == "" and controls.asked == 1


class Watched:
    """An engine under a panel's eyes: how many listen to it, what it was asked."""

    state = "running"
    client = SimpleNamespace(welcome=None)
    info = SimpleNamespace()
    last_stats = None

    def __init__(self) -> None:
        self.listening = 0
        self.asked: queue.SimpleQueue[str] = queue.SimpleQueue()

    def subscribe(self, _callback: Any) -> Any:
        self.listening += 1
        return self.end

    def end(self) -> None:
        self.listening -= 1

    def on_state(self, _callback: Any) -> Any:
        return lambda: None

    def ask(self, verb: str, args: Any = None, timeout: float = 0.0) -> dict[str, Any]:
        self.asked.put(verb)
        return {"time": 1.0} if verb == "stats" else {"requests": []}


def test_an_engine_that_has_ended_is_asked_for_nothing() -> None:
    engine = Watched()
    watch = panel_state.EngineWatch(engine, lambda: None)
    watch.look("figures")
    assert engine.asked.get(timeout=60) == "stats"
    engine.state = "died"
    deadline = time.monotonic() + 60
    while any(thread.name == "sgnb panel figures" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    watch.close()


def test_an_engine_is_followed_as_far_as_the_page_shows_it() -> None:
    engine = Watched()
    watch = panel_state.EngineWatch(engine, lambda: None)
    watch.look("nothing")
    assert engine.listening == 0 and engine.asked.empty()
    watch.look("figures")
    assert [engine.asked.get(timeout=60) for _ in range(2)] == ["stats", "stats"] and engine.listening == 0
    watch.look("all")
    watch.look("all")
    assert engine.listening == 1
    while engine.asked.get(timeout=60) != "requests":  # what lives is asked for, whatever was known before
        pass
    watch.look("nothing")
    assert engine.listening == 0
    watch.look("all")
    while engine.asked.get(timeout=60) != "requests":
        pass
    watch.close()
    watch.look("all")
    assert engine.listening == 0
