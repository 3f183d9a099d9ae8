"""Faults and reported cases of the scheduler that have no place elsewhere, on the stub (F26–F41 and the log's rows).

Others are in ``test_scheduler``, ``test_scheduler_fair``, ``test_scheduler_select``, ``test_radix_cache``; through whole
processes in ``tests/engine/test_process_bad_input.py``.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scheduler_rig import Rig, alone

from sgnb.engine.mem_cache.allocator import make_allocator
from sgnb.engine.mem_cache.radix_cache import RadixCache
from sgnb.engine.scheduler import prefill
from sgnb.engine.scheduler.policy import MAX_OVERTAKEN, POLICIES
from sgnb.errors import LimitError
from sgnb.messages import StepEvent
from sgnb.sampling_params import SamplingParams

QUICK = settings(
    max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


def steps_of(rig: Rig) -> list[StepEvent]:
    return [event for event in rig.detail if isinstance(event, StepEvent)]


# ------------------------------------------------------------ retraction


@pytest.mark.sched
def test_B131_a_retracted_sample_stays_one_sample():
    kw = {"max_new_tokens": 40, "ignore_eos": True, "temperature": 1.0}
    rig = Rig(max_total_tokens=80, context_length=80, schedule_conservativeness=0.01)
    rids = [rig.decode(n, b"prompt %d" % n, seed=n, **kw) for n in range(2)]
    rig.drain()
    assert sum(event.state == "retracted" for event in rig.events) >= 1, "the pool was meant to be too small"
    for n, rid in enumerate(rids):
        assert rig.told[rid].ids == alone(b"prompt %d" % n, seed=n, **kw).ids


@pytest.mark.sched
@pytest.mark.parametrize("stop", ["th", "e", "zzz"])
def test_B132_a_retracted_request_ends_at_its_stop_with_its_whole_text(stop):
    kw = {"max_new_tokens": 45, "ignore_eos": True, "stop": (stop,), "temperature": 1.0}
    rig = Rig(max_total_tokens=64, context_length=64, schedule_conservativeness=0.01)
    rids = [rig.decode(n, b"prompt %d" % n, seed=n + 5, **kw) for n in range(3)]
    rig.drain()
    for n, rid in enumerate(rids):
        undisturbed = alone(b"prompt %d" % n, seed=n + 5, **kw)
        assert (rig.told[rid].text, rig.told[rid].finish) == (undisturbed.text, undisturbed.finish)


@pytest.mark.sched
def test_B133_two_that_need_sixty_percent_each_do_not_retract_each_other_for_ever():
    kw = {"max_new_tokens": 50, "ignore_eos": True}
    rig = Rig(max_total_tokens=100, context_length=100, schedule_conservativeness=0.01)
    rids = [rig.decode(n, b"%d" % n * 10, **kw) for n in range(2)]
    rig.drain(250)
    for n, rid in enumerate(rids):
        assert rig.told[rid].ids == alone(b"%d" % n * 10, **kw).ids
    retracted = [event.rid for event in rig.events if event.state == "retracted"]
    assert 1 <= len(retracted) <= 3 and len(set(retracted)) == 1, "one of them ran to its end first"


# ------------------------------------------------------------ samples, prefixes, parameters


@pytest.mark.sched
def test_B125_samples_of_one_prompt_count_their_tokens_and_differ():
    rig = Rig()
    prompt = b"one prompt for four samples, long enough to be worth sharing"
    kw = {"max_new_tokens": 12, "ignore_eos": True, "temperature": 1.0}
    rids = [rig.decode(n, prompt, seed=n, **kw) for n in range(4)]
    rig.drain()
    computed = sum(row.tokens for event in steps_of(rig) for row in event.rows if row.kind == "prefill")
    cached = [rig.told[rid].meta.cached_tokens for rid in rids]
    assert sum(cached) + computed == 4 * len(prompt)
    assert all(0 <= one < len(prompt) for one in cached)
    assert len({tuple(rig.told[rid].ids) for rid in rids}) == 4
    nothing = rig.run(9, prompt, max_new_tokens=0)
    assert (nothing.ids, nothing.finish.type) == ([], "length")


@QUICK
@given(
    values=st.fixed_dictionaries(
        {},
        optional={
            "temperature": st.one_of(st.floats(), st.integers(-2, 200), st.booleans(), st.text(max_size=2)),
            "top_p": st.one_of(st.floats(), st.integers(-1, 2)),
            "top_k": st.one_of(st.integers(-3, 10**9), st.floats(), st.booleans()),
            "min_p": st.floats(),
            "max_new_tokens": st.one_of(st.integers(-2, 9), st.booleans(), st.just("3")),
            "min_new_tokens": st.integers(-2, 9),
            "stop": st.one_of(st.text(max_size=3), st.lists(st.text(max_size=2), max_size=20)),
            "stop_token_ids": st.lists(st.integers(-2, 300), max_size=3),
            "frequency_penalty": st.floats(),
            "repetition_penalty": st.floats(),
            "logit_bias": st.dictionaries(st.integers(-2, 300), st.floats(), max_size=3),
            "seed": st.one_of(st.integers(-2, 2**70), st.floats(), st.booleans()),
            "top_logprobs_num": st.integers(-1, 40),
            "ignore_eos": st.one_of(st.booleans(), st.integers(0, 1)),
        },
    )
)
def test_F29_parameters_are_refused_at_the_call_or_run_to_an_end(values):
    rig = Rig()
    try:
        SamplingParams.make({"max_new_tokens": 8, **values}).check_model(rig.runner.vocab_size)
    except LimitError as error:
        assert error.message
        return
    told = rig.run(1, b"hello", **values)
    assert told.finish.type in ("stop", "length", "eos"), told.finish


def test_F33_equal_openings_are_not_taken_for_equal_prefixes(monkeypatch):
    monkeypatch.setattr(prefill, "_opening", lambda ids: b"")
    rig = Rig(chunked_prefill_size=16)
    prompts = [
        bytes([65 + n]) * 3 + b" the rest of it is the same for all of them, on purpose" for n in range(6)
    ]
    rids = [rig.decode(n, prompt, max_new_tokens=4, ignore_eos=True) for n, prompt in enumerate(prompts)]
    rig.drain()
    for prompt, rid in zip(prompts, rids, strict=True):
        assert rig.told[rid].ids == alone(prompt, max_new_tokens=4, ignore_eos=True).ids
        assert rig.told[rid].meta.cached_tokens == 0


def test_F36_all_rows_bad_fail_all_of_them_and_the_next_ones_run():
    rig = Rig()
    rids = [rig.decode(n, b"prompt %d" % n, max_new_tokens=9, ignore_eos=True) for n in range(3)]
    rig.step(2)
    bad_step = rig.runner.steps + 1
    rig.runner.nan_rows = lambda batch, row: batch.step == bad_step
    rig.drain()
    for rid in rids:
        assert rig.told[rid].finish.error.code == "non_finite"
        assert rig.told[rid].finish.error.message.endswith(f"step {bad_step}")
    assert [event.bad_rows for event in steps_of(rig) if event.bad_rows] == [3], "the timeline has a flag"
    assert rig.run(9, b"prompt 0", max_new_tokens=9, ignore_eos=True).finish.type == "length"


# ------------------------------------------------------------ forks


def test_F38_deep_and_wide_forks_store_each_prefix_once():
    rig = Rig(max_total_tokens=4096, max_running_requests=32)
    rng = random.Random(3)
    whole: dict[int, bytes] = {0: b"the root of all of them"}
    rig.open(0)
    rig.extend(0, whole[0])
    for depth in range(1, 33):  # one below the other, as deep as is allowed
        rig.fork(depth - 1, depth)
        more = bytes(rng.choice(b"xyz") for _ in range(5))
        rig.extend(depth, more)
        whole[depth] = whole[depth - 1] + more
    rig.fork(32, *range(100, 164))
    for n in range(64):
        whole[100 + n] = whole[32] + b"branch %d" % n
        rig.extend(100 + n, b"branch %d" % n)
        rig.decode(100 + n, b"?", sid=100 + n, fresh=False, max_new_tokens=1, ignore_eos=True)
    rig.drain()
    trie: set[tuple[int, ...]] = set()
    for n in range(64):
        ids = [*(whole[100 + n] + b"?")]
        trie.update(tuple(ids[: end + 1]) for end in range(len(ids)))
    assert rig.scheduler.cache.evictable_size == len(trie)
    rig.close(*range(33), *range(100, 164))
    rig.drain()
    assert not rig.scheduler.sessions


# ------------------------------------------------------------ nobody starves


@pytest.mark.parametrize("policy", POLICIES)
def test_F39_a_low_priority_is_served_under_a_stream_of_high_ones(policy):
    """Every policy puts higher priorities first; who was overtaken often enough runs to its end all the same."""
    rig = Rig(max_running_requests=2, schedule_policy=policy, chunked_prefill_size=16)
    low = rig.decode(0, b"low priority, long prompt " * 4, max_new_tokens=20, ignore_eos=True, priority=-3)
    for n in range(1, 400):
        rig.decode(n, b"high %d" % n, max_new_tokens=2, ignore_eos=True, priority=5)
        rig.step()
        if rig.told[low].finish is not None:
            break
    assert rig.told[low].finish is not None, "it never ended"
    before = [event.rid for event in rig.events if event.state == "admitted"].index(low)
    assert before <= MAX_OVERTAKEN + 2 * 2 + 1
    suspended = [event.rid for event in rig.events if event.state == "retracted"]
    assert suspended.count(low) <= 1, "once it had its place, nobody overtook it again"
    assert (
        rig.told[low].ids == alone(b"low priority, long prompt " * 4, max_new_tokens=20, ignore_eos=True).ids
    )
    rig.drain()


# ------------------------------------------------------------ cache


@pytest.mark.radix
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("page", [1, 4])
def test_B129_children_are_found_by_their_own_tokens_after_splits_and_evictions(page, first):
    allocator = make_allocator(64, page, "lifo")
    cache = RadixCache(allocator)
    rows = [
        [*range(1, 13)],
        [1, 2, 3, 4, 5, 6, 70, 80, 90, 10, 11, 12],
    ]  # with pages of 4 they part inside one
    ids = [np.array(row, dtype=np.int32) for row in rows]
    for one in ids:
        slots = np.array(allocator.alloc(12), dtype=np.int32)
        result = cache.insert(one, slots)
        if result.existing:
            allocator.free(slots[: result.existing])
    shared = 6 // page * page
    cache.check()
    cache.match_prefix(ids[1 - first])  # the other one is the older use
    cache.evict(12 - shared)
    cache.check()
    assert cache.peek(ids[first], "").length == shared
    assert cache.peek(ids[1 - first], "").length == 12
    cache.evict(64)
    assert allocator.available == allocator.size and not list(cache.nodes())


@pytest.mark.radix
@pytest.mark.sched
def test_B130_retraction_with_pages_leaks_none():
    kw = {"max_new_tokens": 28, "ignore_eos": True}
    rig = Rig(page_size=16, max_total_tokens=96, context_length=96, schedule_conservativeness=0.01)
    prompts = [b"A" * 17, b"B" * 31]
    rids = [rig.decode(n, prompt, **kw) for n, prompt in enumerate(prompts)]
    rig.drain()
    assert any(event.state == "retracted" for event in rig.events), "the pool was meant to be too small"
    for rid, prompt in zip(rids, prompts, strict=True):
        assert rig.told[rid].ids == alone(prompt, **kw).ids
    rig.close(0, 1)
    rig.ask("flush_cache")
    assert rig.scheduler.allocator.available == rig.scheduler.allocator.size
