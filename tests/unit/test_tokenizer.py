"""Loading a tokenizer: byte table, the literal view, folders, the GGUF conversion and its cache."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from text_models import (
    CHATML,
    byte_level,
    byte_level_json,
    metaspace,
    metaspace_json,
    real,
    real_path,
    reference,
    source,
)

from sgnb.engine.model_executor.gguf import GGUFReader
from sgnb.engine.model_store import ModelPath
from sgnb.engine.tokenizer import gguf_tokenizer, tokenizer
from sgnb.engine.tokenizer.borders import random_text
from sgnb.engine.tokenizer.pending import Pending
from sgnb.engine.tokenizer.steps import run_steps
from sgnb.engine.tokenizer.tokenizer import ModelTokenizer, build_tokenizer, load_tokenizer, stub_tokenizer
from sgnb.errors import ModelFileError

MODELS = [byte_level, metaspace, stub_tokenizer, real]
Load = Callable[[], ModelTokenizer]


@pytest.mark.parametrize("load", MODELS)
def test_table_concatenates_to_the_text(load: Load) -> None:
    model = load()
    rng = random.Random(2)
    assert all(model.table), "no empty entry"
    for _ in range(500):
        text = random_text(rng)
        if model.name == "small-bytes":  # it normalises
            text = reference(byte_level_json()).normalizer.normalize_str(text)
        if model.name == "small-metaspace":  # that model cannot tell the two apart
            text = text.replace("▁", " ")
        ids = model.encode(text, first=False)
        assert b"".join(model.table[i] for i in ids) == text.encode()


@pytest.mark.parametrize("load", MODELS)
def test_F55_forged_special_tokens_stay_text(load: Load) -> None:
    """Every added token's text, in every slot of literal text, gives none of the added tokens."""
    model = load()
    dropped = {token.id for token in model.added}
    assert dropped
    for token in model.added:
        for text in (
            token.content,
            f"a{token.content}b",
            f" {token.content} ",
            token.content * 2,
            f"<{token.content}>",
        ):
            ids = model.encode(text, parse=False)
            assert not dropped & set(ids), (text, ids)
            assert token.id in model.encode(text), "and where it is parsed, it counts"
            for at in range(1, len(token.content)):
                pending = Pending()
                pending.add_text(token.content[:at], parse=True)
                pending.add_text(token.content[at:], parse=False)
                assert token.id not in run_steps(pending.take(model, first=False))


def test_a_token_of_the_template_is_dropped_even_if_not_special() -> None:
    spec = json.loads(byte_level_json())
    assert {t["content"] for t in spec["added_tokens"] if not t["special"]} == {"<think>"}
    spec["added_tokens"].append(
        {**spec["added_tokens"][0], "id": 900, "content": "  ", "special": False, "normalized": False}
    )
    plain = build_tokenizer(source(json.dumps(spec)), "x")
    assert "  " not in {token.content for token in plain.added}, "blanks are ordinary text"
    assert 900 in plain.encode("a  b", parse=False)
    chat = build_tokenizer(source(json.dumps(spec), chat_template="{# '  ' #}" + CHATML), "x")
    assert "  " in {token.content for token in chat.added}


def test_unigram_cannot_form_a_special() -> None:
    spec: dict[str, Any] = json.loads(metaspace_json())
    pieces = ["<unk>", "<s>", "</s>", "▁", "a", "b", "<", "s", ">", "/"]
    spec["model"] = {
        "type": "Unigram",
        "unk_id": 0,
        "vocab": [[p, -float(i)] for i, p in enumerate(pieces)],
        "byte_fallback": False,
    }
    spec["post_processor"] = None
    model = build_tokenizer(source(json.dumps(spec)), "unigram")
    assert model.encode("a<s>b", parse=False, first=False) == [4, 6, 7, 8, 5]
    assert model.encode("a<s>b", first=False) == [4, 1, 5]


@pytest.mark.prompt
@pytest.mark.parametrize("load", MODELS)
def test_B110_no_space_after_a_special_token(load: Load) -> None:
    model = load()
    special = next(token for token in model.added if token.special)
    assert model.encode(special.content + "hi") == [special.id, *model.encode("hi", first=False)]
    assert model.decode(model.encode(special.content + "hi")) == special.content + "hi"


@pytest.mark.prompt
@pytest.mark.parametrize(
    "text", ["<|im_start|>user\nhi<|im_end|>\n", "a <|im_end|> b", "x\n\n<|endoftext|>\n 12"]
)
def test_B110_ids_equal_the_library_on_the_real_model(text: str) -> None:
    assert real().encode(text) == real_library().encode(text, add_special_tokens=False).ids


@cache
def real_library() -> Any:
    real()
    with GGUFReader(real_path().path) as reader:
        return reference(json.dumps(gguf_tokenizer.convert(reader.metadata, "the model")["tokenizer"]))


