"""Templates that write earlier turns anew: each prompt is the plain rendering of the conversation, visibly cut."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from functools import cache
from typing import Any

import jinja2
import pytest
import tokenizers
from text_models import byte_level_json, source
from text_rig import Scripted, add, begin, end, gen, init, turn

from sgnb.engine.tokenizer import template_renderer
from sgnb.engine.tokenizer.chat_template import TemplateFault
from sgnb.engine.tokenizer.conversation import Conversation, Marks
from sgnb.engine.tokenizer.steps import run_steps
from sgnb.engine.tokenizer.template_renderer import TemplateRenderer
from sgnb.engine.tokenizer.tokenizer import ModelTokenizer, build_tokenizer
from sgnb.messages import (
    BatchOutput,
    Choice,
    Finish,
    Fork,
    Ids,
    OptionScore,
    Part,
    ReqOutput,
    RequestMeta,
    Select,
    SessionSelect,
    Text,
)

OPEN = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
CLOSE = (
    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
PLAIN = OPEN + "{{ m.content }}" + CLOSE
TRIM_EARLIER = OPEN + "{% if loop.last %}{{ m.content }}{% else %}{{ m.content | trim }}{% endif %}" + CLOSE
DROP_THOUGHTS = (
    OPEN + "{% if m.role == 'assistant' and '</think>' in m.content %}"
    "{{ m.content.split('</think>')[-1].lstrip('\n') }}{% else %}{{ m.content }}{% endif %}" + CLOSE
)
LATE_SYSTEM = (
    "{% for m in messages %}{% if m.role != 'system' %}<|im_start|>{{ m.role }}{{ '\n' }}"
    "{% if loop.last and m.role == 'user' %}[{{ messages|length }} turns, {{ strftime_now('%Y') }}] "
    "{% for s in messages if s.role == 'system' %}{{ s.content }}{{ '\n' }}{% endfor %}{% endif %}"
    "{{ m.content }}<|im_end|>{{ '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{{ '\n' }}{% endif %}"
)
ALL = {"trim": TRIM_EARLIER, "thoughts": DROP_THOUGHTS, "late": LATE_SYSTEM}


@cache
def vocabulary() -> str:
    library = tokenizers.Tokenizer.from_str(byte_level_json())
    library.add_tokens([tokenizers.AddedToken("</think>", normalized=False)])
    return library.to_str()


@cache
def model(template: str, add_bos: bool = False) -> ModelTokenizer:
    return build_tokenizer(source(vocabulary(), bos_id=0, add_bos=add_bos, chat_template=template), "odd")


def plain(template: str, messages: list[dict[str, str]], prompt: bool) -> str:
    """What anybody's rendering gives: the oracle."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["strftime_now"] = time.strftime
    return environment.from_string(template).render(
        messages=messages, add_generation_prompt=prompt, bos_token="<s>"
    )


class Chat(Scripted):
    """Keeps the session's ids as the scheduler does."""

    def __init__(self, template: str, **more: Any) -> None:
        super().__init__(model(template, **more))
        self.session: list[int] = []
        self.cuts: list[int] = []
        self.count = 0
        self.send(init())

    def prompt(self, *parts: str | Part) -> list[int]:
        """Send parts and a generation; the prompt's ids."""
        self.count += 1
        self.send(add(*parts), gen(f"c1.r{self.count}"))
        asked = self.decodes()[-1]
        assert asked.rid == f"c1.r{self.count}", self.chunks()
        keep = len(self.session) if asked.keep is None else asked.keep
        assert 0 <= keep <= len(self.session)
        self.cuts.append(len(self.session) - keep)
        self.session = [*self.session[:keep], *asked.ids]
        return self.session

    def say(self, text: str = "", *, ids: list[int] | None = None, drop: int = 0, leftover: str = "") -> None:
        """The model's output, in two steps; the last ``drop`` tokens are not kept."""
        ids = self.manager.tokenizer.encode(text, first=False) if ids is None else ids
        kept = len(ids) - drop
        meta = RequestMeta(
            prompt_tokens=0, cached_tokens=0, completion_tokens=len(ids), kept_tokens=kept,
            queue_time=0, prefill_time=0, decode_time=0, e2e_latency=0,
        )  # fmt: skip
        rid = f"c1.r{self.count}"
        done = Finish(type="stop")
        self.manager.on_batch(BatchOutput(items=[ReqOutput(rid=rid, ids=ids[:1], started=True)]))
        last = ReqOutput(rid=rid, ids=ids[1:], finish=done, meta=meta, leftover=leftover.encode())
        self.manager.on_batch(BatchOutput(items=[last]))
        self.drain()
        self.session = [*self.session, *ids[:kept]]

    def notes(self) -> list[str]:
        """Of the last generation."""
        meta = self.chunks()[-1].meta
        assert meta is not None
        return meta.notes


