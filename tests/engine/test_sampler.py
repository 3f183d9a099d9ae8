"""The sampler: filters against a plain oracle, draws against their distribution, masks, bad rows (B146)."""

import math

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sgnb.engine.layers.sampler import close_calls, draw, gumbel_noise, kept_ids, sample
from sgnb.messages import ModelWorkerBatch
from sgnb.sampling_params import SamplingParams

torch.set_num_threads(1)
GREEDY = SamplingParams(temperature=0.0)


def batch(params, *, seeds=None, drawn=None, banned=None, bitmask=None):
    n = len(params)
    return ModelWorkerBatch(
        step=1,
        forward_mode="decode",
        input_ids=[0] * n,
        req_pool_indices=list(range(n)),
        seq_lens=[1] * n,
        prefix_lens=[0] * n,
        extend_lens=[1] * n,
        out_cache_loc=list(range(n)),
        prefix_locs=[None] * n,
        sample=[True] * n,
        params=params,
        seeds=seeds or [0] * n,
        positions_drawn=drawn or [0] * n,
        banned=banned or [[]] * n,
        bitmask=bitmask,
    )


def oracle(scores, params):
    """What survives, computed the plain way: sort everything, walk down."""
    p = np.asarray(torch.softmax(scores, -1))
    order = sorted(range(len(p)), key=lambda i: (-p[i], i))
    if params.top_k > 0:
        order = order[: params.top_k]
    kept, mass = [], 0.0
    for i in order:
        if kept and (mass >= params.top_p and params.top_p < 1):
            break
        if kept and p[i] < p[order[0]] * params.min_p:
            break
        kept.append(i)
        mass += p[i]
    return set(kept)


@settings(max_examples=200, deadline=None)
@given(
    n=st.integers(1, 700),
    seed=st.integers(0, 10**6),
    spread=st.sampled_from([0.0, 0.1, 1.0, 5.0]),
    top_k=st.sampled_from([-1, 1, 2, 5, 300, 10_000]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.05, 0.9, 1.0]),
)
def test_filters_equal_the_oracle(n, seed, spread, top_k, top_p, min_p):
    scores = torch.randn(n, generator=torch.Generator().manual_seed(seed)) * spread
    params = SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p)
    kept = kept_ids(scores, params)
    found = set(range(n)) if kept is None else set(kept.tolist())
    expected = oracle(scores, params)
    if found != expected:  # float32 sums may move the border of top_p by one token
        assert 0 < params.top_p < 1 and len(found ^ expected) == 1
    assert int(scores.argmax()) in found


def test_ties_are_cut_by_id():
    scores = torch.zeros(10)
    assert kept_ids(scores, SamplingParams(top_k=3)).tolist() == [0, 1, 2]
    assert kept_ids(scores, SamplingParams(top_p=0.25)).tolist() == [0, 1, 2]
    assert kept_ids(scores, SamplingParams(min_p=1.0)).tolist() == list(range(10))


def test_draws_follow_the_distribution():
    """Chi-square over 4,000 positions: a wrong filter, temperature or noise is far outside."""
    scores = torch.tensor([2.0, 1.0, 0.0, -1.0, 3.0, 0.5, -30.0])
    for params in (
        SamplingParams(),
        SamplingParams(temperature=0.5),
        SamplingParams(temperature=2.0, top_k=4),
    ):
        n = 4000
        counts = np.bincount([draw(scores, params, 11, i) for i in range(n)], minlength=7)
        p = torch.softmax(scores.double() / params.temperature, -1).numpy()
        if params.top_k > 0:
            p[np.argsort(-p)[params.top_k :]] = 0
            p /= p.sum()
        assert counts[p == 0].sum() == 0
        likely = p * n > 5
        chi2 = ((counts - p * n)[likely] ** 2 / (p * n)[likely]).sum()
        assert chi2 < 30 and counts[6] == 0


