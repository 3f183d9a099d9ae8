"""The torch runner against transformers: prefill, chunks, decode, batches, mixed steps, shared prefixes, bad rows."""

import math
import subprocess
import sys

import gguf
import pytest
import torch
from test_loader import write_gguf
from tiny_models import FAMILIES, Driver, make_tiny

from sgnb.config import EngineArgs
from sgnb.engine import model_store
from sgnb.engine.mem_cache.memory_pool import choose_slots
from sgnb.engine.model_executor.drivers import is_out_of_memory
from sgnb.engine.model_executor.model_runner import create_runner
from sgnb.engine.model_executor.threads import ThreadChooser
from sgnb.engine.model_executor.torch_runner import TorchRunner
from sgnb.errors import EngineStartError
from sgnb.sampling_params import SamplingParams

PROMPTS = {0: list(range(5, 42)), 1: list(range(100, 103)), 2: [7], 3: list(range(250, 110, -1))}
EXACT = 1e-4


def make_runner(path, **args):
    values = {"dtype": "float32", "threads": 1, "max_total_tokens": 3000, "max_running_requests": 8} | args
    return create_runner(EngineArgs.make(**values), path, lambda *a: None)


class Scores:
    """Keeps the scores of every step of a TorchRunner, row by row."""

    def __init__(self, runner):
        self.steps = []
        inner = runner._model.logits

        def logits(hidden, precision):
            out = inner(hidden, precision)
            self.steps.append(out.clone())
            return out

        runner._model.logits = logits


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request, tmp_path_factory):
    """(our runner, transformers model) of one family, the same weights."""
    folder = tmp_path_factory.mktemp(request.param)
    model = make_tiny(folder, request.param)
    return make_runner(model_store.resolve(str(folder))), model


@pytest.fixture
def fresh(pair):
    """(driver, kept scores, reference scores of a prefix)."""
    runner, model = pair
    inner = runner._model.logits
    scores = Scores(runner)

    def reference(ids):
        with torch.inference_mode():
            return model(torch.tensor([ids])).logits[0, -1]

    yield Driver(runner), scores, reference
    runner._model.logits = inner


def close(found, expected):
    torch.testing.assert_close(found, expected, atol=EXACT, rtol=0)


def test_prefill_of_each_length(fresh):
    driver, scores, reference = fresh
    for row, ids in PROMPTS.items():
        driver.forward({row: list(ids)})
        close(scores.steps[-1][0], reference(ids))


@pytest.mark.parametrize("chunk", [1, 3, 16, 36])
def test_chunked_prefill(fresh, chunk):
    driver, scores, reference = fresh
    ids = PROMPTS[0]
    for at in range(0, len(ids), chunk):
        last = at + chunk >= len(ids)
        out = driver.forward({0: ids[at : at + chunk]}, no_sample=() if last else (0,))
        assert (out.next_token_ids[0] >= 0) == last
    assert len(scores.steps) == 1  # rows that draw nothing cost no scores
    close(scores.steps[0][0], reference(ids))


def test_decode_step_by_step(fresh):
    driver, scores, reference = fresh
    out = driver.forward({0: list(PROMPTS[0])})
    for _ in range(12):
        out = driver.forward({0: [out.next_token_ids[0]]})
        close(scores.steps[-1][0], reference(driver.rows[0]))


def test_ragged_batch(fresh):
    driver, scores, reference = fresh
    out = driver.forward({row: list(ids) for row, ids in PROMPTS.items()})
    for _ in range(6):
        out = driver.forward({row: [t] for row, t in zip(PROMPTS, out.next_token_ids, strict=True)})
        for i, row in enumerate(PROMPTS):
            close(scores.steps[-1][i], reference(driver.rows[row]))


def test_mixed_steps(fresh):
    """Decode rows, a first chunk and a last chunk in one step, in any order."""
    driver, scores, reference = fresh
    driver.forward({0: list(PROMPTS[0])})
    driver.forward({3: PROMPTS[3][:50]}, no_sample=(3,))
    out = driver.forward({2: [9, 8, 7], 0: [11], 3: PROMPTS[3][50:90], 1: [44]}, no_sample=(3,))
    assert out.next_token_ids[2] == -1 and min(out.next_token_ids[i] for i in (0, 1, 3)) >= 0
    for i, row in enumerate((2, 0, 1)):
        close(scores.steps[-1][i], reference(driver.rows[row]))
    out = driver.forward({3: PROMPTS[3][90:], 0: [12]})
    close(scores.steps[-1][0], reference(PROMPTS[3]))
    close(scores.steps[-1][1], reference(driver.rows[0]))


