"""The fold of a run's events, its deltas and the static form made of it."""

from __future__ import annotations

import random
from html.parser import HTMLParser

import pytest

from sgnb.errors import EngineDied, RequestError
from sgnb.runtime import events as ev
from sgnb.widgets.fold import ProgramFold
from sgnb.widgets.fold_data import cost_data
from sgnb.widgets.program import ProgramView
from sgnb.widgets.static import TAGS, fold_log, html_of, render_html, render_text, text_of

META = {
    "prompt_tokens": 31,
    "cached_tokens": 20,
    "completion_tokens": 41,
    "e2e_latency": 0.38,
    "finish": "stop",
    "finish_reason": {"type": "stop", "matched": "\n\n"},
}


def a_log(*, ended: bool = True, meta: dict[str, object] | None = None) -> ev.EventLog:
    log = ev.EventLog()
    log.append(ev.RunStarted("[7]", "7", "tiny"))
    log.append(ev.StateOpened(1, ""))
    log.append(ev.RoleBegan(1, "user"))
    log.append(ev.TextAppended(1, "What is ", 2))
    log.append(ev.TextAppended(1, "it?", 2))
    log.append(ev.RoleEnded(1, "user"))
    log.append(ev.RoleBegan(1, "assistant"))
    log.append(ev.TextAppended(1, "It is ", 3))
    log.append(ev.GenQueued(1, "r1", "answer", 3, 120))
    log.append(ev.GenStarted("r1"))
    log.append(ev.GenDelta("r1", "a ", 1))
    log.append(ev.GenDelta("r1", "thing.", 2))
    if ended:
        log.append(ev.GenDone("r1", meta or META))
        log.append(ev.RoleEnded(1, "assistant"))
        log.append(ev.RunFinished("finished", 0.8, None, {"queue": 0.01, "decode": 0.7}))
    return log


def fold_of(log: ev.EventLog, **kwargs: object) -> ProgramFold:
    fold = ProgramFold(**{"times": True, **kwargs})  # type: ignore[arg-type]
    fold.feed(log.since(0))
    return fold


def apply(doc: dict, delta: dict) -> None:
    """``applyDelta`` of program.js."""
    assert delta["from"] == doc["seq"]
    for index, row in delta["rows"]:
        old = doc["rows"][index]["segs"] if index < len(doc["rows"]) else []
        for number, seg in enumerate(row["segs"]):
            seg["text"] = old[number]["text"] if number < len(old) else ""
        doc["rows"][index : index + 1] = [row]
    for index, number, text in delta["text"]:
        doc["rows"][index]["segs"][number]["text"] += text
    doc["seq"] = delta["seq"]
    doc["pending"] = delta.get("pending", doc["pending"])


def test_rows_are_turns_with_prompt_and_model_text() -> None:
    fold = fold_of(a_log())
    assert [row.role for row in fold.rows] == ["user", "assistant"]
    user, assistant = fold.rows
    assert [s.text() for s in user.segments] == ["What is it?"]
    assert [(s.model, s.text()) for s in assistant.segments] == [(False, "It is "), (True, "a thing.")]
    assert assistant.costs[0].reuse() == "20 of 31 tokens reused"
    assert assistant.costs[0].parts(times=True, stopped=False) == ["41 tok", "0.38 s", 'stop "\\n\\n"']
    assert assistant.costs[0].parts(times=False, stopped=False) == ["41 tok", 'stop "\\n\\n"']


def test_a_running_gen_counts_against_its_limit() -> None:
    fold = fold_of(a_log(ended=False))
    assert fold.rows[1].costs[0].parts(times=True, stopped=False) == ["3 of ≤\u2009120 tok"]
    assert fold.head()["word"] == "Running"
    assert fold.head()["facts"][0] == "3 tok"


@pytest.mark.parametrize("seed", range(20))
def test_deltas_add_up_to_the_snapshot(seed: int) -> None:
    dice = random.Random(seed)
    entries = a_log().since(0)
    fold = ProgramFold(times=True)
    doc = fold.snapshot()
    while entries:
        cut = dice.randint(1, 4)
        fold.feed(entries[:cut])
        entries = entries[cut:]
        if dice.random() < 0.2:
            doc = fold.snapshot()
        else:
            apply(doc, fold.delta(numbers=dice.random() < 0.5))
    apply(doc, fold.delta())
    assert not fold.owes_numbers
    whole = fold_of(a_log()).snapshot()
    assert doc["rows"] == whole["rows"]


