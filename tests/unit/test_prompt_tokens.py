"""What of a prompt was reused, text by text: told by the tokenizer process, found in the rows, kept by the scheduler."""

from __future__ import annotations

import pytest
from scheduler_rig import Rig
from text_models import byte_level_chat
from text_rig import Scripted, add, gen, init, turn

from sgnb.engine.tokenizer import prompt_text
from sgnb.messages import BatchOutput, Finish, Fork, PromptText, ReqOutput, RequestMeta
from sgnb.runtime import events as ev
from sgnb.widgets.fold import ProgramFold
from sgnb.widgets.fold_messages import FoldMessages
from sgnb.widgets.prompt_tokens import ends_in_units, find_texts
from sgnb.widgets.static import html_of, text_of
from sgnb.widgets.tables import LEFT


def meta(prompt: int, cached: int = 0, kept: int = 0) -> RequestMeta:
    times = dict.fromkeys(("queue_time", "prefill_time", "decode_time", "e2e_latency"), 0.0)
    return RequestMeta(
        prompt_tokens=prompt, cached_tokens=cached, completion_tokens=kept, kept_tokens=kept, **times
    )


def told(rig: Scripted, rid: str) -> PromptText | None:
    (prompt,) = (chunk.prompt for chunk in rig.chunks() if chunk.rid == rid and chunk.finish)
    return prompt


# ---------------------------------------------------------------- the tokenizer process


def test_the_end_of_a_prompt_is_told_with_its_last_chunk() -> None:
    s = Scripted()
    s.send(init(), add("abc "), add("dé"), gen("c1.r1"), add("more"), gen("c1.r2"))
    s.answer("c1.r1", "xy", meta=meta(7, kept=2))
    first = told(s, "c1.r1")
    assert first == PromptText(first=0, lengths=[1] * 7, raw="abc dé".encode())
    s.answer("c1.r2", "", meta=meta(13))
    assert told(s, "c1.r2") == PromptText(first=9, lengths=[1] * 4, raw=b"more"), "only what is new"


def test_the_end_of_a_prompt_is_told_once_with_the_first_chunk() -> None:
    s = Scripted()
    s.send(init(), add("abc"), gen("c1.r1"))
    begun = ReqOutput(rid="c1.r1", ids=[120], visible=1, started=True, prompt_tokens=3, cached_tokens=1)
    s.manager.on_batch(BatchOutput(items=[begun]))
    s.answer("c1.r1", "y", meta=meta(3, kept=2))
    first, last = (chunk for chunk in s.chunks() if chunk.rid == "c1.r1")
    assert first.prompt == PromptText(first=0, lengths=[1] * 3, raw=b"abc") and last.prompt is None


def test_what_stood_before_a_fork_is_told_to_each_branch() -> None:
    s = Scripted()
    s.send(init(), add("all of it "), Fork(sid="c1.s1", children=["c1.s2", "c1.s3"]))
    for n in (2, 3):
        s.send(add(f"arm {n}", sid=f"c1.s{n}"), gen(f"c1.r{n}", f"c1.s{n}"))
        s.answer(f"c1.r{n}", "", meta=meta(15))
        prompt = told(s, f"c1.r{n}")
        assert prompt is not None
        assert (prompt.first, prompt.raw) == (0, b"all of it arm %d" % n)


def test_long_text_that_was_sent_early_is_told_whole_and_the_longest_not_at_all() -> None:
    s = Scripted()
    long = "word " * 4000
    s.send(init(), add(long), add("end"), gen("c1.r1"))
    assert len([m for m in s.asked if type(m).__name__ == "SessionExtend"]) > 0, "it was sent in pieces"
    s.answer("c1.r1", "", meta=meta(len(long) + 3))
    prompt = told(s, "c1.r1")
    assert prompt is not None and prompt.raw.decode() == long + "end"
    s.send(add("x" * (prompt_text.MAX_TOLD + 1)), gen("c1.r2"))
    s.answer("c1.r2", "", meta=meta(len(long) + 4 + prompt_text.MAX_TOLD))
    assert told(s, "c1.r2") is None
    s.send(add("again"), gen("c1.r3"))
    s.answer("c1.r3", "", meta=meta(len(long) + 9 + prompt_text.MAX_TOLD))
    assert told(s, "c1.r3") is not None, "the next one is told again"


