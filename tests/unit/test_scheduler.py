from __future__ import annotations

import pytest
from scheduler_rig import Rig, alone

from sgnb.engine.scheduler.req import derive_seed

PROMPT = b"The quick brown fox jumps over the lazy dog. "


def end(told) -> tuple:
    return (told.finish.type, told.finish.matched)


# ------------------------------------------------------------ the plain path


def test_one_request_from_queue_to_finish():
    rig = Rig()
    told = rig.run(1, PROMPT, max_new_tokens=5, ignore_eos=True)
    assert end(told) == ("length", None)
    assert len(told.ids) == 5
    assert told.visible == [0, 1, 2, 3, 4, 5], "one output when it leaves the queue, and one a token"
    assert (told.prompt_ids, told.output_ids, told.leftover) == (list(PROMPT), told.ids, b"")
    assert (told.meta.prompt_tokens, told.meta.cached_tokens, told.meta.kept_tokens) == (45, 0, 5)
    assert (told.meta.first_step, told.meta.last_step) == (1, 5)
    assert [event.state for event in rig.events] == ["queued", "admitted", "first_token", "finished"]
    assert rig.events[-1].reason == "length"
    assert rig.scheduler.cache.evictable_size == 45 + 4, "the last token drawn has no KV"


def test_a_new_request_joins_the_running_batch_at_the_next_step():
    rig = Rig()
    rig.decode(1, PROMPT, max_new_tokens=20, ignore_eos=True)
    rig.step(3)
    rig.decode(2, b"Another one", max_new_tokens=20, ignore_eos=True)
    rig.step(2)
    assert [batch.forward_mode for batch in rig.runner.log[-2:]] == ["extend", "decode"]
    assert len(rig.runner.log[-1].req_pool_indices) == 2
    rig.drain()
    assert rig.told["c1.r1"].ids == alone(PROMPT, max_new_tokens=20, ignore_eos=True).ids
    assert rig.told["c1.r2"].ids == alone(b"Another one", max_new_tokens=20, ignore_eos=True).ids


def test_second_request_reuses_the_first_ones_prefix():
    rig = Rig()
    rig.run(1, PROMPT + b"one")
    told = rig.run(2, PROMPT + b"two")
    assert told.meta.cached_tokens == len(PROMPT)
    assert told.begun == (len(PROMPT) + 3, len(PROMPT)), "as soon as it leaves the queue"
    assert told.ids == alone(PROMPT + b"two").ids


def test_only_what_another_request_computes_at_the_same_time_is_computed_twice():
    rig = Rig()
    rig.run(1, PROMPT)
    rig.run(2, PROMPT)  # all of it is there; its last token is computed all the same
    short = PROMPT[:20]  # too short for one to wait for the other
    rig.decode(3, b"new" + short, max_new_tokens=4)
    rig.decode(4, b"new" + short, max_new_tokens=4)
    rig.drain()
    twice = {event.rid: event.duplicate_tokens for event in rig.events if event.state == "first_token"}
    assert twice == {"c1.r1": 0, "c1.r2": 0, "c1.r3": 0, "c1.r4": 23}


def test_disabled_cache_says_the_same():
    rig = Rig(disable_radix_cache=True, chunked_prefill_size=7)
    first, second = rig.run(1, PROMPT), rig.run(2, PROMPT)
    assert first.ids == second.ids == alone(PROMPT).ids
    assert second.meta.cached_tokens == 0
    assert rig.scheduler.allocator.available == 4096


def test_session_continues_from_what_it_kept():
    rig = Rig()
    first = rig.run(1, PROMPT, max_new_tokens=6, ignore_eos=True)
    rig.extend(1, b" and then")
    told = rig.run(2, b" more", sid=1, fresh=False, max_new_tokens=6, ignore_eos=True)
    assert bytes(told.prompt_ids) == PROMPT + bytes(first.ids) + b" and then more"
    assert told.meta.prompt_tokens == 45 + 6 + 9 + 5
    assert told.meta.cached_tokens == 45 + 5, "prompt, and output but for its last token"
    assert told.ids == alone(told.prompt_ids, max_new_tokens=6, ignore_eos=True).ids


