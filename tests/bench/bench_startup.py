"""How long an engine takes to be there, and what the way to it costs. ``python tests/bench/bench_startup.py [stub|torch]``

Prints one JSON object: seconds to welcome, tokenizer, weights, ready; first token; round trip over both processes; the
share of a core an idle engine uses. Figures are of this machine and moment: compare within one run.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from typing import Any

import psutil

from sgnb.backends.engine import Engine, launch

ROUNDS = 200
IDLE_SECONDS = 10.0


def start(runner: str) -> tuple[Engine, dict[str, Any]]:
    """Launch and say when each step was done, in seconds since launch was called."""
    began = time.perf_counter()
    engine = launch(runner=runner, wait=False)
    engine.client.number()
    welcome = time.perf_counter() - began
    engine.wait_ready()
    ready = time.perf_counter() - began
    steps = {step.step: step.seconds for step in engine.progress}
    return engine, {"welcome": welcome, "ready": ready, "steps_since_exec": steps}


def first_token(engine: Engine) -> float:
    """Seconds of a generation of one token, cold."""
    began = time.perf_counter()
    engine.generate("The capital of France is", sampling_params={"max_new_tokens": 1, "temperature": 0})
    return time.perf_counter() - began


def round_trip(engine: Engine) -> dict[str, float]:
    """Milliseconds from generate to its dict beyond what the engine's step took: kernel → tokenizer → scheduler and back."""
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        done = engine.generate("hello", sampling_params={"max_new_tokens": 1, "temperature": 0})
        meta = done["meta_info"]
        times.append((time.perf_counter() - began - meta["prefill_time"] - meta["decode_time"]) * 1e3)
    times.sort()
    return {"p50_ms": statistics.median(times), "p99_ms": times[int(len(times) * 0.99)]}


def idle_share(engine: Engine) -> float:
    """CPU seconds per second of both engine processes while nothing runs."""
    assert engine.client.welcome is not None
    processes = [psutil.Process(pid) for pid in (engine.pid, engine.client.welcome.scheduler_pid)]

    def used() -> float:
        return sum(process.cpu_times().user + process.cpu_times().system for process in processes)

    before = used()
    time.sleep(IDLE_SECONDS)
    return (used() - before) / IDLE_SECONDS


def main() -> None:
    """Measure one runner, and the import and extension load time of a fresh kernel side."""
    runner = sys.argv[1] if len(sys.argv) > 1 else "stub"
    code = "import time; t = time.perf_counter(); import sgnb.backends.engine; print(time.perf_counter() - t)"
    imported = float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    engine, figures = start(runner)
    with engine:
        figures["first_token"] = first_token(engine)
        figures["round_trip"] = round_trip(engine)
        figures["idle_core_share"] = idle_share(engine)
        began = time.perf_counter()
    figures |= {"runner": runner, "import_seconds": imported, "stop_seconds": time.perf_counter() - began}
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
