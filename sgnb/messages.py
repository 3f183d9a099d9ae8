"""Every record that crosses a process, and nothing else.

msgspec structs, encoded as MessagePack, one frame per message. Three borders use them:

    notebook kernel  ──ClientMessage──►  tokenizer process  ──SchedulerInput──►  scheduler process
    notebook kernel  ◄──ServerMessage──  tokenizer process  ◄──SchedulerOutput──  scheduler process
    notebook kernel  ◄────────────── TelemetryFrame (PUB) ──────────────────────  scheduler process
    scheduler        ──ModelWorkerBatch──►  model runner  ──ModelWorkerOutput──►  scheduler

Ids: the engine numbers its clients (``Welcome.client``). Every id a client makes starts with ``c<client>.``: sessions
``c3.s17``, requests ``c3.r21``; the tokenizer process refuses ids of another prefix, so an owner cannot be forged.
Plain ints, strings, bytes and lists only: no behaviour, no defaults that hide a decision, no imports but msgspec and
the leaves.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from sgnb.config import EngineArgs
from sgnb.sampling_params import SamplingParams

PROTOCOL_VERSION = 1

FinishType = Literal["stop", "length", "eos", "grammar", "abort", "context", "error"]


class Wire(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="t"):
    """Base of every record of the wire."""


# ---------------------------------------------------------------- shared parts


class ErrorInfo(Wire, frozen=True, kw_only=True):
    """An error on its way to the notebook. ``kind`` is a class name of sgnb.errors, ``code`` a stable word."""

    kind: str
    message: str
    code: str = "error"
    hint: str = ""


class Label(Wire, frozen=True, kw_only=True):
    """What people call a request: ``<cell>.<branch> <variable>``, and its source line."""

    cell: str = ""
    branch: str = ""
    name: str = ""
    line: int = 0


class Finish(Wire, frozen=True, kw_only=True):
    """Why a generation ended. ``matched`` is the stop string or token id for ``stop`` and ``eos``."""

    type: FinishType
    matched: str | int | None = None
    error: ErrorInfo | None = None


class TokenLogprob(Wire, frozen=True, kw_only=True, tag=False):
    """Raw model log-probability of one sampled token; ``top`` holds (logprob, id) pairs, highest first."""

    id: int
    logprob: float
    top: list[tuple[float, int]] = []
    allowed: int = 0
    """How many tokens its grammar allowed; 0: there was none."""
    ruled_out: int = -1
    """The likeliest token that the grammar excluded; -1: none."""
    forced: bool = False
    """The grammar allowed this token alone."""
    text: str = ""
    """The token's own, with ``return_text_in_logprobs``."""
    raw: bytes = b""
    """The token's bytes: what of the text it made, for views."""


class RequestMeta(Wire, frozen=True, kw_only=True):
    """Counts in tokens, times in seconds, of one finished generation. Sent once, with its Finish."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    """What was sampled, the stop tokens included."""
    kept_tokens: int
    """Output tokens the session keeps."""
    queue_time: float
    prefill_time: float
    decode_time: float
    e2e_latency: float
    first_step: int = -1
    last_step: int = -1
    cut_tokens: int = 0
    """Tokens of the session that this prompt replaced: its chat template wrote earlier turns anew."""
    leftover: str = ""
    """Kept characters beyond the last kept token: the session has them as pending text."""
    forced_tokens: int = 0
    """Output tokens that were the only ones its grammar allowed."""
    joined_tokens: int = 0
    """Prompt tokens whose KV was copied from joined branches now; neither cached nor computed."""
    joined_kv: str = ""
    """Of a session that was joined with ``method="kv"``: ``approximate``, or ``exact`` once nothing copied is left."""
    notes: list[str] = []
    """What the user may want to know of this prompt, one sentence or two each."""


class RoleTemplate(Wire, frozen=True, kw_only=True):
    """The text a chat template puts before and after a turn of one role."""

    prefix: str
    suffix: str


class ModelInfo(Wire, frozen=True, kw_only=True):
    """What a client may know of the loaded model."""

    model: str
    path: str
    vocab_size: int
    context_length: int
    max_total_tokens: int
    dtype: str
    device: str
    attention_backend: str
    runner: str
    eos_token_ids: list[int]
    roles: dict[str, RoleTemplate]
    default_system: str
    """Whole text of the default system turn, put first when a conversation does not open with one; may be empty."""
    template_exact: bool
    """False: the template is not made of prefix and suffix; turns are rendered whole and ``roles`` approximates."""
    template_hash: str = ""


# ---------------------------------------------------------------- client → engine


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


ForkBase = Literal["new", "same", "none"]
"""What a join takes for a child's own: all since this fork; what is ``sid``'s own and all since; nothing: it cannot
be joined by its KV."""


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


class OptionScore(Wire, frozen=True, kw_only=True):
    """One option of a Select: its scored tokens and their raw log-probabilities; ``score`` is the method's value."""

    ids: list[int]
    logprobs: list[float]
    score: float
    unconditional: list[float] = []


