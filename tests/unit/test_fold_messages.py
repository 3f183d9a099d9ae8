"""What a page is told of a fold: the picture, its changes, the header, and tokens by their place."""

from __future__ import annotations

import ast
import random

import pytest
from program_logs import a_log, fold_of, forked, messages_of, snapshot_of

from sgnb.lang.frontend.graph import parse_program
from sgnb.lang.position import CELL_PREFIX
from sgnb.runtime import events as ev
from sgnb.widgets import fold_data
from sgnb.widgets.fold import ProgramFold
from sgnb.widgets.fold_data import cost_data
from sgnb.widgets.fold_messages import FoldMessages
from sgnb.widgets.pending import Progress, steps_after
from sgnb.widgets.program import ProgramView
from sgnb.widgets.static import fold_log, html_of, render_html, render_text, text_of


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


def test_a_running_gen_counts_against_its_limit() -> None:
    fold = fold_of(a_log(ended=False))
    assert fold.rows[1].costs[0].parts(times=True, stopped=False) == ["3 of ≤\u2009120 tok"]
    assert fold_data.head(fold)["word"] == "Running"
    assert fold_data.head(fold)["facts"][0] == "3 tok"


@pytest.mark.parametrize("seed", range(20))
def test_deltas_add_up_to_the_snapshot(seed: int) -> None:
    dice = random.Random(seed)
    entries = a_log().since(0)
    fold = ProgramFold(times=True)
    page = FoldMessages(fold)
    doc = page.snapshot()
    while entries:
        cut = dice.randint(1, 4)
        fold.feed(entries[:cut])
        entries = entries[cut:]
        if dice.random() < 0.2:
            doc = page.snapshot()
        else:
            apply(doc, page.delta(numbers=dice.random() < 0.5))
    apply(doc, page.delta())
    assert not page.owes_numbers
    whole = snapshot_of(a_log())
    assert doc["rows"] == whole["rows"]


def test_a_delta_without_numbers_has_of_a_growing_row_its_text_alone() -> None:
    log = a_log(ended=False)
    fold = fold_of(log)
    page = FoldMessages(fold)
    doc = page.snapshot()
    log.append(ev.GenDelta("r1", "more", 1))
    fold.feed(log.since(fold.next_seq))
    text = page.delta(numbers=False)
    assert text["rows"] == text["lanes"] == []
    assert text["text"] == [[1, 1, "more"]]
    assert page.owes_numbers
    apply(doc, text)
    numbers = page.delta()
    assert numbers["text"] == []
    assert numbers["rows"][0][1]["costs"][0]["parts"] == ["4 of ≤\u2009120 tok"]
    apply(doc, numbers)
    assert doc["rows"] == page.snapshot()["rows"]
    assert not page.owes_numbers


def test_a_stopped_run_says_stopped_and_how_much_is_kept() -> None:
    log = a_log(ended=False)
    log.append(
        ev.GenDone("r1", {"completion_tokens": 3, "finish": "abort", "finish_reason": {"type": "abort"}})
    )
    log.append(ev.RunFinished("stopped", 1.0))
    fold = fold_of(log)
    assert fold.rows[1].costs[0].parts(times=False, stopped=True) == ["3 tok", "stopped"]
    assert fold_data.head(fold)["facts"] == ["3 tok kept"]
    assert "3 tok kept" in text_of(fold).splitlines()[-1]


def test_an_open_log_can_be_shown_as_stopped() -> None:
    fold = fold_of(a_log(ended=False))
    fold.end_as("stopped")
    assert fold_data.head(fold)["word"] == "Stopped"
    assert fold.rows[1].costs[0].parts(times=False, stopped=True) == ["3 tok", "stopped"]


def test_static_form_has_every_text_and_cost_of_the_live_form() -> None:
    fold = fold_of(a_log())
    text = text_of(fold)
    for row in FoldMessages(fold).snapshot()["rows"]:
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
    assert [strong for strong, _ in fold_data.summary(fold)] == ["20 of 31", "41"]


def test_summary_splits_the_time_where_times_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    log = ev.EventLog()
    for entry in a_log().since(0)[:-1]:
        log.append(entry.event)
    times = {"start": 1.0, "queue": 0.01, "prefill": 0.06, "decode": 0.71, "python": 0.02}
    log.append(ev.RunFinished("finished", 1.8, None, times))
    shown = "start 1.00, queue 0.01, prefill 0.06, decode 0.71, Python 0.02"
    assert fold_data.summary(fold_of(log))[-1] == ["1.80 s:", shown]
    monkeypatch.setenv("SGNB_DETERMINISTIC", "1")
    fold = fold_log(log)
    assert len(fold_data.summary(fold)) == 2
    assert not any(
        word in form for form in (text_of(fold), html_of(fold)) for word in ("queue", "1.80", "0.71")
    )


