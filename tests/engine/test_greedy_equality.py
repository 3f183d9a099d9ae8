"""Greedy output equals transformers in fp32: alone, batched by eight, with the cache, without it, in small chunks.

The meaning of "equal": each token is compared with the reference's choice after the same tokens, up to the first
position where the reference's two highest scores lie within 1e-4; any difference before it fails, and at least 90 % of
the prompts must be compared to their end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

from sgnb.backends.engine import Engine, launch
from sgnb.engine import model_store
from sgnb.engine.model_executor.loader import open_weights
from sgnb.engine.model_executor.transformers_runner import build_model

GAP = 1e-4
NEW_TOKENS = 64
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
QUESTIONS = [
    "Name the capital of France.",
    "Why is the sky blue?",
    "Write a haiku about rain.",
    "What is 17 plus 25?",
    "List three fruits that are red.",
    "Translate 'good morning' into Spanish.",
    "Explain gravity to a child.",
    "Who wrote Hamlet?",
    "What do bees eat?",
    "How do I boil an egg?",
    "Give me a name for a grey cat.",
    "What is photosynthesis?",
    "Is a whale a fish?",
    "Describe a sunset in one sentence.",
    "What is a prime number?",
    "Tell me a joke about computers.",
]
TEXTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    ",
    "import numpy as np\n\ndef softmax(x):\n",
    "1, 2, 3, 5, 8, 13,",
    "The three laws of thermodynamics are",
    "Dear Sir or Madam,\n\nI am writing to",
    "Water boils at",
    "In 1969, humans first",
    "SELECT name, count(*) FROM orders",
    "<html>\n<head>\n<title>",
    "Q: What is the largest planet?\nA:",
    "La capitale de l'Italie est",
    "Die Hauptstadt von Deutschland ist",
    "日本の首都は",
    "To be, or not to be,",
    "The quick brown fox",
    "A list of colours:\n- red\n- green\n-",
    "E = mc",
    "The mitochondria is",
    "for i in range(10):\n    print(",
    "Step 1: Preheat the oven to",
    "The weather today is",
    "🎈 Happy birthday",
    "In conclusion,",
    "My favourite book is",
    "The derivative of x^2 is",
    '{"name": "Ada", "age":',
]
PROMPTS = [CHAT.format(q) for q in QUESTIONS] + TEXTS
SOME = PROMPTS[::4]
"""Alone, a prompt takes eight times as long as in a batch; ``make soak`` has them all."""
OTHERS = PROMPTS[1::4]
"""In chunks of 7 a prompt takes several prefills, and none is found in a cache; ``make soak`` has them all."""


@dataclass
class Reference:
    """transformers' own model with the same weights, fp32."""

    model: torch.nn.Module

    @torch.inference_mode()
    def first_difference(self, prompt_ids: list[int], output_ids: list[int]) -> tuple[int | None, int]:
        """(position of the first difference before a near tie, count of tokens compared)."""
        ids = torch.tensor([prompt_ids + output_ids])
        scores = self.model(input_ids=ids).logits[0, len(prompt_ids) - 1 : -1].float()  # [out, V]
        top = scores.topk(2, -1)
        for at, token in enumerate(output_ids):
            if float(top.values[at, 0] - top.values[at, 1]) <= GAP:
                return None, at
            if int(top.indices[at, 0]) != token:
                return at, at
        return None, len(output_ids)


@pytest.fixture(scope="module")
def reference() -> Reference:
    path = model_store.pull("smollm2-135m-instruct")
    with open_weights(model_store.ModelPath(name="reference", path=path, kind="gguf")) as weights:
        return Reference(build_model(weights, torch.float32).eval())


def run(engine: Engine, batch: int, prompts: list[str] = PROMPTS) -> list[dict[str, object]]:
    params = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
    results: list[dict[str, object]] = []
    for start in range(0, len(prompts), batch):
        group = prompts[start : start + batch]
        answer = engine.generate(group, sampling_params=params)
        assert isinstance(answer, list)
        results += answer
    return results


def check(reference: Reference, results: list[dict[str, object]], prompts: list[str] = PROMPTS) -> None:
    ended = 0
    for prompt, result in zip(prompts, results, strict=True):
        output, meta = result["output_ids"], result["meta_info"]
        assert isinstance(output, list) and isinstance(meta, dict)
        assert meta["completion_tokens"] == NEW_TOKENS
        # a session gives back the tokens of a character that the limit cut in half
        assert NEW_TOKENS - 3 <= len(output) <= NEW_TOKENS
        difference, compared = reference.first_difference(result["prompt_ids"], output)  # type: ignore[arg-type]
        assert difference is None, f"{prompt!r} differs at token {difference}: {result['text']!r}"
        ended += compared == len(output)
    assert ended >= 0.9 * len(prompts), f"only {ended} of {len(prompts)} prompts were compared to their end"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with launch(name="equal", dtype="float32", max_running_requests=8, max_total_tokens=16_384) as engine:
        yield engine


def test_there_are_forty_prompts_or_more() -> None:
    assert len(PROMPTS) >= 40


def test_alone_equals_transformers(engine: Engine, reference: Reference) -> None:
    check(reference, run(engine, 1, SOME), SOME)


@pytest.mark.soak
def test_each_alone_equals_transformers(engine: Engine, reference: Reference) -> None:
    check(reference, run(engine, 1))


def test_batched_by_eight_and_cached_equals_transformers(engine: Engine, reference: Reference) -> None:
    results = run(engine, 8)
    check(reference, results)
    reused = [p for p, r in zip(PROMPTS, results, strict=True) if r["meta_info"]["cached_tokens"] > 0]  # type: ignore[index]
    assert {*SOME, *PROMPTS[1 : len(QUESTIONS)]} <= {*reused}, (
        "what was run before, and each chat, is found in the tree"
    )


def without_cache_in_small_chunks(reference: Reference, prompts: list[str]) -> None:
    with launch(
        name="plain",
        dtype="float32",
        max_running_requests=8,
        max_total_tokens=4096,
        disable_radix_cache=True,
        chunked_prefill_size=7,
    ) as engine:
        results = run(engine, 8, prompts)
    check(reference, results, prompts)
    assert all(r["meta_info"]["cached_tokens"] == 0 for r in results)  # type: ignore[index]


def test_without_cache_in_small_chunks_equals_transformers(reference: Reference) -> None:
    without_cache_in_small_chunks(reference, OTHERS)


@pytest.mark.soak
def test_all_without_cache_in_small_chunks_equal_transformers(reference: Reference) -> None:
    without_cache_in_small_chunks(reference, PROMPTS)
