"""What a step costs: a line fitted through recorded steps.

Role: seconds of a pass from what is in it. Used by the simulated runner; fitted from ``StepEvent`` by non-negative least
squares, once again without the few steps that the machine's other work made slow. Pure arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from sgnb.errors import LimitError, RecordingError
from sgnb.messages import StepEvent

_FEWEST_STEPS = 8
_CONTEXT_GAIN = 0.05
"""The term for context stays only if it takes this share off the error."""
_Array = npt.NDArray[np.float64]


class CostModel(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds a step: ``fixed``, for each prompt or option token computed, for each stream that draws, and for each token
    that streams look back on. ``error``: median of |predicted - recorded| / recorded over ``steps``; 0 steps: given."""

    fixed: float = 0.004
    per_prefill_token: float = 0.0002
    per_decode_row: float = 0.0005
    per_context_token: float = 0.0
    error: float = 0.0
    steps: int = 0

    def seconds(self, prefill_tokens: int, decode_rows: int, context_tokens: int) -> float:
        """Of one step."""
        return (
            self.fixed
            + self.per_prefill_token * prefill_tokens
            + self.per_decode_row * decode_rows
            + self.per_context_token * context_tokens
        )

    def __str__(self) -> str:
        terms = [
            f"{self.fixed * 1e3:.3g} ms",
            f"{self.per_prefill_token * 1e3:.3g} ms a prompt token",
            f"{self.per_decode_row * 1e3:.3g} ms a stream",
        ]
        if self.per_context_token:
            terms.append(f"{self.per_context_token * 1e6:.3g} µs a token of context")
        source = f"fitted from {self.steps} steps, median error {self.error:.1%}" if self.steps else "given"
        return f"{' + '.join(terms)} ({source})"

    @classmethod
    def parse(cls, text: str) -> CostModel:
        """From ``FIXED,PREFILL,DECODE[,CONTEXT]`` in milliseconds. LimitError for anything else."""
        try:
            values = [float(part) / 1e3 for part in text.split(",")]
        except ValueError:
            values = []
        if len(values) not in (3, 4) or not all(0 <= value < 1e6 for value in values) or not any(values):
            raise LimitError(
                f"a cost is FIXED,PREFILL,DECODE[,CONTEXT] in milliseconds, not {text!r}",
                hint="For example: --cost 4,0.2,0.5",
            )
        fixed, prefill, decode, context = [*values, 0.0][:4]
        return cls(fixed=fixed, per_prefill_token=prefill, per_decode_row=decode, per_context_token=context)


def fit(steps: Sequence[StepEvent]) -> CostModel:
    """The model of recorded steps, those that failed aside. RecordingError when there are too few."""
    steps = [step for step in steps if not step.failed]
    if len(steps) < _FEWEST_STEPS:
        raise RecordingError(
            f"the recording has {len(steps)} steps; {_FEWEST_STEPS} are needed to fit a cost",
            hint="Record for longer, or give --cost FIXED,PREFILL,DECODE in milliseconds.",
        )
    features = np.array([_features(step) for step in steps], dtype=np.float64)
    seconds = np.array(
        [s.forward_seconds + s.sample_seconds + s.exposed_host_seconds for s in steps], dtype=np.float64
    )
    plain, plain_error = _robust(features[:, :3], seconds)
    whole, whole_error = _robust(features, seconds)
    found = whole if whole_error < plain_error * (1 - _CONTEXT_GAIN) else np.append(plain, 0.0)
    return CostModel(
        fixed=float(found[0]),
        per_prefill_token=float(found[1]),
        per_decode_row=float(found[2]),
        per_context_token=float(found[3]),
        error=min(plain_error, whole_error) if found is whole else plain_error,
        steps=len(steps),
    )


def _features(step: StepEvent) -> tuple[float, int, int, int]:
    prefill = sum(row.tokens for row in step.rows if row.kind != "decode")
    decode = [row for row in step.rows if row.kind == "decode"]
    return 1.0, prefill, len(decode), sum(row.prefix + row.tokens for row in decode)


def _robust(features: _Array, seconds: _Array) -> tuple[_Array, float]:
    """(coefficients, median relative error), steps far off the first fit left out of the second."""
    found = _non_negative(features, seconds)
    off = np.abs(features @ found - seconds)
    near = off <= max(4.0 * float(np.median(off)), 1e-9)
    if near.sum() >= features.shape[1]:
        found = _non_negative(features[near], seconds[near])
    relative = np.abs(features @ found - seconds) / np.maximum(seconds, 1e-9)
    return found, float(np.median(relative))


def _non_negative(features: _Array, seconds: _Array) -> _Array:
    """Least squares of the relative error; a negative coefficient is set to 0 and the others fitted again."""
    weights = 1.0 / np.maximum(seconds, 1e-9)
    used = [column for column in range(features.shape[1]) if features[:, column].any()]
    out = np.zeros(features.shape[1])
    while used:
        scaled = features[:, used] * weights[:, None]
        found, *_ = np.linalg.lstsq(scaled, seconds * weights, rcond=None)
        if (found >= 0).all():
            out[used] = found
            break
        used.pop(int(np.argmin(found * features[:, used].mean(axis=0))))
    return out
