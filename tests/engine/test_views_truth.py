"""The views' numbers and reasons, on a real run, against the raw event log worked out by other code; and a log that lies.

A small pool makes the engine evict and retract; programs fork, select, share prefixes and use a grammar. The raw frames are
taken from the wire and decoded without the project's records. The page's own modules then say, under Node, what the
views would show of them, and ``log_truth`` says the same on its own.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from log_lies import PARTS, RECORDS, make_lies, word
from log_truth import LogTruth
from log_words import LogWords
from process_rig import until, until_idle

import sgnb
from sgnb.backends.engine import Engine
from sgnb.messages import EngineStats
from sgnb.panel_state import stats_of

DUMP = Path(__file__).parents[1] / "js" / "dump_views.mjs"
MOMENTS = 12


@sgnb.function
def branches(s: Any, topic: str) -> None:
    """A common prefix, three ways, a choice."""
    s += f"{topic} " * 12
    forks = s.fork(3)
    for number, fork in enumerate(forks):
        fork += f"way {number} " + sgnb.gen("way", max_tokens=30, ignore_eos=True, temperature=0)
    forks.join()
    s += " so " + sgnb.select("end", ["left", "right"])


@sgnb.function
def label(s: Any, number: int) -> None:
    """Equal beginnings, another end, a grammar."""
    s += "Classify the title as bug, feature or question. Title: " + f"{number} " * (1 + number % 3)
    s += sgnb.gen("label", max_tokens=8, regex="(bug|feature|question)", temperature=0)


def load(engine: Engine) -> None:
    """Programs that evict, wait, fork, are retracted and aborted."""
    label.run_batch([{"number": n} for n in range(6)], backend=engine)
    for topic in ("cache", "other words", "cache", "third thing entirely"):
        branches.run(topic=topic, backend=engine)
    greedy = {"max_new_tokens": 110, "ignore_eos": True, "temperature": 0}
    prompts = [f"{'abcdefgh'[n]} tells a long story of {n} things" for n in range(8)]
    engine.generate(prompts, sampling_params=greedy)
    # The same beginning, then another time, then equal again: a cache cannot reuse what comes after.
    for clock in ("10:40", "11:52"):
        engine.generate(
            f"It is {clock} now. {'Be brief and concrete. ' * 4}", sampling_params={"max_new_tokens": 3}
        )
    engine.set(schedule_policy="fcfs", chunked_prefill_size=32)
    engine.generate(prompts[:2], sampling_params={"max_new_tokens": 4, "ignore_eos": True})
    engine.set(enable_mixed_chunk=True)
    engine.flush_cache()
    branches.run(topic="cache", backend=engine)
    beat_while_it_runs(engine, prompts[0])


def beat_while_it_runs(engine: Engine, prompt: str) -> None:
    """A pause tells the figures at once: here while some slots are locked and others are in flight."""
    engine.pause()
    long = {"max_new_tokens": 20, "ignore_eos": True}
    asked = threading.Thread(target=engine.generate, args=(prompt,), kwargs={"sampling_params": long})
    asked.start()
    until(lambda: engine.stats()["num_queue_reqs"])
    engine.step(4)
    until(lambda: engine.stats()["num_used_tokens"] > len(prompt) + 1)
    engine.pause()
    engine.resume()
    asked.join()


class Log:
    """Snapshot, and all events behind it as plain data, from the raw frames."""

    def __init__(self, engine: Engine) -> None:
        frames: list[bytes] = []
        stop = engine.subscribe_frames(lambda frame, raw: frames.append(raw))
        until(lambda: frames)
        self.snapshot = engine.ask("picture")
        load(engine)
        until_idle(engine)
        self.after = engine.ask("picture")
        numbers = lambda: [n["seq"] for raw in frames for n in msgspec.msgpack.decode(raw)["events"]]  # noqa: E731
        until(lambda: max(numbers(), default=0) >= self.after["seq"])
        stop()
        first, last = self.snapshot["seq"], self.after["seq"]
        decoded = [n for raw in frames for n in msgspec.msgpack.decode(raw)["events"]]
        self.events = [n for n in decoded if first < n["seq"] <= last]
        assert [n["seq"] for n in self.events] == list(range(first + 1, last + 1))

    def moments(self) -> list[float]:
        """Times between two events that differ, spread over the log, so that a moment is one state."""
        times = [n["event"]["time"] for n in self.events]
        gaps = [i for i in range(len(times) - 1) if times[i + 1] - max(times[: i + 1]) > 2e-6]
        chosen = random.Random(7).sample(gaps, MOMENTS)
        return sorted(max(times[: i + 1]) + 1e-6 for i in chosen)


def ask_views(log: Log, folder: Path, mutations: list[dict[str, Any]]) -> dict[str, Any]:
    """What the page's modules say of the log, and of each mutation."""
    node = shutil.which("node")
    assert node, "Node 20 or newer is needed, as for make setup"
    path = folder / "log.json"
    shape = {"snapshot": log.snapshot, "events": log.events, "moments": log.moments(), "mutations": mutations}
    path.write_text(json.dumps(shape))
    done = subprocess.run([node, str(DUMP), str(path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    small = {"max_total_tokens": 640, "context_length": 512, "chunked_prefill_size": 48}
    with sgnb.launch(runner="stub", name="truth", schedule_conservativeness=0.1, **small) as engine:
        return Log(engine)


@pytest.fixture(scope="module")
def mutations(log: Log) -> list[dict[str, Any]]:
    return make_lies(log.events)


@pytest.fixture(scope="module")
def answer(
    log: Log, mutations: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    return ask_views(log, tmp_path_factory.mktemp("truth"), mutations)


def plain(value: Any) -> Any:
    """As JSON would have it: numbers alike, tuples as lists."""
    return json.loads(json.dumps(value), parse_int=float)


def kinds(log: Log) -> set[str]:
    return {word(n["event"]) for n in log.events}


def test_the_run_has_what_the_views_must_tell(log: Log):
    assert kinds(log) >= {
        "stats",
        "step",
        "kv",
        "knob",
        *(f"radix {kind}" for kind in ("insert", "split", "evict", "flush", "lock", "unlock")),
        *(f"request {state}" for state in ("queued", "admitted", "first_token", "retracted", "finished")),
    }
    causes = {n["event"]["match"]["cause"] for n in log.events if n["event"].get("match")}
    assert {"evicted", "diverged", "short"} <= causes, causes
    modes = {n["event"]["mode"] for n in log.events if n["event"]["t"] == "step"}
    assert {"extend", "decode", "score"} <= modes


def alike(shown: Any, known: Any, where: str) -> None:
    """Every part that the page tells is known, and says the same."""
    shown, known = plain(shown), plain(known)
    assert set(shown) == set(known), f"{where}: {set(shown) ^ set(known)}"
    for part, value in known.items():
        assert shown[part] == value, f"{where}: {part}"


def test_views_say_what_the_log_says(log: Log, answer: dict[str, Any]):
    said, truth = answer["said"], LogTruth(log.snapshot)
    left = list(log.events)
    for time, shown in zip(log.moments(), said["moments"], strict=True):
        while left and (left[0]["event"]["time"] <= time or truth.half_told):
            truth.take(left[0]["seq"], left.pop(0)["event"])
        alike(shown, truth.moment(time), f"at event {truth.seq}")
    for numbered in left:
        truth.take(numbered["seq"], numbered["event"])
    alike(said["last"], truth.moment(truth.time), "at the end")
    words, lists = LogWords(truth), truth.lists()
    for about, known in zip(lists["requests"], truth.requests.values(), strict=True):
        about["again"] = words.again(known)
    names = ("steps", "knobs", "marks", "figures", "requests")
    alike({name: said[name] for name in names}, {name: lists[name] for name in names}, "lists")
    assert plain(said["prompts"]) == plain(words.prompts())
    timeline = {name: getattr(words, name)() for name in ("steps", "lanes", "whole", "bins")}
    alike(said["timeline"], timeline, "timeline")
    assert said["changes"] == [words.changes(time) for time in log.moments()]
    told = {"moments", "last", "prompts", "timeline", "changes", *names}
    assert set(said) == told, "all that is dumped is compared"


def test_the_log_ends_where_the_engine_is(log: Log):
    """The engine's own picture after the run: the events alone lead there."""
    truth = LogTruth(log.snapshot)
    for numbered in log.events:
        truth.take(numbered["seq"], numbered["event"])
    fields = ("parent", "start", "length", "locks", "hits", "pins")
    nodes = {number: [node[field] for field in fields] for number, node in truth.nodes.items()}
    assert nodes == {row[0]: row[1:7] for row in log.after["nodes"]}
    owners = [""] * log.after["slots"]
    for owner, start, count, _kind in log.after["runs"]:
        owners[start : start + count] = [owner] * count
    assert [owner for owner, *_ in truth.slots] == owners
    stats = truth.stats
    assert stats["num_free_tokens"] == owners.count("")
    assert stats["num_cached_tokens"] == sum(n["length"] for n in truth.nodes.values() if not n["locks"])
    assert not truth.live and not truth.holds
    drawn = sum(step.get("drawn", 0) for step in truth.steps)
    assert stats["generated_tokens_total"] - log.snapshot["stats"]["generated_tokens_total"] == drawn
    retracted = sum(mark[1] == "retract" for mark in truth.marks)
    assert stats["num_retracted_reqs"] - log.snapshot["stats"]["num_retracted_reqs"] == retracted > 0
    evicted = sum(mark[3] for mark in truth.marks if mark[1] in ("evict", "flush"))
    assert stats["evicted_tokens_total"] - log.snapshot["stats"]["evicted_tokens_total"] == evicted > 0


def test_a_log_that_lacks_or_alters_one_event_is_noticed(
    mutations: list[dict[str, Any]], answer: dict[str, Any]
):
    noticed = dict(zip((m["what"] for m in mutations), answer["noticed"], strict=True))
    assert {noticed[what] for what in noticed if what.startswith("drop")} == {"gap"}
    unnoticed = sorted(what for what, word in noticed.items() if word not in ("gap", "changed"))
    assert not unnoticed, "\n".join(unnoticed)
    assert len(mutations) > 100


def test_every_field_of_every_kind_of_event_is_lied_about(mutations: list[dict[str, Any]]):
    told: dict[str, set[str]] = {}
    for lie in mutations:
        event = lie["event"]
        if event is None:
            continue
        told.setdefault(event["t"], set()).update(event)
        for name in PARTS:
            if part := event.get(name):
                told.setdefault(name, set()).update(part[-1] if isinstance(part, list) else part)
    for name, record in {**RECORDS, **PARTS}.items():
        fields = {field.encode_name for field in msgspec.structs.fields(record)}
        assert fields - told[name] <= {"joined_tokens", "half_page"}, name


def test_the_panels_numbers_are_those_of_the_log(log: Log):
    """At each beat of the engine: slots and requests as the events left them, what was reused in the last minute."""
    truth, checked, both = LogTruth(log.snapshot), 0, 0
    asked: list[tuple[float, int, int]] = []
    for numbered in log.events:
        event = numbered["event"]
        truth.take(numbered["seq"], event)
        if (
            event["t"] == "request"
            and event["state"] == "admitted"
            and len(truth.requests[event["rid"]]["turns"]) == 1
        ):
            asked.append((event["time"], event["prompt_tokens"], event.get("cached_tokens", 0)))
        if event["t"] != "stats":
            continue
        shown = stats_of(msgspec.convert(event, EngineStats))
        waiting = {
            rid
            for rid, state in truth.live.items()
            if state in ("queued", "compiled", "compiling", "retracted")
        }
        recent = [(prompt, cached) for time, prompt, cached in asked if time >= event["time"] - 60]
        prompts, cached = (sum(column) for column in zip(*recent, strict=True)) if recent else (0, 0)
        assert shown["running"] == len(truth.live) - len(waiting)
        assert shown["waiting"] == len(waiting)
        assert shown["reused"] == pytest.approx(cached / prompts if prompts else 0.0)
        assert shown["kv_total"] == len(truth.slots)
        locked = sum(node["length"] for node in truth.nodes.values() if node["locks"])
        assert event["num_locked_tokens"] == locked <= event["num_used_tokens"] == shown["kv_locked"]
        both += 0 < locked < event["num_used_tokens"]
        checked += 1
    assert checked > 5 and asked and both
    used = sum(owner != "" for owner, *_ in truth.slots)
    assert (shown["kv_used"], shown["kv_locked"], shown["tokens_per_s"] >= 0) == (used, 0, True)
