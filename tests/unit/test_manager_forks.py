"""TokenizerManager: forks, commits and selects with a scripted scheduler."""

from __future__ import annotations

import pytest
from text_models import byte_level, byte_level_chat, real
from text_rig import Scripted

from sgnb.config import MAX_FORK_DEPTH
from sgnb.messages import (
    BatchOutput,
    Choice,
    Commit,
    Decode,
    Extend,
    Finish,
    Fork,
    Init,
    Mark,
    OptionScore,
    Release,
    ReqOutput,
    Select,
    SessionClose,
    SessionCommit,
    SessionDecode,
    SessionExtend,
    SessionFork,
    SessionSelect,
    Text,
)
from sgnb.sampling_params import SamplingParams


def text(sid: str, value: str) -> Extend:
    return Extend(sid=sid, parts=[Text(text=value, literal=False)])


def gen(rid: str, sid: str) -> Decode:
    return Decode(rid=rid, sid=sid, params=SamplingParams())


def choose(rid: str, sid: str, *options: str, method: str = "token_length_normalized") -> Select:
    return Select(rid=rid, sid=sid, options=list(options), method=method)


def selects(rig: Scripted) -> list[SessionSelect]:
    return [message for message in rig.asked if isinstance(message, SessionSelect)]


def win(rig: Scripted, rid: str, index: int) -> None:
    options = next(m for m in selects(rig) if m.rid == rid).options
    scores = [OptionScore(ids=ids, logprobs=[-1.0] * len(ids), score=-1.0) for ids in options]
    out = ReqOutput(rid=rid, finish=Finish(type="stop"), choice=Choice(index=index, options=scores))
    rig.manager.on_batch(BatchOutput(items=[out]))


def prompts(rig: Scripted) -> dict[str, bytes]:
    """All bytes each session was given with its decodes and extends, forks followed."""
    whole: dict[str, bytes] = {}
    for message in rig.asked:
        if isinstance(message, SessionFork):
            whole |= {child: whole.get(message.sid, b"") for child in message.children}
        elif isinstance(message, SessionDecode | SessionExtend | SessionCommit):
            whole[message.sid] = whole.get(message.sid, b"") + bytes(message.ids)
    return whole


# ------------------------------------------------------------ fork


def test_fork_copies_pending_text_and_children_are_independent():
    rig = Scripted()
    rig.send(Init(sid="c1.s1"), text("c1.s1", "root"), Fork(sid="c1.s1", children=["c1.s2", "c1.s3"]))
    rig.send(text("c1.s2", " a"), text("c1.s3", " b"), text("c1.s1", " p"))
    for n in (1, 2, 3):
        rig.send(gen(f"c1.r{n}", f"c1.s{n}"))
    assert prompts(rig) == {"c1.s1": b"root p", "c1.s2": b"root a", "c1.s3": b"root b"}


def test_fork_settles_what_is_safe_once_for_all_children():
    rig = Scripted(byte_level())
    rig.send(Init(sid="c1.s1"), text("c1.s1", "The quick brown fox"), Fork(sid="c1.s1", children=["c1.s2"]))
    kinds = [type(message).__name__ for message in rig.asked]
    assert kinds == ["SessionOpen", "SessionExtend", "SessionFork"]
    rig.send(text("c1.s2", "es jump"), gen("c1.r1", "c1.s2"))
    whole = Scripted(byte_level())
    whole.send(Init(sid="c1.s1"), text("c1.s1", "The quick brown foxes jump"), gen("c1.r1", "c1.s1"))
    assert rig.ids() == whole.ids(), "a fork inside a word changes no token"


def test_fork_keeps_the_open_turn():
    rig = Scripted(byte_level_chat())
    rig.send(Init(sid="c1.s1"), Extend(sid="c1.s1", parts=[Mark(role="user", begin=True)]))
    rig.send(text("c1.s1", "hi"), Fork(sid="c1.s1", children=["c1.s2"]))
    rig.send(Extend(sid="c1.s2", parts=[Mark(role="user", begin=False)]), gen("c1.r1", "c1.s2"))
    assert not rig.failed() and len(rig.decodes()) == 1


def test_fork_waits_for_the_generation_in_flight():
    rig = Scripted()
    rig.send(Init(sid="c1.s1"), text("c1.s1", "q"), gen("c1.r1", "c1.s1"))
    rig.send(Fork(sid="c1.s1", children=["c1.s2"]), text("c1.s2", "after"), gen("c1.r2", "c1.s2"))
    assert len(rig.decodes()) == 1 and not any(isinstance(m, SessionFork) for m in rig.asked)
    rig.answer("c1.r1", "out", leftover=b"L")
    assert prompts(rig)["c1.s2"] == b"qLafter"


