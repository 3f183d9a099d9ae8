"""A disk whose n-th write fails: opening for writing, writing, making folders and renaming count."""

from __future__ import annotations

import builtins
import errno
import io
import os
from typing import Any

import pytest

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class FullDisk:
    """Installed through ``monkeypatch``; ``failed`` tells whether the n-th write came. Later ones work again, unless
    ``for_good``.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, nth: int, *, for_good: bool = False) -> None:
        self.failed = False
        self._left = nth
        self._for_good = for_good
        for name in ("mkdir", "replace", "rename", "fsync"):
            monkeypatch.setattr(os, name, self._counting(getattr(os, name)))
        self._os_open, self._open, self._fdopen = os.open, io.open, os.fdopen
        monkeypatch.setattr(os, "open", self._open_descriptor)
        monkeypatch.setattr(os, "fdopen", self._open_file_of)
        for module in (io, builtins):
            monkeypatch.setattr(module, "open", self._open_file)

    def count(self) -> None:
        """One write."""
        self._left -= 1
        if self._left == 0 or (self._for_good and self._left < 0):
            self.failed = True
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _counting(self, real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.count()
            return real(*args, **kwargs)

        return call

    def _open_descriptor(self, path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & _WRITING:
            self.count()
        return self._os_open(path, flags, *args, **kwargs)

    def _open_file(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if not set(mode) & set("wax+"):
            return self._open(file, mode, *args, **kwargs)
        self.count()
        return self._counted(self._open(file, mode, *args, **kwargs))

    def _open_file_of(self, fd: int, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        file = self._fdopen(fd, mode, *args, **kwargs)
        return self._counted(file) if set(mode) & set("wax+") else file

    def _counted(self, file: Any) -> Any:
        disk = self

        class Counted:
            def __enter__(self) -> Any:
                return self

            def __exit__(self, *error: object) -> None:
                file.close()

            def write(self, data: Any) -> int:
                disk.count()
                return int(file.write(data))

            def __getattr__(self, name: str) -> Any:
                return getattr(file, name)

        return Counted()
