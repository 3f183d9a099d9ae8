"""What one step has to say: one ``ReqOutput`` a request, one ``BatchOutput`` a step.

Role: turns what happened to requests since the last flush into messages for the tokenizer process. Scheduler process; called
by ``Scheduler``. Decides what a session keeps (``kept_output``), but changes no request's fate, slot or session.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sgnb.config import MAX_FRAME_BYTES
from sgnb.engine.scheduler.req import Req
from sgnb.engine.scheduler.stop import kept_prefix
from sgnb.messages import BatchOutput, Finish, ReqOutput, RequestMeta, SchedulerOutput
from sgnb.reasoning import split_reasoning

GENERATE = "@generate"
"""Label of requests from ``Engine.generate``: only they are told their ids at the end."""
BATCH_BYTES = MAX_FRAME_BYTES // 2
"""Of last outputs in one message: with log-probabilities of long prompts each of them may be megabytes."""
LOGPROB_BYTES, TOP_BYTES, SCORED_BYTES = 76, 16, 24
"""At most, of one log-probability, of one alternative to it, and of one token of an option."""


def kept_output(req: Req, reason: Finish, table: Sequence[bytes]) -> tuple[list[int], bytes]:
    """Output tokens the session keeps, and kept bytes beyond them (they become literal pending text).

    A stop string cuts at its first byte; EOS and stop ids are not part of the text; an error keeps nothing. Of a thought
    and an answer that are told apart the session keeps the answer, as text: its tokens would stand elsewhere.
    """
    if reason.type == "error":
        return [], b""
    if req.selection is not None:
        return req.selection.kept, b""
    ids, cut = req.output_ids, req.scanner.total
    if req.scanner.hit is not None:
        cut = req.scanner.hit.start
    elif reason.type in ("eos", "stop"):
        ids = ids[:-1]
    if req.params.reasoning is not None:
        text = b"".join(table[i] for i in ids if i < len(table))[:cut].decode("utf-8", "replace")
        answer = split_reasoning(text, req.params.reasoning)[1]
        if answer != text:
            return [], answer.encode()
    count, leftover = kept_prefix(ids, table, cut)
    return ids[:count], leftover


class OutputBuilder:
    """Collects requests with news; ``flush`` sends them once, in the order they were touched."""

    def __init__(self, send: Callable[[SchedulerOutput], None], spare: Callable[[], int]) -> None:
        self._send = send
        self._spare = spare
        self._touched: dict[str, Req] = {}
        self._last: dict[str, ReqOutput] = {}

    def touch(self, req: Req) -> None:
        """This request left the queue or came back to it, or drew a token."""
        if req.background:
            return
        self._touched[req.rid] = req

    def finished(self, req: Req, kept: list[int], leftover: bytes, now: float) -> None:
        """This request ended: its last output is fixed here, exactly once."""
        if req.background:
            return
        req.enter(req.part, now)
        self._touched[req.rid] = req
        whole = req.label.name == GENERATE
        first = not req.told_start and req.time_admitted is not None
        self._last[req.rid] = ReqOutput(
            rid=req.rid,
            ids=req.output_ids[req.sent_ids :],
            visible=req.scanner.flush(),
            logprobs=req.logprobs,
            started=not req.told_start,
            prompt_tokens=len(req.prompt) if first else 0,
            cached_tokens=req.cached_tokens if first else 0,
            finish=req.finish_reason,
            meta=make_meta(req, len(kept), now),
            leftover=leftover,
            input_logprobs=req.input_logprobs,
            choice=req.selection.choice if req.selection is not None else None,
            prompt_ids=req.prompt.tolist() if whole else [],
            output_ids=kept if whole else [],
        )

    def flush(self) -> None:
        """Send what this step has, if anything: in one message, unless no frame would hold it."""
        if not self._touched:
            return
        items: list[ReqOutput] = []
        size = 0
        for rid, req in self._touched.items():
            last = self._last.get(rid)
            more = _size(last) if last is not None else 0
            if size + more > BATCH_BYTES and items:
                self._send(BatchOutput(items=items, spare=self._spare()))
                items, size = [], 0
            items.append(last or _progress(req))
            size += more
        self._touched, self._last = {}, {}
        self._send(BatchOutput(items=items, spare=self._spare()))


def _size(out: ReqOutput) -> int:
    """Bytes of what can be long in a last output, about; never too few."""
    size = 5 * (len(out.ids) + len(out.prompt_ids) + len(out.output_ids)) + len(out.leftover)
    for scored in (out.logprobs, out.input_logprobs):
        if scored:
            size += len(scored) * (LOGPROB_BYTES + TOP_BYTES * max(len(scored[0].top), len(scored[-1].top)))
    if out.choice is not None:
        size += SCORED_BYTES * sum(len(option.ids) for option in out.choice.options)
    return size


def _progress(req: Req) -> ReqOutput:
    """News of a request that goes on; what is told is marked as told."""
    logprobs, req.logprobs = req.logprobs, []
    ids = req.output_ids[req.sent_ids :]
    first, waits = not req.told_start, req.part == "queue"
    started = first or (req.told_waits and not waits)
    again = waits and not req.told_waits
    req.sent_ids, req.told_start, req.told_waits = len(req.output_ids), True, waits
    return ReqOutput(
        rid=req.rid,
        ids=ids,
        visible=req.scanner.visible,
        logprobs=logprobs,
        started=started,
        waits=again,
        prompt_tokens=len(req.prompt) if first else 0,
        cached_tokens=req.cached_tokens if first else 0,
    )


LEAST_NOTED = 32
"""Fewer tokens computed anew are not worth a word, where no state had them: others' prompts may just have begun alike."""
_GONE = {"evicted": "made room for others", "flushed": "were flushed"}


def _notes(req: Req) -> list[str]:
    """That a prompt's KV had been there and is computed anew."""
    cause = req.match.cause if req.match is not None else ""
    why, anew = _GONE.get(cause), len(req.prompt) - req.cached_tokens
    if req.lost:
        why = why or _GONE["evicted"]
        return [f"Of this prompt {req.lost} tokens were computed anew: they had been cached and {why}."]
    if why is None or anew < LEAST_NOTED:
        return []
    return [f"Of this prompt {anew} tokens were computed anew: some had been cached and {why}."]


def make_meta(req: Req, kept: int, now: float) -> RequestMeta:
    """Counts in tokens and times in seconds of a finished request."""
    return RequestMeta(
        prompt_tokens=len(req.prompt),
        cached_tokens=req.cached_tokens,
        completion_tokens=len(req.output_ids),
        kept_tokens=kept,
        queue_time=req.spent["queue"],
        prefill_time=req.spent["prefill"],
        decode_time=req.spent["decode"],
        e2e_latency=now - req.time_received,
        first_step=req.first_step,
        last_step=req.last_step,
        miss=req.match.cause if req.match is not None else "",
        cut_tokens=req.cut_tokens,
        notes=[*req.notes, *_notes(req)],
        joined_tokens=req.joined_tokens,
        joined_kv=req.joined_kv,
        forced_tokens=req.grammar.forced if req.grammar is not None else 0,
    )
