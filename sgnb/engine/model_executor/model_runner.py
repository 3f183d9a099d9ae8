"""The runner seam: what the scheduler knows of a model, and how it gets one.

Scheduler process. ``create_runner`` is called once by the engine's start; ``forward`` once a step. Nothing here or
behind it may see a ``Req`` or any other scheduler object: a runner consumes ModelWorkerBatch records only, so that it
can sit inline, in a thread or in another process. No torch in this module: the stub runner must start without it.
"""

from __future__ import annotations

import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from sgnb.config import EngineArgs
from sgnb.engine.model_executor.drivers import is_out_of_memory
from sgnb.engine.model_store import ModelPath
from sgnb.errors import EngineError, EngineStartError
from sgnb.messages import ModelWorkerBatch, ModelWorkerOutput

Progress = Callable[[str, int, int], None]
"""Called with (step, done, total): ``weights`` in bytes, ``kv`` in slots."""

_RUNNERS = {
    "torch": ("sgnb.engine.model_executor.torch_runner", "TorchRunner"),
    "transformers": ("sgnb.engine.model_executor.transformers_runner", "TransformersRunner"),
    "stub": ("sgnb.engine.model_executor.stub_runner", "StubRunner"),
}

_LIBRARIES = {
    # libgomp spins for milliseconds at every barrier, which on a machine with other work takes the core from the very
    # thread that is waited for.
    "GOMP_SPINCOUNT": "20000",
    # oneDNN makes code for each number of rows that a product ever had, half a megabyte of it, and keeps 1,024 such; torch
    # holds on to as many. Prompts of all lengths then take 600 MB little by little. A step needs a dozen.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256",
    "LRU_CACHE_CAPACITY": "16",
}
"""What torch's libraries read from the environment when they are loaded; what the user has set there stays."""


class BaseRunner(ABC):
    """A loaded model with its KV pool. Attributes are set by ``__init__`` and never change."""

    vocab_size: int
    context_length: int
    max_total_tokens: int
    """KV slots; numbers 0…max_total_tokens are legal (one more, so that slot 0 may be kept for padding)."""
    dtype: str
    device: str
    attention_backend: str
    max_running: int
    """Rows of the request table: ``req_pool_indices`` are 0…max_running - 1."""
    slot_bytes: int = 0
    """Memory that one KV slot takes in the pool; 0 where the cache is a library's."""
    rotates: bool = False
    """``copy_rotated`` works."""
    notice: str = ""
    """A sentence for the log (a small pool, a slow dtype), or empty."""

    @abstractmethod
    def forward(self, batch: ModelWorkerBatch) -> ModelWorkerOutput:
        """Compute one step. Rows with non-finite logits come back in ``bad_rows``, the others are unaffected.
        ValueError for a record that contradicts itself or leaves the pool: a fault of the caller."""

    @abstractmethod
    def move_slots(self, src: list[int], dst: list[int]) -> None:
        """The KV of slot ``src[i]`` goes to slot ``dst[i]``, all at once: a slot may be in both. Rows of the request table
        are told anew by the next record (``prefix_locs``)."""

    def copy_rotated(self, src: list[int], dst: list[int], shift: list[int]) -> None:
        """The KV of slot ``src[i]`` is copied to slot ``dst[i]``, its key rotated as if its token stood ``shift[i]``
        positions later (earlier, if negative); all at once. EngineError where KV cannot be moved in this sense."""
        raise EngineError(f"{type(self).__name__} cannot copy KV to other positions")

    def trim(self) -> None:  # noqa: B027 (most keep nothing)
        """Give back memory that is kept for later steps: one has just found too little."""

    @abstractmethod
    def close(self) -> None:
        """Free memory. Idempotent."""


def create_runner(args: EngineArgs, model: ModelPath, progress: Progress) -> BaseRunner:
    """Load ``model`` behind the runner that ``args`` names. Raises EngineStartError or ModelFileError."""
    module, name = _RUNNERS[args.runner]
    for variable, value in _LIBRARIES.items():
        os.environ.setdefault(variable, value)
    try:
        factory = getattr(importlib.import_module(module), name)
    except ImportError as error:
        package = (error.name or "").split(".")[0]
        if package not in ("transformers", "torch"):
            raise
        raise EngineStartError(
            f"the {args.runner} runner needs {package}, which is not installed",
            hint='pip install "sgnb[reference]"' if package == "transformers" else "pip install torch",
        ) from None
    try:
        return cast(BaseRunner, factory(args, model, progress))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise EngineStartError(
            f"this machine has not enough memory for the model and its tables: {error}",
            hint="Launch with a smaller max_total_tokens, max_running_requests or context_length, or a smaller model.",
        ) from None


