"""The bytes each token id stands for.

Tokenizer process; made once at load by ``tokenizer.py``, read by the detokenizer and sent to the scheduler, which finds
stop strings with it. Concatenating the entries of ids gives the UTF-8 of their text, exactly: half characters, leading
spaces and runs of blanks included. Pure; nothing here knows sessions or requests.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from sgnb.errors import ModelFileError

BLANK = "▁"
"""SentencePiece writes a space as this character (U+2581)."""
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@cache
def byte_to_char() -> tuple[str, ...]:
    """GPT-2's map: printable Latin-1 bytes stand for themselves, the others for U+0100 and on, in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    chars, extra = [], 0x100
    for byte in range(256):
        if byte in printable:
            chars.append(chr(byte))
        else:
            chars.append(chr(extra))
            extra += 1
    return tuple(chars)


@cache
def _char_to_latin() -> dict[int, int]:
    """For ``str.translate``: a map character to the Latin-1 character of its byte, any other low one to none at all."""
    strays: dict[int, int] = dict.fromkeys(range(256), 0xFFFF)
    return strays | {ord(char): byte for byte, char in enumerate(byte_to_char())}


def is_byte_level(spec: Mapping[str, Any]) -> bool:
    """True when the vocabulary of a ``tokenizer.json`` is written in GPT-2's byte characters."""
    parts = [*walk(spec.get("pre_tokenizer")), *walk(spec.get("decoder"))]
    return any(part.get("type") == "ByteLevel" for part in parts)


def walk(part: Any) -> Iterator[dict[str, Any]]:
    """A pipeline part of ``tokenizer.json`` and, for sequences, all the parts inside."""
    if not isinstance(part, dict):
        return
    yield part
    for key in ("pretokenizers", "normalizers", "decoders", "processors"):
        for inner in part.get(key) or ():
            yield from walk(inner)


def vocabulary(spec: Mapping[str, Any], name: str) -> dict[int, str]:
    """Id → piece of the model part, without the added tokens. ``name`` is for the error."""
    model = spec.get("model") or {}
    kind = model.get("type")
    vocab = model.get("vocab")
    if kind == "Unigram" and isinstance(vocab, list):
        return {i: str(piece) for i, (piece, _score) in enumerate(vocab)}
    if kind == "BPE" and isinstance(vocab, dict):
        return {int(i): str(piece) for piece, i in vocab.items()}
    raise ModelFileError(
        f"tokenizer of {name}: model type {kind!r} is not supported; expected BPE or Unigram",
        hint="Use a model with a byte-level or SentencePiece tokenizer.",
    )


def piece_bytes(piece: str, byte_level: bool) -> bytes:
    """The bytes of one vocabulary entry."""
    if byte_level:
        try:
            return piece.translate(_char_to_latin()).encode("latin-1")
        except UnicodeEncodeError:  # an entry stored as plain text, as added tokens are
            return piece.encode("utf-8", "surrogatepass")
    if match := _BYTE_PIECE.fullmatch(piece):
        return bytes([int(match[1], 16)])
    return piece.replace(BLANK, " ").encode()


def build(spec: Mapping[str, Any], name: str) -> list[bytes]:
    """The table of a ``tokenizer.json``, indexed by id; ids that do not exist have no bytes."""
    byte_level = is_byte_level(spec)
    entries = {i: piece_bytes(piece, byte_level) for i, piece in vocabulary(spec, name).items()}
    for token in added_tokens(spec):
        # Added tokens are plain text in both kinds; SentencePiece files write blanks in the ordinary ones.
        content = str(token["content"])
        if not byte_level and not token.get("special"):
            content = content.replace(BLANK, " ")
        entries[int(token["id"])] = content.encode()
    if not entries:
        raise ModelFileError(f"tokenizer of {name}: the vocabulary is empty")
    return [entries.get(i, b"") for i in range(max(entries) + 1)]


def added_tokens(spec: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    """The added tokens of a ``tokenizer.json``."""
    found: Iterable[Mapping[str, Any]] = spec.get("added_tokens") or ()
    return found
