"""Credits: what leaves for the engine when its KV is short, in which order, and that nothing is forgotten."""

from __future__ import annotations

import random

import pytest
from whole_engine import WholeEngine

import sgnb as sgl
from sgnb.lang.block import ForkOp, GenOp, IdsOp, SelectOp, TextOp
from sgnb.runtime import events
from sgnb.runtime.core import abort_held
from sgnb.runtime.credits import costs_of, most_tokens, split
from sgnb.sampling_params import SamplingParams
from sgnb.widgets.fold import ProgramFold


def text(sid, value="ab"):
    return TextOp(sid, value, False, None)


def gen(sid, rid, new=10):
    return GenOp(sid, rid, "x", SamplingParams(max_new_tokens=new), None, "", "")


def test_everything_leaves_while_it_fits():
    ops = [text("a"), gen("a", "r1"), text("b"), gen("b", "r2")]
    assert split(ops, (), 22, one=False) == (ops, [], {"r1": 11, "r2": 11})


def test_what_stands_behind_a_held_generation_waits_with_it():
    ops = [
        gen("a", "r1"), ForkOp("a", ("c",), None), text("c"), gen("b", "r2"), text("b"), ForkOp("b", ("d",), None),
        text("d"), text("e"),
    ]  # fmt: skip
    leaves, waits, costs = split(ops, (), 10, one=False)
    assert leaves == [*ops[:3], text("e")] and costs == {"r1": 10}
    assert waits == ops[3:7]


def test_those_that_have_begun_go_first():
    ops = [gen("a", "r1"), gen("b", "r2"), gen("c", "r3"), gen("b", "r4")]
    leaves, waits, _ = split(ops, {"b"}, 25, one=False)
    assert [op.rid for op in leaves] == ["r2", "r4"] and [op.rid for op in waits] == ["r1", "r3"]


def test_one_goes_whatever_it_costs_when_nothing_is_under_way():
    ops = [gen("a", "r1", 5000), gen("b", "r2", 5000)]
    assert [op.rid for op in split(ops, (), 0, one=True)[0]] == ["r1"]
    assert split(ops, (), 0, one=False)[0] == []


def test_random_blocks_keep_each_sessions_order_and_lose_nothing():
    rng = random.Random(4)
    for _ in range(300):
        sids, ops = ["a", "b"], []
        for number in range(rng.randint(1, 25)):
            sid, kind = rng.choice(sids), rng.randint(0, 3)
            if kind == 0:
                ops.append(text(sid, "x" * rng.randint(1, 9)))
            elif kind == 1:
                ops.append(gen(sid, f"r{number}", rng.randint(1, 20)))
            elif kind == 2:
                ops.append(
                    SelectOp(sid, f"r{number}", "c", ("u", "v"), "token_length_normalized", None, "", "")
                )
            else:
                sids.append(f"s{number}")
                ops.append(ForkOp(sid, (f"s{number}",), None))
        left, rounds, sent = ops, 0, []
        begun: set[str] = set()
        while left:
            leaves, left, _ = split(left, begun, rng.randint(0, 40), one=True)
            begun |= {op.sid for op in leaves if not isinstance(op, TextOp | ForkOp)}
            assert leaves and (rounds := rounds + 1) < 100
            sent += leaves
        for sid in sids:
            assert [op for op in sent if op.sid == sid] == [op for op in ops if op.sid == sid]
        born = {"a", "b"}
        for op in sent:
            assert op.sid in born
            born |= set(op.children) if isinstance(op, ForkOp) else set()


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("", 0),
        ("ab", 1),
        ("abc", 2),
        ("in 2024", 6),
        ("a\nb", 2),
        ("(x)", 3),
        ("你好", 6),
        ("da😀", 5),
        ("\ud800", 1),
    ],
)
def test_the_most_tokens_of_a_text(text, most):
    assert most_tokens(text) == most


