from __future__ import annotations

import logging

import pytest
from scheduler_rig import BYTES, Rig, alone

from sgnb.engine.mem_cache.base import IntegrityError
from sgnb.engine.model_executor.stub_runner import STUB_EOS
from sgnb.engine.scheduler.req import derive_seed
from sgnb.errors import LimitError
from sgnb.messages import SessionDecode

PROMPT = b"The quick brown fox jumps over the lazy dog. "


def end(told) -> tuple:
    return (told.finish.type, told.finish.matched)


# ------------------------------------------------------------ the plain path


def test_one_request_from_queue_to_finish():
    rig = Rig()
    told = rig.run(1, PROMPT, max_new_tokens=5, ignore_eos=True)
    assert end(told) == ("length", None)
    assert len(told.ids) == 5
    assert told.visible == [1, 2, 3, 4, 5], "one output a token"
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


# ------------------------------------------------------------ ends


def test_eos_is_not_part_of_the_text_and_ignore_eos_goes_on():
    for n in range(1, 60):
        prompt = PROMPT + b"%d" % n
        told = alone(prompt, max_new_tokens=200)
        if told.finish.type == "eos":
            break
    assert end(told) == ("eos", STUB_EOS)
    assert told.ids[-1] == STUB_EOS
    assert told.meta.kept_tokens == len(told.ids) - 1 == told.visible[-1]
    assert told.output_ids == told.ids[:-1]
    longer = alone(prompt, max_new_tokens=len(told.ids) + 3, ignore_eos=True)
    assert longer.ids[: len(told.ids)] == told.ids
    assert end(longer) == ("length", None)
    least = alone(prompt, max_new_tokens=200, min_new_tokens=len(told.ids) + 2)
    assert len(least.ids) > len(told.ids)
    assert STUB_EOS not in least.ids[: len(told.ids) + 2]


def test_stop_id_beats_eos_and_is_banned_below_min_new_tokens():
    plain = alone(PROMPT, max_new_tokens=12, ignore_eos=True)
    stop = plain.ids[3]
    told = alone(PROMPT, max_new_tokens=12, stop_token_ids=[stop])
    first = plain.ids.index(stop)
    assert end(told) == ("stop", stop)
    assert told.output_ids == plain.ids[:first]
    late = alone(PROMPT, max_new_tokens=12, min_new_tokens=10, stop_token_ids=[stop])
    assert stop not in late.ids[:10]
    assert end(alone(PROMPT, max_new_tokens=50, stop_token_ids=[STUB_EOS, stop]))[0] == "stop"


@pytest.mark.stop
def test_stop_string_spans_tokens_and_frees_what_is_beyond():
    plain = alone(PROMPT, max_new_tokens=30, ignore_eos=True)
    stop = bytes(plain.ids[6:10]).decode()
    cut = bytes(plain.ids).index(stop.encode())
    rig = Rig()
    told = rig.run(1, PROMPT, max_new_tokens=30, ignore_eos=True, stop=[stop])
    assert end(told) == ("stop", stop)
    assert told.text == bytes(plain.ids)[:cut]
    assert max(told.visible) == cut, "no part of the stop was ever shown"
    assert told.output_ids == plain.ids[:cut]
    assert rig.scheduler.cache.evictable_size == len(PROMPT) + cut, "KV past the cut is not cached"
    again = rig.run(2, b"!", sid=1, fresh=False)
    assert bytes(again.prompt_ids) == PROMPT + bytes(plain.ids[:cut]) + b"!"
    assert again.meta.cached_tokens == len(PROMPT) + cut


@pytest.mark.stop
def test_F54_stop_text_in_the_prompt_or_over_its_end_never_triggers():
    plain = alone(PROMPT, max_new_tokens=30, ignore_eos=True)
    over = (PROMPT[-4:] + bytes(plain.ids[:2])).decode()
    told = alone(PROMPT, max_new_tokens=30, ignore_eos=True, stop=["quick brown", over])
    assert end(told) == ("length", None) and told.ids == plain.ids


@pytest.mark.stop
def test_stop_string_that_a_stop_id_completes_cuts_earlier():
    plain = alone(PROMPT, max_new_tokens=30, ignore_eos=True)
    at = next(i for i in range(8, 30) if plain.ids[i] not in plain.ids[:i])
    stop = bytes(plain.ids[at - 2 : at + 1]).decode()
    told = alone(PROMPT, max_new_tokens=30, ignore_eos=True, stop=[stop], stop_token_ids=[plain.ids[at]])
    assert end(told) == ("stop", stop)
    assert told.output_ids == plain.ids[: at - 2]
    other = alone(PROMPT, max_new_tokens=30, ignore_eos=True, stop=["never"], stop_token_ids=[plain.ids[at]])
    assert end(other) == ("stop", plain.ids[at])
    assert other.output_ids == plain.ids[:at]
    assert other.visible[-1] == at


