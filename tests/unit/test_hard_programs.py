"""Programs that try to hang or to break a run: threads, circles of waits, errors in ``finally``, dead engines."""

from __future__ import annotations

import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import sgnb as sgl
from sgnb.backends.mock import HANG, MockBackend
from sgnb.errors import EngineDied, LimitError, ProgramError, RequestError
from sgnb.runtime.program import eager_execution
from sgnb.runtime.run import run_cell

TIMEOUT = 20.0


@pytest.fixture
def backend():
    mock = MockBackend({"x": "value", "y": "other", "hang": HANG, "bad": RequestError("boom")}, delay=0.001)
    yield mock
    mock.shutdown()


def ended(run):
    """The run's root state; a run that hangs is stopped and fails the test."""
    try:
        return run.result(TIMEOUT)
    except TimeoutError:
        run.cancel()
        raise


# ---------------------------------------------------------------- threads of a program


def test_a_thread_that_a_program_starts_reads_as_the_program_does(backend):
    """A stranger's ``text()`` waits for the program's end; this one is joined by the program."""

    @sgl.function
    def prog(s):
        s += "a " + sgl.gen("x")
        seen = []

        def work():
            nonlocal s
            seen.append(s.text())
            s += " and " + sgl.gen("y")
            seen.append(s["y"])

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return seen

    state = ended(prog.run_async(backend=backend))
    assert state.ret_value == ["a value", "other"] and state.text() == "a value and other"


def test_the_tasks_of_a_pool_of_threads_belong_to_the_program_too(backend):
    @sgl.function
    def tool(s, word):
        s += word + " " + sgl.gen("y")
        return s["y"]

    @sgl.function
    def prog(s):
        arms = s.fork(4)
        for number, arm in enumerate(arms):
            arm += f"{number} " + sgl.gen("x")
        with ThreadPoolExecutor(2) as pool:
            texts = list(pool.map(lambda arm: arm.text(), arms))
            last = pool.submit(arms[3].text).result()
            tools = list(pool.map(lambda word: tool.run(word).ret_value, "ab"))
        return texts, last, tools

    state = ended(prog.run_async(backend=backend))
    assert state.ret_value == ([f"{n} value" for n in range(4)], "3 value", ["other"] * 2)


def test_what_a_thread_appends_last_is_sent(backend):
    @sgl.function
    def prog(s):
        def work():
            nonlocal s
            s += "t " + sgl.gen("x")

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        until = time.monotonic() + TIMEOUT
        while s.text_so_far() != "t value":  # asks for nothing, so it sends nothing
            assert time.monotonic() < until
            time.sleep(0.001)

    ended(prog.run_async(backend=backend))


def test_threads_of_a_stopped_program_end(backend):
    threads = []

    @sgl.function
    def prog(s):
        s += sgl.gen("hang")
        thread = threading.Thread(target=lambda: s["hang"])
        thread.start()
        threads.append(thread)  # only a started one can be waited for below
        thread.join()

    run = prog.run_async(backend=backend)
    until = time.monotonic() + TIMEOUT
    while not threads and time.monotonic() < until:
        time.sleep(0.001)
    run.cancel()
    threads[0].join(TIMEOUT)
    assert not threads[0].is_alive() and run.status == "stopped"


# ---------------------------------------------------------------- circles


@pytest.mark.parametrize("read", [lambda s: s.text(), lambda s: s["late"]], ids=["text", "variable"])
def test_programs_that_wait_for_each_other_are_told(backend, read):
    states = {}
    both = threading.Barrier(3)

    @sgl.function
    def prog(s, mine, other):
        states[mine] = s
        both.wait(TIMEOUT)
        return read(states[other])

    runs = [prog.run_async(n, (n + 1) % 3, backend=backend) for n in range(3)]
    errors = []
    for run in runs:
        with pytest.raises(ProgramError) as caught:
            ended(run)
        errors.append(caught.value)
    assert "wait for each other" in str(errors[0]) and "test_hard_programs" in str(errors[0])


