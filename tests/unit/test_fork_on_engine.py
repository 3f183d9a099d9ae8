"""Forks on a whole engine: a prefix is computed once, slots are unique tokens, an evicted state computes anew."""

from __future__ import annotations

import gc

from whole_engine import WholeEngine

import sgnb as sgl

PREFIX = ("A prefix of some length that all of the many branches have in common. " * 15)[:1000]
ARMS = 256


def test_256_branches_compute_a_prefix_of_1000_tokens_once_and_hold_unique_tokens():
    engine = WholeEngine(max_total_tokens=16_384, max_running_requests=256, context_length=4096)

    @sgl.function
    def prog(s):
        s += PREFIX
        arms = s.fork(ARMS)
        for number, arm in enumerate(arms):
            arm += f"{number:03d} is the number of this arm. " + sgl.gen("x", max_tokens=2, ignore_eos=True)
        arms.join()
        return s["x"]

    state = prog.run(backend=engine, temperature=0.0)
    assert len(state.ret_value) == ARMS and engine.messages <= 3
    engine.settle()
    meter, scheduler = engine.scheduler.meter, engine.scheduler
    texts = [f"{PREFIX}{number:03d} is the number of this arm. " for number in range(ARMS)]
    unique = len(
        {text[:size] for text in texts for size in range(1, len(text) + 1)}
    )  # a byte is a token here
    # The events: one request computes the prefix, all others begin behind it, and what arms have in common is shared.
    rows = [row for step in engine.steps for row in step.rows if row.kind == "prefill"]
    assert len({row.rid for row in rows if row.prefix < len(PREFIX)}) == 1
    computed = sum(row.tokens for row in rows)
    assert unique <= computed == meter.prompt_total - meter.cached_total <= unique + 3 * ARMS
    used = scheduler.allocator.size - scheduler.allocator.available
    assert used == unique + ARMS, "each token has one slot; the last one that is written needs none"
    assert meter.retracted == 0
    engine.shutdown()


def test_branches_that_are_collected_are_aborted():
    engine = WholeEngine()

    @sgl.function
    def prog(s):
        s += "root "
        arms = s.fork(4)
        for number, arm in enumerate(arms):
            arm += f"{number} " + sgl.gen("x", max_tokens=1500, ignore_eos=True)
        s.core.flush()
        kept = arms[0]
        del arm, arms
        gc.collect()
        kept.close()

    prog.run(backend=engine).sync()
    engine.settle()
    assert engine.scheduler.meter.generated_total < 4 * 1500
    assert len(engine.scheduler.sessions) <= 1
    engine.shutdown()


def test_a_state_whose_kv_is_gone_computes_it_anew_and_says_so():
    engine = WholeEngine()

    @sgl.function
    def first(s):
        s += "The first state's beginning, which is kept. " + sgl.gen("x", max_tokens=8, ignore_eos=True)

    state = first.run(backend=engine, temperature=0.0)
    state += " Still there? " + sgl.gen("again", max_tokens=4, ignore_eos=True, temperature=0.0)
    before = state.get_meta_info("again")
    assert before["cached_tokens"] > 40
    engine.settle()
    engine.flush()
    text = state.text()
    state += " And now? " + sgl.gen("now", max_tokens=4, ignore_eos=True, temperature=0.0)
    meta = state.get_meta_info("now")
    assert meta["cached_tokens"] == 0 and meta["prompt_tokens"] > before["prompt_tokens"]
    assert state.text().startswith(text)
    had = before["prompt_tokens"] + before["kept_tokens"] - 1  # the last token drawn was never computed
    said = f"Of this prompt {had} tokens were computed anew: they had been cached and were flushed."
    assert meta["notes"][0] == said
    engine.shutdown()


def test_a_short_state_whose_kv_made_room_says_so_too_and_one_that_lost_nothing_is_silent():
    """However few tokens: what a state had is never computed anew in silence."""
    engine = WholeEngine(max_total_tokens=256)

    @sgl.function
    def short(s):
        s += "Hi." + sgl.gen("x", max_tokens=3, ignore_eos=True)

    @sgl.function
    def long(s):
        s += "y" * 250 + sgl.gen("x", max_tokens=4, ignore_eos=True)

    state = short.run(backend=engine, temperature=0.0)
    state += "?" + sgl.gen("kept", max_tokens=2, ignore_eos=True)
    assert state.get_meta_info("kept")["notes"] == []
    branch = state.fork(1)[0]
    engine.settle()
    assert long.run(backend=engine).get_meta_info("x")["notes"] == []
    before = state.get_meta_info("kept")
    had = before["prompt_tokens"] + before["kept_tokens"] - 1
    branch += "!" + sgl.gen("gone", max_tokens=2, ignore_eos=True)
    meta = branch.get_meta_info("gone")
    lost = had - meta["cached_tokens"]
    assert 0 < lost < 32
    said = f"Of this prompt {lost} tokens were computed anew: they had been cached and made room for others."
    assert meta["notes"] == [said]
    state += "!" + sgl.gen("there", max_tokens=2, ignore_eos=True)
    meta = state.get_meta_info("there")
    assert meta["cached_tokens"] >= had and meta["notes"] == []
    engine.shutdown()
