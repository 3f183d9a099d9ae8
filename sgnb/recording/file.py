"""The file of a recording, ``*.sgnb``: an opening, then frames that are only ever appended.

Any process: the notebook writes it, notebook, command line and simulator read it. A leaf but for ``messages``: no engine, no
sockets, no folding of events (``moment``). ::

    opening   89 's' 'g' 'n' 'b' 0D 0A 1A · u16 format · u8 length · version of sgnb in ASCII
    frame     u32 length · u32 CRC-32 · u8 1: deflated, 0: not · length bytes of MessagePack, one ``Item``

Numbers are little-endian. Nothing refers to a later place, so whatever was written before a crash, up to the last whole
frame, can be read. Sizes are bounded before anything is allocated.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from sgnb.config import EngineArgs
from sgnb.errors import RecordingError
from sgnb.messages import ModelInfo, Numbered, OwnTokensPart, Snapshot, Wire

MAGIC = b"\x89sgnb\r\n\x1a"
FORMAT = 1
SUFFIX = ".sgnb"
MAX_STORED_BYTES = 32 << 20
"""Of one frame in the file."""
MAX_FRAME_BYTES = 64 << 20
"""Of one frame when inflated."""
_DEFLATE_FROM = 256
_FRAME = struct.Struct("<IIB")


class RecordingHeader(Wire, frozen=True, kw_only=True, tag="header"):
    """Who was recorded, and when: ``started`` in seconds since the epoch. ``client`` made the recording; with ``text``,
    its own requests' token ids and their bytes are in it."""

    sgnb: str
    engine: str
    incarnation: str
    started: float
    client: int
    text: bool
    args: EngineArgs | None = None
    model: ModelInfo | None = None


class Events(Wire, frozen=True, kw_only=True, tag="events"):
    """Events in the order of their numbers."""

    items: list[Numbered]


class Gap(Wire, frozen=True, kw_only=True, tag="gap"):
    """Events ``from_seq … to_seq`` are missing; a Snapshot follows."""

    from_seq: int
    to_seq: int
    reason: str


class Lost(Wire, frozen=True, kw_only=True, tag="lost"):
    """Token ids of so many requests are missing."""

    requests: int


class End(Wire, frozen=True, kw_only=True, tag="end"):
    """The recording was ended, and why."""

    time: float
    reason: str


Item = RecordingHeader | Snapshot | Events | OwnTokensPart | Gap | Lost | End


class FrameWriter:
    """Appends items to a new file. OSError passes through (a full disk); what was appended before stays readable."""

    def __init__(self, path: Path, version: str) -> None:
        """Create the file, readable by its user alone. Raises RecordingError when it is there and is no recording."""
        if path.exists() and not is_recording(path):
            raise RecordingError(f"{path} exists and is no recording", hint="Give another name.")
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._file = os.fdopen(number, "wb", buffering=0)
        self._encoder = msgspec.msgpack.Encoder()
        self.size = 0
        name = version.encode("ascii", "replace")[:255]
        try:
            self._write(MAGIC + struct.pack("<HB", FORMAT, len(name)) + name)
        except OSError:
            self.close()
            raise

    def append(self, item: Item) -> None:
        """Write one item and hand it to the system."""
        payload = self._encoder.encode(item)
        if len(payload) > MAX_FRAME_BYTES:
            raise RecordingError(
                f"a frame of {len(payload):,} bytes is over the limit of {MAX_FRAME_BYTES:,}",
                hint="This is a fault of sgnb.",
            )
        deflated = len(payload) >= _DEFLATE_FROM
        stored = zlib.compress(payload, 6) if deflated else payload
        self._write(_FRAME.pack(len(stored), zlib.crc32(stored), deflated) + stored)

    def _write(self, data: bytes) -> None:
        written = 0
        try:
            while written < len(data):
                written += self._file.write(data[written:]) or 0
        except OSError:
            self._file.truncate(self.size)  # half a frame would make all that follows it unreadable
            self._file.seek(self.size)
            raise
        self.size += written

    def close(self) -> None:
        """Close the file; never raises, since all that matters was flushed."""
        try:
            self._file.close()
        except OSError:
            pass  # a full disk shows at every write before this one


