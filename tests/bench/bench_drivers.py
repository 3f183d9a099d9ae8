"""What each driver of the runner, and overlap, saves or costs: ``python tests/bench/bench_drivers.py [--model NAME]``.

From the StepEvents of the same load under each setting: the time the model computes, the time it had nothing to do though
there was work (``exposed``), and tokens a second of both. First on the stub runner, whose step only sleeps (as a GPU does,
seen from the host), then on a model on this machine's CPU. Settings run in turn, ``--rounds`` times, so that a busy
machine touches them alike; the middle round counts. ``hidden``: the share of the inline exposed time that a setting hides.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "gpu")]

from in_process import STUB, Bed  # noqa: E402  it lies beside the check that shares it

from sgnb.config import DEFAULT_MODEL  # noqa: E402
from sgnb.engine.model_store import resolve  # noqa: E402
from sgnb.errors import SgnbError  # noqa: E402
from sgnb.sampling_params import SamplingParams  # noqa: E402

SETTINGS = [(driver, overlap) for driver in ("inline", "thread", "process") for overlap in (False, True)]


def measure(bed: Bed, rows: int, tokens: int, rounds: int) -> dict[tuple[str, bool], dict[str, float]]:
    """Figures of each setting: of each figure the middle of all rounds."""
    rng = random.Random(0)
    prompts = [[rng.randrange(32, 127) for _ in range(32)] for _ in range(rows)]
    params = SamplingParams(temperature=0.0, max_new_tokens=tokens, ignore_eos=True)
    found: dict[tuple[str, bool], list[dict[str, float]]] = {setting: [] for setting in SETTINGS}
    outputs = []
    for _ in range(rounds):
        for setting in SETTINGS:
            result = bed.run(prompts, params, driver=setting[0], overlap=setting[1], disable_radix_cache=True)
            outputs.append(result.ids)
            found[setting].append(result.figures(rows))
    if any(ids != outputs[0] for ids in outputs):
        print("note: outputs differ between settings (close calls in a low precision)")
    return {
        setting: {name: statistics.median(one[name] for one in runs) for name in runs[0]}
        for setting, runs in found.items()
    }


def show(title: str, figures: dict[tuple[str, bool], dict[str, float]]) -> None:
    """One table."""
    print(f"\n{title}")
    print("driver           tokens/s     run ms  exposed ms  schedule ms  process ms  wasted  hidden")
    inline = figures["inline", False]["exposed_host_ms"]
    for (driver, overlap), one in figures.items():
        name = f"{driver}{' + overlap' if overlap else ''}"
        hidden = 1 - one["exposed_host_ms"] / inline if inline else 0.0
        print(
            f"{name:<16} {one['tokens_per_s']:>8.0f} {one['run_ms']:>10.3f} {one['exposed_host_ms']:>11.3f} "
            f"{one['schedule_ms']:>12.3f} {one['process_ms']:>11.3f} {one['wasted_rows']:>7.0f} {hidden:>7.0%}"
        )


def main() -> None:
    """Stub, then a model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a known model, a file or a folder")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--step-seconds", type=float, default=0.004, help="of the stub's step")
    options = parser.parse_args()
    bed = Bed(STUB, runner="stub", stub_step_seconds=options.step_seconds, max_running_requests=64)
    for rows in options.rows:
        title = f"stub, {rows} rows, a step sleeps {1e3 * options.step_seconds:g} ms"
        show(title, measure(bed, rows, options.tokens, options.rounds))
    bed.close()
    try:
        model = resolve(options.model)
    except SgnbError as error:
        print(f"\n{options.model} is not here: {error.message}")
        return
    bed = Bed(model, max_total_tokens=16_384, max_running_requests=64)
    for rows in options.rows:
        show(f"{model.name}, {rows} rows", measure(bed, rows, options.tokens, options.rounds))
    bed.close()


if __name__ == "__main__":
    main()
