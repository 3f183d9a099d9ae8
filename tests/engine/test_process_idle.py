"""An engine that holds many states and has nothing to do: no CPU, no lock, and every slot to be had."""

from __future__ import annotations

import time

import psutil
from process_rig import until_idle

import sgnb as sgl
from sgnb.backends.engine import launch

STATES = 100


@sgl.function
def remember(s, number):
    s += f"This is state {number}, and it is going to be asked again later. "
    s += sgl.gen("first", max_tokens=8, ignore_eos=True)


def test_100_live_states_cost_nothing_while_idle(find_engines):
    with launch(runner="stub", name="idlestates", max_total_tokens=20_000) as engine:
        states = remember.run_batch([{"number": n} for n in range(STATES)], backend=engine)
        until_idle(engine)
        stats, books = engine.stats(), engine.client.control("check")
        assert stats["num_sessions"] == STATES
        assert books["locks"] == 0, "only what runs holds a lock"
        assert books["free"] + books["cached"] == books["total"] and books["cached"] > 0
        pids = find_engines(str(engine._folder))

        def used() -> float:
            return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)

        time.sleep(0.5)
        before, started = used(), time.monotonic()
        time.sleep(5)
        assert len(pids) == 2
        assert (used() - before) / (time.monotonic() - started) <= 0.01
        states[7] += "Now? " + sgl.gen("again", max_tokens=4, ignore_eos=True)
        assert states[7]["again"]
        assert engine.flush_cache()["locked"] == 0
