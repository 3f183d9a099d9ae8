"""Scores to tokens: checks, masks, filters, draws, log-probabilities.

Scheduler process; called once a step by the runners with the scores of the rows that draw. Order: finite check → raw
log-probabilities → frequency and presence penalty → repetition penalty → logit_bias → banned ids and grammar mask (last,
so that no bias brings back what they exclude) → temperature → softmax → top_k → top_p → min_p → draw. A draw is the
argmax of scores plus Gumbel noise that depends only on (seed, tokens drawn so far, token id): equal in any batch, row,
chunking or retraction. Every row is handled by itself; no state is kept between steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import torch

from sgnb.messages import ModelWorkerBatch, TokenLogprob
from sgnb.sampling_params import SamplingParams

_FEW = 256


@dataclass(slots=True)
class Drawn:
    """Result for the rows given, aligned with them: id (-1 for a bad row), log-probability if asked for, bad or not."""

    ids: list[int]
    logprobs: list[TokenLogprob | None]
    bad: list[bool]


def sample(logits: torch.Tensor, batch: ModelWorkerBatch, rows: list[int]) -> Drawn:
    """Draw for ``rows`` of ``batch``; ``logits`` [len(rows), V] fp32 is overwritten. A row is bad when its scores are
    not finite, or when nothing is left after its masks."""
    params = [batch.params[row] for row in rows]
    bad = torch.isfinite(logits.sum(-1)).logical_not_().tolist()
    raw = [
        logits[i].log_softmax(-1) if _wants_logprob(p) and not bad[i] else None for i, p in enumerate(params)
    ]
    _penalise_(logits, batch, rows)
    _mask_(logits, batch, rows)
    top_values, top_ids = logits.max(-1)
    ids: list[int] = top_ids.tolist()
    for i, (row, value) in enumerate(zip(rows, top_values.tolist(), strict=True)):
        if bad[i] or value == float("-inf"):
            bad[i], ids[i] = True, -1
        elif not params[i].greedy:
            ids[i] = draw(logits[i], params[i], batch.seeds[row], batch.positions_drawn[row])
    allowed = _allowed(batch, rows, logits.shape[-1]) if any(lp is not None for lp in raw) else None
    logprobs = [
        None
        if lp is None or bad[i]
        else _token_logprob(lp, ids[i], params[i].top_logprobs_num, None if allowed is None else allowed[i])
        for i, lp in enumerate(raw)
    ]
    return Drawn(ids, logprobs, bad)


def close_calls(logits: torch.Tensor, batch: ModelWorkerBatch, rows: list[int], share: float) -> list[int]:
    """Which of ``rows`` (as indices into ``logits`` [len(rows), V], left as it is) are greedy and have their two highest
    allowed scores within ``share`` of the scores' standard deviation."""
    greedy = [i for i, row in enumerate(rows) if batch.params[row].greedy]
    if not greedy:
        return []
    limit = logits.std(-1).mul_(share)
    changed = any(batch.banned[r] or batch.params[r].penalised or batch.params[r].logit_bias for r in rows)
    if batch.bitmask is not None or changed:
        logits = logits.clone()
        _penalise_(logits, batch, rows)
        _mask_(logits, batch, rows)
    top = logits.topk(2, -1).values
    close = (top[:, 0] - top[:, 1] < limit).tolist()
    return [i for i in greedy if close[i]]


def draw(scores: torch.Tensor, params: SamplingParams, seed: int, position: int) -> int:
    """One token from masked scores [V] under the filters of ``params``, by noise of (seed, position)."""
    scaled = scores / params.temperature
    kept = kept_ids(scaled, params)
    noise = gumbel_noise(seed, position, scores.shape[0])
    if kept is None:
        return int((scaled + noise.to(scaled.device)).argmax())
    return int(kept[(scaled[kept] + noise.to(scaled.device)[kept]).argmax()])


def kept_ids(scaled: torch.Tensor, params: SamplingParams) -> torch.Tensor | None:
    """Ids that survive top_k, top_p and min_p (all of them measured on the softmax of ``scaled``); None: no filter.

    Ties are broken by the lower id. top_p keeps the shortest run of the most likely tokens that reaches it, min_p what
    has at least that share of the most likely token; the most likely token is always kept.
    """
    top_k = params.top_k if 0 < params.top_k < scaled.shape[0] else 0
    if not top_k and params.top_p >= 1 and params.min_p <= 0:
        return None
    probs = scaled.softmax(-1)
    if top_k:
        ids = _at_least(probs, torch.topk(probs, top_k).values[-1])[:top_k]
    elif params.top_p < 1:
        few = torch.topk(probs, min(_FEW, probs.shape[0])).values
        # the rest cannot matter when these few reach top_p already
        enough = float(few.sum()) >= params.top_p
        ids = _at_least(probs, few[-1] if enough else probs.new_zeros(()))
    else:
        ids = _at_least(probs, probs.max() * params.min_p)
    p = probs[ids]
    keep = torch.ones_like(p, dtype=torch.bool)
    if params.top_p < 1:
        keep &= p.cumsum(-1) - p < params.top_p
    if params.min_p > 0:
        keep &= p >= p[0] * params.min_p
    keep[0] = True
    return ids[keep]


