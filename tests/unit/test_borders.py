"""The space rule: cutting long pending text must not change a token (F57)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_models import byte_level, byte_level_json, metaspace, metaspace_json, real, reference

from sgnb.engine.tokenizer.borders import BorderRule, check_rule, encode_long, make_rule, random_text
from sgnb.engine.tokenizer.pending import Pending
from sgnb.engine.tokenizer.steps import run_steps
from sgnb.engine.tokenizer.tokenizer import ModelTokenizer, stub_tokenizer

MODELS = [byte_level, metaspace, stub_tokenizer, real]
Load = Callable[[], ModelTokenizer]


def awkward_text(rng: random.Random, tokenizer: ModelTokenizer) -> str:
    """Random text with vocabulary strings and added tokens, whole and half typed."""
    parts = [random_text(rng) for _ in range(rng.randint(1, 3))]
    for _ in range(rng.randint(0, 4)):
        token = rng.choice(tokenizer.added).content
        entry = rng.choice(tokenizer.table).decode("utf-8", "ignore")
        parts += [token[: rng.randint(1, len(token))], entry, " "]
    rng.shuffle(parts)
    return "".join(parts)


@pytest.mark.parametrize("load", MODELS)
@pytest.mark.parametrize("parse", [False, True])
def test_a_cut_at_the_rule_never_changes_ids(load: Load, parse: bool) -> None:
    tokenizer = load()
    assert not tokenizer.rule.hold
    rng = random.Random(8)
    cuts = 0
    for _ in range(700):
        text = awkward_text(rng, tokenizer)
        whole = tokenizer.encode(text, parse=parse, first=False)
        seen = text[: rng.randint(1, len(text))]
        cut = tokenizer.rule.stable(seen, growing=parse)
        head = tokenizer.encode(text[:cut], parse=parse, first=False)
        assert head + tokenizer.encode(text[cut:], parse=parse, first=False) == whole, (text, cut)
        cuts += cut > 0
    assert cuts > 300


@pytest.mark.parametrize("load", MODELS)
def test_text_that_arrives_in_pieces_and_is_cut_after_each(load: Load) -> None:
    tokenizer = load()
    rng = random.Random(9)
    early = 0
    for _ in range(250):
        spans = [(awkward_text(rng, tokenizer), rng.random() < 0.5) for _ in range(rng.randint(1, 3))]
        whole, cut, ids = Pending(), Pending(), list[int]()
        for text, parse in spans:
            while text:
                size = rng.randint(1, len(text))
                whole.add_text(text[:size], parse=parse)
                cut.add_text(text[:size], parse=parse)
                text = text[size:]
                got = run_steps(cut.take_stable(tokenizer, first=not ids))
                early += bool(got)
                ids += got
        ids += run_steps(cut.take(tokenizer, first=not ids))
        assert ids == run_steps(whole.take(tokenizer, first=True)), spans
    assert early > 100


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60), st.integers(0, 60))
def test_any_text_on_the_real_model(text: str, size: int) -> None:
    tokenizer = real()
    cut = tokenizer.rule.stable(text[:size])
    head, rest = run_steps(tokenizer.encode_run(text[:cut])), run_steps(tokenizer.encode_run(text[cut:]))
    assert head + rest == run_steps(tokenizer.encode_run(text))


@pytest.mark.parametrize("load", [byte_level, metaspace, real])
def test_long_text_encoded_in_pieces_equals_one_call(load: Load) -> None:
    tokenizer = load()
    rng = random.Random(1)
    text = "".join(random_text(rng) for _ in range(2500))
    assert len(text) > 3 * 16_384
    assert run_steps(tokenizer.encode_run(text)) == tokenizer.encode_plain([text])[0]
    no_cut = "日" * 40_000
    assert run_steps(tokenizer.encode_run(no_cut)) == tokenizer.encode_plain([no_cut])[0]


def test_long_text_goes_in_bounded_pieces() -> None:
    sizes: list[int] = []

    def encode(texts: Sequence[str]) -> list[list[int]]:
        sizes.extend(map(len, texts))
        return [[len(text)] for text in texts]

    encode_long("word " * 20_000, BorderRule(), encode)
    assert sum(sizes) == 100_000
    assert max(sizes) <= 16_384
    sizes.clear()
    encode_long("word " * 20_000, BorderRule(hold=True), encode)
    assert sizes == [100_000]


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("a b c", 3),
        ("a b ", 3),
        ("a  b", 1),
        ("a\n b", 0),
        ("word", 0),
        ("", 0),
        (" a", 0),
        ("▁ a", 0),
        ("x <|im_", 1),
        ("x y<|im_ ", 1),
        ("a <eats> b", 1),
        ("a <with sp", 1),
        ("日本 語", 2),
    ],
)
def test_where_the_rule_cuts(text: str, cut: int) -> None:
    rule = make_rule([b"ab", b" b"], ["<|im_ end|>", "<eats>", "<with space>"], ["<eats>"])
    assert rule.stable(text) == cut


def test_a_character_before_a_space_inside_a_token_is_no_border() -> None:
    rule = make_rule([b"> <", b"x"], [], [])
    assert rule.stable("a> b") == 0
    assert rule.stable("a b> c") == 1
    assert rule.stable("a <", growing=False) == 1


def test_literal_text_is_not_held_for_half_a_special() -> None:
    rule = make_rule([], ["<tok y>"], [])
    assert rule.stable("x <tok", growing=False) == 1
    assert rule.stable("x<tok y", growing=True) == 0


def test_a_tokenizer_that_breaks_the_rule_is_held() -> None:
    def superword(texts: Sequence[str]) -> list[list[int]]:
        return [[len(text)] for text in texts]  # one token a text: every cut shows

    assert not check_rule(BorderRule(), superword)
    assert check_rule(BorderRule(hold=True), superword)
    assert BorderRule(hold=True).stable("a b c") == 0


@pytest.mark.parametrize(("load", "spec"), [(byte_level, byte_level_json), (metaspace, metaspace_json)])
def test_the_two_views_equal_the_library(load: Load, spec: Callable[[], str]) -> None:
    """Parsed, first run: as the library does with everything on, where text starts the session."""
    tokenizer, library = load(), reference(spec())
    rng = random.Random(4)
    for _ in range(600):
        text = awkward_text(rng, tokenizer)
        assert tokenizer.encode(text) == library.encode(text, add_special_tokens=False).ids, text
