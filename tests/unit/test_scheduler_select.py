"""Select, fork and commit in the scheduler: every score against brute force, every slot by the stub's pool."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scheduler_rig import Rig, alone

from sgnb.engine.model_executor.stub_runner import prefix_hash, stub_score
from sgnb.engine.scheduler.choices import METHODS, choose, greedy_matrix, mean

QUICK = settings(
    max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


def brute(prompt, option) -> list[float]:
    """The stub's scores of an option's tokens, without slots, batches or caches."""
    prompt = list(prompt)
    return [stub_score(prefix_hash(prompt + list(option)[:j]), token) for j, token in enumerate(option)]


def expected(prompt, options, method):
    rows = [brute(prompt, option) for option in options]
    without = [[0.0, *brute([], option)[1:]] for option in options]
    return choose(method, rows, without)


# ------------------------------------------------------------ methods


def test_choose_mean_prefers_the_highest_average():
    rows = [[-0.1], [-0.2, -0.05], [-5.0, -0.01, -0.01, -0.01]]
    assert choose("token_length_normalized", rows)[0] == 0
    assert choose("token_length_normalized", [[-2.0], [-3.0, -0.1, -0.1]])[0] == 1, "a predictable tail gains"


def test_choose_greedy_fills_short_options_with_their_mean():
    rows = [[-1.0], [-1.0, -0.5], [-2.0, -0.1, -0.1]]
    assert greedy_matrix(rows) == [[-1.0, -1.0, -1.0], [-1.0, -0.5, -0.75], [-2.0, -0.1, -0.1]]
    assert choose("greedy_token_selection", rows)[0] == 1
    assert choose("greedy_token_selection", [[-1.0], [-1.0, -1.5]])[0] == 0


GOLDEN = [[-0.1], [-0.1, -0.3], [-0.4, -0.25, -0.1, *[-0.01] * 5]]
"""organ, organism, antidisestablishmentarianism: the peer's own numbers."""


def test_choose_gives_the_golden_decisions():
    assert choose("greedy_token_selection", GOLDEN)[0] == 0
    matrix = greedy_matrix(GOLDEN)
    assert matrix[0] == [-0.1] * 8
    assert matrix[1] == pytest.approx([-0.1, -0.3, *[-0.2] * 6])
    assert matrix[2] == GOLDEN[2]
    without = [[0.0], [0.0, -1.4], [0.0, *GOLDEN[2][1:]]]
    index, scores = choose("unconditional_likelihood_normalized", GOLDEN, without)
    assert index == 1 and scores == pytest.approx([-0.1, 0.5, -0.05])
    sure = [*GOLDEN[:2], [-0.2, *[-0.01] * 7]]
    assert choose("token_length_normalized", sure)[0] == 2


def test_choose_unconditional_takes_off_what_the_option_has_without_the_prompt():
    rows, without = [[-2.0, -1.0], [-1.0, -1.0]], [[0.0, -5.0], [0.0, -0.5]]
    index, scores = choose("unconditional_likelihood_normalized", rows, without)
    assert (index, scores) == (0, [1.0, -0.75])


def test_choose_takes_the_first_of_equal_options():
    for method in METHODS:
        assert choose(method, [[-1.0, -2.0]] * 3, [[0.0, -1.0]] * 3)[0] == 0


# ------------------------------------------------------------ scores


@pytest.mark.parametrize("method", METHODS)
def test_select_scores_all_options_in_one_step_and_keeps_the_winner(method):
    rig = Rig()
    prompt, options = b"the answer is", [b" yes", b" no", b" maybe", b" n"]
    rid = rig.select(1, prompt, options, method=method)
    rig.drain()
    told = rig.told[rid]
    index, scores = expected(prompt, options, method)
    assert told.finish.type == "stop" and told.choice.index == index
    assert [option.score for option in told.choice.options] == scores
    assert [option.logprobs for option in told.choice.options] == [brute(prompt, o) for o in options]
    assert len(rig.runner.log) == 2, "one step for the prompt, one for all options"
    assert (told.meta.completion_tokens, told.meta.kept_tokens) == (0, len(options[index]))
    whole = prompt + options[index]
    after = rig.run(2, b" then", sid=1, fresh=False)
    assert after.prompt_ids == list(whole + b" then")
    assert after.meta.cached_tokens == len(whole) - 1, "the winner's KV stays"
    assert after.ids == alone(whole + b" then").ids


def test_select_on_a_cached_prompt_takes_one_step():
    rig = Rig()
    rig.run(1, b"the answer is", max_new_tokens=1)
    steps = len(rig.runner.log)
    rig.select(2, b"the answer is", [b" yes", b" no"])
    rig.drain()
    assert len(rig.runner.log) == steps + 1


def test_B075_an_option_that_is_a_prefix_of_another_is_reachable():
    winners = set()
    for salt in range(40):
        rig = Rig()
        rid = rig.select(1, b"q%d" % salt, [b"go", b"gopher"])
        rig.drain()
        winners.add(rig.told[rid].choice.index)
    assert winners == {0, 1}