def test_shared_prefix_and_scattered_slots(fresh):
    driver, scores, reference = fresh
    driver.forward({0: list(range(5, 25))})
    driver.forward({1: list(range(30, 35))})
    driver.forward({0: [25, 26]})  # slots of row 0 are now in two runs
    driver.rows[2] = driver.rows[0][:21]
    driver.forward({2: [77, 78]}, shared={2: driver.slots[0][:21]})
    close(scores.steps[-1][0], reference([*range(5, 26), 77, 78]))
    driver.rows[3] = driver.rows[0][:21]
    driver.forward({3: [77]}, shared={3: driver.slots[0][:21]})
    driver.forward({3: [78], 0: [1]})
    close(scores.steps[-1][0], reference([*range(5, 26), 77, 78]))


def test_a_row_is_used_again(fresh):
    driver, scores, reference = fresh
    driver.forward({0: list(PROMPTS[0])})
    del driver.slots[0], driver.rows[0]
    driver.forward({0: [4, 5]})
    close(scores.steps[-1][0], reference([4, 5]))


@pytest.mark.sampler
def test_B147_greedy_alone_is_greedy_in_a_batch(fresh):
    """fp32, against the reference teacher-forced on what we drew: equal up to a top-two gap of 1e-4 (none here)."""
    driver, _, _ = fresh
    alone = {}
    for row, ids in PROMPTS.items():
        alone |= Driver(driver.runner).generate({row: list(ids)}, 24)
    together = driver.generate({row: list(ids) for row, ids in PROMPTS.items()}, 24)
    chunked = Driver(driver.runner).generate({row: list(ids) for row, ids in PROMPTS.items()}, 24, chunk=7)
    assert alone == together == chunked


def test_fp32_rows_do_not_depend_on_their_neighbours_to_the_last_bit_of_attention(fresh):
    driver, scores, _ = fresh
    out = driver.forward({row: list(ids) for row, ids in PROMPTS.items()})
    work = {row: [t] for row, t in zip(PROMPTS, out.next_token_ids, strict=True)}
    driver.forward(work)
    batched = scores.steps[-1]
    for i, (row, new) in enumerate(work.items()):
        single = Driver(driver.runner)
        single.next_slot = 1500
        single.forward({row: driver.rows[row][:-1]})
        single.forward({row: new})
        torch.testing.assert_close(scores.steps[-1][0], batched[i], atol=2e-5, rtol=0)


def test_logprobs_are_raw(fresh):
    driver, _, reference = fresh
    params = SamplingParams(temperature=3.0, top_k=2, return_logprob=True, top_logprobs_num=5)
    out = driver.forward({0: list(PROMPTS[0])}, params={0: params}, banned={0: [5]})
    expected = reference(PROMPTS[0]).log_softmax(-1)
    (lp,) = out.logprobs
    assert lp.id == out.next_token_ids[0] and math.isclose(lp.logprob, float(expected[lp.id]), abs_tol=EXACT)
    values, ids = expected.topk(5)
    assert [i for _, i in lp.top] == ids.tolist()
    assert all(math.isclose(a, b, abs_tol=EXACT) for (a, _), b in zip(lp.top, values.tolist(), strict=True))


# ---------------------------------------------------------------- faults


def poison(driver, slot, value=math.nan):
    with torch.inference_mode():
        driver.runner._kv.kv[0][slot] = value


@pytest.mark.sampler
def test_B146_nan_in_one_row_fails_that_row_only(fresh):
    driver, _, reference = fresh
    driver.forward({0: list(PROMPTS[0]), 1: list(PROMPTS[1])})
    poison(driver, driver.slots[1][0])
    work = {0: [3], 1: [3], 2: [9, 9]}
    out = driver.forward(work)
    assert out.bad_rows == [1] and out.next_token_ids[1] == -1
    assert out.next_token_ids[0] == int(reference(driver.rows[0]).argmax())
    assert out.next_token_ids[2] == int(reference([9, 9]).argmax())
    assert driver.forward({1: [4, 4]}, no_sample=(1,)).bad_rows == [
        0
    ]  # seen in a chunk that draws nothing, too
    poison(driver, driver.slots[1][0], 0.0)


def test_F61_all_nan_and_all_zero_weights_load_and_show_up(tmp_path):
    model = make_tiny(tmp_path / "a")
    for name, value in (("nan", math.nan), ("zero", 0.0)):
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(value)
        model.save_pretrained(tmp_path / name)
        out = Driver(make_runner(model_store.resolve(str(tmp_path / name)))).forward({0: [1, 2]})
        assert out.bad_rows == ([0] if name == "nan" else [])


