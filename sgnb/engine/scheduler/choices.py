"""Which option of a select wins: three methods over the log-probabilities of the options' tokens.

Role: pure arithmetic, with SGLang's definitions. Scheduler process; called by ``select`` once all options are scored. Knows
nothing of requests, slots or text.

    token_length_normalized              highest mean log-probability; long options with a predictable tail gain by it
    greedy_token_selection               token by token, only options with the highest value stay; an option that is shorter
                                         goes on with its own mean
    unconditional_likelihood_normalized  highest mean of (log-probability − log-probability without the prompt); the first
                                         token has none without a prompt, so nothing is taken off it
Ties are won by the option that was written first.
"""

from __future__ import annotations

from collections.abc import Sequence

Rows = Sequence[Sequence[float]]
"""One row an option: the log-probability of each of its scored tokens, at least one."""

METHODS = ("token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized")


def mean(values: Sequence[float]) -> float:
    """The mean of at least one value."""
    return sum(values) / len(values)


def choose(method: str, rows: Rows, unconditional: Rows = ()) -> tuple[int, list[float]]:
    """(index of the winner, each option's score). ``unconditional``: as ``rows``, for the method of that name."""
    if method == "unconditional_likelihood_normalized":
        pairs = zip(rows, unconditional, strict=True)
        scores = [mean([a - b for a, b in zip(with_, without, strict=True)]) for with_, without in pairs]
    else:
        scores = [mean(row) for row in rows]
    if method == "greedy_token_selection":
        return _greedy(rows, scores), scores
    return scores.index(max(scores)), scores


def greedy_matrix(rows: Rows) -> list[list[float]]:
    """The rows, short ones filled up with their own mean."""
    width = max(map(len, rows))
    return [[*row, *[mean(row)] * (width - len(row))] for row in rows]


def _greedy(rows: Rows, scores: list[float]) -> int:
    matrix = greedy_matrix(rows)
    left = list(range(len(rows)))
    for column in range(len(matrix[0])):
        best = max(matrix[i][column] for i in left)
        left = [i for i in left if matrix[i][column] == best]
        if len(left) == 1:
            break
    return left[0]
