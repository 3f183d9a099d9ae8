"""Who runs when: chunks and streams, priority, time slices, leaders and followers, knobs, pause, pins."""

from __future__ import annotations

import pytest
from scheduler_rig import Rig, alone
from test_overlap import Script

from sgnb.engine.scheduler.policy import SchedulePolicy

LONG = {"max_new_tokens": 200, "ignore_eos": True}


def gaps(rig: Rig, row: int) -> list[int]:
    """New tokens computed by others between two tokens of the stream on a table row."""
    out, since = [], 0
    for batch in rig.runner.log:
        if row in batch.req_pool_indices and batch.sample[batch.req_pool_indices.index(row)]:
            out.append(since)
            since = 0
        else:
            since += len(batch.input_ids)
    return out[1:]


@pytest.mark.parametrize("mixed", [False, True])
def test_streams_are_not_starved_while_a_long_prompt_prefills(mixed):
    rig = Rig(chunked_prefill_size=512, max_total_tokens=8192, context_length=8000, enable_mixed_chunk=mixed)
    rids = [rig.decode(n, b"stream %d" % n, **LONG) for n in range(4)]
    rig.step(3)
    rows = {rid: rig.scheduler.reqs[rid].row for rid in rids}
    prompt = bytes(i % 251 % 128 for i in range(4000))
    late = rig.decode(9, prompt, max_new_tokens=2)
    rig.drain()
    for rid in rids:
        assert max(gaps(rig, rows[rid])) <= (0 if mixed else 1.5 * 512)
        assert rig.told[rid].ids == alone(bytes(rig.told[rid].prompt_ids), **LONG).ids
    assert (
        rig.told[late].ids == alone(prompt, max_new_tokens=2, context_length=8000, max_total_tokens=8192).ids
    )


def test_a_high_priority_gen_starts_within_two_steps_among_16_long_ones():
    rig = Rig(max_running_requests=16)
    low = [rig.decode(n, b"low %d" % n, **LONG) for n in range(16)]
    rig.step(20)
    high = rig.decode(99, b"urgent", priority=5, max_new_tokens=3, ignore_eos=True)
    rig.step(2)
    assert rig.told[high].started
    rig.drain()
    assert sum(event.reason == "priority" for event in rig.events) == 1
    for rid in low:
        told = rig.told[rid]
        assert told.ids == alone(bytes(told.prompt_ids), **LONG).ids
    assert rig.told[high].ids == alone(b"urgent", max_new_tokens=3, ignore_eos=True).ids


def test_a_suspended_stream_finds_its_KV_again():
    rig = Rig(max_running_requests=1)
    low = rig.decode(1, b"a low priority stream", **LONG)
    rig.step(30)
    rig.decode(2, b"urgent", priority=1, max_new_tokens=3, ignore_eos=True)
    before = sum(len(batch.input_ids) for batch in rig.runner.log)
    rig.drain()
    computed = sum(len(batch.input_ids) for batch in rig.runner.log) - before
    assert computed <= 6 + 3 + (200 - 29) + 1, "nothing of the suspended stream is computed again"
    assert rig.told[low].ids == alone(b"a low priority stream", **LONG).ids


def test_a_half_computed_prompt_gives_way_to_a_higher_priority():
    rig = Rig(chunked_prefill_size=4)
    slow = rig.decode(1, bytes(range(97, 123)) * 4, max_new_tokens=2)
    rig.step(2)
    high = rig.decode(2, b"now", priority=1, max_new_tokens=1)
    rig.step(2)
    assert rig.told[high].finish is not None and rig.told[slow].finish is None
    rig.drain()
    assert rig.told[slow].ids == alone(bytes(range(97, 123)) * 4, max_new_tokens=2).ids


def test_time_slices_let_everybody_run():
    rig = Rig(max_running_requests=2, decode_quantum=5)
    rids = [rig.decode(n, b"stream %d" % n, max_new_tokens=40, ignore_eos=True) for n in range(6)]
    rig.step(40)
    assert all(rig.told[rid].started for rid in rids), "without slices only two would have started"
    rig.drain()
    for rid in rids:
        told = rig.told[rid]
        assert told.ids == alone(bytes(told.prompt_ids), max_new_tokens=40, ignore_eos=True).ids


# ------------------------------------------------------------ in-batch sharing

STEM = bytes(range(33, 97)) * 2


def test_a_follower_waits_for_its_leader_and_computes_only_its_own():
    rig = Rig()
    rids = [rig.decode(n, STEM + b" %d" % n, max_new_tokens=2, ignore_eos=True) for n in range(6)]
    rig.drain()
    computed = sum(len(b.input_ids) for b in rig.runner.log if b.forward_mode == "extend")
    assert computed <= len(STEM) + 6 * 2
    for rid in rids:
        assert (
            rig.told[rid].ids == alone(bytes(rig.told[rid].prompt_ids), max_new_tokens=2, ignore_eos=True).ids
        )