def test_a_delta_without_numbers_has_of_a_growing_row_its_text_alone() -> None:
    log = a_log(ended=False)
    fold = fold_of(log)
    doc = fold.snapshot()
    log.append(ev.GenDelta("r1", "more", 1))
    fold.feed(log.since(fold.next_seq))
    text = fold.delta(numbers=False)
    assert text["rows"] == text["lanes"] == []
    assert text["text"] == [[1, 1, "more"]]
    assert fold.owes_numbers
    apply(doc, text)
    numbers = fold.delta()
    assert numbers["text"] == []
    assert numbers["rows"][0][1]["costs"][0]["parts"] == ["4 of ≤\u2009120 tok"]
    apply(doc, numbers)
    assert doc["rows"] == fold.snapshot()["rows"]
    assert not fold.owes_numbers


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


def test_a_stopped_run_says_stopped_and_how_much_is_kept() -> None:
    log = a_log(ended=False)
    log.append(
        ev.GenDone("r1", {"completion_tokens": 3, "finish": "abort", "finish_reason": {"type": "abort"}})
    )
    log.append(ev.RunFinished("stopped", 1.0))
    fold = fold_of(log)
    assert fold.rows[1].costs[0].parts(times=False, stopped=True) == ["3 tok", "stopped"]
    assert fold.head()["facts"] == ["3 tok kept"]
    assert "3 tok kept" in text_of(fold).splitlines()[-1]


def test_an_open_log_can_be_shown_as_stopped() -> None:
    fold = fold_of(a_log(ended=False))
    fold.end_as("stopped")
    assert fold.head()["word"] == "Stopped"
    assert fold.rows[1].costs[0].parts(times=False, stopped=True) == ["3 tok", "stopped"]


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
    assert parser.attributes <= {"colspan"}
    assert "<img src=x onerror=alert(1)>" in parser.text
    for char in "\x1b\u202e\u200b":
        assert char not in render_html(log)
        assert char not in render_text(log)


def test_static_form_has_every_text_and_cost_of_the_live_form() -> None:
    fold = fold_of(a_log())
    text = text_of(fold)
    for row in fold.snapshot()["rows"]:
        for seg in row["segs"]:
            assert seg["text"] in text
        for cost in row["costs"]:
            assert cost["reuse"] in text
            for part in cost["parts"]:
                assert part in text
    assert text.splitlines()[-1].startswith(
        "Finished in 0.80 s · 20 of 31 prompt tokens reused, 65 % · 41 tok generated · tiny"
    )


def test_deterministic_form_has_no_times() -> None:
    fold = fold_of(a_log(), times=False)
    for form in (text_of(fold), html_of(fold)):
        assert "0.38" not in form
        assert "0.80" not in form
        assert "Finished · 20 of 31" in form
    assert [strong for strong, _ in fold.summary()] == ["20 of 31", "41"]


def test_summary_splits_the_time_where_times_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    log = ev.EventLog()
    for entry in a_log().since(0)[:-1]:
        log.append(entry.event)
    times = {"start": 1.0, "queue": 0.01, "prefill": 0.06, "decode": 0.71, "python": 0.02}
    log.append(ev.RunFinished("finished", 1.8, None, times))
    shown = "start 1.00, queue 0.01, prefill 0.06, decode 0.71, Python 0.02"
    assert fold_of(log).summary()[-1] == ["1.80 s:", shown]
    monkeypatch.setenv("SGNB_DETERMINISTIC", "1")
    fold = fold_log(log)
    assert len(fold.summary()) == 2
    assert not any(
        word in form for form in (text_of(fold), html_of(fold)) for word in ("queue", "1.80", "0.71")
    )


