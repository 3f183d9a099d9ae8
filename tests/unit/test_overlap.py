"""Overlap: planning ahead changes when things are known, never what comes out.

The same script of arrivals, aborts, forks, selects and retractions runs under each driver, with overlap on and off; what was
not aborted must be told in the same words.
"""

from __future__ import annotations

import random

import pytest
from scheduler_rig import Rig, Told, alone
from test_drivers import ARGS, process_driver

from sgnb.messages import FROM_PREVIOUS, StepEvent

SETTINGS = [("inline", False), ("inline", True), ("thread", False), ("thread", True)]
POOLS = [48, 120, 4096]


class Script:
    """A random load that depends on its seed alone, not on what the engine does with it."""

    def __init__(self, rig: Rig, seed: int) -> None:
        self.rig = rig
        self.rng = random.Random(seed)
        self.aborted: set[str] = set()
        self.n = 0

    def run(self, rounds: int) -> dict[str, Told]:
        for _ in range(rounds):
            self.act()
            self.rig.step(self.rng.randint(0, 4))
            if self.rng.random() < 0.1:
                self.retract_some()
        self.rig.drain()
        return {rid: told for rid, told in self.rig.told.items() if rid not in self.aborted}

    def act(self) -> None:
        rng, rig = self.rng, self.rig
        self.n += 1
        ids = rng.choice([b"", b"aaaa", b"aaaabbbbcccc"]) + bytes(
            rng.choice(b"xyz") for _ in range(rng.randint(1, 9))
        )
        kind = rng.choice(["decode", "decode", "decode", "select", "fork", "abort"])
        params = {
            "max_new_tokens": rng.choice([0, 1, 2, 7, 15]),
            "ignore_eos": rng.random() < 0.3,
            "stop": tuple(rng.sample(["e", "at", " t", "on"], rng.choice([0, 0, 2]))),
            "temperature": rng.choice([0.0, 0.9]),
            "seed": rng.randint(0, 99),
            "frequency_penalty": rng.choice([0.0, 0.0, 0.5]),
        }
        params["min_new_tokens"] = rng.choice([0, params["max_new_tokens"] // 2])
        if kind == "select":
            rig.select(self.n, ids, [b"one", b"two", b"on", b"other"][: rng.randint(1, 4)])
        elif kind == "fork":
            rig.open(self.n)
            rig.extend(self.n, ids)
            rig.fork(self.n, self.n + 1, self.n + 2)
            for child in (self.n + 1, self.n + 2):
                rig.decode(child, b"%d" % (child % 2), fresh=False, **params)
            self.n += 2
        else:
            rid = rig.decode(self.n, ids, **params)
            if kind == "abort":
                self.aborted.add(rid)
                rig.step(rng.randint(0, 6))
                rig.abort(rid)

    def retract_some(self) -> None:
        scheduler = self.rig.scheduler
        holders = [*scheduler.running_batch, *([scheduler.chunked_req] if scheduler.chunked_req else [])]
        for req in holders[:: self.rng.choice([1, 2])]:
            scheduler.retract(req)


def said(told: dict[str, Told]) -> dict[str, object]:
    return {
        rid: (one.ids, one.visible[-1], one.finish, one.leftover, one.choice, one.output_ids)
        for rid, one in told.items()
    }


def run(seed: int, pool: int, driver: str = "inline", overlap: bool = False, **more) -> tuple[Rig, dict]:
    rng = random.Random(seed)
    rig = Rig(
        max_total_tokens=pool,
        context_length=64,
        chunked_prefill_size=rng.choice([-1, 3, 8]),
        enable_mixed_chunk=rng.random() < 0.5,
        decode_quantum=rng.choice([0, 0, 2]),
        page_size=rng.choice([1, 1, 2, 4, 16]),
        runner_driver=driver,
        enable_overlap=overlap,
        **more,
    )
    told = said(Script(rig, seed).run(30))
    rig.scheduler.driver.close()
    return rig, told


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("seed", range(5))
def test_every_driver_says_the_same_with_overlap_and_without(seed, pool):
    expected = run(seed, pool)[1]
    for driver, overlap in SETTINGS[1:]:
        assert run(seed, pool, driver, overlap)[1] == expected, (driver, overlap)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 160))
def test_every_driver_says_the_same_with_overlap_and_without_long(seed):
    test_every_driver_says_the_same_with_overlap_and_without(seed, random.Random(seed).choice(POOLS))


