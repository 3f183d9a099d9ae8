"""How a choice is made among options: the three methods of SGLang, as names and as pure functions.

Notebook process. The engine scores and decides by the method's name; calling a method decides from given numbers, which
is how tests hold the engine to it. No I/O. Log-probabilities are natural, of raw model values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sgnb.lang.instruction import ChoicesMethod as MethodName

Logprobs = Sequence[Sequence[Any]]
"""For each option a list of tokens, each (log-probability or None, id, text)."""


@dataclass(frozen=True, slots=True)
class ChoicesDecision:
    """The option that was taken, and the numbers that decided."""

    decision: str
    meta_info: dict[str, Any] = field(default_factory=dict)


Decide = Callable[[Sequence[str], Sequence[float], Logprobs, Logprobs | None], tuple[int, dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class ChoicesMethod:
    """A method by name; call it with log-probabilities to decide."""

    name: MethodName
    decide: Decide = field(compare=False, repr=False)

    @property
    def requires_unconditional_logprobs(self) -> bool:
        """True when the options must also be scored without the prompt."""
        return self.name == "unconditional_likelihood_normalized"

    def __call__(
        self,
        *,
        choices: Sequence[str],
        normalized_prompt_logprobs: Sequence[float],
        input_token_logprobs: Logprobs,
        output_token_logprobs: Logprobs | None = None,
        unconditional_token_logprobs: Logprobs | None = None,
    ) -> ChoicesDecision:
        """Decide. Raises ValueError when the unconditional log-probabilities are needed and missing."""
        if self.requires_unconditional_logprobs and unconditional_token_logprobs is None:
            raise ValueError(f"{self.name} needs unconditional_token_logprobs")
        winner, extra = self.decide(
            choices, normalized_prompt_logprobs, input_token_logprobs, unconditional_token_logprobs
        )
        return ChoicesDecision(
            choices[winner],
            {
                "normalized_prompt_logprobs": normalized_prompt_logprobs,
                "input_token_logprobs": input_token_logprobs,
                "output_token_logprobs": output_token_logprobs,
                **extra,
            },
        )


def _values(tokens: Sequence[Any]) -> list[float]:
    return [0.0 if token[0] is None else float(token[0]) for token in tokens]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _highest(scores: Sequence[float]) -> int:
    return max(range(len(scores)), key=scores.__getitem__)


def _by_mean(
    choices: Sequence[str], means: Sequence[float], inputs: Logprobs, unconditional: Logprobs | None
) -> tuple[int, dict[str, Any]]:
    return _highest(means), {}


def _by_tokens(
    choices: Sequence[str], means: Sequence[float], inputs: Logprobs, unconditional: Logprobs | None
) -> tuple[int, dict[str, Any]]:
    """Token by token the best go on; an option that is shorter goes on with its mean."""
    rows = [_values(tokens) for tokens in inputs]
    width = max(map(len, rows))
    matrix = [[*row, *[_mean(row)] * (width - len(row))] for row in rows]
    left = list(range(len(rows)))
    for column in range(width):
        best = max(matrix[row][column] for row in left)
        left = [row for row in left if matrix[row][column] == best]
        if len(left) == 1:
            break
    return left[0], {"greedy_logprob_matrix": matrix}


def _by_gain(
    choices: Sequence[str], means: Sequence[float], inputs: Logprobs, unconditional: Logprobs | None
) -> tuple[int, dict[str, Any]]:
    """The mean gain over the option without the prompt."""
    assert unconditional is not None
    gains = [
        _mean([a - b for a, b in zip(_values(given), _values(alone), strict=False)])
        for given, alone in zip(inputs, unconditional, strict=True)
    ]
    return _highest(gains), {
        "unconditional_token_logprobs": unconditional,
        "normalized_unconditional_prompt_logprobs": gains,
    }


token_length_normalized = ChoicesMethod("token_length_normalized", _by_mean)
"""The highest mean log-probability a token. Long options whose end is predictable profit (use the others then)."""
greedy_token_selection = ChoicesMethod("greedy_token_selection", _by_tokens)
"""The option that greedy decoding restricted to the options would write."""
unconditional_likelihood_normalized = ChoicesMethod("unconditional_likelihood_normalized", _by_gain)
"""The highest gain over the option's own likelihood without the prompt."""

METHODS = {
    method.name: method
    for method in (token_length_normalized, greedy_token_selection, unconditional_likelihood_normalized)
}