def test_all_prompts_of_a_frame_together_are_bounded(monkeypatch) -> None:
    monkeypatch.setattr("sgnb.engine.tokenizer.replies.MAX_TOLD_BYTES", 5)
    s = Scripted()
    s.send(
        init("c1.s1"),
        init("c1.s2"),
        add("abcdef"),
        add("x", sid="c1.s2"),
        gen("c1.r1"),
        gen("c1.r2", "c1.s2"),
    )
    ends = [ReqOutput(rid=f"c1.r{n}", finish=Finish(type="stop"), meta=meta(6)) for n in (1, 2)]
    s.manager.on_batch(BatchOutput(items=ends))
    assert told(s, "c1.r1") is not None
    assert told(s, "c1.r2") is None


# ---------------------------------------------------------------- the rows


def test_texts_are_found_between_the_templates_and_counted() -> None:
    prompt = PromptText(first=10, lengths=[3, 2, 4, 3, 6, 1], raw=b"<u>Hi you<s> It is:")
    hi, it = find_texts(prompt, "r", cached=13, texts=[("Hi you", 0), (" It is:", 0)])
    assert hi is not None and it is not None
    assert (hi.first, hi.count, hi.cached, hi.units, hi.ends) == (11, 2, 2, 6, (2, 6))
    assert (it.first, it.count, it.cached, it.units) == (14, 2, 0, 0)
    assert find_texts(prompt, "r", 13, [("not there", 0), (" It is:", 0)])[0] is None


def test_what_is_reused_ends_at_a_whole_character_in_utf16_units() -> None:
    raw = "a\N{GRINNING FACE}é".encode()
    prompt = PromptText(first=0, lengths=[1, 2, 2, 1, 1], raw=raw)
    for cached, units in ((0, 0), (1, 1), (2, 1), (3, 3), (4, 3), (5, 4)):
        (text,) = find_texts(prompt, "r", cached, [(raw.decode(), 0)])
        assert text is not None and text.units == units
    assert ends_in_units(raw, [1, 3, 5, 6, 7]) == [1, 1, 3, 3, 4]


def log_of(*, begun: bool = False) -> ev.EventLog:
    log = ev.EventLog()
    log.append(ev.RunStarted("[7]", "7", "stub"))
    log.append(ev.StateOpened(1, ""))
    log.append(ev.RoleBegan(1, "system"))
    log.append(ev.TextAppended(1, "Be brief. ", 1))
    log.append(ev.RoleEnded(1, "system"))
    for arm in (2, 3):
        log.append(ev.StateOpened(arm, str(arm - 2), 1, 1))
    for arm, cached in ((3, 10), (2, 0)):
        log.append(ev.TextAppended(arm, f"Arm {arm}: ", 3))
        log.append(ev.GenQueued(arm, f"r{arm}", "x", 3, 9))
        raw = f"Be brief. Arm {arm}: ".encode()
        done = {"prompt_tokens": 17, "cached_tokens": cached, "completion_tokens": 0, "finish": "eos"}
        prompt = PromptText(first=0, lengths=[1] * 17, raw=raw)
        if begun:
            log.append(ev.GenStarted(f"r{arm}", 17, cached, prompt))
        else:
            log.append(ev.GenDone(f"r{arm}", done, prompt))
    return log


@pytest.mark.parametrize("begun", [False, True], ids=["ended", "begun"])
def test_a_row_before_a_fork_says_what_was_computed_of_it_once(begun: bool) -> None:
    fold = ProgramFold(times=False)
    fold.feed(log_of(begun=begun).since(0))
    page = FoldMessages(fold)
    rows = page.snapshot()["rows"]
    assert rows[0]["prompt"] == {
        "cached": 0,
        "prompt": 10,
        "rid": "r2",
        "reuse": "0 of 10 tokens reused",
        "computed": "10 computed",
        "shared": True,
    }
    assert rows[0]["segs"][0]["reused"] == 0
    arm = next(row for row in rows if row["lane"] == 2)
    assert "prompt" not in arm, "a row with a generation has its line"
    assert arm["segs"][0]["reused"] == 0
    assert "[0 of 10 tokens reused]" in text_of(fold)
    assert "<td>0 of 10 tokens reused</td>" in html_of(fold).replace(LEFT, "")
    token = page.prompt_token(0, 0, 3)
    assert token == {"rid": "r2", "position": 3, "reused": False, "count": 10, "more": []}
    assert page.prompt_token(0, 0, 10) is None
    assert page.prompt_token(5, 0, 0) is None
    assert page.text_ends(0, 0) == list(range(1, 11))
    assert page.text_ends(-1, 0) == []


