"""Branches: what they begin with, what a join gives back, what happens to failed and dropped ones."""

from __future__ import annotations

import gc
import time

import pytest

import sgnb as sgl
from sgnb.backends.mock import HANG, MockBackend
from sgnb.errors import LimitError, ProgramError, ProgramTypeError, RequestError, SgnbError, UnknownVariable
from sgnb.lang.instruction import Decode, Fork
from sgnb.runtime.events import StateOpened
from sgnb.runtime.program import eager_execution
from sgnb.runtime.run import run_cell

TIMEOUT = 20.0


def echo(prompt, name, params):
    """An answer that tells its prompt."""
    return f"[{name}:{prompt}]"


@pytest.fixture
def backend():
    made = MockBackend(echo)
    yield made
    made.shutdown()


def wait_for(condition):
    end = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.dsl
@pytest.mark.parametrize("text", ["", None, "t"])
def test_B113_fork_before_any_text(backend, text):
    @sgl.function
    def prog(s):
        if text is not None:
            s += text
        forks = s.fork(2)
        forks += lambda i: f"b{i}"
        forks += sgl.gen("x", temperature=0)
        forks.join()
        return s["x"]

    assert prog.run(backend=backend).ret_value == [f"[x:{text or ''}b0]", f"[x:{text or ''}b1]"]


def test_branches_are_independent_and_parent_goes_on(backend):
    @sgl.function
    def prog(s):
        s.set_var("kept", 1)
        s += "p"
        a, b = s.fork(2)
        a += "a" + sgl.gen("x")
        s += "q" + sgl.gen("x")
        b += "b" + sgl.gen("x")
        a.set_var("kept", 2)
        return a.text(), b.text(), s.text(), b["kept"], s["kept"], a["kept"]

    assert prog.run(backend=backend).ret_value == ("pa[x:pa]", "pb[x:pb]", "pq[x:pq]", 1, 1, 2)


def test_gather_takes_only_what_was_bound_after_the_fork(backend):
    @sgl.function
    def prog(s):
        s += sgl.gen("before")
        s.set_var("same", "old")
        forks = s.fork(2)
        for i, f in enumerate(forks):
            f += sgl.gen("after")
            f.set_var("number", i)
            if i:
                f.set_var("only", "one")
                f.set_var("before", "new")
        forks.join()

    state = prog.run(backend=backend)
    assert state["same"] == "old" and state["number"] == [0, 1] and state["only"] == [None, "one"]
    assert state["before"] == [None, "new"]
    assert state["after"] == ["[after:[before:]]"] * 2
    assert [meta["finish"] for meta in state.get_meta_info("after")] == ["eos", "eos"]  # D12
    assert state.text() == "[before:]"


def test_a_joined_branch_is_readable_and_refuses_appends(backend):
    @sgl.function
    def prog(s):
        forks = s.fork(1)
        forks[0] += "x" + sgl.gen("v")
        forks.join()
        text = forks[0].text()
        try:
            forks[0] += "more"
        except ProgramError as error:
            return text, error.message, error.position.text.strip()

    text, message, line = prog.run(backend=backend).ret_value
    assert text == "x[v:x]" and "was joined" in message and line == 'forks[0] += "more"'


@pytest.mark.parametrize("eager", [False, True])
def test_concate_and_append_repeats_texts_turns_and_generated_text(backend, eager):
    @sgl.function
    def prog(s):
        s += "base "
        forks = s.fork(2)
        for i, f in enumerate(forks):
            f += sgl.user(f"<{i}>")
            f += sgl.assistant(sgl.gen("v", max_tokens=4))
        forks.join("concate_and_append")
        s += "end" + sgl.gen("last")

    run = prog.run
    if eager:
        with eager_execution():
            state = run(backend=backend)
            state.sync()
    else:
        state = run(backend=backend)
    turns = [
        f"<|im_start|>user\n<{i}><|im_end|>\n<|im_start|>assistant\n[v:base<|im_end|>\n" for i in range(2)
    ]
    prompt = "base " + "".join(turns) + "end"
    assert state.text() == prompt + f"[last:{prompt}]"
    assert [m["role"] for m in state.messages()] == ["user", "assistant"] * 2
    assert "v" not in state


def test_fork_and_join_need_one_message_where_nothing_is_read(backend):
    @sgl.function
    def parallel(s):
        s += "docs: "
        forks = s.fork(3)
        forks += lambda i: f"doc {i} "
        forks.join("concate_and_append")
        s += sgl.gen("answer")

    parallel.run(backend=backend).sync()
    assert len(backend.log) == 1
    assert not any(isinstance(op, Fork) for op in backend.log[0].instructions)  # nothing generated in them

    @sgl.function
    def arms(s):
        s += "p"
        forks = [f for f in s.fork(3) if f is not s]
        for f in forks:
            f += "x" + sgl.gen("v")
        return [f["v"] for f in forks]

    other = MockBackend(echo)
    assert arms.run(backend=other).ret_value == ["[v:px]"] * 3
    assert len(other.log) == 1
    assert sum(isinstance(op, Fork) for op in other.log[0].instructions) == 1
    other.shutdown()


