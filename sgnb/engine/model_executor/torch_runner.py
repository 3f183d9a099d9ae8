"""sgnb's own runner: the decoder of ``models`` over the pools, on a CPU or one GPU.

Scheduler process; made by ``model_runner.create_runner``. Owns weights, pools and thread count; consumes
ModelWorkerBatch records and keeps of them only its request → slot table. No scheduling and no request state here.
"""

from __future__ import annotations

import math
import time

import torch

from sgnb.config import EngineArgs
from sgnb.engine.attention.base import make_backend
from sgnb.engine.layers.sampler import close_calls, sample, top_pairs
from sgnb.engine.mem_cache.memory_pool import ReqToTokenPool, TokenToKVPool, choose_slots, slot_bytes
from sgnb.engine.model_executor.forward_batch import ForwardBatch
from sgnb.engine.model_executor.loader import open_weights
from sgnb.engine.model_executor.model_runner import BaseRunner, Progress, check_batch, context_of
from sgnb.engine.model_executor.precision import (
    CLOSE,
    SETTLED_ROWS,
    Precision,
    choose_precision,
    has_bf16,
    packs,
)
from sgnb.engine.model_executor.threads import ThreadChooser
from sgnb.engine.model_store import ModelPath
from sgnb.engine.models.llama import LlamaForCausalLM
from sgnb.errors import EngineStartError
from sgnb.messages import ModelWorkerBatch, ModelWorkerOutput, TokenLogprob