def _at_least(probs: torch.Tensor, threshold: torch.Tensor) -> torch.Tensor:
    """Ids with at least ``threshold``, most likely first, ties by id."""
    ids = (probs >= threshold).nonzero()[:, 0]
    return ids[probs[ids].sort(descending=True, stable=True).indices]


def gumbel_noise(seed: int, position: int, n: int) -> torch.Tensor:
    """Gumbel noise fp32 [n] on the CPU: entry ``i`` is a function of (seed, position, i) alone.

    Philox is counter-based: the seed is its key and the position the top word of its counter, so no draw depends on an
    earlier one. 23 bits each, taken at the middle of their step: never 0 or 1, so the logarithms are finite.
    """
    bits = np.random.Philox(key=seed, counter=position << 192).random_raw(-(-n // 2))
    words = torch.from_numpy(bits.view(np.uint32)[:n] >> np.uint32(9)).float()
    uniform = words.add_(0.5).mul_(2.0**-23)
    return uniform.log_().neg_().log_().neg_()


def _penalise_(logits: torch.Tensor, batch: ModelWorkerBatch, rows: list[int]) -> None:
    """Penalties for the output tokens so far, then the bias of each row that has them."""
    for i, row in enumerate(rows):
        params = batch.params[row]
        drawn = batch.drawn_ids[row] if batch.drawn_ids else None
        if params.penalised and drawn:
            ids, counts = np.unique(np.array(drawn, dtype=np.int64), return_counts=True)
            at = torch.from_numpy(ids).to(logits.device)
            times = torch.from_numpy(counts).to(logits.device, torch.float32)
            scores = logits[i, at] - times * params.frequency_penalty - params.presence_penalty
            over = scores > 0
            penalty = params.repetition_penalty
            logits[i, at] = torch.where(over, scores / penalty, scores * penalty)
        if params.logit_bias:
            at = torch.tensor([token for token, _ in params.logit_bias], device=logits.device)
            logits[i, at] += torch.tensor([bias for _, bias in params.logit_bias], device=logits.device)


def _mask_(logits: torch.Tensor, batch: ModelWorkerBatch, rows: list[int]) -> None:
    """-inf for banned ids and for what the grammar's bitmask excludes. Ids outside the vocabulary cannot be drawn anyway."""
    vocab = logits.shape[-1]
    for i, row in enumerate(rows):
        if banned := [t for t in batch.banned[row] if 0 <= t < vocab]:
            logits[i, banned] = float("-inf")
    allowed = _allowed(batch, rows, vocab)
    if allowed is not None:
        logits.masked_fill_(allowed.logical_not().to(logits.device), float("-inf"))


def top_pairs(logprobs: torch.Tensor, count: int) -> list[list[tuple[float, int]]]:
    """The ``count`` likeliest (log-probability, id) of each row of [N, V], highest first."""
    if not count:
        return []
    values, ids = logprobs.topk(min(count, logprobs.shape[-1]), -1)
    return [list(zip(*row, strict=True)) for row in zip(values.tolist(), ids.tolist(), strict=True)]


def _allowed(batch: ModelWorkerBatch, rows: list[int], vocab: int) -> torch.Tensor | None:
    """What the grammars of ``rows`` allow, bool [len(rows), V] on the CPU or None: nothing is excluded."""
    if batch.bitmask is None:
        return None
    words = np.frombuffer(batch.bitmask, dtype=np.uint8).reshape(len(batch.params), -1)[rows]
    return torch.from_numpy(np.unpackbits(words, axis=1, bitorder="little")[:, :vocab]).bool()


def _wants_logprob(params: SamplingParams) -> bool:
    return params.return_logprob or params.top_logprobs_num > 0


def _token_logprob(
    logprobs: torch.Tensor, token: int, top: int, allowed: torch.Tensor | None
) -> TokenLogprob:
    best: list[tuple[float, int]] = []
    if top:
        values, ids = torch.topk(logprobs, min(top, logprobs.shape[0]))
        best = list(zip(values.tolist(), ids.tolist(), strict=True))
    made = TokenLogprob(id=token, logprob=float(logprobs[token]), top=best)
    if allowed is None or bool(allowed.all()):
        return made
    count = int(allowed.sum())
    excluded = logprobs.masked_fill(allowed.to(logprobs.device), float("-inf"))
    return msgspec.structs.replace(made, allowed=count, ruled_out=int(excluded.argmax()), forced=count == 1)