def test_F52_an_empty_rest_takes_the_last_shared_token():
    rig = Rig()
    rid = rig.select(1, b"ab", [b"", b"c"])
    rig.drain()
    choice = rig.told[rid].choice
    assert [option.ids for option in choice.options] == [list(b"b"), list(b"bc")]
    assert [option.logprobs for option in choice.options] == [brute(b"a", b"b"), brute(b"a", b"bc")]
    after = rig.run(2, b"!", sid=1, fresh=False)
    assert bytes(after.prompt_ids) == (b"ab!" if choice.index == 0 else b"abc!")


def test_F52_an_empty_option_behind_a_generation_takes_its_last_token():
    rig = Rig()
    first = rig.run(1, b"ab", max_new_tokens=3, ignore_eos=True)
    rid = rig.select(2, b"", [b"", b"zz"], sid=1, fresh=False)
    rig.drain()
    choice, whole = rig.told[rid].choice, list(b"ab") + first.output_ids
    assert choice.options[0].logprobs == brute(whole[:-1], whole[-1:])
    after = rig.run(3, b"!", sid=1, fresh=False)
    assert after.prompt_ids == [*whole, *(b"!" if choice.index == 0 else b"zz!")]


def test_F52_nothing_to_start_from_is_refused_and_the_session_goes_on():
    rig = Rig()
    rid = rig.select(1, b"", [b"a", b"b"])
    rig.drain()
    assert rig.told[rid].finish.error.code == "empty_prompt"
    assert rig.run(2, b"x", sid=1, fresh=False).finish.type in ("length", "eos")


def test_F52_one_and_equal_options():
    rig = Rig()
    one, same = rig.select(1, b"p", [b"only"]), rig.select(2, b"p", [b"twice", b"twice"])
    rig.drain()
    assert rig.told[one].choice.index == rig.told[same].choice.index == 0
    assert len({tuple(option.logprobs) for option in rig.told[same].choice.options}) == 1


def test_select_splits_its_rows_when_rows_or_tokens_or_slots_are_short():
    options = [bytes([a, b, c]) for a in b"abc" for b in b"xyz" for c in b"12"]
    for args in (
        {"max_running_requests": 1},
        {"chunked_prefill_size": 7},
        {"max_total_tokens": 16},
        {"max_total_tokens": 12, "max_running_requests": 2, "chunked_prefill_size": 1},
    ):
        for method in METHODS:
            rig = Rig(**args)
            rid = rig.select(1, b"prompt", options, method=method)
            rig.drain()
            index, scores = expected(b"prompt", options, method)
            assert rig.told[rid].choice.index == index
            assert [option.score for option in rig.told[rid].choice.options] == scores


def test_select_that_never_fits_is_refused_with_the_numbers():
    rig = Rig(max_total_tokens=10)
    rid = rig.select(1, b"1234567", [b"abcde", b"a"])
    rig.drain()
    error = rig.told[rid].finish.error
    assert error.code == "context" and "7 tokens" in error.message and "10" in error.message


@pytest.mark.parametrize("page", [1, 4])
def test_a_select_behind_a_prompt_that_fills_the_context_needs_no_room_for_one_token(page):
    """The last token of an option is scored by what stands before it: it takes neither slot nor position."""
    prompt = bytes(range(97, 97 + 20))
    for options, fits in (([b"x", b"y"], True), ([b"x", b"yz"], False)):
        rig = Rig(context_length=20, max_total_tokens=20, page_size=page)
        rid = rig.select(1, prompt, options)
        rig.drain()
        finish = rig.told[rid].finish
        assert (finish.type == "stop") == fits, finish
        assert fits or finish.error.code == "context"
        rig.scheduler.check_integrity()


def test_an_aborted_select_leaves_its_session_as_it_was():
    rig = Rig(chunked_prefill_size=2)
    rig.run(1, b"hello", max_new_tokens=2, ignore_eos=True)
    before = rig.scheduler.sessions["c1.s1"].ids.tolist()
    rid = rig.select(2, b"abcdefgh", [b"x", b"yyyy"], sid=1, fresh=False)
    rig.step(2)
    rig.abort(rid)
    rig.drain()
    assert rig.told[rid].finish.type == "abort" and rig.told[rid].choice is None
    assert rig.scheduler.sessions["c1.s1"].ids.tolist() == before


def test_a_row_that_is_not_finite_fails_its_select_alone():
    rig = Rig()
    rig.runner.nan_rows = lambda batch, row: bool(batch.score_targets) and row == 1
    bad = rig.select(1, b"prompt", [b"a", b"b"])
    rig.drain()
    assert rig.told[bad].finish.error.code == "non_finite"
    good = rig.select(2, b"prompt", [b"a"])
    rig.drain()
    assert rig.told[good].choice.index == 0


# ------------------------------------------------------------ fork and commit