def test_branches_are_named() -> None:
    log = ev.EventLog()
    log.append(ev.RunStarted("p", "1", "m"))
    log.append(ev.StateOpened(2, "1"))
    log.append(ev.RoleBegan(2, "assistant"))
    log.append(ev.GenQueued(2, "r", "x", 1, 5))
    assert "branch 1 / assistant:" in text_of(fold_of(log))
    assert "<td>branch 1<br>assistant</td>" in html_of(fold_of(log))


def test_steps_to_come_are_read_off_the_graph() -> None:
    import ast

    from sgnb.lang.frontend.graph import parse_program

    source = (
        's += user(f"Hi {who}")\n'
        's += assistant(gen("a", max_tokens=64))\n'
        "n = len(notes)\n"
        "for x in notes:\n"
        '    s += user("Next " + x)\n'
        's += assistant(gen("verdict", max_tokens=9) + "." )\n'
    )
    graph = parse_program(ast.parse(source), filename="cell", name="[1]")
    log = ev.EventLog()
    log.append(ev.RunStarted("[1]", "1", "m", graph))
    log.append(ev.StateOpened(1, ""))
    fold = fold_of(log)
    texts = [(step["role"], step["text"], step["note"]) for step in fold.pending()]
    assert texts[0] == ("user", "Hi {who}", "")
    assert texts[1] == ("assistant", "a", "not started · ≤\u200964 tok")
    assert texts[-1] == ("assistant", "verdict.", "not started · ≤\u20099 tok")
    assert any("runs in Python" in note for _, _, note in texts)
    doc = fold.snapshot()
    log.append(ev.RoleBegan(1, "user"))
    log.append(ev.TextAppended(1, "Hi Ada", 1))
    log.append(ev.RoleEnded(1, "user"))
    log.append(ev.GenQueued(1, "r", "a", 2, 64))
    fold.feed(log.since(fold.next_seq))
    apply(doc, fold.delta())
    assert doc["pending"] == fold.pending()
    assert "a" not in [step["text"] for step in doc["pending"]]
    log.append(ev.RunFinished("stopped", 1.0))
    assert text_of(fold_of(log)).count("[not run]") == len(fold.pending())
    assert render_html(log).count("not run") == len(fold.pending())


def test_a_choice_shows_its_winner_and_share() -> None:
    log = ev.EventLog()
    log.append(ev.RunStarted("cell", "7", "model"))
    log.append(ev.StateOpened(1, ""))
    log.append(ev.GenQueued(1, "r", "severity", 2, 0, options=("high", "medium", "low")))
    log.append(ev.GenStarted("r"))
    assert fold_of(log).rows[-1].costs[0].parts(times=True, stopped=False) == ["scoring 3 choices"]
    log.append(ev.GenDelta("r", "high"))
    meta = {
        "prompt_tokens": 20,
        "cached_tokens": 15,
        "completion_tokens": 0,
        "e2e_latency": 0.03,
        "choice": 0,
    }
    log.append(ev.GenDone("r", meta | {"finish": "stop", "normalized_prompt_logprobs": [-0.1, -2.5, -5.0]}))
    cost = fold_of(log).rows[-1].costs[0]
    assert cost.parts(times=True, stopped=False) == ["= high (0.91)", "30 ms"]
    assert "severity" in render_text(log) and "= high (0.91)" in render_text(log)
    unknown = ev.GenDone("r", meta | {"finish": "stop"})
    log.append(unknown)
    assert fold_of(log).rows[-1].costs[0].chosen == "= high"
    log.append(ev.GenQueued(1, "g", "why", 3, 9))
    log.append(ev.RunFinished("finished", 0.5))
    assert fold_of(log).facts() == ["1 gen, 1 select"]


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


# ---------------------------------------------------------------- branches, choices, tokens


