"""Where in the user's source something happened.

Notebook process; used by ``lang.api`` (a wrong argument), by states (each recorded operation) and by errors. A place is
two cheap values, code object and instruction offset; line, columns and text are looked up only when somebody asks.
Nothing here changes a run.
"""

from __future__ import annotations

import linecache
import re
import sys
from types import CodeType, FrameType
from typing import NamedTuple

from sgnb.errors import SourcePosition

INTERNAL: set[str] = set()
"""Names of sgnb's own modules whose frames stand between the user's code and a recorded operation."""
CELL_PREFIX = "<sgl "
"""File names of ``%%sgl`` cells begin so."""


class Place(NamedTuple):
    """An instruction of the user's code."""

    code: CodeType
    lasti: int


def internal(module: str) -> None:
    """Mark a module of sgnb as one whose frames are not the user's."""
    INTERNAL.add(module)


def user_frame(depth: int = 1) -> FrameType:
    """The nearest frame, from ``depth`` callers up, that is not sgnb's own; the outermost one if all are."""
    frame = sys._getframe(depth + 1)
    while frame.f_globals.get("__name__") in INTERNAL and frame.f_back is not None:
        frame = frame.f_back
    return frame


def place_of(frame: FrameType) -> Place:
    """The instruction ``frame`` is at."""
    return Place(frame.f_code, frame.f_lasti)


class Span(NamedTuple):
    """Lines from 1, columns from 0 in UTF-8 bytes as Python's AST counts them; ends are exclusive."""

    line: int
    col: int
    end_line: int
    end_col: int

    def covers(self, other: Span) -> bool:
        """True when ``other`` lies inside this span."""
        return (self.line, self.col) <= (other.line, other.col) and (other.end_line, other.end_col) <= (
            self.end_line,
            self.end_col,
        )


_positions: dict[int, tuple[CodeType, list[tuple[int | None, int | None, int | None, int | None]]]] = {}
_MAX_CACHED = 512


def span_of(place: Place) -> Span:
    """Line and columns of an instruction (whole first line where Python keeps no columns)."""
    code = place.code
    found = _positions.get(id(code))
    if found is None or found[0] is not code:
        if len(_positions) >= _MAX_CACHED:
            _positions.clear()
        found = _positions[id(code)] = (code, list(code.co_positions()))
    index = place.lasti // 2
    line, end_line, col, end_col = found[1][index] if 0 <= index < len(found[1]) else (None,) * 4
    first = line or code.co_firstlineno
    return Span(first, col or 0, end_line or first, end_col or (col or 0) + 1)


def shown_as_cell(filename: str) -> bool:
    """True for ``%%sgl`` cells and notebook cells, whose file names mean nothing to a reader."""
    return filename.startswith("<") or "ipykernel_" in filename


def source_position(filename: str, span: Span) -> SourcePosition:
    """A span as errors show it: columns in characters, with the text of its first line."""
    text = linecache.getline(filename, span.line).rstrip("\n")
    raw = text.encode()
    col = len(raw[: span.col].decode(errors="ignore"))
    end = len(raw[: span.end_col].decode(errors="ignore")) if span.end_line == span.line else len(text)
    return SourcePosition(filename, span.line, col, max(end, col + 1), text, shown_as_cell(filename))


def in_magic(filename: str, line: int, magic: str, option: str = "") -> SourcePosition | None:
    """The magic line of a cell, or in it the value of ``option``, as errors show it; None where the line is not known."""
    if not magic:
        return None
    found = re.search(rf"\s{re.escape(option)}[\s=]+(\S+)", magic) if option else None
    col, end = found.span(1) if found else (0, len(magic))
    return SourcePosition(filename, line, col, end, magic, in_cell=True)


_resolved: dict[tuple[int, int], tuple[CodeType, SourcePosition]] = {}


def position_of(place: Place) -> SourcePosition:
    """An instruction as errors show it. Kept, since a loop asks for the same one again."""
    key = (id(place.code), place.lasti)
    found = _resolved.get(key)
    if found is None or found[0] is not place.code:
        if len(_resolved) >= _MAX_CACHED:
            _resolved.clear()
        found = _resolved[key] = (place.code, source_position(place.code.co_filename, span_of(place)))
    return found[1]


def here() -> SourcePosition:
    """Where the user's code stands now: the place of an error that a call of the language raises at once."""
    return position_of(place_of(user_frame()))


def line_of(place: Place) -> int:
    """The instruction's line."""
    return position_of(place).line
