"""A strict reader of one ``.safetensors`` file: header check, then raw tensor bytes.

Runs in the scheduler process, used by ``loader``; no torch, no model knowledge. The same rules as for GGUF: the header
is a stranger's input, so its length is capped, names are unique, sizes follow from shapes, and the data section is
covered without hole or overlap, all before anything is read.
"""

from __future__ import annotations

import json
import os
from typing import Any

from sgnb.engine.model_executor.tensor_file import TensorFile, TensorInfo

MAX_HEADER = 16 << 20
MAX_TENSORS = 65_536
ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
"""Supported element types and their bytes."""


class SafetensorsFile(TensorFile):
    """An open, validated file. Raises ModelFileError for anything unsound."""

    def _parse(self) -> None:
        if self.size < 8:
            self._fail(f"not a safetensors file: expected at least 8 bytes, found {self.size}")
        length = int.from_bytes(os.pread(self._fd, 8, 0), "little")
        if length > min(MAX_HEADER, self.size - 8):
            self._fail(
                f"header length: expected at most {min(MAX_HEADER, self.size - 8)}, found {length} (truncated?)"
            )
        try:
            header = json.loads(os.pread(self._fd, length, 8), object_pairs_hook=self._unique)
        except (ValueError, RecursionError) as error:
            self._fail(f"header: expected JSON: {type(error).__name__}")
        if not isinstance(header, dict):
            self._fail(f"header: expected an object, found {type(header).__name__}")
        header.pop("__metadata__", None)
        if len(header) > MAX_TENSORS:
            self._fail(f"header: expected at most {MAX_TENSORS} tensors, found {len(header)}")
        base = 8 + length
        rows = [self._row(name, entry, base) for name, entry in header.items()]
        end = base
        for row in sorted(rows, key=lambda r: (r.offset, r.nbytes)):
            if row.offset != end:
                self._fail(
                    f"tensor {row.name!r}: data expected from byte {end}, found {row.offset} (overlap or hole)"
                )
            end += row.nbytes
        if end != self.size:
            self._fail(f"the tensors end at byte {end}, but the file has {self.size} (truncated?)")
        self.tensors.update((row.name, row) for row in rows)

    def _unique(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        out = dict(pairs)
        if len(out) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            self._fail(f"header: {twice!r} is there twice")
        return out

    def _row(self, name: str, entry: Any, base: int) -> TensorInfo:
        """One header entry; offsets are made absolute."""
        try:
            dtype, shape, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
            ints = [start, stop, *shape]
        except (TypeError, KeyError, ValueError):
            self._fail(f"tensor {name!r}: expected dtype, shape and data_offsets, found {str(entry)[:200]}")
        if dtype not in ITEM_BYTES:
            self._fail(f"tensor {name!r}: type {dtype} is not supported; supported: {', '.join(ITEM_BYTES)}")
        if any(type(value) is not int or value < 0 for value in ints) or len(shape) > 8:
            self._fail(
                f"tensor {name!r}: expected non-negative whole numbers, found shape {shape}, {start}, {stop}"
            )
        nbytes = ITEM_BYTES[dtype]
        for dim in shape:
            nbytes *= dim
        if stop - start != nbytes:
            self._fail(
                f"tensor {name!r}: {dtype} {shape} needs {nbytes} bytes, its offsets give {stop - start}"
            )
        if base + stop > self.size:
            self._fail(
                f"tensor {name!r}: its data end at byte {base + stop}, beyond the file: found {self.size} bytes "
                "(truncated?)"
            )
        return TensorInfo(name, tuple(shape), dtype, base + start, nbytes)