class Choice(Wire, frozen=True, kw_only=True):
    """Result of a Select: index of the winner and every option's score, in option order."""

    index: int
    options: list[OptionScore]


class Release(Wire, frozen=True, kw_only=True, tag="release"):
    """Close sessions: their running requests are aborted. Idempotent."""

    sids: list[str]


Op = Init | Extend | Decode | Select | Fork | Join | Commit | Release


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


# ---------------------------------------------------------------- engine → client


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


class Chunk(Wire, frozen=True, kw_only=True, tag="chunk"):
    """New output of one request: whole characters only, never part of a stop string. ``finish`` comes once, last."""

    rid: str
    text: str = ""
    ids: list[int] = []
    """Tokens sampled since the last chunk (may run ahead of ``text``)."""
    logprobs: list[TokenLogprob] = []
    started: bool = False
    """True once: the request left the queue."""
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


# ---------------------------------------------------------------- tokenizer process → scheduler process


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


# ---------------------------------------------------------------- scheduler process → tokenizer process


class ReqOutput(Wire, frozen=True, kw_only=True):
    """What one step has for one request. ``visible`` is the count of output *bytes* that may be shown so far:
    held-back prefixes of stop strings are beyond it, and at the end it is the exact cut."""

    rid: str
    ids: list[int] = []
    visible: int = 0
    logprobs: list[TokenLogprob] = []
    started: bool = False
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


# ---------------------------------------------------------------- scheduler → model runner (the runner seam)


FROM_PREVIOUS = -1
"""Instead of an input id: the token that this row of the runner's table drew last."""


class ModelWorkerBatch(Wire, frozen=True, kw_only=True):
    """One forward pass: plain ints and lists, nothing shared with the scheduler. B rows.

    An *extend* row computes ``input_ids`` after ``prefix_len`` cached tokens; a *decode* row has one input id.
    The runner keeps its own request → slot table, told here: ``prefix_locs`` is given when a row's table must be
    (re)written up to its prefix (first chunk), then ``out_cache_loc`` extends it.
    """

    step: int
    forward_mode: Literal["extend", "decode", "mixed"]
    input_ids: list[int]
    """All rows' new tokens, one after another (sum of extend_lens). The first of a row may be FROM_PREVIOUS."""
    req_pool_indices: list[int]
    seq_lens: list[int]
    """Length after this step, new tokens included."""
    prefix_lens: list[int]
    extend_lens: list[int]
    out_cache_loc: list[int]
    """Slot of each new token, aligned with ``input_ids``."""
    prefix_locs: list[list[int] | None]
    sample: list[bool]
    """False for a row whose prompt is not finished by this chunk: no token is drawn."""
    params: list[SamplingParams]
    seeds: list[int]
    positions_drawn: list[int]
    """Output tokens drawn so far by each row: with the seed it fixes the row's random numbers."""
    banned: list[list[int]]
    """Ids that must not be drawn now (EOS and stop ids below min_new_tokens)."""
    bitmask: bytes | None = None
    """The grammar's mask, B × ceil(vocab/32) little-endian int32; None: no grammar in the batch."""
    drawn_ids: list[list[int] | None] = []
    """Of each row whose scores are penalised for them, the output tokens so far; empty when no row is."""
    score_targets: list[list[int] | None] = []
    """Of each row, empty when no row is scored: the token whose raw log-probability is wanted after each new token, so as
    many as ``extend_lens``, -1 where none is; None: not scored."""
    move_src: list[int] = []
    """KV to move before anything is computed, all at once: of slot ``move_src[i]`` to slot ``move_dst[i]``."""
    move_dst: list[int] = []
    copy_src: list[int] = []
    """KV to copy after that and before anything is computed, all at once: of slot ``copy_src[i]`` to slot
    ``copy_dst[i]``, its key rotated by ``copy_shift[i]`` positions."""
    copy_dst: list[int] = []
    copy_shift: list[int] = []


