"""Chat templates: what is read off them, and what a hostile one can do (nothing) (F56)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from text_models import CHATML, real

from sgnb.engine.tokenizer import chat_template
from sgnb.engine.tokenizer.chat_template import PLAIN, TurnTemplate, read_template, render_sentinels

VARIABLES = {"bos_token": "<s>", "eos_token": "</s>"}
LOOP = "{% for m in messages %}"


def read(source: str | None, cache: Path | None = None) -> TurnTemplate:
    return read_template(source, VARIABLES, "tiny", cache)


def texts(template: TurnTemplate) -> dict[str, tuple[str, str]]:
    return {name: (role.prefix, role.suffix) for name, role in template.roles.items()}


def test_chatml() -> None:
    template = read(CHATML)
    assert (
        template.exact and not template.error and not template.default_system and not template.opens_with_bos
    )
    assert texts(template) == {
        name: (f"<|im_start|>{name}\n", "<|im_end|>\n") for name in ("system", "user", "assistant")
    }
    assert len(template.hash) == 16


def test_the_real_model() -> None:
    template = real().template
    assert template.exact
    assert template.roles["user"].prefix == "<|im_start|>user\n"
    assert template.default_system == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    )


def test_headers_with_bos_once() -> None:
    source = (
        "{{ bos_token }}" + LOOP + "<h>{{ m.role }}</h>\n\n{{ m['content'] | trim }}<eot>{% endfor %}"
        "{% if add_generation_prompt %}<h>assistant</h>\n\n{% endif %}"
    )
    template = read(source)
    assert template.exact and template.opens_with_bos
    assert texts(template)["user"] == ("<h>user</h>\n\n", "<eot>")


def test_bos_before_every_user_turn_belongs_to_the_turn() -> None:
    source = (
        LOOP + "{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content + ' [/INST]' }}"
        "{% else %}{{ ' ' + m.content + ' ' + eos_token }}{% endif %}{% endfor %}"
    )
    template = read(source)
    assert not template.opens_with_bos
    assert texts(template) == {
        "system": ("", "\n\n"),
        "user": ("<s>[INST] ", " [/INST]"),
        "assistant": (" ", " </s>"),
    }
    assert not template.exact, "a system turn is only approximated, and that must show"


def test_roles_in_a_strict_order() -> None:
    source = (
        LOOP + "{% if m.role == 'system' and not loop.first %}{{ raise_exception('order') }}{% endif %}"
        "{% if m.role == 'system' and messages|length == 1 %}{{ raise_exception('no user') }}{% endif %}"
        "<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    template = read(source)
    assert template.exact, "only a system turn that stands alone is refused"
    assert texts(template)["system"] == ("<system>", "</system>")


def test_a_template_that_treats_the_last_turn_differently() -> None:
    source = (
        LOOP + "<|{{ m.role }}|>{% if m.role == 'assistant' and loop.last %}<think></think>{% endif %}"
        "{{ m.content }}<end>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    template = read(source)
    assert not template.exact
    assert texts(template) == {name: (f"<|{name}|>", "<end>") for name in ("system", "user", "assistant")}


def test_a_generation_prompt_that_opens_a_thought() -> None:
    source = (
        LOOP + "<|{{ m.role }}|>{{ m.content }}<end>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|><think>{% endif %}"
    )
    template = read(source)
    assert not template.exact
    assert texts(template)["assistant"] == ("<|assistant|><think>", "<end>")


def test_missing_template_is_the_plain_default() -> None:
    template = read(None)
    assert template is PLAIN and template.exact
    assert texts(template)["user"] == ("USER:", "\n")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{% for", "TemplateSyntaxError"),
        ("{{ raise_exception('not for you') }}", "not for you"),
        ("constant text", "does not come out"),
        (LOOP + "{{ m.content | upper }}{% endfor %}", "does not come out"),
        (LOOP + "{{ m.content + m.content }}{% endfor %}", "does not come out"),
        ("{{ messages.__class__ }}", "__class__"),
        ("{{ ''['__class__'] }}", "__class__"),
        ("{{ messages[0] | attr('__class__') }}", "__class__"),
        ("{{ cycler.__init__.__globals__ }}", "__init__"),
        ("{% set x = messages.append(1) %}" + LOOP + "{{ m.content }}{% endfor %}", "SecurityError"),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{{ open('/etc/passwd') }}", "undefined"),
        ("{% for i in range(99999) %}{{ 'xxxxxxxxxxxxxxxxxxxxxxxxx' }}{% endfor %}", "renders more than"),
        ("{{ 'x' * 100000000000 }}", "MemoryError"),
        ("{# " + "x" * 300_000 + " #}", "larger than"),
    ],
    ids=lambda value: value[:40],
)
def test_bad_and_hostile_templates_are_named(source: str, words: str) -> None:
    template = read(source)
    assert template.error.startswith("chat template of tiny: ")
    assert words in template.error
    assert template.roles == {} and not template.exact


def test_a_looping_template_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "CPU_SECONDS", 1)
    start = time.monotonic()
    loop = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}"
    template = read(loop)
    assert "stopped by SIG" in template.error or "still rendering" in template.error
    assert time.monotonic() - start < 30


def test_growth_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MEMORY_BYTES", 200 << 20)
    grow = "{% set ns = namespace(s='xxxxxxxx') %}{% for a in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"
    assert read(grow + "{{ ns.s }}").error


def test_results_are_cached_and_a_broken_cache_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = read(CHATML, tmp_path)
    (file,) = tmp_path.glob("template-*.cached")
    monkeypatch.setattr(chat_template, "render_sentinels", lambda *_: pytest.fail("rendered again"))
    assert read(CHATML, tmp_path) == first
    monkeypatch.undo()
    file.write_bytes(b"{")
    assert read(CHATML, tmp_path) == first
    assert "made again" in caplog.text
    assert read(CHATML, tmp_path) == first


def test_a_cache_that_cannot_be_written_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert read(CHATML, blocked / "cache").exact
    assert "cannot be cached" in caplog.text


def test_a_template_that_asks_for_the_date_is_not_cached(tmp_path: Path) -> None:
    source = "{{ strftime_now('%Y') }}\n" + CHATML
    template = read(source, tmp_path)
    assert template.default_system == time.strftime("%Y") + "\n"
    assert not list(tmp_path.iterdir())


def test_generation_tags_and_loop_controls() -> None:
    source = (
        LOOP + "{% if not m.content %}{% continue %}{% endif %}"
        "<{{ m.role }}>{% generation %}{{ m.content }}{% endgeneration %}</>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    assert read(source).exact


def test_an_undefined_name_prints_as_nothing() -> None:
    answer = render_sentinels("{{ bos_token }}{{ nothing }}", VARIABLES)
    assert answer["U"] == {"text": "<s>"}