@pytest.mark.parametrize("ids", [[1, -5], [300], [2**63]])
def test_B148_ids_out_of_range_never_reach_the_device(fresh, ids):
    driver, _, reference = fresh
    with pytest.raises(ValueError, match=r"input_ids: expected 0\.\.299"):
        driver.forward({0: ids})
    driver = Driver(driver.runner)
    assert driver.forward({0: [1, 2]}).next_token_ids == [int(reference([1, 2]).argmax())]


@pytest.mark.sampler
def test_B096_banned_ids_outside_the_vocabulary_do_no_harm(fresh):
    driver, _, reference = fresh
    best = int(reference(PROMPTS[0]).argmax())
    out = driver.forward({0: list(PROMPTS[0])}, banned={0: [-1, 300, 2**40, best]})
    assert out.next_token_ids[0] not in (-1, best) and out.bad_rows == []


# ---------------------------------------------------------------- start


def test_reference_runner_agrees(pair, tmp_path):
    runner, model = pair
    model.save_pretrained(tmp_path)
    other = make_runner(model_store.resolve(str(tmp_path)), runner="transformers")
    assert (other.vocab_size, other.context_length, other.dtype) == (300, 256, "float32")
    prompts = {row: list(ids) for row, ids in PROMPTS.items()}
    ours = Driver(runner).generate({r: list(i) for r, i in prompts.items()}, 8)
    assert Driver(other).generate({r: list(i) for r, i in prompts.items()}, 8) == ours
    driver = Driver(other)  # a prefix handed over by slots
    driver.forward({0: list(range(5, 25))})
    driver.rows[2] = driver.rows[0][:10]
    token = driver.forward({2: [77]}, shared={2: driver.slots[0][:10]}).next_token_ids[0]
    assert token == Driver(other).forward({1: [*range(5, 15), 77]}).next_token_ids[0]
    other.close()
    other.close()


def test_attributes_and_progress(tmp_path):
    make_tiny(tmp_path)
    seen = []
    args = EngineArgs(
        dtype="float32", threads=1, context_length=100, max_total_tokens=80, max_running_requests=3
    )
    runner = create_runner(args, model_store.resolve(str(tmp_path)), lambda *a: seen.append(a))
    assert isinstance(runner, TorchRunner)
    assert (runner.vocab_size, runner.context_length, runner.max_total_tokens, runner.max_running) == (
        300,
        100,
        80,
        3,
    )
    assert (runner.dtype, runner.device, runner.attention_backend) == ("float32", "cpu", "torch_native")
    assert "80 slots" in runner.notice and "100 tokens" in runner.notice
    pool = sum(tensor.nbytes for tensor in runner._kv.kv)
    assert runner.slot_bytes * (runner.max_total_tokens + 1) == pool, "one slot more, for padding"
    assert seen[-1] == ("kv", 80, 80) and {s[0] for s in seen} == {"weights", "kv"}
    with pytest.raises(ValueError, match="exceed the context of 20"):
        Driver(make_runner(model_store.resolve(str(tmp_path)), context_length=20)).forward({0: [1] * 21})
    runner.close()
    runner.close()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"context_length": 257}, "more than the model's 256"),
        ({"attention_backend": "flashinfer"}, "'flashinfer' is not available"),
        ({"device": "cuda:7"}, "'cuda:7' is not available"),
        ({"device": "toaster"}, "'toaster' is not available"),
        ({"dtype": "float16"}, "float16 needs a GPU"),
        ({"dtype": "bfloat16", "deterministic": True}, "deterministic needs dtype float32"),
    ],
)
def test_arguments_that_cannot_work(tmp_path, args, words):
    make_tiny(tmp_path)
    with pytest.raises(EngineStartError, match=words):
        make_runner(model_store.resolve(str(tmp_path)), **args)


def test_pool_size_is_bounded_by_memory():
    cpu = torch.device("cpu")
    assert choose_slots(None, 1, cpu, 100)[0] == 65_536
    assert choose_slots(77, 1 << 10, cpu, 50) == (77, "")
    slots, warning = choose_slots(77, 1 << 40, cpu, 50)
    assert slots == 77 and "77 slots take 78,848.0 GB" in warning
    with pytest.raises(EngineStartError, match="at least 64"):
        choose_slots(None, 1 << 50, cpu, 100)


# ---------------------------------------------------------------- bf16 on a CPU


