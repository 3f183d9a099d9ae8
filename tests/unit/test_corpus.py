"""Compiled and eager execution give the same result over the whole corpus."""

from __future__ import annotations

import pytest
from corpus.case import Case, load, notes
from corpus.cells import CELLS

from sgnb.backends.mock import MockBackend
from sgnb.errors import SgnbError
from sgnb.lang.instruction import Decode
from sgnb.lang.position import span_of
from sgnb.runtime.core import Core
from sgnb.runtime.events import HostNote
from sgnb.runtime.program import eager_execution
from sgnb.runtime.run import run_cell
from sgnb.runtime.state import State

CASES = load()
TIMEOUT = 20.0


def plain(value):
    """A value of a run that can be compared: states by their text, errors by type and words."""
    if isinstance(value, State):
        return ("state", value.text_so_far())
    if isinstance(value, BaseException):
        return (type(value).__name__, value.message if isinstance(value, SgnbError) else str(value))
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value


def attempt(function):
    try:
        return plain(function())
    except BaseException as error:
        return ("raised", plain(error))


def observe(case: Case, start):
    """Everything a user can see of one run."""
    notes.lines.clear()
    backend = MockBackend(case.script)
    error = None
    try:
        state = start(backend)
    except BaseException as raised:
        error, state = raised, None
    seen = {"error": plain(error) if error else None, "notes": list(notes.lines)}
    if error is not None:
        seen["chain"] = plain([error.__cause__, error.__context__])
    if state is not None:
        state.error()
        seen |= {
            "text": state.text_so_far(),
            "messages": attempt(state.messages),
            "variables": {name: attempt(lambda name=name: state[name]) for name in list(state._values)},
            "value": attempt(lambda: state.ret_value),
            "finish": {
                n: attempt(lambda n=n: state.get_meta_info(n).get("finish")) for n in list(state._values)
            },
        }
    seen["prompts"] = sorted(backend.prompts) if error is None else None  # a failed body stops what it began
    backend.shutdown()
    return seen


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_compiled_equals_eager(case):
    run = case.program.run
    compiled = observe(case, lambda b: run(*case.args, backend=b, seed=1, **case.kwargs))
    with eager_execution():
        eager = observe(case, lambda b: run(*case.args, backend=b, seed=1, **case.kwargs))
    assert compiled == eager
    assert case.eager in case.program.program.reason
    assert bool(case.program.program.reason) == bool(case.eager), case.program.program.reason


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_pool_equals_calling_thread(case):
    def on_pool(backend):
        run = case.program.run_async(*case.args, backend=backend, seed=1, **case.kwargs)
        run.driver.help_until(lambda: run.core.finished, TIMEOUT)
        assert run.done
        if run.core.body_error is not None:
            raise run.core.body_error
        return run.state

    run = case.program.run
    assert observe(case, on_pool) == observe(
        case, lambda b: run(*case.args, backend=b, seed=1, **case.kwargs)
    )


@pytest.mark.parametrize("name", CELLS)
def test_cells_compiled_equal_eager(name):
    text, names = CELLS[name]

    def go():
        backend = MockBackend(["a", "b", "c", "d"])
        run = run_cell(text, cell_name=name, user_ns=dict(names), backend=backend, defaults={"seed": 3})
        value = attempt(run.drive)
        assert run.done
        notes_ = [e.event.text for e in run.log.since(0) if isinstance(e.event, HostNote)]
        return value, run.status, run.state.text_so_far(), sorted(backend.prompts), notes_, run

    *compiled, run = go()
    with eager_execution():
        *eager, _ = go()
    assert compiled == eager
    assert run.log.since(0)[0].event.eager_reason == ""


def test_share_of_compiled_programs():
    eager = [case.name for case in CASES if case.program.program.reason]
    assert len(CASES) >= 120
    assert len(eager) <= len(CASES) // 10, eager


def test_every_recorded_operation_lies_on_the_graph(monkeypatch):
    """The graph never lies about a run: each operation is covered by a node of its program's graph."""
    recorded = []
    original = Core.record

    def record(self, op):
        recorded.append(op)
        original(self, op)

    monkeypatch.setattr(Core, "record", record)
    matched = 0
    for case in CASES:
        if case.program.program.reason:
            continue
        recorded.clear()
        observe(case, lambda b, case=case: case.program.run(*case.args, backend=b, **case.kwargs))
        graph = case.program.program.graph
        graph.validate()
        for op in recorded:
            place = op.place
            if place is None or place.code.co_filename != graph.filename:
                continue
            span = span_of(place)
            if not graph.span.covers(span):
                continue  # a helper's or another program's code: it has a graph of its own
            node = graph.find(span)
            assert node is not None, (case.name, op, span)
            matched += 1
    assert matched > 150


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_one_message_per_block(case):
    """Without reads and host code a whole program is one message; never more messages than generations and reads."""
    backend = MockBackend(case.script)
    attempt(lambda: case.program.run(*case.args, backend=backend, **case.kwargs).error())
    compiled = len(backend.log)
    with eager_execution():
        other = MockBackend(case.script)
        attempt(lambda: case.program.run(*case.args, backend=other, **case.kwargs).error())
    assert compiled <= len(other.log)
    if case.name == "branches.parent_fails":
        return  # an eager run knows of the failure before it comes to the branches, and sends nothing of theirs
    decodes = [op for block in backend.log for op in block.instructions if isinstance(op, Decode)]
    assert [op.name for op in decodes] == [
        op.name for block in other.log for op in block.instructions if isinstance(op, Decode)
    ]
