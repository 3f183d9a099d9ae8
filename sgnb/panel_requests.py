"""The requests that an engine works on, for the side panel's list: a fold over its live events.

Notebook process. ``panel`` makes one per engine it watches; ``take`` is called on the I/O thread, ``rows`` and ``full`` on
the publisher's. A late panel begins with ``seed`` (the engine's answer to ``requests``). Lengths and names only, never text;
no comm, no words beyond the list's own.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sgnb.messages import EngineStats, Label, RequestEvent, StepEvent, TelemetryEvent
from sgnb.widgets import words

LISTED = 6
"""Requests that a state names; of the others it gives the number."""
FULL_SHARE = 0.95
"""From this share of all slots on, held by running requests while others wait, KV is said to be full."""
SHORT_SECONDS = 2.0
"""So long after a request was not admitted for want of slots, KV is said to be full."""
_WAITING = frozenset({"queued", "compiling", "compiled", "retracted"})
_STATES = {"compiling": "compiling", "waiting": "queued", "running": "first_token", "scoring": "scoring"}
"""The words of that answer, as those of events."""


@dataclass(slots=True)
class LiveRequest:
    """One of them. ``since``: when it was queued, by the engine's clock; ``held``: its tokens with KV."""

    rid: str
    client: int
    label: Label
    state: str
    since: float
    order: int
    prompt: int = 0
    drawn: int = 0
    held: int = 0
    leader: str = ""
    short: bool = False

    @property
    def name(self) -> str:
        """``15.0 tip``: the cell, its branch, the variable; the engine's id where a program gave none."""
        return name_of(self.label) or self.rid

    @property
    def waiting(self) -> bool:
        """Whether it is not in a batch."""
        return self.state in _WAITING


@dataclass(slots=True)
class LiveRequests:
    """All that live, by request id. Thread-safe."""

    now: float = 0.0
    _by_rid: dict[str, LiveRequest] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _made: int = 0
    _short_at: float = -1e9

    def take(self, event: TelemetryEvent) -> None:
        """One event of the engine, in their order."""
        with self._lock:
            if isinstance(event, RequestEvent):
                self.now = event.time
                self._request(event)
            elif isinstance(event, StepEvent):
                self.now = event.time
                self._step(event)
            elif isinstance(event, EngineStats):
                self.now = event.time
                busy = event.num_running_reqs + event.num_queue_reqs + event.num_grammar_queue_reqs
                if not busy + event.num_paused_reqs:  # also after events that were missed
                    self._by_rid.clear()

    def seed(self, answer: Mapping[str, Any]) -> None:
        """What lived when the watching began; events that came before this answer win."""
        with self._lock:
            for row in answer["requests"]:
                rid = str(row["id"])
                if rid in self._by_rid:
                    continue
                label = Label(**{name: row["label"][name] for name in row["label"]})
                state = _STATES.get(str(row["state"]), "admitted")
                self._made += 1
                self._by_rid[rid] = LiveRequest(
                    rid, int(row["client"]), label, state, float(row["time_queued"]), self._made,
                    int(row["prompt_tokens"]), int(row["completion_tokens"]),
                    int(row["prompt_tokens"]) + int(row["completion_tokens"]),
                )  # fmt: skip

    def _request(self, event: RequestEvent) -> None:
        if event.state == "finished":
            self._by_rid.pop(event.rid, None)
            return
        found = self._by_rid.get(event.rid)
        if found is None:
            self._made += 1
            found = LiveRequest(event.rid, event.client, event.label, event.state, event.time, self._made)
            self._by_rid[event.rid] = found
        if event.state in _WAITING and not found.waiting:
            found.since, found.held = event.time, 0
        found.state = event.state
        found.prompt = event.prompt_tokens or found.prompt
        found.drawn = max(found.drawn, event.completion_tokens)
        found.leader, found.short = "", False

    def _step(self, event: StepEvent) -> None:
        for row in event.rows:
            if (found := self._by_rid.get(row.rid)) is not None:
                found.held = row.prefix + row.tokens
                if row.kind == "decode":
                    found.drawn = max(found.drawn, found.held - found.prompt + 1)
                    found.state = "first_token"
                elif row.kind == "score":
                    found.state = "scoring"
                elif found.waiting:
                    found.state = "admitted"
        for note in event.notes:
            if (found := self._by_rid.get(note.rid)) is not None and note.what == "deferred":
                leader = self._by_rid.get(note.leader)
                found.leader = leader.name if leader is not None else ""
                found.short = note.reason == "kv"
                if found.short:
                    self._short_at = event.time

    @property
    def number(self) -> int:
        """How many there are; once the engine has ended, how many failed with it."""
        with self._lock:
            return len(self._by_rid)

    def rows(self, client: int | None) -> tuple[list[dict[str, Any]], int]:
        """The oldest ``LISTED`` in order of arrival, and how many more there are. ``rid`` is empty for other notebooks'."""
        with self._lock:
            ordered = sorted(self._by_rid.values(), key=lambda one: one.order)
        rows = [
            {
                "rid": one.rid if one.client == client else "",
                "name": words.visible(one.name),
                "words": words_of(one),
            }
            for one in ordered[:LISTED]
        ]
        return rows, max(0, len(ordered) - LISTED)

    def full(self, stats: EngineStats | None, client: int | None) -> dict[str, Any] | None:
        """Who waits for slots and who holds most, while there are too few; None while there are enough."""
        with self._lock:
            waits = [one for one in self._by_rid.values() if one.waiting]
            runs = [one for one in self._by_rid.values() if not one.waiting]
            if stats is None or not waits or not runs:
                return None
            share = stats.num_used_tokens / max(1, stats.max_total_num_tokens)
            if share < FULL_SHARE and self.now - self._short_at > SHORT_SECONDS:
                return None
            largest = max(runs, key=lambda one: one.held)
            place = (largest.client, largest.label.cell)
            cell = [one.rid for one in self._by_rid.values() if (one.client, one.label.cell) == place]
            if (
                not largest.label.cell
            ):  # a program that no cell runs: others like it have nothing to do with it
                cell = [largest.rid]
            oldest = min(one.since for one in waits)
            return {
                "waiting": len(waits),
                "oldest": round(max(0.0, self.now - oldest), 1),
                "holder": words.visible(largest.name),
                "slots": largest.held,
                "cell": words.visible(largest.label.cell or largest.name),
                "rids": cell if largest.client == client else [],
            }

    def name_of(self, rid: str) -> str:
        """What people call it; empty when it is gone."""
        with self._lock:
            found = self._by_rid.get(rid)
        return "" if found is None else words.visible(found.name)


def name_of(label: Label) -> str:
    """``7.1 finding``, ``7 verdict``; empty for a request without a name."""
    place = f"{label.cell}.{label.branch}" if label.branch and label.cell else label.cell
    return " ".join(filter(None, [place, label.name]))


def words_of(one: LiveRequest) -> str:
    """What a request does now, in a word or two: ``decode 251``, ``prefill``, ``waits for 18.0 label``."""
    if one.state == "compiling":
        return "compiling grammar"
    if one.waiting:
        if one.leader:
            return f"waits for {words.visible(one.leader.partition(' ')[0])}"
        if one.state == "retracted":
            return "retracted"
        return "waits for slots" if one.short else "waiting"
    if one.state == "scoring":
        return "scoring"
    return f"decode {words.count(one.drawn)}" if one.state == "first_token" else "prefill"