def test_copy_is_a_joined_branch(backend):
    @sgl.function
    def prog(s):
        s += "p"
        with s.copy() as c:
            c += "c" + sgl.gen("v")
        s += "q"
        return c.text()

    state = prog.run(backend=backend)
    assert state["v"] == ["[v:pc]"] and state.text() == "pq" and state.ret_value == "pc[v:pc]"


def test_nested_forks_have_paths_labels_and_parents(backend):
    text = (
        "s += 'p'\nouter = s.fork(2)\nfor o in outer:\n    inner = o.fork(2)\n    inner += gen('x')\n"
        "    inner.join()\nouter.join()\ns['x']"
    )
    run = run_cell(text, cell_name="7", user_ns={}, backend=backend, defaults={"seed": 1})
    run.drive()
    assert run.value == [["[x:p]"] * 2] * 2
    decodes = [op for block in backend.log for op in block.instructions if isinstance(op, Decode)]
    assert [f"{op.cell}.{op.branch} {op.name}" for op in decodes] == [
        "7.0.0 x", "7.0.1 x", "7.1.0 x", "7.1.1 x"
    ]  # fmt: skip
    assert len({op.params.seed for op in decodes}) == 4
    opened = [e.event for e in run.log.since(0) if isinstance(e.event, StateOpened)]
    assert [(e.branch, e.parent) for e in opened] == [
        ("", None), ("0", 0), ("1", 0), ("0.0", 1), ("0.1", 1), ("1.0", 2), ("1.1", 2)
    ]  # fmt: skip


def test_a_failed_branch_is_reported_where_the_join_is_read_and_siblings_finish():
    backend = MockBackend({"x": ["one", RequestError("boom"), "three"]})

    @sgl.function
    def prog(s):
        forks = s.fork(3)
        for f in forks:
            f += sgl.gen("x")
        forks.join()
        try:
            return s["x"]
        except SgnbError as error:
            return error.message, error.position.text.strip(), forks[0]["x"], forks[2]["x"]

    message, line, first, third = prog.run(backend=backend).ret_value
    assert (message, line, first, third) == ("branch 1: boom", 'f += sgl.gen("x")', "one", "three")
    backend.shutdown()


@pytest.mark.parametrize("mode", ["gather_variable", "concate_and_append"])
def test_a_failed_branch_nobody_reads_fails_the_cell(mode):
    backend = MockBackend({"x": [RequestError("boom"), "fine"]})
    text = f"forks = s.fork(2)\nforks += gen('x')\nforks.join('{mode}')\ns += 'after'"
    run = run_cell(text, cell_name="1", user_ns={}, backend=backend)
    with pytest.raises(SgnbError, match="boom") as caught:
        run.drive()
    assert caught.value.position.line == 2 and run.done
    backend.shutdown()


def test_a_parents_failure_is_its_branches():
    backend = MockBackend({"a": RequestError("boom"), "b": "fine"})

    @sgl.function
    def prog(s):
        s += sgl.gen("a")
        forks = s.fork(2)
        forks += sgl.gen("b")
        grand = forks[0].fork(1)[0]
        return forks, grand

    state = prog.run(backend=backend)
    forks, grand = state.ret_value
    for branch in (*forks, grand):
        with pytest.raises(SgnbError, match="boom"):
            branch.sync()
    with pytest.raises(SgnbError, match="boom"):
        forks[1]["b"]
    late = state.fork(2)
    with pytest.raises(SgnbError, match="boom"):
        late[0].text()
    backend.shutdown()


def test_branches_of_a_text_still_under_way_wait_for_it():
    backend = MockBackend(echo, delay=0.002)

    @sgl.function
    def prog(s):
        s += "p" + sgl.gen("slow")
        forks = s.fork(2)
        forks += "f" + sgl.gen("x")
        del s
        return [f["x"] for f in forks]

    assert prog.run(backend=backend).ret_value == ["[x:p[slow:p]f]"] * 2
    backend.shutdown()


def test_dropped_branches_are_stopped_and_released():
    backend = MockBackend({"x": HANG, "y": "fine"})

    @sgl.function
    def prog(s):
        s += "p"
        forks = s.fork(3)
        forks += sgl.gen("x")
        s += sgl.gen("y")
        return s["y"]

    run = prog.run_async(backend=backend)
    assert run.result(TIMEOUT).ret_value == "fine"
    sids = next(op.children for block in backend.log for op in block.instructions if isinstance(op, Fork))
    gc.collect()
    wait_for(lambda: set(sids) <= set(backend.released))
    assert run.done and not run.core.slots