def test_steps_to_come_are_read_off_the_graph() -> None:
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
    page = FoldMessages(fold)
    doc = page.snapshot()
    log.append(ev.RoleBegan(1, "user"))
    log.append(ev.TextAppended(1, "Hi Ada", 1))
    log.append(ev.RoleEnded(1, "user"))
    log.append(ev.GenQueued(1, "r", "a", 2, 64))
    fold.feed(log.since(fold.next_seq))
    apply(doc, page.delta())
    assert doc["pending"] == fold.pending()
    assert "a" not in [step["text"] for step in doc["pending"]]
    log.append(ev.RunFinished("stopped", 1.0))
    assert text_of(fold_of(log)).count("[not run]") == len(fold.pending())
    assert render_html(log).count("not run") == len(fold.pending()) + 1, "and what waited in the queue"


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
    assert fold_data.facts(fold_of(log)) == ["1 gen, 1 select"]


def test_branches_are_lanes_of_one_fork_row() -> None:
    snapshot = snapshot_of(forked())
    fork = next(row for row in snapshot["rows"] if row["kind"] == "fork")
    assert (fork["role"], fork["arms"], fork["lane"]) == ("fork 2", [1, 2], 0)
    assert [lane["name"] for lane in snapshot["lanes"]] == ["", "0", "1"]
    assert {lane["fork"] for lane in snapshot["lanes"][1:]} == {snapshot["rows"].index(fork)}
    assert [row["lane"] for row in snapshot["rows"]] == [0, 0, 1, 2, 0]
    assert [lane["words"] for lane in snapshot["lanes"][1:]] == ["done", "done"]
    assert snapshot["lanes"][1]["values"] == [["severity", "high", "0.73"]]


def test_a_branch_says_in_words_where_it_is() -> None:
    fold = fold_of(forked(ended=False))
    page = FoldMessages(fold)
    lanes = page.snapshot()["lanes"]
    assert [(lane["state"], lane["words"]) for lane in lanes[1:]] == [
        ("running", "scoring 2 choices"),
        ("running", "decoding"),
    ]
    assert fold_data.facts(fold)[0] == "0 of 2 branches done"
    rows = {row["lane"]: row for row in page.snapshot()["rows"] if row["costs"]}
    assert rows[2]["costs"][1]["parts"] == ["starts when finding ends"]
    assert rows[1]["costs"][1]["parts"] == ["scoring 2 choices"]


@pytest.mark.parametrize(
    ("status", "state", "said"),
    [("failed", "stopped", "not run"), ("stopped", "stopped", "not run"), ("finished", "done", "done")],
)
def test_a_branch_that_asked_for_nothing_is_done_only_in_a_run_that_is(
    status: str, state: str, said: str
) -> None:
    log = a_log(ended=False)
    log.append(ev.GenDone("r1", {"completion_tokens": 3, "finish_reason": {"type": "stop"}}))
    log.append(ev.StateOpened(2, "0", 1, 1))
    log.append(ev.StateOpened(3, "1", 1, 1))
    log.append(ev.GenQueued(2, "r2", "plan", 3, 9))
    log.append(ev.GenDone("r2", {"completion_tokens": 1, "finish_reason": {"type": "stop"}}))
    fold = fold_of(log)
    page = FoldMessages(fold)
    page.snapshot()
    log.append(ev.RunFinished(status, 1.0))
    fold.feed(log.since(fold.next_seq))
    lanes = dict(page.delta()["lanes"])
    assert (lanes[2]["state"], lanes[2]["words"]) == (state, said)
    assert fold_data.lane_data(fold, fold.lanes[1])["words"] == "done"


