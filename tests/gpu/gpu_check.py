"""One script that checks the engine's torch runner on a machine with CUDA, in a few minutes; prints JSON.

    python tests/gpu/gpu_check.py [--cpu] [--small] [--model FILE_OR_FOLDER] [--out FILE] [--budget SECONDS]

Without CUDA it says so and exits 2; ``--cpu`` runs every step on the CPU instead (with ``--small`` in seconds, as the tests
do), so that the script is never tried first on a GPU. Every step has its own try: one that fails is told with its error and
the next one runs; one that does not fit the budget any more is told as skipped. Results are written to ``--out`` after each.

Files it needs: ``sgnb/``, ``tests/gpu/in_process.py``. Packages: torch, numpy, transformers (only to make a random model),
and msgspec, pyzmq, jupyter_core (sgnb's own leaves). No network, no model file: without ``--model`` a random model of
SmolLM2's shape is made in a temporary folder.

    device       what the machine is
    equal_fp32   greedy in fp32 on the device = on the CPU, up to the first call closer than 1e-4
    gap_bf16     greedy in bf16 on the device: differs from fp32 on the CPU only where the top two are closer than 8 × noise
    drivers      inline, thread and process, overlap off and on: equal outputs in fp32 (greedy and seeded)
    speed        decode at 1, 16 and 64 rows by driver and overlap: tokens/s, run time, exposed host time
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]

import torch  # noqa: E402  the repository must be on the path first
from in_process import Bed, Result  # noqa: E402

from sgnb.engine.model_store import ModelPath  # noqa: E402
from sgnb.sampling_params import SamplingParams  # noqa: E402

GAP = 1e-4
NOISES = 8.0
SETTINGS = [(d, o) for d in ("inline", "thread", "process") for o in (False, True)]
SHAPE = {
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "max_position_embeddings": 2048,
}
SMALL_SHAPE = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 300,
    "max_position_embeddings": 512,
}


def random_model(folder: Path, shape: dict[str, int]) -> ModelPath:
    """A random Llama of this shape as safetensors."""
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(**shape, tie_word_embeddings=True, eos_token_id=2, bos_token_id=None)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(3.0)  # of the default: a calm model whose scores still differ
    model.save_pretrained(folder, safe_serialization=True)
    return ModelPath(name="random", path=folder, kind="safetensors")


def given_model(path: str) -> ModelPath:
    """A file or folder of the user's."""
    found = Path(path).resolve()
    return ModelPath(name=found.stem, path=found, kind="safetensors" if found.is_dir() else "gguf")


class Check:
    """The steps, and what they share."""

    def __init__(self, options: argparse.Namespace, model: ModelPath) -> None:
        self.model = model
        self.device = "cpu" if options.cpu else "cuda"
        self.small = options.small
        self.vocab = 250
        self._rng = random.Random(0)
        self._beds: dict[tuple[str, str], Bed] = {}
        count, tokens = (4, 12) if self.small else (16, 48)
        self.prompts = [self._ids(self._rng.randint(3, 40)) for _ in range(count)]
        self.greedy = SamplingParams(
            temperature=0.0, max_new_tokens=tokens, ignore_eos=True, return_logprob=True, top_logprobs_num=2
        )
        self._expected: Result | None = None

    def _ids(self, count: int) -> list[int]:
        return [self._rng.randrange(3, self.vocab) for _ in range(count)]

    def bed(self, device: str, dtype: str) -> Bed:
        """A runner; the one of the last dtype on this device is freed."""
        if (device, dtype) not in self._beds:
            slots = 8192 if self.small else 65_536
            self._beds[device, dtype] = Bed(
                self.model,
                device=device,
                dtype=dtype,
                max_total_tokens=slots if device == self.device else 8192,
                max_running_requests=64,
                attention_backend="torch_native",
            )
        return self._beds[device, dtype]

    def expected(self) -> Result:
        """Greedy on the CPU in fp32."""
        if self._expected is None:
            self._expected = self.bed("cpu", "float32").run(self.prompts, self.greedy)
        return self._expected

    # ------------------------------------------------------------ steps

    def check_device(self) -> dict[str, Any]:
        """What the machine is."""
        out: dict[str, Any] = {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "device": self.device,
        }
        if self.device == "cuda":
            out["name"] = torch.cuda.get_device_name(0)
            out["memory_gb"] = round(torch.cuda.get_device_properties(0).total_memory / 1e9, 1)
        return out

    def check_equal_fp32(self) -> dict[str, Any]:
        """Positions compared, and prompts that reached their end; an early difference fails."""
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        found = self.bed(self.device, "float32").run(self.prompts, self.greedy)
        return compare(self.expected(), found, GAP)

    def check_gap_bf16(self) -> dict[str, Any]:
        """The noise of bf16 and the calls it decided; a decided call beyond 8 × noise fails."""
        found = self.bed(self.device, "bfloat16").run(self.prompts, self.greedy)
        noise = noise_of(self.expected(), found)
        return {"noise": noise} | compare(self.expected(), found, NOISES * noise)

    def check_drivers(self) -> dict[str, Any]:
        """Every driver, overlap off and on, greedy and seeded: the same ids (up to close calls for greedy ones)."""
        bed = self.bed(self.device, "float32")
        tokens = self.greedy.max_new_tokens
        params = [
            self.greedy
            if i % 2
            else SamplingParams(
                temperature=0.8, top_p=0.9, seed=i, max_new_tokens=tokens - i % 5, ignore_eos=True
            )
            for i in range(len(self.prompts))
        ]
        base = bed.run(self.prompts, params)
        out: dict[str, Any] = {}
        for driver, overlap in SETTINGS:
            found = bed.run(self.prompts, params, driver=driver, overlap=overlap)
            equal = sum(a == b for a, b in zip(base.ids, found.ids, strict=True))
            far = [i for i in range(1, len(params), 2) if not close_call(base, found, i, GAP)]
            out[f"{driver}{'+overlap' if overlap else ''}"] = {"equal": equal, "of": len(params)}
            if far or equal < 0.9 * len(params):
                raise AssertionError(
                    f"{driver}, overlap {overlap}: {equal} of {len(params)} equal; {far} differ early"
                )
        return out

    def check_speed(self) -> dict[str, Any]:
        """Decode at several row counts."""
        bed = self.bed(self.device, "bfloat16")
        tokens, out = (8 if self.small else 64), {}
        for rows in (1, 4) if self.small else (1, 16, 64):
            prompts = [self._ids(32) for _ in range(rows)]
            params = SamplingParams(temperature=0.0, max_new_tokens=tokens, ignore_eos=True)
            bed.run(prompts, params)  # warm
            for driver, overlap in SETTINGS:
                result = bed.run(prompts, params, driver=driver, overlap=overlap, disable_radix_cache=True)
                out[f"{rows} {driver}{'+overlap' if overlap else ''}"] = result.figures(rows)
        return out

    def close(self) -> None:
        """Free the runners."""
        for bed in self._beds.values():
            bed.close()


