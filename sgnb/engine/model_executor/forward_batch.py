"""A ModelWorkerBatch as tensors: what one forward pass of a model reads.

Scheduler process; made by the torch runner once a step. It also brings the runner's request table up to date, which is
why it is made exactly once per batch. No sampling here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from sgnb.engine.attention.base import AttentionBackend
from sgnb.engine.mem_cache.memory_pool import ReqToTokenPool, TokenToKVPool
from sgnb.engine.model_executor.model_runner import RowSpan
from sgnb.engine.model_executor.precision import Precision
from sgnb.messages import ModelWorkerBatch


@dataclass(slots=True)
class ForwardBatch:
    """N new tokens of B rows. Index tensors are int64 on the model's device."""

    spans: list[RowSpan]
    input_ids: torch.Tensor  # [N]
    positions: torch.Tensor  # [N]
    out_cache_loc: torch.Tensor  # [N]
    last_index: torch.Tensor | None
    """Flat index of each row's last new token [B], then of the scored tokens in order; None when every row has just one
    token and none is scored (they are the rows)."""
    highest_position: int
    precision: Precision
    dtype: torch.dtype
    """Of activations: the model's, or fp32 above FAST."""
    device: torch.device
    req_to_token_pool: ReqToTokenPool
    token_to_kv_pool: TokenToKVPool
    attn_backend: AttentionBackend

    @classmethod
    def init_new(
        cls,
        batch: ModelWorkerBatch,
        spans: list[RowSpan],
        req_to_token_pool: ReqToTokenPool,
        token_to_kv_pool: TokenToKVPool,
        attn_backend: AttentionBackend,
        precision: Precision,
        dtype: torch.dtype,
        device: torch.device,
    ) -> ForwardBatch:
        """Tensors of a checked batch; writes the rows' slots into the request table. ``dtype`` is the model's."""
        positions: list[int] = []
        for span in spans:
            locs = batch.prefix_locs[span.row]
            if locs:
                req_to_token_pool.write(span.req_pool_idx, 0, locs)
            new = batch.out_cache_loc[span.start : span.start + span.extend_len]
            req_to_token_pool.write(span.req_pool_idx, span.prefix_len, new)
            positions.extend(range(span.prefix_len, span.seq_len))
        single = len(positions) == len(spans) and not batch.score_targets
        wanted = [s.start + s.extend_len - 1 for s in spans]
        for span in spans if batch.score_targets else ():
            if batch.score_targets[span.row] is not None:
                wanted.extend(range(span.start, span.start + span.extend_len))
        return cls(
            spans=spans,
            input_ids=torch.tensor(batch.input_ids, device=device),
            positions=torch.tensor(positions, device=device),
            out_cache_loc=torch.tensor(batch.out_cache_loc, device=device),
            last_index=None if single else torch.tensor(wanted, device=device),
            highest_position=max(span.seq_len for span in spans) - 1,
            precision=precision,
            dtype=torch.float32 if precision else dtype,
            device=device,
            req_to_token_pool=req_to_token_pool,
            token_to_kv_pool=token_to_kv_pool,
            attn_backend=attn_backend,
        )

    def last_tokens(self, rows: list[int], precision: Precision) -> ForwardBatch:
        """The last new token of each of ``rows`` once more, at ``precision``, into the slot it has already."""
        chosen = [self.spans[row] for row in rows]
        index = torch.tensor([span.start + span.extend_len - 1 for span in chosen], device=self.device)
        spans = [
            RowSpan(row, i, 1, span.seq_len - 1, span.req_pool_idx)
            for i, (row, span) in enumerate(zip(rows, chosen, strict=True))
        ]
        return replace(
            self,
            spans=spans,
            input_ids=self.input_ids[index],
            positions=self.positions[index],
            out_cache_loc=self.out_cache_loc[index],
            last_index=None,
            highest_position=max(span.seq_len for span in spans) - 1,
            precision=precision,
            dtype=torch.float32,
        )