def test_a_runner_in_its_own_process_says_the_same():
    driver = process_driver()
    try:
        for seed in range(3):
            expected = said(Script(Rig(context_length=1024, chunked_prefill_size=8), seed).run(25))
            for overlap in (False, True):
                rig = Rig(driver=driver, chunked_prefill_size=8, enable_overlap=overlap)
                assert said(Script(rig, seed).run(25)) == expected
    finally:
        driver.close()
    assert driver.max_total_tokens == ARGS.max_total_tokens


def steps(rig: Rig) -> list[StepEvent]:
    return [event for event in rig.detail if isinstance(event, StepEvent)]


def test_a_step_is_planned_while_the_one_before_runs_and_says_so():
    rig = Rig(enable_overlap=True)
    told = rig.run(1, b"hello", max_new_tokens=5, ignore_eos=True)
    assert told.ids == alone(b"hello", max_new_tokens=5, ignore_eos=True).ids
    assert [(s.step, s.schedule_under) for s in steps(rig)] == [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4)]
    assert [batch.input_ids for batch in rig.runner.log[1:]] == [[i] for i in told.ids[:-1]]
    assert sum(s.wasted_rows for s in steps(rig)) == 0, "an end by length is known ahead"
    plain = Rig()
    plain.run(1, b"hello", max_new_tokens=5, ignore_eos=True)
    assert {s.schedule_under for s in steps(plain)} == {0}


def test_the_record_promises_what_is_not_known_yet():
    rig = Rig(enable_overlap=True)
    seen = []
    launch = rig.scheduler.driver.launch
    rig.scheduler.driver.launch = lambda batch: (seen.append(batch.input_ids), launch(batch))
    rig.run(1, b"hi", max_new_tokens=4, ignore_eos=True)
    assert seen == [list(b"hi"), [FROM_PREVIOUS], [FROM_PREVIOUS], [FROM_PREVIOUS]]


def test_an_end_by_stop_costs_one_row_and_leaves_nothing_behind():
    text = alone(b"abc", max_new_tokens=12, ignore_eos=True)
    stop = bytes(text.ids[3:5]).decode()
    rig = Rig(enable_overlap=True)
    told = rig.run(1, b"abc", max_new_tokens=12, ignore_eos=True, stop=(stop,))
    expected = alone(b"abc", max_new_tokens=12, ignore_eos=True, stop=(stop,))
    assert (told.ids, told.visible[-1], told.finish) == (expected.ids, expected.visible[-1], expected.finish)
    assert sum(s.wasted_rows for s in steps(rig)) == 1
    cached = rig.scheduler.cache.match_prefix(rig.scheduler.sessions["c1.s1"].prompt_with([])).slots
    assert len(cached) <= 3 + len(told.ids), "the wasted token is in no prefix"


def test_minimum_lengths_and_limits_count_what_is_being_drawn():
    for params in (
        {"max_new_tokens": 30, "min_new_tokens": 25},
        {"max_new_tokens": 1, "ignore_eos": True},
        {"max_new_tokens": 500, "ignore_eos": True, "context_length": 24},
    ):
        context = params.pop("context_length", 1024)
        for prompt in (b"q", b"hello there", b"zzzz"):
            told = Rig(enable_overlap=True, context_length=context).run(1, prompt, **params)
            expected = alone(prompt, context_length=context, **params)
            assert (told.ids, told.finish) == (expected.ids, expected.finish)


@pytest.mark.parametrize("overlap", [False, True])
def test_ids_that_would_end_it_are_banned_for_exactly_the_minimum(overlap):
    rig = Rig(enable_overlap=overlap)
    rig.run(1, b"hello", max_new_tokens=6, min_new_tokens=3)
    assert [bool(batch.banned[0]) for batch in rig.runner.log[:6]] == [True] * 3 + [False] * 3
    assert [batch.positions_drawn[0] for batch in rig.runner.log] == list(range(6))


def test_rows_that_depend_on_each_token_are_not_planned_ahead():
    rig = Rig(enable_overlap=True)
    plain = rig.decode(1, b"one", max_new_tokens=8, ignore_eos=True)
    rig.decode(2, b"two", max_new_tokens=4, ignore_eos=True, frequency_penalty=0.5)
    rig.drain()
    under = [s.schedule_under for s in steps(rig) if len(s.rows) == 2]
    assert set(under[1:]) == {0}, "with the penalised one every step waits for the last"
    assert any(s.schedule_under for s in steps(rig) if [row.rid for row in s.rows] == [plain])
    drawn = [batch.drawn_ids for batch in rig.runner.log if batch.drawn_ids]
    assert [len(rows[1]) for rows in drawn] == [0, 1, 2, 3]
    assert {s.no_overlap for s in steps(rig) if len(s.rows) == 2 and s.step > 2} == {"penalty"}
    assert {s.no_overlap for s in steps(rig) if s.schedule_under} == {""}


