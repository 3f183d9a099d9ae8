"""Which constraints of a cell are compiled before their generations begin, and what is logged of it."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from sgnb.constraints import Constraint
from sgnb.errors import EngineError
from sgnb.grammars_ahead import compile_ahead
from sgnb.lang.frontend.constants import constraints_ahead
from sgnb.lang.frontend.graph import parse_program
from sgnb.runtime import events as ev

SOURCE = """
s += gen("first", regex="[ab]+")
s += gen("verdict", json_schema=Verdict)
s += gen("again", json_schema=Verdict)
Mine = make_it()
s += gen("mine", json_schema=Mine)
s += gen("digits", regex="[0-9]+")
s += gen("broken", regex="(")
s += gen("computed", regex="a" + tail)
s += gen("strange", json_schema=Strange)
s += gen("unknown", json_schema=Unknown)
"""


@dataclass
class Verdict:
    decision: str


class Strange:
    @staticmethod
    def model_json_schema() -> None:
        raise RuntimeError("not today")

    model_validate_json = None


NAMES = {"Verdict": Verdict, "Mine": Verdict, "Strange": Strange, "tail": "b"}


class FakeEngine:
    """Answers each constraint with so many seconds; refuses patterns of digits."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def ask(self, verb: str, args: dict[str, Any], timeout: float) -> dict[str, Any]:
        assert verb == "compile_grammar" and timeout > 5
        self.asked.append(args)
        if args["kind"] == "regex":
            raise EngineError("no")
        return {"seconds": 0.084}


def graph_of(source: str) -> Any:
    return parse_program(ast.parse(source), filename="cell", name="[1]")


def test_what_is_known_before_its_generation_is_compiled_ahead() -> None:
    """Not the first one's, which is compiled anyhow; not what the program's own Python may change or computes."""
    found = constraints_ahead(graph_of(SOURCE), NAMES)
    assert set(found) == {("json_schema", "Verdict"), ("regex", "'[0-9]+'")}
    assert found["regex", "'[0-9]+'"] == Constraint("regex", "[0-9]+")
    assert '"decision"' in found["json_schema", "Verdict"].text


def test_of_a_cell_whose_branches_are_python_the_first_one_seen_is_ahead_too() -> None:
    source = """
for f, angle in zip(s.fork(3), ["a", "b", "c"]):
    f += gen("finding")
s += gen("verdict", json_schema=Verdict)
"""
    assert set(constraints_ahead(graph_of(source), NAMES)) == {("json_schema", "Verdict")}
    assert not constraints_ahead(graph_of('s += gen("verdict", json_schema=Verdict)'), NAMES)


def test_answers_are_logged_once_a_generation_is_queued() -> None:
    log, engine = ev.EventLog(), FakeEngine()
    log.append(ev.RunStarted("[1]", "1", "m", graph_of(SOURCE)))
    thread = compile_ahead(log, NAMES, lambda: engine)
    assert thread is not None and not engine.asked
    log.append(ev.GenQueued(1, "r", "first", 2, 9))
    thread.join(30)
    assert [args["kind"] for args in engine.asked] == ["json_schema", "regex"]
    ready = [entry.event for entry in log.since(2)]
    assert ready == [ev.GrammarReady("json_schema", "Verdict", 0.084)], (
        "a refusal is its generation's to tell"
    )


def test_a_run_that_ends_before_leaves_no_thread() -> None:
    log = ev.EventLog()
    log.append(ev.RunStarted("[1]", "1", "m", graph_of(SOURCE)))
    thread = compile_ahead(log, NAMES, lambda: None)
    assert thread is not None
    log.append(ev.RunFinished("stopped", 0.1))
    thread.join(30)
    assert not thread.is_alive()


def test_a_cell_without_later_constraints_needs_no_thread() -> None:
    for source in ('s += gen("a", regex="[ab]")', 's += "x" + gen("a") + gen("b")'):
        log = ev.EventLog()
        log.append(ev.RunStarted("[1]", "1", "m", graph_of(source)))
        assert compile_ahead(log, NAMES, lambda: None) is None
