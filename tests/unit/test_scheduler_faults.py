"""Aborts in each state, and steps that fail; on the stub runner."""

from __future__ import annotations

import logging

import pytest
from scheduler_rig import Rig, alone

from sgnb.engine.mem_cache.base import IntegrityError

PROMPT = b"The quick brown fox jumps over the lazy dog. "


def end(told) -> tuple:
    return (told.finish.type, told.finish.matched)


# ------------------------------------------------------------ aborts


@pytest.mark.abort
@pytest.mark.parametrize("steps", range(8))
def test_F30_abort_in_each_state_is_idempotent(steps):
    rig = Rig(chunked_prefill_size=16, max_running_requests=1)
    rid = rig.decode(1, PROMPT, max_new_tokens=4, ignore_eos=True)
    other = rig.decode(2, b"neighbour", ignore_eos=True)
    rig.step(steps)
    seen = list(rig.told[rid].ids)
    rig.abort(rid, rid, "c1.r99")
    rig.abort(rid)
    rig.step()
    told = rig.told[rid]
    if steps < 6:
        assert end(told) == ("abort", None)
        assert told.output_ids == told.ids == seen, "no token after the abort, and the partial text is kept"
    assert told.finish is not None
    rig.drain()
    assert rig.told[other].ids == alone(b"neighbour", ignore_eos=True).ids
    after = rig.run(3, b"?", sid=1, fresh=False)
    assert bytes(after.prompt_ids) == PROMPT + bytes(told.ids) + b"?"
    assert after.ids == alone(after.prompt_ids).ids


@pytest.mark.abort
def test_B137_abort_during_the_last_chunk_commits_no_token():
    rig = Rig(chunked_prefill_size=16)
    rid = rig.decode(1, PROMPT)
    rig.step(2)
    rig.runner.during = lambda batch: rig.abort(rid)
    rig.step()
    assert rig.runner.log[-1].sample == [True]
    assert (end(rig.told[rid]), rig.told[rid].ids) == (("abort", None), [])
    assert rig.scheduler.cache.evictable_size == 32, "what that step computed is not cached"
    rig.drain()


@pytest.mark.abort
def test_B138_client_gone_frees_everything_within_one_step(caplog):
    rig = Rig()
    caplog.set_level(logging.INFO)
    rid = rig.decode(1, PROMPT, max_new_tokens=100_000, ignore_eos=True)
    waiting = rig.decode(2, b"stays", client=2, ignore_eos=True)
    rig.step(3)
    rig.gone(1)
    rig.step()
    assert end(rig.told[rid]) == ("abort", None)
    assert list(rig.scheduler.sessions) == ["c2.s2"]
    assert len([record for record in caplog.records if "client 1 is gone" in record.message]) == 1
    rig.drain()
    assert rig.told[waiting].ids == alone(b"stays", ignore_eos=True).ids


@pytest.mark.abort
def test_closing_a_session_aborts_what_it_runs():
    rig = Rig()
    rid = rig.decode(1, PROMPT, max_new_tokens=100, ignore_eos=True)
    rig.step(3)
    rig.close(1, 1, 77)
    rig.drain()
    assert end(rig.told[rid]) == ("abort", None)


# ------------------------------------------------------------ faults of a step


@pytest.mark.sched
@pytest.mark.parametrize("steps", [1, 2, 4])
@pytest.mark.sampler
def test_B146_bad_rows_fail_alone(steps):
    rig = Rig(chunked_prefill_size=30, prefill_decode_interval=9)
    neighbour = rig.decode(1, b"Hello", max_new_tokens=30, ignore_eos=True)
    rig.step()
    rid = rig.decode(2, PROMPT, max_new_tokens=30, ignore_eos=True, seed=99)
    bad_from = rig.runner.steps + steps
    rig.runner.nan_rows = lambda batch, row: batch.step >= bad_from and batch.params[row].seed == 99
    rig.drain()
    error = rig.told[rid].finish.error
    assert error.code == "non_finite"
    assert error.message == f"non-finite logits at step {bad_from}"
    assert error.hint
    assert rig.told[neighbour].ids == alone(b"Hello", max_new_tokens=30, ignore_eos=True).ids
    good = rig.run(3, PROMPT, max_new_tokens=9, ignore_eos=True)
    assert good.meta.cached_tokens == {1: 0, 2: 30, 4: 44}[steps]
    assert good.ids == alone(PROMPT, max_new_tokens=9, ignore_eos=True).ids


@pytest.mark.sched
@pytest.mark.sampler
def test_B146_nothing_of_a_bad_step_is_cached():
    rig = Rig(chunked_prefill_size=16)
    rid = rig.decode(1, PROMPT)
    rig.step()
    rig.runner.nan_rows = lambda batch, row: True
    rig.step()
    rig.runner.nan_rows = lambda batch, row: False
    rig.drain()
    assert rig.told[rid].finish.error.message == "non-finite logits at step 2"
    assert rig.scheduler.cache.evictable_size == 16
    assert rig.run(2, b"x", sid=1, fresh=False).prompt_ids == [120], "an error leaves its session as it was"


def test_a_failing_runner_fails_its_batch_and_the_engine_goes_on(caplog):
    rig = Rig()
    rid = rig.decode(1, PROMPT)

    def fail(batch):
        raise ValueError("a fault of the model")

    rig.runner.during = fail
    rig.step()
    rig.runner.during = None
    rig.drain()
    assert rig.told[rid].finish.error.code == "runner"
    assert "a fault of the model" in rig.told[rid].finish.error.message
    assert rig.run(2, PROMPT).ids == alone(PROMPT).ids


def test_lost_slots_are_reported_when_idle_and_not_repaired():
    rig = Rig()
    rig.scheduler.allocator.alloc(1)
    rig.decode(1, PROMPT)
    with pytest.raises(IntegrityError, match="4095, the pool has 4096"):
        while rig.scheduler.step():
            pass


def test_a_stall_is_reported_instead_of_spinning():
    rig = Rig(max_total_tokens=64)
    rig.scheduler.allocator.alloc(60)
    rig.decode(1, PROMPT)
    with pytest.raises(IntegrityError, match="1 requests wait and nothing can run, with 4 slots"):
        rig.scheduler.step()
