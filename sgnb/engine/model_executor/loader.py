"""Weights of a model on disk, under their Hugging Face names, from a GGUF file or a safetensors folder.

Runs in the scheduler process; called by the runners. Opening reads headers only and compares everything with what the
config needs, so that all differences are told at once; tensors are then read one by one, each into memory of its own.
No layers and no kernels here: a tensor leaves as a dense torch tensor, or as the parts of its 4-bit form.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from sgnb.engine.model_executor.dequant import dequantise, split_q4
from sgnb.engine.model_executor.gguf import GGUFReader
from sgnb.engine.model_executor.model_config import ModelConfig, config_from_folder, config_from_gguf
from sgnb.engine.model_executor.safetensors_file import SafetensorsFile
from sgnb.engine.model_store import ModelPath, check_shards
from sgnb.errors import ModelFileError

Progress = Callable[[str, int, int], None]
"""Called with ("weights", bytes done, bytes total)."""
_TORCH_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_SHOWN = 12


@dataclasses.dataclass(frozen=True, slots=True)
class Q4:
    """A 4-bit matrix: w[n, k] = q[n, k] * scale[n, k // 32] + minimum[n, k // 32]."""

    q: npt.NDArray[np.uint8]  # [N, K], 0..15
    scale: npt.NDArray[np.float32]  # [N, K / 32]
    minimum: npt.NDArray[np.float32]  # [N, K / 32]


class Weights(ABC):
    """An opened model: its config and its tensors by Hugging Face name. Close it when the weights are in place."""

    config: ModelConfig

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._done = 0
        self.total_bytes = 0

    def __enter__(self) -> Weights:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @abstractmethod
    def dense(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """The tensor ``name`` dequantised to ``dtype``, in memory of its own."""

    def is_q4(self, name: str) -> bool:
        """Whether the file holds this tensor in a 4-bit form that ``q4`` can give (Q4_0, Q4_1)."""
        return False

    def q4(self, name: str) -> Q4:
        """The tensor in its 4-bit form; only where ``is_q4``."""
        raise KeyError(name)

    @abstractmethod
    def close(self) -> None:
        """Close the files. Idempotent."""

    def _count(self, nbytes: int) -> None:
        self._done = min(self._done + nbytes, self.total_bytes)
        self._progress("weights", self._done, self.total_bytes)


def open_weights(model: ModelPath, progress: Progress = lambda step, done, total: None) -> Weights:
    """Open and check a model; ModelFileError lists every missing, extra or misshapen tensor."""
    if model.kind == "gguf":
        return GGUFWeights(model.path, progress)
    return SafetensorsWeights(model.path, progress)


def _compare(
    where: Path, needed: dict[str, tuple[int, ...]], found: dict[str, tuple[int, ...]], extra: list[str]
) -> None:
    """All differences in one error (vocabulary against embedding among them, as the embedding's shape)."""
    wrong = [f"extra tensor {name!r}" for name in extra]
    for name, shape in needed.items():
        if name not in found:
            wrong.append(f"missing tensor {name!r} {list(shape)}")
        elif found[name] != shape:
            why = " (vocabulary size against embedding)" if name == "model.embed_tokens.weight" else ""
            wrong.append(f"tensor {name!r}: expected {list(shape)}, found {list(found[name])}{why}")
    if wrong:
        more = f"\n  … and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise ModelFileError(
            f"{where}: {len(wrong)} difference{'s' * (len(wrong) > 1)} between the weights and their config:\n  "
            + "\n  ".join(wrong[:_SHOWN])
            + more,
            hint="The file is incomplete or of another model.",
        )


# ---------------------------------------------------------------- GGUF

_GGUF_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_GGUF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_FREQS = "rope_freqs.weight"


def _hf_name(name: str) -> str | None:
    """The Hugging Face name of a GGUF tensor; None for one this family does not have."""
    if name in _GGUF_TOP:
        return _GGUF_TOP[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[1].isdecimal() and parts[2] in _GGUF_LAYER:
        return f"model.layers.{int(parts[1])}.{_GGUF_LAYER[parts[2]]}.{parts[3]}"
    return None


class GGUFWeights(Weights):
    """A GGUF file. Rows of q and k, which llama files hold in ggml's rope order, come back in Hugging Face's."""

    def __init__(self, path: Path, progress: Progress) -> None:
        super().__init__(progress)
        self._reader = GGUFReader(path)
        try:
            tensors = self._reader.tensors
            config = config_from_gguf(path, self._reader.metadata, {n: t.shape for n, t in tensors.items()})
            if _ROPE_FREQS in tensors:
                config = dataclasses.replace(config, rope_factors=self._rope_factors(config))
            self.config = config
            self._names: dict[str, str] = {}
            extra = []
            needed = config.weight_shapes()
            for name in tensors:
                hf = _hf_name(name)
                if hf in needed and hf not in self._names:
                    self._names[hf] = name
                elif name != _ROPE_FREQS:
                    extra.append(name)
            _compare(path, needed, {hf: tensors[n].shape for hf, n in self._names.items()}, extra)
        except BaseException:
            self._reader.close()
            raise
        self._permuted = self._reader.metadata["general.architecture"] == "llama"
        self.total_bytes = sum(tensors[n].nbytes for n in self._names.values())

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._reader.close()

    def dense(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """Dequantised by numpy, then cast; row order is Hugging Face's."""
        info = self._reader.tensors[self._names[name]]
        values = dequantise(self._reader.read(info.name), info.type, info.shape)
        if (order := self._row_order(name)) is not None:
            values = values[order]
        self._count(info.nbytes)
        return torch.from_numpy(values).to(dtype)

    def is_q4(self, name: str) -> bool:
        """See Weights.is_q4."""
        info = self._reader.tensors[self._names[name]]
        return info.type in ("Q4_0", "Q4_1") and len(info.shape) == 2

    def q4(self, name: str) -> Q4:
        """See Weights.q4; row order as ``dense``."""
        info = self._reader.tensors[self._names[name]]
        q, scale, minimum = split_q4(self._reader.read(info.name), info.type, info.shape[0])
        if (order := self._row_order(name)) is not None:
            q, scale, minimum = q[order], scale[order], minimum[order]
        self._count(info.nbytes)
        return Q4(q, scale, minimum)

    def _rope_factors(self, config: ModelConfig) -> tuple[float, ...]:
        info = self._reader.tensors[_ROPE_FREQS]
        if info.shape != (config.head_dim // 2,):
            raise ModelFileError(
                f"{self._reader.path}: tensor {_ROPE_FREQS!r}: expected [{config.head_dim // 2}], found {list(info.shape)}"
            )
        return tuple(dequantise(self._reader.read(_ROPE_FREQS), info.type, info.shape).tolist())

    def _row_order(self, name: str) -> npt.NDArray[np.int64] | None:
        """Where each row of q or k lies in a llama file: head by head, ggml keeps rope's two halves interleaved."""
        if not self._permuted or ".self_attn." not in name:
            return None
        heads = {"q_proj": self.config.num_heads, "k_proj": self.config.num_kv_heads}.get(name.split(".")[-2])
        if heads is None:
            return None
        rows = np.arange(heads * self.config.head_dim).reshape(heads, self.config.head_dim // 2, 2)
        return rows.swapaxes(1, 2).reshape(-1)


# ---------------------------------------------------------------- safetensors


class SafetensorsWeights(Weights):
    """A Hugging Face folder: config.json and one or more safetensors files."""

    def __init__(self, folder: Path, progress: Progress) -> None:
        super().__init__(progress)
        self.config = config_from_folder(folder)
        self._files: list[SafetensorsFile] = []
        try:
            where: dict[str, SafetensorsFile] = {}
            needed = self.config.weight_shapes()
            extra = []
            for path in check_shards(folder):
                self._files.append(file := SafetensorsFile(path))
                for name in file.tensors:
                    if name in where:
                        extra.append(f"{name} (also in {path.name})")
                    elif name in needed:
                        where[name] = file
                    elif not (
                        name.endswith("rotary_emb.inv_freq")
                        or (self.config.tied and name == "lm_head.weight")
                    ):
                        extra.append(name)
            _compare(folder, needed, {n: f.tensors[n].shape for n, f in where.items()}, extra)
        except BaseException:
            self.close()
            raise
        self._where = where
        self.total_bytes = sum(f.tensors[n].nbytes for n, f in where.items())

    def close(self) -> None:
        """Close the files. Idempotent."""
        for file in self._files:
            file.close()

    def dense(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """The stored values cast to ``dtype``."""
        file = self._where[name]
        info = file.tensors[name]
        self._count(info.nbytes)
        if not info.nbytes:
            return torch.empty(info.shape, dtype=dtype)
        flat = torch.from_numpy(file.read(name)).view(_TORCH_TYPES[info.type])
        return flat.reshape(info.shape).to(dtype)
