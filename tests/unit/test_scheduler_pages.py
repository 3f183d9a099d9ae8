"""Pages of 2, 4 and 16 slots: what is shared, what is not, and what is told of it."""

from __future__ import annotations

import pytest
from scheduler_rig import Rig, alone

from sgnb.messages import KVDelta, RequestEvent, StepEvent

PAGES = [2, 4, 16]
LONG = bytes(range(97, 123)) * 2


def rig_of(page: int, **args) -> Rig:
    return Rig(page_size=page, **args)


def match(rig: Rig, rid: str):
    return [event.match for event in rig.events if event.rid == rid and event.state == "admitted"][-1]


@pytest.mark.parametrize("page", PAGES)
def test_F32_only_whole_pages_are_shared(page):
    rig = rig_of(page)
    rig.run(1, LONG[:39], max_new_tokens=1, ignore_eos=True)
    told = rig.run(2, LONG[:39] + b"!?", max_new_tokens=6, ignore_eos=True)
    assert told.ids == alone(LONG[:39] + b"!?", max_new_tokens=6, ignore_eos=True).ids
    assert told.meta.cached_tokens == 39 // page * page
    rig.scheduler.check_integrity()


@pytest.mark.parametrize("page", PAGES)
def test_fork_shares_whole_pages_and_computes_the_tail_again(page):
    rig = rig_of(page)
    rig.run(1, LONG[:34], max_new_tokens=6, ignore_eos=True)  # 40 ids, 39 with KV
    rig.fork(1, 11, 12)
    tails = {11: LONG[:20], 12: LONG[20:40]}
    rids = [rig.decode(n, tail, sid=n, fresh=False, max_new_tokens=2) for n, tail in tails.items()]
    rig.drain()
    whole = 39 // page * page
    for rid in rids:
        seen = match(rig, rid)
        assert (seen.matched, rig.told[rid].meta.cached_tokens) == (whole, whole)
        if page == 16:
            assert (seen.cause, seen.half_page) == ("page", 7), "7 tokens do not fill a page"
        assert rig.told[rid].ids == alone(rig.told[rid].prompt_ids, max_new_tokens=2).ids


def test_a_short_rest_that_does_not_fill_a_page_is_told():
    rig = rig_of(16)
    rig.run(1, LONG[:40], max_new_tokens=1)
    rid = rig.decode(2, LONG[:40])
    rig.drain()
    seen = match(rig, rid)
    assert (seen.matched, seen.cause, seen.half_page) == (32, "page", 7)


@pytest.mark.parametrize("page", PAGES)
def test_chunks_end_at_page_borders(page):
    rig = rig_of(page, chunked_prefill_size=6)
    told = rig.run(1, LONG[:41], max_new_tokens=3, ignore_eos=True)
    assert told.ids == alone(LONG[:41], max_new_tokens=3, ignore_eos=True).ids
    steps = [batch for batch in rig.runner.log if batch.forward_mode == "extend"]
    assert len(steps) > 1
    assert all(batch.seq_lens[0] % page == 0 for batch in steps[:-1])
    assert max(sum(batch.extend_lens) for batch in steps) <= max(6, page)


def test_half_filled_pages_are_a_figure():
    rig = rig_of(16)
    rig.decode(1, LONG[:20], max_new_tokens=50, ignore_eos=True)
    rig.step(2)
    stats = rig.scheduler.stats()
    computed = len(rig.scheduler.running_batch[0].kv.slots)
    assert (stats.num_used_tokens, stats.num_half_filled_tokens) == (32, 32 - computed)
    assert rig.ask("memory").data["half_filled"] == 32 - computed > 0
    rig.drain()
    assert rig.ask("stats").data["num_half_filled_tokens"] == 0


def test_what_a_state_keeps_is_told_with_the_cell_it_came_from():
    rig = rig_of(2)
    rig.decode(1, LONG[:20], cell="5", max_new_tokens=3, ignore_eos=True)
    rig.drain()
    rig.fork(1, 11, 12)
    rig.decode(2, LONG[:4], sid=12, fresh=False, cell="6", max_new_tokens=3, ignore_eos=True)
    rig.drain()
    told = {session["sid"]: session for session in rig.ask("holders").data["sessions"]}
    assert {sid: one["cell"] for sid, one in told.items()} == {"c1.s1": "5", "c1.s11": "5", "c1.s12": "6"}
    assert told["c1.s1"]["cached"] == 22 and told["c1.s12"]["cached"] > 22