def test_fork_copies_nothing_and_children_are_independent():
    rig = Rig()
    rig.run(1, b"shared prefix of all", max_new_tokens=4, ignore_eos=True)
    whole = rig.scheduler.sessions["c1.s1"].ids.tolist()
    used = rig.scheduler.cache.evictable_size
    rig.fork(1, 11, 12, 13)
    rig.step()
    assert rig.scheduler.cache.evictable_size == used
    rids = [rig.decode(n, b"%d" % n, sid=n, fresh=False) for n in (11, 12, 13)]
    rids.append(rig.decode(2, b"parent", sid=1, fresh=False))
    rig.drain()
    for rid in rids:
        told = rig.told[rid]
        assert told.prompt_ids[: len(whole)] == whole
        assert told.meta.cached_tokens == len(whole) - 1
        assert told.ids == alone(bytes(told.prompt_ids)).ids
    rig.close(1, 11, 12, 13)
    rig.drain()
    assert all(not node.soft_ref for node in rig.scheduler.cache.nodes())


def test_fork_of_a_fork_and_of_a_closed_session():
    rig = Rig()
    rig.open(1)
    rig.extend(1, b"abc")
    rig.fork(1, 2)
    rig.fork(2, 3)
    rig.close(2)
    rig.fork(2, 4)
    told = rig.run(5, b"d", sid=3, fresh=False)
    assert bytes(told.prompt_ids) == b"abcd"
    lost = rig.decode(6, b"d", sid=4, fresh=False)
    rig.drain()
    assert rig.told[lost].finish.error.code == "session"


def test_commit_computes_in_the_background_and_says_nothing():
    rig = Rig()
    rig.open(1)
    rig.commit(1, b"a prefix that others use")
    rig.drain()
    assert rig.scheduler.cache.evictable_size == len(b"a prefix that others use")
    rig.commit(1, b"")
    rig.drain()
    assert len(rig.runner.log) == 1, "what is cached is not computed again"
    told = rig.run(2, b"a prefix that others use, too", fresh=True)
    assert told.meta.cached_tokens == len(b"a prefix that others use")


def test_a_commit_that_cannot_fit_is_left_out():
    rig = Rig(max_total_tokens=8)
    rig.open(1)
    rig.commit(1, b"much longer than the pool")
    rig.drain()
    assert not rig.runner.log


# ------------------------------------------------------------ random


@QUICK
@given(
    seed=st.integers(0, 2**32),
    pool=st.sampled_from([40, 64, 150, 4096]),
    chunk=st.sampled_from([-1, 1, 3, 8, 512]),
    rows=st.sampled_from([1, 2, 5, 16]),
    disabled=st.booleans(),
)
def test_selects_forks_and_commits_among_others_say_what_they_say_alone(seed, pool, chunk, rows, disabled):
    rng = random.Random(seed)
    rig = Rig(
        max_total_tokens=pool,
        chunked_prefill_size=chunk,
        max_running_requests=rows,
        disable_radix_cache=disabled,
        context_length=96,
        schedule_conservativeness=0.1,
    )
    asked, sids = {}, [1]
    rig.open(1)
    rig.extend(1, b"root")
    for n in range(10, 26):
        idle = [s for s in sids if (got := rig.scheduler.sessions.get(f"c1.s{s}")) and got.active is None]
        if not idle:
            rig.step(3)
            continue
        sid = rng.choice(idle)
        text = bytes(rng.choice(b"ab") for _ in range(rng.randint(0, 6)))
        match rng.randint(0, 4):
            case 0:
                rig.fork(sid, n)
                sids.append(n)
            case 1:
                rig.commit(sid, text)
            case 2:
                before = rig.scheduler.sessions[f"c1.s{sid}"].ids.tolist()
                rid = rig.decode(n, text, sid=sid, fresh=False, max_new_tokens=rng.randint(1, 9))
                asked[rid] = (before + list(text), None, None)
            case _:
                options = [
                    bytes(rng.choice(b"xyz") for _ in range(rng.randint(1, 5)))
                    for _ in range(rng.randint(1, 7))
                ]
                method = rng.choice(METHODS)
                before = rig.scheduler.sessions[f"c1.s{sid}"].ids.tolist()
                rid = rig.select(n, text, options, sid=sid, fresh=False, method=method)
                asked[rid] = (before + list(text), options, method)
        rig.step()
        if rng.random() < 0.2:
            holders = [*rig.scheduler.scoring, *rig.scheduler.running_batch]
            for req in rng.sample(holders, rng.randint(0, len(holders))):
                rig.scheduler.retract(req)
        if rng.random() < 0.1 and rig.scheduler.reqs:
            rid = rng.choice(list(rig.scheduler.reqs))
            asked.pop(rid, None)
            rig.abort(rid)
    rig.drain()
    for rid, (prompt, options, method) in asked.items():
        told = rig.told[rid]
        if told.finish.type == "error":
            assert told.finish.error.code == "context"
        elif options is None:
            assert told.ids == alone(prompt, max_new_tokens=99).ids[: len(told.ids)]
        else:
            index, scores = expected(prompt, options, method)
            assert told.choice.index == index
            assert [option.score for option in told.choice.options] == pytest.approx(scores)
            assert mean(told.choice.options[0].logprobs) == pytest.approx(mean(brute(prompt, options[0])))
