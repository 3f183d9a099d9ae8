"""Client ↔ tokenizer process: what a notebook's kernel asks of an engine, and what it is told.

One DEALER of each client to the engine's ROUTER. Made by ``backends``, read by ``engine.front``; the blocks go on to the
tokenizer manager. Text travels here; token ids only where the user gave or asked for them. No telemetry.
"""

from __future__ import annotations

from typing import Any

from sgnb.messages.parts import (
    Choice,
    ErrorInfo,
    Finish,
    ForkBase,
    Label,
    ModelInfo,
    RequestMeta,
    TokenLogprob,
    Wire,
)
from sgnb.sampling_params import SamplingParams

PROTOCOL_VERSION = 2


class Hello(Wire, frozen=True, kw_only=True, tag="hello"):
    """First frame of a client. ``start_time`` (clock ticks since boot) guards against pid reuse."""

    version: int
    pid: int
    start_time: int
    client_name: str
    owner: bool
    """True for the kernel that launched the engine."""


class Ping(Wire, frozen=True, kw_only=True, tag="ping"):
    """Renews the lease and acknowledges: ``acked`` is the count of bytes this client has read since hello."""

    incarnation: str
    acked: int


class Bye(Wire, frozen=True, kw_only=True, tag="bye"):
    """The client leaves: abort its requests, release its sessions."""

    incarnation: str


class Text(Wire, frozen=True, kw_only=True, tag="text"):
    """Program text. ``literal``: added tokens in it stay text; else it is parsed as SGLang does."""

    text: str
    literal: bool


class Mark(Wire, frozen=True, kw_only=True, tag="mark"):
    """Begin or end of a turn; the tokenizer process puts the template's text."""

    role: str
    begin: bool


class Ids(Wire, frozen=True, kw_only=True, tag="ids"):
    """Raw token ids, checked against the vocabulary."""

    ids: list[int]


Part = Text | Mark | Ids


class Init(Wire, frozen=True, kw_only=True, tag="init"):
    """Open a session. ``extra_key`` separates name spaces of the cache."""

    sid: str
    extra_key: str = ""


class Extend(Wire, frozen=True, kw_only=True, tag="extend"):
    """Append parts to the session's pending text. Nothing is computed yet."""

    sid: str
    parts: list[Part]


class Decode(Wire, frozen=True, kw_only=True, tag="decode"):
    """Generate: tokenise all that is pending, run to a stop, keep the output in the session."""

    rid: str
    sid: str
    params: SamplingParams
    label: Label = Label()
    priority: int = 0
    """Higher goes first, and may suspend lower ones that run."""


class One(Wire, frozen=True, kw_only=True):
    """A generation among ``Decodes``: what is its own."""

    rid: str
    sid: str
    seed: int | None = None
    branch: str = ""
    """Of its label."""


class Decodes(Wire, frozen=True, kw_only=True, tag="decodes"):
    """Generations of different sessions with equal parameters: what is equal is said once, and they are admitted together.

    Each means what its ``Decode`` would, with ``params`` under its own seed and ``label`` under its own branch.
    """

    items: list[One]
    params: SamplingParams
    label: Label = Label()
    priority: int = 0


class Select(Wire, frozen=True, kw_only=True, tag="select"):
    """Score every option after what is pending (raw log-softmax), keep the winner's text and KV in the session.

    Each option is tokenised with the pending text; what is common to all is prompt. Answered by one last Chunk with
    ``text`` = the option exactly as written, ``finish`` and ``choice``.
    """

    rid: str
    sid: str
    options: list[str]
    method: str
    """``token_length_normalized``, ``greedy_token_selection`` or ``unconditional_likelihood_normalized``."""
    label: Label = Label()
    priority: int = 0
    """Higher goes first, and may suspend lower ones that run."""


class Fork(Wire, frozen=True, kw_only=True, tag="fork"):
    """Open ``children`` as copies of ``sid``: ids and pending text. Nothing is copied in the KV pool."""

    sid: str
    children: list[str]
    base: ForkBase = "new"


class Commit(Wire, frozen=True, kw_only=True, tag="commit"):
    """Compute what is pending up to the last safe space, so that others find it cached."""

    sid: str


class Join(Wire, frozen=True, kw_only=True, tag="join"):
    """Append ``branches``, forks of ``sid``, to it by their ids: what was appended since the fork, in order. Their KV
    is copied (``SessionJoin``). They are kept until then, though they may be released at once."""

    sid: str
    branches: list[str]


class Release(Wire, frozen=True, kw_only=True, tag="release"):
    """Close sessions: their running requests are aborted. Idempotent."""

    sids: list[str]


Op = Init | Extend | Decode | Decodes | Select | Fork | Join | Commit | Release


