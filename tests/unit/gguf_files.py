"""Builds small GGUF files byte by byte, so that tests can make any part of the header lie."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "Q4_K": 12, "Q6_K": 14, "BF16": 30}


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


@dataclass
class Value:
    """A metadata value: GGUF type number and its bytes."""

    kind: int
    raw: bytes


def value(v: Any) -> Value:
    if isinstance(v, Value):
        return v
    if isinstance(v, bool):
        return Value(7, struct.pack("<?", v))
    if isinstance(v, int):
        return Value(4, struct.pack("<I", v))
    if isinstance(v, float):
        return Value(6, struct.pack("<f", v))
    if isinstance(v, str):
        return Value(8, string(v))
    inner = [value(x) for x in v]
    return Value(9, struct.pack("<IQ", inner[0].kind, len(inner)) + b"".join(x.raw for x in inner))


@dataclass
class Tensor:
    """``dims`` innermost first, as in the file; ``offset`` relative to the data section, None: behind the last one."""

    name: str
    dims: list[int]
    data: bytes
    type: int = 0
    offset: int | None = None
    n_dims: int | None = None


@dataclass
class File:
    """Fields left None are written truthfully."""

    tensors: list[Tensor] = field(default_factory=list)
    metadata: dict[str, Any] | list[tuple[str, Any]] = field(default_factory=dict)
    magic: bytes = b"GGUF"
    version: int = 3
    n_tensors: int | None = None
    n_keys: int | None = None
    alignment: int = 32

    def build(self) -> bytes:
        pairs = list(self.metadata.items()) if isinstance(self.metadata, dict) else self.metadata
        out = self.magic + struct.pack("<I", self.version)
        out += struct.pack("<Q", len(self.tensors) if self.n_tensors is None else self.n_tensors)
        out += struct.pack("<Q", len(pairs) if self.n_keys is None else self.n_keys)
        for key, v in pairs:
            encoded = value(v)
            out += string(key) + struct.pack("<I", encoded.kind) + encoded.raw
        at = 0
        blobs = b""
        for t in self.tensors:
            blobs += b"\0" * (at - len(blobs))
            offset = at if t.offset is None else t.offset
            out += string(t.name) + struct.pack("<I", len(t.dims) if t.n_dims is None else t.n_dims)
            out += b"".join(struct.pack("<Q", d % 2**64) for d in t.dims)
            out += struct.pack("<IQ", t.type, offset % 2**64)
            blobs += t.data
            at = -(-len(blobs) // self.alignment) * self.alignment
        return out + b"\0" * (-len(out) % self.alignment) + blobs


def sample(alignment: int = 32) -> File:
    """Three tensors of two types, some metadata of every kind; the last tensor is not padded."""
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "a.flag": True,
        "a.int": 7,
        "a.float": 0.5,
        "a.list": [1, 2, 3],
        "a.words": ["x", "yö", ""],
    }
    if alignment != 32:
        metadata["general.alignment"] = alignment
    return File(
        tensors=[
            Tensor("w.a", [4, 3], bytes(range(48))),
            Tensor("w.b", [5], bytes(20)),
            Tensor("w.c", [32, 3], bytes(60), TYPES["Q4_1"]),
        ],
        metadata=metadata,
        alignment=alignment,
    )
