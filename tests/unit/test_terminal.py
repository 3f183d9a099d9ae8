"""A run in a plain terminal: text as it comes, in the order of the source, once."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from sgnb.messages import PromptText
from sgnb.runtime import events as ev
from sgnb.widgets.fold import ProgramFold
from sgnb.widgets.static import text_of, text_so_far
from sgnb.widgets.terminal import TerminalOutput

DONE = {"prompt_tokens": 9, "cached_tokens": 0, "completion_tokens": 2, "finish": "eos"}


def events(*, join: bool = True) -> list[ev.Event]:
    """Two branches that stream at the same time, and what stands behind them."""
    out: list[ev.Event] = [
        ev.RunStarted("[7]", "7", "stub"),
        ev.StateOpened(1, ""),
        ev.RoleBegan(1, "system"),
        ev.TextAppended(1, "Be brief.", 1),
        ev.RoleEnded(1, "system"),
        ev.StateOpened(2, "0", 1, 1),
        ev.StateOpened(3, "1", 1, 1),
        ev.TextAppended(2, "Zero: ", 2),
        ev.GenQueued(2, "a", "x", 2, 9),
        ev.TextAppended(3, "One: ", 2),
        ev.GenQueued(3, "b", "x", 2, 9),
        ev.GenDelta("b", "uno", 1),
        ev.GenDelta("a", "nul", 1),
        ev.GenDelta("b", " one", 1),
        ev.GenDone("b", DONE),
        ev.GenDelta("a", " zero", 1),
        ev.GenDone("a", DONE),
    ]
    if join:
        out += [ev.RoleBegan(1, "user"), ev.TextAppended(1, "End.", 3), ev.RoleEnded(1, "user")]
    return [*out, ev.RunFinished("finished", 0.5)]


def prefixes(logged: list[ev.Event]) -> list[str]:
    """What a terminal has printed after each event."""
    log, fold, out = ev.EventLog(), ProgramFold(times=False), []
    for event in logged:
        log.append(event)
        fold.feed(log.since(fold.next_seq))
        out.append(text_so_far(fold))
    assert text_of(fold).startswith(out[-1])
    return out


@pytest.mark.parametrize("join", [True, False])
def test_what_was_printed_never_changes(join: bool) -> None:
    printed = prefixes(events(join=join))
    for before, after in itertools.pairwise(printed):
        assert after.startswith(before)
    streamed = [text for text in printed if text.endswith("nul")]
    assert streamed, "the first branch streams"
    assert "uno" not in streamed[0], "the second one waits for it"
    assert "    [x: 0 of 9 tokens reused · 2 tok · end of text]" in printed[-1]


def test_a_prompt_before_a_fork_waits_for_its_cost_line() -> None:
    """It comes with the first request that reads it; what stands below it would come before it otherwise."""
    raw = b"Be brief.Zero: "
    told = PromptText(first=0, lengths=[1] * len(raw), raw=raw)
    logged = events()
    logged.insert(11, ev.GenStarted("a", len(raw), 4, told))
    printed = prefixes(logged)
    for before, after in itertools.pairwise(printed):
        assert after.startswith(before)
    assert printed[10] == "system:\n    Be brief."
    assert printed[11].startswith("system:\n    Be brief.\n    [4 of 9 tokens reused]\nbranch 0:\n    Zero: ")


def test_what_the_cell_prints_has_lines_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    log = ev.EventLog()
    output = TerminalOutput(background=False)
    output.begin(log, lambda: None)
    logged = events()
    for event in logged[:14]:
        log.append(event)
    print("the cell", "says", flush=True)
    print("more", end="")
    for event in logged[14:]:
        log.append(event)
    output.finish()
    print("behind it")
    said = capsys.readouterr().out
    assert "    Zero: nul\nthe cell says\nmore\n zero\n    [x:" in said
    assert said.endswith("behind it\n")
    fold = ProgramFold()
    fold.feed(log.since(0))
    assert said.replace("\nthe cell says\nmore\n", "") == text_of(fold) + "\nbehind it\n"


def test_the_second_branch_comes_when_the_fork_was_left_behind() -> None:
    printed = prefixes(events())
    place = next(i for i, text in enumerate(printed) if "One: uno one" in text)
    assert isinstance(events()[place], ev.TextAppended), "with the first text of what follows the fork"


def test_a_terminal_prints_all_of_it_once(capsys: pytest.CaptureFixture[str]) -> None:
    log = ev.EventLog()
    output = TerminalOutput(background=False)
    output.begin(log, lambda: None)
    for event in events():
        log.append(event)
    output.finish()
    said = capsys.readouterr().out
    fold = ProgramFold()
    fold.feed(log.since(0))
    assert said == text_of(fold) + "\n"


def test_what_comes_before_what_was_printed_is_told_with_all_of_it(capsys: Any) -> None:
    """A branch goes on after its parent did: nothing is lost, though it stands twice."""
    log = ev.EventLog()
    output = TerminalOutput(background=False)
    output.begin(log, lambda: None)
    late = [*events()[:-1], ev.TextAppended(2, " Late.", 4), ev.RunFinished("finished", 0.5)]
    output._printed = "something else"
    for event in late:
        log.append(event)
    output.finish()
    fold = ProgramFold()
    fold.feed(log.since(0))
    assert capsys.readouterr().out.endswith(text_of(fold) + "\n")


def test_a_background_run_is_printed_at_its_end(capsys: Any) -> None:
    log = ev.EventLog()
    output = TerminalOutput(background=True)
    output.begin(log, lambda: None)
    for event in events():
        log.append(event)
    assert capsys.readouterr().out == ""
    output.finish()
    assert "Zero: nul zero" in capsys.readouterr().out