def test_noise_is_a_function_of_seed_position_and_id():
    a = gumbel_noise(5, 9, 1000)
    assert torch.equal(a, gumbel_noise(5, 9, 1000))
    assert torch.equal(a[:301], gumbel_noise(5, 9, 301))
    assert not torch.equal(a, gumbel_noise(5, 10, 1000)) and not torch.equal(a, gumbel_noise(6, 9, 1000))
    big = torch.cat([gumbel_noise(2**63 - 1, 2**31, 49_152), gumbel_noise(0, 0, 49_152)])
    assert torch.isfinite(big).all()
    assert abs(float(big.mean()) - 0.5772) < 0.02 and abs(float(big.var()) - math.pi**2 / 6) < 0.05


def test_noise_is_pinned():
    """The same text for a seed, on every machine and in every later version."""
    pinned = [0.222338, 1.253382, 1.237497, 3.060310]
    np.testing.assert_allclose(gumbel_noise(1, 2, 4).numpy(), pinned, rtol=1e-5)


def test_a_row_does_not_depend_on_batch_or_place():
    torch.manual_seed(0)
    scores = torch.randn(6, 500)
    params = [
        SamplingParams(),
        SamplingParams(temperature=0.7, top_p=0.9),
        GREEDY,
        SamplingParams(top_k=20),
        SamplingParams(min_p=0.1),
        SamplingParams(temperature=2.0, top_k=50, top_p=0.5, min_p=0.01),
    ]
    seeds, drawn = [1, 2, 3, 4, 5, 6], [0, 7, 3, 2, 9, 1]
    whole = sample(scores.clone(), batch(params, seeds=seeds, drawn=drawn), list(range(6))).ids
    for order in ([5, 4, 3, 2, 1, 0], [2], [4, 1]):
        part = batch(
            [params[i] for i in order], seeds=[seeds[i] for i in order], drawn=[drawn[i] for i in order]
        )
        assert sample(scores[order].clone(), part, list(range(len(order)))).ids == [whole[i] for i in order]
    some = sample(scores[[1, 4]].clone(), batch(params, seeds=seeds, drawn=drawn), [1, 4])
    assert some.ids == [whole[1], whole[4]]


def test_greedy_takes_the_first_of_equals():
    scores = torch.zeros(1, 50)
    scores[0, [7, 30]] = 5.0
    assert sample(scores, batch([GREEDY]), [0]).ids == [7]
    assert sample(scores, batch([SamplingParams(top_k=1)]), [0]).ids == [7]


