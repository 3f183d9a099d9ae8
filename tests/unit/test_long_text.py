"""A long prompt is encoded in pieces: what others send is answered between them, and it can be ended."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence

import pytest
from text_models import byte_level, byte_level_chat, metaspace
from text_rig import Scripted, add, gen, init

from sgnb.engine.tokenizer.borders import ASIDE_CHARS, PIECE_CHARS, BorderRule, encode_steps
from sgnb.engine.tokenizer.steps import Aside, Jobs, Steps, run_steps
from sgnb.engine.tokenizer.tokenizer import ModelTokenizer, stub_tokenizer
from sgnb.messages import Op, Release, SessionDecode, SessionExtend

WORDS = ["word", "it's", "12", "<|im_", "end|>", "日本", "\n\n", "  ", "é,", "def f():"]


def long_text(size: int) -> str:
    text = " ".join(random.Random(1).choices(WORDS, k=size // 5))
    return text[:size]


def begin_long(s: Scripted, text: str) -> None:
    """Session 1 has a long text and a generation; nothing is done beyond what ``handle`` does."""
    s.manager.handle(1, [init(), add(text), gen()])


def test_others_are_served_while_three_megabytes_are_encoded() -> None:
    s = Scripted()
    begin_long(s, long_text(3_000_000))
    assert s.manager.encoding == 1 and not s.decodes()
    pieces = 0
    for number in range(2, 12):
        s.manager.handle(
            2, [init(f"c2.s{number}"), add("hi", sid=f"c2.s{number}"), gen(f"c2.r{number}", f"c2.s{number}")]
        )
        while not any(d.rid == f"c2.r{number}" for d in s.decodes()):
            assert s.manager.pump()
            pieces += 1
    assert pieces <= 10, "a short op waits for no piece, or for one"
    count = 1
    while s.manager.pump():
        count += 1
    assert count > 150, "the long one went on in pieces"
    assert s.decodes()[-1].rid == "c1.r1"


@pytest.mark.parametrize("load", [stub_tokenizer, byte_level, byte_level_chat, metaspace])
def test_ids_are_those_of_one_call(load: Callable[[], ModelTokenizer]) -> None:
    text = long_text(120_000)
    s = Scripted(load())
    begin_long(s, text)
    s.drain()
    wanted = s.manager.tokenizer.encode(text)
    assert s.ids() == ([s.manager.tokenizer.bos, *wanted] if s.manager.tokenizer.bos is not None else wanted)
    assert [type(m) for m in s.asked[1:]] == [SessionExtend, SessionDecode]


def test_order_within_a_session_is_kept() -> None:
    s = Scripted()
    begin_long(s, "first " * 30_000)
    s.manager.handle(1, [add("second "), gen("c1.r2"), add("third " * 30_000), gen("c1.r3")])
    assert not s.decodes()
    s.drain()
    s.answer("c1.r1", "")
    s.answer("c1.r2", "")
    assert [d.rid for d in s.decodes()] == ["c1.r1", "c1.r2", "c1.r3"]
    assert bytes(s.ids()).decode() == "first " * 30_000 + "second " + "third " * 30_000


def test_two_long_texts_take_turns() -> None:
    s = Scripted()
    for client in (1, 2):
        sid = f"c{client}.s1"
        s.manager.handle(client, [init(sid), add("word " * 60_000, sid=sid), gen(f"c{client}.r1", sid)])
    ends: list[tuple[str, int]] = []
    turns = 0
    while len(ends) < 2 and turns < 1000:
        s.manager.pump()
        turns += 1
        for decode in s.decodes()[len(ends) :]:
            ends.append((decode.rid, turns))
    assert len(ends) == 2 and ends[1][1] - ends[0][1] <= 4, ends


def test_a_message_with_many_texts_does_little_at_once() -> None:
    s = Scripted()
    done: list[int] = []
    plain = s.manager.tokenizer.encode_plain

    def counted(texts: Sequence[str]) -> list[list[int]]:
        done.append(sum(map(len, texts)))
        return plain(texts)

    s.manager.tokenizer.encode_plain = counted
    ops: list[Op] = []
    for number in range(50):
        sid = f"c1.s{number}"
        ops += [init(sid), add("word " * 3000, sid=sid), gen(f"c1.r{number}", sid)]
    s.manager.handle(1, ops)
    assert sum(done) <= 3 * PIECE_CHARS
    s.drain()
    assert len(s.decodes()) == 50


def test_abort_between_pieces_ends_the_generation_and_keeps_the_text() -> None:
    for pumps in (0, 3, 40):
        s = Scripted()
        text = "word " * 200_000
        begin_long(s, text)
        for _ in range(pumps):
            s.manager.pump()
        s.manager.abort(1, sids=["c1.s1"])
        assert s.ends() == {"c1.r1": "abort"}
        assert s.manager.encoding == 0 and not s.manager.pump()
        assert s.manager.counts() == {"sessions": 1, "running": 0, "queued": 0}
        s.send(add("x"), gen("c1.r2"))
        assert bytes(s.ids()).decode() == text + "x", "what was written is there, once"


def test_abort_by_request_while_its_own_text_is_encoded() -> None:
    s = Scripted()
    s.send(init(), add("x" * 15_000))
    s.manager.handle(1, [add("x" * 100_000 + " " + "y" * 100_000), gen("c1.r1"), gen("c1.r2")])
    s.manager.abort(1, rids=["c1.r1"])
    s.drain()
    assert s.ends() == {"c1.r1": "abort"}
    assert [d.rid for d in s.decodes()] == ["c1.r2"], "the next one goes on"
    assert len(s.ids()) == 215_001


@pytest.mark.parametrize("how", ["release", "gone"])
def test_a_session_that_closes_while_it_is_encoded(how: str) -> None:
    s = Scripted()
    begin_long(s, "word " * 100_000)
    s.manager.pump()
    if how == "release":
        s.manager.handle(1, [Release(sids=["c1.s1"])])
        assert s.ends() == {"c1.r1": "abort"}
    else:
        s.manager.client_gone(1)
        assert not s.told
    assert s.manager.encoding == 0 and not s.manager.pump()
    assert s.manager.counts() == {"sessions": 0, "running": 0, "queued": 0}
    assert not s.decodes()


def test_text_without_a_border_is_encoded_on_another_thread() -> None:
    threads: set[str] = set()
    model = stub_tokenizer()
    gate = threading.Event()

    def encode(texts: Sequence[str]) -> list[list[int]]:
        threads.add(threading.current_thread().name)
        assert gate.wait(60)
        return [list(text.encode()) for text in texts]

    model.encode_plain = encode
    woken = threading.Event()
    s = Scripted(model)
    s.manager._queues.jobs = Jobs(woken.set, PIECE_CHARS)
    text = "日" * (ASIDE_CHARS + 1)
    begin_long(s, text)
    assert not s.manager.pump(), "nothing to do here meanwhile"
    assert s.manager.encoding == 1
    gate.set()
    assert woken.wait(60)
    s.drain()
    assert bytes(s.ids()).decode() == text
    assert threads == {"sgnb-encode"}


def test_steps_at_once_equal_steps_one_by_one() -> None:
    def encode(texts: Sequence[str]) -> list[list[int]]:
        return [list(text.encode()) for text in texts]

    for text in ("", "a", long_text(50_000), "x" * 200_000, "x" * 200_000 + " " + long_text(20_000)):
        asked: list[object] = []

        def record(steps: Steps[list[int]]) -> Steps[list[int]]:
            answer = None
            while True:
                try:
                    one = steps.send(answer)
                except StopIteration as end:
                    return list(end.value)
                asked.append(one)  # noqa: B023
                answer = yield one

        assert bytes(run_steps(record(encode_steps(text, BorderRule(), encode)))).decode() == text
        assert any(isinstance(one, Aside) for one in asked) is text.startswith("x" * 100)


def test_a_fault_on_the_helper_thread_fails_one_session() -> None:
    model = stub_tokenizer()

    def broken(texts: Sequence[str]) -> list[list[int]]:
        raise BaseException("panicked")

    s = Scripted(model)
    model.encode_plain = broken
    begin_long(s, "x" * 100_000)
    s.drain()
    assert s.error("c1.r1").code == "internal"
