"""``join("concate_and_append", method="kv")`` in programs, and its parts and borders in the tokenizer process."""

from __future__ import annotations

import pytest
from test_manager_forks import gen, text
from text_models import byte_level, byte_level_chat
from text_rig import Scripted
from whole_engine import WholeEngine

import sgnb as sgl
from sgnb.backends.mock import MockBackend
from sgnb.errors import ProgramError, RequestError
from sgnb.messages import (
    Extend,
    Fork,
    Init,
    Join,
    JoinPart,
    Mark,
    Release,
    SessionClose,
    SessionExtend,
    SessionFork,
    SessionJoin,
)

TOPIC = "Tips for somebody who sleeps badly and drinks too much coffee, in short words: "


@sgl.function
def tips(s, method, arms=3, after=True):
    s += TOPIC
    branches = s.fork(arms)
    for number, branch in enumerate(branches):
        branch += f"{number}. " + sgl.gen("tip", max_tokens=24, ignore_eos=True) + "\n"
    branches.join("concate_and_append", method=method)
    if after:
        s += "So: " + sgl.gen("so", max_tokens=8, ignore_eos=True)


@pytest.fixture
def engine():
    found = WholeEngine(max_total_tokens=4096)
    yield found
    found.shutdown()
    assert found.fault is None


def tokens(state, name: str) -> int:
    """Of all before a generation: a character each, but for the end of a turn."""
    text = state.text()[: -len(state[name])]
    return len(text.replace("<|im_end|>", "E").replace("<|im_start|>", "S").replace("<|endoftext|>", "T"))


def test_text_and_messages_are_those_of_a_join_as_text(engine):
    kv, plain = (tips.run(method, after=False, backend=engine, temperature=0.0) for method in ("kv", "text"))
    assert kv.text() == plain.text()
    assert (kv.joined_kv, plain.joined_kv) == ("approximate", "")
    assert kv.messages() == plain.messages()


def test_branches_are_not_computed_again(engine):
    state = tips.run("kv", backend=engine, temperature=0.0)
    meta = state.get_meta_info("so")
    assert meta["joined_kv"] == state.joined_kv == "approximate"
    # each branch: its number and dot, 24 tokens drawn and the line break
    assert meta["joined_tokens"] == 3 * (3 + 24 + 1)
    assert meta["prompt_tokens"] == tokens(state, "so")
    assert meta["cached_tokens"] + meta["joined_tokens"] + len("So: ") == meta["prompt_tokens"]
    plain = tips.run("text", backend=engine, temperature=0.0)
    assert "joined_kv" not in plain.get_meta_info("so")


def test_a_state_whose_joined_kv_is_gone_becomes_exact_and_says_so(engine):
    state = tips.run("kv", backend=engine, temperature=0.0)
    state.sync()
    engine.settle()
    engine.flush()
    engine.settle()
    state += "More: " + sgl.gen("more", max_tokens=6, ignore_eos=True)
    meta = state.get_meta_info("more")
    assert meta["joined_kv"] == state.joined_kv == "exact"
    assert any("exactly" in note for note in meta["notes"])

    @sgl.function
    def again(s):
        s += state.text()[: -len(state["more"])] + sgl.gen("more", max_tokens=6, ignore_eos=True)

    assert again.run(backend=engine, temperature=0.0)["more"] == state["more"], "computed from the same ids"


def test_forks_and_marks_of_a_joined_state(engine):
    state = tips.run("kv", backend=engine, temperature=0.0, after=False)
    mark = state.mark()
    arms = state.fork(2)
    for number, arm in enumerate(arms):
        arm += f"{number}:" + sgl.gen("x", max_tokens=5, ignore_eos=True)
    assert {arm.joined_kv for arm in arms} == {"approximate"}
    arms.join("concate_and_append", method="kv")
    state += "End " + sgl.gen("end", max_tokens=3, ignore_eos=True)
    assert state.get_meta_info("end")["joined_tokens"] > 0
    state.rewind(mark)
    state += "New " + sgl.gen("new", max_tokens=3, ignore_eos=True)
    assert state.get_meta_info("new")["joined_kv"] == "approximate"


@pytest.mark.parametrize("page", [2, 16])
def test_with_pages(page):
    engine = WholeEngine(max_total_tokens=4096, page_size=page)
    state = tips.run("kv", backend=engine, temperature=0.0)
    meta = state.get_meta_info("so")
    assert meta["joined_kv"] == "approximate"
    assert meta["joined_tokens"] >= 3 * (28 - 2 * page)
    engine.shutdown()


