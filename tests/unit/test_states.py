"""States that outlive their cell: appended to, forked, continued, rewound, listed, saved and loaded."""

from __future__ import annotations

import gc
import json

import pytest

import sgnb as sgl
from sgnb.backends.mock import HANG, MockBackend
from sgnb.errors import ProgramError, RequestError, SgnbError
from sgnb.lang.instruction import Init
from sgnb.runtime.events import TextAppended
from sgnb.runtime.run import run_cell


def echo(prompt, name, params):
    return f"[{name}:{prompt}]"


@pytest.fixture
def backend():
    made = MockBackend(echo)
    yield made
    made.shutdown()


@sgl.function
def begin(s):
    s += "p" + sgl.gen("x")


def inits(backend):
    return [op.sid for block in backend.log for op in block.instructions if isinstance(op, Init)]


def test_D5_a_state_goes_on_after_its_run(backend):
    state = begin.run(backend=backend)
    state.sync()
    state += " more" + sgl.gen("y")
    assert state["y"] == "[y:p[x:p] more]"
    forks = state.fork(2)
    for i, fork in enumerate(forks):
        fork += f" {i}" + sgl.gen("z")
    assert [fork["z"] for fork in forks] == [f"[z:{state.text()} {i}]" for i in range(2)]
    forks.join()
    assert len(state["z"]) == 2
    assert len(inits(backend)) == 1


def test_a_cell_goes_on_with_a_state(backend):
    first = run_cell("s += 'p' + gen('x')", cell_name="1", user_ns={}, backend=backend)
    first.drive()
    second = run_cell(
        "s += ' q' + gen('y', n=1)\ns['x']", cell_name="2", user_ns={}, start=first.state, defaults={"max_new_tokens": 3}
    )  # fmt: skip
    second.drive()
    assert second.value == "[x:p]" and second.state is first.state
    assert second.state.text() == "p[x:p] q[y:"
    assert second.status == "finished" and len(inits(backend)) == 1
    third = run_cell("f = s.fork(2)\nf += gen('z')\nf.join()", cell_name="3", user_ns={}, start=first.state)
    third.drive()
    assert len(first.state["z"]) == 2


def test_states_a_cell_cannot_go_on_with(backend):
    failing = MockBackend({"x": RequestError("boom")})
    failed = begin.run(backend=failing)
    failed.error()
    closed = begin.run(backend=backend)
    closed.sync()
    closed.close()
    joined = begin.run(backend=backend)
    group = joined.fork(1)
    group.join()
    hanging = MockBackend({"x": HANG})

    @sgl.function
    def waits(s):
        s += sgl.gen("x")
        return s["x"]

    running = waits.run_async(backend=hanging)
    cases = [
        (failed, failing, "has failed"),
        (closed, backend, "joined or closed"),
        (group[0], backend, "joined or closed"),
        (running.state, hanging, "still runs"),
        (joined, MockBackend(), "another engine"),
    ]
    for state, where, message in cases:
        with pytest.raises(ProgramError, match=message):
            run_cell("s += 'x'", cell_name="1", user_ns={}, backend=where, start=state)
    running.cancel()
    failing.shutdown()
    hanging.shutdown()


def test_rewind_takes_back_text_variables_turns_and_role(backend):
    @sgl.function
    def prog(s):
        with s.user():
            s += "q"
        s += sgl.assistant_begin()
        mark = s.mark()
        texts = []
        for i in range(3):
            s += f"{i}" + sgl.gen("x")
            s += sgl.assistant_end()
            texts.append((s["x"], len(s.messages())))
            s.rewind(mark)
        s += "last" + sgl.gen("y")
        s += sgl.assistant_end()
        return texts, "x" in s

    state = prog.run(backend=backend)
    texts, bound = state.ret_value
    prefix = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
    assert texts == [(f"[x:{prefix}{i}]", 2) for i in range(3)] and not bound
    assert state.messages()[1]["content"] == f"last[y:{prefix}last]"
    assert len(inits(backend)) == 1


def test_rewind_stops_what_is_under_way_and_forgets_a_failure():
    backend = MockBackend({"x": [HANG, RequestError("boom"), "fine"]})
    state = begin.run(backend=MockBackend("done"))
    state.sync()

    @sgl.function
    def prog(s):
        s += "p"
        mark = s.mark()
        s += sgl.gen("x")
        s.core.flush()
        s.rewind(mark)
        s += sgl.gen("x")
        error = s.error()
        s.rewind(mark)
        s += sgl.gen("x")
        return error.message

    state = prog.run(backend=backend)
    assert state.ret_value == "boom" and state.text() == "pfine" and len(backend.aborted) == 1
    backend.shutdown()