def forked(*, ended: bool = True) -> ev.EventLog:
    """A fork of two; the second branch's generation is under way unless ``ended``."""
    log = ev.EventLog()
    log.append(ev.RunStarted("[7]", "7", "tiny"))
    log.append(ev.StateOpened(1, ""))
    log.append(ev.TextAppended(1, "Both read this. ", 1))
    log.append(ev.StateOpened(2, "0", 1, 1))
    log.append(ev.StateOpened(3, "1", 1, 1))
    for state in (2, 3):
        log.append(ev.TextAppended(state, f"Branch {state - 2}: ", 3))
        log.append(ev.GenQueued(state, f"r{state}", "finding", 3, 120))
        log.append(ev.GenQueued(state, f"s{state}", "severity", 4, 0, options=("high", "low")))
    for state in (2, 3):
        log.append(ev.GenStarted(f"r{state}"))
        log.append(ev.GenDelta(f"r{state}", f"text {state - 2}", 2))
        if state == 2 or ended:
            log.append(ev.GenDone(f"r{state}", META))
    log.append(ev.GenStarted("s2"))
    if ended:
        for state in (2, 3):
            scores = {"choice": state - 2, "normalized_prompt_logprobs": [-0.1, -1.1]}
            log.append(ev.GenDelta(f"s{state}", ("high", "low")[state - 2]))
            log.append(ev.GenDone(f"s{state}", META | scores))
        log.append(ev.TextAppended(1, "After. ", 6))
        log.append(ev.RunFinished("finished", 0.8))
    return log


def test_branches_are_lanes_of_one_fork_row() -> None:
    snapshot = fold_of(forked()).snapshot()
    fork = next(row for row in snapshot["rows"] if row["kind"] == "fork")
    assert (fork["role"], fork["arms"], fork["lane"]) == ("fork 2", [1, 2], 0)
    assert [lane["name"] for lane in snapshot["lanes"]] == ["", "0", "1"]
    assert {lane["fork"] for lane in snapshot["lanes"][1:]} == {snapshot["rows"].index(fork)}
    assert [row["lane"] for row in snapshot["rows"]] == [0, 0, 1, 2, 0]
    assert [lane["words"] for lane in snapshot["lanes"][1:]] == ["done", "done"]
    assert snapshot["lanes"][1]["values"] == [["severity", "high", "0.73"]]


def test_a_branch_says_in_words_where_it_is() -> None:
    fold = fold_of(forked(ended=False))
    lanes = fold.snapshot()["lanes"]
    assert [(lane["state"], lane["words"]) for lane in lanes[1:]] == [
        ("running", "scoring 2 choices"),
        ("running", "decoding"),
    ]
    assert fold.facts()[0] == "0 of 2 branches done"
    rows = {row["lane"]: row for row in fold.snapshot()["rows"] if row["costs"]}
    assert rows[2]["costs"][1]["parts"] == ["starts when finding ends"]
    assert rows[1]["costs"][1]["parts"] == ["scoring 2 choices"]


@pytest.mark.parametrize("seed", range(8))
def test_deltas_of_branches_add_up_to_the_snapshot(seed: int) -> None:
    dice = random.Random(seed)
    entries = forked().since(0)
    fold = ProgramFold(times=False)
    doc = fold.snapshot()
    while entries:
        cut = dice.randint(1, 3)
        fold.feed(entries[:cut])
        entries = entries[cut:]
        for delta in [fold.delta(numbers=dice.random() < 0.5), *([] if entries else [fold.delta()])]:
            apply(doc, delta)
            for number, lane in delta["lanes"]:
                doc["lanes"][number : number + 1] = [lane]
    whole = fold_of(forked(), times=False).snapshot()
    assert doc["rows"] == whole["rows"]
    assert doc["lanes"] == whole["lanes"]


def test_the_static_form_lists_branches_in_source_order_with_every_choice() -> None:
    lines = text_of(fold_of(forked())).splitlines()
    heads = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert heads == ["text:", "branch 0:", "branch 1:", "text:"]
    assert "    severity = high (0.73), low 0.27" in lines
    assert "<b>severity</b> = low (0.27), high 0.73" in html_of(fold_of(forked()))


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


def test_a_choice_names_its_method() -> None:
    log = ev.EventLog()
    log.append(ev.RunStarted("c", "7", "m"))
    method = "unconditional_likelihood_normalized"
    log.append(ev.GenQueued(1, "r", "pick", 2, 0, options=("a", "b"), method=method))
    fold = fold_of(log)
    assert cost_data(fold, fold.rows[0].costs[0])["method"] == method


