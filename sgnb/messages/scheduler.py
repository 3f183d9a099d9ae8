"""Tokenizer process ↔ scheduler process: sessions and requests in token ids, and their outputs.

One PUSH in each direction. Made by the tokenizer manager and the front, read by ``scheduler.intake``; back to the
detokenizer. No text but stop strings as bytes. Tags begin with ``s.`` down and ``b.`` up.
"""

from __future__ import annotations

from typing import Any

from sgnb.messages.parts import Choice, ErrorInfo, Finish, ForkBase, Label, RequestMeta, TokenLogprob, Wire
from sgnb.sampling_params import SamplingParams


class SessionOpen(Wire, frozen=True, kw_only=True, tag="s.open"):
    """A new session; ``client`` owns it."""

    sid: str
    client: int
    extra_key: str = ""


class SessionExtend(Wire, frozen=True, kw_only=True, tag="s.extend"):
    """Ids whose border is settled (long pending text); bound to the cached prefix, computed at the next decode."""

    sid: str
    ids: list[int]


class SessionDecode(Wire, frozen=True, kw_only=True, tag="s.decode"):
    """A generation: ``ids`` is all that was pending. ``stops`` are the stop strings in bytes, in list order.

    ``keep``: the session's ids are cut to so many before ``ids`` are appended; None: all stay.
    """

    rid: str
    sid: str
    client: int
    ids: list[int]
    params: SamplingParams
    stops: list[bytes]
    stop_token_ids: list[int]
    """Of the user; ``eos_token_ids`` end the generation too, unless ``ignore_eos``."""
    eos_token_ids: list[int]
    label: Label
    keep: int | None = None
    priority: int = 0
    """Higher goes first, and may suspend lower ones that run."""


class SessionFork(Wire, frozen=True, kw_only=True, tag="s.fork"):
    """Open ``children`` as copies of ``sid``: its ids and its owner. Nothing is copied in the KV pool."""

    sid: str
    children: list[str]
    base: ForkBase = "new"


class SessionSelect(Wire, frozen=True, kw_only=True, tag="s.select"):
    """Score options: ``ids`` is what all of them have in common with what was pending, ``options`` the rest of each.

    The session's ids change only with a winner: then ``ids`` and the winner's rest are appended.
    """

    rid: str
    sid: str
    client: int
    ids: list[int]
    options: list[list[int]]
    method: str
    keep: int | None = None
    """With a winner, the session's ids are cut to so many before; None: all stay."""
    label: Label = Label()
    priority: int = 0
    """Higher goes first, and may suspend lower ones that run."""


class JoinPart(Wire, frozen=True, kw_only=True):
    """A branch of a join: ``ids``, then what session ``sid`` has behind its fork but for the first ``skip`` of it."""

    sid: str
    skip: int = 0
    ids: list[int] = []


class SessionJoin(Wire, frozen=True, kw_only=True, tag="s.join"):
    """Append ``ids`` and then all parts to session ``sid``, whose forks they are; what has KV of the parts is copied
    there when it next computes, keys rotated, into a name space of its own."""

    sid: str
    ids: list[int]
    parts: list[JoinPart]


class SessionCommit(Wire, frozen=True, kw_only=True, tag="s.commit"):
    """Append settled ids and compute them now, in the background: nothing waits for it and nothing is answered."""

    sid: str
    ids: list[int]


class SessionClose(Wire, frozen=True, kw_only=True, tag="s.close"):
    """Forget sessions; abort what they run."""

    sids: list[str]


class AbortReqs(Wire, frozen=True, kw_only=True, tag="s.abort"):
    """Abort by request id."""

    rids: list[str]


class ClientGone(Wire, frozen=True, kw_only=True, tag="s.gone"):
    """A client left or died: abort its requests, forget its sessions."""

    client: int


class SchedulerControl(Wire, frozen=True, kw_only=True, tag="s.control"):
    """A Control passed on: ``stats, flush_cache, requests``."""

    client: int
    id: int
    verb: str
    args: dict[str, Any] = {}


class Stop(Wire, frozen=True, kw_only=True, tag="s.stop"):
    """End the scheduler process."""

    reason: str


class TokenTable(Wire, frozen=True, kw_only=True, tag="s.table"):
    """Bytes of each token id, once at start: the scheduler finds stop strings with it, grammars their tokens."""

    table: list[bytes]
    special_ids: list[int] = []
    """Added tokens that are no text: no grammar allows them."""
    eos_token_ids: list[int] = []


SchedulerInput = (
    SessionOpen
    | SessionExtend
    | SessionDecode
    | SessionFork
    | SessionSelect
    | SessionCommit
    | SessionJoin
    | SessionClose
    | AbortReqs
    | ClientGone
    | SchedulerControl
    | Stop
    | TokenTable
)


class Together(Wire, frozen=True, kw_only=True, tag="s.together"):
    """Messages that are handled without a step between them, in order: so requests are admitted as one batch."""

    messages: list[SchedulerInput]


SchedulerFrame = SchedulerInput | Together


class ReqOutput(Wire, frozen=True, kw_only=True):
    """What one step has for one request. ``visible`` is the count of output *bytes* that may be shown so far:
    held-back prefixes of stop strings are beyond it, and at the end it is the exact cut."""

    rid: str
    ids: list[int] = []
    visible: int = 0
    logprobs: list[TokenLogprob] = []
    started: bool = False
    waits: bool = False
    """As in ``Chunk``."""
    prompt_tokens: int = 0
    """With the first ``started``, as in ``Chunk``."""
    cached_tokens: int = 0
    finish: Finish | None = None
    meta: RequestMeta | None = None
    leftover: bytes = b""
    """With the last one: kept bytes beyond the last kept token; they become literal pending text of the session."""
    choice: Choice | None = None
    """With the last one of a select that has a winner."""
    input_logprobs: list[TokenLogprob] = []
    """With the last one; as in ``Chunk``."""
    prompt_ids: list[int] = []
    output_ids: list[int] = []


class BatchOutput(Wire, frozen=True, kw_only=True, tag="b.out"):
    """All outputs of one step."""

    items: list[ReqOutput]
    spare: int = -1
    """See ``Chunks``."""


class SchedulerReply(Wire, frozen=True, kw_only=True, tag="b.reply"):
    """Answer to SchedulerControl."""

    client: int
    id: int
    data: dict[str, Any] = {}
    error: ErrorInfo | None = None


class SchedulerProgress(Wire, frozen=True, kw_only=True, tag="b.progress"):
    """A start step of the scheduler process: ``weights`` in bytes, ``kv`` in slots."""

    step: str
    done: int
    total: int


class SchedulerReady(Wire, frozen=True, kw_only=True, tag="b.ready"):
    """The model is loaded and the pool is there."""

    vocab_size: int
    context_length: int
    max_total_tokens: int
    dtype: str
    device: str
    attention_backend: str
    runner_pid: int = 0
    """Of a runner in a process of its own."""


class SchedulerFailed(Wire, frozen=True, kw_only=True, tag="b.failed"):
    """Could not start, or met a fault it cannot survive; it ends after this."""

    error: ErrorInfo


SchedulerOutput = BatchOutput | SchedulerReply | SchedulerProgress | SchedulerReady | SchedulerFailed