def is_recording(path: Path) -> bool:
    """True for a file that begins like a recording, of any version; for an empty one too."""
    try:
        with path.open("rb") as file:
            return path.is_file() and file.read(len(MAGIC)) in (MAGIC, b"")
    except OSError:
        return False


class FrameReader:
    """Reads a recording from its beginning, as often as asked. ``damage`` says what ended the last reading early."""

    def __init__(self, path: Path) -> None:
        """Check the opening. Raises RecordingError: no file, no recording, another version."""
        self.path = path
        self.damage = ""
        self._decoder = msgspec.msgpack.Decoder(Item)
        try:
            with path.open("rb") as file:
                self.version, self._start = self._opening(file)
        except OSError as error:
            raise RecordingError(f"{path} cannot be read: {error.strerror or error}") from None

    def _opening(self, file: BinaryIO) -> tuple[str, int]:
        opening = file.read(len(MAGIC) + 3)
        if not opening.startswith(MAGIC) or len(opening) < len(MAGIC) + 3:
            raise RecordingError(
                f"{self.path} is no recording of sgnb", hint="Recordings are made by %sgl record start FILE."
            )
        number, length = struct.unpack("<HB", opening[len(MAGIC) :])
        version = file.read(length).decode("ascii", "replace")
        if number != FORMAT:
            raise RecordingError(
                f"This recording was written by sgnb {_printable(version)} and cannot be read.",
                hint=f"{self.path} has format {number}, this sgnb reads format {FORMAT}.",
            )
        return version, file.tell()

    def items(self) -> Iterator[Item]:
        """All items up to the last whole frame. A damaged frame ends it with RecordingError; a file that merely stops
        inside a frame (a crash, a full disk) ends it quietly and is told by ``damage``."""
        self.damage = ""
        with self.path.open("rb") as file:
            file.seek(self._start)
            while (item := self._next(file)) is not None:
                yield item

    def _next(self, file: BinaryIO) -> Item | None:
        place = file.tell()
        head = file.read(_FRAME.size)
        if not head:
            return None
        length, crc, deflated = _FRAME.unpack(head) if len(head) == _FRAME.size else (0, 0, 0)
        if len(head) == _FRAME.size and (length > MAX_STORED_BYTES or deflated > 1):
            raise self._broken(place, f"a frame claims {length:,} bytes, the limit is {MAX_STORED_BYTES:,}")
        stored = file.read(length)
        if len(head) < _FRAME.size or len(stored) < length:
            self.damage = f"it stops inside a frame at byte {place:,}"
            return None
        if zlib.crc32(stored) != crc:
            raise self._broken(place, "a frame does not fit its checksum")
        payload = self._inflate(place, stored) if deflated else stored
        try:
            item: Item = self._decoder.decode(payload)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise self._broken(place, f"a frame is not of the format ({error})") from None
        return item

    def _inflate(self, place: int, stored: bytes) -> bytes:
        inflater = zlib.decompressobj()
        try:
            payload = inflater.decompress(stored, MAX_FRAME_BYTES)
        except zlib.error as error:
            raise self._broken(place, f"a frame cannot be inflated ({error})") from None
        if not inflater.eof:
            more = (
                f"it inflates to more than {MAX_FRAME_BYTES:,} bytes"
                if inflater.unconsumed_tail
                else "it is cut"
            )
            raise self._broken(place, f"a frame cannot be inflated ({more})")
        return payload

    def _broken(self, place: int, what: str) -> RecordingError:
        return RecordingError(
            f"{self.path} is damaged at byte {place:,}: {what}",
            hint="What comes before that place can be read: Recording.events() gives it first.",
        )


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)
