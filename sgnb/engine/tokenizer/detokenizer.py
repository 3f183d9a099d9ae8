"""Bytes of sampled ids to text increments.

Tokenizer process; the manager feeds it each step's outputs. It needs the byte table only, no tokenizer: whole
characters come of themselves from an incremental UTF-8 decoder, and what the scheduler holds back (beyond ``visible``)
may still become part of a stop string and is not shown. So an increment never holds half a character or part of a
stop, and all increments together are the decoded text of the visible bytes: U+FFFD only where that has one, for a half
character only at the very end. No sessions, no sockets.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from sgnb.messages import Chunk, ReqOutput


class _Stream:
    """One request's bytes that are not shown yet."""

    __slots__ = ("decoder", "held", "shown")

    def __init__(self) -> None:
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.held = bytearray()
        self.shown = 0


def text_of_ids(ids: Sequence[int], table: Sequence[bytes]) -> tuple[str, int]:
    """The text of ``ids`` up to the last that ends a character, and how many that are. Bytes that are no text become �."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pieces: list[str] = []
    whole, text = 0, 0
    for number, token in enumerate(ids, 1):
        pieces.append(decoder.decode(table[token] if token < len(table) else b""))
        if not decoder.getstate()[0]:
            whole, text = number, len(pieces)
    return "".join(pieces[:text]), whole


class DetokenizerManager:
    """Turns the scheduler's outputs into chunks. ``table``: bytes of each id; an id beyond it has none."""

    def __init__(self, table: Sequence[bytes]) -> None:
        self._table = table
        self._streams: dict[str, _Stream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def feed(self, out: ReqOutput, *, with_ids: bool = False) -> Chunk:
        """The chunk for one output. ``with_ids``: prompt and output ids go along. After its finish a rid is forgotten."""
        stream = self._streams.get(out.rid)
        if stream is None:
            stream = self._streams[out.rid] = _Stream()
        size = len(self._table)
        for token in out.ids:
            if 0 <= token < size:
                stream.held += self._table[token]
        count = max(0, min(out.visible - stream.shown, len(stream.held)))
        final = out.finish is not None
        text = stream.decoder.decode(bytes(stream.held[:count]), final)
        del stream.held[:count]
        stream.shown += count
        if final:
            del self._streams[out.rid]
        return Chunk(
            rid=out.rid,
            text=text,
            ids=out.ids,
            logprobs=out.logprobs,
            started=out.started,
            waits=out.waits,
            prompt_tokens=out.prompt_tokens,
            cached_tokens=out.cached_tokens,
            finish=out.finish,
            meta=out.meta,
            prompt_ids=out.prompt_ids if with_ids else [],
            output_ids=out.output_ids if with_ids else [],
        )

    def drop(self, rid: str) -> None:
        """Forget a request nobody waits for. Idempotent."""
        self._streams.pop(rid, None)
