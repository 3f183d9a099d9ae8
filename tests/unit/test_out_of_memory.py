"""A step that runs out of memory is tried again in parts; who does not fit alone ends, the others go on.

The runner here has memory for so many units a step: a row costs one, a new token one, so large batches and long chunks
fail as they would on a device, before or after their KV was written.
"""

from __future__ import annotations

import gc
import itertools
import random
import weakref
from collections.abc import Callable

import pytest
from scheduler_rig import HookedRunner, Rig, alone
from test_drivers import ARGS, record
from test_overlap import Script, said

from sgnb.engine.launch import to_info
from sgnb.engine.model_executor.drivers import ForwardSide, OutOfMemory, StepSkipped, is_out_of_memory
from sgnb.engine.model_executor.process_driver import _to_error
from sgnb.engine.scheduler.mishap import FIRST_STEPS
from sgnb.messages import StepEvent


class OutOfMemoryError(RuntimeError):
    """As torch calls its own."""


class Device(HookedRunner):
    """``too_large`` says which batches do not fit; every other time it is found out after the KV was written."""

    too_large: Callable
    trimmed = 0

    def forward(self, batch):
        if self.too_large(batch):
            if batch.step % 2:
                super().forward(batch)
            raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee the documentation")
        return super().forward(batch)

    def trim(self) -> None:
        self.trimmed += 1


class TightRig(Rig):
    """A rig on a ``Device``."""

    runner_type = Device

    def __init__(self, too_large: Callable, **args) -> None:
        super().__init__(**args)
        self.runner.too_large = too_large

    @property
    def failed(self) -> list[StepEvent]:
        return [e for e in self.steps if e.failed]

    @property
    def steps(self) -> list[StepEvent]:
        return [e for e in self.detail if isinstance(e, StepEvent)]


def units(most: int) -> Callable:
    return lambda batch: len(batch.input_ids) + len(batch.req_pool_indices) > most


PROMPTS = [bytes([65 + n]) * (3 + 5 * n) for n in range(8)]


@pytest.mark.sched
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("driver", ["inline", "thread"])
@pytest.mark.parametrize("page", [1, 4])
@pytest.mark.parametrize("most", [12, 60])
def test_F3_batches_that_do_not_fit_are_computed_in_parts(most, page, driver, overlap):
    rig = TightRig(units(most), page_size=page, runner_driver=driver, enable_overlap=overlap)
    rids = [
        rig.decode(n, ids, max_new_tokens=9 + n, ignore_eos=True, temperature=n % 2, seed=n)
        for n, ids in enumerate(PROMPTS)
    ]
    rig.drain()
    rig.scheduler.driver.close()
    for n, rid in enumerate(rids):
        expected = alone(PROMPTS[n], max_new_tokens=9 + n, ignore_eos=True, temperature=n % 2, seed=n)
        assert rig.told[rid].ids == expected.ids and rig.told[rid].finish.type == "length"
    assert {e.failed for e in rig.failed} <= {"memory", "skipped"} and rig.failed
    assert rig.runner.trimmed == sum(e.failed == "memory" for e in rig.failed)
    tried = {n.reason for e in rig.steps for n in e.notes if n.what == "suspended"}
    assert tried == {"memory"}
    assert [e.step for e in rig.steps] == list(range(1, len(rig.steps) + 1)), "a failed step is told too"