def test_a_branch_whose_joined_value_is_wanted_is_not_dropped():
    backend = MockBackend(echo, delay=0.005)

    @sgl.function
    def prog(s):
        forks = s.fork(2)
        forks += sgl.gen("x")
        forks.join()

    assert prog.run(backend=backend)["x"] == ["[x:]"] * 2
    backend.shutdown()


def test_joined_sessions_are_released(backend):
    @sgl.function
    def prog(s):
        forks = s.fork(2)
        forks += sgl.gen("x")
        forks.join()
        return s["x"], forks

    state = prog.run(backend=backend)
    sids = {branch.sid for branch in state.ret_value[1]}
    wait_for(lambda: sids <= set(backend.released))
    assert state.sid not in backend.released


def test_limits(backend):
    @sgl.function
    def prog(s, size):
        return len(s.fork(size))

    assert prog.run(1024, backend=backend).ret_value == 1024
    for size, kind in ((1025, LimitError), (0, LimitError), (-1, LimitError), ("2", ProgramTypeError),
                       (True, ProgramTypeError)):  # fmt: skip
        with pytest.raises(kind):
            prog.run(size, backend=backend)

    @sgl.function
    def deep(s, levels):
        s += "x"
        for _ in range(levels):
            s = s.fork(1)[0]
        return s.text()

    assert deep.run(32, backend=backend).ret_value == "x"
    with pytest.raises(LimitError, match="32 deep"):
        deep.run(33, backend=backend)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("s.fork(2).join('best of')", "join(mode='best of') is unknown"),
        ("f = s.fork(2)\nf.join()\nf.join()", "joined already"),
        ("f = s.fork(2)\nf += ['a']", "1 expressions for 2 branches"),
        ("f = s.fork(2)\nf['x']", "Branches are numbered"),
        ("f = s.fork(2)\nf += 5", "type int cannot be appended"),
        ("f = s.fork(2)\nf[0] = s", "cannot be replaced"),
        ("s.copy().text()", "copy() is a block"),
    ],
)
def test_wrong_uses_have_a_place(backend, text, message):
    run = run_cell(text, cell_name="1", user_ns={}, backend=backend, first_line=2)
    with pytest.raises(SgnbError) as caught:
        run.drive()
    assert message in caught.value.message
    assert caught.value.position.line == text.count("\n") + 2


def test_expressions_for_each_branch(backend):
    text = "f = s.fork(2)\nf += ['a', 'b' + gen('x')]\nf += user('u')\nf[0].text(), f[1:][0].text(), len(f)"
    run = run_cell(text, cell_name="1", user_ns={}, backend=backend)
    run.drive()
    turn = "<|im_start|>user\nu<|im_end|>\n"
    assert run.value == ("a" + turn, "b[x:b]" + turn, 2)


def test_a_branch_without_a_variable_says_so(backend):
    run = run_cell("f = s.fork(1)\nf[0]['nothing']", cell_name="1", user_ns={}, backend=backend)
    with pytest.raises(UnknownVariable):
        run.drive()


def test_a_cell_waits_for_branches_it_never_joined(backend):
    slow = MockBackend(echo, delay=0.01)
    run = run_cell("f = s.fork(2)\nf += gen('x')\nNone", cell_name="1", user_ns={}, backend=slow)
    run.drive()
    assert run.status == "finished"
    assert sorted(name for name, _ in slow.prompts) == ["x", "x"]
    assert not slow.aborted
    slow.shutdown()


def test_samples():
    seen = []

    def script(prompt, name, params):
        seen.append(params.seed)
        return f"<{len(seen)}>"

    backend = MockBackend(script)

    @sgl.function
    def prog(s):
        s += "q" + sgl.gen("x", n=3) + "end"
        s += sgl.gen("y")

    state = prog.run(backend=backend, seed=5)
    assert sorted(state["x"]) == ["<1>", "<2>", "<3>"] or len(set(state["x"])) == 3
    assert state.text() == f"q{state['x'][0]}end{state['y']}"
    assert len(state.get_meta_info("x")) == 3 and len(set(seen)) == 4
    first = list(seen)
    state = prog.run(backend=backend, seed=5)
    state.sync()
    state["x"]
    assert sorted(seen[4:]) == sorted(first)
    wait_for(lambda: len(backend.released) >= 2)
    both = prog.run(backend=backend, n=2)
    assert len(both["y"]) == 2 and len(both["x"]) == 3
    assert list(both.text_iter("x")) == [both["x"][0]] or "".join(both.text_iter("x")) == both["x"][0]
    backend.shutdown()


def test_256_branches_are_one_message(backend):
    @sgl.function
    def prog(s):
        s += "p" * 1000
        forks = s.fork(256)
        for i, f in enumerate(forks):
            f += f"{i}" + sgl.gen("x", max_tokens=1)
        forks.join()
        return s["x"]

    state = prog.run(backend=backend)
    assert len(state.ret_value) == 256
    assert len(backend.log) <= 5  # a block leaves at 256 operations