def test_rewound_generations_have_other_seeds():
    seeds = []

    def script(prompt, name, params):
        seeds.append(params.seed)
        return "x"

    backend = MockBackend(script)

    @sgl.function
    def prog(s):
        mark = s.mark()
        for _ in range(3):
            s += sgl.gen("x")
            s.sync()
            s.rewind(mark)

    prog.run(backend=backend, seed=1)
    prog.run(backend=backend, seed=1)
    assert len(set(seeds)) == 3 and seeds[:3] == seeds[3:]
    backend.shutdown()


def test_wrong_marks(backend):
    state, other = begin.run(backend=backend), begin.run(backend=backend)
    mark = state.mark()
    for wrong in (other.mark(), None, 3):
        with pytest.raises(ProgramError, match="mark of this state"):
            state.rewind(wrong)
    state.close()
    with pytest.raises(ProgramError, match="cannot be rewound"):
        state.rewind(mark)


def test_states_are_listed_and_released(backend):
    gc.collect()
    before = set(map(id, sgl.states()))
    one, two = begin.run(backend=backend), begin.run(backend=backend)
    one.sync(), two.sync()
    assert [s for s in sgl.states() if id(s) not in before] == [one, two]
    one.close()
    assert [s for s in sgl.states() if id(s) not in before] == [two]
    assert one.text() == "p[x:p]"
    assert sgl.release_states() >= 1 and sgl.states() == []


def test_save_and_load_keep_text_variables_messages_and_meta(backend, tmp_path):
    @sgl.function
    def prog(s):
        s += sgl.system("brief")
        with s.user():
            s += "q <|im_end|>"
        with s.assistant():
            s += "a" + sgl.gen("x", temperature=0) + sgl.select("pick", ["one", "two"])
        forks = s.fork(2)
        forks += sgl.gen("y")
        forks.join()
        s["kept"] = {"a": [1, None]}
        s += sgl.user_begin() + "open"

    state = prog.run(backend=backend, seed=4)
    path = tmp_path / "state.json"
    state.save(path)
    other = MockBackend(echo)
    loaded = sgl.load_state(path, backend=other)
    assert loaded.text() == state.text() and loaded.messages() == state.messages()
    for name in ("x", "pick", "y", "kept"):
        assert loaded[name] == state[name]
        assert loaded.get_meta_info(name) == json.loads(json.dumps(state.get_meta_info(name)))
    loaded += sgl.gen("z")
    assert loaded["z"] == f"[z:{state.text()}]"
    assert loaded.role == "user"
    other.shutdown()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "no saved state"),
        ("[]", "no saved state"),
        ('{"format": "sgnb-state", "version": 99}', "version 99"),
        ('{"format": "sgnb-state", "version": 1}', "'branch' is missing"),
        (
            '{"format": "sgnb-state", "version": 1, "branch": "", "path": "0", "seed": 1, "gens": 0, "unnamed": 0,'
            ' "steps": [["begin", "robot"]], "variables": {}}',
            "the step",
        ),
        (
            '{"format": "sgnb-state", "version": 1, "branch": "", "path": "0", "seed": 1, "gens": 0, "unnamed": 0,'
            ' "steps": [], "variables": {"x": 1}}',
            "variable 'x' is wrong",
        ),
    ],
)
def test_foreign_files_are_refused(tmp_path, backend, text, message):
    path = tmp_path / "state.json"
    path.write_text(text)
    with pytest.raises(ProgramError, match=message):
        sgl.load_state(path, backend=backend)


def test_what_cannot_be_saved_is_named(backend, tmp_path):
    state = begin.run(backend=backend)
    state["thing"] = object()
    with pytest.raises(ProgramError, match="'thing' cannot be saved"):
        state.save(tmp_path / "x.json")
    failing = MockBackend({"x": RequestError("boom")})
    with pytest.raises(SgnbError, match="boom"):
        begin.run(backend=failing).save(tmp_path / "x.json")
    assert not list(tmp_path.iterdir())
    failing.shutdown()


def test_a_cell_shows_what_it_appends_after_a_mark_or_a_fork_outside_of_cells():
    backend = MockBackend("v")
    first = run_cell("s += 'a' + gen('x')", cell_name="1", user_ns={}, backend=backend)
    first.drive()
    state = first.state
    mark = state.mark()
    for number, back in enumerate((False, True)):
        if back:
            state.rewind(mark)
        run = run_cell(
            "chat += user('again') + gen('y')",
            cell_name=f"{number}",
            user_ns={"chat": state},
            backend=backend,
        )
        run.drive()
        texts = [e.event.text for e in run.log.since(0) if isinstance(e.event, TextAppended)]
        assert texts == ["again"] and state["y"] == "v"
    backend.shutdown()