@pytest.mark.parametrize("how", ["abort", "close", "nan", "retract", "finish"])
def test_a_follower_wakes_when_its_leader_leaves_prefill_for_any_reason(how):
    rig = Rig(chunked_prefill_size=40)
    leader = rig.decode(1, STEM + b"leader", max_new_tokens=1, seed=7)
    follower = rig.decode(2, STEM + b"follower", max_new_tokens=2, ignore_eos=True)
    rig.step()
    assert rig.scheduler.waiting_queue and not rig.told[follower].started
    if how == "abort":
        rig.abort(leader)
    elif how == "close":
        rig.close(1)
    elif how == "nan":
        rig.runner.nan_rows = lambda batch, row: batch.params[row].seed == 7
    elif how == "retract":
        rig.scheduler.retract(rig.scheduler.chunked_req)
    rig.drain(60)
    assert rig.told[follower].ids == alone(STEM + b"follower", max_new_tokens=2, ignore_eos=True).ids


def test_no_leader_without_a_cache_or_across_name_spaces():
    rig = Rig(disable_radix_cache=True)
    for n in range(3):
        rig.decode(n, STEM, max_new_tokens=1)
    rig.step()
    assert len(rig.runner.log[0].req_pool_indices) == 3


# ------------------------------------------------------------ knobs


def test_knobs_change_live_and_bad_ones_change_nothing():
    rig = Rig()
    data = rig.ask("set", schedule_policy="fcfs", chunked_prefill_size=3, allocator_order="lowest").data
    assert (data["schedule_policy"], data["chunked_prefill_size"]) == ("fcfs", 3)
    rig.run(1, b"0123456789", max_new_tokens=1)
    assert max(len(batch.input_ids) for batch in rig.runner.log) == 3
    for bad in ({"page_size": 2}, {"nonsense": 1}, {"chunked_prefill_size": 0}, {"decode_quantum": "x"}):
        error = rig.ask("set", schedule_policy="lof", **bad).error
        assert error.kind == "LimitError" and error.message
    assert rig.scheduler.policy.name == "fcfs"


def test_the_cache_can_be_switched_off_and_on():
    rig = Rig()
    rig.run(1, STEM, max_new_tokens=1)
    rig.ask("set", disable_radix_cache=True)
    assert rig.scheduler.cache.evictable_size == 0
    assert rig.run(2, STEM, max_new_tokens=1).meta.cached_tokens == 0
    rig.ask("set", disable_radix_cache=False)
    rig.run(3, STEM, max_new_tokens=1)
    assert rig.run(4, STEM, max_new_tokens=1).meta.cached_tokens == len(STEM) - 1


def test_a_pause_ends_with_the_client_that_asked_for_it():
    """Its notebook is gone: nobody else would know why nothing moves."""
    rig = Rig()
    rig.decode(1, b"a prompt", client=1)
    rig.ask("pause", client=2)
    rig.step(3)
    assert rig.told["c1.r1"].finish is None
    rig.gone(3)
    rig.step(3)
    assert rig.scheduler.paused, "of another client"
    rig.gone(2)
    rig.drain()
    assert rig.told["c1.r1"].finish.type == "length" and not rig.scheduler.paused


def test_pause_step_resume():
    rig = Rig()
    rig.ask("pause")
    rid = rig.decode(1, b"hello", max_new_tokens=5, ignore_eos=True)
    assert not rig.step() and not rig.runner.log and rig.scheduler.idle
    rig.ask("step", count=2)
    rig.step(5)
    assert len(rig.runner.log) == 2 and len(rig.told[rid].ids) == 2
    rig.ask("resume")
    rig.drain()
    assert rig.told[rid].finish.type == "length"
    assert rig.ask("step").error is not None


# ------------------------------------------------------------ pins, eviction, fragments


def test_a_pinned_prefix_outlives_pressure_and_gives_way_only_to_what_needs_it():
    rig = Rig(max_total_tokens=64)
    rig.run(1, b"pinned prefix", max_new_tokens=1)
    assert rig.ask("pin", sid="c1.s1").data == {"pinned": len(b"pinned prefix")}
    assert rig.scheduler.cache.lock_total == 0
    rig.run(2, b"x" * 40, max_new_tokens=1)
    rig.run(3, b"y" * 40, max_new_tokens=1)
    assert rig.run(4, b"pinned prefix", max_new_tokens=1).meta.cached_tokens == len(b"pinned prefix") - 1
    assert rig.run(5, b"z" * 60, max_new_tokens=1).finish.type in ("length", "eos")
    assert rig.scheduler.cache.pinned_size == 0