WIDE = [bytes([i, 120, i]) for i in range(256)] + BYTES[256:]
"""A vocabulary whose tokens are three bytes: stops begin and end inside of them."""


@pytest.mark.stop
def test_B087_stop_in_the_middle_of_a_token():
    plain = alone(PROMPT, max_new_tokens=8, ignore_eos=True)
    letter = plain.ids[4]
    stop = "x" + chr(letter)
    told = alone(PROMPT, table=WIDE, max_new_tokens=8, ignore_eos=True, stop=[stop])
    whole = b"".join(WIDE[i] for i in plain.ids)
    cut = whole.index(stop.encode())
    assert end(told) == ("stop", stop)
    assert told.visible[-1] == cut
    kept = cut // 3
    assert told.output_ids == plain.ids[:kept]
    assert told.leftover == whole[3 * kept : cut] == bytes([plain.ids[kept]])


@pytest.mark.stop
def test_B088_stop_of_several_tokens_is_never_visible():
    plain = alone(PROMPT, max_new_tokens=40, ignore_eos=True)
    stop = bytes(plain.ids[20:27]).decode()
    told = alone(PROMPT, max_new_tokens=40, ignore_eos=True, stop=[stop])
    assert max(told.visible) <= bytes(plain.ids).index(stop.encode())


@pytest.mark.stop
def test_B092_empty_stop_is_refused_and_the_engine_lives():
    rig = Rig()
    rid = rig.decode(1, PROMPT)
    queued = rig.scheduler._inbox.pop()
    assert isinstance(queued, SessionDecode)
    rig.scheduler.receive(
        type(queued)(**{f: getattr(queued, f) for f in queued.__struct_fields__} | {"stops": [b""]})
    )
    rig.drain()
    assert rig.told[rid].finish.error.code == "input"
    assert "stop string is empty" in rig.told[rid].finish.error.message
    assert end(rig.run(2, PROMPT, max_new_tokens=1)) == ("length", None)


@pytest.mark.stop
def test_B094_long_stop_with_a_two_byte_character_inside():
    plain = alone(PROMPT, max_new_tokens=40, ignore_eos=True)
    halves = dict(zip(plain.ids[18:20], (b"\xc3", b"\xa9"), strict=True))
    if len(halves) < 2:
        pytest.fail("the prompt's output repeats a token where the test needs two")
    table = [halves.get(i, entry) for i, entry in enumerate(BYTES)]
    whole = b"".join(table[i] for i in plain.ids)
    stop = whole[12:24].decode("utf-8", "ignore")
    assert "é" in stop
    told = alone(PROMPT, table=table, max_new_tokens=40, ignore_eos=True, stop=[stop])
    cut = whole.index(stop.encode())
    assert end(told) == ("stop", stop)
    assert told.visible[-1] == cut == max(told.visible)


# ------------------------------------------------------------ limits at the door


@pytest.mark.parametrize(
    ("length", "new", "expected"),
    [
        (63, 4, "context"),
        (63, 1, "length"),
        (64, 1, "error"),
        (64, 0, "length"),
        (65, 0, "error"),
        (70, 4, "error"),
    ],
)
def test_F27_prompt_at_the_border_of_the_context(length, new, expected):
    rig = Rig(context_length=64)
    told = rig.run(1, b"a" * length, max_new_tokens=new, ignore_eos=True)
    assert told.finish.type == expected
    if expected == "error":
        assert told.finish.error.code == "context"
        assert f"{length} tokens" in told.finish.error.message
        assert "64" in told.finish.error.message
    else:
        assert len(told.ids) == min(new, 1)


def test_F28_prompt_longer_than_the_pool_is_refused_with_numbers():
    rig = Rig(max_total_tokens=32)
    told = rig.run(1, b"a" * 33)
    assert told.finish.error.code == "context"
    assert "33 tokens" in told.finish.error.message
    assert "32 slots" in told.finish.error.message
    fits = rig.run(2, b"a" * 32, max_new_tokens=9, ignore_eos=True)
    assert (fits.finish.type, len(fits.ids)) == ("context", 1), "alone it ends where the pool does"


@pytest.mark.prompt
@pytest.mark.sched
def test_B108_B109_only_the_empty_prompt_is_refused():
    rig = Rig()
    rids = [rig.decode(n, prompt) for n, prompt in enumerate((b"one", b"", b"three"))]
    rig.drain()
    types = [rig.told[rid].finish.type for rid in rids]
    assert types[1] == "error"
    assert rig.told[rids[1]].finish.error.code == "empty_prompt"
    assert "error" not in (types[0], types[2])
    assert rig.told[rids[2]].ids == alone(b"three").ids


