"""Blocks to the wire, chunks to events: pure translation between the notebook's instructions and ``messages``.

Notebook process; used by ``backends.engine`` and ``backends.generate``. No sockets, no threads.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from sgnb.backends.base import BackendEvent, Delta, Done, Failed, Requeued, Sink, Started, TokenInfo
from sgnb.backends.client import make_error
from sgnb.errors import RequestError, SgnbError
from sgnb.lang import instruction as lang
from sgnb.lang.position import CELL_PREFIX
from sgnb.messages import (
    Choice,
    Chunk,
    Commit,
    Decode,
    Decodes,
    Extend,
    Finish,
    Fork,
    Ids,
    Init,
    Join,
    Label,
    Mark,
    One,
    Op,
    Part,
    RequestMeta,
    Select,
    Text,
    TokenLogprob,
)
from sgnb.sampling_params import SamplingParams

MAX_TOGETHER = 64
"""Generations in one operation: the first waits until the texts of all have been tokenised."""


def to_wire(block: lang.Block) -> list[Op]:
    """A recorded block as operations of the wire. Generations that stand side by side (the pass ``group_generations``
    sees to that) and have equal parameters are one of them."""
    ops: list[Op] = []
    for instruction in block.instructions:
        op = _op(instruction)
        together = _together(ops[-1], op) if ops and isinstance(op, Decode) else None
        if together is None:
            ops.append(op)
        else:
            ops[-1] = together
    return ops


def _together(before: Op, op: Decode) -> Decodes | None:
    """Both as one operation, where they are equal but for their session, seed and branch."""
    if isinstance(before, Decode):
        first, *equal = _own(before)
        items = [first]
    elif isinstance(before, Decodes) and len(before.items) < MAX_TOGETHER:
        items, equal = before.items, [before.params, before.label]
    else:
        return None
    one, params, label = _own(op)
    if [params, label] != equal or op.priority != before.priority or op.sid in {item.sid for item in items}:
        return None
    return Decodes(items=[*items, one], params=params, label=label, priority=op.priority)


def _own(op: Decode) -> tuple[One, SamplingParams, Label]:
    """What of a generation is its own, and the rest."""
    one = One(rid=op.rid, sid=op.sid, seed=op.params.seed, branch=op.label.branch)
    return one, replace(op.params, seed=None), replace(op.label, branch="")


def _op(op: lang.Instruction) -> Op:
    if isinstance(op, lang.Init):
        return Init(sid=op.sid, extra_key=op.extra_key)
    if isinstance(op, lang.Extend):
        return Extend(sid=op.sid, parts=[_part(part) for part in op.parts])
    if isinstance(op, lang.Fork):
        return Fork(sid=op.sid, children=list(op.children), base=op.base)
    if isinstance(op, lang.Join):
        return Join(sid=op.sid, branches=list(op.branches))
    if isinstance(op, lang.Commit):
        return Commit(sid=op.sid)
    at = op.position
    line = (
        at.line if at and at.file.startswith(CELL_PREFIX) else 0
    )  # elsewhere it is no line of the label's cell
    label = Label(cell=op.cell, branch=op.branch, name=op.name, line=line)
    if isinstance(op, lang.Select):
        return Select(
            rid=op.rid,
            sid=op.sid,
            options=list(op.options),
            method=op.method,
            label=label,
            priority=op.priority,
        )
    return Decode(rid=op.rid, sid=op.sid, params=op.params, label=label, priority=op.priority)


def _part(part: lang.Part) -> Part:
    if isinstance(part, lang.TextPart):
        return Text(text=part.text, literal=part.literal)
    if isinstance(part, lang.IdsPart):
        return Ids(ids=list(part.ids))
    return Mark(role=part.role, begin=part.begin)


class SinkWaiter:
    """A client's Waiter that gives a Sink its events."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._logprobs: dict[str, list[TokenLogprob]] = {}

    def take(self, chunks: list[Chunk]) -> None:
        """All of one step for this sink, in one call."""
        events: list[BackendEvent] = []
        for chunk in chunks:
            if chunk.started:
                text = chunk.prompt if chunk.prompt_tokens else None
                events.append(Started(chunk.rid, chunk.prompt_tokens, chunk.cached_tokens, text))
            if chunk.text or chunk.ids:
                events.append(Delta(chunk.rid, chunk.text, _tokens(chunk)))
            if chunk.waits:
                events.append(Requeued(chunk.rid))
            if chunk.logprobs:
                self._logprobs.setdefault(chunk.rid, []).extend(chunk.logprobs)
            if chunk.finish is not None:
                events.append(self._end(chunk, chunk.finish))
        if events:
            self._sink(events)

    def _end(self, chunk: Chunk, finish: Finish) -> BackendEvent:
        logprobs = self._logprobs.pop(chunk.rid, [])
        if finish.type == "error":
            error: SgnbError = (
                make_error(finish.error)
                if finish.error is not None
                else RequestError("The request failed.", code="error")
            )
            return Failed(error, rid=chunk.rid)
        meta = to_meta_info(chunk.rid, finish, chunk.meta, logprobs)
        if chunk.input_logprobs:
            meta |= _input_logprobs(chunk.input_logprobs)
        if chunk.choice is not None:
            meta |= _choice(chunk.choice)
        if chunk.prompt_ids or chunk.output_ids:
            meta["prompt_ids"], meta["output_ids"] = chunk.prompt_ids, chunk.output_ids
        prompt = None if chunk.prompt_tokens else chunk.prompt
        return Done(chunk.rid, {"type": finish.type, "matched": finish.matched}, meta, prompt)

    def fail(self, error: SgnbError, *, rid: str = "", sid: str = "") -> None:
        """One request, or one session, failed."""
        self._logprobs.pop(rid, None)
        self._sink([Failed(error, rid=rid, sid=sid)])


