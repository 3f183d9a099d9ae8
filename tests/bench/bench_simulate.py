"""Steps a second of the simulator: ``python tests/bench/bench_simulate.py``.

64 streams run from the first step to the last, so that every step but the prefills is a decode of 64 rows; the best of some
rounds, in CPU time of the thread, since a busy machine should not show. Bar: 1,500 steps a second. With ``--profile``, where
the time goes.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time

from sgnb.config import EngineArgs
from sgnb.engine.scheduler.simulate.cost import CostModel
from sgnb.engine.scheduler.simulate.play import play
from sgnb.engine.scheduler.simulate.script import END, Input, Output, Script, plain_params
from sgnb.engine.scheduler.simulate.workloads import make_workload
from sgnb.messages import Label, SessionDecode, SessionOpen

BAR = 1500


def streams(count: int, tokens: int, prompt: int = 200) -> Script:
    """``count`` requests that come at once and draw ``tokens`` each."""
    script = Script(
        name=f"{count} streams",
        args=EngineArgs.make(runner="stub", max_running_requests=count, chunked_prefill_size=-1),
        context_length=prompt + tokens + 1,
        max_total_tokens=count * (prompt + tokens + 8),
    )
    for n in range(count):
        rid, sid = f"c1.r{n}", f"c1.s{n}"
        first = n * (prompt + tokens)
        seed = script.add_output(
            Output(rid, [*range(first + prompt, first + prompt + tokens), END], "length")
        )
        script.inputs.append(Input(SessionOpen(sid=sid, client=1)))
        message = SessionDecode(
            rid=rid,
            sid=sid,
            client=1,
            ids=list(range(first, first + prompt)),
            params=plain_params(tokens, seed),
            stops=[],
            stop_token_ids=[],
            eos_token_ids=[END],
            label=Label(),
        )
        script.inputs.append(Input(message))
    return script


def measure(script: Script, rounds: int) -> tuple[float, int]:
    """(best steps a second of CPU time, steps)."""
    best, steps = 0.0, 0
    for _ in range(rounds):
        started = time.thread_time()
        played = play(script, CostModel())
        steps = played.steps
        best = max(best, steps / (time.thread_time() - started))
    return best, steps


def main() -> None:
    """Print a row for each load."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    if options.profile:
        profile = cProfile.Profile()
        profile.runcall(play, streams(64, options.tokens), CostModel())
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        return
    print(f"{'load':<28} {'steps':>8} {'steps/s':>10}   bar {BAR:,} at 64 streams")
    for script in (
        streams(1, options.tokens),
        streams(64, options.tokens),
        make_workload("mixed", requests=400, rate=20.0),
    ):
        rate, steps = measure(script, options.rounds)
        print(f"{script.name[:28]:<28} {steps:>8,} {rate:>10,.0f}")


if __name__ == "__main__":
    main()
