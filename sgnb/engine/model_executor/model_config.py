"""What a model is: one frozen record, read from GGUF metadata or from ``config.json``.

Runs in the scheduler process; called by ``loader``, read by the models and runners. No torch and no weights. Values are
a stranger's input: types and ranges are checked here, and what this version cannot compute is refused by name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sgnb.errors import ModelFileError

GGUF_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
HF_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
_ROPE_TYPES = ("default", "linear", "llama3")
MAX_LAYERS = 1024
_MAX = 1 << 24


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """``linear``: positions divided by ``factor``. ``llama3``: low frequencies divided, a smooth band between."""

    type: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder of the Llama family. Sizes in elements, ``context_length`` in tokens."""

    architecture: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    context_length: int
    rope_theta: float
    rms_eps: float
    tied: bool
    """The output projection is the embedding."""
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    """RMS norm of each query and key head before rope (Qwen3)."""
    rope_scaling: RopeScaling | None = None
    rope_factors: tuple[float, ...] = field(default=(), repr=False)
    """GGUF's ``rope_freqs``: each frequency is divided by its factor. Empty: none."""

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every weight the model needs, by its Hugging Face name, with its shape."""
        hidden, inter = self.hidden_size, self.intermediate_size
        q_rows, kv_rows = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, hidden)}
        for i in range(self.num_layers):
            p = f"model.layers.{i}."
            shapes[p + "input_layernorm.weight"] = (hidden,)
            for name, rows in (("q", q_rows), ("k", kv_rows), ("v", kv_rows)):
                shapes[p + f"self_attn.{name}_proj.weight"] = (rows, hidden)
                if self.qkv_bias:
                    shapes[p + f"self_attn.{name}_proj.bias"] = (rows,)
            if self.qk_norm:
                shapes[p + "self_attn.q_norm.weight"] = (self.head_dim,)
                shapes[p + "self_attn.k_norm.weight"] = (self.head_dim,)
            shapes[p + "self_attn.o_proj.weight"] = (hidden, q_rows)
            if self.o_bias:
                shapes[p + "self_attn.o_proj.bias"] = (hidden,)
            shapes[p + "post_attention_layernorm.weight"] = (hidden,)
            for name, shape in (
                ("gate", (inter, hidden)),
                ("up", (inter, hidden)),
                ("down", (hidden, inter)),
            ):
                shapes[p + f"mlp.{name}_proj.weight"] = shape
                if self.mlp_bias:
                    shapes[p + f"mlp.{name}_proj.bias"] = shape[:1]
        shapes["model.norm.weight"] = (hidden,)
        if not self.tied:
            shapes["lm_head.weight"] = (self.vocab_size, hidden)
        return shapes


class _Values:
    """Typed look-ups in a stranger's mapping; every failure names file, key, expected and found."""

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        self.where = where
        self.values = values

    def integer(self, key: str, default: int | None = None, *, high: int = _MAX) -> int:
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if type(value) is not int or not 1 <= value <= high:
            raise ModelFileError(f"{self.where}: {key}: expected a whole number 1..{high}, found {value!r}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
            or value <= 0
        ):
            raise ModelFileError(f"{self.where}: {key}: expected a positive number, found {value!r}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ModelFileError(f"{self.where}: {key}: expected true or false, found {value!r}")
        return value


def _checked(config: ModelConfig, where: str) -> ModelConfig:
    if config.num_heads % config.num_kv_heads:
        raise ModelFileError(
            f"{where}: {config.num_heads} query heads do not divide into {config.num_kv_heads} KV heads"
        )
    if config.head_dim % 2:
        raise ModelFileError(f"{where}: head size: expected an even number, found {config.head_dim}")
    return config


# ---------------------------------------------------------------- GGUF


def config_from_gguf(
    path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]]
) -> ModelConfig:
    """From the metadata of a GGUF file; ``tensors`` (name → shape) tells of biases, norms and tying."""
    arch = metadata.get("general.architecture")
    if arch not in GGUF_ARCHITECTURES:
        raise ModelFileError(
            f"{path}: architecture {arch!r} is not supported; supported: {', '.join(GGUF_ARCHITECTURES)}"
        )
    if metadata.get(f"{arch}.expert_count"):
        raise ModelFileError(f"{path}: {arch} with experts is not supported; supported: dense models")
    if int(metadata.get("split.count") or 1) > 1:
        raise ModelFileError(
            f"{path}: one part of a split model (split.count {metadata['split.count']}): the other parts are missing here",
            hint="Merge the parts: gguf-split --merge FIRST_PART OUT.gguf",
        )
    prefix = f"{arch}."
    get = _Values(str(path), {k[len(prefix) :]: v for k, v in metadata.items() if k.startswith(prefix)})
    heads, hidden = get.integer("attention.head_count"), get.integer("embedding_length")
    head_dim = get.integer("attention.key_length", max(1, hidden // heads))
    if get.integer("rope.dimension_count", head_dim) != head_dim:
        raise ModelFileError(f"{path}: partial rope is not supported: expected {head_dim} dimensions")
    tokens = metadata.get("tokenizer.ggml.tokens")
    return _checked(
        ModelConfig(
            architecture=GGUF_ARCHITECTURES[arch],
            num_layers=get.integer("block_count", high=MAX_LAYERS),
            hidden_size=hidden,
            num_heads=heads,
            num_kv_heads=get.integer("attention.head_count_kv", heads),
            head_dim=head_dim,
            intermediate_size=get.integer("feed_forward_length"),
            vocab_size=len(tokens) if isinstance(tokens, list) and tokens else get.integer("vocab_size"),
            context_length=get.integer("context_length"),
            rope_theta=get.number("rope.freq_base", 10_000.0),
            rms_eps=get.number("attention.layer_norm_rms_epsilon"),
            tied="output.weight" not in tensors,
            qkv_bias="blk.0.attn_q.bias" in tensors,
            o_bias="blk.0.attn_output.bias" in tensors,
            mlp_bias="blk.0.ffn_gate.bias" in tensors,
            qk_norm="blk.0.attn_q_norm.weight" in tensors,
            rope_scaling=_gguf_rope(path, get),
        ),
        str(path),
    )


def _gguf_rope(path: Path, get: _Values) -> RopeScaling | None:
    kind = get.values.get("rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind != "linear":
        raise ModelFileError(
            f"{path}: rope scaling {kind!r} is not supported; supported: none, linear, rope_freqs"
        )
    return RopeScaling("linear", get.number("rope.scaling.factor"))


# ---------------------------------------------------------------- config.json


def config_from_folder(folder: Path) -> ModelConfig:
    """From ``config.json`` of a Hugging Face folder."""
    path = folder / "config.json"
    try:
        if path.stat().st_size > 4 << 20:
            raise ModelFileError(f"{path}: expected at most 4 MB, found {path.stat().st_size} bytes")
        raw = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: expected JSON: {type(error).__name__}") from None
    if not isinstance(raw, dict):
        raise ModelFileError(f"{path}: expected an object, found {type(raw).__name__}")
    return _from_config_json(path, raw)


def _from_config_json(path: Path, raw: dict[str, Any]) -> ModelConfig:
    names = raw.get("architectures")
    arch = names[0] if isinstance(names, list) and len(names) == 1 else names
    if arch not in HF_ARCHITECTURES:
        raise ModelFileError(
            f"{path}: architecture {arch!r} is not supported; supported: {', '.join(HF_ARCHITECTURES)}"
        )
    if raw.get("quantization_config"):
        raise ModelFileError(
            f"{path}: quantised safetensors are not supported; supported: F32, F16, BF16, or a GGUF file"
        )
    if raw.get("hidden_act", "silu") != "silu":
        raise ModelFileError(f"{path}: hidden_act: expected 'silu', found {raw['hidden_act']!r}")
    get = _Values(str(path), raw)
    context = get.integer("max_position_embeddings")
    _refuse_sliding_window(path, raw, arch, context)
    heads, hidden = get.integer("num_attention_heads"), get.integer("hidden_size")
    bias = arch == "Qwen2ForCausalLM" or get.flag("attention_bias", False)
    theta, scaling = _hf_rope(path, raw, context)
    return _checked(
        ModelConfig(
            architecture=str(arch),
            num_layers=get.integer("num_hidden_layers", high=MAX_LAYERS),
            hidden_size=hidden,
            num_heads=heads,
            num_kv_heads=get.integer("num_key_value_heads", heads),
            head_dim=get.integer("head_dim", max(1, hidden // heads)),
            intermediate_size=get.integer("intermediate_size"),
            vocab_size=get.integer("vocab_size"),
            context_length=context,
            rope_theta=theta,
            rms_eps=get.number("rms_norm_eps", 1e-6),
            tied=get.flag("tie_word_embeddings", False),
            qkv_bias=bias,
            o_bias=bias and arch != "Qwen2ForCausalLM",
            mlp_bias=get.flag("mlp_bias", False),
            qk_norm=arch == "Qwen3ForCausalLM",
            rope_scaling=scaling,
        ),
        str(path),
    )


def _refuse_sliding_window(path: Path, raw: dict[str, Any], arch: Any, context: int) -> None:
    """A window as long as the context changes nothing; Qwen's are off unless ``use_sliding_window``."""
    window = raw.get("sliding_window")
    if window is None or (str(arch).startswith("Qwen") and not raw.get("use_sliding_window")):
        return
    if type(window) is not int or window < context:
        raise ModelFileError(
            f"{path}: sliding_window {window!r} is not supported: expected none, or at least {context}"
        )


def _hf_rope(path: Path, raw: dict[str, Any], context: int) -> tuple[float, RopeScaling | None]:
    """Base and scaling, from ``rope_parameters`` (new files) or ``rope_theta`` and ``rope_scaling``."""
    given = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(given, dict):
        raise ModelFileError(f"{path}: rope scaling: expected an object, found {given!r}")
    get = _Values(f"{path}: rope", given)
    theta = get.number("rope_theta", _Values(str(path), raw).number("rope_theta", 10_000.0))
    kind = given.get("rope_type", given.get("type", "default"))
    if kind not in _ROPE_TYPES:
        raise ModelFileError(
            f"{path}: rope scaling {kind!r} is not supported; supported: {', '.join(_ROPE_TYPES)}"
        )
    if get.number("partial_rotary_factor", 1.0) != 1.0:
        raise ModelFileError(f"{path}: partial rope is not supported")
    if kind == "default":
        return theta, None
    if kind == "linear":
        return theta, RopeScaling("linear", get.number("factor"))
    return theta, RopeScaling(
        "llama3",
        get.number("factor"),
        get.number("low_freq_factor"),
        get.number("high_freq_factor"),
        get.integer("original_max_position_embeddings", context),
    )