def test_fork_of_an_unborn_child_and_release_of_its_parents():
    rig = Scripted()
    rig.send(Init(sid="c1.s1"), text("c1.s1", "q"), gen("c1.r1", "c1.s1"))
    rig.send(Fork(sid="c1.s1", children=["c1.s2"]), Fork(sid="c1.s2", children=["c1.s3"]))
    rig.send(Release(sids=["c1.s1", "c1.s2"]), gen("c1.r3", "c1.s3"))
    assert not any(isinstance(m, SessionClose) for m in rig.asked), "a fork still needs them"
    rig.answer("c1.r1", "out")
    assert [d.sid for d in rig.decodes()] == ["c1.s1", "c1.s3"]
    closed = [sid for m in rig.asked if isinstance(m, SessionClose) for sid in m.sids]
    assert sorted(closed) == ["c1.s1", "c1.s2"]
    rig.answer("c1.r3", "x")
    rig.send(Release(sids=["c1.s3"]))
    assert rig.manager.counts() == {"sessions": 0, "running": 0, "queued": 0}


def test_release_of_an_unborn_child_ends_what_it_queued():
    rig = Scripted()
    rig.send(Init(sid="c1.s1"), text("c1.s1", "q"), gen("c1.r1", "c1.s1"))
    rig.send(Fork(sid="c1.s1", children=["c1.s2"]), gen("c1.r2", "c1.s2"), Release(sids=["c1.s2"]))
    assert rig.ends() == {"c1.r2": "abort"}
    rig.answer("c1.r1", "out")
    assert not any(isinstance(m, SessionFork) for m in rig.asked)


def test_fork_of_a_poisoned_session_gives_its_cause():
    rig = Scripted()
    rig.send(Init(sid="c1.s1"), Extend(sid="c1.s1", parts=[Mark(role="wizard", begin=True)]))
    rig.send(Fork(sid="c1.s1", children=["c1.s2"]), gen("c1.r1", "c1.s2"))
    assert "wizard" in rig.error("c1.r1").message


def test_fork_limits_and_foreign_children():
    rig = Scripted(max_sessions=3)
    rig.send(Init(sid="c1.s1"), Fork(sid="c1.s1", children=["c2.s1", "c1.s1", "c1.s2", "c1.s3", "c1.s4"]))
    assert {m.sid: m.error.code for m in rig.failed()} == {
        "c2.s1": "foreign_id",
        "c1.s1": "duplicate_session",
        "c1.s4": "limit",
    }
    deep = Scripted()
    deep.send(Init(sid="c1.s0"))
    for n in range(MAX_FORK_DEPTH + 1):
        deep.send(Fork(sid=f"c1.s{n}", children=[f"c1.s{n + 1}"]))
    assert [m.sid for m in deep.failed()] == [f"c1.s{MAX_FORK_DEPTH + 1}"]


def test_fork_of_an_unknown_session_names_it_for_each_child():
    rig = Scripted()
    rig.send(Fork(sid="c1.s9", children=["c1.s1"]), gen("c1.r1", "c1.s1"))
    assert rig.error("c1.r1").code == "unknown_session"


def test_a_thousand_children_in_one_message():
    rig = Scripted()
    children = [f"c1.s{n}" for n in range(2, 1002)]
    rig.send(Init(sid="c1.s1"), text("c1.s1", "x"), Fork(sid="c1.s1", children=children))
    (fork,) = (m for m in rig.asked if isinstance(m, SessionFork))
    assert fork.children == children


# ------------------------------------------------------------ commit


def test_commit_settles_up_to_the_last_safe_space():
    rig = Scripted(byte_level())
    rig.send(Init(sid="c1.s1"), text("c1.s1", "The quick brown"), Commit(sid="c1.s1"))
    (commit,) = (m for m in rig.asked if isinstance(m, SessionCommit))
    rig.send(text("c1.s1", "ie fox"), gen("c1.r1", "c1.s1"))
    whole = Scripted(byte_level())
    whole.send(Init(sid="c1.s1"), text("c1.s1", "The quick brownie fox"), gen("c1.r1", "c1.s1"))
    assert commit.ids + rig.decodes()[0].ids == whole.ids()
    assert commit.ids


# ------------------------------------------------------------ select


def test_select_shares_what_is_common_and_returns_the_option_as_written():
    rig = Scripted()
    rig.send(Init(sid="c1.s1"), text("c1.s1", "Mood:"), choose("c1.r1", "c1.s1", " good", " grey"))
    (asked,) = selects(rig)
    assert bytes(asked.ids) == b"Mood: g" and asked.options == [list(b"ood"), list(b"rey")]
    rig.send(text("c1.s1", "!"), gen("c1.r2", "c1.s1"))
    assert not rig.decodes(), "what follows waits"
    win(rig, "c1.r1", 1)
    (chunk,) = (c for c in rig.chunks() if c.rid == "c1.r1")
    assert (chunk.text, chunk.choice.index, chunk.finish.type) == (" grey", 1, "stop")
    assert bytes(rig.decodes()[0].ids) == b"!", (
        "the winner is part of the session, and the text goes on after it"
    )


