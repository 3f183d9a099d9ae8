"""Why a prompt was reused so far and no further, and what was decided before a step: sentences for the static form.

Notebook process; used by ``widgets.tables``. The same words as the page's (static/causes.js, static/timeline_words.js), from
the same events (``sgnb.messages``, as builtins). The engine gives the causes and their numbers; nothing is guessed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sgnb.widgets.words import count, duration

POLICIES = {
    "lru": "least recently used",
    "lfu": "least frequently used",
    "fifo": "first in, first out",
    "slru": "used once, least recently",
    "priority": "lowest priority",
}
ORDERS = {
    "lpm": "longest cached prefix",
    "fcfs": "first come",
    "lof": "most new tokens allowed",
    "dfs-weight": "its branch has most waiting",
    "random": "drawn at random",
    "priority": "highest priority",
}
SUSPENDED = {
    "priority": "a request of higher priority came",
    "quantum": "its time slice is over",
    "memory": "its step ran out of memory and is tried again in parts",
}
ENDS = {"abort": "aborted", "context": "finished, context full"}
VERBS = ("Admitted", "Joined", "Computed anew", "Not admitted", "Suspended", "Retracted", "Evicted")
EQUAL_AGAIN = 8
"""So many equal tokens behind a difference make it a change, not new text."""
NAMES = 6
"""Requests that a sentence names; of more, five and their number."""


def name_of(label: Mapping[str, Any], rid: str = "") -> str:
    """``7.1 finding``: cell, branch and variable of a request."""
    place = ".".join(filter(None, (str(label.get("cell", "")), str(label.get("branch", "")))))
    return " ".join(filter(None, [place, str(label.get("name", ""))])) or rid


def plural(number: int, noun: str, many: str = "") -> str:
    """``1 node``, ``3 nodes``."""
    return f"{count(number)} {noun if number == 1 else many or noun + 's'}"


@dataclass(slots=True)
class Request:
    """What the events said of one request, up to the last of them."""

    rid: str
    label: Mapping[str, Any]
    queued: float
    state: str = "queued"
    prompt: int = 0
    cached: int = 0
    completed: int = 0
    reason: str = ""
    match: Mapping[str, Any] | None = None
    admitted: float = 0.0
    compiling: float = 0.0
    finished: float = 0.0
    twice: bool = False
    turns: list[tuple[float, Mapping[str, Any] | None]] = field(default_factory=list)
    """When it was admitted, and what the cache had then."""

    @property
    def name(self) -> str:
        """``7.1 finding``, or its id."""
        return name_of(self.label, self.rid)

    @property
    def place(self) -> str:
        """``15.0``, or its whole name where it has no place."""
        cell, branch = str(self.label.get("cell", "")), str(self.label.get("branch", ""))
        return f"{cell}.{branch}" if cell and branch else cell or self.name

    @property
    def end(self) -> str:
        """``finished``, ``aborted``, ``failed``; of one that goes on, its state."""
        if self.state != "finished":
            return self.state.replace("_", " ")
        return ENDS.get(
            self.reason, "finished" if self.reason in {"stop", "length", "eos", "grammar"} else "failed"
        )


class Past:
    """Requests and settings as ``events`` (numbered, oldest first) tell them.

    ``snapshot``: a ``picture`` from before or after them; its settings are those before the first switch that came later.
    """

    def __init__(
        self, events: Iterable[Mapping[str, Any]], snapshot: Mapping[str, Any] | None = None
    ) -> None:
        self.requests: dict[str, Request] = {}
        self.steps: list[Mapping[str, Any]] = []
        self.page_size = int((snapshot or {}).get("page_size", 1))
        self._knobs: list[Mapping[str, Any]] = []
        self._policy = ""
        switched = float("inf")
        for numbered in events:
            event = numbered["event"]
            if event["t"] == "step":
                self.steps.append(event)
            elif event["t"] == "knob":
                self._knobs.append(event)
                if "schedule_policy" in event["knobs"]:
                    switched = min(switched, numbered["seq"])
            elif event["t"] == "request":
                self._take(event)
        if snapshot is not None and snapshot.get("seq", 0) < switched:
            self._policy = str(snapshot.get("settings", {}).get("schedule_policy", ""))

    def find(self, rid: str) -> Request:
        """The request; of one that is not known, its id stands for its name."""
        return self.requests.get(rid) or Request(rid, {}, 0.0)

    def policy_at(self, step: int) -> str:
        """The schedule policy that held at a step; "" where it is not known."""
        policy = self._policy
        for knob in self._knobs:
            if knob["step"] <= step and "schedule_policy" in knob["knobs"]:
                policy = str(knob["knobs"]["schedule_policy"])
        return policy

    def knobs_at(self, step: int) -> list[str]:
        """``Policy is now fcfs.``: what was changed before a step."""
        named = {"schedule_policy": "Policy", "objective": "Objective"}
        return [
            f"{named.get(name, name)} is now {_value(value)}."
            for knob in self._knobs
            if knob["step"] == step
            for name, value in knob["knobs"].items()
        ]

    def step_at(self, time: float) -> int:
        """The number of the last step that began by then; 0: none that is known."""
        return max((int(step["step"]) for step in self.steps if step["time"] <= time), default=0)

    def _take(self, event: Mapping[str, Any]) -> None:
        rid, state = event["rid"], event["state"]
        request = self.requests.setdefault(rid, Request(rid, event.get("label") or {}, event["time"]))
        request.state = state
        request.prompt = event.get("prompt_tokens", 0) or request.prompt
        request.completed = event.get("completion_tokens", 0) or request.completed
        request.twice = request.twice or bool(event.get("duplicate_tokens"))
        if state == "admitted":
            match = event.get("match")
            request.turns.append((event["time"], match))
            if request.match is None and match is not None:
                request.match, request.admitted = match, event["time"]
                request.cached = event.get("cached_tokens", 0)
        elif state == "compiling":
            request.compiling = event["time"]
        elif state == "finished":
            request.reason, request.finished = event.get("reason", ""), event["time"]


def _value(value: object) -> str:
    return {True: "on", False: "off", None: "none"}[value] if isinstance(value, bool | None) else str(value)


# ---------------------------------------------------------------- why no more of a prompt was reused


@dataclass(frozen=True, slots=True)
class Reason:
    """``word`` for a table; ``sentences``, and what would help (``advice``), for who asks why."""

    word: str
    sentences: tuple[str, ...]
    advice: str = ""

    def __str__(self) -> str:
        advice = f" To reuse them: {self.advice[0].lower()}{self.advice[1:]}" if self.advice else ""
        return " ".join(self.sentences) + advice


def reason_of(request: Request, past: Past) -> Reason:
    """Why the rest of a request's prompt was computed, as its first match tells it."""
    match = request.match or {}
    reason = _cause(request, match, request.admitted, past)
    word, sentences = reason.word, reason.sentences
    if match.get("waited_for"):
        waited = duration(match.get("waited", 0.0))
        word += f", waited {waited} for {past.find(match['waited_for']).name}"
        told = f"The same prefix was being computed. It waited {waited}, then reused {count(match.get('matched', 0))}."
        sentences = (told, *sentences)
    if request.twice:
        word += ", computed twice"
        sentences = (*sentences, "Both computed it; one copy was freed.")
    return Reason(word, sentences, reason.advice)


