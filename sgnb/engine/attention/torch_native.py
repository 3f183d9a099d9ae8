"""Attention with torch's own operators over the token-indexed pool: the reference, on any device.

Scheduler process; see ``base``. Three forms, chosen per row once a step: one query over one request's slots (read in
place when they are consecutive, else gathered once for keys and values together); several single queries of similar
length in one padded call; and the new tokens of a prompt under a causal mask. A lone query is always reshaped to its KV
groups: ``enable_gqa`` is several times slower there. Queries above the pool's precision read keys and values widened
to theirs, unless a decode step would have to widen many.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from sgnb.engine.attention.base import AttentionBackend
from sgnb.engine.layers.radix_attention import RadixAttention
from sgnb.engine.model_executor.forward_batch import ForwardBatch
from sgnb.engine.model_executor.model_runner import RowSpan
from sgnb.engine.model_executor.precision import Precision

Slots = slice | torch.Tensor
_BUCKET = 64
_WIDEN_MOST = {Precision.FINE: 256, Precision.EXACT: 2048}
"""Tokens per query whose keys and values are widened to fp32."""


@dataclass(slots=True)
class _Single:
    """One query: flat index and where its request's tokens lie."""

    index: int
    slots: Slots
    dtype: torch.dtype


@dataclass(slots=True)
class _Group:
    """Single queries of similar length: slots [R * length] padded with slot 0 behind each row's end."""

    index: torch.Tensor  # [R]
    slots: torch.Tensor  # [R * length]
    length: int
    mask: torch.Tensor  # [R, 1, 1, length], 0 or -inf, of the dtype that attention is computed in


@dataclass(slots=True)
class _Extend:
    """New tokens ``start … stop`` of one request. ``mask`` [T, L] is None when nothing is cached (plain causal)."""

    start: int
    stop: int
    slots: Slots
    mask: torch.Tensor | None


@dataclass(slots=True)
class _Metadata:
    singles: list[_Single] = field(default_factory=list)
    groups: list[_Group] = field(default_factory=list)
    extends: list[_Extend] = field(default_factory=list)


