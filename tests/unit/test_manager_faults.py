"""The tokenizer manager when something is wrong or ends early: errors, limits, abort, release, clients that leave."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from text_models import byte_level_json, source
from text_rig import END, START, Scripted, add, b, begin, end, gen, init, turn

from sgnb.config import MAX_PROMPT_BYTES
from sgnb.engine.tokenizer.tokenizer import build_tokenizer, stub_tokenizer
from sgnb.errors import LimitError
from sgnb.messages import (
    AbortReqs,
    ClientGone,
    Decode,
    ErrorInfo,
    Ids,
    Init,
    Part,
    Release,
    RequestMeta,
    Select,
    SessionClose,
    SessionDecode,
    SessionSelect,
    Text,
)
from sgnb.sampling_params import SamplingParams

# ---------------------------------------------------------------- errors


def test_a_wrong_op_poisons_its_session_and_no_other() -> None:
    s = Scripted()
    s.send(init(), init("c1.s2"), add(begin("tool")), add("x"), gen("c1.r1"), gen("c1.r2", "c1.s2"))
    (failed,) = s.failed()
    assert (failed.sid, failed.error.code) == ("c1.s1", "role")
    assert "no role 'tool'; it has system, user, assistant" in failed.error.message
    assert s.error("c1.r1") == failed.error, "later ops name the first cause"
    assert [d.rid for d in s.decodes()] == ["c1.r2"]
    s.send(add("more"), gen("c1.r3"))
    assert s.error("c1.r3") == failed.error and len(s.failed()) == 1


@pytest.mark.parametrize(
    ("parts", "code", "words"),
    [
        ([begin("user"), begin("assistant")], "role", "begins inside a turn of 'user'"),
        ([end("user")], "role", "but None is open"),
        ([begin("user"), end("assistant")], "role", "but 'user' is open"),
        ([Ids(ids=[0, 259])], "bad_ids", "holds 259; legal ids are 0..258"),
        ([Ids(ids=[-1])], "bad_ids", "holds -1"),
        ([Text(text="a\ud800", literal=False)], "bad_text", "not valid Unicode"),
    ],
)
def test_bad_parts(parts: list[Part], code: str, words: str) -> None:
    s = Scripted()
    s.send(init(), add(*parts), gen())
    assert (s.failed()[0].error.code, s.error("c1.r1").code) == (code, code)
    assert words in s.failed()[0].error.message
    assert s.decodes() == []


@pytest.mark.parametrize("params", [{"stop_token_ids": [259]}, {"stop_token_ids": [-1]}])
def test_ids_outside_the_vocabulary_are_refused_before_anything_is_queued(params: dict[str, Any]) -> None:
    s = Scripted()
    s.send(init(), add("a"), gen(**params))
    assert s.error("c1.r1").kind == "LimitError"
    assert "legal ids are 0..258" in s.error("c1.r1").message
    assert s.decodes() == []


def test_params_that_never_passed_the_check_are_checked_here() -> None:
    s = Scripted()
    bad = msgspec.structs.replace(SamplingParams(), temperature=-1.0)
    s.send(init(), Decode(rid="c1.r1", sid="c1.s1", params=bad))
    assert "temperature" in s.error("c1.r1").message


def test_a_failed_generation_poisons_what_waits_behind_it() -> None:
    s = Scripted()
    s.send(init(), add("a"), gen("c1.r1"), add("b"), gen("c1.r2"))
    cause = ErrorInfo(kind="RequestError", message="not finite", code="nan")
    s.answer("c1.r1", "part", finish="error", error=cause)
    assert s.chunks()[0].text == "part"
    assert s.error("c1.r1") == s.error("c1.r2") == cause
    assert len(s.decodes()) == 1


def test_the_prompt_limit() -> None:
    s = Scripted()
    half = "x" * (MAX_PROMPT_BYTES // 2)
    s.send(init(), add(half), add(half))
    assert not s.failed()
    s.send(add("y"), gen())
    assert s.failed()[0].error.kind == "LimitError"
    assert s.error("c1.r1").code == "limit"


def test_the_prompt_limit_counts_what_waits() -> None:
    s = Scripted()
    s.send(init(), add("a"), gen("c1.r1"), add("x" * MAX_PROMPT_BYTES))
    assert s.failed()[0].sid == "c1.s1"
    s.answer("c1.r1", "fine")
    assert s.ends()["c1.r1"] == "stop"


def test_bounds_on_sessions_and_requests() -> None:
    s = Scripted(max_sessions=2, max_waiting=2)
    s.send(*(init(f"c1.s{n}") for n in range(3)), add("a", sid="c1.s2"), gen("c1.r9", "c1.s2"))
    assert s.failed()[0].error.message == "2 states are live, at most 2 are allowed"
    assert s.error("c1.r9") == s.failed()[0].error
    s.send(init("c2.s0"), client=2)
    assert len(s.failed()) == 2, "the later Extend was told too; the other client is not concerned"
    s.send(Release(sids=["c1.s1"]), init("c1.s3"))
    assert len(s.failed()) == 2
    s.send(gen("c1.r1", "c1.s0"), gen("c1.r2", "c1.s0"), gen("c1.r3", "c1.s3"))
    assert s.error("c1.r3").code == "queue_full"
    s.answer("c1.r1")
    s.answer("c1.r2")
    s.send(init("c1.s4"))
    assert s.failed()[-1].sid == "c1.s4"
    s.send(Release(sids=["c1.s3"]), init("c1.s5"), gen("c1.r4", "c1.s5"))
    assert "c1.r4" in [d.rid for d in s.decodes()]


def test_ids_of_another_client_are_refused() -> None:
    s = Scripted()
    s.send(init(), add("secret"), gen("c1.r1"))
    s.send(
        Init(sid="c1.s7"),
        add("x"),
        gen("c2.r1"),
        Release(sids=["c1.s1"]),
        client=2,
    )
    assert [f.error.code for f in s.failed()] == ["foreign_id", "unknown_session"]
    assert s.ends() == {"c2.r1": "error"}
    s.manager.abort(2, rids=["c1.r1"], sids=["c1.s1"], everything=True)
    assert not any(isinstance(m, SessionClose | AbortReqs) for m in s.asked)
    s.send(init("c1.s8"), gen("c2.r5", "c1.s8"))
    assert s.error("c2.r5").code == "foreign_id"


def test_unknown_and_double_names() -> None:
    s = Scripted()
    s.send(add("x"), gen())
    assert s.failed()[0].error.code == s.error("c1.r1").code == "unknown_session"
    s.send(init(), gen("c1.r2"), gen("c1.r2"))
    assert s.failed()[-1].error.code == "duplicate_request"
    assert "c1.r2" not in s.ends(), "the running one is not ended by it"
    s.answer("c1.r2")
    assert s.ends()["c1.r2"] == "stop"
    s.send(init("c1.s9"), init("c1.s9"))
    assert s.failed()[-1].error.code == "duplicate_session"


def test_a_template_of_no_use_fails_turns_and_nothing_else() -> None:
    model = build_tokenizer(source(byte_level_json(), chat_template="{{ raise_exception('no') }}"), "odd")
    s = Scripted(model)
    s.send(init(), add("plain"), gen(), init("c1.s2"), add(begin("user"), sid="c1.s2"))
    assert len(s.decodes()) == 1
    assert s.failed()[0].error.code == "template"
    assert s.failed()[0].error.message.startswith("chat template of odd: ")


def test_a_fault_of_the_library_fails_one_session() -> None:
    model = stub_tokenizer()

    def broken(texts: Any) -> Any:
        raise BaseException("panicked")

    s = Scripted(model)
    s.send(init(), add("a"), init("c1.s2"))
    model.encode_plain = broken
    s.send(gen())
    assert s.error("c1.r1").code == "internal"
    model.encode_plain = stub_tokenizer().encode_plain
    s.send(gen("c1.r2", "c1.s2"))
    assert s.decodes()


# ---------------------------------------------------------------- abort, release, leave


def test_abort_of_a_session_ends_all_its_generations_and_it_stays_usable() -> None:
    s = Scripted()
    s.send(init(), add(begin("user"), "a"), gen("c1.r1"), add("b", end("user")), gen("c1.r2"))
    s.manager.abort(1, sids=["c1.s1"])
    assert s.asked[-1] == AbortReqs(rids=["c1.r1"])
    assert s.ends() == {"c1.r2": "abort"}
    s.manager.abort(1, sids=["c1.s1"])
    s.answer("c1.r1", "par", finish="abort")
    assert s.ends() == {"c1.r1": "abort", "c1.r2": "abort"}
    s.send(add(*turn("user", "c")), gen("c1.r3"))
    # The text that waited is there, so the turn is closed as it was written.
    assert s.decodes()[-1].ids == [*b("b"), END, *b("\n"), START, *b("user\nc"), END, *b("\n")]


def test_abort_by_request() -> None:
    s = Scripted()
    s.send(init(), gen("c1.r1"), gen("c1.r2"), gen("c1.r3"))
    s.manager.abort(1, rids=["c1.r2", "c1.nothing"])
    assert s.ends() == {"c1.r2": "abort"}
    assert not any(isinstance(m, AbortReqs) for m in s.asked)
    s.manager.abort(1, rids=["c1.r1"])
    assert s.asked[-1] == AbortReqs(rids=["c1.r1"])
    s.answer("c1.r1", finish="abort")
    assert s.decodes()[-1].rid == "c1.r3"


def test_abort_everything_of_one_client_and_of_all() -> None:
    s = Scripted()
    for client in (1, 2):
        s.send(init(f"c{client}.s1"), gen(f"c{client}.r1", f"c{client}.s1"), client=client)
    s.manager.abort(1, everything=True)
    assert s.asked[-1] == AbortReqs(rids=["c1.r1"])
    s.manager.abort(1, everything=True, all_clients=True)
    assert s.asked[-1] == AbortReqs(rids=["c1.r1", "c2.r1"])


def test_release_ends_what_waits_closes_what_runs_and_is_idempotent() -> None:
    s = Scripted()
    s.send(init(), gen("c1.r1"), gen("c1.r2"), Release(sids=["c1.s1", "c1.never"]))
    assert s.ends() == {"c1.r2": "abort"}
    assert s.asked[-1] == SessionClose(sids=["c1.s1"])
    s.send(Release(sids=["c1.s1"]))
    assert sum(isinstance(m, SessionClose) for m in s.asked) == 1
    s.answer("c1.r1", finish="abort")
    assert s.ends()["c1.r1"] == "abort"
    assert s.manager.counts() == {"sessions": 0, "running": 0, "queued": 0}


def test_a_client_that_leaves_is_forgotten() -> None:
    s = Scripted()
    s.send(init(), gen("c1.r1"), gen("c1.r2"), init("c1.s2"))
    s.send(init("c2.s1"), gen("c2.r1", "c2.s1"), client=2)
    s.told.clear()
    s.manager.client_gone(1)
    s.manager.client_gone(1)
    assert s.asked[-1] == ClientGone(client=1)
    s.answer("c1.r1", "late", finish="abort")
    assert s.told == []
    assert s.manager.counts() == {"sessions": 1, "running": 1, "queued": 0}
    assert len(s.manager._replies.detokenizer) == 0
    s.answer("c2.r1", "x")
    assert s.ends() == {"c2.r1": "stop"}


def test_every_generation_gets_exactly_one_finish_whatever_happens() -> None:
    """Random ops, answers, aborts and releases; at the end every Decode has ended once."""
    for seed in range(60):
        rng = random.Random(seed)
        s = Scripted(max_waiting=6)
        sent: list[str] = []
        for step in range(60):
            sid = f"c1.s{rng.randint(0, 3)}"
            action = rng.randint(0, 9)
            if action < 4:
                rid = f"c1.r{step}"
                sent.append(rid)
                s.send(gen(rid, sid, stop_token_ids=[999] if rng.random() < 0.1 else []))
            elif action < 6:
                s.send(add(rng.choice(["x", " y", "<|im_start|>"]), sid=sid))
            elif action == 6:
                s.send(Release(sids=[sid]) if rng.random() < 0.4 else init(sid))
            elif action == 7:
                s.manager.abort(1, sids=[sid], rids=sent[-2:])
            elif running := list(s.manager._roster.requests):
                finish = rng.choice(["stop", "abort", "error"])
                s.answer(rng.choice(running), "ab", finish=finish, leftover=rng.choice([b"", b"z"]))
        while running := list(s.manager._roster.requests):
            s.answer(running[0])
        ended = [chunk.rid for chunk in s.chunks() if chunk.finish]
        assert sorted(ended) == sorted(sent)
        assert s.manager.counts()["queued"] == 0
        assert s.manager._roster.waiting[1] == 0


def test_messages_can_be_encoded() -> None:
    """What goes to the scheduler and to clients is plain data."""
    s = Scripted()
    s.send(init(), add("a", begin("zebra")), gen())
    s.send(init("c1.s2"), gen("c1.r2", "c1.s2"))
    s.answer("c1.r2", "é")
    for message in [*s.asked, *(m for _, m in s.told)]:
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=type(message)) == message


def test_F57_a_prompt_that_ends_with_a_space_is_told_and_no_other() -> None:
    meta = RequestMeta(
        prompt_tokens=1, cached_tokens=0, completion_tokens=1, kept_tokens=1,
        queue_time=0, prefill_time=0, decode_time=0, e2e_latency=0,
    )  # fmt: skip
    s = Scripted()
    notes = {}
    for number, parts in enumerate(
        (["Answer: "], ["Answer:"], ["Answer: ", "yes"], ["x ", *turn("user", "y ")])
    ):
        sid, rid = f"c1.s{number}", f"c1.r{number}"
        s.send(init(sid), add(*parts, sid=sid), gen(rid, sid))
        s.answer(rid, "x", meta=meta)
        notes[number] = s.chunks()[-1].meta.notes
    assert len(notes[0]) == 1 and "ends with a space" in notes[0][0]
    assert notes[1] == notes[2] == notes[3] == []


@pytest.mark.parametrize("op", [Decode, Select])
def test_R5_a_request_that_no_frame_holds_fails_alone_and_its_session_goes_on(op):
    """One terminal chunk, and what waits behind it is told the first cause instead of waiting for ever."""
    s = Scripted()
    s.send(init(), add("hi"))
    send = s.ask

    def full(message):
        if isinstance(message, SessionDecode | SessionSelect):
            raise LimitError("a message of 17,000,000 bytes is over the limit")
        send(message)

    s.ask = full
    more = (
        {"params": SamplingParams()}
        if op is Decode
        else {"options": ["a", "b"], "method": "greedy_token_selection"}
    )
    s.send(op(rid="c1.r1", sid="c1.s1", **more), op(rid="c1.r2", sid="c1.s1", **more))
    ends = {chunk.rid: chunk.finish for chunk in s.chunks() if chunk.finish is not None}
    assert set(ends) == {"c1.r1", "c1.r2"}
    assert all(end.type == "error" and "17,000,000" in end.error.message for end in ends.values())
    assert s.manager.counts() == {"sessions": 1, "running": 0, "queued": 0}
