"""Files of the tokenizer cache: whole or not there, whoever else writes them, whatever happens to the disk.

Tokenizer process; used by ``tokenizer`` and ``chat_template``. A file is its content's SHA-256 and the content, written
beside its place and renamed into it: two processes may write the same one at once, and a damaged one is seen even where
it still parses. The cache is a help: nothing here raises because of it. What the content means is not known here.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from pathlib import Path

log = logging.getLogger(__name__)

_DIGEST_BYTES = hashlib.sha256().digest_size


def read_cached(path: Path) -> bytes | None:
    """The content, or None when there is none to be used; a damaged file is told in the log."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        log.warning("%s: not usable, it is made again: %s", path, error)
        return None
    digest, content = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if hashlib.sha256(content).digest() != digest:
        log.warning("%s: damaged, it is made again", path)
        return None
    return content


def write_cached(path: Path, content: bytes) -> None:
    """Write by rename. A cache that cannot be written is a warning, never an error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=".tmp-")
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(hashlib.sha256(content).digest() + content)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        log.warning("%s: cannot be cached: %s", path, error)