def test_deltas_carry_it_as_snapshots_do() -> None:
    log = log_of().since(0)
    fold = ProgramFold(times=False)
    fold.feed(log[:-1])
    page = FoldMessages(fold)
    page.snapshot()
    fold.feed(log[-1:])
    rows = dict(page.delta()["rows"])
    assert rows[0]["prompt"]["computed"] == "10 computed"


def test_with_a_chat_template_the_turns_texts_are_found() -> None:
    tokenizer = byte_level_chat()
    s = Scripted(tokenizer)
    s.send(init(), add(*turn("user", "What is it?")), add(*turn("assistant", "It is")[:-1]), gen("c1.r1"))
    (decode,) = s.decodes()
    s.answer("c1.r1", "", meta=meta(len(decode.ids), cached=4))
    prompt = told(s, "c1.r1")
    assert prompt is not None
    user, assistant = find_texts(prompt, "c1.r1", 4, [("What is it?", 0), ("It is", 0)])
    assert user is not None and assistant is not None
    assert user.count == len(tokenizer.encode("What is it?", parse=False))
    assert 0 <= user.cached <= 4 and assistant.cached == 0
    assert assistant.first > user.first + user.count, "the template stands between"


# ---------------------------------------------------------------- the scheduler


def test_the_scheduler_says_where_a_token_is() -> None:
    rig = Rig()
    said = rig.run(1, b"a prompt of some length", max_new_tokens=4, cell="7")
    place = rig.ask("place", rid="c1.r1", position=2)
    slot, node = place.data["slot"], place.data["node"]
    tree = {n.id: n for n in rig.scheduler.cache.nodes()}
    assert (place.data["id"], int(tree[node].value[2])) == (ord("p"), slot)
    rig.run(2, b"a prompt that parts", max_new_tokens=1, cell="8")  # cuts the node
    by = [rig.ask("place", rid="c1.r2", position=at).data["by"] for at in (2, 14)]
    assert (place.data["by"], by) == ("7", ["7", "8"]), "the cell that computed it"
    parted = rig.ask("prompt", rid="c1.r2").data
    assert (parted["cached_node"], parted["by"]) == (node, "7"), "the cell of the path it parted from"
    rig.run(3, b"a prompt that others asked", max_new_tokens=1, cell="3", client=2)
    assert "by" not in rig.ask("prompt", rid="c2.r3", client=2).data, "another notebook's cells are its own"
    again = rig.ask("place", rid="c1.r1", position=20)
    assert again.data["id"] == ord("g") and again.data["node"] == node, "the lower part keeps its number"
    owner = {n.id: n for n in rig.scheduler.cache.nodes()}[again.data["node"]]
    assert again.data["slot"] in owner.value.tolist()
    out = rig.ask("place", rid="c1.r1", position=24, more=said.ids[:2])
    assert out.data["id"] == said.ids[1] and out.data["slot"] >= 0
    assert rig.ask("place", rid="c1.r1", position=99).error is not None
    assert rig.ask("place", rid="c1.r1", position=1, client=2).error is not None, "another client's"
    rig.ask("flush_cache")
    assert rig.ask("place", rid="c1.r1", position=2).data["slot"] == -1


def test_whole_prompts_are_let_go_when_they_are_too_many(monkeypatch) -> None:
    monkeypatch.setattr("sgnb.engine.scheduler.match_log.KEPT_IDS", 40)
    rig = Rig()
    for n in (1, 2, 3):
        rig.run(n, b"%d and fifteen more" % n, max_new_tokens=1)
    assert rig.ask("place", rid="c1.r1", position=0).error is not None
    assert rig.ask("prompt", rid="c1.r1").error is None, "the parting is kept"
    assert rig.ask("place", rid="c1.r3", position=0).data["id"] == ord("3")
