"""How exactly a step of a bf16 model is computed on a CPU: the rule, and the margin below which a choice is made again.

Scheduler process; asked by the torch runner once a step. Rounding every activation to bf16 costs 1 to 2 % of the scores'
size, enough to turn first words whose rivals are close. Where rows are few that rounding is not needed for speed: a
short prompt takes tens of milliseconds either way, and a lone decode step waits for the weights. No tensors are made
here; ``layers.linear`` knows how each level multiplies.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import torch

from sgnb.engine.model_executor.model_runner import RowSpan

_EXACT_TOKENS = 64
_EXACT_CONTEXT = 2048
FINE_ROWS = 3
SETTLED_ROWS = 3
"""Above this many rows close calls are left as they are: of many streams some are close at every step, and all would
wait."""
CLOSE = 0.03
"""Two scores closer than this share of the scores' deviation may have traded places at FAST or FINE."""


class Precision(IntEnum):
    """Of activations and products; weights and the KV pool are in the model's dtype at every level."""

    FAST = 0
    """Activations in the model's dtype."""
    FINE = 1
    """fp32 activations; products round them to bf16, and their result."""
    EXACT = 2
    """fp32 activations and fp32 results of products."""


def packs(device: torch.device) -> bool:
    """Whether bf16 products go through oneDNN's packed form, which all of this rests on: it needs a CPU with AVX-512."""
    return device.type == "cpu" and has_bf16()


def has_bf16() -> bool:
    """Whether oneDNN multiplies bf16 on this CPU."""
    return bool(torch._C._has_mkldnn) and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def choose_precision(spans: Sequence[RowSpan], dtype: torch.dtype, device: torch.device) -> Precision:
    """The level of a step over ``spans``: short prompts exactly, one to three decode rows finely, the rest fast."""
    if dtype != torch.bfloat16 or not packs(device):
        return Precision.FAST
    tokens = sum(span.extend_len for span in spans)
    single = sum(span.extend_len == 1 for span in spans)
    if single == len(spans):
        return Precision.FINE if single <= FINE_ROWS else Precision.FAST
    short = tokens <= _EXACT_TOKENS and max(span.seq_len for span in spans) <= _EXACT_CONTEXT
    # a step that decodes many streams stays fast although a prompt has joined it
    return Precision.EXACT if short and single <= FINE_ROWS else Precision.FAST