class ModelWorkerOutput(Wire, frozen=True, kw_only=True):
    """Result of a ModelWorkerBatch, row by row. ``next_token_ids`` is -1 where nothing was drawn."""

    step: int
    next_token_ids: list[int]
    logprobs: list[TokenLogprob | None]
    bad_rows: list[int]
    """Rows whose logits were not finite: they fail alone, their KV is not cached."""
    forward_seconds: float
    sample_seconds: float
    scores: list[list[float] | None] = []
    """Aligned with ``score_targets``; None where nothing was asked or the row is bad."""
    score_tops: list[list[list[tuple[float, int]]] | None] = []
    """Of rows that are scored and want ``top_logprobs_num``: (log-probability, id) after each new token, highest first."""


class RunnerStart(Wire, frozen=True, kw_only=True, tag="r.start"):
    """To a runner in a process of its own: which model to load. ``ModelWorkerBatch`` records follow."""

    args: EngineArgs
    name: str
    path: str
    kind: Literal["gguf", "safetensors"]


class RunnerReady(Wire, frozen=True, kw_only=True, tag="r.ready"):
    """The model is loaded; what the scheduler must know of it."""

    vocab_size: int
    context_length: int
    max_total_tokens: int
    max_running: int
    dtype: str
    device: str
    attention_backend: str
    notice: str = ""
    rotates: bool = False
    """Its KV can be copied to other positions."""


class RunnerResult(Wire, frozen=True, kw_only=True, tag="r.result"):
    """A step was computed, from ``began`` to ``ended`` (seconds of the machine's monotonic clock)."""

    output: ModelWorkerOutput
    began: float
    ended: float


class RunnerFailed(Wire, frozen=True, kw_only=True, tag="r.failed"):
    """The model could not be loaded, or one step failed."""

    error: ErrorInfo


RunnerMessage = RunnerReady | RunnerResult | RunnerFailed | SchedulerProgress


# ---------------------------------------------------------------- telemetry


class EngineStats(Wire, frozen=True, kw_only=True, tag="stats"):
    """SGLang's metric names. Counts; ``token_usage`` and ``cache_hit_rate`` are shares 0..1; throughput in tokens/s."""

    time: float
    num_running_reqs: int
    num_queue_reqs: int
    num_sessions: int
    num_used_tokens: int
    """Slots held by running requests (locked or in flight)."""
    num_cached_tokens: int
    """Slots in the tree that nobody locks."""
    num_free_tokens: int
    max_total_num_tokens: int
    token_usage: float
    cache_hit_rate: float
    """Reused share of the prompt tokens of the last 60 s."""
    gen_throughput: float
    new_token_ratio: float
    num_retracted_reqs: int
    forward_steps: int
    prompt_tokens_total: int
    cached_tokens_total: int
    generated_tokens_total: int
    evicted_tokens_total: int
    num_grammar_queue_reqs: int = 0
    """Requests whose grammar is not ready."""
    num_paused_reqs: int = 0
    """Requests that a paused scheduler holds."""
    paused: bool = False
    """The scheduler is held between two steps, with requests or without."""
    fork_rate: float = 0.0
    """Forked children a second, over the last 60 s."""
    num_half_filled_tokens: int = 0
    """Slots lost to half-filled pages: of running requests' last pages, without a token yet."""