def test_text_that_left_before_its_generation_is_counted_and_a_prefix_once():
    ops = [
        text("p", "a" * 100), ForkOp("p", ("a", "b"), None), gen("a", "r1"), text("b", "9" * 7), gen("b", "r2"),
    ]  # fmt: skip
    assert costs_of(ops, {}) == ({"r1": 60, "r2": 17}, {})
    leaves, waits, _ = split(ops, (), 60, one=False)
    assert waits == [ops[-1]]
    _, owed = costs_of(leaves, {})
    assert owed == {"b": 7}
    assert split(waits, (), 16, one=False, owed=owed)[0] == []
    assert split(waits, (), 17, one=False, owed=owed)[2] == {"r2": 17}
    assert costs_of([IdsOp("a", (1, 2, 3), "xyz", None), gen("a", "r3")], {})[0] == {"r3": 13}


# ---------------------------------------------------------------- on an engine


PREFIX = "A prefix that all arms share, and which is not so short. "
OWN = "Arm number {} goes its own way. "
ON = "And then on. "


@sgl.function
def many(s, count, new, prefix=PREFIX, own=OWN, on=ON):
    s += prefix
    group = s.fork(count)
    for number, arm in enumerate(group):
        arm += own.format(number)
        arm += sgl.gen("x", max_tokens=new, ignore_eos=True)
        arm += on + sgl.gen("y", max_tokens=new, ignore_eos=True)
    group.join()
    return s["x"], s["y"]


def run_many(count, new, pool, *, credits, texts=(PREFIX, OWN, ON)):
    engine = WholeEngine(max_total_tokens=pool, max_running_requests=256)
    engine.credits = credits
    try:
        state = many.run(count, new, *texts, backend=engine, temperature=0.0)
        engine.settle()
        engine.scheduler.check_integrity()
        meter = engine.scheduler.meter
        return state.ret_value, meter.retracted, meter.cached_total, meter.prompt_total
    finally:
        engine.shutdown()


def test_256_arms_on_a_pool_for_32_are_hardly_retracted_and_say_the_same():
    pool = 60 + 32 * (36 + 10 + 13 + 10)
    held, retracted, cached, prompt = run_many(256, 10, pool, credits=True)
    free, _, cached_free, prompt_free = run_many(256, 10, pool, credits=False)
    assert held == free and len(held[0]) == 256
    assert retracted <= 0.05 * 256
    # Arms that have begun end first, so that they find their own beginning in the cache.
    assert prompt == prompt_free and cached > 1.1 * cached_free


TEXTS = {
    "chinese": ("从前有一座山,山上有一座庙,庙里有一个老和尚。" * 12, "第{}条路通向哪里?请说。", "然后呢?"),
    "digits": (
        "314159265358979323846264338327950288419716939937510" * 8,
        "{}: 271828182845904523536",
        "+ 1618",
    ),
    "code": ("for (;;) { x[i++] ^= ~(y << 3) | 0x7f; }\n" * 12, "if (a[{}] != b) {{ return -1; }}", "\n}}\n"),
}
"""A common prefix, each branch's own text, what it goes on with."""


@pytest.mark.parametrize("texts", TEXTS.values(), ids=list(TEXTS))
def test_text_of_few_characters_a_token_is_held_back_as_well(texts):
    # The stub's tokens are bytes: the worst that a vocabulary can be.
    prefix, own, on = (len(text.encode()) for text in texts)
    pool = prefix + 8 * (own + 10 + on + 10)
    held, retracted, cached, prompt = run_many(64, 10, pool, credits=True, texts=texts)
    free, _, cached_free, prompt_free = run_many(64, 10, pool, credits=False, texts=texts)
    assert retracted <= 0.05 * 64
    assert held == free and prompt - cached < prompt_free - cached_free