def first_difference(a: list[int], b: list[int]) -> int:
    """Index of the first token that differs; the shorter length if none does."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def gap_at(result: Result, prompt: int, index: int) -> float:
    """How far the two best were apart at an output token, in log-probability."""
    top = result.logprobs[prompt][index].top
    return top[0][0] - top[1][0]


def close_call(expected: Result, found: Result, prompt: int, gap: float) -> bool:
    """True if one output is the other, or they part at a call closer than ``gap``."""
    at = first_difference(expected.ids[prompt], found.ids[prompt])
    if at >= len(expected.ids[prompt]):
        return True
    return any(gap_at(expected, prompt, i) <= gap for i in range(at + 1))


def compare(expected: Result, found: Result, gap: float) -> dict[str, Any]:
    """Outputs up to the first call closer than ``gap``; AssertionError at a difference before it."""
    compared = whole = 0
    for prompt, ids in enumerate(expected.ids):
        at = first_difference(ids, found.ids[prompt])
        if not close_call(expected, found, prompt, gap):
            raise AssertionError(
                f"prompt {prompt} differs at token {at} where the gap is {gap_at(expected, prompt, at):.2g} > {gap:.2g}"
            )
        compared += at
        whole += at == len(ids)
    return {"prompts": len(expected.ids), "whole": whole, "tokens_equal": compared}


def noise_of(expected: Result, found: Result) -> float:
    """Root mean square of what the log-probabilities of equal tokens differ by."""
    squares = []
    for prompt, ids in enumerate(expected.ids):
        for i in range(first_difference(ids, found.ids[prompt])):
            squares.append((expected.logprobs[prompt][i].logprob - found.logprobs[prompt][i].logprob) ** 2)
    return math.sqrt(sum(squares) / len(squares)) if squares else 0.0


def main() -> int:
    """Run all steps; 0 when none failed, 2 without a device."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--cpu", action="store_true", help="run on the CPU")
    parser.add_argument("--small", action="store_true", help="a tiny model and few tokens")
    parser.add_argument("--model", help="a .gguf file or a safetensors folder; else a random one is made")
    parser.add_argument("--out", type=Path, help="write results here after each step")
    parser.add_argument(
        "--budget", type=float, default=480.0, help="seconds; steps that begin later are skipped"
    )
    options = parser.parse_args()
    if not options.cpu and not torch.cuda.is_available():
        print("No CUDA device is here. --cpu runs the same steps on the CPU.", file=sys.stderr)
        return 2
    began, results = time.monotonic(), {}
    with tempfile.TemporaryDirectory() as folder:
        shape = SMALL_SHAPE if options.small else SHAPE
        model = given_model(options.model) if options.model else random_model(Path(folder), shape)
        check = Check(options, model)
        steps: dict[str, Callable[[], dict[str, Any]]] = {
            "device": check.check_device,
            "equal_fp32": check.check_equal_fp32,
            "gap_bf16": check.check_gap_bf16,
            "drivers": check.check_drivers,
            "speed": check.check_speed,
        }
        for name, step in steps.items():
            results[name] = run_step(step, began, options.budget)
            if options.out:
                options.out.write_text(json.dumps(results, indent=1))
        check.close()
    print(json.dumps(results, indent=1))
    return 0 if all(result["ok"] for result in results.values()) else 1


def run_step(step: Callable[[], dict[str, Any]], began: float, budget: float) -> dict[str, Any]:
    """One step's result, whatever happens in it."""
    if time.monotonic() - began > budget:
        return {"ok": False, "skipped": "budget"}
    started = time.monotonic()
    try:
        out: dict[str, Any] = {"ok": True, **step()}
    except Exception as error:
        out = {"ok": False, "error": f"{type(error).__name__}: {error}"}
    return out | {"seconds": round(time.monotonic() - started, 2)}


if __name__ == "__main__":
    sys.exit(main())