def test_a_branch_goes_on_while_a_branch_inside_it_does() -> None:
    log = a_log(ended=False)
    log.append(ev.GenDone("r1", {"completion_tokens": 3, "finish_reason": {"type": "stop"}}))
    log.append(ev.StateOpened(2, "0", 1, 1))
    log.append(ev.StateOpened(5, "1", 1, 1))
    log.append(ev.GenQueued(2, "r2", "plan", 3, 9))
    log.append(ev.GenDone("r2", {"completion_tokens": 1, "finish_reason": {"type": "stop"}}))
    for state, name in ((3, "0.0"), (4, "0.1")):
        log.append(ev.StateOpened(state, name, 2, 1))
        log.append(ev.GenQueued(state, f"r{state}", "part", 4, 9))
    fold = fold_of(log)
    page = FoldMessages(fold)

    def outer() -> tuple[str, str]:
        told = fold_data.lane_data(fold, fold.lanes[1])
        return told["state"], told["words"]

    assert outer() == ("running", "0 of 2 branches done")
    assert fold_data.facts(fold)[0] == "0 of 2 branches done", "the head counts the outer ones"
    page.snapshot()
    log.append(ev.GenDone("r3", {"completion_tokens": 1, "finish_reason": {"type": "stop"}}))
    fold.feed(log.since(fold.next_seq))
    assert 1 in [number for number, _ in page.delta()["lanes"]], "its head is told anew"
    assert outer() == ("running", "1 of 2 branches done")
    log.append(ev.GenStarted("r4"))
    log.append(ev.GenDone("r4", {"completion_tokens": 0, "finish_reason": {"type": "abort"}}))
    fold.feed(log.since(fold.next_seq))
    assert outer() == ("done", "done")
    ended = [fold_data.lane_data(fold, lane) for lane in fold.lanes[4:]]
    assert [(one["state"], one["words"]) for one in ended] == [("stopped", "aborted")]
    assert fold_data.facts(fold)[0] == "1 of 2 branches done"


def test_a_running_gen_says_what_was_reused_of_its_prompt() -> None:
    """From when it leaves the queue; why not more is asked when it is over."""
    log = a_log(ended=False)
    log.append(ev.GenQueued(1, "r2", "more", 5, 10))
    log.append(ev.GenStarted("r2", 340, 100))
    told = cost_data(fold := fold_of(log), fold.costs()[1])
    assert (told["state"], told["cached"], told["prompt"]) == ("running", 100, 340)
    assert (told["reuse"], told["why"]) == ("100 of 340 tokens reused", "")
    assert fold.costs()[0].prompt is None
    log.append(ev.GenDone("r2", {"completion_tokens": 2, "prompt_tokens": 340, "cached_tokens": 100}))
    told = cost_data(fold := fold_of(log), fold.costs()[1])
    assert told["why"] == "Why not 340?"


def test_what_stands_above_the_line_that_failed_has_run() -> None:
    source = "s += gen('a')\ny = s['a']\nraise ValueError(y)\ns += gen('b')"
    log = ev.EventLog()
    log.append(ev.RunStarted("[1]", "1", "m", parse_program(ast.parse(source), filename="cell", name="[1]")))
    log.append(ev.StateOpened(1, ""))
    log.append(ev.GenQueued(1, "r1", "a", 1, 9))
    try:
        exec(compile(source.replace("s += gen('a')", "s = {'a': 1}"), f"{CELL_PREFIX}1>", "exec"), {})
    except ValueError as error:
        log.append(ev.RunFinished("failed", 1.0, error))
    assert [step["text"] for step in fold_of(log).pending()] == ["b"]


def test_what_waited_when_the_run_was_stopped_was_not_run() -> None:
    log = forked(ended=False)
    log.append(ev.RunFinished("stopped", 1.0))
    fold = fold_of(log)
    said = {cost.rid: cost.parts(times=False, stopped=True)[-1] for cost in fold.costs()}
    assert said == {"r2": 'stop "\\n\\n"', "r3": "stopped", "s2": "stopped", "s3": "not run"}


def test_a_turn_that_a_call_makes_is_told_as_it_is_written() -> None:
    source = 's += user(findings(forks) + "Decide: merge,\\nrevise.")\ns += user(f"Hi {who}" + "!")\n'
    graph = parse_program(ast.parse(source), filename="cell", name="[1]")
    assert [(step["text"], step["note"]) for step in steps_after(graph, Progress(0))] == [
        ('findings(forks) + "Decide: merge,\\nrevise."', "line 1, runs in Python"),
        ("Hi {who}!", ""),
    ]