class Match(Wire, frozen=True, kw_only=True):
    """What the cache had of a prompt, told once, at the match. Lengths in tokens."""

    matched: int
    node: int
    """The node in which the match ended; 0: the root."""
    cause: Literal[
        "hit",
        "logprobs",
        "disabled",
        "cold",
        "short",
        "evicted",
        "flushed",
        "diverged",
        "page",
        "logprobs",
        "namespace",
        "retokenized",
    ]
    """Why no more: all there was to find; the cache is off; nothing begins like this; what is cached ends here; it was there
    and made room; it was flushed; what is cached goes on differently; the rest fills no page; logprobs of the prompt were
    asked for; it is cached under another key; the same text is cached in other tokens."""
    diverged_at: int = -1
    """Position of the first token that differs."""
    equal_again: int = 0
    """Tokens right behind it that agree again."""
    waited_for: str = ""
    """The request that was computing the same prefix, and ``waited`` seconds for it."""
    waited: float = 0.0
    gone_at: float = 0.0
    """Of ``evicted``: when, for whom (``gone_for``), how many tokens (``gone_tokens``)."""
    gone_for: str = ""
    gone_tokens: int = 0
    gone_policy: str = ""
    half_page: int = 0
    """Of ``page``: tokens that could be reused but for their page, which they do not fill."""


class RequestEvent(Wire, frozen=True, kw_only=True, tag="request"):
    """A request changed state. Lengths and ids only, never text or token ids."""

    time: float
    rid: str
    client: int
    label: Label
    state: Literal["queued", "compiling", "compiled", "admitted", "first_token", "retracted", "finished"]
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reason: str = ""
    """Of ``compiling``: ``compiling grammar``;
    of ``retracted``: ``kv_full``, ``priority``, ``quantum``; of ``finished``: the finish type or error code."""
    match: Match | None = None
    """Of ``admitted``."""
    joined_tokens: int = 0
    """Prompt tokens whose KV was copied from joined branches."""
    duplicate_tokens: int = 0
    """Prompt tokens that another request computed at the same time; this one's copy was freed."""


class StepRow(Wire, frozen=True, kw_only=True):
    """One row of a step: how many new tokens it computes after how many that have KV."""

    rid: str
    kind: Literal["prefill", "decode", "score"]
    tokens: int
    prefix: int


class StepNote(Wire, frozen=True, kw_only=True):
    """A decision of the pass, with its numbers: what was needed and what there was, in ``unit``."""

    rid: str
    what: Literal["admitted", "deferred", "retracted", "suspended", "joined", "recomputed"]
    reason: str
    """``fits``; ``leader`` (its prefix is being computed by ``leader``), ``kv``, ``rows``, ``chunk``, ``input``, ``grammar``
    (it is being compiled);
    ``kv_full``; ``priority``, ``quantum``; of ``joined``: ``copied`` (of ``needs`` joined tokens ``has`` are copied now); of
    ``recomputed``: ``join`` (so many copied tokens were evicted)."""
    unit: str = ""
    needs: int = 0
    has: int = 0
    leader: str = ""


class StepEvent(Wire, frozen=True, kw_only=True, tag="step"):
    """One forward pass and the decisions before it. Times in seconds; counts in slots or requests, before the pass."""

    time: float
    step: int
    mode: Literal["extend", "decode", "mixed", "score"]
    rows: list[StepRow]
    notes: list[StepNote] = []
    schedule_seconds: float = 0.0
    forward_seconds: float = 0.0
    sample_seconds: float = 0.0
    process_seconds: float = 0.0
    exposed_host_seconds: float = 0.0
    """How long the runner had nothing to do before this pass, though there was work: from the end of the pass before, or,
    after a rest, from the moment the scheduler began to plan this one."""
    schedule_under: int = 0
    """The step that was being computed while this one was planned; 0: none, its results were known."""
    free: int = 0
    evictable: int = 0
    running: int = 0
    queued: int = 0
    new_token_ratio: float = 0.0
    drawn: int = 0
    bad_rows: int = 0
    wasted_rows: int = 0
    """Rows whose request had ended before their result came."""