class Block(Wire, frozen=True, kw_only=True, tag="block"):
    """All that a run recorded between two flushes: one message, carried out in order for each session."""

    incarnation: str
    ops: list[Op]


class Abort(Wire, frozen=True, kw_only=True, tag="abort"):
    """Stop requests at the next step and drop what their sessions have queued. Idempotent, legal in every state.

    ``everything``: all requests of this client; with ``all_clients`` of the whole engine (the panel's *Abort all*).
    """

    incarnation: str
    rids: list[str] = []
    sids: list[str] = []
    everything: bool = False
    all_clients: bool = False


class Control(Wire, frozen=True, kw_only=True, tag="control"):
    """A question or command outside of programs: ``stats, flush_cache, info, requests, shutdown, tokenize, check``."""

    incarnation: str
    id: int
    verb: str
    args: dict[str, Any] = {}


ClientMessage = Hello | Ping | Bye | Block | Abort | Control


class Progress(Wire, frozen=True, kw_only=True, tag="progress"):
    """A start step: ``process, tokenizer, weights, kv, ready``; ``done``/``total`` in bytes or slots, seconds since exec."""

    step: str
    done: int
    total: int
    seconds: float


class Welcome(Wire, frozen=True, kw_only=True, tag="welcome"):
    """Answer to hello. ``info`` is there once the engine is ready; until then Progress frames follow."""

    incarnation: str
    client: int
    version: int
    engine_name: str
    pid: int
    scheduler_pid: int
    scheduler_start_time: int
    telemetry: str
    """Address of the PUB socket."""
    clients: int
    progress: list[Progress] = []
    info: ModelInfo | None = None


class Ready(Wire, frozen=True, kw_only=True, tag="ready"):
    """The model is loaded; requests queued before run now."""

    incarnation: str
    info: ModelInfo


class Refused(Wire, frozen=True, kw_only=True, tag="refused"):
    """Hello was refused (version), or the engine could not start; it ends after this."""

    incarnation: str
    error: ErrorInfo


class Dropped(Wire, frozen=True, kw_only=True, tag="dropped"):
    """This client did not read or its lease ran out: its requests are aborted, it must hello again."""

    incarnation: str
    reason: str


class PromptText(Wire, frozen=True, kw_only=True):
    """The tokens at a prompt's end that its state had not sent before, in bytes: from position ``first`` on, ``lengths`` of
    ``raw`` each."""

    first: int
    lengths: list[int]
    raw: bytes


class Chunk(Wire, frozen=True, kw_only=True, tag="chunk"):
    """New output of one request: whole characters only, never part of a stop string. ``finish`` comes once, last."""

    rid: str
    text: str = ""
    ids: list[int] = []
    """Tokens sampled since the last chunk (may run ahead of ``text``)."""
    logprobs: list[TokenLogprob] = []
    started: bool = False
    """The request left the queue: once, and once more after each ``waits``."""
    waits: bool = False
    """It was retracted or suspended and is in the queue again."""
    prompt_tokens: int = 0
    """With the first ``started``: of its prompt; 0 where that is not known."""
    cached_tokens: int = 0
    """Of these, what it found in the cache."""
    choice: Choice | None = None
    """With the last chunk of a Select."""
    finish: Finish | None = None
    meta: RequestMeta | None = None
    input_logprobs: list[TokenLogprob] = []
    """With the last chunk: of the prompt from ``logprob_start_len`` on. The first has none: 0 stands there."""
    prompt_ids: list[int] = []
    """With the last chunk, only for sessions opened by ``Engine.generate`` (``Label.name == "@generate"``)."""
    output_ids: list[int] = []
    """With the last chunk: the output tokens that the session keeps, likewise only for ``Engine.generate``."""
    prompt: PromptText | None = None
    """With ``prompt_tokens``, or with the last chunk where those are not told; None where it is too long."""


class Chunks(Wire, frozen=True, kw_only=True, tag="chunks"):
    """All that one step has for one client."""

    incarnation: str
    items: list[Chunk]
    spare: int = -1
    """KV slots that are left once all that runs has ended at its longest; -1: not said."""


class OpFailed(Wire, frozen=True, kw_only=True, tag="opfailed"):
    """Init or Extend of a session failed: the session is poisoned, its later ops fail with this cause."""

    incarnation: str
    sid: str
    error: ErrorInfo


class Reply(Wire, frozen=True, kw_only=True, tag="reply"):
    """Answer to Control ``id``."""

    incarnation: str
    id: int
    data: dict[str, Any] = {}
    error: ErrorInfo | None = None


class Pong(Wire, frozen=True, kw_only=True, tag="pong"):
    """Answer to Ping. ``trouble``: while no step ends, since when and who does not answer; else empty."""

    incarnation: str
    trouble: str = ""


ServerMessage = Welcome | Progress | Ready | Refused | Dropped | Chunks | OpFailed | Reply | Pong