@pytest.mark.sched
def test_B124_no_new_tokens_ends_at_once_and_costs_nothing():
    rig = Rig()
    told = rig.run(1, PROMPT, max_new_tokens=0)
    assert (end(told), told.ids, told.visible[-1]) == (("length", None), [], 0)
    assert rig.scheduler.allocator.available == 4096
    assert not rig.runner.log
    assert bytes(rig.run(2, b"x", sid=1, fresh=False).prompt_ids) == PROMPT + b"x"


def test_token_ids_out_of_range_are_refused():
    rig = Rig()
    for n, bad in enumerate((-1, 259, 2**40)):
        assert rig.run(n, [65, bad]).finish.error.message == f"token id {bad} is outside 0..258"
    rig.open(9)
    rig.extend(9, [2**40])
    assert rig.run(9, b"x", fresh=False).finish.error.code == "input"


def test_full_queue_refuses_with_its_limit():
    rig = Rig(max_queued_requests=2)
    rids = [rig.decode(n, PROMPT) for n in range(3)]
    rig.drain()
    assert [rig.told[rid].finish.type for rid in rids][:2] != ["error", "error"]
    error = rig.told[rids[2]].finish.error
    assert error.code == "queue_full"
    assert "max_queued_requests is 2" in error.message


def test_a_session_is_cut_to_what_its_prompt_keeps():
    rig = Rig()
    first = rig.run(1, PROMPT, max_new_tokens=6, ignore_eos=True)
    told = rig.run(2, b"again", sid=1, fresh=False, keep=20, max_new_tokens=4, ignore_eos=True)
    assert told.prompt_ids == [*PROMPT[:20], *b"again"]
    assert told.meta.prompt_tokens == 25
    assert told.meta.cached_tokens == 20, "what is kept was computed before"
    assert told.meta.cut_tokens == len(PROMPT) + first.meta.kept_tokens - 20
    assert told.ids == alone([*PROMPT[:20], *b"again"], max_new_tokens=4, ignore_eos=True).ids
    whole = rig.run(3, [], sid=1, fresh=False, keep=10, max_new_tokens=0)
    assert whole.prompt_ids == list(PROMPT[:10]), "nothing need come after the cut"
    assert rig.run(4, b"x", sid=1, fresh=False, max_new_tokens=0).meta.cut_tokens == 0


def test_a_session_cannot_keep_more_than_it_has():
    rig = Rig()
    rig.run(1, PROMPT, max_new_tokens=0)
    for n, keep in ((2, len(PROMPT) + 1), (3, -1)):
        told = rig.run(n, b"x", sid=1, fresh=False, keep=keep)
        assert told.finish.error.code == "keep"
        assert f"not {keep} to keep" in told.finish.error.message
    assert rig.run(4, b"x", sid=1, fresh=False, max_new_tokens=0).prompt_ids == [*PROMPT, *b"x"]


def test_closed_unknown_and_busy_sessions_refuse():
    rig = Rig()
    assert rig.run(1, PROMPT, fresh=False).finish.error.code == "session"
    rig.decode(2, PROMPT)
    second = rig.decode(3, PROMPT, sid=2, fresh=False)
    rig.extend(2, b"late")
    rig.drain()
    assert rig.told[second].finish.error.code == "busy"
    assert rig.told["c1.r2"].ids == alone(PROMPT).ids, "the running one is not disturbed"
    assert rig.run(4, b"x", sid=2, fresh=False).finish.error.code == "order"


def test_a_session_serves_its_owner_only():
    rig = Rig()
    rig.run(1, PROMPT)
    rig.scheduler.sessions["c2.s1"] = rig.scheduler.sessions["c1.s1"]
    assert rig.run(2, b"x", client=2, sid=1, fresh=False).finish.error.code == "session"


def test_repeated_ids_of_sessions_and_requests_change_nothing(caplog):
    rig = Rig()
    rid = rig.decode(1, PROMPT)
    rig.open(1)
    told = rig.told[rid]
    rig.decode(1, b"again", fresh=False)
    rig.told[rid] = told
    rig.drain()
    assert told.ids == alone(PROMPT).ids
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]


def test_without_a_table_nothing_runs():
    rig = Rig(table=None)
    assert rig.run(1, PROMPT).finish.error.code == "not_ready"


def test_unsupported_settings_are_refused_at_start():
    with pytest.raises(LimitError, match="page_size must be one of 1, 2, 4, 16"):
        Rig(page_size=3)
    with pytest.raises(LimitError, match="prefill_decode_interval"):
        Rig(prefill_decode_interval=0)


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