def why(rig: Rig) -> set[str]:
    return {s.no_overlap for s in steps(rig)} - {""}


def test_a_step_that_was_not_planned_ahead_says_why():
    rig = Rig(enable_overlap=True)
    rig.select(1, b"which?", [b"one", b"two"])
    rig.drain()
    rig.run(2, b"which?", max_new_tokens=3, ignore_eos=True)
    assert why(rig) == {"nothing"}, "alone, a prompt and its options follow each other"
    rig = Rig(enable_overlap=True)
    rig.decode(1, b"beside", max_new_tokens=12, ignore_eos=True)
    rig.select(2, b"which?", [b"one", b"two"])
    rig.drain()
    assert why(rig) == {"scores"}
    rig = Rig(enable_overlap=True, max_total_tokens=24, schedule_conservativeness=0.01)
    for n in range(2):
        rig.decode(n, b"%d" % n, max_new_tokens=15, ignore_eos=True)
    rig.drain()
    assert "slots" in why(rig)
    plain = Rig()
    plain.select(1, b"which?", [b"one", b"two"])
    plain.run(2, b"hello", max_new_tokens=3, frequency_penalty=0.5)
    assert why(plain) == set(), "nothing is planned ahead where steps do not overlap"


def test_options_are_scored_once():
    rows = []
    for overlap in (False, True):
        rig = Rig(enable_overlap=overlap)
        rig.decode(1, b"beside", max_new_tokens=9, ignore_eos=True)
        rig.select(2, b"which?", [b"one", b"two", b"on", b"other"])
        rig.drain()
        rows.append(sum(row.kind == "score" for step in steps(rig) for row in step.rows))
    assert rows == [4, 4]


def test_a_follower_waits_for_its_leader_in_flight():
    stem = bytes(range(33, 97))
    rig = Rig(enable_overlap=True, prefill_decode_interval=9)
    rig.decode(1, stem + b"1", max_new_tokens=4, ignore_eos=True)
    rig.step()
    follower = rig.decode(2, stem + b"2", max_new_tokens=4, ignore_eos=True)
    rig.drain()
    assert rig.told[follower].meta.cached_tokens == 64


def test_pause_takes_all_results_and_a_step_is_one_batch():
    rig = Rig(enable_overlap=True)
    rig.decode(1, b"hello", max_new_tokens=20, ignore_eos=True)
    rig.step(3)
    assert len(rig.scheduler.flights) == 1
    rig.ask("pause")
    assert not rig.scheduler.flights and rig.scheduler.idle
    before = rig.scheduler.meter.forward_steps
    rig.ask("step", count=2)
    rig.step(3)
    assert rig.scheduler.meter.forward_steps == before + 2 and not rig.scheduler.flights
    rig.ask("resume")
    rig.drain()


def test_overlap_is_switched_while_streams_run():
    rig = Rig()
    rid = rig.decode(1, b"hello", max_new_tokens=30, ignore_eos=True)
    for i in range(6):
        rig.ask("set", enable_overlap=i % 2 == 0)
        rig.step(2)
    rig.drain()
    assert rig.told[rid].ids == alone(b"hello", max_new_tokens=30, ignore_eos=True).ids
    assert {bool(s.schedule_under) for s in steps(rig)} == {True, False}


def test_an_abort_and_a_bad_row_in_flight_touch_nobody_else():
    rig = Rig(enable_overlap=True)
    rids = [rig.decode(n, b"abc%d" % n, max_new_tokens=12, ignore_eos=True) for n in range(4)]
    rig.runner.nan_rows = lambda batch, row: batch.step == 4 and row == 1
    rig.step(6)
    rig.abort(rids[2])
    rig.drain()
    ends = [rig.told[rid].finish.type for rid in rids]
    assert ends == ["length", "error", "abort", "length"]
    for n in (0, 3):
        assert rig.told[rids[n]].ids == alone(b"abc%d" % n, max_new_tokens=12, ignore_eos=True).ids


def test_nothing_settles_in_the_middle_of_a_wait():
    from sgnb.errors import LimitError

    rig = Rig(enable_overlap=True)
    rig.decode(1, b"hello", max_new_tokens=3, ignore_eos=True)
    rig.scheduler._landing = True
    with pytest.raises(LimitError, match="being computed"):
        rig.scheduler.settle()
    rig.scheduler._landing = False
    rig.drain()
