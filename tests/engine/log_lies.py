"""Lies about a log of engine events: one dropped, or one that says something else in one field.

For the test that holds the views to their log: each lie must be seen. Every field of every kind of event has one, also those
that an event leaves out; what a field means nothing to is listed here.
"""

from __future__ import annotations

import copy
import random
from typing import Any

import msgspec

from sgnb.messages import (
    EngineStats,
    KnobEvent,
    KVDelta,
    Label,
    Match,
    RadixEvent,
    RequestEvent,
    StepEvent,
    StepNote,
    StepRow,
)


def word(event: dict[str, Any]) -> str:
    """``radix evict``, ``request admitted``, ``step``."""
    return " ".join(filter(None, [event["t"], event.get("kind", ""), event.get("state", "")]))


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


MEANT = {
    "child": ("radix split",),
    "policy": ("radix evict",),
    "for_rid": ("radix insert", "radix evict", "radix flush"),
    "cached_tokens": ("request admitted",),
    "duplicate_tokens": ("request first_token",),
    "joined_tokens": (),
    "reason": ("request compiling", "request retracted", "request finished"),
    "equal_again": ("diverged",),
    "gone_at": ("evicted",),
    "gone_for": ("evicted",),
    "gone_tokens": ("evicted",),
    "gone_policy": ("evicted",),
    "half_page": ("page",),
    "waited": ("waited",),
}
"""In which kinds of events, or of which causes, a field means something; in others it is never told. How many tokens were
copied at a join no view says of a request: its step has a note of it."""
LEGAL = {"failed": "memory", "no_overlap": "grammar", "equal_again": EQUAL_AGAIN}
"""A value that says something, of fields that hold one of a few words, or too few."""
RECORDS = {
    "stats": EngineStats,
    "request": RequestEvent,
    "step": StepEvent,
    "radix": RadixEvent,
    "kv": KVDelta,
    "knob": KnobEvent,
}
PARTS = {"label": Label, "match": Match, "rows": StepRow, "notes": StepNote}


def left_out(event: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The event with one more field, for each that it leaves out because it has its usual value."""
    found = []
    parts = [((), event, RECORDS[event["t"]], (word(event),))]
    for name, record in PARTS.items():
        if part := event.get(name):
            path, one = ((name, len(part) - 1), part[-1]) if isinstance(part, list) else ((name,), part)
            kinds = (
                (one["cause"], "waited" * bool(one.get("waited_for"))) if name == "match" else (word(event),)
            )
            parts.append((path, one, record, kinds))
    for path, part, record, kinds in parts:
        for field in msgspec.structs.fields(record):
            name = field.encode_name
            other = LEGAL.get(name, altered(field.default))
            if name in part or other is None or not set(MEANT.get(name, kinds)) & set(kinds):
                continue
            made = copy.deepcopy(event)
            place: Any = made
            for step in path:
                place = place[step]
            place[name] = other
            found.append((".".join(["left out", *map(str, path), name]), made))
    return found


def make_lies(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop some events of each kind, and alter each field of one of them."""
    rng, found = random.Random(3), []
    places: dict[str, list[int]] = {}
    matched: set[str] = set()
    for index, numbered in enumerate(events[:-1]):
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
        told = [i for i in indices if seen(events[i]["event"])]
        # The one that says most; of slots the least: in a long one, slots change hands twice and to whom they belonged.
        sample = rng.sample(told, min(4, len(told)))
        size = [(len(events[i]["event"]), len(str(events[i])), i) for i in (sample if kind == "kv" else told)]
        index = (min if kind == "kv" else max)(size)[2]
        said = events[index]["event"]
        for field, event in [*alterations(said), *left_out(said)]:
            found.append({"what": f"{kind}: {field}", "index": index, "event": event})
    return found