def test_the_real_model_has_the_ids_of_its_training() -> None:
    """Known ids: digits stand alone, whitespace before them is cut as with the Digits step."""
    model = real()
    assert model.encode("Hello world! 123") == [19556, 905, 17, 216, 33, 34, 35]
    assert model.encode("Café déjà vu.") == [51, 1939, 2756, 32564, 90, 16739, 386, 101, 30]
    assert model.encode("  multiple   spaces") == [216, 2701, 256, 5600]
    assert model.decode(model.encode("\n    1")) == "\n    1"
    assert [model.table[i] for i in model.encode("\n    1")] == [b"\n    ", b"1"]
    assert (model.bos, model.start_ids, model.eos_token_ids, model.vocab_size) == (None, [1], [2], 49152)


def test_conversion_is_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened: list[Path] = []

    class Reader(contextlib.AbstractContextManager["Reader"]):
        metadata = gguf_bytes()

        def __init__(self, path: Path) -> None:
            opened.append(path)

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(tokenizer, "GGUFReader", Reader)
    monkeypatch.setenv("SGNB_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"GGUF")
    model = ModelPath("tiny", path, "gguf")

    def load() -> tuple[list[int], int]:
        return load_tokenizer(model).encode("cached or not"), len(opened)

    expected, _ = load()
    assert load() == (expected, 1)
    (stored,) = (tmp_path / "cache" / "models" / "tokenizers").glob("tiny-*.cached")
    stored.write_text("[]")
    assert load() == (expected, 2)
    assert "made again" in caplog.text
    assert load() == (expected, 2)
    path.write_bytes(b"GGUF, but longer")
    assert load() == (expected, 3), "another file under the same name is converted"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SGNB_CACHE", str(tmp_path / "file"))
    assert load() == (expected, 4)
    assert "cannot be cached" in caplog.text


# ---------------------------------------------------------------- GGUF


def gguf_bytes(pre: str = "gpt-2", **values: Any) -> dict[str, Any]:
    spec = json.loads(byte_level_json())
    pieces = sorted(spec["model"]["vocab"], key=spec["model"]["vocab"].get)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(pieces) - 3),
        "tokenizer.ggml.merges": [" ".join(m) for m in spec["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.eot_token_id": 2,
        **values,
    }


@pytest.mark.parametrize("pre", gguf_tokenizer.KNOWN_PRE)
def test_every_known_pre_tokenizer_loads_and_keeps_the_text(pre: str) -> None:
    found = gguf_tokenizer.convert(gguf_bytes(pre), "x.gguf")
    model = build_tokenizer(found, pre)
    assert not model.rule.hold
    text = "It's 12345 words,  a\n\n  b\tC'LL HTMLParser 日本語 é\r\n!!\n"
    assert model.decode(model.encode(text)) == text
    # Digits: alone, in threes, or as long as they are.
    digits = [len(model.table[i]) for i in model.encode("1234567")]
    assert max(digits) <= (3 if pre in gguf_tokenizer._REGEX else 7)


def test_gpt2_conversion_equals_the_library() -> None:
    spec = json.loads(byte_level_json())
    spec["normalizer"] = None
    spec["added_tokens"] = spec["added_tokens"][:3]
    library = reference(json.dumps(spec))
    model = build_tokenizer(gguf_tokenizer.convert(gguf_bytes(), "x.gguf"), "x")
    rng = random.Random(3)
    for _ in range(300):
        text = random_text(rng)
        assert model.encode(text) == library.encode(text).ids
    assert model.eos_token_ids == [2] and model.bos is None


def test_sentencepiece_conversion_merges_by_score() -> None:
    letters = ["▁", "a", "b", "c", "ab", "bc", "abc", "▁a"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *letters, "<turn>"]
    base = 3 + 256
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * base + [-9.0, -9.0, -9.0, -9.0, -2.0, -1.0, -3.0, -4.0] + [0.0],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * 8 + [4],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    model = build_tokenizer(gguf_tokenizer.convert(metadata, "x.gguf"), "x")

    def pieces(text: str, **how: bool) -> list[str]:
        return [tokens[i] for i in model.encode(text, **how)]

    assert model.bos == 1, "SentencePiece files start with BOS unless they say otherwise"
    assert pieces("abc", first=False) == ["abc"], "bc scores highest, then a + bc"
    assert pieces("abab", first=False) == ["ab", "ab"]
    assert pieces("a") == ["▁a"] and pieces(" a") == ["▁", "▁a"]
    assert pieces("é", first=False) == ["<0xC3>", "<0xA9>"]
    assert pieces("<turn>a") == ["<turn>", "a"]
    assert "<turn>" not in pieces("<turn>", parse=False)
    assert b"".join(model.table[i] for i in model.encode("a é b", first=False)) == "a é b".encode()
    bare = gguf_tokenizer.convert({**metadata, "tokenizer.ggml.add_space_prefix": False}, "x.gguf")
    assert build_tokenizer(bare, "x").encode("a") == model.encode("a", first=False)


@pytest.mark.loader
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokenizer.ggml.model": "rwkv"}, "'rwkv'; expected 'gpt2' or 'llama'"),
        ({"tokenizer.ggml.model": None}, "expected 'gpt2' or 'llama'"),
        ({"tokenizer.ggml.pre": "new-thing"}, "'new-thing', a pre-tokenizer this version does not know"),
        ({"tokenizer.ggml.pre": None}, "pre-tokenizer"),
        ({"tokenizer.ggml.tokens": []}, "tokenizer.ggml.tokens: expected a list of strings"),
        ({"tokenizer.ggml.tokens": [1, 2]}, "tokenizer.ggml.tokens: expected a list of strings"),
        ({"tokenizer.ggml.token_type": [1]}, "has 1 entries, expected"),
        ({"tokenizer.ggml.merges": ["zz-no"]}, "merges[0] is 'zz-no'"),
        ({"tokenizer.ggml.merges": None}, "tokenizer.ggml.merges"),
        ({"tokenizer.ggml.eos_token_id": 10**9}, "eos_token_id is 1000000000; expected an id in"),
        ({"tokenizer.ggml.model": "llama"}, "scores: expected"),
    ],
)
def test_bad_metadata_is_refused_by_name(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        gguf_tokenizer.convert(gguf_bytes(**change), "x.gguf")
    assert words in str(caught.value) and "x.gguf" in str(caught.value)


# ---------------------------------------------------------------- folders


def folder(path: Path, **files: Any) -> ModelPath:
    for name, value in files.items():
        stem, _, ext = name.rpartition("_")
        (path / f"{stem}.{ext}").write_text(value if isinstance(value, str) else json.dumps(value))
    return ModelPath("tiny", path, "safetensors")


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SGNB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "model").mkdir()
    return tmp_path / "model"


