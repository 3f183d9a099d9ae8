"""KV at other positions: keys rotated by a shift are those of tokens that stand there; drivers agree on joins."""

import pytest
import torch
from tiny_models import FAMILIES, Driver, make_tiny

from sgnb.config import EngineArgs
from sgnb.engine import model_store
from sgnb.engine.model_executor.drivers import make_driver
from sgnb.engine.model_executor.model_runner import create_runner
from sgnb.engine.scheduler.scheduler import Scheduler
from sgnb.messages import (
    BatchOutput,
    JoinPart,
    Label,
    SchedulerControl,
    SessionClose,
    SessionDecode,
    SessionFork,
    SessionJoin,
    SessionOpen,
    TokenTable,
)
from sgnb.sampling_params import SamplingParams

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 10000.0,
}
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
MODELS = [*((family, {}) for family in FAMILIES), ("llama", LLAMA3), ("llama", LINEAR)]


@pytest.mark.parametrize(("family", "rope"), MODELS, ids=[*FAMILIES, "llama3-scaling", "linear-scaling"])
def test_rotated_keys_are_those_of_the_new_positions(tmp_path, family, rope):
    """In layer 0 keys and values depend on token and position alone, so a copy must be what is computed there."""
    make_tiny(tmp_path, family, **({"rope_parameters": rope} if rope else {}))
    args = EngineArgs.make(dtype="float32", threads=1, max_total_tokens=400, max_running_requests=4)
    runner = create_runner(args, model_store.resolve(str(tmp_path)), lambda *told: None)
    driver = Driver(runner)
    ids = list(range(20, 60))
    driver.forward({0: ids})
    driver.forward({1: list(range(100, 130)) + ids})
    here, there = driver.slots[0], driver.slots[1][30:]
    free = driver.alloc(2 * len(ids))
    forth, back = free[: len(ids)], free[len(ids) :]
    runner.copy_rotated(here, forth, [30] * len(ids))
    runner.copy_rotated(there, back, [-30] * len(ids))
    pool = runner._kv
    with torch.inference_mode():
        for copies, target in ((forth, there), (back, here)):
            assert torch.allclose(pool.key(0)[copies], pool.key(0)[target], atol=1e-5, rtol=1e-5)
            assert torch.equal(pool.value(0)[copies], pool.value(0)[target])
        assert not torch.allclose(pool.key(0)[here], pool.key(0)[there], atol=1e-2)
        assert not torch.allclose(pool.key(1)[forth], pool.key(1)[there], atol=1e-2), "approximate beyond"
    runner.close()


def test_a_copy_in_bf16_is_rounded_once_more_only(tmp_path):
    make_tiny(tmp_path, "llama")
    args = EngineArgs.make(dtype="bfloat16", threads=1, max_total_tokens=300, max_running_requests=4)
    runner = create_runner(args, model_store.resolve(str(tmp_path)), lambda *told: None)
    driver = Driver(runner)
    driver.forward({0: list(range(20, 60))})
    free = driver.alloc(80)
    runner.copy_rotated(driver.slots[0], free[:40], [17] * 40)
    runner.copy_rotated(free[:40], free[40:], [-17] * 40)
    key = runner._kv.key(0)
    error = (key[free[40:]].float() - key[driver.slots[0]].float()).abs().max()
    assert error <= 2**-6 * key[driver.slots[0]].float().abs().max()
    runner.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    make_tiny(folder, "llama")
    return model_store.resolve(str(folder))


def joined(model, *, page: int = 1, moves: bool = False, name: str = "inline", overlap: bool = False):
    """(ids drawn after a join, tokens copied, what the state says), then the same once the KV was flushed."""
    args = EngineArgs.make(
        dtype="float32",
        threads=1,
        max_total_tokens=320,
        max_running_requests=8,
        page_size=page,
        chunked_prefill_size=16,
        runner_driver=name,
        enable_overlap=overlap,
    )
    runner = create_runner(args, model, lambda *told: None)
    ids: dict[str, list[int]] = {}
    meta = {}

    def send(message):
        if isinstance(message, BatchOutput):
            for item in message.items:
                ids.setdefault(item.rid, []).extend(item.ids)
                meta[item.rid] = item.meta

    scheduler = Scheduler(args, make_driver(args, runner), send, lambda event: None)
    scheduler.receive(TokenTable(table=[b"x"] * runner.vocab_size))

    def decode(n, sid, new, count):
        scheduler.receive(
            SessionDecode(
                rid=f"c1.r{n}",
                sid=f"c1.s{sid}",
                client=1,
                ids=new,
                params=SamplingParams(max_new_tokens=count, temperature=0.0, ignore_eos=True),
                stops=[],
                stop_token_ids=[],
                eos_token_ids=[],
                label=Label(),
            )
        )

    def drain():
        steps = 0
        while scheduler.step():
            steps += 1
            if moves and steps % 3 == 0:
                scheduler.receive(SchedulerControl(client=1, id=steps, verb="defragment", args={}))
        scheduler.check_integrity()

    scheduler.receive(SessionOpen(sid="c1.s0", client=1))
    decode(0, 0, list(range(5, 30)), 1)
    drain()
    sids = [f"c1.s{n}" for n in (1, 2, 3)]
    scheduler.receive(SessionFork(sid="c1.s0", children=sids))
    for n in (1, 2, 3):
        decode(n, n, [n + 40] * (n + 3), 12)
    drain()
    scheduler.receive(SessionJoin(sid="c1.s0", ids=[], parts=[JoinPart(sid=sid) for sid in sids]))
    scheduler.receive(SessionClose(sids=sids))
    decode(4, 0, [7, 8, 9], 16)
    drain()
    copied, state = meta["c1.r4"].joined_tokens, meta["c1.r4"].joined_kv
    first = ids["c1.r4"]
    scheduler.cache.flush()
    decode(5, 0, [10], 8)
    drain()
    exact = meta["c1.r5"].joined_kv
    scheduler.driver.close()
    return first, copied, state, ids["c1.r5"], exact