def test_evicted_session_computes_again_and_says_so():
    rig = Rig()
    first = rig.run(1, PROMPT, max_new_tokens=6, ignore_eos=True)
    assert rig.ask("flush_cache").data == {"flushed": 50, "locked": 0}
    told = rig.run(2, b"?", sid=1, fresh=False)
    assert told.meta.cached_tokens == 0
    assert bytes(told.prompt_ids) == PROMPT + bytes(first.ids) + b"?"
    assert told.ids == alone(told.prompt_ids).ids


def test_live_sessions_hold_no_lock_and_never_block():
    rig = Rig(max_total_tokens=64, context_length=64)
    for n in range(8):
        told = rig.run(n, bytes([65 + n]) * 50, max_new_tokens=8, ignore_eos=True)
        assert end(told) == ("length", None)
    assert rig.scheduler.cache.lock_total == 0
    assert len(rig.scheduler.sessions) == 8
    rig.close(*range(8))
    rig.step()
    assert not rig.scheduler.sessions


def test_extra_key_separates_name_spaces():
    rig = Rig()
    rig.run(1, PROMPT)
    rig.open(2, extra_key="other")
    told = rig.run(2, PROMPT, fresh=False)
    assert told.meta.cached_tokens == 0


def test_logprobs_pass_through():
    told = Rig().run(1, PROMPT, max_new_tokens=4, ignore_eos=True, return_logprob=True, top_logprobs_num=2)
    assert [entry.id for entry in told.logprobs] == told.ids
    assert all(len(entry.top) == 2 for entry in told.logprobs)
    assert not Rig().run(1, PROMPT).logprobs


def test_seeds_are_given_or_derived_from_the_ordinal():
    assert derive_seed(0, "c1.r5") == derive_seed(0, "c9.r5") != derive_seed(1, "c1.r5")
    assert 0 <= derive_seed(0, "anything") < 2**63
    kw = {"temperature": 1.0, "max_new_tokens": 20, "ignore_eos": True}
    rig = Rig()
    given = [rig.run(n, PROMPT, seed=seed, **kw).ids for n, seed in ((1, 7), (2, 7), (3, 8))]
    assert given[0] == given[1] != given[2]
    assert rig.run(4, PROMPT, **kw).ids == alone(PROMPT, n=4, **kw).ids != rig.run(5, PROMPT, **kw).ids


# ------------------------------------------------------------ chunks


