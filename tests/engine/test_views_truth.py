"""The views' numbers and reasons, on a real run, against the raw event log worked out by other code; and a log that lies.

A small pool makes the engine evict and retract; programs fork, select, share prefixes and use a grammar. The raw frames are
taken from the wire and decoded without the project's records. The page's own modules then say, under Node, what the
views would show of them, and ``log_truth`` says the same on its own.
"""

from __future__ import annotations

import copy
import json
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from log_truth import LogTruth
from process_rig import until, until_idle

import sgnb
from sgnb.backends.engine import Engine

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
    return make_mutations(log)


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


def word(event: dict[str, Any]) -> str:
    """``radix evict``, ``request admitted``, ``step``."""
    return " ".join(filter(None, [event["t"], event.get("kind", ""), event.get("state", "")]))


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


def test_views_say_what_the_log_says(log: Log, answer: dict[str, Any]):
    said, truth = answer["said"], LogTruth(log.snapshot)
    left = list(log.events)
    for time, shown in zip(log.moments(), said["moments"], strict=True):
        while left and left[0]["event"]["time"] <= time:
            truth.take(left[0]["seq"], left.pop(0)["event"])
        expected = plain(truth.moment(time))
        for part, value in expected.items():
            assert plain(shown[part]) == value, f"{part} at event {truth.seq}"
    for numbered in left:
        truth.take(numbered["seq"], numbered["event"])
    for part, value in plain(truth.moment(truth.time)).items():
        assert plain(said["last"][part]) == value, part
    lists = plain(truth.lists())
    assert plain(said["steps"]) == lists["steps"]
    for shown, known in zip(said["requests"], lists["requests"], strict=True):
        assert {
            key: (plain(shown[key]), known[key]) for key in known if plain(shown[key]) != known[key]
        } == {}
    assert plain(said["marks"]) == lists["marks"]
    assert plain(said["knobs"]) == lists["knobs"]
    assert plain([row[:4] for row in said["prompts"]]) == lists["prompts"]


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


EQUAL_AGAIN = 8
"""So many equal tokens behind a difference are told; fewer are chance, and no view speaks of them (causes.js)."""


def seen(event: dict[str, Any]) -> bool:
    """Of slots that a request hands over within the same event, the step that wrote them is never seen."""
    return event["t"] != "kv" or all(run[-1] for run in event["runs"])


def altered(value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value + 0.5
    return None


def alterations(event: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The event with one field changed, for each field; of lists, the last item's."""
    found = []

    def descend(path: list[Any], value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                if key != "t":
                    descend([*path, key], inner)
        elif isinstance(value, list):
            if value:
                first = 1 if value[0] == "SlotRun" else 0  # a run of slots is a record, told as an array
                if not first:
                    change(path, value[:-1])
                # The last: of slots that change hands twice in one event only the later is seen.
                for place in range(first or len(value) - 1, len(value)):
                    descend([*path, place], value[place])
        elif (other := altered(value)) is not None:
            change(path, value + EQUAL_AGAIN if path[-1] == "equal_again" else other)

    def change(path: list[Any], value: Any) -> None:
        made = copy.deepcopy(event)
        place: Any = made
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        found.append((".".join(map(str, path)), made))

    descend([], event)
    return found


def make_mutations(log: Log) -> list[dict[str, Any]]:
    """Drop some events of each kind, and alter each field of one of them."""
    rng, found = random.Random(3), []
    places: dict[str, list[int]] = {}
    matched: set[str] = set()
    for index, numbered in enumerate(log.events[:-1]):
        if numbered["event"].get("length") == 0:
            continue  # a lock of the root: it holds nothing, and nothing shows it
        kind = word(numbered["event"])
        if numbered["event"].get("match"):
            # A second turn is told elsewhere than a first one, each cause in other words.
            turn = "again" if numbered["event"]["rid"] in matched else "first"
            matched.add(numbered["event"]["rid"])
            kind = f"{kind}, {turn}, {numbered['event']['match']['cause']}"
        places.setdefault(kind, []).append(index)
    for kind, indices in sorted(places.items()):
        for index in rng.sample(indices, min(2, len(indices))):
            found.append({"what": f"drop {kind}", "index": index, "event": None})
        told = [i for i in indices if seen(log.events[i]["event"])]
        # The one that says most; of slots the least: in a long one, slots change hands twice and to whom they belonged.
        pick = min if kind == "kv" else max
        index = pick(rng.sample(told, min(4, len(told))), key=lambda i: len(str(log.events[i])))
        for field, event in alterations(log.events[index]["event"]):
            found.append({"what": f"{kind}: {field}", "index": index, "event": event})
    return found


def test_a_log_that_lacks_or_alters_one_event_is_noticed(
    mutations: list[dict[str, Any]], answer: dict[str, Any]
):
    noticed = dict(zip((m["what"] for m in mutations), answer["noticed"], strict=True))
    assert {noticed[what] for what in noticed if what.startswith("drop")} == {"gap"}
    unnoticed = sorted(what for what, word in noticed.items() if word not in ("gap", "changed"))
    assert not unnoticed, "\n".join(unnoticed)
    assert len(mutations) > 100