@pytest.fixture
def chats() -> Iterator[Any]:
    made: list[Chat] = []

    def make(template: str, **more: Any) -> Chat:
        made.append(Chat(template, **more))
        return made[-1]

    yield make
    for chat in made:
        chat.manager.close()


def test_which_templates_are_exact() -> None:
    assert model(PLAIN).template.exact
    assert model(PLAIN.replace("m.content", "m.content | trim")).template.exact, "the same at every place"
    for name, template in ALL.items():
        assert not model(template).template.exact, name
        assert not model(template).template.error


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("add_bos", [False, True])
def test_every_prompt_is_the_plain_rendering_of_the_conversation(
    chats: Any, name: str, add_bos: bool
) -> None:
    template = ALL[name]
    chat = chats(template, add_bos=add_bos)
    messages = [{"role": "system", "content": " Be brief. "}]
    parts: list[Any] = [*turn("system", " Be brief. ")]
    for number in range(4):
        question = f"  Question {number}?\n"
        messages.append({"role": "user", "content": question})
        chat_ids = chat.prompt(*parts, *turn("user", question), begin("assistant"))
        wanted = chat.manager.tokenizer.encode(plain(template, messages, True))
        assert chat_ids == ([0] if add_bos else []) + wanted
        answer = f"<think>\nsome thought\n</think>\n\nAnswer {number}. "
        chat.say(answer)
        messages.append({"role": "assistant", "content": answer})
        parts = [end("assistant")]
    assert chat.cuts[0] == 0
    assert all(chat.cuts[1:]), "earlier turns were written anew each time"
    assert chat.notes() == []


def test_a_cut_goes_no_further_than_it_must(chats: Any) -> None:
    chat = chats(DROP_THOUGHTS)
    chat.prompt(*turn("user", "q"), begin("assistant"))
    head = len(chat.session)
    chat.say("<think>x</think>a")
    thought = len(chat.session) - head
    chat.prompt(end("assistant"), *turn("user", "r"), begin("assistant"))
    assert chat.cuts == [0, thought]
    chat.say("without a thought")
    chat.prompt(end("assistant"), *turn("user", "s"), begin("assistant"))
    assert chat.cuts[-1] == 0, "nothing changed, nothing is cut"


def test_several_generations_in_a_turn_and_text_between_them(chats: Any) -> None:
    chat = chats(DROP_THOUGHTS)
    first = chat.prompt(*turn("user", "q"), begin("assistant"), "Name:")
    assert first == chat.manager.tokenizer.encode(
        plain(DROP_THOUGHTS, [{"role": "user", "content": "q"}], True) + "Name:"
    )
    chat.say(" Ann", leftover=" B")
    second = chat.prompt("ee. Age:")
    assert second == chat.manager.tokenizer.encode(
        plain(DROP_THOUGHTS, [{"role": "user", "content": "q"}], True) + "Name: Ann Bee. Age:"
    )
    chat.say(" 7, dropped", drop=1)
    kept = chat.manager.tokenizer.decode(chat.session)
    assert chat.manager.tokenizer.decode(chat.prompt()) == kept


def test_a_generation_in_a_user_turn_ends_where_its_text_ends(chats: Any) -> None:
    chat = chats(TRIM_EARLIER)
    ids = chat.prompt(begin("user"), "I ask: ")
    assert ids == chat.manager.tokenizer.encode("<|im_start|>user\nI ask: ")
    chat.say("why?")
    ids = chat.prompt(end("user"), begin("assistant"))
    messages = [{"role": "user", "content": "I ask: why?"}]
    assert ids == chat.manager.tokenizer.encode(plain(TRIM_EARLIER, messages, True))


@pytest.mark.parametrize("name", ALL)
def test_user_text_forms_no_added_token_in_any_turn(chats: Any, name: str) -> None:
    chat = chats(ALL[name])
    tokenizer = chat.manager.tokenizer
    added = {token.id for token in tokenizer.added}
    count = 0

    def ids(*pieces: str | Part) -> list[int]:
        nonlocal count
        count += 1
        sid = f"c1.x{count}"
        parts = [*turn("user", *pieces), *turn("assistant", *pieces), *turn("user", "r")]
        chat.send(init(sid), add(*parts, sid=sid), gen(f"c1.q{count}", sid))
        return chat.decodes()[-1].ids

    wanted = sum(i in added for i in ids("q"))
    for token in tokenizer.added:
        for text in (token.content, f" {token.content}\n", f"x{token.content}y", token.content * 2):
            half = len(text) // 2
            found = ids(Text(text=text[:half], literal=False), Text(text=text[half:], literal=True))
            assert sum(i in added for i in found) == wanted, text
            assert tokenizer.decode(found).count(token.content) >= 2


