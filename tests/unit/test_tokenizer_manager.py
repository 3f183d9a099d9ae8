"""TokenizerManager with a scripted scheduler: what it asks for, what clients are told, and in which order (F55–F57)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from text_models import CHATML, byte_level, byte_level_chat, byte_level_json, metaspace, real, source
from text_rig import END, START, Scripted, add, b, begin, end, gen, init, turn

from sgnb.engine.tokenizer.tokenizer import ModelTokenizer, build_tokenizer, stub_tokenizer
from sgnb.messages import (
    BatchOutput,
    Decodes,
    Finish,
    Ids,
    Label,
    One,
    Part,
    ReqOutput,
    SchedulerReady,
    SessionExtend,
    SessionOpen,
    Text,
    Together,
)
from sgnb.sampling_params import SamplingParams

# ---------------------------------------------------------------- the plain path


def test_one_generation() -> None:
    s = Scripted()
    s.send(init(), add("Hello "), add("world"), gen(stop=["\n", "é"], max_new_tokens=0, stop_token_ids=[7]))
    opened, decode = s.asked
    assert opened == SessionOpen(sid="c1.s1", client=1)
    assert (decode.ids, decode.rid, decode.client) == (b("Hello world"), "c1.r1", 1)
    assert (decode.stops, decode.stop_token_ids, decode.eos_token_ids) == ([b"\n", "é".encode()], [7], [END])
    assert s.told == []
    s.manager.on_batch(BatchOutput(items=[ReqOutput(rid="c1.r1", ids=b("hi"), visible=1, started=True)]))
    s.answer("c1.r1", "!")
    assert [(c.text, c.started) for c in s.chunks()] == [("h", True), ("", False)]
    assert s.told[0][1].incarnation == "i1"
    assert s.manager.counts() == {"sessions": 1, "running": 0, "queued": 0}


def test_two_generations_in_one_block_run_one_after_the_other() -> None:
    s = Scripted()
    s.send(init(), add("a"), gen("c1.r1"), add("b", "c"), gen("c1.r2"), add("d"), gen("c1.r3"))
    assert [d.rid for d in s.decodes()] == ["c1.r1"]
    s.answer("c1.r1", "1")
    assert [(d.rid, d.ids) for d in s.decodes()] == [("c1.r1", b("a")), ("c1.r2", b("bc"))]
    s.answer("c1.r2", "2")
    s.answer("c1.r3", "3")
    assert s.ids() == b("abcd"), "old text and model output are never sent again"
    assert s.ends() == dict.fromkeys(("c1.r1", "c1.r2", "c1.r3"), "stop")


def test_sessions_do_not_wait_for_each_other() -> None:
    s = Scripted()
    s.send(init("c1.s1"), init("c1.s2"), gen("c1.r1", "c1.s1"), add("x", sid="c1.s2"), gen("c1.r2", "c1.s2"))
    assert [d.rid for d in s.decodes()] == ["c1.r1", "c1.r2"]


def test_generations_that_came_as_one_reach_the_scheduler_in_one_frame_each_with_its_own() -> None:
    s = Scripted()
    items = [
        One(rid="c1.r1", sid="c1.s1", seed=5, branch="0"),
        One(rid="c1.r2", sid="c1.s9"),  # no such session
        One(rid="c1.r3", sid="c1.s2", branch="1"),
    ]
    together = Decodes(items=items, params=SamplingParams(top_k=3), label=Label(name="x"), priority=2)
    s.send(init("c1.s1"), init("c1.s2"), add("a"), add("b", sid="c1.s2"), together)
    assert [type(message) for message in s.asked] == [SessionOpen, SessionOpen, Together]
    found = [(d.rid, d.ids, d.params.seed, d.params.top_k, d.label, d.priority) for d in s.asked[2].messages]
    assert found == [
        ("c1.r1", b("a"), 5, 3, Label(name="x", branch="0"), 2),
        ("c1.r3", b("b"), None, 3, Label(name="x", branch="1"), 2),
    ]
    assert s.ends() == {"c1.r2": "error"}
    s.answer("c1.r1", "1")
    s.answer("c1.r3", "2")
    assert s.ends() == {"c1.r1": "stop", "c1.r2": "error", "c1.r3": "stop"}


def test_two_generations_with_nothing_between() -> None:
    s = Scripted()
    s.send(init(), add("a"), gen("c1.r1"), gen("c1.r2"))
    s.answer("c1.r1", "")
    assert [d.ids for d in s.decodes()] == [b("a"), []]


def test_leftover_of_a_stop_becomes_literal_text_before_what_waits() -> None:
    s = Scripted()
    s.send(init(), add("a"), gen("c1.r1"), add("b"), gen("c1.r2"))
    s.answer("c1.r1", "x", leftover="<|im_end|>é".encode())
    assert s.decodes()[1].ids == b("<|im_end|>éb"), "characters of the model form no special token"


def test_leftover_and_text_after_it_are_one_run() -> None:
    model = byte_level()
    s = Scripted(model)
    s.send(init(), add("a"), gen("c1.r1"), add("quick"), gen("c1.r2"))
    s.answer("c1.r1", b"", leftover=b" ")
    assert (
        s.decodes()[1].ids
        == model.encode(" quick", first=False)
        != [*model.encode(" ", first=False), *model.encode("quick", first=False)]
    )


def test_generate_gets_ids_back_and_others_do_not() -> None:
    s = Scripted()
    s.send(init(), add(Ids(ids=[5, 6])), gen("c1.r1", label="@generate"), gen("c1.r2", label="x"))
    assert s.decodes()[0].ids == [5, 6]
    s.answer("c1.r1", "a", prompt_ids=[5, 6], output_ids=b("a"))
    s.answer("c1.r2", "a", prompt_ids=[5, 6], output_ids=b("a"))
    first, second = s.chunks()
    assert (first.prompt_ids, first.output_ids) == ([5, 6], b("a"))
    assert (second.prompt_ids, second.output_ids) == ([], [])


def test_model_info_and_vocabulary() -> None:
    s = Scripted()
    ready = SchedulerReady(
        vocab_size=300,
        context_length=64,
        max_total_tokens=99,
        dtype="float32",
        device="cpu",
        attention_backend="x",
    )
    info = s.manager.model_info(model="m", path="p", runner="stub", ready=ready)
    assert (info.vocab_size, info.eos_token_ids, info.template_exact) == (300, [END], True)
    assert info.roles["user"].prefix == "<|im_start|>user\n"
    s.send(init(), add(Ids(ids=[299])), gen(stop_token_ids=[299]))
    assert s.decodes()[0].ids == [299]
    assert s.manager.token_table().table[65] == b"A"
    found: list[Any] = []
    s.manager.tokenize("<|im_end|>", found.append, literal=False)
    s.manager.tokenize("<|im_end|>", found.append, literal=True)
    assert found == [[END], b("<|im_end|>")]


# ---------------------------------------------------------------- runs, roles, BOS


@pytest.mark.parametrize("load", [byte_level, metaspace, real])
def test_rule_7_ids_do_not_depend_on_how_the_text_was_written(load: Callable[[], ModelTokenizer]) -> None:
    text = "It's 12 o'clock,   we'll\n\n see <|im_start|>é日本"
    wanted: list[int] | None = None
    rng = random.Random(7)
    for number in range(12):
        s = Scripted(load())
        s.send(init())
        rest = text
        while rest:
            size = len(rest) if number == 0 else rng.randint(1, 4)
            s.send(add(rest[:size]))
            rest = rest[size:]
        s.send(gen())
        wanted = wanted or s.ids()
        assert s.ids() == wanted


def test_roles_and_the_default_system_turn() -> None:
    model = real()
    s = Scripted(model)
    s.send(
        init(),
        add(*turn("user", "Hi")),
        add(begin("assistant")),
        gen(),
        add(end("assistant")),
        add(*turn("user", "Bye")),
        gen("c1.r2"),
    )
    system = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    )
    head = system + "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert s.decodes()[0].ids == model.encode(head)
    s.manager.on_batch(BatchOutput(items=[ReqOutput(rid="c1.r1", finish=Finish(type="eos"))]))
    assert s.decodes()[1].ids == model.encode("<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n", first=False)


@pytest.mark.parametrize(
    ("before", "due"),
    [((), True), (("x",), False), (tuple(turn("system", "s")), False), ((Ids(ids=[1]),), False)],
)
def test_default_system_turn_only_when_an_empty_session_opens_with_another_role(
    before: tuple[Any, ...], due: bool
) -> None:
    s = Scripted(real())
    s.send(init(), add(*before, *turn("user", "q")), gen())
    assert ("named SmolLM" in real().decode(s.ids())) is due


@pytest.mark.parametrize("load", [stub_tokenizer, byte_level_chat, real])
def test_F55_special_tokens_cannot_be_forged_in_any_slot_of_a_turn(
    load: Callable[[], ModelTokenizer],
) -> None:
    model = load()
    honest = Scripted(model)
    honest.send(init(), add(*turn("user", "q")), gen())
    specials = {token.id for token in model.added}
    for token in model.added:
        for text in (token.content, f"a{token.content}", f"{token.content}b", f"\n{token.content}system\n"):
            s = Scripted(model)
            half = len(text) // 2
            s.send(init(), add(*turn("user", text[:half], Text(text=text[half:], literal=False))), gen())
            count = [sum(i in specials for i in run.ids()) for run in (s, honest)]
            assert count[0] == count[1], text
            assert text in model.decode(s.ids())
            literal = Scripted(model)
            literal.send(init(), add(Text(text=text, literal=True)), gen())
            assert not specials & set(literal.ids())


def test_outside_roles_text_is_parsed_and_a_split_special_still_counts() -> None:
    s = Scripted()
    s.send(init(), add("<|im_"), add("start|>user"), gen())
    assert s.ids() == [START, *b("user")]


def test_an_assistant_turn_also_ends_at_the_templates_own_token() -> None:
    model = build_tokenizer(source(byte_level_json(), bos_id=0, eos_ids=[0], chat_template=CHATML), "chat")
    s = Scripted(model)
    s.send(init(), add(begin("assistant")), gen("c1.r1"), add(end("assistant")), gen("c1.r2"))
    s.answer("c1.r1")
    assert [d.eos_token_ids for d in s.decodes()] == [[0, 2], [0]]


def bos_model(chat_template: str | None, *, add_bos: bool, spec: str | None = None) -> ModelTokenizer:
    return build_tokenizer(
        source(spec or byte_level_json(), bos_id=0, add_bos=add_bos, chat_template=chat_template), "bos"
    )


@pytest.mark.prompt
def test_B106_one_bos_when_the_template_brings_its_own() -> None:
    for add_bos, prefix in ((True, "{{ bos_token }}"), (False, "<s>")):
        s = Scripted(bos_model(prefix + CHATML, add_bos=add_bos))
        s.send(init(), add(*turn("user", "hi"), *turn("user", "again")), gen())
        assert s.ids().count(0) == 1 and s.ids()[0] == 0
    s = Scripted(bos_model(CHATML, add_bos=True))
    s.send(init(), add("<s>hi"), gen())
    assert s.ids().count(0) == 1, "a BOS the program wrote is not doubled"


@pytest.mark.prompt
def test_B107_one_bos_when_the_template_has_none() -> None:
    s = Scripted(bos_model(CHATML, add_bos=True))
    s.send(init(), add(*turn("user", "hi")), gen("c1.r1"), add("more"), gen("c1.r2"))
    s.answer("c1.r1")
    assert s.ids().count(0) == 1 and s.ids()[0] == 0
    s = Scripted(bos_model(CHATML, add_bos=False))
    s.send(init(), add(*turn("user", "hi")), gen())
    assert 0 not in s.ids()


def test_raw_ids_are_taken_as_they_are() -> None:
    s = Scripted(bos_model(None, add_bos=True))
    s.send(init(), add(Ids(ids=[5]), "a"), gen())
    assert s.ids() == [5, *byte_level().encode("a", first=False)]


def test_dummy_prefix_once_and_bos_before_it() -> None:
    model = metaspace()
    s = Scripted(model)
    s.send(init(), add("quick"), gen("c1.r1"), add("quick"), gen("c1.r2"))
    s.answer("c1.r1")
    first, second = (d.ids for d in s.decodes())
    assert first == [1, *model.encode("quick", first=True)]
    assert second == model.encode("quick", first=False) != first[1:]


@pytest.mark.prompt
def test_B108_an_empty_prompt_starts_from_the_models_start_token() -> None:
    s = Scripted(real())
    s.send(init(), add(""), gen(max_new_tokens=3))
    assert s.ids() == [1], "its BOS, though prompts get none otherwise"
    no_bos = build_tokenizer(source(byte_level_json(), eos_ids=[2]), "x")
    s = Scripted(no_bos)
    s.send(init(), gen())
    assert s.ids() == [2]
    nothing = build_tokenizer(source(byte_level_json(), eos_ids=[]), "x")
    s = Scripted(nothing)
    s.send(init(), gen(), init("c1.s2"), add("a", sid="c1.s2"), gen("c1.r2", "c1.s2"))
    assert s.error("c1.r1").code == "empty_prompt"
    assert [d.rid for d in s.decodes()] == ["c1.r2"], "the others go on"


@pytest.mark.prompt
def test_B109_one_empty_row_among_three() -> None:
    s = Scripted(build_tokenizer(source(byte_level_json(), eos_ids=[]), "x"))
    for number, text in enumerate(("a", "", "b")):
        sid = f"c1.s{number}"
        s.send(init(sid), add(text, sid=sid), gen(f"c1.r{number}", sid))
    assert [d.rid for d in s.decodes()] == ["c1.r0", "c1.r2"]
    assert s.ends() == {"c1.r1": "error"}


# ---------------------------------------------------------------- long text


@pytest.mark.parametrize("load", [stub_tokenizer, byte_level_chat, metaspace, real])
def test_long_text_is_cut_early_and_ids_stay_the_same(load: Callable[[], ModelTokenizer]) -> None:
    model = load()
    rng = random.Random(5)
    words = ["word", "it's", "12", "<|im_", "end|>", "日本", "\n\n", "  ", "é,", "def f():"]
    text = " ".join(rng.choices(words, k=6000))
    roles = "user" in model.template.roles
    parts: list[Part] = [begin("user")] if roles else []
    s, whole = Scripted(model), Scripted(model)
    s.send(init(), add(*parts))
    whole.send(init(), add(*parts))
    whole.manager._roster.sessions["c1.s1"].next_cut = 1 << 30
    for at in range(0, len(text), 700):
        for run in (s, whole):
            run.send(add(text[at : at + 700]))
    for run in (s, whole):
        run.send(add(*([end("user")] if roles else [])), gen())
    early = [m for m in s.asked if isinstance(m, SessionExtend)]
    assert len(early) >= 5
    assert len(s.decodes()[0].ids) < 4096
    assert not any(isinstance(m, SessionExtend) for m in whole.asked)
    assert s.ids() == whole.ids()


def test_text_without_a_border_waits_whole() -> None:
    s = Scripted()
    for _ in range(20):
        s.send(*([init()] if not s.asked else []), add("x" * 1000))
    s.send(gen())
    assert not any(isinstance(m, SessionExtend) for m in s.asked)
    assert len(s.ids()) == 20_000


def test_short_text_is_sent_with_its_generation_only() -> None:
    s = Scripted()
    s.send(init(), add("a b " * 1000))
    assert [type(m) for m in s.asked] == [SessionOpen]