def test_a_common_beginning_that_a_pass_hoists_is_each_branch_s_own(engine):
    common = "Every one of these branches begins with this long sentence, which a pass appends once. "

    @sgl.function
    def prog(s, method):
        s += TOPIC
        branches = s.fork(2)
        for number, branch in enumerate(branches):
            branch += common + f"{number}: " + sgl.gen("x", max_tokens=9, ignore_eos=True)
        branches.join("concate_and_append", method=method)
        s += "So: " + sgl.gen("so", max_tokens=4, ignore_eos=True)

    state = prog.run("kv", backend=engine, temperature=0.0)
    assert state.get_meta_info("so")["prompt_tokens"] == tokens(state, "so")
    assert state.get_meta_info("so")["joined_tokens"] >= 2 * (len(common) + 9)


def test_generations_that_a_pass_shares(engine):
    """Branches that begin alike generate once; each is joined with what it has."""

    @sgl.function
    def prog(s):
        s += TOPIC
        branches = s.fork(3)
        branches += "Alike: " + sgl.gen("x", max_tokens=9, ignore_eos=True)
        branches.join("concate_and_append", method="kv")
        s += "So: " + sgl.gen("so", max_tokens=4, ignore_eos=True)

    state = prog.run(backend=engine, temperature=0.0)
    assert state.text().count("Alike: ") == 3
    assert state.get_meta_info("so")["prompt_tokens"] == tokens(state, "so")


def test_a_branch_in_its_parent_s_place_is_refused(engine):
    """The parent generated what a branch did, so a pass forked the branch behind it: where it began is not known."""

    @sgl.function
    def prog(s):
        s += TOPIC
        branches = s.fork(1)
        s += "Alike: " + sgl.gen("x", max_tokens=9, ignore_eos=True)
        branches += "Alike: " + sgl.gen("x", max_tokens=9, ignore_eos=True)
        branches.join("concate_and_append", method="kv")
        s += sgl.gen("so", max_tokens=4)

    state = prog.run(backend=engine, temperature=0.0)
    with pytest.raises(RequestError, match="own is not known"):
        state["so"]


def test_refused_where_there_is_no_kv():
    with pytest.raises(ProgramError, match="has no KV of its own"):
        tips.run("kv", backend=MockBackend()).sync()


def test_refused_on_a_runner_that_cannot(engine):
    engine.runner.rotates = False
    with pytest.raises(ProgramError, match="The runner cannot"):
        tips.run("kv", backend=engine).sync()


def test_refused_without_a_common_text_and_in_other_modes(engine):
    @sgl.function
    def empty(s):
        b = s.fork(2)
        b += "x" + sgl.gen("x", max_tokens=2)
        b.join("concate_and_append", method="kv")

    with pytest.raises(ProgramError, match="was empty"):
        empty.run(backend=engine).sync()

    @sgl.function
    def gather(s):
        s += "x"
        s.fork(2).join(method="kv")

    with pytest.raises(ProgramError, match="no meaning with mode='gather_variable'"):
        gather.run(backend=engine).sync()


# ------------------------------------------------------------ the tokenizer process


def joins(rig: Scripted) -> list[SessionJoin]:
    return [message for message in rig.asked if isinstance(message, SessionJoin)]


def forked(tokenizer=None, prompt: str = "Some tips", arms: int = 2) -> Scripted:
    rig = Scripted(tokenizer)
    sids = [f"c1.s{n + 2}" for n in range(arms)]
    rig.send(Init(sid="c1.s1"), text("c1.s1", prompt), Fork(sid="c1.s1", children=sids))
    return rig


def test_the_parent_s_end_is_left_out_of_each_branch():
    rig = forked()
    assert not any(isinstance(m, SessionExtend) and m.sid != "c1.s1" for m in rig.asked)
    for n in (2, 3):
        rig.send(text(f"c1.s{n}", f": {n}"), gen(f"c1.r{n}", f"c1.s{n}"))
        rig.answer(f"c1.r{n}", "out")
        rig.send(text(f"c1.s{n}", ";"))
    rig.send(Join(sid="c1.s1", branches=["c1.s2", "c1.s3"]))
    settled = b"".join(bytes(m.ids) for m in rig.asked if isinstance(m, SessionExtend) and m.sid == "c1.s1")
    tail = b"Some tips"[len(settled) :]
    (join,) = joins(rig)
    assert bytes(join.ids) == tail
    assert join.parts == [JoinPart(sid=f"c1.s{n}", skip=len(tail)) for n in (2, 3)]
    rests = [(m.sid, bytes(m.ids)) for m in rig.asked if isinstance(m, SessionExtend) and m.sid != "c1.s1"]
    assert rests == [("c1.s2", b";"), ("c1.s3", b";")]