def test_what_the_model_sampled_as_a_token_stays_one_and_its_letters_stay_letters(chats: Any) -> None:
    chat = chats(DROP_THOUGHTS)
    tokenizer = chat.manager.tokenizer
    chat.prompt(*turn("user", "q"), begin("assistant"))
    letters = tokenizer.encode("</think>rest", parse=False, first=False)
    chat.say(ids=[*letters, *tokenizer.encode("<think>", first=False)])
    before = list(chat.session)
    assert chat.prompt("!")[: len(before)] == before
    assert chat.cuts[-1] == 0
    chat.say("x")
    ids = chat.prompt(end("assistant"), *turn("user", "r"), begin("assistant"))
    assert "</think>rest" in tokenizer.decode(ids), "no thought ends with letters"


def test_text_outside_of_turns_is_told_and_put_together(chats: Any) -> None:
    chat = chats(TRIM_EARLIER)
    chat.prompt(*turn("user", "q "), begin("assistant"))
    chat.say("a")
    before = list(chat.session)
    ids = chat.prompt(end("assistant"), "loose", *turn("user", "r"))
    assert ids == [
        *before,
        *chat.manager.tokenizer.encode("<|im_end|>\nloose<|im_start|>user\nr<|im_end|>\n", first=False),
    ]
    chat.say("b")
    assert "no place for text outside of turns" in chat.notes()[0]
    chat.prompt(*turn("user", "r"))
    chat.say("c")
    assert chat.notes() == [], "told once"


def test_a_prompt_without_turns_has_no_note(chats: Any) -> None:
    chat = chats(TRIM_EARLIER)
    assert chat.prompt("Once upon") == chat.manager.tokenizer.encode("Once upon")
    chat.say(" a time")
    chat.prompt(Ids(ids=[5]), "x")
    chat.say("y")
    assert chat.notes() == [] and chat.cuts == [0, 0]


def test_a_conversation_the_template_refuses_is_put_together_and_told(chats: Any) -> None:
    template = "{% if messages|length > 2 %}{{ raise_exception('only one turn') }}{% endif %}" + TRIM_EARLIER
    chat = chats(template)
    chat.prompt(*turn("user", "q"), begin("assistant"))
    chat.say("a")
    assert chat.notes() == []
    before = list(chat.session)
    ids = chat.prompt(end("assistant"), *turn("user", "r"), *turn("user", "s"), begin("assistant"))
    assert ids[: len(before)] == before and chat.cuts[-1] == 0
    chat.say("b")
    (note,) = chat.notes()
    assert "chat template of odd does not render this conversation" in note and "only one turn" in note


