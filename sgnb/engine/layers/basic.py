"""Embedding, RMS norm, rope and the gated activation: the small operators between the products.

Scheduler process; used by ``models``. At one row a step consists mostly of such calls, so each counts its operators:
few, in place, on tensors the caller owns. No weights loading and no attention here.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

from sgnb.engine.model_executor.model_config import ModelConfig


class RMSNorm:
    """``x / sqrt(mean(x²) + eps) * weight`` over the last dimension, computed in fp32.

    Written as x·√n / hypot(‖x‖, √(n·eps)): the same value in five operators, several times faster on a CPU than
    torch's own.
    """

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        n = weight.shape[-1]
        self.weight = weight.float() * math.sqrt(n)
        self.floor = torch.tensor([math.sqrt(n * eps)], dtype=torch.float32, device=weight.device)

    def __call__(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """``x`` [..., n] is left as it is; the result is of ``dtype``."""
        norm = torch.linalg.vector_norm(x, 2, -1, True, dtype=torch.float32)
        return x.div(torch.hypot(norm, self.floor)).mul_(self.weight).to(dtype)


class RotaryEmbedding:
    """Rope in Hugging Face's layout: the two halves of a head rotate against each other.

    Always in fp32. Tables are made for as many positions as were asked for so far (doubling), not for the whole context.
    """

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        self.half = config.head_dim // 2
        self.device = device
        self.inv_freq = inverse_frequencies(config)
        self._cos = torch.empty(0)
        self._sin = torch.empty(0)
        self._make(min(config.context_length, 2048))

    def _make(self, length: int) -> None:
        angles = torch.outer(torch.arange(length, dtype=torch.float32), self.inv_freq)  # [T, d/2]
        cos, sin = angles.cos(), angles.sin()
        # rotate_half(x) is roll(x, d/2) with the first half negated: the sign is kept in the table.
        self._cos = torch.cat((cos, cos), -1).to(self.device)[:, None, :]  # [T, 1, d]
        self._sin = torch.cat((-sin, sin), -1).to(self.device)[:, None, :]

    def tables(self, positions: torch.Tensor, highest: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and signed sines ``[N, 1, head_dim]`` of ``positions`` (int64 ``[N]``, all ≤ ``highest``)."""
        if highest >= self._cos.shape[0]:
            self._make(max(highest + 1, 2 * self._cos.shape[0]))
        return self._cos.index_select(0, positions), self._sin.index_select(0, positions)

    def shifts(self, shift: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and signed sines ``[N, 1, head_dim]`` that rotate keys by ``shift`` positions (int64 ``[N]``), whatever
        position they have: rotations add up."""
        distance = shift.abs()
        cos, sin = self.tables(distance, int(distance.max()))
        return cos, torch.where((shift < 0)[:, None, None], -sin, sin)

    def apply_(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """Rotate ``x`` [N, heads, head_dim] in place; rounded once if it is not fp32."""
        wide = x.float()  # x itself if it is
        rolled = wide.roll(self.half, -1)
        wide.mul_(cos).addcmul_(rolled, sin)
        if wide is not x:
            x.copy_(wide)


def inverse_frequencies(config: ModelConfig) -> torch.Tensor:
    """Angle per position of each pair, fp32 ``[head_dim / 2]``, scaling applied."""
    steps = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    freq = 1.0 / (config.rope_theta**steps)
    if config.rope_factors:
        return freq / torch.tensor(config.rope_factors, dtype=torch.float32)
    scaling = config.rope_scaling
    if scaling is None:
        return freq
    if scaling.type == "linear":
        return freq / scaling.factor
    wavelength = 2 * math.pi / freq
    low_wave = scaling.original_context / scaling.low_freq_factor
    high_wave = scaling.original_context / scaling.high_freq_factor
    smooth = (scaling.original_context / wavelength - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    blended = (1 - smooth) * freq / scaling.factor + smooth * freq
    scaled = torch.where(wavelength > low_wave, freq / scaling.factor, freq)
    middle = (wavelength <= low_wave) & (wavelength >= high_wave)
    return torch.where(middle, blended, scaled)


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """``silu(gate) * up`` of ``[N, 2 * I]``."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate).mul_(up)