def _input_logprobs(told: list[TokenLogprob]) -> dict[str, Any]:
    """SGLang's shape: one entry a token from ``logprob_start_len`` on, of which the first has no value."""
    rows = [(one.logprob if i else None, one.id, one.text or None) for i, one in enumerate(told)]
    info: dict[str, Any] = {"input_token_logprobs": rows}
    if any(one.top for one in told):
        info["input_top_logprobs"] = [_tops(one) if i else None for i, one in enumerate(told)]
    return info


def _tops(one: TokenLogprob) -> list[tuple[float, int, str | None]]:
    """SGLang's shape: (log-probability, id, text), the text only when it was asked for."""
    texts: list[str] | list[None] = one.top_texts or [None] * len(one.top)
    return [(value, token, text) for (value, token), text in zip(one.top, texts, strict=True)]


def _choice(choice: Choice) -> dict[str, Any]:
    """A select's result under SGLang's names; one list of (logprob, id) an option."""
    info: dict[str, Any] = {
        "choice": choice.index,
        "scores": [option.score for option in choice.options],
        "input_token_logprobs": [
            list(zip(option.logprobs, option.ids, strict=True)) for option in choice.options
        ],
        "normalized_prompt_logprobs": [
            sum(option.logprobs) / len(option.logprobs) for option in choice.options
        ],
    }
    if any(option.unconditional for option in choice.options):
        info["unconditional_token_logprobs"] = [
            list(zip(option.unconditional, option.ids, strict=True)) for option in choice.options
        ]
    return info


def _tokens(chunk: Chunk) -> tuple[TokenInfo, ...]:
    if chunk.logprobs:
        return tuple(
            TokenInfo(
                one.id,
                one.logprob,
                tuple(one.top),
                one.raw,
                one.allowed,
                one.ruled_out,
                one.forced,
                one.text or None,
                tuple(one.top_texts),
                one.step,
            )
            for one in chunk.logprobs
        )
    return tuple(TokenInfo(token) for token in chunk.ids)


def to_meta_info(
    rid: str, finish: Finish, meta: RequestMeta | None, logprobs: list[TokenLogprob]
) -> dict[str, Any]:
    """SGLang's ``meta_info``: times in seconds, counts in tokens; log-probabilities as (logprob, id, text or None)."""
    count = meta.completion_tokens if meta else 0
    info: dict[str, Any] = {"id": rid, "finish_reason": finish_reason(finish, count)}
    if meta is not None:
        info.update({name: getattr(meta, name) for name in meta.__struct_fields__})
        if not meta.joined_kv:  # only a joined state has these
            del info["joined_kv"], info["joined_tokens"]
    if logprobs:
        info["output_token_logprobs"] = [(one.logprob, one.id, one.text or None) for one in logprobs]
        if any(one.top for one in logprobs):
            info["output_top_logprobs"] = [_tops(one) for one in logprobs]
        if any(one.allowed for one in logprobs):
            info["output_token_grammar"] = [
                {"allowed": one.allowed, "ruled_out": one.ruled_out, "forced": one.forced} for one in logprobs
            ]
    return info


def finish_reason(finish: Finish, completion_tokens: int) -> dict[str, Any]:
    """Our closed list as SGLang's dict."""
    if finish.type in ("length", "context"):
        return {"type": "length", "length": completion_tokens}
    if finish.type == "abort":
        return {"type": "abort", "message": finish.error.message if finish.error else "Aborted"}
    return {"type": "stop", "matched": finish.matched}
