"""One attention layer over the pool: writes the new keys and values, then asks the backend.

Scheduler process; one per decoder layer. Shapes only: where tokens lie is the forward batch's knowledge, how attention
is computed the backend's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from sgnb.engine.model_executor.forward_batch import ForwardBatch


@dataclass(frozen=True, slots=True)
class RadixAttention:
    """Heads of one layer; ``scaling`` multiplies the scores."""

    layer_id: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scaling: float

    def __call__(self, q: torch.Tensor, kv: torch.Tensor, forward_batch: ForwardBatch) -> torch.Tensor:
        """``q`` [N, heads, D] and ``kv`` [N, 2 * kv_heads, D] (keys first) → [N, heads * D]."""
        forward_batch.token_to_kv_pool.set_kv(self.layer_id, forward_batch.out_cache_loc, kv)
        return forward_batch.attn_backend.forward(q, self, forward_batch)
