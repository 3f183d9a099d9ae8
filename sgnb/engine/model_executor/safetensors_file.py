"""A strict reader of one ``.safetensors`` file: header check, then raw tensor bytes.

Runs in the scheduler process, used by ``loader``; no torch, no model knowledge. The same rules as for GGUF: the header
is a stranger's input, so its length is capped, names are unique, sizes follow from shapes, and the data section is
covered without hole or overlap, all before anything is read. Reads with ``pread`` and never maps.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from sgnb.errors import ModelFileError

MAX_HEADER = 16 << 20
MAX_TENSORS = 65_536
ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
"""Supported element types and their bytes."""


@dataclass(frozen=True, slots=True)
class SafeTensorInfo:
    """``offset`` in bytes from the start of the file."""

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int
    nbytes: int


class SafetensorsFile:
    """An open, validated file; ``tensors`` by name. Raises ModelFileError for anything unsound."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.exists() and not path.is_file():  # a FIFO would block the open
            raise ModelFileError(f"{path}: expected a file")
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise ModelFileError(f"{path}: cannot be opened: {error.strerror}") from None
        try:
            stat = os.fstat(self._fd)
            self.size = stat.st_size
            self._mtime = stat.st_mtime_ns
            self.tensors = self._parse()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file. Idempotent."""
        fd, self._fd = getattr(self, "_fd", -1), -1
        if fd >= 0:
            os.close(fd)

    def read(self, name: str) -> npt.NDArray[np.uint8]:
        """Raw bytes of tensor ``name`` in memory; ModelFileError if the file changed since it was opened."""
        info = self.tensors[name]
        buffer = np.empty(info.nbytes, dtype=np.uint8)
        view = buffer.data
        done = 0
        while done < info.nbytes:
            got = os.preadv(self._fd, [view[done:]], info.offset + done)
            if got == 0:
                break
            done += got
        stat = os.fstat(self._fd)
        if done < info.nbytes or stat.st_size != self.size or stat.st_mtime_ns != self._mtime:
            self._fail(
                f"tensor {name!r}: the file changed while it was being read: expected {self.size} bytes, "
                f"found {stat.st_size}"
            )
        return buffer

    def _fail(self, what: str) -> NoReturn:
        raise ModelFileError(f"{self.path}: {what}", hint="The file is damaged or foreign: fetch it again.")

    def _parse(self) -> dict[str, SafeTensorInfo]:
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
        return {row.name: row for row in rows}

    def _unique(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        out = dict(pairs)
        if len(out) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            self._fail(f"header: {twice!r} is there twice")
        return out

    def _row(self, name: str, entry: Any, base: int) -> SafeTensorInfo:
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
        return SafeTensorInfo(name, tuple(shape), dtype, base + start, nbytes)