def test_a_token_across_the_border_is_tokenised_anew():
    tokenizer = byte_level()
    rig = forked(tokenizer, "The quick brown fox")
    tail = len(tokenizer.encode(" fox"))
    for n, own in ((2, "es jump"), (3, " jumps")):
        rig.send(text(f"c1.s{n}", own), gen(f"c1.r{n}", f"c1.s{n}"))
        rig.answer(f"c1.r{n}", b"")
    rig.send(Join(sid="c1.s1", branches=["c1.s2", "c1.s3"]))
    (join,) = joins(rig)
    first, second = join.parts
    decoded = [rig.manager.detokenize(ids)[0] for ids in (join.ids, first.ids, second.ids)]
    whole = {m.sid: m.ids for m in rig.decodes()}
    for part, own in ((first, "es jump"), (second, " jumps")):
        if part.ids:
            assert rig.manager.detokenize(part.ids)[0] == own
            assert part.skip == len(whole[part.sid])
        else:
            assert part.skip == tail
            assert rig.manager.detokenize(whole[part.sid][part.skip :])[0] == own
    assert decoded[0].strip() == "fox"
    assert [bool(first.ids), bool(second.ids)] != [False, False] or tail


def test_a_join_waits_for_parent_and_branches_and_keeps_released_ones():
    rig = forked()
    rig.send(gen("c1.r1", "c1.s1"), text("c1.s2", " a"), gen("c1.r2", "c1.s2"), text("c1.s3", " b"))
    rig.send(Join(sid="c1.s1", branches=["c1.s2", "c1.s3"]), Release(sids=["c1.s2", "c1.s3"]))
    rig.send(gen("c1.r9", "c1.s1"))
    assert not joins(rig) and not any(isinstance(m, SessionClose) for m in rig.asked)
    rig.answer("c1.r1", "p")
    assert not joins(rig), "a branch still generates"
    rig.answer("c1.r2", "x")
    assert len(joins(rig)) == 1
    kinds = [type(m).__name__ for m in rig.asked if not isinstance(m, SessionExtend)]
    assert kinds[-4:] == ["SessionJoin", "SessionDecode", "SessionClose", "SessionClose"] or kinds[-4:] == [
        "SessionJoin",
        "SessionClose",
        "SessionClose",
        "SessionDecode",
    ]
    assert [d.rid for d in rig.decodes()][-1] == "c1.r9"
    assert not rig.failed()


def test_a_parent_that_is_closed_lets_its_branches_go():
    rig = forked()
    rig.send(gen("c1.r1", "c1.s1"), Join(sid="c1.s1", branches=["c1.s2", "c1.s3"]))
    rig.send(Release(sids=["c1.s2", "c1.s3"]))
    assert not any(isinstance(m, SessionClose) for m in rig.asked)
    rig.send(Release(sids=["c1.s1"]))
    closed = [sid for m in rig.asked if isinstance(m, SessionClose) for sid in m.sids]
    assert sorted(closed) == ["c1.s1", "c1.s2", "c1.s3"]
    assert rig.manager.counts() == {"sessions": 0, "running": 1, "queued": 0}


def test_joins_of_strangers_and_twice_are_refused():
    rig = forked()
    rig.send(Join(sid="c1.s1", branches=["c1.s2", "c1.s77"]))
    assert "c1.s77" in rig.failed()[0].error.message
    rig = forked()
    rig.send(gen("c1.r1", "c1.s1"), Join(sid="c1.s1", branches=["c1.s2"]))
    rig.send(Join(sid="c1.s1", branches=["c1.s2"]))
    assert "joined twice" in rig.failed()[0].error.message


def test_turns_that_a_branch_leaves_open():
    rig = Scripted(byte_level_chat())
    rig.send(Init(sid="c1.s1"), text("c1.s1", "root "), Fork(sid="c1.s1", children=["c1.s2", "c1.s3"]))
    for sid in ("c1.s2", "c1.s3"):
        rig.send(Extend(sid=sid, parts=[Mark(role="user", begin=True), *text(sid, "hi").parts]))
    rig.send(Join(sid="c1.s1", branches=["c1.s2", "c1.s3"]))
    assert rig.failed()[0].error.code == "role"
    assert any(isinstance(m, SessionFork) for m in rig.asked)