@pytest.mark.parametrize("kind", ["Q4_1", "Q4_0", "Q8_0", "F32"])
def test_bf16_stays_near_fp32_for_every_row_count(tmp_path, kind):
    """4-bit products (few rows), packed bf16 (many) and padded attention, against fp32 of the same file."""
    model = make_tiny(tmp_path / "a", scale=0.08, hidden_size=128, intermediate_size=192)
    path = write_gguf(tmp_path / "m.gguf", model, "llama", getattr(gguf.GGMLQuantizationType, kind))
    runs = {}
    for dtype in ("float32", "bfloat16"):
        runner = make_runner(path, dtype=dtype)
        runner._settles = False  # one set of scores a step, at the level of that step
        scores, driver = Scores(runner), Driver(runner)
        driver.forward({row: list(ids) for row, ids in PROMPTS.items()})
        driver.forward({0: [9]})
        driver.forward({0: [8], 1: [7]})
        driver.forward({0: [1], 1: [2], 2: [3], 3: [4]})
        driver.forward({0: [5], 2: [6, 7, 8], 3: [9]})
        runs[dtype] = torch.cat(scores.steps)
    error = (runs["bfloat16"] - runs["float32"]).norm(dim=-1) / runs["float32"].norm(dim=-1)
    assert error.max() < 0.05 and error.mean() < 0.025


def test_bf16_greedy_of_the_padded_form_ignores_neighbours(tmp_path):
    """A neighbour's NaN must not leak through padding."""
    make_tiny(tmp_path)
    driver = Driver(make_runner(model_store.resolve(str(tmp_path)), dtype="bfloat16"))
    driver.forward({0: [1, 2, 3], 1: [4, 5], 2: [6]})
    poison(driver, driver.slots[1][0])
    poison(driver, 0)
    assert driver.forward({0: [3], 1: [3], 2: [3]}).bad_rows == [1]


# ---------------------------------------------------------------- threads


def test_thread_count_follows_the_faster_one(monkeypatch):
    set_to = []
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    clock = [100.0]
    monkeypatch.setattr("sgnb.engine.model_executor.threads.time.monotonic", lambda: clock[0])

    def run(chooser, cost, steps):
        """Mean count of the last 20 steps; a step of two threads costs ``cost[2]`` seconds."""
        used = []
        for _ in range(steps):
            chooser.before_step(1)
            clock[0] += cost[chooser.current]
            chooser.after_step(cost[chooser.current])
            used.append(chooser.current)
        return sum(used[-20:]) / 20

    chooser = ThreadChooser(None, fixed=False)
    idle, busy = {1: 0.02, 2: 0.01}, {1: 0.02, 2: 0.3}
    assert run(chooser, idle, 200) > 1.9
    assert run(chooser, busy, 40) < 1.1  # another process took a core
    before = clock[0]
    run(chooser, busy, 1000)
    assert clock[0] - before < 1000 * 0.02 * 1.1  # trying costs little
    assert run(chooser, idle, 1000) > 1.9  # and gave it back
    chooser.before_step(512)
    assert chooser.current == 2
    for pinned in (ThreadChooser(1, fixed=False), ThreadChooser(None, fixed=True)):
        before = len(set_to)
        run(pinned, {1: 1.0, 2: 1.0}, 5)
        assert len(set_to) == before


def test_F3_what_torch_raises_without_memory_is_known_as_that():
    """Its words are all that tells a CPU's want of memory from another fault."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 46, dtype=torch.float32)
    assert is_out_of_memory(caught.value), caught.value
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."))


def test_prompts_of_all_lengths_leave_no_code_behind(tmp_path):
    """oneDNN makes code for each number of rows; the runner's process keeps what some steps need, not all there ever was."""
    make_tiny(tmp_path, FAMILIES[0])
    script = """
import sys
from sgnb.config import EngineArgs
from sgnb.engine import model_store
from sgnb.engine.model_executor.model_runner import create_runner
args = EngineArgs.make(dtype="bfloat16", threads=1, max_total_tokens=64, max_running_requests=1)
create_runner(args, model_store.resolve(sys.argv[1]), lambda *a: None)
import psutil, torch
from sgnb.engine.layers.linear import dense_linear
torch.set_num_threads(1)
product = dense_linear(torch.randn(256, 256).bfloat16(), None, torch.device("cpu"))
def run(rows):
    for n in rows:
        product(torch.ones(n, 256, dtype=torch.bfloat16))
    return psutil.Process().memory_info().rss
before = run(range(1, 450))
print((run(range(450, 750)) - before) >> 20)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=300, check=True
    )
    assert int(done.stdout) < 40, "megabytes; 300 new sizes leave 190 where each is kept"
