"""The reference runner: the same weights, dequantised, in transformers' own model. Correctness before speed.

Scheduler process, chosen by ``runner="transformers"``. It keeps one cache of transformers per request row and runs rows
one by one; its "slots" only remember which token lies where, so that a prefix handed over by the radix cache can be
computed again. Shares the loader and the sampler with the real runner, and nothing of its model code.
"""

from __future__ import annotations

import inspect
import math
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import transformers

from sgnb.config import EngineArgs
from sgnb.engine.layers.basic import inverse_frequencies
from sgnb.engine.layers.sampler import sample, top_pairs
from sgnb.engine.mem_cache.memory_pool import DEFAULT_SLOTS
from sgnb.engine.model_executor.loader import Weights, open_weights
from sgnb.engine.model_executor.model_config import ModelConfig
from sgnb.engine.model_executor.model_runner import BaseRunner, Progress, RowSpan, check_batch, context_of
from sgnb.engine.model_executor.torch_runner import choose_device, choose_dtype
from sgnb.engine.model_store import ModelPath
from sgnb.messages import ModelWorkerBatch, ModelWorkerOutput, TokenLogprob

_CLASSES = {
    "LlamaForCausalLM": "LlamaConfig",
    "MistralForCausalLM": "MistralConfig",
    "Qwen2ForCausalLM": "Qwen2Config",
    "Qwen3ForCausalLM": "Qwen3Config",
}


@dataclass(slots=True)
class _Row:
    """What a request row has computed: ids, and transformers' cache of exactly those."""

    ids: list[int] = field(default_factory=list)
    cache: Any = None


class TransformersRunner(BaseRunner):
    """See the module."""

    def __init__(self, args: EngineArgs, model: ModelPath, progress: Progress) -> None:
        self._device = choose_device(args.device)
        dtype, self.notice = choose_dtype(args, self._device)
        if args.threads:
            torch.set_num_threads(args.threads)
        with open_weights(model, progress) as weights:
            self.context_length = context_of(args, weights.config.context_length)
            self.vocab_size = weights.config.vocab_size
            self._model = build_model(weights, dtype).to(self._device)
        # newer releases call it cache
        names = inspect.signature(type(self._model).forward).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self.max_total_tokens = args.max_total_tokens or DEFAULT_SLOTS
        self.max_running = args.max_running_requests
        self.dtype, self.device = str(dtype).removeprefix("torch."), str(self._device)
        self.attention_backend = "transformers"
        self._rows = [_Row() for _ in range(self.max_running)]
        self._slot_token = np.full(self.max_total_tokens + 1, -1, dtype=np.int64)
        progress("kv", self.max_total_tokens, self.max_total_tokens)

    @torch.inference_mode()
    def forward(self, batch: ModelWorkerBatch) -> ModelWorkerOutput:
        """See BaseRunner."""
        started = time.perf_counter()
        spans = check_batch(batch, self)
        scores = [self._row_scores(batch, span) for span in spans]
        computed = time.perf_counter()
        ids = [-1] * len(spans)
        logprobs: list[TokenLogprob | None] = [None] * len(spans)
        bad = []
        told: list[list[float] | None] = [None] * len(spans) if batch.score_targets else []
        tops: list[list[list[tuple[float, int]]] | None] = [None] * len(told)
        for span, row_scores in zip(spans, scores, strict=True):
            row = span.row
            wanted = batch.score_targets[row] if batch.score_targets else None
            if wanted is not None:
                index = torch.tensor(wanted, device=row_scores.device).clamp_min(0)[:, None]
                every = row_scores.log_softmax(-1)
                values: list[float] = every.gather(1, index)[:, 0].tolist()
                if batch.params[row].top_logprobs_num:
                    tops[row] = top_pairs(every, batch.params[row].top_logprobs_num)
                told[row] = values if all(map(math.isfinite, values)) else None
                if told[row] is None:
                    bad.append(row)
                if told[row] is None or not batch.sample[row]:
                    continue
            row_scores = row_scores[-1]
            if not batch.sample[row]:
                if not bool(torch.isfinite(row_scores.sum())):
                    bad.append(row)
                continue
            drawn = sample(row_scores[None], batch, [row])
            ids[row], logprobs[row] = drawn.ids[0], drawn.logprobs[0]
            if drawn.bad[0]:
                bad.append(row)
        return ModelWorkerOutput(
            step=batch.step,
            next_token_ids=ids,
            logprobs=logprobs,
            bad_rows=bad,
            forward_seconds=computed - started,
            sample_seconds=time.perf_counter() - computed,
            scores=told,
            score_tops=tops,
        )

    def move_slots(self, src: list[int], dst: list[int]) -> None:
        """See BaseRunner. Rows have caches of their own: only what each slot stands for moves."""
        content = self._slot_token[src]
        self._slot_token[src] = -1
        self._slot_token[dst] = content

    def close(self) -> None:
        """Drop the model and the caches. Idempotent."""
        self._rows = []
        self.__dict__.pop("_model", None)

    def _row_scores(self, batch: ModelWorkerBatch, span: RowSpan) -> torch.Tensor:
        """fp32 scores [n, V] after the row's last new token, or after each of them if they are scored."""
        row, locs = self._rows[span.req_pool_idx], batch.prefix_locs[span.row]
        new = batch.input_ids[span.start : span.start + span.extend_len]
        prefix = row.ids if locs is None and span.prefix_len else self._slot_token[locs or []].tolist()
        if len(prefix) != span.prefix_len or -1 in prefix:
            raise ValueError(
                f"row {span.row}: expected a prefix of {span.prefix_len} written tokens, found {len(prefix)}"
            )
        if row.cache is None or row.ids != prefix or not prefix:
            row.cache = transformers.DynamicCache()
            todo = prefix + new
        else:
            todo = new
        self._slot_token[batch.out_cache_loc[span.start : span.start + span.extend_len]] = new
        row.ids = prefix + new
        inputs = torch.tensor([todo], device=self._device)
        keep = len(new) if batch.score_targets and batch.score_targets[span.row] is not None else 1
        cache = {self._cache_name: row.cache}
        out = self._model(input_ids=inputs, use_cache=True, logits_to_keep=keep, **cache)
        scores: torch.Tensor = out.logits[0, -keep:].float()
        return scores


