"""Scheduler ↔ model runner, the runner seam: one forward pass as a frozen record, and its result.

The three drivers carry these records: by call, between threads, or between processes. Nothing of a request but what the
pass needs; no tensors.
"""

from __future__ import annotations

from typing import Literal

from sgnb.config import EngineArgs
from sgnb.messages.parts import ErrorInfo, TokenLogprob, Wire
from sgnb.messages.scheduler import SchedulerProgress
from sgnb.sampling_params import SamplingParams

FROM_PREVIOUS = -1
"""Instead of an input id: the token that this row of the runner's table drew last."""


class ModelWorkerBatch(Wire, frozen=True, kw_only=True):
    """One forward pass: plain ints and lists, nothing shared with the scheduler. B rows.

    An *extend* row computes ``input_ids`` after ``prefix_len`` cached tokens; a *decode* row has one input id.
    The runner keeps its own request → slot table, told here: ``prefix_locs`` is given when a row's table must be
    (re)written up to its prefix (first chunk), then ``out_cache_loc`` extends it.
    """

    step: int
    behind: int = 0
    """The step that was in flight when this one was launched; 0: none. If that one fails, this one is not computed."""
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
    slot_bytes: int = 0
    """Memory of one KV slot; 0 where it is not known."""
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