@pytest.mark.sched
@pytest.mark.parametrize("nth", range(1, 12))
@pytest.mark.parametrize("overlap", [False, True])
def test_F3_the_nth_step_runs_out_of_memory_once(nth, overlap):
    """n = 1, 2, 3 … until the load has no nth step: nothing is lost, whatever was in flight."""
    rig = TightRig(lambda batch: batch.step == nth, enable_overlap=overlap, chunked_prefill_size=16)
    rids = [rig.decode(n, ids, max_new_tokens=5, ignore_eos=True) for n, ids in enumerate(PROMPTS[:4])]
    rig.step(3)
    rids += [rig.decode(9, PROMPTS[7], max_new_tokens=5, ignore_eos=True)]
    rig.select(10, b"which?", [b"one", b"two", b"other"])
    rig.drain()
    wanted = [*PROMPTS[:4], PROMPTS[7]]
    for rid, ids in zip(rids, wanted, strict=True):
        assert rig.told[rid].ids == alone(ids, max_new_tokens=5, ignore_eos=True).ids
    plain = Rig(chunked_prefill_size=16)
    plain.select(10, b"which?", [b"one", b"two", b"other"])
    plain.drain()
    assert rig.told["c1.r10"].choice == plain.told["c1.r10"].choice
    assert [e.failed for e in rig.failed][:1] == ["memory"]


@pytest.mark.sched
@pytest.mark.parametrize("overlap", [False, True])
def test_F3_only_the_request_that_does_not_fit_alone_ends(overlap):
    """A context of 60 and more is too much for this device, however few tokens are computed of it."""
    rig = TightRig(lambda batch: max(batch.seq_lens) >= 60, enable_overlap=overlap)
    rids = [rig.decode(n, ids, max_new_tokens=12, ignore_eos=True) for n, ids in enumerate(PROMPTS[:6])]
    growing = rig.decode(20, b"g" * 50, max_new_tokens=40, ignore_eos=True)
    huge = rig.decode(21, b"h" * 100, max_new_tokens=4, ignore_eos=True)
    chosen = rig.select(22, b"c" * 70, [b"one", b"two"])
    rig.drain()
    for n, rid in enumerate(rids):
        assert rig.told[rid].ids == alone(PROMPTS[n], max_new_tokens=12, ignore_eos=True).ids
    for rid in (growing, huge, chosen):
        end = rig.told[rid].finish
        assert (end.type, end.error.code) == ("error", "memory"), end
        assert "alone" in end.error.message and "CUDA out of memory" in end.error.message
        assert "See the documentation" not in end.error.message
    assert rig.told[growing].ids == alone(b"g" * 50, max_new_tokens=40, ignore_eos=True).ids[:10]
    after = rig.run(30, b"and then", max_new_tokens=5, ignore_eos=True)
    assert after.finish.type == "length"


@pytest.mark.sched
def test_F3_slots_of_options_that_were_not_scored_are_free_again():
    rig = TightRig(lambda batch: bool(batch.score_targets) and len(batch.req_pool_indices) > 2)
    rid = rig.select(1, b"which of these?", [b"one", b"two", b"three", b"four", b"five"])
    while not rig.failed:
        rig.step()
    (req,) = rig.scheduler.scoring
    assert req.kv.side == [] and req.kv.in_flight == 0
    rig.drain()
    assert rig.told[rid].finish.type == "stop"


@pytest.mark.sched
def test_F3_nothing_is_tried_for_ever_on_a_device_without_memory():
    rig = TightRig(lambda batch: True, chunked_prefill_size=64)
    rids = [rig.decode(n, ids, max_new_tokens=4) for n, ids in enumerate(PROMPTS)]
    rids.append(rig.select(20, b"c" * 9, [b"one", b"two"]))
    rig.drain(400)
    assert {rig.told[rid].finish.error.code for rid in rids} == {"memory"}
    assert len(rig.steps) < 150


@pytest.mark.sched
def test_F3_steps_grow_again_and_wait_longer_after_each_failure():
    rig = TightRig(lambda batch: len(batch.req_pool_indices) > 4, max_running_requests=8)
    for n in range(8):
        rig.decode(n, b"row %d" % n, max_new_tokens=40, ignore_eos=True)
    rig.drain()
    failures = [e.step for e in rig.failed]
    assert len(failures) >= 3, "larger steps are tried again"
    gaps = [b - a for a, b in itertools.pairwise(failures[1:])]
    assert min(gaps) >= FIRST_STEPS and gaps == sorted(gaps)
    rig.runner.too_large = lambda batch: False
    most = 0
    for n in range(20, 60):
        rig.decode(n, b"row %d" % n, max_new_tokens=40, ignore_eos=True)
    rig.drain()
    most = max(len(e.rows) for e in rig.steps[-300:])
    assert most == 8, "with memory there again, batches are whole again"
    assert not rig.scheduler.mishaps.limit.active


