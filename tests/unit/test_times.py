"""The split of a run's wall time."""

from __future__ import annotations

import time

import pytest

import sgnb as sgl
from sgnb.backends.base import Delta, Requeued, Started, TokenInfo
from sgnb.backends.mock import HANG, MockBackend
from sgnb.errors import EngineDied
from sgnb.runtime import events as ev
from sgnb.runtime.times import split_times, times_so_far


def meta(queue: float, prefill: float, decode: float) -> dict[str, object]:
    return {
        "queue_time": queue,
        "prefill_time": prefill,
        "decode_time": decode,
        "e2e_latency": queue + prefill + decode,
    }


def entries(*timed: tuple[float, ev.Event]) -> list[ev.Entry]:
    return [ev.Entry(number, when, event) for number, (when, event) in enumerate(timed)]


def queued(rid: str) -> ev.GenQueued:
    return ev.GenQueued(0, rid, "x", 1, 8)


def test_one_generation_has_the_engines_durations_and_python_is_the_rest() -> None:
    log = entries((10.1, queued("a")), (11.0, ev.GenDone("a", meta(0.2, 0.3, 0.4))))
    split = split_times(log, 10.0, 11.05)
    assert list(split) == ["queue", "prefill", "decode", "python"]
    assert split == pytest.approx({"queue": 0.2, "prefill": 0.3, "decode": 0.4, "python": 0.15})


def test_generations_side_by_side_never_count_twice() -> None:
    log = entries(
        (0.0, queued("a")),
        (0.0, queued("b")),
        (0.0, queued("c")),
        (1.0, ev.GenDone("a", meta(0.1, 0.1, 0.8))),
        (1.5, ev.GenDone("b", meta(0.1, 0.1, 1.3))),
        (2.0, ev.GenDone("c", meta(1.7, 0.1, 0.2))),
    )
    split = split_times(log, 0.0, 2.0)
    assert split == pytest.approx({"queue": 0.3, "prefill": 0.2, "decode": 1.5, "python": 0.0})
    assert sum(split.values()) == pytest.approx(2.0)


def test_generations_in_turn_add_up_with_the_python_between() -> None:
    log = entries(
        (0.0, queued("a")),
        (1.0, ev.GenDone("a", meta(0.0, 0.5, 0.5))),
        (3.0, queued("b")),
        (4.0, ev.GenDone("b", meta(0.0, 0.25, 0.75))),
    )
    split = split_times(log, 0.0, 4.0)
    assert split == pytest.approx({"queue": 0.0, "prefill": 0.75, "decode": 1.25, "python": 2.0})


def test_without_durations_of_the_engine_the_events_tell() -> None:
    log = entries(
        (0.0, queued("a")),
        (0.5, ev.GenStarted("a")),
        (0.7, ev.GenDelta("a", "text", 1)),
        (1.0, ev.GenDone("a", {"completion_tokens": 1})),
        (1.0, queued("b")),
        (2.0, ev.GenFailed("b", EngineDied("gone"))),
    )
    split = split_times(log, 0.0, 2.0)
    assert split == pytest.approx({"queue": 1.5, "prefill": 0.2, "decode": 0.3, "python": 0.0})


def test_one_that_is_retracted_waits_and_prefills_anew() -> None:
    log = entries(
        (0.0, queued("a")),
        (1.0, ev.GenStarted("a", 20, 0)),
        (3.0, ev.GenDelta("a", "one", 1)),
        (3.5, ev.GenDelta("a", " two", 1)),
        (4.0, ev.GenRequeued("a")),
        (6.0, ev.GenStarted("a")),
        (9.0, ev.GenDelta("a", " three", 1)),
        (10.0, ev.GenDone("a", meta(3.0, 5.0, 2.0))),
    )
    split = split_times(log, 0.0, 10.0)
    assert split == pytest.approx({"queue": 3.0, "prefill": 5.0, "decode": 2.0, "python": 0.0})
    for until, expected in {
        0.5: (0.5, 0, 0), 2.5: (1, 1.5, 0), 3.8: (1, 2, 0.8), 5.0: (2, 2, 1), 8.0: (3, 4, 1), 9.5: (3, 5, 1.5),
    }.items():  # fmt: skip
        heard = [entry for entry in log if entry.time <= until]
        for ended in (ev.GenDone("a"), ev.GenFailed("a", EngineDied("gone"))):
            found = split_times([*heard, ev.Entry(9, until, ended)], 0.0, until)
            assert found == pytest.approx(dict(zip(found, (*expected, 0), strict=True))), until
        so_far = times_so_far(heard, until)["a"]
        assert so_far.pop("e2e_latency") == until
        assert so_far == pytest.approx(dict(zip(so_far, expected, strict=True)))


