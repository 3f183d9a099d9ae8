"""A ``tokenizer.json`` made from the metadata of a GGUF file.

Tokenizer process; called by ``tokenizer.py`` once per file, whose result is cached. Pure: a metadata dict in, a dict in
the format of the ``tokenizers`` library out. Supported are byte-level BPE (``tokenizer.ggml.model = gpt2``) with the
pre-tokenizers named below, and SentencePiece BPE (``llama``). Anything else is refused by name: a wrong guess would give
other ids than the model was trained on, silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sgnb.engine.tokenizer.byte_table import BLANK
from sgnb.errors import ModelFileError

CONVERTER_VERSION = 1
"""Part of the cache key: raise it whenever the result changes."""

# tokenizer.ggml.token_type
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s|"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_CASED_REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"

_LLAMA3 = _WORDS + r"\p{N}{1,3}|" + _REST
_QWEN2 = _WORDS + r"\p{N}|" + _REST
_O200K = (_CASED % (_CONTRACTION, _CONTRACTION)) + r"\p{N}{1,3}|" + _CASED_REST
_TEKKEN = (_CASED % ("", "")) + r"\p{N}|" + _CASED_REST

_DIGITS = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone")
_GPT2 = ("gpt-2", "phi-2", "mpt", "olmo", "jais", "exaone4", "trillion", "granite-docling")
_REGEX: dict[str, str] = {
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"), _LLAMA3
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez"), _QWEN2),
    **dict.fromkeys(("gpt-4o", "llama4"), _O200K),
    "tekken": _TEKKEN,
}
_WHOLE_WORDS = frozenset(
    ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken")
)
"""A pre-token that is a vocabulary entry is taken whole, merges or not; these also start with BOS by default."""
_NFC = frozenset(("qwen2", "deepseek-r1-qwen"))
KNOWN_PRE = (*_DIGITS, *_GPT2, *_REGEX)


def convert(metadata: Mapping[str, Any], file: str) -> dict[str, Any]:
    """What ``tokenizer.py`` needs of a GGUF file.

    Keys: ``tokenizer`` (the ``tokenizer.json``), ``chat_template``, ``bos_id``, ``eos_ids``, ``add_bos``. ``file`` is
    for errors (ModelFileError): which key, what was expected, what was found.
    """
    kind = metadata.get("tokenizer.ggml.model")
    tokens = _strings(metadata, "tokenizer.ggml.tokens", file)
    types = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    if len(types) != len(tokens):
        raise ModelFileError(
            f"{file}: tokenizer.ggml.token_type has {len(types)} entries, expected {len(tokens)}, one a token"
        )
    if kind == "gpt2":
        spec, add_bos = _byte_level(metadata, tokens, file)
    elif kind == "llama":
        spec, add_bos = _sentencepiece(metadata, tokens, types, file)
    else:
        raise ModelFileError(
            f"{file}: tokenizer.ggml.model is {kind!r}; expected 'gpt2' or 'llama'",
            hint="Use the model's safetensors folder with its tokenizer.json.",
        )
    spec["added_tokens"] = [
        _added(i, token, special=types[i] != _USER_DEFINED)
        for i, token in enumerate(tokens)
        if types[i] in (_CONTROL, _USER_DEFINED) or (types[i] == _UNKNOWN and kind == "llama")
    ]
    return {
        "tokenizer": spec,
        "chat_template": metadata.get("tokenizer.chat_template"),
        "bos_id": _id(metadata, "bos", len(tokens), file),
        "eos_ids": [
            i for key in ("eos", "eot", "eom") if (i := _id(metadata, key, len(tokens), file)) is not None
        ],
        "add_bos": bool(metadata.get("tokenizer.ggml.add_bos_token", add_bos)),
    }


def _byte_level(metadata: Mapping[str, Any], tokens: list[str], file: str) -> tuple[dict[str, Any], bool]:
    pre = metadata.get("tokenizer.ggml.pre")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    if pre in _DIGITS:
        steps = [{"type": "Digits", "individual_digits": True}, byte_level]
    elif pre in _GPT2:
        steps = [byte_level]
    elif pre in _REGEX:
        split = {"type": "Split", "pattern": {"Regex": _REGEX[pre]}, "behavior": "Isolated", "invert": False}
        steps = [split, {**byte_level, "use_regex": False}]
    else:
        raise ModelFileError(
            f"{file}: tokenizer.ggml.pre is {pre!r}, a pre-tokenizer this version does not know; "
            f"known: {', '.join(sorted(KNOWN_PRE))}",
            hint="Use the model's safetensors folder with its tokenizer.json.",
        )
    vocab = {token: i for i, token in reversed(list(enumerate(tokens)))}
    spec = _spec(
        normalizer={"type": "NFC"} if pre in _NFC else None,
        pre_tokenizer=steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": steps},
        decoder=byte_level,
        vocab=vocab,
        merges=_merges(metadata, vocab, file),
        ignore_merges=pre in _WHOLE_WORDS,
    )
    return spec, pre in _WHOLE_WORDS


def _merges(metadata: Mapping[str, Any], vocab: Mapping[str, int], file: str) -> list[list[str]]:
    merges = []
    for number, line in enumerate(_strings(metadata, "tokenizer.ggml.merges", file)):
        # A piece may itself hold a space in odd files: the separator is the first one after the first character.
        at = line.find(" ", 1)
        left, right = line[:at], line[at + 1 :]
        if at < 0 or left not in vocab or right not in vocab or left + right not in vocab:
            raise ModelFileError(
                f"{file}: tokenizer.ggml.merges[{number}] is {line!r}: expected two vocabulary entries whose "
                "concatenation is one too"
            )
        merges.append([left, right])
    return merges


def _sentencepiece(
    metadata: Mapping[str, Any], tokens: list[str], types: list[int], file: str
) -> tuple[dict[str, Any], bool]:
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        found = len(scores) if isinstance(scores, list) else "none"
        raise ModelFileError(f"{file}: tokenizer.ggml.scores: expected {len(tokens)} numbers, found {found}")
    vocab = {token: i for i, token in reversed(list(enumerate(tokens)))}
    plain = {token for token, i in vocab.items() if types[i] not in (_UNKNOWN, _CONTROL, _USER_DEFINED)}
    # SentencePiece merges the pair whose result scores highest; as a list of merges that is: by falling score.
    ranked: list[tuple[float, int, int, str, str]] = []
    for piece in plain:
        score = float(scores[vocab[piece]])
        ranked += [
            (-score, vocab[left], vocab[right], left, right)
            for at in range(1, len(piece))
            if (left := piece[:at]) in plain and (right := piece[at:]) in plain
        ]
    ranked.sort()
    steps: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": " "}, "content": BLANK}]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        steps.insert(0, {"type": "Prepend", "prepend": BLANK})
    unknown = next((token for i, token in enumerate(tokens) if types[i] == _UNKNOWN), None)
    blanks = {"type": "Replace", "pattern": {"String": BLANK}, "content": " "}
    spec = _spec(
        normalizer={"type": "Sequence", "normalizers": steps},
        pre_tokenizer=None,
        decoder={"type": "Sequence", "decoders": [blanks, {"type": "ByteFallback"}, {"type": "Fuse"}]},
        vocab=vocab,
        merges=[[left, right] for *_, left, right in ranked],
        ignore_merges=False,
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=True,
    )
    return spec, True


def _spec(
    *,
    normalizer: dict[str, Any] | None,
    pre_tokenizer: dict[str, Any] | None,
    decoder: dict[str, Any],
    **model: Any,
) -> dict[str, Any]:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            **model,
        },
    }


def _added(token_id: int, content: str, *, special: bool) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": content, **flags, "special": special}


def _strings(metadata: Mapping[str, Any], key: str, file: str) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        found = "nothing" if value is None else type(value).__name__
        raise ModelFileError(f"{file}: {key}: expected a list of strings, found {found}")
    return value


def _id(metadata: Mapping[str, Any], which: str, size: int, file: str) -> int | None:
    key = f"tokenizer.ggml.{which}_token_id"
    value = metadata.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or not 0 <= value < size:
        raise ModelFileError(f"{file}: {key} is {value!r}; expected an id in 0..{size - 1}")
    return value
