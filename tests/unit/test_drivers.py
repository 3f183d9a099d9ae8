"""The runner's three drivers: one contract, errors where the result is due, no wait without an end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest
from scheduler_rig import Rig

from sgnb.config import EngineArgs
from sgnb.engine.mem_cache.base import IntegrityError
from sgnb.engine.model_executor.drivers import ForwardSide, InlineDriver, Runner, ThreadDriver, make_driver
from sgnb.engine.model_executor.process_driver import FrameBuffer, ProcessDriver
from sgnb.engine.model_executor.stub_runner import StubRunner
from sgnb.engine.model_store import ModelPath
from sgnb.errors import EngineDied, EngineError
from sgnb.messages import FROM_PREVIOUS, ModelWorkerBatch
from sgnb.sampling_params import SamplingParams

ARGS = EngineArgs.make(runner="stub", max_total_tokens=4096, context_length=1024, max_running_requests=16)
STUB = ModelPath(name="stub", path=Path(), kind="gguf")


def record(
    step: int, ids: list[int], prefix: int, slots: list[int], row: int = 0, **more
) -> ModelWorkerBatch:
    count = len(ids)
    return ModelWorkerBatch(
        step=step,
        forward_mode="decode" if count == 1 and prefix else "extend",
        input_ids=ids,
        req_pool_indices=[row],
        seq_lens=[prefix + count],
        prefix_lens=[prefix],
        extend_lens=[count],
        out_cache_loc=slots,
        prefix_locs=[None],
        sample=[True],
        params=[SamplingParams(temperature=0.0)],
        seeds=[0],
        positions_drawn=[0],
        banned=[[]],
        **more,
    )


def process_driver(args: EngineArgs = ARGS) -> ProcessDriver:
    return ProcessDriver(args, STUB, lambda *_: None)


def open_driver(name: str):
    if name == "process":
        return process_driver()
    return make_driver(msgspec.structs.replace(ARGS, runner_driver=name), StubRunner(ARGS))


DRIVERS = ["inline", "thread", "process"]


@pytest.mark.parametrize("name", DRIVERS)
def test_two_in_flight_come_back_in_order_and_the_second_reads_what_the_first_drew(name):
    driver = open_driver(name)
    try:
        assert (driver.name, driver.vocab_size, driver.max_running) == (name, 259, 16)
        assert driver.slot_bytes == 25, "the stub's four lists"
        driver.launch(record(1, [65, 66, 67], 0, [1, 2, 3]))
        driver.launch(record(2, [FROM_PREVIOUS], 3, [4]))
        first, second = driver.collect(), driver.collect()
        assert (first.output.step, second.output.step) == (1, 2)
        assert first.began <= first.ended <= second.began <= second.ended
        alone = StubRunner(ARGS)
        (token,) = alone.forward(record(1, [65, 66, 67], 0, [1, 2, 3])).next_token_ids
        assert first.output.next_token_ids == [token]
        expected = alone.forward(record(2, [token], 3, [4])).next_token_ids
        assert second.output.next_token_ids == expected
    finally:
        driver.close()
        driver.close()


@pytest.mark.parametrize("name", DRIVERS)
def test_a_step_that_fails_is_told_at_its_result_and_the_next_one_runs(name):
    driver = open_driver(name)
    try:
        driver.launch(record(1, [999], 0, [1]))
        driver.launch(record(2, [65], 0, [2]))
        with pytest.raises((ValueError, EngineError), match="999"):
            driver.collect()
        assert driver.collect().output.step == 2
    finally:
        driver.close()


def test_a_promise_that_was_not_kept_is_a_bad_row_of_its_own():
    side = ForwardSide(StubRunner(ARGS))
    side.run(record(1, [65], 0, [1]))
    assert not side.run(record(2, [FROM_PREVIOUS], 1, [2])).output.bad_rows
    side.run(record(3, [66], 0, [5], row=1))
    with pytest.raises(ValueError, match="999"):
        side.run(record(4, [999], 1, [6], row=1))
    assert side.run(record(5, [FROM_PREVIOUS], 1, [7], row=1)).output.bad_rows == [0]


def test_a_process_is_no_driver_of_a_runner_of_this_one():
    with pytest.raises(ValueError, match="ProcessDriver"):
        make_driver(msgspec.structs.replace(ARGS, runner_driver="process"), StubRunner(ARGS))
    assert isinstance(make_driver(ARGS, StubRunner(ARGS)), InlineDriver)


class Blocking(StubRunner):
    """Computes when it is let."""

    def __init__(self) -> None:
        super().__init__(ARGS)
        self.free = threading.Event()

    def forward(self, batch):
        assert self.free.wait(20)
        return super().forward(batch)


def test_the_scheduler_is_let_answer_while_it_waits_for_the_thread():
    runner = Blocking()
    driver = ThreadDriver(runner)
    asked = []

    def meanwhile() -> None:
        asked.append(1)
        runner.free.set()

    driver.while_waiting = meanwhile
    driver.launch(record(1, [65], 0, [1]))
    driver.collect()
    assert asked
    driver.close()


def test_R10_a_fault_of_what_is_handled_meanwhile_is_not_the_steps():
    """Taken for the step's it would fail that step's requests, hide broken books, and leave a result for the next step."""
    runner = Blocking()
    driver = ThreadDriver(runner)
    rig = Rig(driver=driver)
    rid = rig.decode(1, b"prompt")

    def meanwhile() -> None:
        raise IntegrityError("slots do not add up")

    driver.while_waiting = meanwhile
    with pytest.raises(EngineDied, match="slots do not add up") as caught:
        rig.scheduler.step()
    assert isinstance(caught.value.__cause__, IntegrityError)
    assert rig.told[rid].finish is None
    runner.free.set()
    driver.close()


def test_a_batch_behind_another_is_handed_over_without_waiting_for_it():
    runner = Blocking()
    driver = ThreadDriver(runner)
    driver.launch(record(1, [65], 0, [1]))
    driver.launch(
        record(2, [FROM_PREVIOUS], 1, [2])
    )  # would wait for step 1, were the handshake asked for here
    runner.free.set()
    assert [driver.collect().output.step for _ in range(2)] == [1, 2]
    driver.close()


class Ending(StubRunner):
    def forward(self, batch):
        raise SystemExit("enough")


def test_a_forward_thread_that_ends_is_an_engine_that_died():
    driver = ThreadDriver(Ending(ARGS))
    driver.launch(record(1, [65], 0, [1]))
    with pytest.raises(EngineDied, match="forward thread"):
        driver.collect()
    driver.close()


def test_a_killed_runner_process_is_an_engine_that_died():
    driver = process_driver()
    os.kill(driver.runner_pid, signal.SIGKILL)
    with pytest.raises(EngineDied, match="SIGKILL"):
        driver.launch(record(1, [65], 0, [1]))
        driver.collect()
    with pytest.raises(EngineDied):
        driver.launch(record(2, [65], 0, [1]))
        driver.collect()
    driver.close()


def test_a_stopped_runner_process_keeps_nobody_from_answering_however_long_the_record():
    """Launch hands over what the socket takes; the rest goes while the result is waited for."""
    driver = process_driver()
    try:
        os.kill(driver.runner_pid, signal.SIGSTOP)
        big = record(1, [999], 0, [1], drawn_ids=[list(range(1 << 20, 1 << 22))])
        launching = threading.Thread(target=driver.launch, args=(big,))
        launching.start()
        launching.join(30)
        assert not launching.is_alive(), "launch waits for a process that reads nothing"
        answered = []

        def answer() -> None:
            answered.append(1)
            os.kill(driver.runner_pid, signal.SIGCONT)

        driver.while_waiting = answer
        with pytest.raises(EngineError, match="999"):
            driver.collect()
        assert answered
        driver.launch(record(2, [65], 0, [2]))
        assert driver.collect().output.step == 2
    finally:
        driver.close()


def test_closing_ends_a_stopped_process_too():
    driver = process_driver()
    os.kill(driver.runner_pid, signal.SIGSTOP)
    driver.launch(record(1, [65], 0, [1]))
    driver.close()
    assert gone(driver.runner_pid)


def gone(pid: int, seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.02)
    return False


PARENT = """
import sys, time
sys.path[:0] = {path!r}
from test_drivers import process_driver
driver = process_driver()
print(driver.runner_pid, flush=True)
time.sleep(60)
"""


def test_a_runner_process_dies_with_its_parent():
    code = PARENT.format(path=[os.path.dirname(__file__)])
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
    assert gone(pid, 2.0)


def test_closing_ends_the_process():
    driver = process_driver()
    driver.close()
    assert gone(driver.runner_pid)


def test_frames_come_whole_however_the_stream_is_cut():
    buffer = FrameBuffer()
    stream = b"".join(len(f).to_bytes(4, "little") + f for f in (b"one", b"", b"three" * 100))
    out = []
    for i in range(len(stream)):
        buffer.feed(stream[i : i + 1])
        while (frame := buffer.take()) is not None:
            out.append(frame)
    assert out == [b"one", b"", b"three" * 100]


class Failing(StubRunner):
    def forward(self, batch):
        if batch.step == 3:
            raise RuntimeError("broken")
        return super().forward(batch)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("name", ["inline", "thread"])
def test_a_failed_step_takes_its_requests_and_not_the_engine(name, overlap):
    args = msgspec.structs.replace(ARGS, runner_driver=name)
    runner: Runner = Failing(args)
    rig = Rig(driver=make_driver(args, runner), enable_overlap=overlap)
    first = rig.decode(1, b"hello", max_new_tokens=9, ignore_eos=True)
    rig.drain()
    told = rig.told[first]
    assert told.finish.type == "error" and "step 3 failed" in told.finish.error.message
    assert rig.run(2, b"hello", max_new_tokens=9, ignore_eos=True).finish.type == "length"
    rig.scheduler.driver.close()


def test_a_dead_runner_takes_the_engine_with_a_clear_error():
    driver = process_driver()
    rig = Rig(driver=driver)
    rig.decode(1, b"hello", max_new_tokens=9, ignore_eos=True)
    rig.step(2)
    os.kill(driver.runner_pid, signal.SIGKILL)
    with pytest.raises(EngineDied, match="runner process was killed"):
        rig.drain()
    driver.close()
