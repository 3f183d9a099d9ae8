"""A strict reader of GGUF files: header, metadata, tensor table, raw tensor bytes.

Runs in the tokenizer process (vocabulary, chat template) and in the scheduler process (weights); no torch here, and no
knowledge of models: names and shapes are judged by ``loader``. A header is input from a stranger, so every count,
length, dimension and offset is checked as a Python int (which cannot wrap) against caps and against the file's size
*before* it is used.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from sgnb.engine.model_executor.tensor_file import TensorFile, TensorInfo

MAX_TENSORS = 65_536
MAX_KEYS = 65_536
MAX_STRING = 16 << 20
MAX_ARRAY = 4 << 20
MAX_NAME = 256
MAX_DIMS = 4
MAX_ALIGNMENT = 1 << 20
MAX_HEADER = 256 << 20
_WINDOW = 4 << 20

TYPE_NAMES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K",
    12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip

BLOCKS: dict[str, tuple[int, int]] = {
    "F32": (1, 4), "F16": (1, 2), "BF16": (1, 2), "Q4_0": (32, 18), "Q4_1": (32, 20), "Q8_0": (32, 34),
    "Q4_K": (256, 144), "Q6_K": (256, 210),
}  # fmt: skip
"""Supported types: elements and bytes of one block."""

_SCALARS = {
    0: ("B", 1), 1: ("b", 1), 2: ("H", 2), 3: ("h", 2), 4: ("I", 4), 5: ("i", 4), 6: ("f", 4), 7: ("?", 1),
    10: ("Q", 8), 11: ("q", 8), 12: ("d", 8),
}  # fmt: skip
_STRING, _ARRAY = 8, 9


class GGUFReader(TensorFile):
    """An open, validated GGUF file.

    ``metadata`` maps keys to int, float, bool, str or list. Raises ModelFileError for anything that is not a sound GGUF
    file of version 2 or 3 in little-endian order.
    """

    def __init__(self, path: str | Path) -> None:
        self.version = 0
        self.alignment = 32
        self.metadata: dict[str, Any] = {}
        super().__init__(path)

    # ------------------------------------------------------------ header

    def _parse(self) -> None:
        cursor = _Cursor(self._fd, self.size, self._fail)
        magic = cursor.take(4, "magic")
        if magic != b"GGUF":
            self._fail(f"not a GGUF file: expected magic b'GGUF', found {magic!r}")
        self.version = cursor.scalar("I", 4, "version")
        if self.version not in (2, 3):
            if int.from_bytes(self.version.to_bytes(4, "little"), "big") in (1, 2, 3):
                self._fail("big-endian byte order is not supported: expected little-endian")
            self._fail(f"version: expected 2 or 3, found {self.version}")
        n_tensors = cursor.count("tensor count", MAX_TENSORS, unit=8 + 1 + 4 + 8 + 4 + 8)
        n_keys = cursor.count("metadata count", MAX_KEYS, unit=8 + 4 + 1)
        for i in range(n_keys):
            key = cursor.string(f"metadata key {i}", cap=65_535)
            if key in self.metadata:
                self._fail(f"duplicate metadata key {key!r}")
            kind = cursor.scalar("I", 4, f"type of {key!r}")
            self.metadata[key] = cursor.value(kind, f"metadata {key!r}")
        self.alignment = self._alignment()
        rows = [self._tensor_row(cursor, i) for i in range(n_tensors)]
        data_start = -(-cursor.offset // self.alignment) * self.alignment
        self._place(rows, data_start)

    def _alignment(self) -> int:
        value = self.metadata.get("general.alignment", 32)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= MAX_ALIGNMENT:
            self._fail(f"general.alignment: expected a power of two up to {MAX_ALIGNMENT}, found {value!r}")
        if value & (value - 1):
            self._fail(f"general.alignment: expected a power of two, found {value}")
        return int(value)

    def _tensor_row(self, cursor: _Cursor, i: int) -> TensorInfo:
        """One row with its offset still relative to the data section."""
        name = cursor.string(f"name of tensor {i}", cap=MAX_NAME)
        n_dims = cursor.scalar("I", 4, f"tensor {name!r}: dimension count")
        if not 1 <= n_dims <= MAX_DIMS:
            self._fail(f"tensor {name!r}: expected 1 to {MAX_DIMS} dimensions, found {n_dims}")
        dims = [cursor.scalar("Q", 8, f"tensor {name!r}: dimension {d}") for d in range(n_dims)]
        kind = cursor.scalar("I", 4, f"tensor {name!r}: type")
        offset = cursor.scalar("Q", 8, f"tensor {name!r}: offset")
        type_name = TYPE_NAMES.get(kind)
        if type_name not in BLOCKS:
            self._fail(
                f"tensor {name!r}: type {type_name or kind} is not supported; supported: {', '.join(BLOCKS)}"
            )
        elements, block_bytes = BLOCKS[type_name]
        total = 1
        for dim in dims:
            if dim < 1:
                self._fail(f"tensor {name!r}: expected dimensions of at least 1, found {dims}")
            total *= dim
        if dims[0] % elements:
            self._fail(
                f"tensor {name!r}: {type_name} needs rows of a multiple of {elements} elements, found {dims[0]}"
            )
        nbytes = total // elements * block_bytes
        return TensorInfo(name, tuple(reversed(dims)), type_name, offset, nbytes)

    def _place(self, rows: list[TensorInfo], data_start: int) -> None:
        """Check names, bounds and overlaps; make offsets absolute. The last tensor needs no padding behind it."""
        for row in rows:
            if row.name in self.tensors:
                self._fail(f"tensor {row.name!r}: the name is there twice")
            if row.offset % self.alignment:
                self._fail(
                    f"tensor {row.name!r}: offset: expected a multiple of {self.alignment}, found {row.offset}"
                )
            end = data_start + row.offset + row.nbytes
            if end > self.size:
                self._fail(
                    f"tensor {row.name!r} ({row.type} {list(row.shape)}): its data end at byte {end}, "
                    f"beyond the file: expected at least {end} bytes, found {self.size} (truncated?)"
                )
            self.tensors[row.name] = TensorInfo(
                row.name, row.shape, row.type, data_start + row.offset, row.nbytes
            )
        ordered = sorted(self.tensors.values(), key=lambda t: t.offset)
        for before, after in itertools.pairwise(ordered):
            if before.offset + before.nbytes > after.offset:
                self._fail(
                    f"tensor {after.name!r} overlaps tensor {before.name!r}: expected it from byte "
                    f"{before.offset + before.nbytes}, found {after.offset}"
                )


class _Cursor:
    """Sequential reads of the header with bounds; keeps a window of the file, so a huge file costs nothing."""

    def __init__(self, fd: int, size: int, fail: Callable[[str], NoReturn]) -> None:
        self._fd = fd
        self._size = min(size, MAX_HEADER)
        self._fail = fail
        self._base = 0
        self._window = b""
        self.offset = 0

    def take(self, n: int, what: str) -> bytes:
        """The next ``n`` bytes."""
        if n > self._size - self.offset:
            self._fail(
                f"{what}: the file ends too early: expected {n} bytes at {self.offset}, "
                f"found {self._size - self.offset}"
            )
        start = self.offset - self._base
        if start + n > len(self._window):
            self._base, start = self.offset, 0
            self._window = os.pread(self._fd, max(n, _WINDOW), self.offset)
            if len(self._window) < n:
                self._fail(f"{what}: the file shrank while it was being read")
        self.offset += n
        return self._window[start : start + n]

    def scalar(self, code: str, size: int, what: str) -> Any:
        return struct.unpack("<" + code, self.take(size, what))[0]

    def count(self, what: str, cap: int, unit: int) -> int:
        """A 64-bit count: at most ``cap``, and not more than fit in the rest of the file at ``unit`` bytes each."""
        value: int = self.scalar("Q", 8, what)
        room = (self._size - self.offset) // unit
        if value > cap:
            self._fail(f"{what}: expected at most {cap}, found {value}")
        if value > room:
            self._fail(f"{what}: expected at most {room} (all that the file can hold), found {value}")
        return value

    def string(self, what: str, cap: int = MAX_STRING) -> str:
        raw = self.take(self.count(f"length of {what}", cap, 1), what)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self._fail(f"{what}: expected UTF-8 text, found {raw[:32]!r}")

    def value(self, kind: int, what: str) -> Any:
        """One metadata value of type ``kind``; arrays of scalars and strings, not of arrays."""
        if kind in _SCALARS:
            return self.scalar(*_SCALARS[kind], what)
        if kind == _STRING:
            return self.string(what)
        if kind != _ARRAY:
            self._fail(f"{what}: expected a value type 0..12, found {kind}")
        inner = self.scalar("I", 4, what)
        if inner in _SCALARS:
            code, size = _SCALARS[inner]
            n = self.count(f"length of {what}", MAX_ARRAY, size)
            return list(struct.unpack(f"<{n}{code}", self.take(n * size, what)))
        if inner != _STRING:
            self._fail(f"{what}: expected an array of numbers or strings, found element type {inner}")
        n = self.count(f"length of {what}", MAX_ARRAY, 8)
        return [self.string(what) for _ in range(n)]
