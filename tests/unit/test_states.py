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
    three = begin.run(backend=backend)
    three.sync()
    assert sgl.release_states([one, three, three]) == 1  # one has no session any more
    assert [s for s in sgl.states() if id(s) not in before] == [two]
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


def test_text_behind_a_generation_that_has_ended_is_sent(backend):
    """The state's own run ends with its generation; what was appended behind it belongs to what comes."""
    state = begin.run(backend=backend)
    state += " a" + sgl.gen("y")
    state += " behind"
    assert state.core.wait_plain(lambda: state.core.finished, 10)
    state += sgl.gen("z")
    assert state["z"] == "[z:p[x:p] a[y:p[x:p] a] behind]"
    state += " more"
    branch = state.fork(1)[0]
    branch += sgl.gen("w")
    assert branch["w"] == f"[w:{state.text()}]"


def test_a_cell_goes_on_behind_what_an_earlier_run_has_not_sent(backend):
    state = begin.run(backend=backend)
    state.sync()
    state += " unsent"
    run_cell("s += gen('y')", cell_name="1", user_ns={}, start=state).drive()
    assert state["y"] == "[y:p[x:p] unsent]"


def test_a_closed_state_can_be_read_and_refuses_appends(backend):
    state = begin.run(backend=backend)
    state.sync()
    state.close()
    for act in (lambda: state.__iadd__(sgl.gen("y")), lambda: state.fork(2), state.mark):
        with pytest.raises(ProgramError, match="This state was closed"):
            act()
    assert state.text() == "p[x:p]"


def test_a_mark_that_nobody_holds_ends_its_session(backend):
    state = begin.run(backend=backend)
    state.sync()
    first = state.mark()
    sid = first.sid
    state.rewind(first)
    del first
    gc.collect()
    second = state.mark()
    state += sgl.gen("y")
    state.sync()
    assert sid in backend.released and second.sid not in backend.released
    state.rewind(second)
    state += sgl.gen("z")
    assert state["z"] == "[z:p[x:p]]"
    state.close()
    state = begin.run(backend=backend)
    state.sync()
    assert second.sid in backend.released


def test_a_mark_behind_a_stopped_generation_is_refused_and_earlier_ones_are_not():
    slow = MockBackend({"x": "x", "y": "word " * 500, "z": "z"}, delay=0.005)
    state = begin.run(backend=slow)
    state.sync()
    before = state.mark()
    state += sgl.gen("y", max_tokens=900)
    behind = state.mark()
    assert state.core.wait_plain(lambda: "word" in state.text_so_far(), 10)
    state.core.stop()
    with pytest.raises(ProgramError, match="stands behind 'y', which was stopped"):
        state.rewind(behind)
    state.rewind(before)
    state += "!" + sgl.gen("z")
    assert state["z"] == "z" and state.text() == "px!z" and slow.prompts[-1] == ("z", "px!")
    slow.shutdown()


def test_marks_made_before_a_stop_stay_though_they_were_not_sent_yet(backend):
    @sgl.function
    def prog(s):
        s += "a"
        s.kept = s.mark()
        s += " b" + sgl.gen("y")
        raise KeyboardInterrupt

    run = prog.run_async(backend=backend)
    assert run.core.wait_plain(lambda: run.core.finished, 10)
    run.state.rewind(run.state.kept)
    run.state += sgl.gen("z")
    assert run.state["z"] == "[z:a]"


@pytest.mark.parametrize("end", ["close", "rewind"])
def test_branches_keep_what_their_parent_had_under_way(end):
    slow = MockBackend({"x": "x", "y": "one two three four five six", "z": "z"}, delay=0.005)
    state = begin.run(backend=slow)
    mark = state.mark()
    state += sgl.gen("y")
    branch = state.fork(1)[0]
    state.close() if end == "close" else state.rewind(mark)
    branch += sgl.gen("z")
    assert branch["z"] == "z" and branch.text() == "pxone two three four five sixz"
    assert slow.prompts[-1] == ("z", "pxone two three four five six")
    if end == "rewind":
        assert state.text() == "px"
    slow.shutdown()


def test_what_fails_for_branches_does_not_fail_the_parent_that_went_back():
    slow = MockBackend({"x": "x", "y": [RequestError("boom")], "z": "z"}, delay=0.02)
    state = begin.run(backend=slow)
    mark = state.mark()
    state.sync()
    state += sgl.gen("y")
    branch = state.fork(1)[0]
    state.rewind(mark)
    assert isinstance(branch.error(), RequestError)
    state += sgl.gen("z")
    assert state["z"] == "z"
    slow.shutdown()


def test_best_of_branches_that_an_earlier_run_made(backend):
    state = begin.run(backend=backend)
    group = state.fork(2)
    for number, branch in enumerate(group):
        branch += sgl.gen("y")
        branch.sync()
        branch += f" end {number}"
    group.join("best", by=lambda branch: branch is group[1])
    state += sgl.gen("z")
    assert state["z"] == "[z:p[x:p][y:p[x:p]] end 1]"
