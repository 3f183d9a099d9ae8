"""What goes back to the clients: a step's outputs as chunks, ends and errors, gathered until they are flushed.

Tokenizer process; used by ``manager`` and ``queues``, on their one thread. Text comes from the detokenizer; what a
chunk carries beside it (notes, texts of tokens, the winner of a select, its prompt) is put to it here. No session is known
here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from sgnb.engine.tokenizer.detokenizer import DetokenizerManager
from sgnb.engine.tokenizer.prompt_text import MAX_TOLD_BYTES, prompt_text
from sgnb.engine.tokenizer.roster import Request
from sgnb.messages import Chunk, Chunks, ErrorInfo, Finish, OpFailed, ReqOutput, ServerMessage, TokenLogprob

ToClient = Callable[[int, ServerMessage], None]


class Replies:
    """``table``: bytes of each token id. ``incarnation`` goes into every message."""

    def __init__(self, table: Sequence[bytes], to_client: ToClient, incarnation: str) -> None:
        self.spare = -1
        """What the scheduler said last: see ``Chunks.spare``."""
        self.detokenizer = DetokenizerManager(table)
        self._table = table
        self._to_client = to_client
        self._incarnation = incarnation
        self._outbox: dict[int, list[Chunk]] = {}
        self._told = 0
        """Bytes of prompts in the outbox."""

    def output(self, out: ReqOutput, request: Request) -> None:
        """What one step has for a request."""
        if out.meta is not None:
            meta = out.meta
            if request.notes:
                meta = msgspec.structs.replace(meta, notes=[*meta.notes, *request.notes])
            if out.leftover:
                meta = msgspec.structs.replace(meta, leftover=out.leftover.decode("utf-8", "replace"))
            out = msgspec.structs.replace(out, meta=meta)
        chunk = self.detokenizer.feed(out, with_ids=request.with_ids)
        if out.input_logprobs:
            chunk = msgspec.structs.replace(chunk, input_logprobs=out.input_logprobs)
        if chunk.logprobs or (request.with_text and chunk.input_logprobs):
            chunk = self._with_texts(chunk, request.with_text)
        length = out.prompt_tokens or (out.meta.prompt_tokens if out.meta is not None else 0)
        if length and not request.told_prompt and self._told < MAX_TOLD_BYTES:
            request.told_prompt = True
            prompt = prompt_text(request.fresh, length, self._table)
            self._told += len(prompt.raw) + len(prompt.lengths) if prompt is not None else 0
            chunk = msgspec.structs.replace(chunk, prompt=prompt)
        if out.choice is not None:
            chunk = msgspec.structs.replace(chunk, text=request.options[out.choice.index], choice=out.choice)
        self._send(request.client, chunk)

    def _with_texts(self, chunk: Chunk, with_text: bool) -> Chunk:
        """Log-probabilities with the bytes of their tokens, and with their text where that was asked for."""

        def raw_of(token: int) -> bytes:
            return self._table[token] if token < len(self._table) else b""

        def told(one: TokenLogprob) -> TokenLogprob:
            raw = raw_of(one.id)
            if not with_text:
                return msgspec.structs.replace(one, raw=raw)
            tops = [raw_of(token).decode("utf-8", "replace") for _, token in one.top]
            return msgspec.structs.replace(one, text=raw.decode("utf-8", "replace"), raw=raw, top_texts=tops)

        return msgspec.structs.replace(
            chunk, logprobs=[*map(told, chunk.logprobs)], input_logprobs=[*map(told, chunk.input_logprobs)]
        )

    def aborted(self, client: int, rid: str) -> None:
        """A request that never reached the scheduler was aborted."""
        self._send(client, Chunk(rid=rid, finish=Finish(type="abort")))

    def failed(self, client: int, rid: str, error: ErrorInfo) -> None:
        """A request that never reached the scheduler has failed."""
        self._send(client, Chunk(rid=rid, finish=Finish(type="error", error=error)))

    def op_failed(self, client: int, sid: str, error: ErrorInfo) -> None:
        """An op without a request has failed."""
        self.flush()  # what happened before it is told before it
        self._to_client(client, OpFailed(incarnation=self._incarnation, sid=sid, error=error))

    def _send(self, client: int, chunk: Chunk) -> None:
        self._outbox.setdefault(client, []).append(chunk)

    def flush(self) -> None:
        """Send what was gathered, one message for each client."""
        outbox, self._outbox = self._outbox, {}
        self._told = 0
        for client, chunks in outbox.items():
            self._to_client(client, Chunks(incarnation=self._incarnation, items=chunks, spare=self.spare))

    def drop_request(self, rid: str) -> None:
        """Forget a request nobody waits for. Idempotent."""
        self.detokenizer.drop(rid)

    def drop_client(self, client: int) -> None:
        """Nothing more is sent to it."""
        self._outbox.pop(client, None)
