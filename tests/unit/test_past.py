"""The program view at an earlier moment: what had come by then, by the log's times and by the engine's tokens."""

from __future__ import annotations

import time

from sgnb.runtime import events as ev
from sgnb.widgets.fold import ProgramFold
from sgnb.widgets.past import Moment, entries_at, picture_at
from sgnb.widgets.static import html_of, last_line, text_of

EVENTS: list[tuple[float, ev.Event]] = [
    (1.0, ev.RunStarted("[7]", "7", "stub")),
    (1.0, ev.StateOpened(1, "")),
    (1.1, ev.TextAppended(1, "Say: ", 2)),
    (1.1, ev.GenQueued(1, "a", "x", 2, 9)),
    (1.5, ev.GenStarted("a")),
    (1.6, ev.GenDelta("a", "one", 1)),
    (1.7, ev.GenDelta("a", " two", 1)),
    (1.8, ev.GenDelta("a", "", 1)),
    (1.81, ev.GenDelta("a", " three", 0)),
    (
        1.81,
        ev.GenDone("a", {"prompt_tokens": 5, "cached_tokens": 2, "completion_tokens": 3, "finish": "eos"}),
    ),
    (1.82, ev.TextAppended(1, " And: ", 3)),
    (1.82, ev.GenQueued(1, "b", "y", 3, 9)),
    (2.5, ev.GenDone("b", {"completion_tokens": 0, "finish": "eos"})),
    (2.6, ev.RunFinished("finished", 1.6)),
]
ENTRIES = [ev.Entry(seq, at, event) for seq, (at, event) in enumerate(EVENTS)]


class Log(ev.EventLog):
    """One with the times of ENTRIES."""

    def since(self, seq: int) -> list[ev.Entry]:
        return ENTRIES[seq:]


def text_at(moment: Moment) -> str:
    fold = ProgramFold(times=False)
    fold.feed(entries_at(ENTRIES, moment))
    return "".join(segment.text() for row in fold.rows for segment in row.segments)


def test_of_what_the_page_does_not_know_the_times_decide() -> None:
    texts = {at: text_at(Moment(at, {}, frozenset())) for at in (0.5, 1.1, 1.65, 1.81, 3.0)}
    assert texts == {
        0.5: "",
        1.1: "Say: ",
        1.65: "Say: one",
        1.81: "Say: one two three",
        3.0: "Say: one two three And: ",
    }


def test_of_a_request_its_tokens_decide_before_and_after_their_time() -> None:
    assert text_at(Moment(1.62, {"a": 2}, frozenset())) == "Say: one two", "drawn, its chunk came later"
    assert text_at(Moment(1.75, {"a": 1}, frozenset())) == "Say: one"
    assert text_at(Moment(1.75, {"a": 0}, frozenset())) == "Say: "
    assert text_at(Moment(1.79, {"a": 3}, frozenset({"a"}))) == "Say: one two three"


def test_a_picture_of_the_past_is_complete_and_says_when_it_is() -> None:
    picture = picture_at(Log(), Moment(1.75, {"a": 2}, frozenset()))
    (row,) = picture["rows"]
    assert [seg["text"] for seg in row["segs"]] == ["Say: ", "one two"]
    assert row["costs"][0]["parts"] == ["2 of ≤\u20099 tok"]
    assert (picture["head"]["word"], picture["head"]["seconds"]) == ("Running", 0.75)
    end = picture_at(Log(), Moment(9.0, {}, frozenset()))
    assert (end["head"]["word"], end["head"]["seconds"]) == ("Finished", 1.6)
    assert end["rows"][0]["costs"][0]["parts"][-1] == "end of text"
    before = picture_at(Log(), Moment(0.5, {}, frozenset()))
    assert (before["head"]["word"], before["rows"]) == ("Not started", [])


def test_a_moment_of_a_message_is_by_the_logs_clock() -> None:
    now, wall = time.monotonic(), time.time()
    moment = Moment.of({"time": wall - 5.0, "tokens": {"a": 3, "b": "x"}, "ended": ["a"]})
    assert abs(moment.time - (now - 5.0)) < 0.5
    assert (moment.tokens, moment.ended) == ({"a": 3}, frozenset({"a"}))
    hostile = Moment.of({"time": "now", "tokens": [1], "ended": 7})
    assert (hostile.tokens, hostile.ended) == ({}, frozenset())


def test_a_generation_that_a_pass_found_equal_says_whose_result_it_is() -> None:
    """``share_generations``: what it took over was computed once, so the sums of the run count it once."""
    log = ev.EventLog()
    log.append(ev.RunStarted("[7]", "7", "stub"))
    log.append(ev.StateOpened(1, ""))
    for arm in (2, 3):
        log.append(ev.StateOpened(arm, str(arm - 2), 1, 1))
        log.append(ev.GenQueued(arm, f"r{arm}", "x", 3, 9))
    done = {
        "prompt_tokens": 20,
        "cached_tokens": 4,
        "completion_tokens": 2,
        "e2e_latency": 0.5,
        "finish": "eos",
    }
    for arm, more in ((2, {}), (3, {"shared_with": "r2"})):
        log.append(ev.GenDelta(f"r{arm}", "said", 2))
        log.append(ev.GenDone(f"r{arm}", {**done, **more}))
    log.append(ev.RunFinished("finished", 1.0))
    fold = ProgramFold(times=True)
    fold.feed(log.since(0))
    first, second = fold.costs()
    assert first.parts(times=True, stopped=False) == ["2 tok", "0.50 s", "end of text"]
    assert second.parts(times=True, stopped=False) == [
        "2 tok",
        "shared with branch 0, computed once",
        "end of text",
    ]
    assert second.reuse() == "" and second.why() == ""
    assert fold.totals() == (4, 20)
    assert fold.tokens == 2
    assert "shared with branch 0, computed once" in text_of(fold)
    assert "shared with branch 0, computed once" in html_of(fold)
    assert "4 of 20 prompt tokens reused" in last_line(fold)
