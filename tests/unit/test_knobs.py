"""The table of knobs: complete, checked at the call, read from text, shown, live in the scheduler."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Literal, get_args, get_origin, get_type_hints

import pytest
from scheduler_rig import Rig

from sgnb import knob_words
from sgnb.backends.steering import Steering
from sgnb.completion import candidates
from sgnb.config import OBJECTIVES, EngineArgs, default_of
from sgnb.engine import model_store
from sgnb.engine.model_executor.model_runner import create_runner
from sgnb.errors import EngineStartError, LimitError
from sgnb.knobs import KNOBS, LIVE, MOST, find_knob
from sgnb.messages import KnobEvent

MANUAL = Path(__file__).parents[2] / "docs" / "engine.md"


def test_every_argument_has_one_row_and_a_legal_default():
    assert set(KNOBS) == set(EngineArgs.__struct_fields__)
    for name, knob in KNOBS.items():
        knob.check(default_of(name))
        assert knob.what and knob.name == name


def test_choices_are_those_of_the_types():
    for name, hint in get_type_hints(EngineArgs).items():
        if get_origin(hint) is Literal:
            assert KNOBS[name].choices == get_args(hint), name
        elif hint is bool:
            assert KNOBS[name].kind == "switch", name


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("chunked_prefill_size", 0, "at least 1, or -1 (no chunking) [tokens], not 0"),
        ("chunked_prefill_size", 1.5, "a whole number"),
        ("chunked_prefill_size", True, "a whole number"),
        ("chunked_prefill_size", "64", "a whole number"),
        ("schedule_conservativeness", math.nan, "in 0.01..10, not nan"),
        ("schedule_conservativeness", math.inf, "in 0.01..10"),
        ("schedule_policy", "shortest", "lpm, fcfs, random"),
        ("schedule_policy", None, "lpm, fcfs, random"),
        ("enable_mixed_chunk", 1, "true or false"),
        ("radix_cache_size", -1, "at least 0, or None"),
        ("page_size", 3, "1, 2, 4, 16"),
        ("max_running_requests", 0, "at least 1"),
        ("prefill_decode_interval", -5, "at least 1"),
        ("objective", "fast", "balanced, throughput, latency"),
        ("context_length", 0, "at least 1, or None"),
        ("random_seed", "x", "a whole number"),
        ("random_seed", 1 << 63, "at most 9,223,372,036,854,775,807, not 9223372036854775808"),
        ("decode_quantum", 1 << 70, "at least 0 [tokens], at most 2,147,483,647, not 1180591620717411303424"),
        ("max_total_tokens", 1 << 31, "at most 2,147,483,647, not 2147483648"),
        ("max_queued_requests", 10**30, "at most 2,147,483,647"),
    ],
)
def test_F29_refusals_name_the_legal_range(name, value, words):
    with pytest.raises(LimitError) as caught:
        EngineArgs.make(**{name: value})
    assert name in caught.value.message and words in caught.value.message


def test_F29_a_pool_smaller_than_a_page_is_refused():
    with pytest.raises(LimitError, match=r"max_total_tokens must be at least one page.* 16 slots, not 10"):
        EngineArgs.make(page_size=16, max_total_tokens=10)
    EngineArgs.make(page_size=16, max_total_tokens=16)


def test_F29_tables_that_no_machine_holds_are_refused_with_the_arguments_that_make_them():
    args = EngineArgs.make(runner="stub", context_length=MOST, max_running_requests=1 << 20)
    with pytest.raises(EngineStartError) as caught:
        create_runner(args, model_store.ModelPath(name="stub", path=Path(), kind="gguf"), lambda *a: None)
    assert "not enough memory" in caught.value.message
    assert "context_length" in caught.value.hint and "max_running_requests" in caught.value.hint


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["schedule_policy", "fcfs"], {"schedule_policy": "fcfs"}),
        (["enable_mixed_chunk", "on"], {"enable_mixed_chunk": True}),
        (["enable_mixed_chunk=0", "decode_quantum=8"], {"enable_mixed_chunk": False, "decode_quantum": 8}),
        (["radix_cache_size", "none"], {"radix_cache_size": None}),
        (["schedule_conservativeness", "0.5"], {"schedule_conservativeness": 0.5}),
        (["objective", "latency"], {"objective": "latency"}),
    ],
)
def test_lines_are_read_with_their_types(given, expected):
    assert knob_words.parse_set(given) == expected


@pytest.mark.parametrize(
    "given", [[], ["schedule_policy"], ["a", "b", "c"], ["page_size", "2"], ["nonsense", "1"], ["=", "1"],
              ["decode_quantum", "soon"], ["decode_quantum", "-1"], ["enable_mixed_chunk", "maybe"]]
)  # fmt: skip
def test_lines_that_cannot_be_meant_are_refused(given):
    with pytest.raises(LimitError):
        knob_words.parse_set(given)


def test_shown_values_can_be_typed_again():
    for name in LIVE:
        assert find_knob(name).parse(knob_words.show_value(default_of(name))) == default_of(name)


def test_balanced_is_the_default_and_objectives_name_the_same_knobs():
    for knobs in OBJECTIVES.values():
        assert set(knobs) == set(OBJECTIVES["balanced"]) <= set(LIVE)
    assert OBJECTIVES["balanced"] == {name: default_of(name) for name in OBJECTIVES["balanced"]}
    assert set(OBJECTIVES) == set(KNOBS["objective"].choices)


def test_an_objective_gives_way_to_what_is_given_beside_it():
    args = EngineArgs.make(objective="throughput", chunked_prefill_size=64)
    assert args.chunked_prefill_size == 64 and args.enable_mixed_chunk
    assert EngineArgs.make() == EngineArgs.make(objective="balanced")


def test_the_manual_has_the_table_as_it_is():
    manual = MANUAL.read_text()
    assert knob_words.table() in manual
    assert knob_words.objectives_table() in manual


def test_completion_offers_knobs_and_their_values():
    values = {("set", name): knob_words.value_words(KNOBS[name]) for name in LIVE}

    def offered(line: str) -> list[str]:
        return list(candidates(line, 0, line, len(line), {"set": LIVE}, [], values).names)

    assert "schedule_policy" in offered("%sgl set ") and "page_size" not in offered("%sgl set ")
    assert offered("%sgl set schedule_policy ") == list(KNOBS["schedule_policy"].choices)
    assert offered("%sgl set enable_mixed_chunk o") == ["on", "off"]


def test_lines_mark_what_is_not_the_objectives():
    values = {name: default_of(name) for name in LIVE} | {"chunked_prefill_size": 64}
    lines = knob_words.knob_lines(values)
    assert [line.split()[1] for line in lines if line.startswith("*")] == ["chunked_prefill_size"]
    assert len(lines) == len(LIVE) == len(knob_words.knob_rows(values))


# ------------------------------------------------------------ live


def test_an_objective_is_set_live_and_a_change_is_an_event():
    rig = Rig()
    rig.run(1, b"hello", max_new_tokens=1)
    data = rig.ask("set", objective="latency", decode_quantum=3).data
    assert data["objective"] == "latency" and data["decode_quantum"] == 3
    assert data["chunked_prefill_size"] == OBJECTIVES["latency"]["chunked_prefill_size"]
    assert rig.ask("knobs").data == data
    (event,) = [event for event in rig.detail if isinstance(event, KnobEvent)]
    assert event.step == rig.scheduler.meter.forward_steps + 1 and event.objective == "latency"
    assert event.knobs["decode_quantum"] == 3 and "schedule_policy" not in event.knobs
    rig.ask("set", decode_quantum=3)
    assert sum(isinstance(event, KnobEvent) for event in rig.detail) == 1, "nothing changed: no event"


def test_fewer_running_requests_drain_down_and_more_come_back():
    rig = Rig(max_running_requests=4)
    rids = [rig.decode(n, bytes([65 + n]) * 9, max_new_tokens=20, ignore_eos=True) for n in range(6)]
    rig.step(3)
    assert len(rig.scheduler.running_batch) == 4
    rig.ask("set", max_running_requests=1)
    rig.drain()
    assert all(len(rig.told[rid].ids) == 20 for rid in rids)
    starts = [rig.told[rid].meta.queue_time for rid in rids]
    assert all(start >= 0 for start in starts)
    assert max(len(batch.sample) for batch in rig.runner.log[-20:]) == 1
    error = rig.ask("set", max_running_requests=5).error
    assert "1..4" in error.message
    rig.ask("set", max_running_requests=4)
    for n in range(10, 14):
        rig.decode(n, bytes([65 + n]) * 9, max_new_tokens=4, ignore_eos=True)
    rig.drain()
    assert max(len(batch.sample) for batch in rig.runner.log[-4:]) == 4


def test_radix_cache_size_caps_what_nobody_uses():
    rig = Rig(radix_cache_size=30)
    for n in range(4):
        rig.run(n, bytes([65 + n]) * 20, max_new_tokens=1)
    assert 0 < rig.scheduler.cache.evictable_size <= 30
    assert rig.run(8, b"D" * 20, max_new_tokens=1).meta.cached_tokens == 19
    rig.ask("set", radix_cache_size=0)
    assert rig.scheduler.cache.evictable_size == 0
    assert rig.run(9, b"D" * 20, max_new_tokens=1).meta.cached_tokens == 0
    rig.ask("set", radix_cache_size=None)
    rig.run(10, b"D" * 20, max_new_tokens=1)
    assert rig.run(11, b"D" * 20, max_new_tokens=1).meta.cached_tokens == 19


def test_no_cache_kept_still_shares_among_those_that_run():
    rig = Rig(radix_cache_size=0)
    first = rig.decode(1, b"s" * 64 + b"a", max_new_tokens=30, ignore_eos=True)
    rig.step(3)
    second = rig.decode(2, b"s" * 64 + b"b", max_new_tokens=2)
    rig.drain()
    assert rig.told[first].meta.cached_tokens == 0 and rig.told[second].meta.cached_tokens >= 64
    assert rig.scheduler.cache.evictable_size == 0


def test_a_knob_that_is_not_there_is_told_with_the_nearest():
    for name, near in (("policy", "schedule_policy"), ("chunk_prefill_size", "chunked_prefill_size")):
        with pytest.raises(LimitError, match=f"no knob '{name}'. Did you mean '{near}'"):
            find_knob(name, live=True)
    with pytest.raises(LimitError, match="no knob 'zzz'\nKnobs: model"):
        find_knob("zzz")


def test_an_engine_takes_a_knob_as_the_magic_has_it():
    sent = []
    client = SimpleNamespace(control=lambda verb, knobs: sent.append(knobs) or knobs)
    engine = SimpleNamespace(client=client)
    Steering.set(engine, "schedule_policy", "fcfs", decode_quantum=8)  # type: ignore[arg-type]
    assert sent == [{"schedule_policy": "fcfs", "decode_quantum": 8}]
    for wrong in (("schedule_policy",), ("a", 1, 2), (3, 4)):
        with pytest.raises(LimitError, match="takes knobs by name"):
            Steering.set(engine, *wrong)  # type: ignore[arg-type]
    with pytest.raises(LimitError, match="schedule_policy"):
        Steering.set(engine, "schedule_polcy", "fcfs")  # type: ignore[arg-type]
    assert len(sent) == 1


def test_figures_have_sglangs_names():
    rig = Rig()
    rig.run(1, b"hello", max_new_tokens=2)
    rig.fork(1, 20, 21, 22)
    figures = rig.ask("stats").data
    for name in (
        *("num_running_reqs", "num_queue_reqs", "num_grammar_queue_reqs", "num_retracted_reqs"),
        *("num_paused_reqs", "token_usage", "cache_hit_rate", "gen_throughput", "new_token_ratio"),
        *("kv_used_tokens", "kv_available_tokens", "kv_evictable_tokens", "max_total_num_tokens"),
        *("cached_tokens_total", "evicted_tokens_total"),
    ):
        assert name in figures, name
    assert figures["paused"] is False
    assert figures["fork_rate"] == pytest.approx(3 / 60)
    assert figures["kv_used_tokens"] + figures["kv_available_tokens"] + figures["kv_evictable_tokens"] == 4096
    rig.ask("pause")
    rig.decode(2, b"hello", max_new_tokens=2)
    figures = rig.ask("stats").data
    assert figures["num_paused_reqs"] == 1 and figures["paused"] is True
    rig.ask("resume")
    rig.drain()