class RadixEvent(Wire, frozen=True, kw_only=True, tag="radix"):
    """The tree changed. A node covers tokens ``start … start + length`` of its prefix."""

    time: float
    kind: Literal["insert", "split", "evict", "flush", "pin", "unpin", "lock", "unlock"]
    """``lock`` and ``unlock`` count on the whole path from ``node`` up; a lock is also a use of that path."""
    node: int
    parent: int
    start: int
    length: int
    for_rid: str = ""
    """Of insert and evict: whose tokens, or for whom room was made."""
    policy: str = ""
    """Of evict."""
    next: list[int] = []
    """Of the last evict that one need of slots caused: the nodes that would go next, at most six."""
    child: int = 0
    """Of split: the node that was cut; it lies below ``node`` now and begins where that one ends."""


class SlotRun(Wire, frozen=True, kw_only=True, array_like=True):
    """Slots ``start … start + count``; ``owner``: a request id, or ``node:<id>`` for the tree's, or empty: free."""

    owner: str
    start: int
    count: int
    kind: str = ""
    """Of a request's slots: ``prefill`` or ``decode``, what computes them; empty for ``score``, the tree's and free ones."""


class KVDelta(Wire, frozen=True, kw_only=True, tag="kv"):
    """Slots that changed hands since the last one, in order; a later run overrides an earlier one."""

    time: float
    step: int
    runs: list[SlotRun]


class KnobEvent(Wire, frozen=True, kw_only=True, tag="knob"):
    """Knobs of the scheduler were changed; a timeline draws a line with their names before ``step``."""

    time: float
    step: int
    """The first step they hold for."""
    objective: str
    knobs: dict[str, int | float | bool | str | None]
    """Only those that changed, with their new values."""


InputKind = Literal[
    "open",
    "extend",
    "decode",
    "fork",
    "select",
    "commit",
    "join",
    "close",
    "abort",
    "gone",
    "compiled",
    "set",
    "flush_cache",
    "pin",
    "unpin",
]


class InputEvent(Wire, frozen=True, kw_only=True, tag="input"):
    """What the scheduler received, so that a simulation can feed it again. Published only while somebody records.

    ``ids`` and ``options`` are no token ids but *marks*, one a token: salted hashes of the whole prefix that ends there,
    little-endian int32 below 2^30. Equal prefixes have equal marks, and nothing else can be read from them.
    """

    time: float
    step: int
    """Forward passes begun before."""
    kind: InputKind
    landed: int = 0
    """Forward passes whose results were known; with ``during`` the last of them is not taken yet, or not known."""
    during: bool = False
    """It came while results were waited for, and was handled before they were taken."""
    client: int = 0
    sid: str = ""
    rid: str = ""
    names: list[str] = []
    """Sessions of ``fork`` (children), ``join`` (branches) and ``close``; requests of ``abort``."""
    skips: list[int] = []
    """Of ``join``, for each branch: ids behind its fork that are left out. ``options`` are what is put in their place."""
    ids: bytes = b""
    options: list[bytes] = []
    method: str = ""
    keep: int | None = None
    constrained: bool = False
    """A grammar says what may be drawn. If it had to be compiled, ``compiled`` follows when it was."""
    params: SamplingParams | None = None
    """Without stop texts, stop ids and biases: they are the user's text."""
    priority: int = 0
    label: Label = Label()
    extra_key: str = ""
    """A salted hash of the name space."""
    knobs: dict[str, Any] = {}
    """Of ``set``."""


class OutputEvent(Wire, frozen=True, kw_only=True, tag="output"):
    """How a request ended, in marks. Published only while somebody records."""

    time: float
    rid: str
    type: FinishType
    step: int = 0
    """The last pass it was in; -1: none."""
    ids: bytes = b""
    """A mark for each token that was drawn."""
    kept: int = 0
    """How many of them its session keeps."""
    scores: list[list[float]] = []
    """Of a select, for each option: log-probabilities of its tokens; ``unconditional``: those without the prompt."""
    unconditional: list[list[float]] = []


