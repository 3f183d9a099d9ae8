"""Defragmentation: live KV moves, tree and tables follow, nobody's output changes."""

from __future__ import annotations

import random

import pytest
from scheduler_rig import Rig, alone
from test_step_events import owners

from sgnb.errors import EngineDied
from sgnb.messages import SchedulerControl

LONG = bytes(range(97, 123)) * 3


def scattered(**args) -> Rig:
    """A pool with holes: some cached, some running, some aborted."""
    rig = Rig(max_total_tokens=512, **args)
    for n in range(8):
        rig.decode(n, LONG[n : n + 20], max_new_tokens=60, ignore_eos=True)
    rig.step(12)
    rig.abort(*[f"c1.r{n}" for n in (0, 2, 5)])
    rig.step(2)
    rig.scheduler.cache.evict(20)
    return rig


@pytest.mark.parametrize(
    "args", [{}, {"page_size": 4}, {"enable_overlap": True}, {"runner_driver": "thread"}], ids=str
)
def test_free_slots_become_one_run_and_streams_go_on(args):
    rig = scattered(**args)
    assert rig.ask("memory").data["free_runs"] > 1
    data = rig.ask("defragment").data
    assert data["moved"] > 0
    assert data["free_runs"] == 1 < data["free_runs_before"]
    rig.scheduler.check_integrity()
    rig.drain()
    for n in range(8):
        told = rig.told[f"c1.r{n}"]
        whole = alone(LONG[n : n + 20], max_new_tokens=60, ignore_eos=True).ids
        assert told.ids == (whole[: len(told.ids)] if told.finish.type == "abort" else whole)
    again = rig.decode(9, LONG[1:21], max_new_tokens=4, ignore_eos=True)
    rig.drain()
    assert rig.told[again].meta.cached_tokens > 0, "what was cached is found where it lies now"


def test_events_tell_the_whole_map():
    rig = scattered()
    rig.ask("defragment")
    rig.step()
    scheduler, told = rig.scheduler, owners(rig)
    assert told.count("") == scheduler.allocator.available
    for node in scheduler.cache.nodes():
        assert {told[slot] for slot in node.value.tolist()} == {f"node:{node.id}"}
    for req in scheduler.reqs.values():
        assert {told[slot] for slot in req.kv.own_slots} <= {req.rid}
    rig.drain()


def test_a_pool_in_order_is_left_alone():
    rig = Rig()
    rig.run(1, b"abc")
    rig.ask("defragment")
    assert rig.ask("defragment").data["moved"] == 0
    assert not any(batch.move_src for batch in rig.runner.log)


def test_defragment_that_comes_while_a_step_runs_waits_for_its_end():
    rig = scattered()
    asked = []

    def during(batch):
        if not asked:
            asked.append(batch)
            rig.scheduler.receive(SchedulerControl(client=1, id=999, verb="defragment", args={}))

    rig.runner.during = during
    replies = len(rig.replies)
    rig.step()
    assert len(rig.replies) == replies
    assert not rig.scheduler.idle
    rig.step()
    assert rig.replies[-1].data["moved"] > 0
    rig.drain()


def test_moves_add_up_until_a_step_makes_them():
    """Defragment, free something, defragment again, with no step between: the runner makes one move of all."""
    rig = scattered()
    rig.ask("pause")
    rig.ask("defragment")
    rig.abort("c1.r1", "c1.r4")
    rig.scheduler.step()
    rig.scheduler.cache.evict(40)
    assert rig.ask("defragment").data["moved"] > 0
    rig.ask("resume")
    rig.drain()
    for n in (3, 6, 7):
        assert rig.told[f"c1.r{n}"].ids == alone(LONG[n : n + 20], max_new_tokens=60, ignore_eos=True).ids


def test_kv_that_cannot_be_moved_ends_the_engine():
    rig = scattered()

    def broken(src, dst):
        raise MemoryError("no room")

    rig.runner.move_slots = broken
    rig.scheduler.mover.defragment()
    with pytest.raises(EngineDied, match="could not be moved"):
        rig.step(2)


@pytest.mark.parametrize("page", [1, 4])
def test_random_defragmentation_changes_no_output(page):
    rng = random.Random(page)
    rig = Rig(max_total_tokens=160, context_length=96, page_size=page, chunked_prefill_size=16)
    prompts = {}
    for n in range(60):
        prompt = LONG[: rng.choice([0, 8, 20])] + bytes(rng.choice(b"abc") for _ in range(rng.randint(1, 20)))
        prompts[rig.decode(n, prompt, max_new_tokens=rng.randint(1, 25), ignore_eos=True)] = prompt
        rig.step(rng.randint(0, 3))
        if rng.random() < 0.3:
            rig.scheduler.cache.evict(rng.randint(1, 30))
        if rng.random() < 0.5:
            rig.ask("defragment")
            rig.scheduler.check_integrity()
    rig.drain()
    assert sum(bool(batch.move_src) for batch in rig.runner.log) > 10
    for rid, prompt in prompts.items():
        told = rig.told[rid]
        params = {"max_new_tokens": len(told.ids), "ignore_eos": True}
        assert told.ids == alone(prompt, **params).ids


def test_an_idle_engine_moves_only_above_the_knob():
    rig = scattered()
    rig.drain()
    rig.scheduler.cache.evict(60)
    rig.run(19, b"any text")
    assert rig.ask("memory").data["free_runs"] > 1, "off by default"
    rig.ask("set", defragment_above=1.0)
    rig.run(20, b"some text")
    assert rig.ask("memory").data["free_runs"] > 1, "not scattered enough"
    rig.ask("set", defragment_above=0.0)
    rig.run(21, b"other text")
    after = rig.ask("memory").data
    assert (after["free_runs"], after["fragmentation"]) == (1, 0.0)
    told = rig.run(22, LONG[1:21], max_new_tokens=4, ignore_eos=True)
    assert told.meta.cached_tokens > 0
    assert told.ids == alone(LONG[1:21], max_new_tokens=4, ignore_eos=True).ids