def build_model(weights: Weights, dtype: torch.dtype) -> Any:
    """A transformers model with these weights, on the CPU, in ``dtype``, in eval mode."""
    config = _hf_config(weights.config)
    with torch.device("meta"):
        model = getattr(transformers, weights.config.architecture)(config)
    state = {name: weights.dense(name, dtype) for name in weights.config.weight_shapes()}
    if weights.config.tied:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, assign=True)
    # its frequencies are a buffer outside the state, and were made on the meta device
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    if weights.config.rope_factors:
        model.model.rotary_emb.inv_freq = inverse_frequencies(weights.config)
    return model.eval()


def _hf_config(config: ModelConfig) -> Any:
    values: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.context_length,
        "rms_norm_eps": config.rms_eps,
        "tie_word_embeddings": config.tied,
        "attention_bias": config.qkv_bias and config.architecture != "Qwen2ForCausalLM",
        "mlp_bias": config.mlp_bias,
        "sliding_window": None,
        "attn_implementation": "sdpa",
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope_theta}
    if config.rope_scaling:
        rope |= {"rope_type": config.rope_scaling.type, "factor": config.rope_scaling.factor}
        if config.rope_scaling.type == "llama3":
            rope |= {
                "low_freq_factor": config.rope_scaling.low_freq_factor,
                "high_freq_factor": config.rope_scaling.high_freq_factor,
                "original_max_position_embeddings": config.rope_scaling.original_context,
            }
    if int(transformers.__version__.split(".")[0]) >= 5:
        values["rope_parameters"] = rope
    else:
        values["rope_theta"] = rope.pop("rope_theta")
        values["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    return getattr(transformers, _CLASSES[config.architecture])(**values)
