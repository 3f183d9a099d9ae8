"""The three drivers and overlap on sgnb's torch runner: equal outputs; and the GPU check runs, on this CPU."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_models import make_tiny

from sgnb.config import EngineArgs
from sgnb.engine.model_executor.process_driver import ProcessDriver
from sgnb.engine.model_store import ModelPath
from sgnb.errors import ModelFileError
from sgnb.sampling_params import SamplingParams

GPU = Path(__file__).parents[1] / "gpu"
sys.path.append(str(GPU))

from in_process import Bed  # noqa: E402  it lies beside the check that shares it


@pytest.fixture(scope="module")
def bed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    make_tiny(folder)
    model = ModelPath(name="tiny", path=folder, kind="safetensors")
    bed = Bed(
        model, device="cpu", dtype="float32", max_total_tokens=400, max_running_requests=6, deterministic=True
    )
    yield bed
    bed.close()


def load(seed: int) -> tuple[list[list[int]], list[SamplingParams]]:
    rng = random.Random(seed)
    stem = [rng.randrange(3, 300) for _ in range(20)]
    prompts = [
        stem[: rng.choice([0, 10, 20])] + [rng.randrange(3, 300) for _ in range(rng.randint(1, 30))]
        for _ in range(9)
    ]
    params = [
        SamplingParams(
            temperature=rng.choice([0.0, 0.9]),
            top_p=rng.choice([1.0, 0.8]),
            frequency_penalty=rng.choice([0.0, 0.0, 0.4]),
            seed=seed + i,
            max_new_tokens=rng.randint(1, 16),
            ignore_eos=True,
        )
        for i in range(9)
    ]
    return prompts, params


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 8))])
def test_every_driver_draws_the_same_tokens_with_overlap_and_without(bed, seed):
    prompts, params = load(seed)
    expected = bed.run(prompts, params, chunked_prefill_size=16)
    assert [len(ids) for ids in expected.ids] == [one.max_new_tokens for one in params]
    for driver in ("inline", "thread", "process"):
        for overlap in (False, True):
            found = bed.run(prompts, params, driver=driver, overlap=overlap, chunked_prefill_size=16)
            assert found.ids == expected.ids, (driver, overlap)
            assert any(step.schedule_under for step in found.steps) == overlap


def test_a_runner_process_that_cannot_start_says_why():
    args = EngineArgs.make(max_total_tokens=100)
    with pytest.raises(ModelFileError, match="cannot be opened"):
        ProcessDriver(args, ModelPath(name="none", path=Path("/nowhere"), kind="gguf"), print)


def test_the_gpu_check_runs_all_its_steps(tmp_path):
    out = tmp_path / "check.json"
    command = [sys.executable, str(GPU / "gpu_check.py"), "--cpu", "--small", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(out.read_text())
    assert list(results) == ["device", "equal_fp32", "gap_bf16", "drivers", "speed"]
    assert all(result["ok"] for result in results.values())
    assert results["equal_fp32"]["tokens_equal"] > 0
    assert set(results["speed"]) >= {"1 inline", "4 thread+overlap", "4 process"}


def test_without_a_gpu_the_check_says_so():
    command = [sys.executable, str(GPU / "gpu_check.py")]
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=hidden)
    assert done.returncode == 2 and "--cpu" in done.stderr
