"""The row of a join: when it comes, what it says in each form, and what the summary says that a cell bound."""

from __future__ import annotations

from typing import Any

import pytest

from sgnb.backends.mock import MockBackend
from sgnb.errors import SgnbError
from sgnb.runtime import events as ev
from sgnb.runtime.run import run_cell
from sgnb.widgets import fold_data
from sgnb.widgets.fold import ProgramFold
from sgnb.widgets.fold_messages import FoldMessages
from sgnb.widgets.static import fold_log, render_html, text_of, text_so_far

DONE = {"prompt_tokens": 9, "cached_tokens": 0, "completion_tokens": 2, "finish": "eos"}
JOINED = """
forks = s.fork(3)
for f in forks:
    f += "one: " + gen("x")
forks.join({})
s += "After. "
"""


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGNB_DETERMINISTIC", "1")


def cell(text: str, **options: Any) -> Any:
    backend = MockBackend("word")
    run = run_cell(text.strip() + "\n", cell_name="1", user_ns={}, backend=backend, **options)
    try:
        run.drive()
    except SgnbError:
        pass
    run.log.wait(10**9, 20)
    backend.shutdown()
    return run


def joins(log: ev.EventLog) -> list[ev.BranchesJoined]:
    return [entry.event for entry in log.since(0) if isinstance(entry.event, ev.BranchesJoined)]


def page_rows(log: ev.EventLog, **kwargs: Any) -> list[dict[str, Any]]:
    fold = ProgramFold(**kwargs)
    fold.feed(log.since(0))
    return FoldMessages(fold).snapshot()["rows"]


def timed(*events: tuple[float, ev.Event]) -> list[ev.Entry]:
    return [ev.Entry(number, time, event) for number, (time, event) in enumerate(events)]


def one_by_one(entries: list[ev.Entry]) -> list[tuple[dict[str, Any] | None, str]]:
    """After each entry: the join's row as a page has it from the deltas, and what a terminal has printed."""
    fold = ProgramFold(times=True)
    messages = FoldMessages(fold)
    rows: dict[int, dict[str, Any]] = {}
    messages.snapshot()
    out = []
    for entry in entries:
        fold.feed([entry])
        rows |= dict(messages.delta()["rows"])
        join = next((data for data in rows.values() if data["kind"] == "join"), None)
        out.append((join, text_so_far(fold)))
    return out


@pytest.mark.parametrize("mode", ["", '"concate_and_append"', '"best", by=lambda b: 1.0'])
def test_a_join_stands_between_its_branches_and_what_comes_after_in_each_form(mode: str) -> None:
    log = cell(JOINED.format(mode)).log
    (join,) = joins(log)
    assert (join.count, join.line) == (3, 4)
    text = text_of(fold_log(log))
    assert text.count("join:\n    3 branches\n") == 1
    assert text.index("branch 2") < text.index("join:\n    3 branches\n") < text.index("After.")
    assert render_html(log).count('>join</td><td style="text-align:left">3 branches</td>') == 1
    (row,) = [row for row in page_rows(log) if row["kind"] == "join"]
    assert (row["role"], row["said"], row["lane"], row["line"]) == ("join", "3 branches", 0, 4)
    assert [row["kind"] for row in page_rows(log) if row["lane"] == 0][:2] == ["fork", "join"]
    note = "the best" in text
    assert note == ("best" in mode) and (not note or text.index("join:") < text.index("Branch 0 is the best"))


def test_of_a_join_that_does_not_wait_the_row_says_who_goes_on() -> None:
    seen = one_by_one(
        timed(
            (10.0, ev.RunStarted("[7]", "7", "m")),
            (10.0, ev.StateOpened(1, "")),
            (11.0, ev.StateOpened(2, "0", 1, 1)),
            (11.0, ev.StateOpened(3, "1", 1, 1)),
            (11.1, ev.GenQueued(2, "a", "x", 2, 9)),
            (11.1, ev.GenQueued(3, "b", "x", 2, 9)),
            (11.2, ev.BranchesJoined(1, 2, (2, 3), 5)),
            (11.3, ev.TextAppended(1, "After.", 6)),
            (11.4, ev.GenDone("b", DONE)),
            (11.5, ev.GenDelta("a", "text", 1)),
            (11.52, ev.GenDone("a", DONE)),
            (12.0, ev.RunFinished("finished", 2.0)),
        )
    )
    said = [row["said"] if row else None for row, _ in seen]
    waits = ["waiting for branches 0 and 1"] * 2 + ["waiting for branch 0"] * 2
    assert said == [None] * 6 + waits + ["2 branches, 0.52 s"] * 2
    for _, printed in seen[:-2]:
        assert "branches" not in printed and "After" not in printed
    assert seen[-1][1].endswith("join:\n    2 branches, 0.52 s\ntext:\n    After.")