@dataclass(frozen=True, slots=True)
class RowSpan:
    """One row of a checked batch: its new tokens are ``start … start + extend_len`` of the flat arrays."""

    row: int
    start: int
    extend_len: int
    prefix_len: int
    req_pool_idx: int

    @property
    def seq_len(self) -> int:
        """Tokens after this step."""
        return self.prefix_len + self.extend_len


def context_of(args: EngineArgs, model_context: int) -> int:
    """The context to run with; EngineStartError when more is asked than the model has."""
    if args.context_length is None:
        return model_context
    if args.context_length > model_context:
        raise EngineStartError(
            f"context_length {args.context_length} is more than the model's {model_context}",
            hint=f"Give at most {model_context}.",
        )
    return args.context_length


def check_batch(batch: ModelWorkerBatch, runner: BaseRunner) -> list[RowSpan]:
    """The rows of a batch, after checking every length, id and slot against the runner. ValueError names the row."""
    rows = len(batch.req_pool_indices)
    per_row = ("seq_lens", "prefix_lens", "extend_lens", "prefix_locs", "sample", "params", "seeds")
    for name in (*per_row, "positions_drawn", "banned"):
        if len(getattr(batch, name)) != rows:
            raise ValueError(f"{name}: expected {rows} rows, found {len(getattr(batch, name))}")
    if not rows:
        raise ValueError("a batch needs at least one row")
    if len(set(batch.req_pool_indices)) != rows:
        raise ValueError(f"req_pool_indices: expected distinct rows, found {batch.req_pool_indices}")
    total = sum(batch.extend_lens)
    for name in ("input_ids", "out_cache_loc"):
        if len(getattr(batch, name)) != total:
            raise ValueError(f"{name}: expected {total} entries, found {len(getattr(batch, name))}")
    _check_range("input_ids", batch.input_ids, 0, runner.vocab_size)
    _check_range("out_cache_loc", batch.out_cache_loc, 0, runner.max_total_tokens + 1)
    _check_range("req_pool_indices", batch.req_pool_indices, 0, runner.max_running)
    if len(set(batch.out_cache_loc)) != total:
        raise ValueError("out_cache_loc: a slot is there twice")
    if batch.bitmask is not None and len(batch.bitmask) != rows * 4 * -(-runner.vocab_size // 32):
        raise ValueError(
            f"bitmask: expected {rows} rows for {runner.vocab_size} ids, found {len(batch.bitmask)} bytes"
        )
    if batch.drawn_ids and len(batch.drawn_ids) != rows:
        raise ValueError(f"drawn_ids: expected {rows} rows, found {len(batch.drawn_ids)}")
    if batch.score_targets:
        _check_targets(batch, runner.vocab_size)
    spans = []
    start = 0
    for row in range(rows):
        extend, prefix, locs = batch.extend_lens[row], batch.prefix_lens[row], batch.prefix_locs[row]
        if extend < 1 or prefix < 0 or batch.seq_lens[row] != prefix + extend:
            raise ValueError(
                f"row {row}: prefix {prefix} + extend {extend} is not seq_len {batch.seq_lens[row]}"
            )
        if batch.seq_lens[row] > runner.context_length:
            raise ValueError(
                f"row {row}: {batch.seq_lens[row]} tokens exceed the context of {runner.context_length}"
            )
        if locs is not None:
            if len(locs) != prefix:
                raise ValueError(f"row {row}: prefix_locs: expected {prefix} slots, found {len(locs)}")
            _check_range(f"row {row}: prefix_locs", locs, 0, runner.max_total_tokens + 1)
        spans.append(RowSpan(row, start, extend, prefix, batch.req_pool_indices[row]))
        start += extend
    return spans


def _check_targets(batch: ModelWorkerBatch, vocab_size: int) -> None:
    if len(batch.score_targets) != len(batch.sample):
        raise ValueError(
            f"score_targets: expected {len(batch.sample)} rows, found {len(batch.score_targets)}"
        )
    for row, targets in enumerate(batch.score_targets):
        if targets is None:
            continue
        if len(targets) != batch.extend_lens[row]:
            raise ValueError(
                f"row {row}: score_targets: expected {batch.extend_lens[row]} targets, found {len(targets)}"
            )
        _check_range(f"row {row}: score_targets", targets, -1, vocab_size)


def _check_range(name: str, values: list[int], low: int, stop: int) -> None:
    if values and (min(values) < low or max(values) >= stop):
        bad = next(v for v in values if not low <= v < stop)
        raise ValueError(f"{name}: expected {low}..{stop - 1}, found {bad}")