def test_a_comprehension_is_told_once_and_a_loop_of_python_alone_repeats_nothing_below_it() -> None:
    source = (
        'n = sum(len(f["w"]) for f in forks)\nfor k in forks:\n    pass\nfor k in forks:\n    s += gen("a")\n'
    )
    graph = parse_program(ast.parse(source), filename="cell", name="[1]")
    assert [(step["text"], step["note"]) for step in steps_after(graph, Progress(0))] == [
        ("n = sum((len(f['w']) for f in forks))", "line 1, runs in Python"),
        ("for k in forks", "line 2, runs in Python"),
        ("for k in forks", "line 4, repeats what follows"),
        ("a", "not started"),
    ]


@pytest.mark.parametrize("seed", range(8))
def test_deltas_of_branches_add_up_to_the_snapshot(seed: int) -> None:
    dice = random.Random(seed)
    entries = forked().since(0)
    fold = ProgramFold(times=False)
    page = FoldMessages(fold)
    doc = page.snapshot()
    while entries:
        cut = dice.randint(1, 3)
        fold.feed(entries[:cut])
        entries = entries[cut:]
        for delta in [page.delta(numbers=dice.random() < 0.5), *([] if entries else [page.delta()])]:
            apply(doc, delta)
            for number, lane in delta["lanes"]:
                doc["lanes"][number : number + 1] = [lane]
    whole = snapshot_of(forked(), times=False)
    assert doc["rows"] == whole["rows"]
    assert doc["lanes"] == whole["lanes"]


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
    assert fold_data.summary(fold)[0] == ["102", "tok generated, 48 of them forced"]


def test_tokens_know_their_part_of_the_text_also_across_characters() -> None:
    from sgnb.backends.base import TokenInfo

    log = a_log(ended=False)
    grin = "\U0001f600".encode()
    tokens = (
        TokenInfo(5, -0.1, ((-0.1, 5), (-2.0, 6)), b" ok"),
        TokenInfo(7, None, (), grin[:2]),
        TokenInfo(8, -3.0, (), grin[2:], 3, 9, True, step=41),
    )
    log.append(ev.GenDelta("r1", " ok\U0001f600", 3, (), tokens))
    page = messages_of(log)
    marks = page.snapshot()["rows"][1]["segs"][1]["marks"]
    assert marks == [3, 0.905, 0, 0, -1.0, 0, 2, 0.05, 3]
    assert page.token("r1", 2) == {
        "id": 8,
        "logprob": -3.0,
        "top": [],
        "allowed": 3,
        "ruled_out": 9,
        "forced": True,
        "count": 6,
        "step": 41,
        "rid": "r1",
        "position": -1,
        "more": [5, 7, 8],
    }
    assert page.token("r1", 0)["step"] == -1, "not told, and not known while the run goes on"
    assert page.token("r1", 3) is None and page.token("nobody", 0) is None


def test_what_waits_for_a_join_is_said() -> None:
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


@pytest.mark.parametrize(
    ("times", "words"), [(True, ", grammar ready (compiled in 84 ms)"), (False, ", grammar ready")]
)
def test_a_step_to_come_says_that_its_grammar_is_ready(times: bool, words: str) -> None:
    source = (
        's += user("x") + assistant(gen("a", max_tokens=4))\n'
        's += assistant(gen("verdict", json_schema=Verdict, max_tokens=64))\n'
        's += assistant(gen("other", regex="[ab]", max_tokens=9))\n'
    )
    graph = parse_program(ast.parse(source), filename="cell", name="[1]")
    log = ev.EventLog()
    log.append(ev.RunStarted("[1]", "1", "m", graph))
    log.append(ev.GenQueued(1, "r", "a", 1, 4))
    page = messages_of(log, times=times)
    assert page.snapshot()["pending"][-2]["note"] == "not started · JSON schema Verdict · ≤\u200964 tok"
    log.append(ev.GrammarReady("json_schema", "Verdict", 0.084))
    page.fold.feed(log.since(page.fold.next_seq))
    verdict, other = page.delta()["pending"][-2:]
    assert verdict["note"] == f"not started · JSON schema Verdict{words} · ≤\u200964 tok"
    assert other["note"] == "not started · regex · ≤\u20099 tok"


def test_a_run_that_began_nothing_says_nothing_of_its_prompts() -> None:
    log = ev.EventLog()
    log.append(ev.RunStarted("[4]", "4", "stub"))
    log.append(ev.StateOpened(1, ""))
    log.append(ev.GenQueued(1, "r", "x", 2, 9))
    log.append(ev.RunFinished("failed", 0.1, ValueError("no")))
    summary = fold_data.summary(fold_of(log))
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