def bits(vocab, *allowed_rows):
    out = np.zeros((len(allowed_rows), -(-vocab // 32) * 32), dtype=np.uint8)
    for row, ids in zip(out, allowed_rows, strict=True):
        row[list(ids)] = 1
    return np.packbits(out, axis=1, bitorder="little").tobytes()


@pytest.mark.parametrize("vocab", [32, 33, 300])
def test_bitmask_and_banned(vocab):
    scores = torch.arange(vocab).float().repeat(3, 1)
    mask = bits(vocab, {1, 5, 31}, range(vocab), {vocab - 1})
    out = sample(
        scores.clone(), batch([GREEDY] * 3, bitmask=mask, banned=[[31], [], [vocab + 5, -1]]), [0, 1, 2]
    )
    assert out.ids == [5, vocab - 1, vocab - 1] and out.bad == [False] * 3
    hot = [SamplingParams(temperature=50.0)] * 3
    made = [batch(hot, bitmask=mask, seeds=[seed] * 3) for seed in range(20)]
    drawn = [sample(scores.clone(), b, [0, 1, 2]).ids for b in made]
    assert {d[0] for d in drawn} <= {1, 5, 31} and len({d[0] for d in drawn}) > 1
    part = sample(scores[1:].clone(), batch([GREEDY] * 3, bitmask=mask), [1, 2])  # the mask of the right rows
    assert part.ids == [vocab - 1, vocab - 1]


@pytest.mark.sampler
def test_B146_bad_rows_fail_alone():
    scores = torch.zeros(6, 40)
    scores[:, 3] = 1.0
    scores[0, 5] = math.nan
    scores[1] = math.nan
    scores[2, 9] = math.inf
    scores[3] = -math.inf
    ask = SamplingParams(return_logprob=True)
    out = sample(
        scores,
        batch([ask, GREEDY, GREEDY, ask, GREEDY, GREEDY], banned=[[]] * 5 + [list(range(40))]),
        list(range(6)),
    )
    assert out.bad == [True, True, True, True, False, True]
    assert out.ids == [-1, -1, -1, -1, 3, -1]
    assert out.logprobs == [None] * 6


def test_logprobs_come_before_mask_and_temperature():
    scores = torch.tensor([[1.0, 2.0, 3.0, 0.0]])
    expected = scores[0].log_softmax(-1)
    params = SamplingParams(temperature=0.1, top_k=1, return_logprob=True, top_logprobs_num=10)
    (lp,) = sample(scores.clone(), batch([params], banned=[[2]]), [0]).logprobs
    assert lp.id == 1 and math.isclose(lp.logprob, float(expected[1]), abs_tol=1e-6)
    assert [i for _, i in lp.top] == [2, 1, 0, 3]


def scored(params, scores, drawn):
    rows = batch([params])
    rows = msgspec.structs.replace(rows, drawn_ids=[drawn])
    return sample(torch.tensor([scores]), rows, [0])


def test_penalties_count_what_was_drawn():
    scores = [2.0, 1.9, 1.0, -1.0]
    assert scored(SamplingParams(temperature=0.0, frequency_penalty=0.06), scores, [0, 0]).ids == [1]
    assert scored(SamplingParams(temperature=0.0, frequency_penalty=0.06), scores, [0]).ids == [0]
    assert scored(SamplingParams(temperature=0.0, presence_penalty=0.3), scores, [0, 0]).ids == [1]
    assert scored(SamplingParams(temperature=0.0, presence_penalty=-2.0), scores, [2]).ids == [2]
    assert scored(SamplingParams(temperature=0.0, repetition_penalty=1.9), scores, [0, 1]).ids == [0]
    assert scored(SamplingParams(temperature=0.0, repetition_penalty=2.0), [1.0, 0.9, -3.0], [0]).ids == [1]
    worse = scored(SamplingParams(temperature=0.0, repetition_penalty=2.0), [-1.0, -1.5], [0])
    assert worse.ids == [1], "scores below 0 are multiplied"


def test_penalties_and_bias_leave_logprobs_raw():
    params = SamplingParams(
        temperature=0.0, presence_penalty=2.0, logit_bias=((2, 3.0),), return_logprob=True
    )
    scores = [2.0, 1.9, 1.0]
    drawn = scored(params, scores, [0])
    assert drawn.ids == [2]
    assert drawn.logprobs[0].logprob == pytest.approx(float(torch.tensor(scores).log_softmax(-1)[2]))


@pytest.mark.sampler
def test_B040_a_bias_cannot_bring_back_a_banned_id():
    rows = batch([SamplingParams(temperature=0.0, logit_bias=((1, 1000.0),))], banned=[[1]])
    assert sample(torch.tensor([[0.5, 0.0, 0.1]]), rows, [0]).ids == [0]


def test_close_calls_see_what_penalties_and_bias_leave():
    logits = torch.zeros(1, 8)
    logits[0, :3] = torch.tensor([9.0, 5.0, 4.999])
    apart = batch([SamplingParams(temperature=0.0)])
    assert close_calls(logits, apart, [0], 0.03) == []
    biased = batch([SamplingParams(temperature=0.0, logit_bias=((0, -90.0),))])
    assert close_calls(logits, biased, [0], 0.03) == [0]
    assert logits[0, 0] == 9.0, "the scores given are left as they are"