def test_a_stream_that_needs_the_pinned_slots_goes_on():
    rig = Rig(max_total_tokens=32)
    rig.run(1, b"0123456789", max_new_tokens=1)
    rig.ask("pin", sid="c1.s1")
    told = rig.run(2, b"abc", max_new_tokens=25, ignore_eos=True)
    assert told.finish.type == "length" and len(told.ids) == 25


def test_unpin_and_release_give_a_pin_back():
    rig = Rig()
    rig.run(1, b"abcdef", max_new_tokens=1)
    rig.ask("pin", sid="c1.s1")
    assert rig.ask("unpin", sid="c1.s1").data == {"unpinned": True}
    assert rig.ask("unpin", sid="c1.s1").data == {"unpinned": False}
    rig.ask("pin", sid="c1.s1")
    rig.close(1)
    rig.drain()
    assert rig.scheduler.cache.pinned_size == 0
    assert rig.ask("pin", sid="c1.s1").error is not None


def test_what_pins_share_counts_once_and_a_refusal_keeps_the_pin_before():
    rig = Rig(max_total_tokens=64)
    rig.run(1, b"0123456789abcdefghijklmn", max_new_tokens=1)
    rig.run(2, b"0123456789abcdefghijopqr", max_new_tokens=1)
    for sid in ("c1.s1", "c1.s2", "c1.s1"):  # the third is the first one's again, and costs nothing
        assert rig.ask("pin", sid=sid).data == {"pinned": 24}
    assert rig.scheduler.cache.pinned_size == 20 + 4 + 4
    rig.decode(3, b" and six more", sid=1, fresh=False, max_new_tokens=1)
    rig.drain()
    refused = rig.ask("pin", sid="c1.s1").error
    assert "42 slots would be pinned then, at most 32" in refused.message
    assert rig.scheduler.cache.pinned_size == 28, "what was pinned before stays"
    rig.ask("unpin", sid="c1.s1")
    assert rig.scheduler.cache.pinned_size == 24
    rig.ask("unpin", sid="c1.s2")
    assert rig.scheduler.cache.pinned_size == 0


@pytest.mark.parametrize(
    "policy, kept", [("lru", b"b"), ("fifo", b"b"), ("lfu", b"a"), ("slru", b"a"), ("priority", b"a")]
)
def test_eviction_policies_choose_different_victims(policy, kept):
    rig = Rig(max_total_tokens=64, radix_eviction_policy=policy)
    for n in range(4):
        rig.run(n, b"a" * 20, max_new_tokens=1, priority=3)
    rig.run(8, b"b" * 20, max_new_tokens=1)
    rig.close(0, 1, 2, 3, 8)
    rig.run(9, b"c" * 40, max_new_tokens=1)
    left = {bytes(node.key.tolist())[:1] for node in rig.scheduler.cache.nodes()}
    assert kept in left and len(left) == 2


def test_fragmentation_is_told():
    rig = Rig(max_total_tokens=64, allocator_order="lowest")
    data = rig.ask("memory").data
    assert (data["free_runs"], data["longest_free_run"], data["fragmentation"]) == (1, 64, 0.0)
    rig.run(1, b"a" * 8, max_new_tokens=1)
    rig.run(2, b"b" * 8, max_new_tokens=1)
    rig.scheduler.cache.evict(8)
    data = rig.ask("memory").data
    assert data["free_runs"] == 2 and 0 < data["fragmentation"] < 1


@pytest.mark.parametrize("policy", ["lpm", "fcfs", "dfs-weight", "lof", "priority"])
def test_the_order_that_is_remembered_is_the_one_a_sort_would_give(policy, monkeypatch):
    """In most passes nothing has changed and nothing is sorted: then it must be as if it had been."""
    sorts = []
    sort, calc = SchedulePolicy._sort, SchedulePolicy.calc_priority

    def counted(self, waiting):
        sorts.append(1)
        sort(self, waiting)

    def compared(self, waiting):
        calc(self, waiting)
        again = waiting.copy()
        sort(self, again)
        assert again == waiting
        passes.append(1)

    monkeypatch.setattr(SchedulePolicy, "_sort", counted)
    monkeypatch.setattr(SchedulePolicy, "calc_priority", compared)
    passes: list[int] = []
    for seed in range(4):
        rig = Rig(
            schedule_policy=policy,
            max_total_tokens=[48, 400][seed % 2],
            context_length=64,
            max_running_requests=3,
            decode_quantum=[0, 2][seed // 2],
        )
        Script(rig, seed).run(25)
    assert len(sorts) < len(passes)