@pytest.mark.parametrize("page", [1, 4])
def test_drivers_moves_and_overlap_agree(model, page):
    plain = joined(model, page=page)
    _, copied, state, _, exact = plain
    assert 30 <= copied <= 3 * 12 + 4 + 5 + 6
    assert (state, exact) == ("approximate", "exact")
    assert joined(model, page=page, moves=True) == plain
    assert joined(model, page=page, name="thread", overlap=True) == plain


def after_join(model, prefix, arms, tail):
    """(log-probabilities of the likeliest tokens behind ``tail``, by the engine; the ids of each branch)."""
    args = EngineArgs.make(dtype="float32", threads=1, max_total_tokens=320, max_running_requests=8)
    runner = create_runner(args, model, lambda *told: None)
    outputs: dict[str, list] = {}

    def send(message):
        for item in message.items if isinstance(message, BatchOutput) else ():
            outputs.setdefault(item.rid, []).append(item)

    scheduler = Scheduler(args, make_driver(args, runner), send, lambda event: None)
    scheduler.receive(TokenTable(table=[b"x"] * runner.vocab_size))

    def decode(n, sid, new, count, **params):
        wanted = SamplingParams(max_new_tokens=count, temperature=0.0, ignore_eos=True, **params)
        ends = {"stops": [], "stop_token_ids": [], "eos_token_ids": []}
        scheduler.receive(
            SessionDecode(
                rid=f"c1.r{n}", sid=f"c1.s{sid}", client=1, ids=new, params=wanted, label=Label(), **ends
            )
        )

    def drain():
        while scheduler.step():
            pass

    scheduler.receive(SessionOpen(sid="c1.s0", client=1))
    decode(0, 0, prefix, 1)
    drain()
    first = outputs["c1.r0"][-1].ids
    sids = [f"c1.s{n}" for n in range(1, len(arms) + 1)]
    scheduler.receive(SessionFork(sid="c1.s0", children=sids))
    for n, arm in enumerate(arms, 1):
        decode(n, n, arm, 5)
    drain()
    written = [[token for item in outputs[f"c1.r{n}"] for token in item.ids] for n in range(1, len(arms) + 1)]
    scheduler.receive(SessionJoin(sid="c1.s0", ids=[], parts=[JoinPart(sid=sid) for sid in sids]))
    decode(9, 0, tail, 1, return_logprob=True, top_logprobs_num=20)
    drain()
    meta = outputs["c1.r9"][-1].meta
    assert meta.joined_kv == "approximate"
    top = {token: value for value, token in outputs["c1.r9"][-1].logprobs[0].top}
    scheduler.driver.close()
    return top, [*prefix, *first], [arm + more for arm, more in zip(arms, written, strict=True)]


def rotated(key, shift, theta):
    """Keys [..., tokens, dim] as they are ``shift`` positions further on."""
    half = key.shape[-1] // 2
    angle = shift * theta ** (-torch.arange(half, dtype=torch.float64) / half)
    cos, sin = angle.cos().to(key.dtype), angle.sin().to(key.dtype)
    low, high = key[..., :half], key[..., half:]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


def test_what_comes_after_a_join_is_what_its_definition_says(tmp_path):
    """By transformers: each branch is computed behind the common prefix alone, its keys are turned to where they stand
    then, and the rest attends to all of it."""
    from transformers import DynamicCache

    reference = make_tiny(tmp_path, "llama")
    tail = [7, 8, 9, 11]
    top, prefix, arms = after_join(
        model_store.resolve(str(tmp_path)),
        list(range(5, 30)),
        [[40] * 4, [51, 52, 53], list(range(60, 66))],
        tail,
    )
    theta = 10000.0

    def cache_of(ids):
        with torch.inference_mode():
            cache = reference(torch.tensor([ids]), use_cache=True).past_key_values
        return [(layer.keys, layer.values) for layer in cache.layers]

    layers = [([key], [value]) for key, value in cache_of(prefix)]
    shift = 0
    for arm in arms:
        for (keys, values), (key, value) in zip(layers, cache_of(prefix + arm), strict=True):
            keys.append(rotated(key[:, :, len(prefix) :], shift, theta))
            values.append(value[:, :, len(prefix) :])
        shift += len(arm)
    cache = DynamicCache()
    for number, (keys, values) in enumerate(layers):
        cache.update(torch.cat(keys, 2), torch.cat(values, 2), number)
    start = len(prefix) + shift
    text = [*prefix, *(token for arm in arms for token in arm), *tail]
    with torch.inference_mode():
        places = torch.arange(start, start + len(tail))[None]
        logits = reference(torch.tensor([tail]), cache=cache, position_ids=places).logits[0, -1]
        exact = torch.log_softmax(reference(torch.tensor([text])).logits[0, -1].float(), -1)
    right = torch.log_softmax(logits.float(), -1)
    assert max(abs(value - float(right[token])) for token, value in top.items()) < 1e-3
    assert float((exact - right).abs().max()) > 0.05, "approximate, and seen to be"
