"""Blocks to the wire and chunks to events."""

from __future__ import annotations

import pytest

from sgnb.backends.base import Delta, Done, Failed, Started, TokenInfo
from sgnb.backends.client import make_error
from sgnb.backends.wire import MAX_TOGETHER, SinkWaiter, finish_reason, to_wire
from sgnb.errors import EngineError, LimitError, RequestError, SourcePosition
from sgnb.lang import instruction as lang
from sgnb.messages import (
    Chunk,
    Decode,
    Decodes,
    ErrorInfo,
    Extend,
    Finish,
    Init,
    Label,
    Mark,
    One,
    RequestMeta,
    Text,
    TokenLogprob,
)
from sgnb.sampling_params import SamplingParams

META = RequestMeta(
    prompt_tokens=3,
    cached_tokens=1,
    completion_tokens=2,
    kept_tokens=2,
    queue_time=0.1,
    prefill_time=0.2,
    decode_time=0.3,
    e2e_latency=0.6,
)


def test_a_block_keeps_order_marks_and_labels():
    params = SamplingParams(temperature=0.0)
    position = SourcePosition("<sgl 3>", 4, 0)
    block = lang.Block(
        "run",
        (
            lang.Init("c1.s1", "k"),
            lang.Extend(
                "c1.s1", (lang.MarkPart("user", True), lang.TextPart("hi", True), lang.TextPart("x"))
            ),
            lang.Decode("c1.r1", "c1.s1", "answer", params, position, "[3]", "0"),
        ),
    )
    assert to_wire(block) == [
        Init(sid="c1.s1", extra_key="k"),
        Extend(
            sid="c1.s1",
            parts=[
                Mark(role="user", begin=True),
                Text(text="hi", literal=True),
                Text(text="x", literal=False),
            ],
        ),
        Decode(
            rid="c1.r1",
            sid="c1.s1",
            params=params,
            label=Label(cell="[3]", branch="0", name="answer", line=4),
        ),
    ]


def test_generations_side_by_side_are_one_operation_where_all_but_their_own_is_equal():
    greedy, warm = SamplingParams(temperature=0.0), SamplingParams(temperature=0.5)
    warm_too = SamplingParams(temperature=0.5, seed=9)

    def decode(number, params, name="x", priority=0, sid=None):
        sid = sid or f"s{number}"
        return lang.Decode(f"r{number}", sid, name, params, None, "[3]", str(number), priority)

    def rids(*instructions):
        ops = to_wire(lang.Block("run", instructions))
        return [[item.rid for item in op.items] if isinstance(op, Decodes) else op.rid for op in ops]

    ops = to_wire(lang.Block("run", (decode(1, warm), decode(2, warm_too))))
    items = [One(rid="r1", sid="s1", branch="1"), One(rid="r2", sid="s2", seed=9, branch="2")]
    assert ops == [Decodes(items=items, params=warm, label=Label(cell="[3]", name="x"))]
    assert rids(decode(1, warm), decode(2, greedy), decode(3, greedy)) == ["r1", ["r2", "r3"]]
    assert rids(decode(1, warm), decode(2, warm, name="y")) == ["r1", "r2"]
    assert rids(decode(1, warm), decode(2, warm, priority=1)) == ["r1", "r2"]
    assert rids(decode(1, warm), decode(2, warm, sid="s1")) == ["r1", "r2"]
    assert rids(decode(1, warm), decode(2, warm), decode(3, warm, sid="s1")) == [["r1", "r2"], "r3"]
    many = rids(*(decode(number, warm) for number in range(MAX_TOGETHER + 2)))
    assert list(map(len, many)) == [MAX_TOGETHER, 2]


def test_chunks_of_a_step_come_as_one_call():
    calls = []
    waiter = SinkWaiter(calls.append)
    logprob = TokenLogprob(id=7, logprob=-0.5, top=[(-0.5, 7)])
    waiter.take(
        [
            Chunk(
                rid="a", started=True, prompt_tokens=9, cached_tokens=4, text="x", ids=[7], logprobs=[logprob]
            ),
            Chunk(rid="b", text="", ids=[1]),
            Chunk(rid="a", text="y", finish=Finish(type="stop", matched="."), meta=META),
        ]
    )
    (events,) = calls
    assert events[:4] == [
        Started("a", 9, 4),
        Delta("a", "x", (TokenInfo(7, -0.5, ((-0.5, 7),)),)),
        Delta("b", "", (TokenInfo(1),)),
        Delta("a", "y", ()),
    ]
    done = events[4]
    assert isinstance(done, Done) and done.finish == {"type": "stop", "matched": "."}
    assert done.meta["output_token_logprobs"] == [(-0.5, 7, None)]
    assert done.meta["output_top_logprobs"] == [[(-0.5, 7, None)]]
    assert done.meta["cached_tokens"] == 1 and done.meta["id"] == "a"


def test_error_finish_is_failed_with_its_code():
    calls = []
    waiter = SinkWaiter(calls.append)
    error = ErrorInfo(kind="RequestError", message="too long", code="context_length", hint="Shorten it.")
    waiter.take([Chunk(rid="a", finish=Finish(type="error", error=error))])
    (failed,) = calls[0]
    assert isinstance(failed, Failed) and isinstance(failed.error, RequestError)
    assert (failed.error.code, failed.error.hint, failed.rid) == ("context_length", "Shorten it.", "a")


@pytest.mark.parametrize(
    ("finish", "expected"),
    [
        (Finish(type="stop", matched="."), {"type": "stop", "matched": "."}),
        (Finish(type="eos", matched=2), {"type": "stop", "matched": 2}),
        (Finish(type="length"), {"type": "length", "length": 9}),
        (Finish(type="context"), {"type": "length", "length": 9}),
        (Finish(type="grammar"), {"type": "stop", "matched": None}),
        (Finish(type="abort"), {"type": "abort", "message": "Aborted"}),
    ],
)
def test_finish_reasons_are_sglangs(finish, expected):
    assert finish_reason(finish, 9) == expected


def test_errors_cross_by_name_and_unknown_names_become_engine_errors():
    assert isinstance(make_error(ErrorInfo(kind="LimitError", message="m")), LimitError)
    for kind in ("SystemExit", "annotations", "__doc__", "Sequence"):
        assert type(make_error(ErrorInfo(kind=kind, message="m"))) is EngineError


def test_slot_runs_begin_with_their_name_on_the_wire() -> None:
    """The page's fold reads runs by place: name, owner, start, count, kind."""
    import msgspec

    from sgnb.messages import KVDelta, SlotRun

    delta = KVDelta(time=1.0, step=2, runs=[SlotRun(owner="c1.r1", start=3, count=4, kind="decode")])
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(delta))
    assert plain["runs"] == [["SlotRun", "c1.r1", 3, 4, "decode"]]
