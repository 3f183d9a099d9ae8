"""Scored rows of the runners: raw log-probabilities of given tokens, against a plain forward pass."""

from __future__ import annotations

import pytest
import torch
from tiny_models import make_tiny

from sgnb.config import EngineArgs
from sgnb.engine import model_store
from sgnb.engine.model_executor.model_runner import create_runner
from sgnb.messages import ModelWorkerBatch
from sgnb.sampling_params import SamplingParams

PROMPT = [5, 9, 33, 60, 12, 7]
OPTIONS = [[11], [11, 40], [90, 2, 3, 4, 5]]


def batch(step, rows, *, score):
    """Rows of (table row, prefix slots, ids, slots, targets)."""
    count = len(rows)
    return ModelWorkerBatch(
        step=step,
        forward_mode="extend",
        input_ids=[token for row in rows for token in row[2]],
        req_pool_indices=[row[0] for row in rows],
        seq_lens=[len(row[1]) + len(row[2]) for row in rows],
        prefix_lens=[len(row[1]) for row in rows],
        extend_lens=[len(row[2]) for row in rows],
        out_cache_loc=[slot for row in rows for slot in row[3]],
        prefix_locs=[row[1] for row in rows],
        sample=[False] * count,
        params=[SamplingParams(temperature=0.0)] * count,
        seeds=[0] * count,
        positions_drawn=[0] * count,
        banned=[[] for _ in rows],
        score_targets=[row[4] for row in rows] if score else [],
    )


@pytest.mark.parametrize("kind", ["torch", "transformers"])
def test_scores_are_the_models_own(kind, tmp_path):
    model = make_tiny(tmp_path)
    args = EngineArgs.make(
        runner=kind, dtype="float32", threads=1, max_total_tokens=200, max_running_requests=4
    )
    runner = create_runner(args, model_store.resolve(str(tmp_path)), lambda *a: None)
    shared = list(range(1, len(PROMPT)))
    runner.forward(batch(1, [(0, [], PROMPT[:-1], shared, None)], score=False))
    rows, at = [], 50
    for n, option in enumerate(OPTIONS):
        ids = [PROMPT[-1], *option[:-1]]
        rows.append((n, shared, ids, list(range(at, at + len(ids))), option))
        at += len(ids)
    alone = OPTIONS[2]
    rows.append((3, [], alone[:-1], list(range(at, at + 4)), alone[1:]))
    out = runner.forward(batch(2, rows, score=True))
    assert out.bad_rows == [] and out.next_token_ids == [-1] * 4
    for (_, _, _, _, targets), scores, whole in zip(
        rows, out.scores, [*(PROMPT + option for option in OPTIONS), alone], strict=True
    ):
        with torch.inference_mode():
            logprobs = model(torch.tensor([whole])).logits[0].float().log_softmax(-1)
        first = len(whole) - len(targets)
        want = [float(logprobs[first + i - 1, token]) for i, token in enumerate(targets)]
        assert scores == pytest.approx(want, abs=1e-4)
    runner.close()