def _cause(request: Request, match: Mapping[str, Any], when: float, past: Past) -> Reason:
    matched, prompt = int(match.get("matched", 0)), request.prompt
    left = max(0, prompt - matched)
    cause = match.get("cause", "short")
    if cause == "diverged" and match.get("equal_again", 0) >= EQUAL_AGAIN:
        return _changed(match, matched, prompt)
    if cause == "evicted":
        return _evicted(match, left, when, past)
    if cause == "page":
        tokens = plural(match.get("half_page") or left, "token does", "tokens do")
        return Reason(f"page of {count(past.page_size)}", (f"{tokens} not fill a page.",))
    if cause == "logprobs":
        told = "Prompt logprobs were asked for; from there on nothing can be reused."
        return Reason(f"logprobs from token {count(matched)}", (told,), "Ask for them only where needed.")
    fixed = {
        "hit": Reason("last token", ("The last token of a prompt is always computed.",)),
        "flushed": Reason("flushed", ("The rest was cached until the cache was flushed.",)),
        "disabled": Reason("cache off", ("The engine keeps no prefix cache.",)),
        "namespace": Reason("other name space", ("Cached under another cache salt or adapter.",)),
        "retokenized": Reason(
            "tokens differ, text equal",
            ("Same text, cut into other tokens at the join of two parts.",),
            "Do not end a part with a space.",
        ),
    }
    return fixed.get(cause) or Reason(
        "new text", (f"Nothing after token {count(matched)} was ever computed.",)
    )


def _changed(match: Mapping[str, Any], matched: int, prompt: int) -> Reason:
    at = match.get("diverged_at", -1)
    first = (
        f"It is the same as the nearest cached path up to token {count(matched)} of {count(prompt)}. Then they differ."
        if matched
        else "It differs from the nearest cached path from its first token on."
    )
    again = count(match["equal_again"])
    then = f"After the difference {again} tokens are equal again, but a prefix cache cannot reuse them."
    place = (at if at >= 0 else matched) + 1
    return Reason(
        f"changed at token {count(place)}",
        (first, then),
        "Put text that changes (times, ids, names) after text that stays.",
    )