class TorchNativeBackend(AttentionBackend):
    """See the module. ``fixed`` switches the padded form off: no result then depends on the batch's other rows."""

    def __init__(self, *, fixed: bool) -> None:
        self._fixed = fixed
        self._meta = _Metadata()

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        """See AttentionBackend."""
        meta = _Metadata()
        buckets: dict[int, list[RowSpan]] = {}
        for span in forward_batch.spans:
            if span.extend_len == 1:
                # one bucket per doubling of the length: padding at most doubles the work
                bucket = ((span.seq_len - 1) // _BUCKET).bit_length() if not self._fixed else -1 - span.row
                buckets.setdefault(bucket, []).append(span)
            else:
                meta.extends.append(self._extend(forward_batch, span))
        for spans in buckets.values():
            if len(spans) == 1:
                slots = self._slots(forward_batch, spans[0])
                dtype = self._dtype(forward_batch, spans[0].seq_len)
                meta.singles.append(_Single(spans[0].start, slots, dtype))
            else:
                meta.groups.append(self._group(forward_batch, spans))
        self._meta = meta

    def forward(self, q: torch.Tensor, layer: RadixAttention, forward_batch: ForwardBatch) -> torch.Tensor:
        """See AttentionBackend."""
        kv = forward_batch.token_to_kv_pool.kv[layer.layer_id]
        n, meta = q.shape[0], self._meta
        if len(meta.singles) == 1 and n == 1:
            return self._single(q, meta.singles[0], kv, layer)
        out = torch.empty((n, layer.num_heads * layer.head_dim), dtype=q.dtype, device=q.device)
        for single in meta.singles:
            i = single.index
            out[i : i + 1] = self._single(q[i : i + 1], single, kv, layer)
        for group in meta.groups:
            out.index_copy_(0, group.index, self._grouped(q.index_select(0, group.index), group, kv, layer))
        for extend in meta.extends:
            out[extend.start : extend.stop] = self._causal(q[extend.start : extend.stop], extend, kv, layer)
        return out

    # ------------------------------------------------------------ metadata

    @staticmethod
    def _dtype(batch: ForwardBatch, length: int) -> torch.dtype:
        """What single queries over ``length`` tokens are computed in."""
        if length > _WIDEN_MOST.get(batch.precision, length):
            return batch.token_to_kv_pool.kv[0].dtype
        return batch.dtype

    @staticmethod
    def _slots(batch: ForwardBatch, span: RowSpan) -> Slots:
        locs = batch.req_to_token_pool.read(span.req_pool_idx, span.seq_len)
        first = int(locs[0])
        if int(locs[-1]) - first == span.seq_len - 1 and bool((np.diff(locs) == 1).all()):
            return slice(first, first + span.seq_len)
        return _to(locs, batch.device)

    def _group(self, batch: ForwardBatch, spans: list[RowSpan]) -> _Group:
        length = max(span.seq_len for span in spans)
        slots = np.zeros((len(spans), length), dtype=np.int64)
        mask = torch.zeros((len(spans), 1, 1, length), dtype=self._dtype(batch, length))
        for i, span in enumerate(spans):
            slots[i, : span.seq_len] = batch.req_to_token_pool.read(span.req_pool_idx, span.seq_len)
            # padding repeats a slot of its own row: a foreign slot may hold NaN, which a mask does not silence
            slots[i, span.seq_len :] = slots[i, 0]
            mask[i, ..., span.seq_len :] = float("-inf")
        index = torch.tensor([span.start for span in spans], device=batch.device)
        return _Group(index, _to(slots.reshape(-1), batch.device), length, mask.to(batch.device))

    def _extend(self, batch: ForwardBatch, span: RowSpan) -> _Extend:
        mask = None
        if span.prefix_len:
            shape = (span.extend_len, span.seq_len)
            mask = torch.full(shape, float("-inf"), dtype=batch.dtype, device=batch.device)
            mask.triu_(span.prefix_len + 1)
        return _Extend(span.start, span.start + span.extend_len, self._slots(batch, span), mask)

    # ------------------------------------------------------------ kernels

    @staticmethod
    def _single(q: torch.Tensor, single: _Single, kv: torch.Tensor, layer: RadixAttention) -> torch.Tensor:
        k, v = _keys_values(kv, single.slots, layer, single.dtype)  # [1, KV, L, D]
        grouped = q.to(single.dtype).view(1, layer.num_kv_heads, -1, layer.head_dim)  # [1, KV, G, D]
        out = F.scaled_dot_product_attention(grouped, k, v, scale=layer.scaling)
        return out.reshape(1, -1).to(q.dtype)

    @staticmethod
    def _grouped(q: torch.Tensor, group: _Group, kv: torch.Tensor, layer: RadixAttention) -> torch.Tensor:
        rows, heads = q.shape[0], layer.num_kv_heads
        both = kv.index_select(0, group.slots).view(rows, group.length, 2 * heads, layer.head_dim)
        both = both.to(group.mask.dtype)
        k, v = both[:, :, :heads].transpose(1, 2), both[:, :, heads:].transpose(1, 2)  # [R, KV, L, D]
        grouped = q.to(group.mask.dtype).view(rows, heads, -1, layer.head_dim)
        out = F.scaled_dot_product_attention(grouped, k, v, attn_mask=group.mask, scale=layer.scaling)
        return out.reshape(rows, -1).to(q.dtype)

    @staticmethod
    def _causal(q: torch.Tensor, extend: _Extend, kv: torch.Tensor, layer: RadixAttention) -> torch.Tensor:
        k, v = _keys_values(kv, extend.slots, layer, q.dtype)
        out = F.scaled_dot_product_attention(
            q.transpose(0, 1)[None],  # [1, H, T, D]
            k,
            v,
            attn_mask=extend.mask,
            is_causal=extend.mask is None,
            scale=layer.scaling,
            enable_gqa=layer.num_heads != layer.num_kv_heads,
        )
        return out[0].transpose(0, 1).reshape(q.shape[0], -1)


def _keys_values(
    kv: torch.Tensor, slots: Slots, layer: RadixAttention, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    both = kv[slots] if isinstance(slots, slice) else kv.index_select(0, slots)  # [L, 2 KV, D]
    both = both.to(dtype).transpose(0, 1)[None]
    return both[:, : layer.num_kv_heads], both[:, layer.num_kv_heads :]


def _to(values: npt.NDArray[np.int64], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(values.copy()).to(device)
