"""The dispatcher at its limits: thousands of states, few threads, priorities, blocked tools, no recursion."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import pytest

import sgnb as sgl
from sgnb.backends.mock import HANG, MockBackend
from sgnb.lang.instruction import Decode
from sgnb.runtime.dispatcher import MAX_THREADS, THREAD_NAME, Pool, instruction_queue_length, pool
from sgnb.runtime.tracing import Tracer


@pytest.fixture
def backend():
    mock = MockBackend({"x": "value", "hang": HANG})
    yield mock
    mock.shutdown()


@sgl.function
def waits(s, number):
    s += f"State {number}: " + sgl.gen("hang")
    return s["hang"]


def test_5000_live_states_need_16_threads_and_end_at_once(backend):
    before = threading.active_count()
    runs = [waits.run_async(number, backend=backend) for number in range(5000)]
    end = time.monotonic() + 60
    while len(backend.prompts) < 5000:
        assert time.monotonic() < end
        time.sleep(0.02)
    own = [thread for thread in threading.enumerate() if thread.name == THREAD_NAME]
    assert len(own) <= MAX_THREADS == 16
    assert threading.active_count() - before <= MAX_THREADS + 4
    assert not any(run.done for run in runs)
    for run in runs:
        run.cancel()
    assert all(run.status == "stopped" for run in runs)
    assert pool.threads <= MAX_THREADS


class Echo(Tracer):
    """Answers at once and keeps nothing."""

    def submit(self, block, sink):
        super().submit(block, sink)
        self.blocks.clear()


def test_ten_thousand_generations_in_a_row_leave_memory_flat():
    @sgl.function
    def chain(s, count):
        for _ in range(count):
            s += sgl.gen("x")
            assert s["x"]

    chain.run(10, backend=Echo())
    state = chain.run(10_000, backend=Echo())
    assert len(state.text()) == 3 * 10_000
    assert not state.core.slots and not state.core.pending and not state.core.held
    assert len(state._handle.slots) <= 17
    gone = weakref.ref(state.core)
    del state
    gc.collect()
    assert gone() is None


@sgl.function
def deep(s, depth):
    s += "." + sgl.gen("x")
    if depth:
        return deep(s, depth - 1)
    return s["x"]


def test_recursion_a_thousand_deep(backend):
    state = deep.run(1000, backend=backend)
    assert state.ret_value == "value" and state.text() == ".value" * 1001


def test_a_blocking_tool_does_not_stop_other_runs(backend):
    gate = threading.Event()

    @sgl.function
    def blocked(s):
        s += sgl.gen("x")
        gate.wait(30)
        return s["x"]

    @sgl.function
    def quick(s):
        s += sgl.gen("x")
        return s["x"]

    stuck = [blocked.run_async(backend=backend) for _ in range(MAX_THREADS - 1)]
    states = quick.run_batch([{}] * 100, backend=backend)
    assert [state.ret_value for state in states] == ["value"] * 100 and not gate.is_set()
    gate.set()
    assert [run.result(20).ret_value for run in stuck] == ["value"] * (MAX_THREADS - 1)


class Driven:
    """Stands for a Driver: notes when it had its turn."""

    def __init__(self, core, name, order, gate=None):
        self.core, self.name, self.order, self.gate = core, name, order, gate

    def step(self):
        if self.gate is not None:
            self.gate.wait(20)
        self.order.append(self.name)


def test_runs_of_higher_priority_go_on_first():
    class Some:
        def __init__(self, priority):
            self.priority = priority

    order, gate, small = [], threading.Event(), Pool(1)
    small.put(Driven(Some(0), "first", order, gate))
    end = time.monotonic() + 20
    while small.queue_length and time.monotonic() < end:
        time.sleep(0.001)
    for name, priority in (("a", 0), ("b", 5), ("c", -1), ("d", 5), ("e", 0)):
        small.put(Driven(Some(priority), name, order))
    assert small.queue_length == 5
    gate.set()
    while len(order) < 6 and time.monotonic() < end:
        time.sleep(0.001)
    assert order == ["first", "b", "d", "a", "e", "c"]


def test_the_priority_of_a_run_reaches_the_engine(backend):
    @sgl.function
    def prog(s):
        s += sgl.gen("x") + sgl.select("c", ["a", "b"])

    prog.run(backend=backend, priority=7).sync()
    ops = [op for block in backend.log for op in block.instructions if hasattr(op, "rid")]
    assert [op.priority for op in ops] == [7, 7] and isinstance(ops[0], Decode)
    with pytest.raises(sgl.ProgramError, match="takes an int, not str"):
        prog.run(backend=backend, priority="high")
    with pytest.raises(sgl.LimitError, match="priority must be in"):
        prog.run(backend=backend, priority=10**9)


def test_instruction_queue_length_counts_what_was_recorded_and_not_sent(backend):
    before = instruction_queue_length()
    seen = []

    @sgl.function
    def prog(s):
        s += "a"
        s += sgl.text("b")
        s += sgl.user_begin()
        seen.append(len(s.core.pending))
        s += sgl.user_end()
        s += sgl.gen("x")

    state = prog.run(backend=backend)
    state.sync()
    assert seen == [4] and instruction_queue_length() == before