@pytest.mark.parametrize(
    "options", [("Ann", "Bob"), (" Ann", " Bob"), ("", "x"), ("é", "e\u0301"), ("same", "same")]
)
def test_B076_F52_any_options_come_back_exactly(options):
    for index, option in enumerate(options):
        rig = Scripted(byte_level())
        rig.send(Init(sid="c1.s1"), text("c1.s1", "Hello,"), choose("c1.r1", "c1.s1", *options))
        win(rig, "c1.r1", index)
        assert [c.text for c in rig.chunks()] == [option]


def test_B083_options_are_tokenised_with_the_text_before_them():
    tokenizer = byte_level()
    rig = Scripted(tokenizer)
    rig.send(Init(sid="c1.s1"), text("c1.s1", "for i in ran"), choose("c1.r1", "c1.s1", "ge(10)", "dom"))
    (asked,) = selects(rig)
    settled = [i for m in rig.asked if isinstance(m, SessionExtend) for i in m.ids]
    bos = [] if tokenizer.bos is None else [tokenizer.bos]
    for option, ids in zip(("ge(10)", "dom"), asked.options, strict=True):
        want = bos + tokenizer.encode("for i in ran" + option, parse=True)
        assert settled + asked.ids + ids == want


def test_B079_a_long_common_prefix_is_sent_once():
    stem = "x" * 3000
    rig = Scripted()
    rig.send(
        Init(sid="c1.s1"),
        text("c1.s1", "p:"),
        choose("c1.r1", "c1.s1", stem + "0123456789", stem + "9876543210"),
    )
    (asked,) = selects(rig)
    assert len(asked.ids) == 3002 and [len(option) for option in asked.options] == [10, 10]


def test_select_without_anything_before_it_starts_as_a_prompt_does():
    rig = Scripted()
    rig.send(Init(sid="c1.s1"), choose("c1.r1", "c1.s1", "yes", "no"))
    (asked,) = selects(rig)
    assert asked.ids == rig.manager.tokenizer.start_ids and asked.options == [list(b"yes"), list(b"no")]


def test_an_aborted_select_keeps_its_text_pending():
    rig = Scripted()
    rig.send(Init(sid="c1.s1"), text("c1.s1", "Mood:"), choose("c1.r1", "c1.s1", " good", " bad"))
    rig.answer("c1.r1", finish="abort")
    rig.send(text("c1.s1", " none"), gen("c1.r2", "c1.s1"))
    settled = [i for m in rig.asked if isinstance(m, SessionExtend) for i in m.ids]
    assert bytes(settled + rig.decodes()[0].ids) == b"Mood: none"


@pytest.mark.parametrize(
    "bad, code",
    [
        (choose("c1.r1", "c1.s1"), "options"),
        (choose("c1.r1", "c1.s1", *["x"] * 1025), "limit"),
        (choose("c1.r1", "c1.s1", "a", method="best"), "method"),
        (choose("c1.r1", "c1.s1", "a", "\ud800"), "bad_text"),
        (choose("c2.r1", "c1.s1", "a"), "foreign_id"),
    ],
)
def test_bad_selects_are_refused(bad, code):
    rig = Scripted()
    rig.send(Init(sid="c1.s1"), text("c1.s1", "p"), bad)
    assert rig.error(bad.rid).code == code
    assert not selects(rig)


def test_a_queued_select_is_dropped_by_an_abort():
    rig = Scripted()
    rig.send(Init(sid="c1.s1"), text("c1.s1", "p"), gen("c1.r1", "c1.s1"), choose("c1.r2", "c1.s1", "a"))
    rig.manager.abort(1, rids=["c1.r2"])
    assert rig.ends() == {"c1.r2": "abort"}


def test_real_vocabulary_retokenises_to_each_option():
    tokenizer = real()
    rig = Scripted(tokenizer)
    options = (" 10", " 1", "", " Floccinaucinihilipilification", "é🎈")
    rig.send(Init(sid="c1.s1"), text("c1.s1", "Score:"), choose("c1.r1", "c1.s1", *options))
    (asked,) = selects(rig)
    for option, ids in zip(options, asked.options, strict=True):
        data = b"".join(tokenizer.table[i] for i in asked.ids + ids)
        assert data.endswith(("Score:" + option).encode())