def test_a_program_may_wait_for_one_that_waits_for_its_variable(backend):
    """No circle: what the other waits for comes before this one waits."""
    states = {}
    both = threading.Barrier(2)

    @sgl.function
    def first(s):
        states["first"] = s
        both.wait(TIMEOUT)
        time.sleep(0.02)
        s += sgl.gen("x")
        return states["second"].text()

    @sgl.function
    def second(s):
        states["second"] = s
        both.wait(TIMEOUT)
        s += "got " + states["first"]["x"]

    runs = [first.run_async(backend=backend), second.run_async(backend=backend)]
    assert ended(runs[0]).ret_value == "got value" and ended(runs[1]).text() == "got value"


# ---------------------------------------------------------------- interrupts and errors


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
def test_a_tool_that_raises_anything_ends_its_run_alone(backend, error, eager):
    def tool():
        raise error

    @sgl.function
    def prog(s, fails):
        s += "a " + sgl.gen("hang" if fails else "x")
        if fails:
            tool()

    def batch():
        return prog.run_batch([{"fails": n == 1} for n in range(3)], backend=backend)

    if eager:
        with eager_execution():
            states = batch()
    else:
        states = batch()
    assert isinstance(states[1].error(), error)
    assert [states[n].text() for n in (0, 2)] == ["a value"] * 2


def test_an_error_in_finally_ends_what_is_under_way(backend):
    @sgl.function
    def prog(s):
        try:
            s += "a " + sgl.gen("hang")
        finally:
            raise ValueError("from finally")

    run = prog.run_async(backend=backend)
    with pytest.raises(ValueError, match="from finally"):
        ended(run)
    assert run.status == "failed" and backend.aborted


def test_reads_in_finally_of_a_failed_state_raise_its_first_cause(backend):
    @sgl.function
    def prog(s):
        try:
            s += sgl.gen("bad")
            s["bad"]
        finally:
            s += "more " + sgl.gen("x")
            s["x"]

    with pytest.raises(RequestError, match="boom") as caught:
        ended(prog.run_async(backend=backend))
    assert caught.value.position is not None and 'sgl.gen("bad")' in caught.value.position.text


def test_an_endless_loop_over_a_failed_state_ends(backend):
    @sgl.function
    def prog(s):
        s += sgl.gen("bad")
        while True:
            s += "x"

    with pytest.raises(RequestError, match="boom"):
        ended(prog.run_async(backend=backend))


def test_a_program_that_swallows_everything_is_stopped(backend):
    began = threading.Event()

    @sgl.function
    def prog(s):
        while True:
            try:
                s += "x" + sgl.gen("hang")
                began.set()
                s["hang"]
            except BaseException:
                pass

    run = prog.run_async(backend=backend)
    assert began.wait(TIMEOUT)
    run.cancel()
    assert run.status == "stopped"


# ---------------------------------------------------------------- shapes


def test_forks_and_reads_inside_generator_expressions(backend):
    @sgl.function
    def prog(s):
        s += "a "
        arms = tuple(arm for arm in s.fork(3) if arm)
        for arm in arms:
            arm += sgl.gen("x")
        total = sum(len(arm["x"]) for arm in arms)
        made = [arm["y"] for arm in (s.fork(1)[0].__iadd__(sgl.gen("y")) for _ in range(3))]
        return total, made

    assert ended(prog.run_async(backend=backend)).ret_value == (15, ["other"] * 3)


def test_a_helper_that_closes_over_a_state_and_a_generator_that_reads_it(backend):
    @sgl.function
    def prog(s):
        def ask(name):
            nonlocal s
            s += f"{name}: " + sgl.gen(name)
            return s[name]

        def steps():
            for name in ("g", "h"):
                yield ask(name)

        return [ask("x"), *steps()]

    state = ended(prog.run_async(backend=backend))
    assert state.ret_value == ["value", "<g>", "<h>"] and state.text() == "x: valueg: <g>h: <h>"