class SnapshotNode(Wire, frozen=True, kw_only=True, array_like=True):
    """A node of the tree; ``marks`` as in InputEvent, empty when they were too many for one message."""

    id: int
    parent: int
    start: int
    length: int
    locked: bool
    pinned: bool
    hits: int
    last_access: int
    extra_key: str
    marks: bytes
    locks: int = 0
    pins: int = 0
    soft: int = 0
    """Sessions that refer to it."""
    used: float = 0.0
    """When it was used last."""
    root: int = 0
    """The root it hangs from: its name space."""
    read: int = 0
    """Requests that reused it."""


class SnapshotSession(Wire, frozen=True, kw_only=True, array_like=True):
    """A session and the marks of its ids."""

    sid: str
    client: int
    extra_key: str
    marks: bytes


class SnapshotRequest(Wire, frozen=True, kw_only=True):
    """A request that had not ended. ``marks``: of its prompt, then of what it had drawn."""

    rid: str
    sid: str
    client: int
    label: Label
    state: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    params: SamplingParams
    priority: int
    extra_key: str
    marks: bytes
    time_queued: float = 0.0
    time_admitted: float = 0.0
    node: int = 0
    """The last node of its path that it locks."""
    match: Match | None = None


class Snapshot(Wire, frozen=True, kw_only=True, tag="snapshot"):
    """The scheduler at one moment: what the events with higher numbers than ``seq`` go on from."""

    time: float
    seq: int
    step: int
    args: EngineArgs
    """With the knobs as they were then."""
    context_length: int
    max_total_tokens: int
    max_running: int
    stats: EngineStats
    nodes: list[SnapshotNode]
    """Parents first."""
    slots: list[SlotRun]
    """All that are not free."""
    sessions: list[SnapshotSession]
    requests: list[SnapshotRequest]
    next: list[int] = []
    """The nodes that would be evicted next, at most six."""


class OwnTokens(Wire, frozen=True, kw_only=True, tag="tokens"):
    """Token ids of a finished request, for its owner alone: its whole prompt, and what it drew (of a select: the winner).
    Little-endian int32."""

    rid: str
    sid: str
    prompt_ids: bytes
    output_ids: bytes


class OwnTokensPart(Wire, frozen=True, kw_only=True):
    """Answer to ``recorded_tokens``: what has come since the last answer, at most some 4 MB; and the bytes of the ids in it
    that this client was not told before. ``lost``: requests whose ids were dropped because nobody asked in time."""

    tokens: list[OwnTokens]
    table: dict[int, bytes]
    more: bool = False
    lost: int = 0


TelemetryEvent = (
    EngineStats | RequestEvent | StepEvent | RadixEvent | KVDelta | KnobEvent | InputEvent | OutputEvent
)


class Numbered(Wire, frozen=True, kw_only=True):
    """One event with its number; numbers have no holes, so a gap is seen."""

    seq: int
    event: TelemetryEvent


class TelemetryFrame(Wire, frozen=True, kw_only=True):
    """Heartbeat every 250 ms, and events as they come. ``last_seq`` shows a lost tail."""

    incarnation: str
    last_seq: int
    time: float
    events: list[Numbered] = []


# ---------------------------------------------------------------- run folder


class EngineSpec(Wire, frozen=True, kw_only=True):
    """``spec.json``: what the notebook asks for; written before the engine is started, read by both its processes."""

    args: EngineArgs
    incarnation: str
    version: str
    owner_pid: int
    owner_start_time: int
    sockets: dict[str, str]
    """Paths, as in EngineRecord."""


class EngineRecord(Wire, frozen=True, kw_only=True):
    """``engine.json``: who runs here. Written by atomic rename, mode 0600."""

    name: str
    incarnation: str
    version: str
    pid: int
    start_time: int
    owner_pid: int
    owner_start_time: int
    scheduler_pid: int
    scheduler_start_time: int
    model: str
    sockets: dict[str, str]
    """``client`` (ROUTER), ``telemetry`` (PUB), ``scheduler`` (pair between the two processes)."""
    state: Literal["starting", "ready", "failed"]
    started: float