def _evicted(match: Mapping[str, Any], left: int, when: float, past: Past) -> Reason:
    gone = match.get("gone_at", 0.0)
    step = past.step_at(gone) if gone else 0
    ago = f" {duration(when - gone)} before" if gone and when else ""
    whom = f" for {past.find(match['gone_for']).name}" if match.get("gone_for") else ""
    policy = f" ({POLICIES[match['gone_policy']]})" if match.get("gone_policy") in POLICIES else ""
    tokens = plural(match.get("gone_tokens") or left, "token was", "tokens were")
    told = f"{tokens} cached and evicted{f' at step {count(step)}' if step else ''}{whom}{policy}."
    return Reason(f"evicted{ago}", (told,), "Enlarge the cache, or pin the prefix.")


# ---------------------------------------------------------------- what was decided before a step


def decisions(step: Mapping[str, Any], past: Past) -> list[str]:
    """Sentences of a StepEvent's notes, in the page's order: ``Admitted 15.0 and 15.1: first come, 312 of 432 cached.``"""
    groups: dict[tuple[str, str], list[str]] = {}
    for note in step.get("notes", ()):
        groups.setdefault(_note(note, step, past), []).append(past.find(note["rid"]).place)
    told = past.knobs_at(step["step"])
    for verb in VERBS:
        for (other, about), names in groups.items():
            if other == verb:
                whom = _listed(names)
                told.append(
                    f"{verb} {about.replace('@', whom)}." if verb == "Evicted" else f"{verb} {whom}: {about}."
                )
    return told


def _listed(names: list[str]) -> str:
    shown = names if len(names) <= NAMES else [*names[:5], f"{count(len(names) - 5)} more"]
    return f"{', '.join(shown[:-1])} and {shown[-1]}" if len(shown) > 1 else shown[0]


def _note(note: Mapping[str, Any], step: Mapping[str, Any], past: Past) -> tuple[str, str]:
    needs, has, unit = note.get("needs", 0), note.get("has", 0), note.get("unit") or "slots"
    what, reason = note["what"], note["reason"]
    if what == "admitted":
        return "Admitted", _admitted(note, step, past)
    if what == "retracted":
        return "Retracted", f"short of KV, decoding needs {count(needs)} {unit}, has {count(has)}"
    if what == "suspended":
        return "Suspended", f"{SUSPENDED.get(reason, reason)}, its {plural(has, 'slot')} can be evicted"
    if what == "joined":
        return "Joined", f"{count(has)} of {plural(needs, 'token')} copied from its branches"
    if what == "recomputed":
        return "Computed anew", f"{plural(needs, 'copied token was', 'copied tokens were')} evicted"
    if what == "evicted":
        policy = f" ({POLICIES[reason]})" if reason in POLICIES else ""
        return "Evicted", f"{plural(has, 'token')} for @{policy}"
    return "Not admitted", _deferred(note, step, past, f"needs {count(needs)} {unit}, has {count(has)}")


def _admitted(note: Mapping[str, Any], step: Mapping[str, Any], past: Past) -> str:
    request = past.find(note["rid"])
    policy = past.policy_at(step["step"])
    order = f"{ORDERS[policy]}, " if policy in ORDERS else ""
    turns = [turn for turn in request.turns if turn[0] <= step["time"]]
    when, match = turns[-1] if len(turns) > 1 else (0.0, None)
    if match is not None:
        cached = f"{plural(match.get('matched', 0), 'token')} still cached"
        rest = (
            "" if match.get("cause") == "hit" else f", the rest was {_cause(request, match, when, past).word}"
        )
        return f"{order}resumed, {cached}{rest}"
    if len(turns) > 1 or request.match is None:
        return f"{order}{plural(note.get('needs', 0), 'token')} to compute"
    share = f"{count(request.match.get('matched', 0))} of {count(request.prompt)}"
    if policy == "lpm" and request.match.get("matched"):
        return f"{order}{share}"
    return f"{order}{share} cached"


def _deferred(note: Mapping[str, Any], step: Mapping[str, Any], past: Past, lack: str) -> str:
    reason = str(note["reason"])
    if reason == "grammar":
        request = past.find(note["rid"])
        since = request.compiling or request.queued
        return "its grammar is compiling" + (
            f", {duration(max(0.0, step['time'] - since))} so far" if since else ""
        )
    return {
        "leader": f"{past.find(note.get('leader', '')).place} is computing the same prefix",
        "kv": f"short of KV, {lack}",
        "rows": "no row is free, as many requests run as may",
        "chunk": f"the step's chunk is full, {lack}",
        "input": f"too much input for one step, {lack}",
    }.get(reason, reason)