def test_abort_while_the_template_renders(chats: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = chats(TRIM_EARLIER)
    chat.manager.handle(1, [add(*turn("user", "q"), begin("assistant")), gen()])
    assert chat.manager.encoding == 1 and not chat.decodes()
    chat.manager.abort(1, sids=["c1.s1"])
    assert chat.ends() == {"c1.r1": "abort"} and chat.manager.encoding == 0
    chat.count = 1
    ids = chat.prompt("A")
    assert ids == chat.manager.tokenizer.encode(
        plain(TRIM_EARLIER, [{"role": "user", "content": "q"}], True) + "A"
    )


def test_a_blank_before_a_generation_is_noted() -> None:
    for parts, noted in (
        (["Answer: "], True),
        (["Answer:"], False),
        (["Answer: ", "", "now"], False),
        (["Answer: ", ""], True),
        (["a ", Ids(ids=[5])], False),
        ([*turn("user", "q ")], False),
        ([*turn("user", "q"), begin("assistant"), "So, "], True),
        (["Answer:\n"], False),
    ):
        s = Scripted()
        s.send(init(), add(*parts), gen())
        meta = RequestMeta(
            prompt_tokens=1, cached_tokens=0, completion_tokens=1, kept_tokens=1,
            queue_time=0, prefill_time=0, decode_time=0, e2e_latency=0,
        )  # fmt: skip
        s.answer("c1.r1", "x", meta=meta)
        found = s.chunks()[-1].meta
        assert found is not None
        assert bool(found.notes) is noted, parts
        if noted:
            assert found.notes[0].startswith("The prompt ends with a space; ")
        s.send(gen("c1.r2"))
        s.answer("c1.r2", "x", meta=meta)
        again = s.chunks()[-1].meta
        assert again is not None and not again.notes, "the model wrote last"


# ---------------------------------------------------------------- marks


def test_marked_text_comes_back_whole_and_forms_nothing() -> None:
    tokenizer = model(TRIM_EARLIER)
    added = {token.id for token in tokenizer.added}
    rng = random.Random(3)
    atoms = [token.content for token in tokenizer.added] + [
        "<",
        "|",
        "im_",
        "end|>",
        " ",
        "\n",
        "x",
        "é",
        "think>",
        ">",
    ]
    marks = Marks(tokenizer.added, [])
    for _ in range(400):
        before, text, after = ("".join(rng.choices(atoms, k=rng.randint(0, 4))) for _ in range(3))
        around = [tokenizer.encode(before), tokenizer.encode(after)]
        outside = sum(i in added for ids in around for i in ids)
        ids = run_steps(marks.encode(before + marks.put(text) + after, tokenizer))
        assert sum(i in added for i in ids) == outside, (before, text, after)
        whole = run_steps(marks.encode(marks.put(text), tokenizer))
        assert whole == tokenizer.encode(text, parse=False)


def test_texts_that_hold_every_mark_are_refused() -> None:
    tokenizer = model(TRIM_EARLIER)
    talk = Conversation()
    talk.begin("user")
    talk.add_text("".join(chr(code) for code in range(0xFDD0, 0xFDF0)))
    with pytest.raises(TemplateFault, match="mark their places"):
        run_steps(talk.prompt(tokenizer, lambda messages, prompt: ""))


# ---------------------------------------------------------------- the worker


@pytest.fixture
def renderer() -> Iterator[Any]:
    made: list[TemplateRenderer] = []

    def make(template: str) -> TemplateRenderer:
        made.append(TemplateRenderer(template, {"bos_token": "<s>"}))
        return made[-1]

    yield make
    for one in made:
        one.close()
        one.close()


USER = [{"role": "user", "content": "hi"}]


def test_the_worker_answers_again_and_again(renderer: Any) -> None:
    one = renderer("{{ bos_token }}" + PLAIN)
    for prompt in (False, True, False):
        assert one.render(USER, prompt) == plain("<s>" + PLAIN, USER, prompt)
    long = [{"role": "user", "content": "é word " * 200_000}]
    assert one.render(long, True) == plain("<s>" + PLAIN, long, True)
    with pytest.raises(TemplateFault, match="SecurityError"):
        renderer("{{ messages.__class__ }}").render(USER, False)


def test_a_template_that_never_ends_is_ended_and_not_tried_for_ever(
    renderer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_renderer, "RENDER_SECONDS", 0.7)
    one = renderer(
        "{% if messages[0].content == 'loop' %}{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}"
        "{% endfor %}{% endif %}fine"
    )
    for _ in range(template_renderer.MAX_DEATHS):
        start = time.monotonic()
        with pytest.raises(TemplateFault, match="SIGKILL"):
            one.render([{"role": "user", "content": "loop"}], False)
        assert time.monotonic() - start < 20
    with pytest.raises(TemplateFault, match="not tried any more"):
        one.render(USER, False)


def test_a_template_that_does_not_compile_gives_an_error_not_a_hang(renderer: Any) -> None:
    with pytest.raises(TemplateFault, match="exit code 1"):
        renderer("{% for").render(USER, False)


def test_select_and_fork_in_a_conversation_that_is_rendered_whole(chats: Any) -> None:
    chat = chats(DROP_THOUGHTS)
    encode = chat.manager.tokenizer.encode
    chat.prompt(*turn("user", "q"), begin("assistant"))
    chat.say("<think>x</think>a")
    options = ["yes", "no"]
    chat.send(add(end("assistant"), *turn("user", "pick"), begin("assistant")))
    chat.send(Select(rid="c1.r8", sid="c1.s1", options=options, method="greedy_token_selection"))
    asked = chat.asked[-1]
    assert isinstance(asked, SessionSelect)
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "<think>x</think>a"},
        {"role": "user", "content": "pick"},
    ]
    prompt = [*chat.session[: asked.keep], *asked.ids]
    assert prompt == encode(plain(DROP_THOUGHTS, messages, True))
    scores = [OptionScore(ids=rest, logprobs=[-1.0] * len(rest), score=-1.0) for rest in asked.options]
    choice = Choice(index=0, options=scores)
    chat.manager.on_batch(
        BatchOutput(items=[ReqOutput(rid="c1.r8", finish=Finish(type="stop"), choice=choice)])
    )
    chat.session = [*prompt, *asked.options[0]]
    chat.send(Fork(sid="c1.s1", children=["c1.s2"]))
    for sid, said in (("c1.s2", "child"), ("c1.s1", "parent")):
        chat.send(
            add(end("assistant"), *turn("user", said), begin("assistant"), sid=sid),
            gen(f"c1.r{said}", sid=sid),
        )
        decode = chat.decodes()[-1]
        whole = [*messages, {"role": "assistant", "content": options[0]}, {"role": "user", "content": said}]
        assert [*chat.session[: decode.keep], *decode.ids] == encode(plain(DROP_THOUGHTS, whole, True))
