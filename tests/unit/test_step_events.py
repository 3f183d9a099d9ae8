"""Step, radix and slot events: folded, they give what the scheduler itself knows."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest
from scheduler_rig import Rig

from sgnb.engine.mem_cache import miss
from sgnb.engine.scheduler.step_events import MAX_RUNS
from sgnb.engine.scheduler.telemetry import Telemetry
from sgnb.engine.scheduler_process import frame_of
from sgnb.messages import KVDelta, Numbered, RadixEvent, SchedulerReply, StepEvent
from sgnb.transport import encode


def of(rig: Rig, kind):
    return [event for event in rig.detail if isinstance(event, kind)]


def notes(rig: Rig, what: str):
    return [
        (note.rid, note.reason) for event in of(rig, StepEvent) for note in event.notes if note.what == what
    ]


def match(rig: Rig, rid: str):
    return [event.match for event in rig.events if event.rid == rid and event.state == "admitted"][-1]


def owners(rig: Rig) -> list[str]:
    """Fold of the slot events: who owns each slot."""
    out = [""] * rig.args.max_total_tokens
    for event in of(rig, KVDelta):
        for run in event.runs:
            out[run.start : run.start + run.count] = [run.owner] * run.count
    return out


def nodes(rig: Rig) -> dict[int, tuple[int, int, int]]:
    """Fold of the tree events: node → (parent, start, length)."""
    tree: dict[int, tuple[int, int, int]] = {}
    for event in of(rig, RadixEvent):
        if event.kind == "insert":
            tree[event.node] = (event.parent, event.start, event.length)
        elif event.kind == "split":
            tree[event.node] = (event.parent, event.start, event.length)
            end = event.start + event.length
            (lower,) = (node for node in rig.split_children[event.node] if node in tree)
            tree[lower] = (event.node, end, tree[lower][2] - event.length)
        elif event.kind in ("evict", "flush"):
            del tree[event.node]
    return tree


def watched(**args) -> Rig:
    rig = Rig(**args)
    rig.split_children = {}
    inner = rig.scheduler.cache.on_change

    def changed(kind, node):
        if kind == "split":
            rig.split_children[node.id] = [child.id for child in node.children.values()]
        inner(kind, node)

    rig.scheduler.cache.on_change = changed
    return rig


def test_steps_tell_rows_decisions_and_figures():
    rig = Rig(chunked_prefill_size=8)
    first = rig.decode(1, b"0123456789abcdef", max_new_tokens=2, ignore_eos=True)
    rig.drain()
    steps = of(rig, StepEvent)
    assert [(s.mode, [(r.kind, r.tokens, r.prefix) for r in s.rows]) for s in steps] == [
        ("extend", [("prefill", 8, 0)]),
        ("extend", [("prefill", 8, 8)]),
        ("decode", [("decode", 1, 16)]),
    ]
    assert [s.step for s in steps] == [1, 2, 3] and [s.drawn for s in steps] == [0, 1, 1]
    assert notes(rig, "admitted") == [(first, "fits")]
    assert all(s.exposed_host_seconds > 0 for s in steps)


def test_deferred_requests_say_why_with_numbers():
    rig = Rig(max_running_requests=1)
    rig.decode(1, b"a", max_new_tokens=3, ignore_eos=True)
    second = rig.decode(2, b"b", max_new_tokens=3)
    rig.step(3)
    assert (second, "rows") in notes(rig, "deferred")
    stem = bytes(range(33, 97))
    rig = Rig()
    leader = rig.decode(1, stem + b"1", max_new_tokens=2)
    follower = rig.decode(2, stem + b"2", max_new_tokens=2)
    rig.drain()
    (note,) = (n for s in of(rig, StepEvent) for n in s.notes if n.what == "deferred")
    assert (note.rid, note.reason, note.leader) == (follower, "leader", leader)
    rig = Rig(max_total_tokens=20)
    rig.decode(1, b"0123456789", max_new_tokens=9, ignore_eos=True)
    big = rig.decode(2, b"abcdefghijkl", max_new_tokens=4)
    rig.drain()
    (note, *_) = (n for s in of(rig, StepEvent) for n in s.notes if n.rid == big and n.what == "deferred")
    assert note.reason == "kv" and note.needs > note.has


def test_evictions_are_decisions_of_the_step_with_their_numbers():
    rig = Rig(max_total_tokens=40)
    for n, text in enumerate((b"abcdefghij", b"klmnopqrst", b"uvwxyzABCD")):
        rig.run(n, text, max_new_tokens=1)
    rig.detail.clear()
    free = rig.scheduler.allocator.available
    big = rig.decode(9, b"0123456789EFGHIJ", max_new_tokens=1)
    rig.drain()
    step = next(s for s in of(rig, StepEvent) if s.rows[0].rid == big)
    (note,) = (n for n in step.notes if n.what == "evicted")
    gone = sum(e.length for e in of(rig, RadixEvent) if e.kind == "evict" and e.for_rid == big)
    assert (note.rid, note.reason, note.unit) == (big, "lru", "slots")
    assert note.needs == 16 - free and note.has == gone >= note.needs > 0
    assert not any(n.what == "evicted" for s in of(rig, StepEvent) if s is not step for n in s.notes)


def test_text_that_differs_from_its_first_token_on_is_a_change_and_not_new():
    """As when a prompt begins with the time: an engineer must be told that the rest is equal."""
    rig = Rig()
    rig.run(1, b"1 be brief and concrete", max_new_tokens=1)
    changed = rig.decode(2, b"2 be brief and concrete", max_new_tokens=1)
    rig.drain()
    new = rig.decode(3, b"something else entirely", max_new_tokens=1)
    rig.drain()
    rig.open(4, extra_key="mine")
    other = rig.decode(4, b"1 be brief and concrete", fresh=False, max_new_tokens=1)
    rig.drain()
    told = match(rig, changed)
    assert (told.cause, told.matched, told.diverged_at, told.equal_again) == ("diverged", 0, 0, 21)
    assert match(rig, new).cause == "cold"
    assert match(rig, other).cause == "namespace"


@pytest.mark.parametrize(
    ("before", "after", "again"),
    [
        (b"now 10:40:52. You review pull requests", b"now 10:41:07. You review pull requests", 25),
        (b"for Ann: you review pull requests", b"for Maximilian: you review pull requests", 26),
        (b"41b7f0. You review pull requests", b"9c22e8. You review pull requests", 25),
    ],
)
def test_a_change_of_several_tokens_is_a_change_and_not_new_text(before: bytes, after: bytes, again: int):
    """A time, a name or an id is many tokens where digits are tokens of their own."""
    rig = Rig()
    rig.run(1, before, max_new_tokens=1)
    rig.run(2, after, max_new_tokens=1)
    told = match(rig, "c1.r2")
    assert (told.cause, told.diverged_at, told.equal_again) == ("diverged", told.matched, again)


@pytest.mark.parametrize("after", [b"why so?<end><bot>", b"a question as long as a page, and <end><bot>"])
def test_what_all_prompts_end_with_makes_no_change_of_new_text(after: bytes):
    rig = Rig()
    rig.run(1, b"be brief. what is it?<end><bot>", max_new_tokens=1)
    rig.run(2, b"be brief. " + after, max_new_tokens=1)
    assert match(rig, "c1.r2").equal_again < miss.EQUAL_AGAIN


def test_the_cause_of_a_miss_is_told_at_the_match():
    rig = Rig(max_total_tokens=64)
    cold = rig.decode(1, b"hello world", max_new_tokens=1)
    rig.drain()
    rig.run(2, b"hello world", max_new_tokens=1)
    assert match(rig, cold).cause == "cold"
    assert (match(rig, "c1.r2").cause, match(rig, "c1.r2").matched) == ("hit", 10)
    rig.run(3, b"hello there world", max_new_tokens=1)
    told = match(rig, "c1.r3")
    assert (told.cause, told.matched, told.diverged_at) == ("diverged", 6, 6)
    rig.run(4, b"hello_world", max_new_tokens=1)
    assert (match(rig, "c1.r4").diverged_at, match(rig, "c1.r4").equal_again) == (5, 0)
    rig.run(5, b"hello world and more", max_new_tokens=1)
    assert match(rig, "c1.r5").cause == "short"
    rig.close(1, 2, 3, 4, 5)
    rig.run(6, b"x" * 60, max_new_tokens=1)
    rig.close(6)
    rig.run(7, b"hello world", max_new_tokens=1)
    assert match(rig, "c1.r7").cause == "evicted"
    rig.close(7)
    rig.ask("flush_cache")
    rig.run(8, b"hello world", max_new_tokens=1)
    assert match(rig, "c1.r8").cause == "flushed"
    rig.ask("set", disable_radix_cache=True)
    rig.run(9, b"hello world", max_new_tokens=1)
    assert match(rig, "c1.r9").cause == "disabled"


def test_an_eviction_tells_for_whom_and_what_goes_next():
    rig = Rig(max_total_tokens=40)
    for n in range(3):
        rig.run(n, bytes([97 + n]) * 10, max_new_tokens=1)
    rig.close(0, 1, 2)
    asked = rig.decode(9, b"z" * 25, max_new_tokens=1)
    rig.drain()
    evicted = [event for event in of(rig, RadixEvent) if event.kind == "evict"]
    assert evicted and all(event.policy == "lru" and event.for_rid == asked for event in evicted)
    assert evicted[-1].next and not any(event.next for event in evicted[:-1])


@pytest.mark.parametrize("seed", range(6))
def test_folds_of_the_events_are_the_tree_and_the_pool(seed):
    rng = random.Random(seed)
    rig = watched(
        max_total_tokens=rng.choice([60, 200]), chunked_prefill_size=rng.choice([-1, 5]), context_length=60
    )
    for n in range(40):
        ids = rng.choice([b"aaaa", b"aaaabbbb", b""]) + bytes(
            rng.choice(b"xy") for _ in range(rng.randint(1, 12))
        )
        if rng.random() < 0.2:
            rig.select(n, ids, [b"one", b"two", b"on"])
        else:
            rig.decode(n, ids, max_new_tokens=rng.randint(1, 12), ignore_eos=True)
        rig.step(rng.randint(0, 4))
        if rng.random() < 0.1 and rig.scheduler.reqs:
            rig.abort(rng.choice(list(rig.scheduler.reqs)))
    rig.drain()
    tree = nodes(rig)
    real, depth = {}, {}
    for node in rig.scheduler.cache.nodes():
        start = depth.get(node.parent, 0)
        depth[node] = start + len(node.key)
        real[node.id] = (node.parent.id, start, len(node.key))
    assert tree == real
    slots = {slot: f"node:{node.id}" for node in rig.scheduler.cache.nodes() for slot in node.value.tolist()}
    assert owners(rig) == [slots.get(slot, "") for slot in range(rig.args.max_total_tokens)]


def test_history_gives_what_the_ring_has():
    rig = Rig()
    telemetry = Telemetry()
    for _ in range(3):
        telemetry.emit(rig.scheduler.stats())
    rig.scheduler.history = lambda start, limit=None: (
        telemetry.last_seq,
        telemetry.history(start, limit),
    )
    data = rig.ask("history", from_seq=2).data
    assert data["last_seq"] == 3 and [event["seq"] for event in data["events"]] == [2, 3]
    assert len(rig.ask("history", limit=1).data["events"]) == 1
    assert rig.ask("history", limit=0).error is not None


def test_R6_a_flush_of_scattered_slots_fits_into_frames():
    """One event of a million scattered slots would be more than a frame: it ended the engine."""
    rig = Rig()
    slots = np.arange(0, 4 * MAX_RUNS, 2)
    rig.scheduler.recorder._freed(slots)
    rig.scheduler.recorder.flush_slots(7)
    deltas = [event for event in rig.detail if isinstance(event, KVDelta)]
    assert [len(event.runs) for event in deltas] == [MAX_RUNS, MAX_RUNS]
    assert [run.start for event in deltas for run in event.runs] == slots.tolist()
    assert all(len(encode(Numbered(seq=1, event=event))) < 4 << 20 for event in deltas)
    rig.scheduler.recorder.flush_slots(8)
    assert len([event for event in rig.detail if isinstance(event, KVDelta)]) == 2


def test_R6_an_answer_that_no_frame_holds_is_an_error():
    big = SchedulerReply(client=3, id=9, data={"snapshot": b"x" * (17 << 20)})
    found = msgspec.msgpack.decode(frame_of(big), type=SchedulerReply)
    assert (found.client, found.id) == (3, 9) and "limit" in found.error.message
    small = msgspec.structs.replace(big, data={"ok": True})
    assert msgspec.msgpack.decode(frame_of(small), type=SchedulerReply) == small


def test_a_token_says_which_step_drew_it_also_after_a_retraction() -> None:
    """By the events: the step in which its request had a row that drew the token of that place."""
    rig = Rig(max_total_tokens=200, schedule_conservativeness=0.1)
    rids = [
        rig.decode(n, b"q%d " % n * 3, max_new_tokens=60, ignore_eos=True, return_logprob=True)
        for n in range(6)
    ]
    rig.drain()
    assert rig.scheduler.meter.retracted, "the small pool must retract"
    for rid in rids:
        told, prompt = rig.told[rid], rig.told[rid].meta.prompt_tokens
        drawn: dict[int, int] = {}
        for event in of(rig, StepEvent):
            for row in event.rows:
                if row.rid == rid and (row.kind == "decode" or row.prefix + row.tokens >= prompt):
                    place = row.prefix + row.tokens - prompt
                    drawn[place] = event.step
        assert [one.step for one in told.logprobs] == [drawn[place] for place in range(len(told.logprobs))]
    assert any(
        later.step > before.step + 1
        for rid in rids
        for before, later in zip(rig.told[rid].logprobs, rig.told[rid].logprobs[1:], strict=False)
    )
