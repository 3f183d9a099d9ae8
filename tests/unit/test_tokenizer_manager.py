"""TokenizerManager with a scripted scheduler: what it asks for, what clients are told, and in which order (F55–F57)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from text_models import CHATML, byte_level, byte_level_chat, byte_level_json, metaspace, real, source
from text_rig import END, START, Scripted, add, b, begin, end, gen, init, turn

from sgnb.config import MAX_PROMPT_BYTES
from sgnb.engine.tokenizer.tokenizer import ModelTokenizer, build_tokenizer, stub_tokenizer
from sgnb.errors import LimitError
from sgnb.messages import (
    AbortReqs,
    BatchOutput,
    ClientGone,
    Decode,
    Decodes,
    ErrorInfo,
    Finish,
    Ids,
    Init,
    Label,
    One,
    Part,
    Release,
    ReqOutput,
    RequestMeta,
    SchedulerReady,
    Select,
    SessionClose,
    SessionDecode,
    SessionExtend,
    SessionOpen,
    SessionSelect,
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
