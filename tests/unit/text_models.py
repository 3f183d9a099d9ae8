"""Tokenizers for tests: two small ones trained here, the stub's, and the embedded model's own."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from sgnb.engine import model_store
from sgnb.engine.model_store import ModelPath
from sgnb.engine.tokenizer.tokenizer import ModelTokenizer, build_tokenizer, load_tokenizer

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's what we'll do, they've said; I'm sure he'd agree.",
    "def main(args):\n    for i in range(10):\n        print(f'{i}: {args[i]}')\n    return 0\n",
    "Größe über Öl, naïve café. 日本語のテキスト。한국어 문장입니다. हिन्दी 🎈🎉 1234567890",
    "# Title\n\n- item one\n- item two\n\n```python\nx = {'a': [1, 2, 3]}\n```\n",
] * 8
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@cache
def byte_level_json() -> str:
    """Byte-level BPE with ChatML's specials, a non-special markup token, a BOS and awkward added tokens."""
    library = tokenizers.Tokenizer(models.BPE())
    library.normalizer = normalizers.NFC()
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<s>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(CORPUS, trainer)
    library.add_tokens([tokenizers.AddedToken("<think>", normalized=False)])
    library.add_special_tokens([tokenizers.AddedToken("<eats>", rstrip=True, lstrip=True, normalized=False)])
    library.add_special_tokens([tokenizers.AddedToken("<with space>", normalized=False)])
    return library.to_str()


@cache
def metaspace_json() -> str:
    """SentencePiece-like: a blank is U+2581, one is put first, BOS is added, bytes fall back."""
    library = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    library.decoder = decoders.Metaspace(prepend_scheme="first")
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))],
        show_progress=False,
    )
    library.train_from_iterator(CORPUS, trainer)
    library.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    spec = json.loads(library.to_str())
    # Byte pieces are part of the vocabulary, not added tokens.
    spec["added_tokens"] = [t for t in spec["added_tokens"] if not t["content"].startswith("<0x")]
    return json.dumps(spec)


def source(spec: str, **values: Any) -> dict[str, Any]:
    return {"tokenizer": json.loads(spec), "chat_template": None, "bos_id": None, "eos_ids": [2], **values}


@cache
def byte_level() -> ModelTokenizer:
    return build_tokenizer(source(byte_level_json(), bos_id=0), "small-bytes")


@cache
def byte_level_chat() -> ModelTokenizer:
    return build_tokenizer(source(byte_level_json(), bos_id=0, chat_template=CHATML), "small-chat")


@cache
def metaspace() -> ModelTokenizer:
    return build_tokenizer(source(metaspace_json(), bos_id=1, add_bos=True), "small-metaspace")


@cache
def real_path() -> ModelPath:
    """The embedded model, fetched when it is missing (a test that needs it fails without a network)."""
    name = "smollm2-135m-instruct"
    return ModelPath(name, model_store.pull(name), "gguf")


@cache
def real() -> ModelTokenizer:
    return load_tokenizer(real_path())


def reference(spec: str) -> Any:
    """The tokenizers library itself."""
    return tokenizers.Tokenizer.from_str(spec)