def test_forced_tokens_are_counted_and_the_stop_names_the_shape() -> None:
    log = ev.EventLog()
    log.append(ev.RunStarted("c", "7", "m"))
    for rid, shape in (("a", "JSON schema Verdict"), ("b", "regex"), ("c", "EBNF grammar")):
        log.append(ev.GenQueued(1, rid, rid, 2, 64, shape=shape))
        meta = {"completion_tokens": 34, "forced_tokens": 16, "finish": "grammar"}
        log.append(ev.GenDone(rid, meta | {"finish_reason": {"type": "stop"}}))
    log.append(ev.RunFinished("finished", 0.5))
    fold = fold_of(log)
    assert [cost.parts(times=False, stopped=False) for cost in fold.costs()] == [
        ["34 tok, 16 forced", "JSON complete"],
        ["34 tok, 16 forced", "regex complete"],
        ["34 tok, 16 forced", "EBNF complete"],
    ]
    assert fold.summary()[0] == ["102", "tok generated, 48 of them forced"]


def test_tokens_know_their_part_of_the_text_also_across_characters() -> None:
    from sgnb.backends.base import TokenInfo

    log = a_log(ended=False)
    grin = "\U0001f600".encode()
    tokens = (
        TokenInfo(5, -0.1, ((-0.1, 5), (-2.0, 6)), b" ok"),
        TokenInfo(7, None, (), grin[:2]),
        TokenInfo(8, -3.0, (), grin[2:], 3, 9, True),
    )
    log.append(ev.GenDelta("r1", " ok\U0001f600", 3, (), tokens))
    fold = fold_of(log)
    marks = fold.snapshot()["rows"][1]["segs"][1]["marks"]
    assert marks == [3, 0.905, 0, 0, -1.0, 0, 2, 0.05, 3]
    assert fold.token("r1", 2) == {
        "id": 8,
        "logprob": -3.0,
        "top": [],
        "allowed": 3,
        "ruled_out": 9,
        "forced": True,
        "count": 6,
        "step": -1,
        "rid": "r1",
        "position": -1,
        "more": [5, 7, 8],
    }
    assert fold.token("r1", 3) is None and fold.token("nobody", 0) is None


def test_what_waits_for_a_join_is_said() -> None:
    import ast

    from sgnb.lang.frontend.graph import parse_program

    source = (
        "\n"
        "forks = s.fork(2)\n"
        'forks += gen("finding")\n'
        'forks += select("severity", ["high", "low"])\n'
        "forks.join()\n"
        "merged = merge(forks)\n"
        's += user(merged) + assistant(gen("verdict", json_schema=Verdict, max_tokens=64))\n'
    )
    graph = parse_program(ast.parse(source), filename="cell", name="[1]")
    log = ev.EventLog()
    log.append(ev.RunStarted("[1]", "1", "m", graph))
    for entry in forked(ended=False).since(0)[1:]:
        log.append(entry.event)
    steps = [(step["role"], step["text"], step["note"]) for step in fold_of(log).pending()]
    assert steps == [
        ("join", "", "waiting for branches 0 and 1"),
        ("", "merged = merge(forks)", "line 6, runs in Python after the join"),
        ("user", "{merged}", ""),
        ("assistant", "verdict", "not started · JSON schema Verdict · ≤\u200964 tok"),
    ]


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


def test_a_run_that_began_nothing_says_nothing_of_its_prompts() -> None:
    log = ev.EventLog()
    log.append(ev.RunStarted("[4]", "4", "stub"))
    log.append(ev.StateOpened(1, ""))
    log.append(ev.GenQueued(1, "r", "x", 2, 9))
    log.append(ev.RunFinished("failed", 0.1, ValueError("no")))
    summary = fold_of(log).summary()
    assert summary[0] == ["0", "tok generated"]


def test_a_view_that_showed_an_engines_start_shows_its_run_as_newer() -> None:
    """The page takes no picture with a lower number: a short run behind a long start was never shown."""
    view = ProgramView(ev.EventLog())
    for done in range(20):
        view.show_start("Starting engine", f"weights, {done} of 20 MB")
    waiting = view._picture()["seq"]
    view.follow(a_log())
    picture = view._picture()
    assert picture["seq"] > waiting
    view.end()
    assert view._picture()["seq"] > picture["seq"]
    assert view._picture()["head"]["word"] == "Finished"
