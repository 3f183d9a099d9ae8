"""The graph view's data: nodes of each stage, what a pass did, why it is allowed, and the instructions."""

from __future__ import annotations

import pytest

import sgnb as sgl
from sgnb.backends.mock import MockBackend
from sgnb.lang.passes import PASSES
from sgnb.runtime.explain import explain_data, progress_of, run_data
from sgnb.widgets.tables import graph_table, html_of, text_of


@sgl.function
def votes(s, question):
    s += "You are one of several judges. " + "Answer in one word. " + question
    forks = s.fork(3)
    for i, f in enumerate(forks):
        f += "All arms of this fork begin with these words, which are long enough. " + f"Judge {i}: "
        f += sgl.gen("vote", max_tokens=4, temperature=0)
    forks.join()
    total = len(s["vote"])
    s += f"{total} votes. " + sgl.gen("final", max_tokens=8, stop="\\n")


@sgl.function
def wrong(s):
    s += "Hello " + sgl.gen("x", max_tokens=4)
    s += sgl.gen("y", json_schema="{nope")


def of(data: dict, name: str) -> tuple[int, dict]:
    return next((n, p) for n, p in enumerate(data["passes"]) if p["name"] == name)


def test_every_pass_is_told_with_its_nodes() -> None:
    data = explain_data(votes, question="Is it?")
    names = [record["name"] for record in data["passes"]]
    assert names == ["parse", *(step.name for step in PASSES), "lower"]
    assert len(data["stages"]) == len(data["instructions"]) == len(PASSES) + 1
    for number, record in enumerate(data["passes"][1:-1], 1):
        assert record["before"] == len(data["stages"][number - 1])
        assert record["after"] == len(data["stages"][number])
        if record["changed"]:
            assert record["did"] and record["why"].endswith("The output is the same, token for token.")
            assert data["instructions"][number] != data["instructions"][number - 1]
        else:
            assert record["note"].startswith("no change: ") and not record["did"]
            assert data["stages"][number] == data["stages"][number - 1]


def test_hoisting_is_shown_as_a_text_that_stands_once() -> None:
    data = explain_data(votes, question="Is it?")
    number, record = of(data, "hoist_prefix")
    assert record["changed"]
    common = "All arms of this fork begin"
    before, after = ([n for n in data["stages"][k] if common in n[3]] for k in (number - 1, number))
    assert (len(before), len(after)) == (3, 1)
    assert record["did"].startswith("What the arms begin with is appended once: ")
    keys = [{node[0] for node in data["stages"][k]} for k in (number - 1, number)]
    assert len(keys[1] - keys[0]) == record["after"] - record["before"] and not keys[0] - keys[1]
    assert after[0][0] in keys[1] - keys[0], "what was hoisted is new, not the text it was taken from"


def test_nodes_of_one_stage_have_keys_of_their_own() -> None:
    @sgl.function
    def counted(s):
        for _ in range(3):
            s += "Say a word. "
            s += sgl.gen("word", max_tokens=2)

    for program, args in ((votes, {"question": "Is it?"}), (counted, {})):
        for nodes in explain_data(program, **args)["stages"]:
            assert len({node[0] for node in nodes}) == len(nodes)


def test_a_group_is_one_node_over_its_arms_and_python_stands_where_it_runs() -> None:
    data = explain_data(votes, question="Is it?")
    number, record = of(data, "group_generations")
    groups = [node for node in data["stages"][number] if node[1] == "Generate" and node[2] == "vote"]
    assert [node[5] for node in groups] == [(1, 2, 3)]
    assert "3 Generate vote" in record["did"] and "became one group" in record["did"]
    ops = [node[1] for node in data["stages"][0]]
    assert ops.index("Join") < ops.index("Host", ops.index("Join")) < len(ops) - 1
    host = next(node for node in data["stages"][0] if "total" in node[3])
    assert data["source"][str(host[4])].strip() == 'total = len(s["vote"])'


def test_every_recorded_node_has_the_line_of_its_text() -> None:
    data = explain_data(votes, question="Is it?")
    for key, op, name, *_rest in data["stages"][0]:
        line = data["source"].get(str(_rest[1]), "")
        if op in ("Generate", "Select"):
            assert f'"{name}"' in line, (key, line)


def test_a_mistake_stands_on_its_node() -> None:
    data = explain_data(wrong)
    (error,) = data["errors"]
    assert "json_schema is not JSON" in error["text"]
    node = next(node for node in data["stages"][0] if node[4] == error["line"])
    assert node[1:3] == ["Generate", "y"]
    assert "json_schema is not JSON" in text_of(graph_table(data))


def test_a_run_is_shown_from_what_it_recorded_and_nothing_runs_again() -> None:
    calls = []

    @sgl.function
    def counted(s):
        calls.append(1)
        s += "Say: " + sgl.gen("x", max_tokens=3)

    state = counted.run(backend=MockBackend(["one", "two"]))
    state.sync()
    data = run_data(state.core)
    assert calls == [1]
    assert [node[1] for node in data["stages"][0]][:3] == ["Host", "Text", "Generate"]
    assert [told[0] for told in data["progress"].values()] == ["done"]
    assert run_data(state.core)["stages"] == data["stages"]


def test_progress_is_counted_on() -> None:
    @sgl.function
    def one(s):
        s += "Say: " + sgl.gen("x", max_tokens=3)

    state = one.run(backend=MockBackend(["one two"]))
    state.sync()
    entries = state.core.log.since(0)
    whole = progress_of(entries)
    half = progress_of(entries[3:], progress_of(entries[:3]))
    assert half == whole and len(whole) == 1


def test_the_static_form_has_every_pass_and_no_time_in_the_deterministic_mode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SGNB_DETERMINISTIC", "1")
    first, second = (explain_data(votes, question="Is it?") for _ in range(2))
    assert [p["seconds"] for p in first["passes"]] == [None] * len(first["passes"])
    assert text_of(graph_table(first)) == text_of(graph_table(second))
    for record in first["passes"]:
        for word in (record["name"], record["note"], record["did"], record["why"]):
            assert " ".join(word.split()) in " ".join(text_of(graph_table(first)).split())
    assert ">hoist_prefix</td>" in html_of(graph_table(first))


def test_text_that_leaves_before_host_code_adds_no_lane_and_is_committed() -> None:
    @sgl.function
    def tools(s):
        s += "A long text. " * 100
        sorted("tool")
        s += sgl.gen("x")

    data = explain_data(tools)
    number, record = of(data, "commit_prefixes")
    assert record["changed"] and any(node[1] == "Commit" for node in data["stages"][number])
    assert {lane for node in data["stages"][-1] for lane in node[5]} == {0}


def test_as_text_the_sentences_of_a_pass_stand_below_its_line() -> None:
    data = {
        "name": "two",
        "compiled": True,
        "passes": [
            {"name": "parse", "note": "6 nodes", "did": "", "why": ""},
            {"name": "fold_text", "note": "6 to 5 nodes", "did": "One word. " * 20, "why": "It is the same."},
        ],
    }
    lines = text_of(graph_table(data)).split("\n")
    assert lines[1:4] == ["   pass       nodes", "0  parse      6 nodes", "1  fold_text  6 to 5 nodes"]
    assert lines[4].startswith("     what it did: One word.")
    assert lines[-1] == "     why it is allowed: It is the same."
    assert max(map(len, lines)) <= 100
