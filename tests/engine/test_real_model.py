"""The embedded model: our fp32 runner is greedy-equal to transformers in fp32, alone, batched and chunked.

Equal as design says: teacher-forced on our own tokens, the reference must take the same one wherever its top two scores
differ by more than 1e-4; at a closer call the comparison of that prompt ends.
"""

import pytest
import torch
from tiny_models import Driver

from sgnb.config import EngineArgs
from sgnb.engine import model_store
from sgnb.engine.model_executor import torch_runner
from sgnb.engine.model_executor.loader import open_weights
from sgnb.engine.model_executor.model_runner import create_runner
from sgnb.engine.model_executor.transformers_runner import build_model
from sgnb.engine.tokenizer.tokenizer import load_tokenizer

QUESTIONS = [
    "What is the capital of France?",
    "Name three colours.",
    "Write a haiku about rain.",
    "Is 17 a prime number?",
    "Explain gravity to a child.",
    "List the days of the week.",
    "Translate 'good morning' to Spanish.",
    "Who wrote Hamlet?",
]
GAP = 1e-4
N = 24


@pytest.fixture(scope="module")
def model():
    return model_store.resolve("smollm2-135m-instruct")


@pytest.fixture(scope="module")
def prompts(model):
    tokenizer = load_tokenizer(model)
    chat = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    return {i: list(tokenizer.encode(chat.format(q))) for i, q in enumerate(QUESTIONS)}


@pytest.fixture(scope="module")
def runner(model):
    args = EngineArgs(dtype="float32", threads=1, max_total_tokens=8000, max_running_requests=8)
    runner = create_runner(args, model, lambda *a: None)
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def reference(model):
    with open_weights(model) as weights, torch.inference_mode():
        return build_model(weights, torch.float32)


def agreed(reference, prompt, output) -> int:
    """Tokens up to the first call closer than GAP; AssertionError at a difference before it."""
    with torch.inference_mode():
        scores = reference(torch.tensor([prompt + output[:-1]])).logits[0, len(prompt) - 1 :].float()
    top = scores.topk(2, -1)
    for i, token in enumerate(output):
        gap = float(top.values[i, 0] - top.values[i, 1])
        if gap <= GAP:
            return i
        assert token == int(top.indices[i, 0]), f"token {i}: top-two gap {gap:.2e}"
    return len(output)


@pytest.mark.parametrize("way", ["alone", "batched", "chunked"])
def test_greedy_equals_transformers_fp32(runner, reference, prompts, way):
    chosen = {r: prompts[r] for r in (range(3) if way == "alone" else range(8))}
    outputs = {}
    if way == "alone":
        for row, ids in chosen.items():
            outputs |= Driver(runner).generate({row: list(ids)}, N)
    else:
        given = {r: list(i) for r, i in chosen.items()}
        outputs = Driver(runner).generate(given, N, chunk=5 if way == "chunked" else 0)
    reached = [agreed(reference, chosen[row], output) == N for row, output in outputs.items()]
    assert sum(reached) >= 0.9 * len(reached)


def test_bf16_scores_stay_near_fp32(model, runner, prompts, monkeypatch):
    """The default precision: mean relative error of scores below 2 %, for single rows, batches and prefill."""
    fast = create_runner(
        EngineArgs(dtype="bfloat16", threads=1, max_total_tokens=8000), model, lambda *a: None
    )
    errors = []
    kept: dict[str, list[torch.Tensor]] = {"slow": [], "fast": []}
    inner = torch_runner.sample
    for name, one in (("slow", runner), ("fast", fast)):

        def sample(logits, batch, rows, name=name):
            kept[name].append(logits.clone())
            return inner(logits, batch, rows)

        monkeypatch.setattr(torch_runner, "sample", sample)
        driver = Driver(one)
        for row in range(4):
            driver.forward({row: list(prompts[row])})
        driver.forward({row: [504] for row in range(4)})
        driver.forward({0: [3575]})
    for a, b in zip(kept["fast"], kept["slow"], strict=True):
        errors += ((a - b).norm(dim=-1) / b.norm(dim=-1)).tolist()
    assert sum(errors) / len(errors) < 0.02 and max(errors) < 0.06
    fast.close()