def test_a_branch_goes_on_while_one_inside_of_it_does() -> None:
    entries = timed(
        (1.0, ev.RunStarted("[7]", "7", "m")),
        (1.0, ev.StateOpened(1, "")),
        (1.0, ev.StateOpened(2, "0", 1, 1)),
        (1.1, ev.StateOpened(3, "0.0", 2, 1)),
        (1.1, ev.GenQueued(3, "a", "x", 2, 9)),
        (1.2, ev.BranchesJoined(2, 1, (3,), 4)),
        (1.2, ev.BranchesJoined(1, 1, (2,), 5)),
        (1.6, ev.GenFailed("a", SgnbError("no"))),
        (2.0, ev.RunFinished("failed", 1.0)),
    )
    fold = ProgramFold(times=True)
    fold.feed(entries[:-2])
    inner, outer = (row for row in fold.rows if row.kind == "join")
    assert (inner.join_words(times=True), outer.join_words(times=True)) == (
        "waiting for branch 0.0",
        "waiting for branch 0",
    )
    fold.feed(entries[-2:])
    assert (inner.join_words(times=True), outer.join_words(times=True)) == (
        "1 branch, 0.50 s",
        "1 branch, 0.60 s",
    )
    assert "branch 0 / join:\n    1 branch" in text_of(fold)


def test_a_run_that_is_stopped_waits_for_nobody() -> None:
    entries = timed(
        (1.0, ev.RunStarted("[7]", "7", "m")),
        (1.0, ev.StateOpened(1, "")),
        (1.0, ev.StateOpened(2, "0", 1, 1)),
        (1.1, ev.GenQueued(2, "a", "x", 2, 9)),
        (1.2, ev.BranchesJoined(1, 1, (2,), 5)),
        (2.0, ev.RunFinished("stopped", 1.0)),
    )
    fold = ProgramFold(times=True)
    fold.feed(entries)
    assert "join:\n    1 branch\n" in text_of(fold)


def test_branches_that_generate_nothing_take_no_time() -> None:
    log = cell('forks = s.fork(2)\nforks += "text"\nforks.join()\ns += "After."').log
    assert "join:\n    2 branches\n" in text_of(fold_log(log, times=True))


@pytest.mark.parametrize(
    "text",
    [
        'with s.copy() as c:\n    c += "aside" + gen("x")\ns += "After."',  # its block ends: nobody joined
        'forks = s.fork(2)\nforks.join("concat")',
        'forks = s.fork(2)\nfor f in forks:\n    f += gen("x")\nforks.join("best", by="y")',
    ],
    ids=["copy", "unknown mode", "no number"],
)
def test_what_is_no_join_or_was_refused_has_no_row(text: str) -> None:
    log = cell(text).log
    assert not joins(log) and "join" not in [row["kind"] for row in page_rows(log)]
    assert "branches" not in text_of(fold_log(log))


def test_a_step_that_waits_for_a_join_is_no_step_to_come_once_it_is_passed() -> None:
    log = cell(JOINED.format("")).log
    fold = ProgramFold(times=False)
    for entry in log.since(0):
        fold.feed([entry])
        if isinstance(entry.event, ev.TextAppended) and "join" not in [
            step["role"] for step in fold.pending()
        ]:
            assert entry.event.state == 0
        if isinstance(entry.event, ev.BranchesJoined):
            assert "join" not in [step["role"] for step in fold.pending()]


# ---------------------------------------------------------------- what -o bound


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('s += gen("finding") + select("severity", ["a", "b"])', "is a state with 2 variables"),
        (JOINED.format(""), "is a state with 1 variable"),
        (
            's += "".join([]) + gen("a") + gen("b") + gen("c") + gen("d") + gen("e")',
            "is a state with 5 variables",
        ),
        ('s += "text"', "is a state without variables"),
    ],
)
def test_the_summary_says_what_the_cell_bound(text: str, words: str) -> None:
    run = cell(text, bound="verdict")
    fold = fold_log(run.log)
    assert fold_data.head(fold)["bound"] == ["verdict", words]
    assert run.state.names() == list(fold.finished.names)


def test_without_a_name_nothing_is_bound_and_while_it_runs_nothing_is_said() -> None:
    assert fold_data.head(fold_log(cell('s += "text"').log))["bound"] == []
    log = cell('s += "text"', bound="verdict").log
    fold = ProgramFold()
    fold.feed(log.since(0)[:-1])
    assert fold_data.head(fold)["bound"] == []


def test_a_stopped_run_binds_what_there_is() -> None:
    backend = MockBackend("one " * 500, delay=0.01)
    run = run_cell(
        's += gen("x", max_tokens=900)\ns["x"]\ns += gen("y")',
        cell_name="1",
        user_ns={},
        backend=backend,
        bound="v",
    )
    run.start()
    run.log.wait(4, 20)
    run.cancel()
    head = fold_data.head(fold_log(run.log))
    assert head["word"] == "Stopped" and head["bound"] == ["v", "is a state with 1 variable"]
    backend.shutdown()
