"""A long, mixed load on a real engine: memory stays flat, descriptors constant, the books even (R4, R5).

``make soak`` runs 30 minutes; ``SGNB_SOAK_SECONDS`` sets another length, ``SGNB_SOAK_RUNNER=torch`` the embedded model.
One request in a hundred is aborted, one is bad input; prompts share prefixes, states are forked, chosen from, joined and
forgotten, and the pool is small enough that the cache has to evict all the time.
"""

from __future__ import annotations

import os
import random
import statistics
import threading
import time
from dataclasses import dataclass, field

import psutil
import pytest
from process_rig import until_idle

import sgnb as sgl
from sgnb.backends.engine import Engine, launch
from sgnb.errors import LimitError, RequestError, SgnbError

SECONDS = float(os.environ.get("SGNB_SOAK_SECONDS", "1800"))
RUNNER = os.environ.get("SGNB_SOAK_RUNNER", "stub")
WARM_SECONDS = min(300.0, 0.6 * SECONDS)
"""Until the ring of past events is full: the first five minutes, or so much of a shorter run."""
THREADS = 4
GROWTH = 1.03
"""Most that the median of the last third may exceed that of the first third behind the warm-up."""
SLACK_BYTES = 4 << 20
STEMS = [f"You are assistant number {n}. Answer in few words. " * 4 for n in range(12)]


@sgl.function
def tree(s, stem, number):
    s += stem + f"Question {number}: "
    branches = s.fork(3)
    for branch in branches:
        branch += sgl.gen("idea", max_tokens=8, ignore_eos=True)
    branches.join()
    s += " Best? " + sgl.select("best", ["the first", "the second", "neither"])
    s += sgl.gen("why", max_tokens=12, stop="\n")


@dataclass
class Load:
    """What the threads did, and every surprise."""

    engine: Engine
    end: float
    done: int = 0
    aborted: int = 0
    refused: int = 0
    surprises: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, seed: int) -> None:
        rng = random.Random(seed)
        while time.monotonic() < self.end and not self.surprises:
            try:
                self.one(rng)
            except Exception as error:
                with self.lock:
                    self.surprises.append(f"{type(error).__name__}: {error}")

    def one(self, rng: random.Random) -> None:
        dice = rng.random()
        if dice < 0.01:
            self.bad(rng)
        elif dice < 0.02:
            self.abort(rng)
        elif dice < 0.2:
            run = tree.run(rng.choice(STEMS), rng.randrange(10**6), backend=self.engine)
            assert len(run["idea"]) == 3 and run["best"]
        else:
            prompts = [rng.choice(STEMS) + str(rng.randrange(10**6)) for _ in range(rng.choice([1, 1, 4]))]
            params = {"max_new_tokens": rng.choice([1, 8, 30]), "temperature": rng.choice([0, 1.0])}
            for done in self.engine.generate(prompts, sampling_params=params):
                assert done["meta_info"]["finish_reason"]["type"] in ("stop", "length")
        with self.lock:
            self.done += 1

    def bad(self, rng: random.Random) -> None:
        call = rng.choice(
            [
                {"input_ids": [1, 10**9]},
                {"prompt": "x" * 200_000},
                {"prompt": "x", "sampling_params": {"temperature": -1}},
                {"prompt": "x", "sampling_params": {"max_new_tokens": "many"}},
            ]
        )
        with pytest.raises((LimitError, RequestError)):
            self.engine.generate(**call)
        with self.lock:
            self.refused += 1

    def abort(self, rng: random.Random) -> None:
        run = endless.run_async(rng.choice(STEMS), backend=self.engine)
        time.sleep(rng.random() * 0.05)
        run.cancel()
        try:
            run.result(30)
        except SgnbError:
            pass  # cancelled, which is what was asked
        assert run.status == "stopped"
        with self.lock:
            self.aborted += 1


@sgl.function
def endless(s, stem):
    s += stem + sgl.gen("text", max_tokens=400, ignore_eos=True)


@dataclass(frozen=True)
class Sample:
    """The engine's processes and this one at a moment."""

    seconds: float
    rss: tuple[int, ...]
    descriptors: tuple[int, ...]


def watch(processes: list[psutil.Process], started: float) -> Sample:
    rss = tuple(process.memory_info().rss for process in processes)
    return Sample(time.monotonic() - started, rss, tuple(process.num_fds() for process in processes))


def processes_of(engine: Engine) -> list[psutil.Process]:
    """Tokenizer process, its children (the scheduler among them), this process."""
    first = psutil.Process(engine.pid)
    return [first, *first.children(recursive=True), psutil.Process()]


def report(samples: list[Sample], names: list[str]) -> str:
    lines = []
    for sample in samples[:: max(1, len(samples) // 12)]:
        parts = [
            f"{name} {rss / 2**20:.1f} MB {count} fd"
            for name, rss, count in zip(names, sample.rss, sample.descriptors, strict=True)
        ]
        lines.append(f"{sample.seconds:7.0f} s  " + "   ".join(parts))
    return "\n".join(lines)


@pytest.mark.soak
def test_R4_R5_memory_is_flat_and_the_books_are_even_after_a_long_mixed_load(capsys):
    slots = 3000 if RUNNER == "stub" else 8192
    args = {"stub_step_seconds": 0.001} if RUNNER == "stub" else {}
    with launch(runner=RUNNER, name="soak", max_total_tokens=slots, **args) as engine:
        started = time.monotonic()
        load = Load(engine, started + SECONDS)
        threads = [threading.Thread(target=load.run, args=(seed,)) for seed in range(THREADS)]
        for thread in threads:
            thread.start()
        processes, samples = processes_of(engine), []
        while time.monotonic() < load.end and not load.surprises:
            time.sleep(min(5.0, SECONDS / 60))
            samples.append(watch(processes, started))
        for thread in threads:
            thread.join(120)
        assert not any(thread.is_alive() for thread in threads), "a request hangs"
        assert not load.surprises, load.surprises
        until_idle(engine)
        names = [process.name() if process.pid != os.getpid() else "test" for process in processes]
        with capsys.disabled():
            print(f"\n{load.done} requests, {load.aborted} aborted, {load.refused} refused")
            print(report(samples, names))
            print({name: value for name, value in engine.stats().items() if name.endswith("total")})
        assert load.done > 100 and load.aborted and load.refused
        warm = [sample for sample in samples if sample.seconds > WARM_SECONDS]
        third = len(warm) // 3
        for place, name in enumerate(names):
            before = statistics.median(sample.rss[place] for sample in warm[:third])
            after = statistics.median(sample.rss[place] for sample in warm[-third:])
            assert after <= before * GROWTH + SLACK_BYTES, f"{name} grew: {report(samples, names)}"
            counts = [sample.descriptors[place] for sample in warm]
            assert max(counts) - min(counts) <= THREADS, f"descriptors of {name}: {sorted(set(counts))}"
        stats = engine.stats()
        assert stats["num_sessions"] == 0, "every state was forgotten, so no session is left"
        assert engine.client.control("check")["locks"] == 0
