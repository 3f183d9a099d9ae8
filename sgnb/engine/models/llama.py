"""The one decoder: Llama, Mistral, Qwen2 and Qwen3, switched by ModelConfig.

Scheduler process; built by the torch runner. The residual stream, norms, rope and final scores are fp32 whatever the
dtype of the products: in bf16 that halves the error for no time. What lies between follows the batch's precision.
Weights come through ``loader`` under Hugging Face's names; nothing here knows of files, requests or sampling.
"""

from __future__ import annotations

import math

import torch

from sgnb.engine.layers.basic import RMSNorm, RotaryEmbedding, silu_and_mul
from sgnb.engine.layers.linear import dense_linear, make_linear
from sgnb.engine.layers.radix_attention import RadixAttention
from sgnb.engine.model_executor.forward_batch import ForwardBatch
from sgnb.engine.model_executor.loader import Weights
from sgnb.engine.model_executor.model_config import ModelConfig
from sgnb.engine.model_executor.precision import Precision

_REFINE_MARGIN = 1 / 32
_REFINE_MOST = 64


class DecoderLayer:
    """Attention and gated MLP around the residual stream."""

    def __init__(self, layer_id: int, weights: Weights, dtype: torch.dtype, device: torch.device) -> None:
        config = weights.config
        p = f"model.layers.{layer_id}."

        def norm(name: str) -> RMSNorm:
            return RMSNorm(weights.dense(p + name, torch.float32).to(device), config.rms_eps)

        self.heads, self.kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        self.input_norm = norm("input_layernorm.weight")
        qkv = [f"{p}self_attn.{x}_proj" for x in "qkv"]
        self.qkv_proj = make_linear(weights, qkv, dtype, device, bias=config.qkv_bias)
        self.q_norm = norm("self_attn.q_norm.weight") if config.qk_norm else None
        self.k_norm = norm("self_attn.k_norm.weight") if config.qk_norm else None
        self.o_proj = make_linear(weights, [p + "self_attn.o_proj"], dtype, device, bias=config.o_bias)
        self.post_norm = norm("post_attention_layernorm.weight")
        gate_up = [p + "mlp.gate_proj", p + "mlp.up_proj"]
        self.gate_up_proj = make_linear(weights, gate_up, dtype, device, bias=config.mlp_bias)
        self.down_proj = make_linear(weights, [p + "mlp.down_proj"], dtype, device, bias=config.mlp_bias)
        self.attn = RadixAttention(
            layer_id, self.heads, self.kv_heads, self.head_dim, 1 / math.sqrt(self.head_dim)
        )

    def forward_(
        self,
        residual: torch.Tensor,
        rope: RotaryEmbedding,
        cos: torch.Tensor,
        sin: torch.Tensor,
        forward_batch: ForwardBatch,
    ) -> None:
        """Add this layer to ``residual`` [N, hidden] fp32, in place."""
        precision, dtype = forward_batch.precision, forward_batch.dtype
        qkv = self.qkv_proj(self.input_norm(residual, dtype), precision)
        qkv = qkv.view(-1, self.heads + 2 * self.kv_heads, self.head_dim)
        qk = qkv[:, : self.heads + self.kv_heads]
        if self.q_norm is not None and self.k_norm is not None:
            qk[:, : self.heads] = self.q_norm(qk[:, : self.heads], dtype)
            qk[:, self.heads :] = self.k_norm(qk[:, self.heads :], dtype)
        rope.apply_(qk, cos, sin)
        attended = self.attn(qkv[:, : self.heads], qkv[:, self.heads :], forward_batch)
        residual.add_(self.o_proj(attended, precision))
        gated = silu_and_mul(self.gate_up_proj(self.post_norm(residual, dtype), precision))
        residual.add_(self.down_proj(gated, precision))


class LlamaForCausalLM:
    """Token ids to scores. ``forward`` and ``logits`` are apart so that scores are made for sampled rows only."""

    def __init__(self, weights: Weights, dtype: torch.dtype, device: torch.device) -> None:
        self.config: ModelConfig = weights.config
        self.dtype = dtype
        self.embedding = weights.dense("model.embed_tokens.weight", dtype).to(device)  # [V, hidden]
        self.layers = [DecoderLayer(i, weights, dtype, device) for i in range(self.config.num_layers)]
        norm = weights.dense("model.norm.weight", torch.float32).to(device)
        self.norm = RMSNorm(norm, self.config.rms_eps)
        self.head_weight = self.embedding
        if not self.config.tied:
            self.head_weight = weights.dense("lm_head.weight", dtype).to(device)
        self.lm_head = dense_linear(self.head_weight, None, device)
        self.rope = RotaryEmbedding(self.config, device)

    def forward(self, forward_batch: ForwardBatch) -> torch.Tensor:
        """The residual stream of each row's last new token, fp32 [B, hidden]."""
        residual = self.embedding.index_select(0, forward_batch.input_ids).float()
        cos, sin = self.rope.tables(forward_batch.positions, forward_batch.highest_position)
        forward_batch.attn_backend.init_forward_metadata(forward_batch)
        for layer in self.layers:
            layer.forward_(residual, self.rope, cos, sin, forward_batch)
        last = forward_batch.last_index
        return residual if last is None else residual.index_select(0, last)

    def logits(self, hidden: torch.Tensor, precision: Precision = Precision.FAST) -> torch.Tensor:
        """Scores fp32 [S, vocabulary] of rows of ``forward``'s result; a tensor of the caller's own."""
        normed = self.norm(hidden, torch.float32)
        logits = self.lm_head(normed if precision else normed.to(self.dtype), precision).float()
        if self.dtype != torch.float32:
            self._refine_(logits, normed)
        return logits

    def _refine_(self, logits: torch.Tensor, normed: torch.Tensor) -> None:
        """Compute the highest scores again in fp32: 16-bit results have steps of 0.06 to 0.12 there, so that scores
        near the top tie or trade places. Left out where the scores are flat."""
        top = logits.max(-1, keepdim=True).values
        rows, ids = (logits >= top - top.abs().mul_(_REFINE_MARGIN).add_(_REFINE_MARGIN)).nonzero(
            as_tuple=True
        )
        if ids.numel() <= _REFINE_MOST * logits.shape[0]:
            exact = self.head_weight.index_select(0, ids).float().mul_(normed.index_select(0, rows)).sum(-1)
            logits[rows, ids] = exact
