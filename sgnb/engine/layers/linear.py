"""Matrix products with the weights in the form that suits machine, dtype and row count.

Scheduler process; built by ``models`` from the loader's weights. On a CPU in bf16 a 4-bit matrix is kept twice: as
torch's int4 pack, exact for GGUF's groups of 32 and fastest for one to three rows, and as packed bf16, fastest from
four rows on (both measured on AVX-512 and AMX machines: facts of the project, cpu-speed). fp32 uses one plain form for
all row counts. No choice here depends on a measurement at run time, so equal inputs give equal products.

The packed form is exact for fp32 activations too: each is the sum of two bf16 numbers, in rows below each other; and as
the kernel can subtract a bf16 matrix before it rounds, one more product gives what the first one's rounding lost.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch.nn import functional as F

from sgnb.engine.model_executor.loader import Q4, Weights
from sgnb.engine.model_executor.precision import Precision, packs

INT4_MAX_ROWS = 3
_GROUP = 32


class Linear(ABC):
    """``y = x W^T (+ b)`` for ``x`` [N, in_features]: in the model's dtype at FAST, in fp32 above; ``y`` likewise."""

    @abstractmethod
    def __call__(self, x: torch.Tensor, precision: Precision = Precision.FAST) -> torch.Tensor:
        """[N, in] → [N, out], a tensor of the caller's own."""


class PlainLinear(Linear):
    """torch's own product, any device and dtype; ``x`` is of the weight's dtype at every level."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: torch.Tensor, precision: Precision = Precision.FAST) -> torch.Tensor:
        """See Linear."""
        return F.linear(x, self.weight, self.bias)


class PackedLinear(Linear):
    """bf16 on a CPU, the weight reordered once into oneDNN's blocked layout."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
        self.bias = bias
        self._product = torch.ops.mkldnn._linear_pointwise.default
        self._product_less = torch.ops.mkldnn._linear_pointwise.binary

    def __call__(self, x: torch.Tensor, precision: Precision = Precision.FAST) -> torch.Tensor:
        """See Linear."""
        out: torch.Tensor
        if precision != Precision.EXACT:
            out = self._product(x.to(torch.bfloat16), self.weight, self.bias, "none", [], "")
            return out.to(x.dtype)
        n = x.shape[0]
        halves = split(x)
        both = self._product(halves, self.weight, None, "none", [], "")
        out = both.view(2, n, -1).sum(0, dtype=torch.float32)
        # and what rounding took from the first half's product
        out.add_(self._product_less(halves[:n], both[:n], self.weight, None, "sub"))
        return out if self.bias is None else out.add_(self.bias)


class Int4Linear(Linear):
    """A 4-bit matrix on a CPU in bf16: int4 products up to INT4_MAX_ROWS rows, packed bf16 above."""

    def __init__(self, q4: Q4, bias: torch.Tensor | None) -> None:
        q, scale = torch.from_numpy(q4.q), torch.from_numpy(q4.scale)
        minimum = torch.from_numpy(q4.minimum)
        n, k = q.shape
        weight = torch.addcmul(minimum[..., None], q.view(n, k // _GROUP, _GROUP).float(), scale[..., None])
        self.many = PackedLinear(weight.view(n, k).bfloat16(), bias)
        # torch stores w = (q - 8) * scale + zero: with zero = minimum + 8 * scale nothing is quantised anew.
        zero = torch.add(minimum, scale, alpha=8)
        self.packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(q.int(), 1)
        self.scales = torch.stack((scale.t(), zero.t()), -1).bfloat16().contiguous()  # [K/32, N, 2]
        self.bias = bias
        self._product = torch.ops.aten._weight_int4pack_mm_for_cpu.default

    @staticmethod
    def fits(q4: Q4) -> bool:
        """True when torch's kernel takes this shape."""
        return bool(q4.q.shape[0] % 16 == 0 and q4.q.shape[1] % _GROUP == 0)

    def __call__(self, x: torch.Tensor, precision: Precision = Precision.FAST) -> torch.Tensor:
        """See Linear."""
        if x.shape[0] > INT4_MAX_ROWS or precision == Precision.EXACT:
            return self.many(x, precision)
        out: torch.Tensor = self._product(x.to(torch.bfloat16), self.packed, _GROUP, self.scales).to(x.dtype)
        return out if self.bias is None else out.add_(self.bias)


def split(x: torch.Tensor) -> torch.Tensor:
    """fp32 [N, K] as bf16 [2 N, K]: the rounded rows, then what rounding took. Their sum has 16 bits."""
    n = x.shape[0]
    halves = torch.empty((2 * n, x.shape[1]), dtype=torch.bfloat16)
    torch.sub(x, halves[:n].copy_(x), out=halves[n:])
    return halves


def make_linear(
    weights: Weights, names: Sequence[str], dtype: torch.dtype, device: torch.device, *, bias: bool = False
) -> Linear:
    """One product for the matrices ``<name>.weight`` stacked in order (q, k, v; gate, up), with their biases."""
    tensors = [weights.dense(f"{name}.bias", dtype) for name in names] if bias else []
    stacked = torch.cat(tensors).to(device) if tensors else None
    if _packs(dtype, device) and (q4 := _stack_q4(weights, names)) is not None:
        return Int4Linear(q4, stacked)
    dense = [weights.dense(f"{name}.weight", dtype) for name in names]
    return dense_linear(dense[0] if len(dense) == 1 else torch.cat(dense), stacked, device)


def dense_linear(weight: torch.Tensor, bias: torch.Tensor | None, device: torch.device) -> Linear:
    """The fastest exact form of a dense matrix on ``device``."""
    if _packs(weight.dtype, device):
        return PackedLinear(weight, bias)
    return PlainLinear(weight.to(device), bias)


def _packs(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether oneDNN's packed bf16 products are the form to use."""
    return dtype == torch.bfloat16 and packs(device)


def _stack_q4(weights: Weights, names: Sequence[str]) -> Q4 | None:
    if not all(weights.is_q4(f"{name}.weight") for name in names):
        return None
    parts = [weights.q4(f"{name}.weight") for name in names]
    stacked = Q4(
        *(
            torch.cat([torch.from_numpy(getattr(p, field)) for p in parts]).numpy()
            for field in ("q", "scale", "minimum")
        )
    )
    return stacked if Int4Linear.fits(stacked) else None
