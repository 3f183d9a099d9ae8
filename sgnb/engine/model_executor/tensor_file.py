"""An open file of tensors: what GGUF and safetensors readers share. Opened once, read with ``pread``, never mapped.

Runs where its readers run (``gguf``: both engine processes; ``safetensors_file``: the scheduler process); no torch. A file
that is truncated or replaced while it is read gives an error, not a SIGBUS. Formats do not belong here: a subclass parses
its header in ``_parse``.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Self

import numpy as np
import numpy.typing as npt

from sgnb.errors import ModelFileError


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a file. ``shape`` is row-major (outermost first); ``offset`` counts from the file's start."""

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int
    nbytes: int


class TensorFile(ABC):
    """Opens ``path`` and has the subclass check its header; ``tensors`` maps names to TensorInfo in file order.

    Raises ModelFileError for what cannot be opened or is not sound. Use as a context manager or call ``close``.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.exists() and not self.path.is_file():  # a FIFO would block the open
            raise ModelFileError(f"{self.path}: expected a file")
        try:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise ModelFileError(f"{self.path}: cannot be opened: {error.strerror}") from None
        try:
            stat = os.fstat(self._fd)
            self.size = stat.st_size
            self._mtime = stat.st_mtime_ns
            self.tensors: dict[str, TensorInfo] = {}
            self._parse()
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _parse(self) -> None:
        """Check the header and fill ``tensors``."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Idempotent."""
        fd, self._fd = getattr(self, "_fd", -1), -1
        if fd >= 0:
            os.close(fd)

    def read(self, name: str) -> npt.NDArray[np.uint8]:
        """Raw bytes of tensor ``name``, copied into memory. ModelFileError if the file shrank or changed since it was
        opened, KeyError for an unknown name."""
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
