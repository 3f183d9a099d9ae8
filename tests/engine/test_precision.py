"""The default precision on a CPU (bf16): short chats answer as fp32 does, and scores stay near it.

Measured against transformers in fp32, with transformers in bf16 as the yardstick, on the embedded model with the chat
template's own system turn. One thread; teacher-forced on the fp32 answer, so that every error is of one step.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass

import pytest
import torch
import transformers
from tiny_models import Driver

from sgnb.config import EngineArgs
from sgnb.engine import model_store
from sgnb.engine.layers.linear import PackedLinear
from sgnb.engine.layers.sampler import close_calls
from sgnb.engine.model_executor import torch_runner
from sgnb.engine.model_executor.loader import open_weights
from sgnb.engine.model_executor.model_runner import RowSpan, create_runner
from sgnb.engine.model_executor.precision import Precision, choose_precision, packs
from sgnb.engine.model_executor.transformers_runner import build_model
from sgnb.engine.tokenizer.tokenizer import load_tokenizer
from sgnb.messages import ModelWorkerBatch
from sgnb.sampling_params import SamplingParams

CHAT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)
FACTS = [
    "What is the capital of France?",
    "What is the capital of Italy?",
    "What is the capital of Germany?",
    "What is the capital of Japan?",
    "Who wrote Hamlet?",
    "Who painted the Mona Lisa?",
    "Who wrote Romeo and Juliet?",
    "What is the chemical symbol for gold?",
    "How many days are in a week?",
    "What is the tallest mountain in the world?",
]
NEW = 10
GAP = 0.05
YARD = 5
CPU = torch.device("cpu")

pytestmark = pytest.mark.skipif(
    not packs(CPU), reason="this CPU, or this build of torch, has no bf16 products to test"
)


@dataclass
class Answer:
    """What fp32 says to one question: ids of prompt and answer, scores before each answer token."""

    prompt: list[int]
    ids: list[int]
    scores: torch.Tensor  # [len(ids), V]

    def gap(self, at: int) -> float:
        top = self.scores[at].topk(2).values
        return float(top[0] - top[1])


def step_by_step(model, prompt, ids) -> torch.Tensor:
    """Scores before each of ``ids`` with a cache, as generation computes them."""
    cache = transformers.DynamicCache()
    names = inspect.signature(type(model).forward).parameters
    name = "cache" if "cache" in names else "past_key_values"
    rows, new = [], prompt
    with torch.inference_mode():
        for token in ids:
            rows.append(
                model(input_ids=torch.tensor([new]), use_cache=True, **{name: cache}).logits[0, -1].float()
            )
            new = [token]
    return torch.stack(rows)


def build(dtype):
    with open_weights(model_store.resolve("smollm2-135m-instruct")) as weights:
        return build_model(weights, dtype)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def answers(one_thread) -> list[Answer]:
    model = build(torch.float32)
    tokenizer = load_tokenizer(model_store.resolve("smollm2-135m-instruct"))
    found = []
    for question in FACTS:
        prompt = list(tokenizer.encode(CHAT.format(question)))
        given = torch.tensor([prompt])
        with torch.inference_mode():
            out = model.generate(
                given,
                attention_mask=torch.ones_like(given),
                max_new_tokens=NEW,
                do_sample=False,
                eos_token_id=2,
                pad_token_id=0,
            )[0].tolist()
            scores = model(torch.tensor([out[:-1]])).logits[0, len(prompt) - 1 :].float()
        found.append(Answer(prompt, out[len(prompt) :], scores))
    return found


@pytest.fixture(scope="module")
def runner():
    args = EngineArgs(dtype="bfloat16", threads=1, max_total_tokens=4000, max_running_requests=4)
    runner = create_runner(args, model_store.resolve("smollm2-135m-instruct"), lambda *a: None)
    yield runner
    runner.close()


@pytest.fixture
def kept(monkeypatch):
    """The scores each step draws from."""
    steps: list[torch.Tensor] = []
    inner = torch_runner.sample

    def sample(logits, batch, rows):
        steps.append(logits.clone())
        return inner(logits, batch, rows)

    monkeypatch.setattr(torch_runner, "sample", sample)
    return steps


def ours(runner, kept, answer: Answer, count: int) -> torch.Tensor:
    kept.clear()
    driver = Driver(runner)
    driver.forward({0: list(answer.prompt)})
    for token in answer.ids[: count - 1]:
        driver.forward({0: [token]})
    return torch.cat(kept)


def errors(found: torch.Tensor, expected: torch.Tensor) -> list[float]:
    return ((found - expected).norm(dim=-1) / expected.norm(dim=-1)).tolist()


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def test_facts_are_answered_as_in_fp32(runner, answers):
    """Greedy text, token by token, up to a call closer than GAP."""
    for question, answer in zip(FACTS, answers, strict=True):
        driver = Driver(runner)
        token = driver.forward({0: list(answer.prompt)}).next_token_ids[0]
        for at, expected in enumerate(answer.ids):
            if answer.gap(at) <= GAP:
                break
            assert token == expected, f"{question} token {at}, top-two gap {answer.gap(at):.3f}"
            token = driver.forward({0: [token]}).next_token_ids[0]


def test_the_capital_of_france_is_a_close_call(answers):
    """The case this module is for: without it the test above would not mean much."""
    assert GAP < answers[0].gap(0) < 0.2


def test_scores_are_nearer_to_fp32_than_transformers_bf16(runner, kept, answers):
    model = build(torch.bfloat16)
    mine, theirs = [], []
    for answer in answers[:6]:
        ids = answer.ids[:YARD]
        expected = answer.scores[: len(ids)]
        mine += errors(ours(runner, kept, answer, len(ids)), expected)
        theirs += errors(step_by_step(model, answer.prompt, ids), expected)
    assert mean(mine) <= 0.6 * mean(theirs), f"{mean(mine):.4f} against {mean(theirs):.4f}"


def test_a_short_prompt_is_nearly_exact(runner, kept, answers):
    first = [errors(ours(runner, kept, answer, 1), answer.scores[:1])[0] for answer in answers[:6]]
    assert mean(first) < 0.006


def test_a_close_call_is_computed_again(runner, kept, answers, monkeypatch):
    """With every call taken for close each step is exact: nearer to fp32 than without."""
    answer = answers[4]
    expected = answer.scores[1:YARD]
    monkeypatch.setattr(torch_runner, "CLOSE", 0.0)
    before = errors(ours(runner, kept, answer, YARD)[1:], expected)
    monkeypatch.setattr(torch_runner, "CLOSE", 1e6)
    after = errors(ours(runner, kept, answer, YARD)[1:], expected)
    assert mean(after) < 0.8 * mean(before)


def test_rows_of_a_batch_are_settled_each_at_its_place(runner, kept, answers, monkeypatch):
    """Two rows of different lengths, both computed again: each gets its own scores."""
    monkeypatch.setattr(torch_runner, "CLOSE", 1e6)
    driver = Driver(runner)
    for row in (0, 1):
        driver.forward({row: list(answers[row + 3].prompt)})
    kept.clear()
    driver.forward({row: [answers[row + 3].ids[0]] for row in (1, 0)})
    expected = torch.stack([answers[row + 3].scores[1] for row in (1, 0)])
    assert max(errors(kept[0], expected)) < 0.02


@pytest.mark.parametrize(
    ("rows", "level"),
    [
        ([(37, 0)], Precision.EXACT),
        ([(20, 300)], Precision.EXACT),
        ([(64, 0)], Precision.EXACT),
        ([(65, 0)], Precision.FAST),
        ([(20, 4000)], Precision.FAST),
        ([(1, 50)], Precision.FINE),
        ([(1, 5000)] * 3, Precision.FINE),
        ([(1, 50)] * 4, Precision.FAST),
        ([(1, 50)] * 3 + [(20, 0)], Precision.EXACT),
        ([(1, 50)] * 4 + [(20, 0)], Precision.FAST),
    ],
)
def test_the_rule(rows, level):
    """(new tokens, prefix) of each row."""
    spans = [RowSpan(i, i, new, prefix, i) for i, (new, prefix) in enumerate(rows)]
    assert choose_precision(spans, torch.bfloat16, CPU) == level
    assert choose_precision(spans, torch.float32, CPU) == Precision.FAST


@pytest.mark.parametrize("rows", [1, 3, 37])
@pytest.mark.parametrize("with_bias", [False, True])
def test_packed_products_are_exact(rows, with_bias):
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 96, generator=generator)
    weight = torch.randn(48, 96, generator=generator).bfloat16()
    bias = torch.randn(48, generator=generator).bfloat16() if with_bias else None
    expected = torch.nn.functional.linear(
        x.double(), weight.double(), None if bias is None else bias.double()
    )
    product = PackedLinear(weight, bias)
    found = {level: product(x, level) for level in (Precision.FINE, Precision.EXACT)}
    assert all(y.dtype == torch.float32 and y.shape == expected.shape for y in found.values())
    error = {level: float((y - expected).norm() / expected.norm()) for level, y in found.items()}
    assert error[Precision.EXACT] < 2e-5 < error[Precision.FINE] < 5e-3


def test_close_calls_look_at_allowed_scores_of_greedy_rows():
    scores = torch.tensor([[5.0, 4.99, 0.0, -5.0], [5.0, 1.0, 0.99, -5.0], [5.0, 4.99, 0.0, -5.0]])
    batch = ModelWorkerBatch(
        step=1,
        forward_mode="decode",
        input_ids=[1, 1, 1],
        req_pool_indices=[0, 1, 2],
        seq_lens=[1, 1, 1],
        prefix_lens=[0, 0, 0],
        extend_lens=[1, 1, 1],
        out_cache_loc=[1, 2, 3],
        prefix_locs=[[], [], []],
        sample=[True] * 3,
        params=[SamplingParams(temperature=t) for t in (0.0, 0.0, 1.0)],
        seeds=[0] * 3,
        positions_drawn=[0] * 3,
        banned=[[], [], []],
    )
    kept = scores.clone()
    assert close_calls(scores, batch, [0, 1, 2], 0.03) == [0]
    batch.banned[1] = [0]
    assert close_calls(scores, batch, [0, 1, 2], 0.03) == [0, 1]
    batch.banned[0] = [1]
    assert close_calls(scores, batch, [0, 1, 2], 0.03) == [1]
    assert close_calls(scores[2:], batch, [2], 1e6) == []
    assert torch.equal(scores, kept)