def test_recursion_with_forks(backend):
    @sgl.function
    def tree(s, depth):
        s += f"{depth} " + sgl.gen("x")
        if depth:
            arms = s.fork(2)
            for arm in arms:
                tree(arm, depth - 1)
            arms.join()

    @sgl.function
    def chain(s, depth):
        s += "a"
        chain(s.fork(1)[0], depth - 1)

    state = ended(tree.run_async(5, backend=backend))
    leaves = state["x"]
    for _ in range(4):
        assert len(leaves) == 2
        leaves = leaves[0]
    assert leaves == ["value", "value"]
    with pytest.raises(LimitError, match="32 deep"):
        ended(chain.run_async(100, backend=backend))


def test_an_object_that_appends_while_it_is_collected(backend):
    class Last:
        def __init__(self, state):
            self.state = state

        def __del__(self):
            self.state += "bye " + sgl.gen("y")

    @sgl.function
    def prog(s):
        last = Last(s)
        s += "a " + sgl.gen("x")
        del last
        s += " z"

    assert ended(prog.run_async(backend=backend)).text() == "a valuebye other z"


def test_states_dropped_while_they_generate_are_released(backend):
    @sgl.function
    def prog(s):
        s += "a " + sgl.gen("x")

    for _ in range(50):
        prog.run(backend=backend)
    until = time.monotonic() + TIMEOUT
    while len(backend.released) < 50:
        assert time.monotonic() < until, backend.released
        gc.collect()
        time.sleep(0.01)


def test_cells_that_append_to_one_state_at_once(backend):
    first = run_cell('s += "one " + gen("x")', cell_name="1", user_ns={}, backend=backend)
    first.drive(TIMEOUT)
    shared = first.state
    texts = [f'st += " c{n} " + gen("n{n}")\nst["n{n}"]' for n in range(6)]
    runs = [
        run_cell(text, cell_name=str(n), user_ns={"st": shared}, backend=backend).start()
        for n, text in enumerate(texts)
    ]
    for run in runs:
        ended(run)
    assert [run.value for run in runs] == [f"<n{n}>" for n in range(6)]
    # Each cell's own text may be parted by another's, but none is lost and the first is the first.
    text = shared.text()
    assert text.startswith("one value")
    assert all(text.count(f" c{n} ") == 1 and text.count(f"<n{n}>") == 1 for n in range(6))


def test_a_batch_of_500_of_which_some_fail(backend):
    @sgl.function
    def prog(s, number):
        s += f"{number} " + sgl.gen("bad" if number == 77 else "x")
        if number == 99:
            raise ValueError("ninety-nine")

    states = prog.run_batch([{"number": n} for n in range(500)], backend=backend)
    errors = {n: state.error() for n, state in enumerate(states) if state.error() is not None}
    assert sorted(errors) == [77, 99]
    assert isinstance(errors[77], RequestError) and isinstance(errors[99], ValueError)
    assert states[499].text() == "499 value"


def test_an_engine_that_ends_in_the_middle(backend):
    @sgl.function
    def prog(s):
        arms = s.fork(20)
        for arm in arms:
            arm += "w " + sgl.gen("x") + sgl.gen("hang")
        arms.join()
        return s["hang"]

    run = prog.run_async(backend=backend)
    time.sleep(0.05)
    backend.shutdown()
    with pytest.raises(EngineDied):
        ended(run)
    state = run.state
    state += "more " + sgl.gen("z")
    assert isinstance(state.error(), EngineDied)


def test_what_a_program_starts_runs_where_the_program_runs(backend):
    """No backend is the default here: each of these takes the caller's."""

    @sgl.function
    def sub(s):
        s += sgl.gen("x")

    @sgl.function
    def prog(s):
        s += "a "
        texts = [state.text() for state in sub.run_batch([{}, {}])]
        return [*texts, sub.run_async().result(TIMEOUT).text(), "".join(sub.run(stream=True).text_iter())]

    assert ended(prog.run_async(backend=backend)).ret_value == ["value"] * 4