def test_durations_that_cannot_be_are_cut_to_the_run() -> None:
    """Clocks of two processes: an engine's duration may exceed what this side saw."""
    log = entries((0.9, queued("a")), (1.0, ev.GenDone("a", meta(5.0, 5.0, 5.0))))
    assert split_times(log, 0.0, 1.0) == pytest.approx(
        {"queue": 0.0, "prefill": 0.0, "decode": 0.1, "python": 0.9}
    )


@pytest.mark.parametrize(
    ("told", "waited", "python"),
    [(0.0, 0.0, 0.0), (5.0, 5.0, 0.0), (5.0, 4.0, 1.0)],
    ids=["after", "before", "both"],
)
def test_the_start_of_an_engine_is_not_python(told: float, waited: float, python: float) -> None:
    """A cell that starts its engine knows its name, and tells that it began, when the engine is there."""
    log = entries(
        (told, ev.RunStarted("[1]", "1", "m", start_seconds=waited)),
        (5.0, ev.StateOpened(0, "")),
        (5.0, queued("a")),
        (6.0, ev.GenDone("a", meta(0, 0, 1))),
    )
    split = split_times(log, 0.0, 6.0)
    parts = {"start": 5.0 - python, "queue": 0.0, "prefill": 0.0, "decode": 1.0, "python": python}
    assert split == pytest.approx(parts)
    assert next(iter(split)) == "start"


def finished(log: ev.EventLog) -> ev.RunFinished:
    (event,) = [entry.event for entry in log.since(0) if isinstance(entry.event, ev.RunFinished)]
    return event


def test_a_run_ends_with_its_split() -> None:
    @sgl.function
    def two(s):
        s += "a" + sgl.gen("x")
        time.sleep(0.2 if s["x"] else 0)
        s += sgl.gen("y")

    backend = MockBackend("one two three four", delay=0.01)
    run = two.run_async(backend=backend)
    run.result(20)
    end = finished(run.log)
    assert set(end.times) >= {"queue", "prefill", "decode", "python"}
    assert sum(end.times.values()) == pytest.approx(end.seconds, abs=1e-6)
    assert end.times["python"] >= 0.19 and end.times["decode"] > 0
    backend.shutdown()


STARTED, TOKEN, RETRACTED = "started", "token", "retracted"


@pytest.mark.parametrize(
    "heard",
    [(), (STARTED,), (STARTED, TOKEN), (STARTED, TOKEN, RETRACTED), (STARTED, RETRACTED, STARTED)],
    ids=["in the queue", "in prefill", "in decode", "retracted", "in its second prefill"],
)
def test_the_meta_of_a_stopped_generation_says_where_its_time_went(heard: tuple[str, ...]) -> None:
    @sgl.function
    def slow(s):
        s += sgl.gen("x")

    backend = MockBackend(HANG)
    run = slow.run_async(backend=backend)
    assert run.log.wait(2, 10)
    (rid,) = run.core.slots
    parts = {STARTED: Started(rid), TOKEN: Delta(rid, "one", (TokenInfo(1),)), RETRACTED: Requeued(rid)}
    for one in heard:
        time.sleep(0.02)
        run.core.on_events([parts[one]])
    time.sleep(0.02)
    stopped = time.monotonic()
    run.cancel()
    told = run.state.get_meta_info("x")
    moments = [e.time for e in run.log.since(0) if getattr(e.event, "rid", "") == rid]
    spent = dict.fromkeys(("queue_time", "prefill_time", "decode_time"), 0.0)
    part = {STARTED: "prefill_time", TOKEN: "decode_time", RETRACTED: "queue_time"}
    for name, since, until in zip(
        ("queue_time", *(part[one] for one in heard)), moments, moments[1:], strict=False
    ):
        spent[name] += until - since
    last = part[heard[-1]] if heard else "queue_time"
    seen = spent[last] - (moments[-1] - moments[-2])
    assert seen + (stopped - moments[-2]) <= told[last] <= spent[last], (
        "it was stopped before that was logged"
    )
    assert all(told[name] == pytest.approx(seconds) for name, seconds in spent.items() if name != last)
    assert told["e2e_latency"] == pytest.approx(sum(told[name] for name in spent))
    end = finished(run.log)
    assert end.status == "stopped"
    for name in spent:  # its end was logged a moment later
        assert end.times[name.removesuffix("_time")] >= told[name] - 1e-6
    assert sum(end.times.values()) == pytest.approx(end.seconds)
    backend.shutdown()