def compare_with_a_large_one(seed: int, rounds: int) -> None:
    rng = random.Random(seed)
    args = {
        "context_length": 64,
        "max_total_tokens": rng.choice([80, 400]),
        "chunked_prefill_size": rng.choice([-1, 3, 8]),
        "page_size": rng.choice([1, 1, 4]),
        "enable_mixed_chunk": rng.random() < 0.5,
        "decode_quantum": rng.choice([0, 2]),
    }
    expected = said(Script(Rig(**args), seed).run(rounds))
    for driver, overlap in (("inline", False), ("inline", True), ("thread", True)):
        broken = random.Random(seed)
        rig = TightRig(
            lambda batch, rng=broken: len(batch.req_pool_indices) > 1 and rng.random() < 0.3,
            runner_driver=driver,
            enable_overlap=overlap,
            **args,
        )
        assert said(Script(rig, seed).run(rounds)) == expected, (driver, overlap)
        rig.scheduler.driver.close()


@pytest.mark.sched
@pytest.mark.parametrize("seed", range(4))
def test_F3_random_loads_on_a_tight_device_say_what_they_say_on_a_large_one(seed):
    compare_with_a_large_one(seed, 10)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(40))
def test_F3_random_loads_on_a_tight_device_long(seed):
    compare_with_a_large_one(seed, 25)


@pytest.mark.sched
def test_a_fault_ends_its_own_step_and_not_the_one_planned_behind_it():
    """The newcomer's prompt was launched behind the step that failed, and rests on nothing of it."""
    rig = TightRig(lambda batch: False, enable_overlap=True, runner_driver="thread")

    def fail(batch):
        if batch.step == 3:
            raise ValueError("a kernel's fault")

    rig.runner.during = fail
    lost = rig.decode(1, b"lost", max_new_tokens=20, ignore_eos=True)
    rig.step(3)
    kept = rig.decode(2, b"kept", max_new_tokens=5, ignore_eos=True)
    rig.drain()
    rig.scheduler.driver.close()
    assert rig.told[lost].finish.error.code == "runner"
    assert "a kernel's fault" in rig.told[lost].finish.error.message
    assert rig.told[kept].ids == alone(b"kept", max_new_tokens=5, ignore_eos=True).ids
    assert [e.failed for e in rig.failed] == ["error", "skipped"]


def test_what_counts_as_out_of_memory():
    yes = [
        MemoryError(),
        OutOfMemoryError("CUDA out of memory"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: you tried"
        ),
        RuntimeError("HIP out of memory"),
    ]
    no = [ValueError("out of memory"), RuntimeError("shape mismatch"), KeyError("x")]
    assert all(map(is_out_of_memory, yes)) and not any(map(is_out_of_memory, no))


def test_what_a_step_had_allocated_is_free_before_memory_is_given_back():
    """An error that is kept keeps its frames, and those the tensors of the step."""

    class Tensor:
        pass

    seen = []

    class Runner(Device):
        def forward(self, batch):
            activations = Tensor()
            seen.append(weakref.ref(activations))
            raise OutOfMemoryError("CUDA out of memory")

        def trim(self):
            seen.append(seen[0]())

    gc.disable()
    try:
        side = ForwardSide(Runner(ARGS))
        with pytest.raises(OutOfMemory):
            side.run(record(1, [65], 0, [1]))
        assert seen[1] is None
    finally:
        gc.enable()


def test_a_runner_in_its_own_process_says_which_of_the_two_it_was():
    for error in (OutOfMemory("too little"), StepSkipped("behind")):
        assert type(_to_error(to_info(error))) is type(error)
