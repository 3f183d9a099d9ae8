"""The split of a request's time into queue, prefill and decode, whichever way it ends: its meta says what its events say."""

from __future__ import annotations

import pytest
from scheduler_rig import Rig

from sgnb.messages import StepEvent

STEP, BETWEEN = 1.0, 0.25
"""Seconds of the rig's clock that a step computes, and between two steps."""


class Clocked(Rig):
    """A rig whose clock stands but while a step is computed, and between two."""

    def __init__(self, **args) -> None:
        self.now = 0.0
        super().__init__(clock=lambda: self.now, **args)
        self.runner.during = self._compute

    def _compute(self, batch) -> None:
        self.now += STEP

    def step(self, count: int = 1) -> bool:
        more = True
        for _ in range(count):
            more = super().step()
            self.now += BETWEEN
        return more

    def retract(self, rid: str) -> None:
        """As a pass does that finds too few slots: what it decided is told before its step."""
        self.scheduler.retract(self.scheduler.reqs[rid])
        self.scheduler.outputs.flush()

    def flush(self) -> None:
        """Nothing is in the cache any more."""
        self.scheduler.cache.flush()

    def drawn_at(self, rid: str) -> list[float]:
        """When each of its tokens was known: a row draws when it computes the last token there is."""
        length = next(event.prompt_tokens for event in self.events if event.rid == rid)
        times: list[float] = []
        for event in self.detail:
            for row in event.rows if isinstance(event, StepEvent) else ():
                if row.rid == rid and row.prefix + row.tokens == length + len(times):
                    times.append(event.time + STEP)
        return times

    def recomputed(self, rid: str) -> dict[str, float]:
        """Seconds of each part, from the request's events and the steps that drew its tokens."""
        spent = {"queue": 0.0, "prefill": 0.0, "decode": 0.0}
        part, since = "queue", 0.0
        news = [(e.time, e.state) for e in self.events if e.rid == rid]
        news += [(time, "token") for time in self.drawn_at(rid)]
        part_of = {"admitted": "prefill", "token": "decode", "first_token": "decode", "retracted": "queue"}
        for time, state in sorted(news, key=lambda one: one[0]):
            if state == "queued":
                since = time
            elif state in part_of or state == "finished":
                spent[part] += time - since
                part, since = part_of.get(state, part), time
        return spent


def checked(rig: Clocked, rid: str) -> tuple[float, float, float]:
    """The meta of a request that has ended, when it agrees with the events and adds up."""
    meta = rig.told[rid].meta
    assert meta is not None
    found = {"queue": meta.queue_time, "prefill": meta.prefill_time, "decode": meta.decode_time}
    assert found == pytest.approx(rig.recomputed(rid))
    assert sum(found.values()) == pytest.approx(meta.e2e_latency)
    return meta.queue_time, meta.prefill_time, meta.decode_time


LONG = bytes(range(40))


def chunked(**args) -> Clocked:
    return Clocked(chunked_prefill_size=16, max_total_tokens=256, **args)


def test_one_that_finishes() -> None:
    rig = chunked()
    rid = rig.decode(1, LONG, max_new_tokens=3)
    rig.drain()
    assert checked(rig, rid) == pytest.approx((0, 3 * STEP + 2 * BETWEEN, 2 * (STEP + BETWEEN)))
    assert (rig.told[rid].started, rig.told[rid].waits) == (1, 0)


def test_one_that_is_stopped_while_it_waits_has_waited_only() -> None:
    rig = chunked(max_running_requests=1)
    rig.decode(1, b"first", max_new_tokens=8)
    waiting = rig.decode(2, b"second")
    rig.step(3)
    rig.abort(waiting)
    rig.drain()
    assert checked(rig, waiting) == pytest.approx((3 * (STEP + BETWEEN), 0, 0))


def test_one_that_is_stopped_between_chunks_of_its_prompt_has_prefilled() -> None:
    rig = chunked()
    rid = rig.decode(1, LONG)
    rig.step(2)
    rig.abort(rid)
    rig.drain()
    assert checked(rig, rid) == pytest.approx((0, 2 * (STEP + BETWEEN), 0))


def test_one_that_is_stopped_while_its_first_chunk_is_computed_has_prefilled() -> None:
    rig = chunked()
    rid = rig.decode(1, LONG)

    def compute(batch) -> None:
        assert rig.told[rid].started == 1, "that it left the queue is told before the step"
        rig.now += STEP
        rig.abort(rid)

    rig.runner.during = compute
    rig.drain()
    assert checked(rig, rid) == pytest.approx((0, STEP, 0))


def test_one_that_is_stopped_while_it_decodes() -> None:
    rig = chunked()
    rid = rig.decode(1, LONG, max_new_tokens=64)
    rig.step(6)
    rig.abort(rid)
    rig.drain()
    assert checked(rig, rid) == pytest.approx((0, 3 * STEP + 2 * BETWEEN, 3 * (STEP + BETWEEN) + BETWEEN))


def test_one_that_fails() -> None:
    rig = chunked()
    rid = rig.decode(1, LONG)
    rig.step(2)
    rig.scheduler.results.fail(rig.scheduler.reqs[rid], "non_finite", "non-finite logits")
    rig.drain()
    assert checked(rig, rid) == pytest.approx((0, 2 * (STEP + BETWEEN), 0))


@pytest.mark.parametrize("steps", [1, 2, 5], ids=["in its first chunk", "in its second", "in decode"])
@pytest.mark.parametrize(
    "then", ["stopped in the queue", "stopped in prefill", "stopped in decode", "finished"]
)
def test_one_that_is_retracted_waits_and_prefills_anew(steps: int, then: str) -> None:
    rig = chunked()
    rid = rig.decode(1, LONG, max_new_tokens=8)
    rig.step(steps)
    rig.retract(rid)
    rig.now += 10
    if then != "stopped in the queue":
        rig.flush()
        rig.step(1 if then == "stopped in prefill" else 5)
    if then != "finished":
        rig.abort(rid)
    rig.drain()
    queue, prefill, decode = checked(rig, rid)
    assert queue == pytest.approx(10)
    first = min(steps, 3) * STEP + min(steps - 1, 2) * BETWEEN + (BETWEEN if steps < 3 else 0)
    again = {"stopped in the queue": 0.0, "stopped in prefill": STEP + BETWEEN}.get(
        then, 3 * STEP + 2 * BETWEEN
    )
    assert prefill == pytest.approx(first + again)
    assert (decode > 0) == (steps > 3 or then in ("stopped in decode", "finished"))
    told = rig.told[rid]
    assert (told.started, told.waits) == ((1, 1) if then == "stopped in the queue" else (2, 1))


def test_one_that_is_suspended_in_the_middle_of_its_prompt_waits_anew() -> None:
    rig = chunked()
    rid = rig.decode(1, LONG)
    rig.step(1)
    rig.scheduler.planner.suspend(rig.scheduler.reqs[rid], "priority")
    rig.now += 5
    rig.step(1)
    rig.abort(rid)
    rig.drain()
    assert checked(rig, rid) == pytest.approx((5, 2 * (STEP + BETWEEN), 0))


def test_a_select_that_is_stopped_between_its_chunks_has_prefilled() -> None:
    rig = chunked()
    rid = rig.select(1, LONG, [b"yes", b"no"])
    rig.step(2)
    rig.abort(rid)
    rig.drain()
    assert checked(rig, rid) == pytest.approx((0, 2 * (STEP + BETWEEN), 0))