_SCORED_AT_ONCE = 64
"""Positions whose scores over the whole vocabulary are held at once (12 MB at 49,152 tokens)."""
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_device(name: str) -> torch.device:
    """``auto``: the GPU if torch sees one. EngineStartError for a device that is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda") or (device.type == "cuda" and not torch.cuda.is_available()):
        raise EngineStartError(f"device {name!r} is not available", hint="Use cpu, or auto.")
    return device


def choose_dtype(args: EngineArgs, device: torch.device) -> tuple[torch.dtype, str]:
    """The dtype of products and cache, and a notice if it is not the fast one.

    ``auto`` is bf16 where the machine multiplies it natively, else fp32; ``deterministic`` is fp32.
    """
    if args.deterministic:
        if args.dtype not in ("auto", "float32"):
            raise EngineStartError(f"deterministic needs dtype float32, not {args.dtype}")
        return torch.float32, ""
    if args.dtype == "float16" and device.type == "cpu":
        raise EngineStartError("dtype float16 needs a GPU", hint="Use bfloat16 or float32 on a CPU.")
    native = device.type == "cuda" or has_bf16()
    if args.dtype != "auto":
        slow = args.dtype == "bfloat16" and not native
        return _DTYPES[args.dtype], "this CPU has no bf16 instructions: float32 is faster" if slow else ""
    if native:
        return torch.bfloat16, ""
    return torch.float32, "this CPU has no bf16 instructions: float32 is used"


class TorchRunner(BaseRunner):
    """See the module."""

    def __init__(self, args: EngineArgs, model: ModelPath, progress: Progress) -> None:
        device = choose_device(args.device)
        dtype, self.notice = choose_dtype(args, device)
        # fp32 is the mode that is compared with others: there no row may depend on its neighbours
        name, self._backend = make_backend(args.attention_backend, fixed=dtype == torch.float32)
        torch.set_num_threads(1)  # loading is bound by memory; more threads only suffer from other work
        with torch.inference_mode():
            with open_weights(model, progress) as weights:
                config = weights.config
                self.context_length = context_of(args, config.context_length)
                self._model = LlamaForCausalLM(weights, dtype, device)
            per_slot = slot_bytes(config.num_layers, config.num_kv_heads, config.head_dim, dtype)
            slots, small = choose_slots(args.max_total_tokens, per_slot, device, self.context_length)
            progress("kv", 0, slots)
            self._kv = TokenToKVPool(
                slots, config.num_layers, config.num_kv_heads, config.head_dim, dtype, device
            )
            self._reqs = ReqToTokenPool(args.max_running_requests, self.context_length)
            progress("kv", slots, slots)
        self._threads = ThreadChooser(args.threads, fixed=args.deterministic or device.type != "cpu")
        self.notice = "; ".join(filter(None, (self.notice, small)))
        self.rotates = True
        self.slot_bytes = per_slot
        self.vocab_size = config.vocab_size
        self.max_total_tokens = slots
        self.max_running = args.max_running_requests
        self.dtype = str(dtype).removeprefix("torch.")
        self.device = str(device)
        self.attention_backend = name
        self._dtype, self._device = dtype, device
        self._settles = dtype == torch.bfloat16 and packs(device)

    @torch.inference_mode()
    def forward(self, batch: ModelWorkerBatch) -> ModelWorkerOutput:
        """See BaseRunner."""
        started = time.perf_counter()
        spans = check_batch(batch, self)
        self._threads.before_step(len(batch.input_ids))
        forward_batch = ForwardBatch.init_new(
            batch,
            spans,
            self._reqs,
            self._kv,
            self._backend,
            choose_precision(spans, self._dtype, self._device),
            self._dtype,
            self._device,
        )
        hidden = self._model.forward(forward_batch)  # [B + scored, hidden]
        hidden, scored = hidden[: len(spans)], hidden[len(spans) :]
        rows = [span.row for span in spans if batch.sample[span.row]]
        # scores show a fault of rows that draw; of the others the residual does
        broken = torch.isfinite(hidden.sum(-1)).logical_not_().tolist()
        extra = 0.0
        if rows:
            wanted = hidden if len(rows) == len(spans) else hidden[rows]
            logits = self._model.logits(wanted, forward_batch.precision)
            if self._settles and forward_batch.precision != Precision.EXACT and len(rows) <= SETTLED_ROWS:
                extra = self._settle_(logits, batch, rows, forward_batch)
        scores, tops = self._score(scored, forward_batch.precision, batch, broken)
        computed = time.perf_counter()
        ids = [-1] * len(spans)
        logprobs: list[TokenLogprob | None] = [None] * len(spans)
        if rows:
            drawn = sample(logits, batch, rows)
            for i, row in enumerate(rows):
                ids[row], logprobs[row] = drawn.ids[i], drawn.logprobs[i]
                broken[row] = broken[row] or drawn.bad[i]
        done = time.perf_counter()
        # what close calls cost says nothing about the thread count
        self._threads.after_step(done - started - extra)
        return ModelWorkerOutput(
            step=batch.step,
            next_token_ids=[-1 if broken[row] else token for row, token in enumerate(ids)],
            logprobs=[None if broken[row] else lp for row, lp in enumerate(logprobs)],
            bad_rows=[row for row, b in enumerate(broken) if b],
            forward_seconds=computed - started,
            sample_seconds=done - computed,
            scores=scores,
            score_tops=tops,
        )

    def _score(
        self,
        hidden: torch.Tensor,
        precision: Precision,
        batch: ModelWorkerBatch,
        broken: list[bool],
    ) -> tuple[list[list[float] | None], list[list[list[tuple[float, int]]] | None]]:
        """Raw log-probabilities of ``batch.score_targets`` after ``hidden`` [S, hidden], and the likeliest tokens there;
        marks rows that are not finite."""
        targets = batch.score_targets
        flat = torch.tensor([t for row in targets for t in row or ()], dtype=torch.int64, device=self._device)
        values: list[float] = []
        most = max((batch.params[i].top_logprobs_num for i, row in enumerate(targets) if row), default=0)
        best: list[list[tuple[float, int]]] = []
        for at in range(0, len(flat), _SCORED_AT_ONCE):
            logprobs = self._model.logits(hidden[at : at + _SCORED_AT_ONCE], precision).log_softmax(-1)
            part = logprobs.gather(1, flat[at : at + _SCORED_AT_ONCE, None].clamp_min(0))
            values += part[:, 0].tolist()
            best += top_pairs(logprobs, most)
        out: list[list[float] | None] = []
        tops: list[list[list[tuple[float, int]]] | None] = []
        at = 0
        for row, wanted in enumerate(targets):
            mine, above = values[at : at + len(wanted or ())], best[at : at + len(wanted or ())]
            at += len(mine)
            broken[row] = broken[row] or not all(map(math.isfinite, mine))
            asked = batch.params[row].top_logprobs_num
            out.append(None if wanted is None or broken[row] else mine)
            tops.append([pairs[:asked] for pairs in above] if asked and out[-1] is not None else None)
        return out, tops if most else []

    def _settle_(
        self, logits: torch.Tensor, batch: ModelWorkerBatch, rows: list[int], forward_batch: ForwardBatch
    ) -> float:
        """Compute the last token of greedy rows again, exactly, where two scores are too close for this precision.

        Returns the seconds it took.
        """
        close = close_calls(logits, batch, rows, CLOSE)
        if not close:
            return 0.0
        began = time.perf_counter()
        again = forward_batch.last_tokens([rows[i] for i in close], Precision.EXACT)
        logits[close] = self._model.logits(self._model.forward(again), again.precision)
        return time.perf_counter() - began

    @torch.inference_mode()
    def move_slots(self, src: list[int], dst: list[int]) -> None:
        """See BaseRunner."""
        self._kv.move(
            torch.tensor(src, dtype=torch.int64, device=self._device),
            torch.tensor(dst, dtype=torch.int64, device=self._device),
        )

    @torch.inference_mode()
    def copy_rotated(self, src: list[int], dst: list[int], shift: list[int]) -> None:
        """See BaseRunner."""
        cos, sin = self._model.rope.shifts(torch.tensor(shift, dtype=torch.int64, device=self._device))
        self._kv.copy_rotated(
            torch.tensor(src, dtype=torch.int64, device=self._device),
            torch.tensor(dst, dtype=torch.int64, device=self._device),
            lambda keys: self._model.rope.apply_(keys, cos, sin),
        )

    def trim(self) -> None:
        """See BaseRunner."""
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def close(self) -> None:
        """Drop weights and pools. Idempotent."""
        self.__dict__.pop("_model", None)
        self.__dict__.pop("_kv", None)
