"""A run's events folded to rows and costs, and the static form made of them."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from program_logs import META, a_log, fold_of, forked

from sgnb.config import MAX_SHOWN_CHARS
from sgnb.errors import EngineDied, RequestError
from sgnb.runtime import events as ev
from sgnb.widgets.fold import ProgramFold
from sgnb.widgets.static import TAGS, html_of, render_html, render_text, text_of
from sgnb.widgets.tables import LEFT


def test_rows_are_turns_with_prompt_and_model_text() -> None:
    fold = fold_of(a_log())
    assert [row.role for row in fold.rows] == ["user", "assistant"]
    user, assistant = fold.rows
    assert [s.text() for s in user.segments] == ["What is it?"]
    assert [(s.model, s.text()) for s in assistant.segments] == [(False, "It is "), (True, "a thing.")]
    assert assistant.costs[0].reuse() == "20 of 31 tokens reused"
    assert assistant.costs[0].parts(times=True, stopped=False) == ["41 tok", "0.38 s", 'stop "\\n\\n"']
    assert assistant.costs[0].parts(times=False, stopped=False) == ["41 tok", 'stop "\\n\\n"']


def test_a_failed_gen_marks_its_row_once_and_keeps_the_text() -> None:
    log = a_log(ended=False)
    error = EngineDied("The engine was killed (signal 9).", hint="%sgl restart starts it again.")
    log.append(ev.GenFailed("r1", error))
    log.append(ev.StateFailed(1, error))
    log.append(ev.RunFinished("failed", 1.0, error))
    fold = fold_of(log)
    assert [row.state for row in fold.rows] == ["ok", "failed"]
    assert fold.rows[1].error == error.lines()
    assert "a thing." in text_of(fold)
    assert text_of(fold).splitlines()[-1].startswith("Failed in 1.00 s")


@pytest.mark.parametrize("way", ["stopped", "failed", "no answer"])
def test_a_gen_that_no_meta_ends_has_its_time(way: str) -> None:
    log = a_log(ended=False)
    log.append(ev.GenQueued(1, "r2", "pick", 4, 0, options=("yes", "no")))
    log.append(ev.GenStarted("r2"))
    error = EngineDied("gone")
    if way == "failed":
        log.append(ev.GenFailed("r1", error))
        log.append(ev.GenFailed("r2", error))
    if way != "no answer":
        log.append(ev.RunFinished(way, 1.0, error if way == "failed" else None))
    entries = [ev.Entry(one.seq, 100 + one.seq, one.event) for one in log.since(0)]
    fold = ProgramFold(times=True)
    fold.feed(entries)
    if way == "no answer":
        fold.end_as("stopped")
    gen, pick = fold.costs()
    asked = next(one.time for one in entries if isinstance(one.event, ev.GenQueued) and one.event.rid == "r1")
    until = next((one.time for one in entries if isinstance(one.event, ev.GenFailed | ev.RunFinished)), None)
    assert gen.seconds is not None and (until is None or gen.seconds == until - asked)
    word = "failed" if way == "failed" else "stopped"
    assert gen.parts(times=True, stopped=True) == ["3 tok", gen.took(), word]
    assert pick.parts(times=True, stopped=True) == [pick.took(), word], "a choice has no tokens to count"
    assert gen.parts(times=False, stopped=True) == ["3 tok", word]


def test_a_choice_with_blanks_at_its_ends_is_shown_whole() -> None:
    """Cut ones could not be told apart, and the static form has every text."""
    options = tuple(f" {'the same beginning of a long choice, and then '}{end}" for end in ("one", "two"))
    log = ev.EventLog()
    log.append(ev.RunStarted("[7]", "7", "tiny"))
    log.append(ev.StateOpened(1, ""))
    log.append(ev.GenQueued(1, "r1", "pick", 4, 0, options=options))
    log.append(ev.GenDone("r1", META | {"choice": 1, "normalized_prompt_logprobs": [-1.1, -0.1]}))
    shown = text_of(fold_of(log))
    assert all(f'"{option}"' in shown for option in options), shown


def test_a_gen_behind_one_that_failed_was_not_run() -> None:
    log = a_log(ended=False)
    log.append(ev.RoleEnded(1, "assistant"))
    log.append(ev.GenQueued(1, "r2", "more", 5, 10))
    error = EngineDied("gone")
    log.append(ev.GenFailed("r1", error))
    log.append(ev.GenFailed("r2", error))
    fold = fold_of(log)
    assert [row.state for row in fold.rows] == ["ok", "failed", "ok"]
    assert fold.rows[2].costs[0].parts(times=True, stopped=False) == ["not run"]


def test_gens_of_two_branches_with_one_cause_are_both_marked() -> None:
    log = forked(ended=False)
    error = EngineDied("gone")
    for rid in ("r2", "r3", "s2", "s3"):
        log.append(ev.GenFailed(rid, error))
    fold = fold_of(log)
    assert [row.state for row in fold.rows if row.costs] == ["failed", "failed"]
    assert [cost.parts(times=False, stopped=False) for cost in fold.costs()][3] == ["not run"]
    assert [lane.words(ended="failed", times=False)[1] for lane in fold.lanes[1:]] == ["failed", "failed"]


@pytest.mark.parametrize(
    ("finish", "words"),
    [
        ({"finish": "eos", "finish_reason": {"type": "stop", "matched": 2}}, "end of text"),
        ({"finish": "length", "finish_reason": {"type": "length", "length": 41}}, "token limit 120"),
        ({"finish": "context", "finish_reason": {"type": "context"}}, "context full"),
        ({"finish": "abort", "finish_reason": {"type": "abort"}}, "aborted"),
        ({"finish": "stop", "finish_reason": {"type": "stop", "matched": 'a"b'}}, 'stop "a\\"b"'),
        ({"finish": "stop", "finish_reason": {"type": "stop", "matched": 7}}, "stop token 7"),
    ],
)
def test_stop_words(finish: dict[str, object], words: str) -> None:
    fold = fold_of(a_log(meta={**META, **finish}))
    assert fold.rows[1].costs[0].parts(times=False, stopped=False)[-1] == words


def test_text_over_the_cap_is_counted_not_shown() -> None:
    log = a_log(ended=False)
    log.append(ev.GenDelta("r1", "x" * 100, 10))
    fold = fold_of(log, cap=50)
    assert sum(len(s.text()) for row in fold.rows for s in row.segments) == 50
    hidden = sum(s.hidden for row in fold.rows for s in row.segments)
    assert hidden == len("What is it?") + len("It is ") + len("a thing.") + 100 - 50
    assert "more characters are not shown; answer holds them." in text_of(fold)


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


HOSTILE = "<img src=x onerror=alert(1)>&lt;b&gt;</td></table><script>\x1b[2J\u202e\u200b\"'"


def test_static_html_holds_no_tag_of_the_text() -> None:
    log = ev.EventLog()
    log.append(ev.RunStarted(HOSTILE, HOSTILE, HOSTILE))
    log.append(ev.HostNote(HOSTILE))
    log.append(ev.StateOpened(1, HOSTILE))
    log.append(ev.RoleBegan(1, HOSTILE))
    log.append(ev.TextAppended(1, HOSTILE, 1))
    log.append(ev.GenQueued(1, "r", HOSTILE, 1, 9))
    log.append(ev.GenDelta("r", HOSTILE, 1))
    log.append(ev.GenDone("r", {**META, "finish_reason": {"type": "stop", "matched": HOSTILE}}))
    log.append(ev.GenQueued(1, "r2", "b", 1, 9))
    log.append(ev.GenFailed("r2", RequestError(HOSTILE)))
    log.append(ev.RunFinished("failed", 1.0, RequestError(HOSTILE)))
    parser = Tags()
    parser.feed(render_html(log))
    assert parser.tags <= set(TAGS)
    assert parser.attributes <= {"colspan", "style"}
    assert set(re.findall("style=.*?>", render_html(log))) == {f"{LEFT.strip()}>"}, "which carries no meaning"
    assert "<img src=x onerror=alert(1)>" in parser.text
    for char in "\x1b\u202e\u200b":
        assert char not in render_html(log)
        assert char not in render_text(log)


def test_branches_are_named() -> None:
    log = ev.EventLog()
    log.append(ev.RunStarted("p", "1", "m"))
    log.append(ev.StateOpened(2, "1"))
    log.append(ev.RoleBegan(2, "assistant"))
    log.append(ev.GenQueued(2, "r", "x", 1, 5))
    assert "branch 1 / assistant:" in text_of(fold_of(log))
    assert "<td>branch 1<br>assistant</td>" in html_of(fold_of(log)).replace(LEFT, "")


def test_what_the_engine_notes_about_a_prompt_is_shown_once() -> None:
    note = "The prompt ends with a space; leave it out."
    meta = {"prompt_tokens": 3, "cached_tokens": 0, "completion_tokens": 4, "notes": [note]}
    log = a_log(ended=False, meta=meta)
    log.append(ev.GenDone("r1", meta))
    log.append(ev.GenQueued(1, "again", "more", 5, 10))
    log.append(ev.GenDone("again", meta))
    fold = fold_of(log)
    assert [row.kind for row in fold.rows].count("note") == 1
    assert text_of(fold).count(note) == 1 and html_of(fold).count(note) == 1


def test_the_static_form_lists_branches_in_source_order_with_every_choice() -> None:
    lines = text_of(fold_of(forked())).splitlines()
    heads = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert heads == ["text:", "branch 0:", "branch 1:", "text:"]
    assert "    severity = high (0.73), low 0.27" in lines
    assert "    high" not in lines, "the winner stands in its line alone"
    assert "<b>severity</b> = low (0.27), high 0.73" in html_of(fold_of(forked()))
    log = ev.EventLog()
    log.append(ev.RunStarted("c", "7", "m"))
    log.append(ev.TextAppended(1, "It is ", 2))
    log.append(ev.GenQueued(1, "r", "pick", 2, 0, options=("a", "b")))
    log.append(ev.GenDelta("r", "b"))
    log.append(ev.GenDone("r", META | {"choice": 1, "normalized_prompt_logprobs": [-1.0] * 2}))
    log.append(ev.RunFinished("finished", 1.0))
    assert text_of(fold_of(log)).splitlines()[:3] == ["text:", "    It is ", "    pick = b (0.50), a 0.50"]


def test_many_options_are_counted_and_the_winner_is_among_the_shown() -> None:
    log = ev.EventLog()
    log.append(ev.RunStarted("c", "7", "m"))
    options = tuple(f"o{n}" for n in range(40))
    log.append(ev.GenQueued(1, "r", "pick", 2, 0, options=options))
    log.append(ev.GenDone("r", META | {"choice": 30, "normalized_prompt_logprobs": [-1.0] * 40}))
    cost = fold_of(log).rows[0].costs[0]
    assert [text for _, text, _ in cost.shown_options()] == [*options[:11], "o30"]
    assert cost.more_options() == "28 more choices"
    assert "o30" in text_of(fold_of(log)) and "28 more choices" in text_of(fold_of(log))


def test_why_not_is_offered_below_nine_tenths_only() -> None:
    for cached, prompt, why in ((20, 31, "Why not 31?"), (312, 340, ""), (0, 1460, "Why not 1\u2009460?")):
        fold = fold_of(a_log(meta={**META, "cached_tokens": cached, "prompt_tokens": prompt}))
        assert fold.rows[1].costs[0].why() == why


def test_why_not_is_offered_for_little_where_it_had_been_there() -> None:
    for miss, why in (
        ("evicted", "Why not 340?"),
        ("logprobs", "Why not 340?"),
        ("diverged", ""),
        ("hit", ""),
    ):
        fold = fold_of(a_log(meta={**META, "cached_tokens": 312, "prompt_tokens": 340, "miss": miss}))
        assert fold.rows[1].costs[0].why() == why


def test_an_error_of_pythons_own_says_its_line_of_the_cell() -> None:
    log = ev.EventLog()
    log.append(ev.RunStarted("[4]", "4", "stub"))
    error: BaseException = ValueError("no more")
    try:
        exec(compile("x = 1\n\nint('a')", "<sgl 4>", "exec"), {})
    except ValueError as raised:
        error = raised
    log.append(ev.RunFinished("failed", 0.1, error))
    (row,) = fold_of(log).rows
    assert row.error == ["Line 3: ValueError: invalid literal for int() with base 10: 'a'"]
    assert row.line == 3


@pytest.mark.parametrize(
    "text", ["\n" * 1_000_000, "<" * 1_000_000, "e" + "\u0301" * 1_000_000, "\u202e" * 1_000_000]
)
def test_F69_F68_a_million_of_any_character_is_bounded_in_every_form(text: str) -> None:
    log = a_log(ended=False)
    log.append(ev.GenDelta("r1", text, 9))
    log.append(ev.RunFinished("finished", 0.8))
    fold = fold_of(log)
    shown = fold.rows[1].segments[1]
    assert len(shown.text()) + len("What is it?It is ") == MAX_SHOWN_CHARS
    assert shown.hidden == len(text) + len("a thing.") - len(shown.text())
    assert len(html_of(fold)) < 9 * MAX_SHOWN_CHARS and len(text_of(fold)) < 9 * MAX_SHOWN_CHARS
