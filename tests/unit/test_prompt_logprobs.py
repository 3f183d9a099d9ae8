"""Log-probabilities of prompts on the stub runner: right, once each, whatever the chunks; never a change of the output."""

from __future__ import annotations

import pytest
from scheduler_rig import Rig, alone

from sgnb.engine.model_executor.stub_runner import prefix_hash, stub_score

PROMPT = list(b"the quick brown fox jumps over the lazy dog and then some more of it")


def expected(start: int) -> list[tuple[int, float]]:
    known = [(PROMPT[start], 0.0)]
    for at in range(start + 1, len(PROMPT)):
        known.append((PROMPT[at], stub_score(prefix_hash(PROMPT[:at]), PROMPT[at])))
    return known


def told_of(rig: Rig, n: int, **params) -> list[tuple[int, float]]:
    told = rig.run(n, PROMPT, return_logprob=True, **params)
    assert told.ids == alone(PROMPT).ids, "asking never changes what is drawn"
    return [(one.id, one.logprob) for one in told.input_logprobs]


@pytest.mark.parametrize("chunk", [-1, 1, 7, len(PROMPT) - 1, len(PROMPT)])
@pytest.mark.parametrize("start", [0, 1, 30, len(PROMPT) - 2, len(PROMPT) - 1])
def test_F34_every_token_once_whatever_the_chunks(chunk, start):
    assert told_of(Rig(chunked_prefill_size=chunk), 1, logprob_start_len=start) == expected(start)


@pytest.mark.parametrize("page_size", [1, 4])
def test_cache_match_is_capped_and_the_event_says_why(page_size):
    rig = Rig(page_size=page_size)
    rig.run(1, PROMPT)
    assert told_of(rig, 2, logprob_start_len=20) == expected(20)
    admitted = [e for e in rig.events if e.rid == "c1.r2" and e.state == "admitted"]
    assert admitted[0].match.cause == "logprobs" and admitted[0].match.matched == 20
    plain = rig.run(3, PROMPT)
    assert plain.meta.cached_tokens > 60 and not plain.input_logprobs


def test_neighbours_and_overlap():
    for args in ({}, {"enable_mixed_chunk": True}, {"enable_overlap": True}, {"max_total_tokens": 200}):
        rig = Rig(chunked_prefill_size=16, **args)
        asked = rig.decode(1, PROMPT, return_logprob=True, logprob_start_len=0, max_new_tokens=20)
        plain = [rig.decode(n, PROMPT[n:], max_new_tokens=20) for n in range(2, 5)]
        rig.drain()
        assert [(one.id, one.logprob) for one in rig.told[asked].input_logprobs] == expected(0)
        for n, rid in zip(range(2, 5), plain, strict=True):
            assert rig.told[rid].ids == alone(PROMPT[n:], max_new_tokens=20).ids


def test_start_beyond_the_prompt_and_too_many_are_refused():
    rig = Rig()
    beyond = rig.run(1, PROMPT, return_logprob=True, logprob_start_len=len(PROMPT))
    assert beyond.finish.error.code == "input" and "logprob_start_len" in beyond.finish.error.message
    none = rig.run(2, PROMPT, return_logprob=True)
    assert not none.input_logprobs and none.logprobs