@pytest.mark.parametrize("page", PAGES)
def test_slot_events_tell_whole_pages(page):
    rig = rig_of(page, max_total_tokens=96)
    for n in range(6):
        rig.decode(n, LONG[: 10 + 3 * n], max_new_tokens=9, ignore_eos=True)
        rig.step(3)
        owners = [""] * rig.scheduler.allocator.size
        for event in rig.detail:
            for run in event.runs if isinstance(event, KVDelta) else ():
                owners[run.start : run.start + run.count] = [run.owner] * run.count
        assert owners.count("") == rig.scheduler.allocator.available, "a slot is free or somebody's"
        for req in rig.scheduler.reqs.values():
            assert {owners[slot] for slot in req.kv.own_slots} <= {req.rid}
    rig.drain()


def test_stream_that_needs_a_page_retracts_another():
    rig = rig_of(4, max_total_tokens=44, schedule_conservativeness=0.01)
    rids = [rig.decode(n, LONG[n : n + 5], max_new_tokens=12, ignore_eos=True) for n in range(3)]
    rig.drain()
    for n, rid in enumerate(rids):
        assert rig.told[rid].ids == alone(LONG[n : n + 5], max_new_tokens=12, ignore_eos=True).ids
    kinds = [
        event.reason for event in rig.events if isinstance(event, RequestEvent) and event.state == "retracted"
    ]
    assert "kv_full" in kinds
    assert any(isinstance(event, StepEvent) for event in rig.detail)


@pytest.mark.parametrize("page", PAGES)
def test_select_on_pages(page):
    options = [b"yes", b"no, never", b"no, sometimes not", b"perhaps"]
    whole, paged = Rig(), rig_of(page)
    for rig in (whole, paged):
        rig.select(1, LONG[:37], options)
        rig.drain()
        rig.decode(2, b" and on", sid=1, fresh=False, max_new_tokens=5)
        rig.drain()
    assert paged.told["c1.r1"].choice == whole.told["c1.r1"].choice
    assert paged.told["c1.r2"].ids == whole.told["c1.r2"].ids


@pytest.mark.parametrize("prompt", range(25, 42))
@pytest.mark.parametrize("page", [1, *PAGES])
def test_F38_a_select_fits_exactly_when_prompt_and_option_fill_the_pool(page, prompt):
    """Its last token needs no slot; one more is refused at the door, and nothing ever hangs."""
    size = 48
    fits, not_ = b"z" * (size - prompt + 1), b"z" * (size - prompt + 2)
    rig = rig_of(page, max_total_tokens=size)
    rig.select(1, LONG[:prompt], [b"a", fits, b"bc"])
    rig.drain()
    told = rig.told["c1.r1"]
    assert told.finish.type == "stop" and len(told.choice.options[1].logprobs) == len(fits)
    roomy = rig_of(page)
    roomy.select(1, LONG[:prompt], [b"a", fits, b"bc"])
    roomy.drain()
    assert told.choice == roomy.told["c1.r1"].choice
    rig.select(2, LONG[:prompt], [b"a", not_])
    rig.drain()
    assert (
        rig.told["c1.r2"].finish.error.code == "context"
        and str(size) in rig.told["c1.r2"].finish.error.message
    )


@pytest.mark.parametrize("page", PAGES)
def test_commit_computes_whole_pages_only(page):
    rig = rig_of(page)
    rig.open(1)
    rig.commit(1, LONG[:39])
    rig.drain()
    assert (
        rig.scheduler.cache.peek(rig.scheduler.sessions["c1.s1"].prompt_with([])).length == 39 // page * page
    )
    rig.commit(1, b"")
    assert not rig.step() and not rig.scheduler.reqs, "nothing is left to compute"


def test_a_pool_of_parts_of_pages_uses_the_whole_ones():
    rig = rig_of(16, max_total_tokens=40)
    assert rig.scheduler.stats().max_total_num_tokens == 32
    told = rig.run(1, LONG[:33], max_new_tokens=1)
    assert told.finish.error.code == "context"
    assert rig.run(2, LONG[:32], max_new_tokens=5, ignore_eos=True).finish.type == "context"
