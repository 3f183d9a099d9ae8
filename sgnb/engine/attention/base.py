"""What an attention backend is, and the registry that finds one by name without importing the others.

Scheduler process; made once by the model runner, called by ``layers.radix_attention`` in every layer. A backend reads
the pools and the forward batch; it knows nothing of requests, caches or models.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, cast

import torch

from sgnb.errors import EngineStartError

if TYPE_CHECKING:
    from sgnb.engine.layers.radix_attention import RadixAttention
    from sgnb.engine.model_executor.forward_batch import ForwardBatch

_BACKENDS = {"torch_native": ("sgnb.engine.attention.torch_native", "TorchNativeBackend")}
"""Name → module and class; a backend of an optional package is imported only when chosen."""


class AttentionBackend(ABC):
    """Attention of a batch's new tokens over everything their requests hold in the pool."""

    @abstractmethod
    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        """Once a step, before the first layer: whatever all layers share (slots, masks)."""

    @abstractmethod
    def forward(self, q: torch.Tensor, layer: RadixAttention, forward_batch: ForwardBatch) -> torch.Tensor:
        """``q`` [N, heads, head_dim] → [N, heads * head_dim]. The new tokens' keys and values are in the pool already."""


def make_backend(name: str, *, fixed: bool) -> tuple[str, AttentionBackend]:
    """The backend called ``name`` (``auto``: the best of this version) and its real name.

    ``fixed``: each row by itself with one kernel, so that no result depends on the other rows of its batch.
    EngineStartError for one that this version or machine does not have.
    """
    real = "torch_native" if name == "auto" else name
    if real not in _BACKENDS:
        raise EngineStartError(
            f"attention backend {name!r} is not available",
            hint=f"Available here: auto, {', '.join(_BACKENDS)}.",
        )
    module, cls = _BACKENDS[real]
    return real, cast(AttentionBackend, getattr(importlib.import_module(module), cls)(fixed=fixed))
