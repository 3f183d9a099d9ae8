"""The literal view of a vocabulary, as a ``tokenizer.json``: user text can form no token it should not.

Tokenizer process; used by ``tokenizer.py`` at load. Every added token that is special, occurs in the chat template, or
is not only whitespace is taken out, and with it the merges and pieces that could build its text. The same twin has no
BOS and no dummy prefix: those are put once, at the start of a session, by ``tokenizer.py``. Pure dict work, and the one
place that makes objects of the ``tokenizers`` library.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any, Literal

import tokenizers

from sgnb.engine.tokenizer import byte_table
from sgnb.engine.tokenizer.borders import Encode
from sgnb.errors import ModelFileError

DummyPrefix = Literal["", "always", "unless_space"]
"""When a space is put before the first text of a session."""
_INERT = ("NFC", "Replace", "Prepend", "Sequence")


def is_dropped(token: Mapping[str, Any], chat_template: str | None) -> bool:
    """True for an added token that literal text must not form."""
    content = str(token["content"])
    blank = not content.replace(byte_table.BLANK, " ").strip()
    return bool(token.get("special")) or not blank or (chat_template is not None and content in chat_template)


def plain_spec(spec: Mapping[str, Any], dropped: set[str]) -> tuple[dict[str, Any], DummyPrefix, bool]:
    """The literal view's ``tokenizer.json``, its dummy prefix, and whether its normaliser allows early cuts."""
    plain = dict(spec)
    plain["added_tokens"] = [t for t in byte_table.added_tokens(spec) if t["content"] not in dropped]
    plain["post_processor"] = plain["truncation"] = plain["padding"] = None
    kept = {str(token["content"]): int(token["id"]) for token in plain["added_tokens"]}
    plain["model"] = _model_part(spec["model"], dropped, kept)
    dummy: DummyPrefix = ""
    plain["normalizer"] = copy.deepcopy(spec.get("normalizer"))
    inert = True
    for part in byte_table.walk(plain["normalizer"]):
        inert = inert and part.get("type") in _INERT
        if part.get("type") == "Replace":
            inert = (
                inert and part.get("pattern") == {"String": " "} and part.get("content") == byte_table.BLANK
            )
        if part.get("type") == "Prepend":
            inert = inert and part.get("prepend") == byte_table.BLANK
            dummy = "always"
    plain["normalizer"] = _without_prepend(plain["normalizer"])
    plain["pre_tokenizer"] = copy.deepcopy(spec.get("pre_tokenizer"))
    for part in byte_table.walk(plain["pre_tokenizer"]):
        if part.get("type") == "Metaspace" and part.get("prepend_scheme", "always") != "never":
            part["prepend_scheme"] = "never"
            part.pop("add_prefix_space", None)
            dummy = "unless_space"
        elif part.get("type") == "ByteLevel" and part.get("add_prefix_space"):
            part["add_prefix_space"] = False
            dummy = "unless_space"
    return plain, dummy, inert


def _without_prepend(normalizer: dict[str, Any] | None) -> dict[str, Any] | None:
    if normalizer is None or normalizer.get("type") == "Prepend":
        return None
    if normalizer.get("type") == "Sequence":
        kept = [n for part in normalizer["normalizers"] if (n := _without_prepend(part)) is not None]
        return {"type": "Sequence", "normalizers": kept}
    return normalizer


def _model_part(model: Mapping[str, Any], dropped: set[str], kept: Mapping[str, int]) -> dict[str, Any]:
    """The model part, unable to build a dropped token's text by merges or as a piece; ids stay as they are.

    The library numbers added tokens that are not in the vocabulary by itself, in order: with others dropped they would
    move, so the kept ones are put into it.
    """
    out = dict(model)
    if model.get("type") == "Unigram":
        # Ids are positions here, so a piece is made unreachable instead of removed.
        pieces = [
            [_unreachable(i), score] if piece in dropped else [piece, score]
            for i, (piece, score) in enumerate(model["vocab"])
        ]
        known = {piece for piece, _ in pieces}
        for content, token_id in sorted(kept.items(), key=lambda item: item[1]):
            if content not in known:
                pieces += [[_unreachable(i), -1e9] for i in range(len(pieces), token_id + 1)]
                pieces[token_id] = [content, -1e9]
        out["vocab"] = pieces
        return out
    lost = dropped - {model.get("unk_token")}
    pairs = [m if isinstance(m, list) else m.split(" ", 1) for m in model.get("merges") or ()]
    out["merges"] = [
        pair
        for pair in pairs
        if pair[0] + pair[1] not in dropped and pair[0] not in dropped and pair[1] not in dropped
    ]
    out["vocab"] = {**kept, **{piece: i for piece, i in model["vocab"].items() if piece not in lost}}
    return out


def _unreachable(number: int) -> str:
    return f"\U0010ffff{number}"


def check_literal(dropped: Mapping[str, int], encode: Encode, name: str) -> None:
    """No text of a dropped token (text → id) may give its id: that is what keeps user text from forging one."""
    for (content, token_id), ids in zip(dropped.items(), encode(list(dropped)), strict=True):
        if token_id in ids:
            raise ModelFileError(
                f"tokenizer of {name}: the text {content!r} still gives token {token_id} when it is literal",
                hint="The vocabulary is damaged or of a kind this version does not know.",
            )


def make_library(spec: Mapping[str, Any], name: str) -> Any:
    """The library's tokenizer for a ``tokenizer.json``; ModelFileError when it refuses it."""
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(spec))
    except Exception as error:  # the library raises plain Exception for everything
        raise ModelFileError(f"tokenizer of {name}: the tokenizers library refuses it: {error}") from None
