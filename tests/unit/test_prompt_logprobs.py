"""Log-probabilities of prompts on the stub runner: right, once each, whatever the chunks; never a change of the output."""

from __future__ import annotations

import pytest
from scheduler_rig import Rig, alone

from sgnb.engine.model_executor.stub_runner import prefix_hash, stub_score
from sgnb.engine.scheduler import output
from sgnb.engine.scheduler.admission import MAX_LOGPROBS, MAX_SCORED
from sgnb.messages import BatchOutput, Choice, Chunk, Chunks, OptionScore, ReqOutput, TokenLogprob
from sgnb.transport import encode

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


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"chunked_prefill_size": 7},
        {"enable_overlap": True, "page_size": 4},
        {"disable_radix_cache": True},
    ],
    ids=str,
)
def test_F34_a_prompt_is_scored_without_a_token_being_drawn(args):
    rig = Rig(**args)
    for n, start in enumerate((0, 30, len(PROMPT) - 2, len(PROMPT) - 1, 0)):
        beside = rig.decode(10 + n, [*PROMPT[:40], 65 + n], max_new_tokens=5)
        told = rig.run(n, PROMPT, return_logprob=True, logprob_start_len=start, max_new_tokens=0)
        assert [(one.id, one.logprob) for one in told.input_logprobs] == expected(start)
        assert told.ids == [] and told.finish.type == "length" and told.meta.completion_tokens == 0
        rig.drain()
        assert rig.told[beside].ids == alone([*PROMPT[:40], 65 + n], max_new_tokens=5).ids
    plain = rig.run(20, PROMPT, max_new_tokens=0, return_logprob=True)
    assert plain.input_logprobs == [] and plain.finish.type == "length"
    rig.open(30)
    rig.decode(31, PROMPT, sid=30, fresh=False, return_logprob=True, logprob_start_len=0, max_new_tokens=0)
    rig.drain()
    going_on = rig.decode(32, b" and on", sid=30, fresh=False, max_new_tokens=3)
    rig.drain()
    assert rig.told[going_on].ids == alone(bytes(PROMPT) + b" and on", max_new_tokens=3).ids, (
        "the session has its prompt"
    )


def test_F34_a_prompt_that_is_scored_needs_the_pool_and_not_more():
    for length, code in ((64, None), (65, "context")):
        rig = Rig(max_total_tokens=64, context_length=100)
        asked = {"return_logprob": True, "logprob_start_len": 0, "max_new_tokens": 0}
        told = rig.run(1, b"x" * length, **asked)
        assert (told.finish.error.code if told.finish.error else None) == code
        assert len(told.input_logprobs) == (length if code is None else 0)
        assert rig.run(2, b"x" * 65, max_new_tokens=0).finish.type == "length", "nothing is computed of it"


@pytest.mark.parametrize("page_size", [1, 4])
def test_cache_match_is_capped_and_the_event_says_why(page_size):
    rig = Rig(page_size=page_size)
    rig.run(1, PROMPT)
    assert told_of(rig, 2, logprob_start_len=20) == expected(20)
    admitted = [e for e in rig.events if e.rid == "c1.r2" and e.state == "admitted"]
    assert admitted[0].match.cause == "logprobs" and admitted[0].match.matched == 20
    plain = rig.run(3, PROMPT)
    assert plain.meta.cached_tokens > 60 and not plain.input_logprobs


@pytest.mark.radix
@pytest.mark.parametrize("page", [1, 2, 4, 16])
def test_B142_twice_at_page_borders_gives_the_same_full_list(page):
    rig = Rig(page_size=page)
    for n, length in enumerate(sorted({max(2, page - 1), page + 1, 2 * page, 3 * page + 1})):
        prompt = PROMPT[n : n + length]
        told = []
        for turn in (10 * n + 1, 10 * n + 2):
            told.append(rig.run(turn, prompt, return_logprob=True, logprob_start_len=0, max_new_tokens=3))
            assert len(told[-1].input_logprobs) == length
        assert told[0].input_logprobs == told[1].input_logprobs
        assert [one.logprob for one in told[0].input_logprobs[1:]] == [
            stub_score(prefix_hash(prompt[:at]), prompt[at]) for at in range(1, length)
        ]


@pytest.mark.radix
@pytest.mark.parametrize("page", [1, 4])
def test_B143_order_of_two_prompts_with_a_common_prefix_does_not_matter(page):
    """What is cached by the other one is computed again for its values, never read from memory that has none."""
    first, second = PROMPT[:40], PROMPT[:30] + list(b"and something else")

    def told(*prompts: list[int]) -> dict[tuple[int, ...], list[float]]:
        rig = Rig(page_size=page)
        found = {}
        for n, prompt in enumerate(prompts, 1):
            values = rig.run(n, prompt, return_logprob=True, logprob_start_len=0).input_logprobs
            found[tuple(prompt)] = [one.logprob for one in values]
        return found

    assert told(first, second) == told(second, first) == told(first, second, first)


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
    assert beyond.finish.error.code == "input"
    assert (
        f"logprob_start_len must be in -1..{len(PROMPT) - 1} for this prompt" in beyond.finish.error.message
    )
    none = rig.run(2, PROMPT, return_logprob=True)
    assert not none.input_logprobs and none.logprobs


def test_R6_what_no_frame_holds_goes_in_several(monkeypatch):
    """Prompts whose log-probabilities take megabytes may end in the same step."""
    monkeypatch.setattr(output, "BATCH_BYTES", 20_000)
    rig = Rig(chunked_prefill_size=-1)
    sent: list[BatchOutput] = []
    send = rig.scheduler.outputs._send
    monkeypatch.setattr(rig.scheduler.outputs, "_send", lambda batch: (sent.append(batch), send(batch)))
    for n in range(1, 6):
        ids = [n, *PROMPT * 4]
        rig.decode(n, ids, max_new_tokens=1, return_logprob=True, logprob_start_len=0, top_logprobs_num=2)
    rig.drain()
    started, *ended = sent  # that they left the queue, before the step
    assert len(started.items) == 5 and not any(item.input_logprobs for item in started.items)
    assert [len(batch.items) for batch in ended] == [1] * 5
    for out in (item for batch in sent for item in batch.items):
        assert output._size(out) + 500 > len(encode(out)), "the estimate is never too small"


def test_the_most_log_probabilities_fit_into_one_message():
    for text, top in (("\ufffd", 0), (" word", 0), ("\ufffd", 20)):
        best = [(-1.25, 100_000)] * top
        count = MAX_LOGPROBS // (1 + top)
        scored = [TokenLogprob(id=100_000, logprob=-1.25, top=best, text=text)] * count
        chunk = Chunk(rid="c1.r1", input_logprobs=scored, prompt_ids=[100_000] * count)
        encode(Chunks(incarnation="i" * 16, items=[chunk]))


def test_the_largest_select_fits_into_one_message_and_a_larger_one_is_refused():
    row = MAX_SCORED // 1024
    option = OptionScore(
        ids=[100_000] * row, logprobs=[-1.25] * row, unconditional=[-1.25] * row, score=-1.25
    )
    out = ReqOutput(rid="c1.r1", visible=0, choice=Choice(index=0, options=[option] * 1024))
    assert output._size(out) + 50_000 > len(encode(out))
    rig = Rig()
    asked = rig.select(1, PROMPT, [[65] * (row + 1)] * 1024)
    rig.drain()
    assert rig.told[asked].finish.error.code == "input"
    assert f"{MAX_SCORED:,}" in rig.told[asked].finish.error.message