def test_a_folder(own_cache: Path) -> None:
    config = {
        "bos_token": {"content": "<s>"},
        "eos_token": "<|im_end|>",
        "chat_template": [{"name": "tool_use", "template": "x"}, {"name": "default", "template": CHATML}],
    }
    model = load_tokenizer(
        folder(
            own_cache,
            tokenizer_json=byte_level_json(),
            tokenizer_config_json=config,
            generation_config_json={"eos_token_id": [1, 2]},
        )
    )
    assert model.eos_token_ids == [1, 2]
    assert (model.bos_id, model.bos) == (0, None)
    assert model.template.exact and "user" in model.template.roles
    (own_cache / "chat_template.jinja").write_text(CHATML.replace("im_end", "end"))
    assert (
        load_tokenizer(ModelPath("tiny", own_cache, "safetensors")).template.roles["user"].suffix
        == "<|end|>\n"
    )


def test_bos_of_the_post_processor_and_of_the_config(own_cache: Path) -> None:
    path = folder(own_cache, tokenizer_json=metaspace_json())
    assert load_tokenizer(path).bos == 1
    folder(own_cache, tokenizer_config_json={"add_bos_token": False, "bos_token": "<s>"})
    assert load_tokenizer(path).bos is None


@pytest.mark.loader
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "not found"),
        ("{", "not valid JSON"),
        ("[1]", "expected an object, found list"),
        ('{"model": {"type": "WordPiece", "vocab": {}}}', "'WordPiece' is not supported"),
        ('{"model": {"type": "BPE", "vocab": {}, "merges": []}}', "vocabulary is empty"),
        ('{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}}', "library refuses it"),
        ("[" * 100_000, "not valid JSON"),
    ],
    ids=["missing", "cut", "list", "wordpiece", "empty", "merges", "deep"],
)
def test_bad_folders_are_refused_by_name(own_cache: Path, text: str | None, words: str) -> None:
    if text is not None:
        (own_cache / "tokenizer.json").write_text(text)
    with pytest.raises(ModelFileError, match=words):
        load_tokenizer(ModelPath("tiny", own_cache, "safetensors"))


def test_a_normaliser_that_may_change_anything_holds_all_text() -> None:
    spec = json.loads(byte_level_json())
    spec["normalizer"] = {"type": "Lowercase"}
    model = build_tokenizer(source(json.dumps(spec)), "lower")
    assert model.rule.hold
    pending = Pending()
    pending.add_text("word " * 5000, parse=False)
    assert run_steps(pending.take_stable(model, first=True)) == []
    assert run_steps(pending.take(model, first=True)) == model.encode("word " * 5000)