def test_cancelling_drops_what_is_held():
    engine = WholeEngine(max_total_tokens=600)
    run = many.run_async(64, 60, backend=engine, temperature=0.0)
    assert run.core.wait_plain(lambda: bool(run.core.held), 20)
    run.cancel()
    assert run.status == "stopped" and not run.core.held and not run.core.slots
    engine.settle()
    assert many.run(8, 8, backend=engine, temperature=0.0).ret_value is not None
    engine.shutdown()


def test_a_reader_is_told_what_waits_for_kv():
    engine = WholeEngine(max_total_tokens=200)
    state = many.run(count=6, new=60, backend=engine)
    entries = [entry.event for entry in state.core.log.since(0)]
    held = [event.rid for event in entries if isinstance(event, events.GenHeld)]
    assert 0 < len(held) == len(set(held)) < 12
    fold, words = ProgramFold(times=False), set()
    for entry in state.core.log.since(0):
        fold.feed([entry])
        words |= {lane.words(ended="", times=False)[1] for lane in fold.lanes[1:]}
        for row in fold.rows:
            words |= {part for cost in row.costs for part in cost.parts(times=False, stopped=False)}
    assert {"queued", "queued, short of KV", "decoding", "done"} <= words
    engine.shutdown()


def test_what_is_held_can_be_aborted_and_the_rest_goes_on():
    engine = WholeEngine(max_total_tokens=600)

    @sgl.function
    def prog(s):
        group = s.fork(40)
        for arm in group:
            arm += "Arm. " + sgl.gen("x", max_tokens=60, ignore_eos=True) + sgl.select("y", ["a", "b"])
        return [arm.get_meta_info(name)["finish_reason"]["type"] for arm in group for name in "xy"]

    run = prog.run_async(backend=engine)
    assert run.core.wait_plain(lambda: bool(run.core.held), 20)
    aborted = abort_held(engine)
    ends = run.result().ret_value
    assert aborted > 0 and ends.count("abort") == aborted < len(ends)
    assert not run.core.held and not run.core.slots
    assert abort_held(engine) == 0
    assert many.run(8, 8, backend=engine, temperature=0.0).ret_value is not None
    engine.settle()
    engine.shutdown()


def test_a_failed_branch_takes_what_it_holds_along_and_the_others_go_on():
    engine = WholeEngine(max_total_tokens=700, context_length=600)

    @sgl.function
    def prog(s):
        group = s.fork(12)
        for number, arm in enumerate(group):
            arm += ("x" * 650 if number == 1 else "Arm. ") + sgl.gen("x", max_tokens=50, ignore_eos=True)
            arm += sgl.gen("y", max_tokens=50, ignore_eos=True)
        return [type(arm.error()).__name__ for arm in group]

    assert prog.run(backend=engine).ret_value == [
        "NoneType" if number != 1 else "RequestError" for number in range(12)
    ]
    engine.shutdown()


def test_runs_of_one_engine_share_its_credit():
    engine = WholeEngine(max_total_tokens=900)
    states = many.run_batch([{"count": 6, "new": 30}] * 4, backend=engine, temperature=0.0)
    assert all(state.error() is None for state in states)
    assert len({str(state.ret_value) for state in states}) == 1
    engine.settle()
    assert engine.scheduler.meter.retracted <= 2
    engine.shutdown()


@pytest.mark.parametrize("close", [True, False])
def test_a_branch_nobody_holds_is_dropped_from_what_is_held(close):
    engine = WholeEngine(max_total_tokens=600)

    @sgl.function
    def prog(s):
        group = s.fork(10)
        for arm in group:
            arm += "Arm. " + sgl.gen("x", max_tokens=60, ignore_eos=True)
        s.core.flush()
        for arm in group.states[3:]:
            arm.close() if close else None
        del group.states[3:], arm
        return [arm.get_meta_info("x")["completion_tokens"] for arm in group]

    assert prog.run(backend=engine).ret_value == [60, 60, 60]
    engine.settle()
    assert engine.scheduler.meter.generated_total < 10 * 60
    engine.shutdown()