@pytest.mark.parametrize("policy", ["lpm", "fcfs"])
@pytest.mark.parametrize("length", [1, 7, 8, 9, 15, 16, 17, 24, 25])
def test_F34_chunk_borders(length, policy):
    rig = Rig(chunked_prefill_size=8, schedule_policy=policy)
    told = rig.run(1, PROMPT[:length], max_new_tokens=6, ignore_eos=True)
    assert told.ids == alone(PROMPT[:length], max_new_tokens=6, ignore_eos=True).ids
    extends = [batch.extend_lens for batch in rig.runner.log if batch.forward_mode == "extend"]
    assert [sum(lens) for lens in extends] == [8] * ((length - 1) // 8) + [(length - 1) % 8 + 1]


@pytest.mark.sched
def test_B136_three_chunks_and_more():
    rig = Rig(chunked_prefill_size=8)
    told = rig.run(1, PROMPT[:30], max_new_tokens=6, ignore_eos=True)
    assert told.ids == alone(PROMPT[:30], max_new_tokens=6, ignore_eos=True).ids
    assert [batch.sample for batch in rig.runner.log[:4]] == [[False], [False], [False], [True]]


@pytest.mark.sched
@pytest.mark.parametrize("length", [16, 24])
def test_B135_cached_prefix_never_leaves_an_empty_chunk(length):
    rig = Rig(chunked_prefill_size=8)
    rig.run(1, PROMPT[:16], max_new_tokens=1)
    told = rig.run(2, PROMPT[:length], max_new_tokens=4, ignore_eos=True)
    assert told.meta.cached_tokens == min(16, length - 1)
    assert told.ids == alone(PROMPT[:length], max_new_tokens=4, ignore_eos=True).ids


def test_chunks_enter_the_tree_as_they_finish():
    rig = Rig(chunked_prefill_size=8)
    rig.decode(1, PROMPT)
    rig.step(2)
    assert rig.scheduler.cache.protected_size == 16
    assert rig.scheduler.chunked_req is not None
    rig.drain()


def test_max_prefill_tokens_bounds_the_sum_but_not_the_first():
    rig = Rig(chunked_prefill_size=-1, max_prefill_tokens=20)
    for n in range(3):
        rig.decode(n, bytes([65 + n]) * 15)
    rig.drain()
    rig.run(9, PROMPT)
    assert [batch.extend_lens for batch in rig.runner.log if batch.forward_mode == "extend"] == [[15]] * 3 + [
        [45]
    ]


@pytest.mark.sched
def test_B134_requests_that_end_with_their_first_token_leak_nothing():
    rig = Rig(chunked_prefill_size=16, max_running_requests=4)
    for n in range(100):
        rig.decode(n, b"%d" % n if n % 7 else PROMPT * 3 + b"%d" % n, max_new_tokens=1)
    rig.drain()
    assert all(len(told.ids) == 1 for told in rig.told.values())


# ------------------------------------------------------------ retraction, fairness, policies


def test_F26_full_pool_retracts_and_resumes_without_repeating():
    kw = {"max_new_tokens": 40, "ignore_eos": True}
    rig = Rig(max_total_tokens=64, context_length=64, schedule_conservativeness=0.01)
    rids = [rig.decode(n, b"request %d" % n, **kw) for n in range(4)]
    rig.drain()
    for n, rid in enumerate(rids):
        assert rig.told[rid].ids == alone(b"request %d" % n, **kw).ids
    retracted = [event.rid for event in rig.events if event.state == "retracted"]
    assert retracted
    assert rig.scheduler.stats().num_retracted_reqs == len(retracted)


def test_retraction_takes_fewest_output_then_longest_input():
    rig = Rig(max_total_tokens=256)
    for n, length in enumerate((10, 30, 20)):
        rig.decode(n, bytes([65 + n]) * length, max_new_tokens=60, ignore_eos=True)
    rig.step(3)
    rig.decode(3, b"D" * 5, max_new_tokens=60, ignore_eos=True)
    rig.step(2)
    held = rig.scheduler.allocator.alloc(rig.scheduler.allocator.available)
    rig.scheduler.step()
    assert [event.rid for event in rig.events if event.state == "retracted"] == ["c1.r3"]
    rig.scheduler.allocator.free(held)
    rig.drain()
    for n, length in enumerate((10, 30, 20)):
        expected = alone(bytes([65 + n]) * length, max_new_tokens=60, ignore_eos=True)
        assert rig.told[f"c1.r{n}"].ids == expected.ids


def test_a_half_computed_prompt_gives_way_to_running_requests():
    rig = Rig(max_total_tokens=64, context_length=64, chunked_prefill_size=8, schedule_conservativeness=0.01)
    rig.decode(1, b"run", max_new_tokens=55, ignore_eos=True)
    rig.step(2)
    rig.decode(2, b"p" * 50, max_new_tokens=2, ignore_eos=True)
    rig.drain()
    assert rig.told["c1.r1"].ids == alone(b"run", max_new_tokens=55, ignore_eos=True).ids
    assert rig.told["c1.r2"].ids == alone(b"p" * 50, max_new_tokens=2, ignore_eos=True).ids


@pytest.mark.parametrize("policy", ["lpm", "fcfs", "random", "dfs-weight", "lof"])
def test_F39_nobody_starves_under_a_stream_of_cache_hits(policy):
    rig = Rig(max_running_requests=2, schedule_policy=policy, max_total_tokens=512)
    rig.run(0, PROMPT)
    rig.decode(1, b"cold and long " * 10, max_new_tokens=2, ignore_eos=True)
    for n in range(2, 8):
        rig.decode(n, PROMPT + b"%d" % n, max_new_tokens=2, ignore_eos=True)
    for n in range(8, 700):
        rig.decode(n, PROMPT + b"%d" % n, max_new_tokens=2, ignore_eos=True)
        rig.step()
        if rig.told["c1.r1"].ids:
            break
    assert rig.told["c1.r1"].ids, "overtaken for ever"
    waited = sum(event.state == "admitted" for event in rig.events)
    assert waited <= 128 + 2 * rig.args.max_running_requests + 1
    rig.drain()


def test_a_request_too_big_for_now_is_not_overtaken_for_ever():
    rig = Rig(max_total_tokens=64, context_length=64, schedule_policy="fcfs")
    rig.decode(0, b"small", max_new_tokens=10, ignore_eos=True)
    rig.step()
    rig.decode(1, b"B" * 60, max_new_tokens=2, ignore_eos=True)
    for n in range(2, 30):
        rig.decode(n, b"s%d" % n, max_new_tokens=10, ignore_eos=True)
        rig.step()
        if rig.told["c1.r1"].ids:
            break
    assert n < 20
    rig.drain()


def admitted(rig) -> list[str]:
    return [event.rid.split(".r")[1] for event in rig.events if event.state == "admitted"]


def test_policies_order_the_queue():
    def order(policy: str, waiting: int = 4) -> list[str]:
        rig = Rig(max_running_requests=1, schedule_policy=policy)
        rig.run(0, PROMPT)
        for n in range(1, waiting):
            prompt = PROMPT if n == 3 else PROMPT[:20] + b"#" if n == 2 else b"cold"
            rig.decode(n, prompt + b"%d" % n, max_new_tokens=min(n, 3), ignore_eos=True)
        rig.drain()
        return admitted(rig)[1:4]

    assert order("fcfs") == ["1", "2", "3"]
    assert order("lpm") == ["3", "2", "1"]
    assert order("lof") == ["3", "2", "1"]
    assert order("dfs-weight") == ["2", "3", "1"]
    assert sorted(order("random")) == ["1", "2", "3"]
    assert order("lpm", waiting=140)[0] == "1", "above 128 waiting it is first come, first served"


def test_equal_prompts_in_one_batch_share_their_slots_afterwards():
    rig = Rig()
    for n in range(4):
        rig.decode(n, PROMPT, max_new_tokens=6, ignore_eos=True)
    rig.step()
    assert rig.scheduler.cache.protected_size == len(PROMPT)
    assert rig.scheduler.allocator.available == 4096 - len(PROMPT)
    rig.drain()
    assert len({tuple(told.ids) for told in rig.told.values()}) == 1


# ------------------------------------------------------------ control and telemetry


def test_controls():
    rig = Rig()
    rig.decode(1, PROMPT, max_new_tokens=50, ignore_eos=True)
    rig.decode(2, b"of another", client=2, max_new_tokens=50, ignore_eos=True)
    rig.step(3)
    mine = rig.ask("requests").data["requests"]
    assert [(entry["rid"], entry["state"], entry["prompt_tokens"]) for entry in mine] == [
        ("c1.r1", "running", 45)
    ]
    both = rig.ask("requests", all_clients=True).data["requests"]
    assert len(both) == 2
    assert "rid" not in both[1]
    assert both[1]["label"]["name"] == "@generate"
    stats = rig.ask("stats").data
    assert (stats["num_running_reqs"], stats["num_sessions"], stats["max_total_num_tokens"]) == (2, 2, 4096)
    assert stats["num_used_tokens"] + stats["num_cached_tokens"] + stats["num_free_tokens"] == 4096
    now, flight = rig.scheduler.stats(), sum(req.kv.in_flight for req in rig.scheduler.reqs.values())
    assert (now.num_locked_tokens, now.num_used_tokens) == (45 + 10, 45 + 10 + flight)
    assert stats["num_locked_tokens"] == 45 + 10 < stats["num_used_tokens"]
    assert rig.ask("flush_cache").data == {"flushed": 0, "locked": 45 + 10}
    assert rig.ask("check").data["ok"] is True
    assert rig.ask("dance").error.code == "unknown_verb"
    rig.drain()
    assert rig.scheduler.allocator.available == 4096, "flushed nodes left when they were unlocked"


def test_stats_count_what_happened():
    rig = Rig()
    rig.run(1, PROMPT, max_new_tokens=5, ignore_eos=True)
    rig.run(2, PROMPT, max_new_tokens=5, ignore_eos=True)
    stats = rig.stats[-1]
    assert (stats.prompt_tokens_total, stats.cached_tokens_total, stats.generated_tokens_total) == (
        90,
        44,
        10,
    )
    assert stats.cache_hit_rate == pytest.approx(44 / 90)
    assert stats.forward_steps == 10
    assert stats.num_used_tokens == 0
    assert stats.new_token_ratio == pytest.approx(0.7), "starts over when idle"


def test_an_idle_step_does_nothing_but_beat():
    rig = Rig()
    assert rig.step() is False
    count = len(rig.stats)
    for _ in range(50):
        rig.step()
    assert len(rig.stats) <= count + 3
    assert not rig.runner.log
