"""Bad input through whole engine processes: each request ends alone, with words, and the engine goes on.

The table of the limits of a prompt, ``max_new_tokens`` 0 and 1, ids out of range, refusals at the call, queue and state
limits on the stub; the same where the model matters, and non-finite logits, on the torch runner with a tiny model.
"""

from __future__ import annotations

import threading

import pytest
import torch
from process_rig import until, until_idle
from test_process_states import Heard
from tiny_models import make_tiny

from sgnb.backends.base import Done, Failed
from sgnb.backends.engine import Engine, launch
from sgnb.config import MAX_STATES, MAX_WAITING
from sgnb.errors import LimitError, RequestError
from sgnb.lang.instruction import Block, Decode, Extend, Init, TextPart
from sgnb.sampling_params import SamplingParams

CONTEXT, POOL = 64, 48
POISON = 299
"""A token whose embedding is NaN."""
GREEDY = {"temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def stub():
    with launch(runner="stub", name="badinput", context_length=CONTEXT, max_total_tokens=POOL) as engine:
        yield engine
        until_idle(engine)


def byte_tokenizer() -> str:
    """300 tokens: the bytes, then names."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {char: n for n, char in enumerate(alphabet)}
    vocab |= {f"<extra_{n}>": n for n in range(len(vocab), 300)}
    library = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    return library.to_str()


@pytest.fixture(scope="module")
def torch_engine(tmp_path_factory):
    """A tiny model that answers NaN to whoever has token POISON in its prompt."""
    folder = tmp_path_factory.mktemp("poisoned")
    model = make_tiny(folder)
    with torch.no_grad():
        model.model.embed_tokens.weight[POISON] = float("nan")
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(byte_tokenizer())
    with launch(
        str(folder), name="badtorch", dtype="float32", threads=1, context_length=CONTEXT, max_total_tokens=512
    ) as engine:
        yield engine
        until_idle(engine)


def ends(engine: Engine, length: int, new: int) -> tuple[str, int]:
    """How a prompt of ``length`` tokens ends, or the code of its refusal; and how many tokens it drew."""
    ids = [97 + n % 20 for n in range(length)]
    try:
        done = engine.generate(input_ids=ids, sampling_params={**GREEDY, "max_new_tokens": new})
    except RequestError as error:
        assert str(length) in error.message and "tokens" in error.message, error
        return error.code, 0
    return done["meta_info"]["finish_reason"]["type"], done["meta_info"]["completion_tokens"]


# ------------------------------------------------------------ lengths


@pytest.mark.parametrize(
    ("length", "new", "expected"),
    [
        (1, 0, ("length", 0)),
        (1, 1, ("length", 1)),
        (CONTEXT - 1, 1, ("length", 1)),
        (CONTEXT - 1, 5, ("length", 1)),
        (CONTEXT, 0, ("length", 0)),
        (CONTEXT, 1, ("context", 0)),
        (CONTEXT + 1, 0, ("context", 0)),
        (CONTEXT + 1, 1, ("context", 0)),
    ],
)
def test_F27_prompt_below_at_and_over_the_context(torch_engine, length, new, expected):
    assert ends(torch_engine, length, new) == expected


@pytest.mark.parametrize(
    ("length", "new", "expected"),
    [
        (POOL - 1, 1, ("length", 1)),
        (POOL, 1, ("length", 1)),
        (POOL, 5, ("length", 1)),
        (POOL + 1, 1, ("context", 0)),
        (CONTEXT - 1, 1, ("context", 0)),
        (CONTEXT, 1, ("context", 0)),
    ],
)
def test_F28_prompt_below_at_and_over_the_pool(stub, length, new, expected):
    assert ends(stub, length, new) == expected


def test_B108_the_empty_prompt_starts_from_BOS_or_EOS(stub, torch_engine):
    """Without either it is refused, see ``test_tokenizer_manager``; what it must not do is to fail inside the engine."""
    params = {"max_new_tokens": 3, "ignore_eos": True}
    for engine, start in ((stub, 258), (torch_engine, 2)):
        for call in ({"input_ids": []}, {"input_ids": [[]]}, {"prompt": ""}, {"prompt": [""]}):
            done = engine.generate(**call, sampling_params=params)
            done = done if isinstance(done, dict) else done[0]
            assert done["prompt_ids"] == [start] and done["meta_info"]["completion_tokens"] == 3


def test_token_ids_out_of_range_are_refused_with_the_range(torch_engine):
    for bad in (-1, 300, 2**40):
        with pytest.raises(LimitError, match=r"legal token ids are 0\.\.299"):
            torch_engine.generate(input_ids=[1, bad])


def test_F29_what_is_no_state_is_not_pinned(stub):
    for wrong in ("x", None, 5):
        for call in (stub.pin, stub.unpin):
            with pytest.raises(LimitError, match=f"a state is pinned, not {type(wrong).__name__}"):
                call(wrong)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"max_new_tokens": -1}, r"0\.\.2\^31-1, not -1"),
        ({"max_new_tokens": True}, r"a whole number in 0\.\.2\^31-1, not True"),
        ({"max_new_tokens": "5"}, r"a whole number in 0\.\.2\^31-1, not '5'"),
        ({"temperature": float("nan")}, "0..100"),
        ({"temperature": "hot"}, r"temperature must be a number in 0\.\.100, not 'hot'"),
        ({"top_p": 0}, r"a number in \(0, 1\]"),
        ({"top_k": 0}, r"1\.\.2\^31-1, or -1 \(all\)"),
        ({"min_p": 1.5}, "0..1"),
        ({"frequency_penalty": 3}, "-2..2"),
        ({"repetition_penalty": 0}, r"a number in \(0, 2\]"),
        ({"stop": ["a", 5]}, r"at most 16 texts, but stop\[1\] is 5"),
        ({"stop_token_ids": [300]}, r"0\.\.299"),
        ({"logit_bias": {300: 1.0}}, r"0\.\.299"),
    ],
)
def test_F29_wrong_parameters_are_refused_at_the_call_with_the_range(torch_engine, params, words):
    sent = torch_engine.client.bytes_sent
    with pytest.raises(LimitError, match=words):
        torch_engine.generate("x", sampling_params=params)
    assert torch_engine.client.bytes_sent - sent < 200, "nothing was queued"


def test_F29_extreme_but_legal_parameters_run(torch_engine):
    for params in (
        {"temperature": 1e-7},
        {"temperature": 100},
        {"top_k": 10**9},
        {"top_p": 1e-9},
        {"min_p": 1},
        {"repetition_penalty": 2, "frequency_penalty": 2, "presence_penalty": -2},
        {"logit_bias": dict.fromkeys(range(300), -1000)},
    ):
        params = {"max_new_tokens": 3, "ignore_eos": True, "logit_bias": {POISON: -1000}, **params}
        done = torch_engine.generate("x", sampling_params=params)
        assert done["meta_info"]["completion_tokens"] == 3, params


# ------------------------------------------------------------ numbers that are none


@pytest.mark.sampler
def test_B146_F36_a_row_that_is_not_finite_fails_alone_and_is_not_cached(torch_engine):
    neighbour = [97, 98, 99, 100, 101]
    params = {**GREEDY, "max_new_tokens": 30}
    alone = torch_engine.generate(input_ids=neighbour, sampling_params=params)["output_ids"]
    torch_engine.flush_cache()
    found: list[list[int]] = []
    beside = threading.Thread(
        target=lambda: found.append(
            torch_engine.generate(input_ids=neighbour, sampling_params=params)["output_ids"]
        )
    )
    beside.start()
    poisoned = [*range(97, 117), POISON, 97]
    for _ in range(3):
        with pytest.raises(RequestError, match="non-finite logits at step") as caught:
            torch_engine.generate(input_ids=poisoned, sampling_params=params)
        assert caught.value.code == "non_finite" and caught.value.hint
    beside.join(60)
    assert found == [alone]
    clean = [*range(97, 117), 98]
    done = torch_engine.generate(input_ids=clean, sampling_params=params)
    assert done["meta_info"]["cached_tokens"] < 20, "what the bad row computed is not in the cache"
    torch_engine.flush_cache()
    assert torch_engine.generate(input_ids=clean, sampling_params=params)["output_ids"] == done["output_ids"]


# ------------------------------------------------------------ limits of a client


def test_a_full_queue_refuses_and_does_not_hang():
    with launch(runner="stub", name="fullqueue", max_queued_requests=2) as engine:
        engine.pause()
        heard = Heard()
        rids = [ask(engine, heard) for _ in range(4)]
        heard.wait(2)
        refused = [rid for rid in rids if isinstance(heard.ends.get(rid), Failed)]
        assert refused == rids[2:]
        assert "max_queued_requests is 2" in str(heard.ends[rids[2]].error)
        engine.resume()
        heard.wait(4)
        assert all(isinstance(heard.ends[rid], Done) for rid in rids[:2])
        until_idle(engine)


def ask(engine: Engine, heard: Heard) -> str:
    sid, rid = engine.new_sid(), engine.new_rid()
    params = SamplingParams(max_new_tokens=1, temperature=0.0)
    parts = (Init(sid), Extend(sid, (TextPart("hi"),)), Decode(rid, sid, "x", params))
    engine.submit(Block("run", parts), heard)
    return rid


def test_states_and_waiting_requests_of_a_client_are_bounded():
    with launch(runner="stub", name="manystates", max_queued_requests=2 * MAX_WAITING) as engine:
        engine.pause()
        lost: list[Failed] = []
        sids = [engine.new_sid() for _ in range(MAX_STATES + 2)]
        engine.submit(
            Block("run", tuple(Init(sid) for sid in sids)),
            lambda events: lost.extend(event for event in events if isinstance(event, Failed)),
        )
        until(lambda: len(lost) == 2, 60)
        assert [failed.sid for failed in lost] == sids[-2:]
        assert f"at most {MAX_STATES} are allowed" in str(lost[0].error)
        heard = Heard()
        params = SamplingParams(max_new_tokens=1, temperature=0.0)
        rids = [engine.new_rid() for _ in range(MAX_WAITING + 2)]
        for at in range(0, len(rids), 500):
            ops = [
                op
                for rid, sid in zip(rids[at : at + 500], sids[at:], strict=False)
                for op in (Extend(sid, (TextPart("hi"),)), Decode(rid, sid, "x", params))
            ]
            engine.submit(Block("run", tuple(ops)), heard)
        heard.wait(2)
        refused = [rid for rid in rids if isinstance(heard.ends.get(rid), Failed)]
        assert refused == rids[-2:]
        engine.resume()
        until(lambda: len(heard.ends) == len(rids), 60)
        engine.release(sids)
        until_idle(engine)
        assert engine.stats()["num_sessions"] == 0
