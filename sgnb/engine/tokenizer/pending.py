"""A session's text that has no ids yet.

Tokenizer process; one per session, used by the manager. Text is only concatenated here until a generation needs it (or
until it is long): a run of text between added tokens, raw ids and generations is tokenised as one string, however it
was written. Spans keep apart what is parsed for added tokens (program text outside roles, the template's own text) and
what is literal (user text in roles, ``sgl.text``, characters given back by a stop): an added token is found only inside
parsed text, plain text next to each other is one run either way. What is taken is removed when all of it has ids: steps
that are ended before that have changed nothing. No requests, no sockets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sgnb.engine.tokenizer.steps import Steps
from sgnb.engine.tokenizer.tokenizer import AddedToken, ModelTokenizer


@dataclass(slots=True)
class _Span:
    parts: list[str]
    parse: bool


@dataclass(slots=True)
class _Run:
    """Plain text, in pieces that know whether they came from parsed text."""

    pieces: list[tuple[str, bool]]

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.pieces)


class Pending:
    """Text and ids in order. ``size`` is in bytes of UTF-8, raw ids not counted."""

    __slots__ = ("_items", "size")

    def __init__(self) -> None:
        self._items: list[_Span | list[int]] = []
        self.size = 0

    def __bool__(self) -> bool:
        return bool(self._items)

    def add_text(self, text: str, *, parse: bool) -> None:
        """Append text. ``parse``: added tokens in it count."""
        if not text:
            return
        self.size += len(text.encode())
        last = self._items[-1] if self._items else None
        if isinstance(last, _Span) and last.parse == parse:
            last.parts.append(text)
        else:
            self._items.append(_Span([text], parse))

    def add_ids(self, ids: list[int]) -> None:
        """Append raw ids."""
        if ids:
            self._items.append(list(ids))

    def copy(self) -> Pending:
        """The same text and ids, independent of this one."""
        twin = Pending()
        twin._items = [
            _Span(list(item.parts), item.parse) if isinstance(item, _Span) else list(item)
            for item in self._items
        ]
        twin.size = self.size
        return twin

    def raw(self, table: Sequence[bytes]) -> bytes:
        """The bytes of everything; of an id those that ``table`` has."""
        parts = [
            "".join(item.parts).encode()
            if isinstance(item, _Span)
            else b"".join(table[token] for token in item if token < len(table))
            for item in self._items
        ]
        return b"".join(parts)

    def opens_with_ids(self) -> bool:
        """True when raw ids come first: then nothing may be put before them."""
        return bool(self._items) and isinstance(self._items[0], list)

    def clear(self) -> None:
        """Drop everything."""
        self._items.clear()
        self.size = 0

    def take(self, tokenizer: ModelTokenizer, *, first: bool) -> Steps[list[int]]:
        """The ids of everything; nothing stays. ``first``: nothing came before in this session."""
        ids = yield from _encode(self._segments(tokenizer), tokenizer, first)
        self.clear()
        return ids

    def take_stable(self, tokenizer: ModelTokenizer, *, first: bool) -> Steps[list[int]]:
        """The ids that no later text can change; the rest stays. May be empty."""
        if tokenizer.rule.hold:
            return []
        segments = self._segments(tokenizer)
        rest: list[tuple[str, bool]] = []
        last = segments.pop() if segments else None
        if isinstance(last, _Run):
            text = last.text
            cut = tokenizer.rule.stable(text, growing=last.pieces[-1][1])
            rest = _after(last.pieces, cut)
            if cut:
                segments.append(_Run([(text[:cut], False)]))
        elif last is not None:
            if tokenizer.rule.rstrip:
                return []  # the token at the end may still take whitespace that follows
            segments.append(last)
        ids = yield from _encode(segments, tokenizer, first)
        self.clear()
        for piece, parse in rest:
            self.add_text(piece, parse=parse)
        return ids

    def _segments(self, tokenizer: ModelTokenizer) -> list[_Run | list[int]]:
        """Ids of added tokens and raw ids, and between them runs of plain text."""
        out: list[_Run | list[int]] = []

        def add_ids(ids: list[int]) -> None:
            if out and isinstance(out[-1], list):
                out[-1] += ids
            else:
                out.append(list(ids))

        def add_plain(text: str, parse: bool) -> None:
            if out and isinstance(out[-1], _Run):
                out[-1].pieces.append((text, parse))
            else:
                out.append(_Run([(text, parse)]))

        for item in self._items:
            if isinstance(item, list):
                add_ids(item)
                continue
            text = "".join(item.parts)
            for part in tokenizer.split_added(text) if item.parse else [text]:
                if isinstance(part, AddedToken):
                    add_ids([part.id])
                else:
                    add_plain(part, item.parse)
        return out


def _encode(segments: list[_Run | list[int]], tokenizer: ModelTokenizer, first: bool) -> Steps[list[int]]:
    ids: list[int] = []
    for number, segment in enumerate(segments):
        if isinstance(segment, _Run):
            ids += yield from tokenizer.encode_run(segment.text, first=first and number == 0)
        else:
            ids += segment
    return ids


def _after(pieces: list[tuple[str, bool]], cut: int) -> list[tuple[str, bool]]:
    out = []
    for text, parse in pieces:
        if cut < len(text):
            out.append((text[cut:], parse))
        cut = max(0, cut - len(text))
    return out
