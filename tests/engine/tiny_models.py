"""Helpers of the engine tests: tiny random models on disk, and a driver that feeds a runner by hand.

``make_tiny`` writes a safetensors folder with transformers (seed fixed); ``Driver`` builds ModelWorkerBatch records the
way the scheduler does, with slots from a plain counter, so that runners are tested without scheduler or tokenizer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from sgnb.engine.model_executor.model_runner import BaseRunner
from sgnb.messages import ModelWorkerBatch, ModelWorkerOutput
from sgnb.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0.0)

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


def tiny_config(family: str, **changes):
    """A transformers config of two small layers with grouped heads."""
    import transformers

    cls = {
        "llama": transformers.LlamaConfig,
        "mistral": transformers.MistralConfig,
        "qwen2": transformers.Qwen2Config,
        "qwen3": transformers.Qwen3Config,
    }[family]
    values = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 96,
        "vocab_size": 300,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": 2,
        "pad_token_id": None,
    }
    if family == "qwen3":
        values["head_dim"] = 32
    if family == "mistral":
        values["sliding_window"] = None
    return cls(**(values | changes))


def make_tiny(folder: Path, family: str = "llama", *, seed: int = 0, scale: float = 0.25, **changes):
    """Write a random model into ``folder`` and return it (transformers, fp32, eval). Biases and norms are random too;
    matrices have a deviation of ``scale`` (small: a calm model, whose rounding errors stay small)."""
    import torch
    import transformers

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(tiny_config(family, **changes))
        with torch.no_grad():
            for name, value in model.named_parameters():
                value.normal_(1.0 if "norm" in name else 0.0, 0.2 if value.dim() == 1 else scale)
    model.float().eval().save_pretrained(folder)
    return model


@dataclass
class Driver:
    """Runs requests on a runner: each has a row, its ids and its slots."""

    runner: BaseRunner
    step: int = 0
    next_slot: int = 1
    rows: dict[int, list[int]] = field(default_factory=dict)
    slots: dict[int, list[int]] = field(default_factory=dict)

    def alloc(self, n: int) -> list[int]:
        self.next_slot += n
        return list(range(self.next_slot - n, self.next_slot))

    def forward(
        self,
        work: dict[int, list[int]],
        *,
        no_sample: tuple[int, ...] = (),
        params: dict[int, SamplingParams] | None = None,
        seeds: dict[int, int] | None = None,
        drawn: dict[int, int] | None = None,
        shared: dict[int, list[int]] | None = None,
        banned: dict[int, list[int]] | None = None,
        bitmask: bytes | None = None,
    ) -> ModelWorkerOutput:
        """One step: ``work`` maps a request's row to its new ids; ``shared`` gives a new request its cached prefix as
        slots (its ids must be in ``rows`` already)."""
        ids, locs, prefix, prefix_locs = [], [], [], []
        for row, new in work.items():
            first = row not in self.slots
            if first:
                self.slots[row] = list((shared or {}).get(row, []))
                self.rows.setdefault(row, [])
            prefix.append(len(self.slots[row]))
            prefix_locs.append(list(self.slots[row]) if first else None)
            fresh = self.alloc(len(new))
            self.slots[row] += fresh
            self.rows[row] += new
            ids += new
            locs += fresh
        self.step += 1
        lens = [len(new) for new in work.values()]
        batch = ModelWorkerBatch(
            step=self.step,
            forward_mode="decode" if max(lens) == 1 else "mixed" if min(lens) == 1 else "extend",
            input_ids=ids,
            req_pool_indices=list(work),
            seq_lens=[len(self.slots[row]) for row in work],
            prefix_lens=prefix,
            extend_lens=lens,
            out_cache_loc=locs,
            prefix_locs=prefix_locs,
            sample=[row not in no_sample for row in work],
            params=[(params or {}).get(row, GREEDY) for row in work],
            seeds=[(seeds or {}).get(row, 0) for row in work],
            positions_drawn=[(drawn or {}).get(row, 0) for row in work],
            banned=[(banned or {}).get(row, []) for row in work],
            bitmask=bitmask,
        )
        return self.runner.forward(batch)

    def generate(self, prompts: dict[int, list[int]], n: int, *, chunk: int = 0) -> dict[int, list[int]]:
        """Greedy tokens of several requests run together; ``chunk`` splits their prompts."""
        out: dict[int, list[int]] = {row: [] for row in prompts}
        for row, ids in prompts.items():  # chunked rows go alone, as the scheduler's chunked request does
            size = chunk or len(ids)
            for at in range(0, len(ids), size):
                last = at + size >= len(ids)
                result = self.forward({row: ids[at : at + size]}, no_sample=() if last else (row,))
            out[row].append(result.next_token_ids[0])
        for _ in range(n - 1):
            result = self.forward({row: [tokens[-1]] for row, tokens in out.items()})
            for row, token in zip(out, result.next_token_ids, strict=True):
                out[row].append(token)
        return out
