"""What a log of engine events means, worked out anew: for the tests that compare the views with it.

Plain Python over decoded MessagePack: shares no code with the folds of the page, with ``sgnb.recording`` or with the engine.
Written from the words of the records in ``sgnb/messages/`` and of the views' specification.
"""

from __future__ import annotations

import math
from typing import Any

import log_slots

POLICIES = {"lru": "least recently used"}
UNTOLD = ("match", "matches", "admitted", "label")
"""What is kept of a request to work out words: ``log_words``."""


class LogTruth:
    """Folds a snapshot (the answer to ``picture``) and the events behind it, one at a time."""

    def __init__(self, snapshot: dict[str, Any]) -> None:
        self.time = snapshot["time"]
        self.half_told = False
        """The tree has changed; the slots follow: no moment lies between."""
        self.seq, self.step = snapshot["seq"], snapshot["step"]
        self.page = snapshot["page_size"]
        self.slots: list[tuple[str, str, int]] = [("", "free", 0)] * snapshot["slots"]
        self.nodes: dict[int, dict[str, Any]] = {}
        self.children: dict[int, list[int]] = {}
        self.next = list(snapshot["next"])
        self.gone: list[tuple[Any, ...]] = []
        self.live: dict[str, str] = {}
        self.holds: dict[str, int] = {}
        self.names: dict[str, str] = {}
        self.stats: dict[str, Any] = snapshot["stats"]
        self.settings: dict[str, Any] = snapshot["settings"]
        self.knobs: list[list[Any]] = []
        self.policies: list[tuple[int, str]] = [(0, self.settings["schedule_policy"])]
        self.figures: list[list[float]] = []
        self.steps: list[dict[str, Any]] = []
        self.marks: list[list[Any]] = []
        self.requests: dict[str, dict[str, Any]] = {}
        self.prompts: list[dict[str, Any]] = []
        for number, parent, start, length, locks, hits, pins, _soft, used, _root in snapshot["nodes"]:
            self._put(number, parent, start, length)
            self.nodes[number].update(locks=locks, hits=hits, pins=pins, used=used)
        for owner, start, count, kind in snapshot["runs"]:
            self._own(owner, start, count, kind, 0)
        assert not snapshot["requests"], "the log begins at rest"

    def take(self, seq: int, event: dict[str, Any]) -> None:
        """The next event."""
        assert seq == self.seq + 1, f"event {self.seq + 1} is missing"
        self.seq, self.time = seq, max(self.time, event["time"])
        if event["t"] == "kv":
            self.half_told = False
        elif event["t"] == "radix" and event["kind"] in ("insert", "split", "evict", "flush"):
            self.half_told = True
        getattr(self, f"_take_{event['t']}", lambda _: None)(event)

    # ------------------------------------------------------------ slots

    def _own(self, owner: str, start: int, count: int, kind: str, step: int) -> None:
        word = "free" if not owner else "cached" if owner.startswith("node:") else kind or "score"
        written = step if word in ("prefill", "decode", "score") else 0
        self.slots[start : start + count] = [(owner, word, written)] * count

    def _take_kv(self, event: dict[str, Any]) -> None:
        for _tag, owner, start, count, *kind in event["runs"]:
            self._own(owner, start, count, kind[0] if kind else "", event.get("step", 0))

    # ------------------------------------------------------------ tree

    def _put(self, number: int, parent: int, start: int, length: int) -> None:
        plain = {"locks": 0, "hits": 0, "pins": 0, "used": 0.0, "edge": 0.0, "rid": ""}
        self.nodes[number] = {"parent": parent, "start": start, "length": length, **plain}
        self.children.setdefault(parent, []).append(number)

    def path(self, number: int) -> list[int]:
        """From the node up to the root's child."""
        found = []
        while number in self.nodes:
            found.append(number)
            number = self.nodes[number]["parent"]
        return found

    def _take_radix(self, event: dict[str, Any]) -> None:
        kind, number, now = event["kind"], event["node"], event["time"]
        if kind == "insert":
            rid = event.get("for_rid", "")
            self._put(number, event["parent"], event["start"], event["length"])
            self.nodes[number].update(used=now, edge=now, rid=rid)
            if rid in self.live:
                self.holds[rid] = number
        elif kind == "split":
            self._split(event)
        elif kind in ("evict", "flush"):
            node = self.nodes.pop(number)
            self.children[node["parent"]].remove(number)
            if kind == "evict":
                self.gone.append(
                    (number, node["start"], node["length"], now, event.get("for_rid", ""), event["policy"])
                )
                self.next = event.get("next") or self.next
            self._mark_gone(event)
        else:
            sign = 1 if kind in ("lock", "pin") else -1
            for above in self.path(number):
                field = "locks" if kind in ("lock", "unlock") else "pins"
                self.nodes[above][field] += sign
                if kind == "lock":
                    self.nodes[above]["used"] = now
        if kind in ("evict", "flush", "lock"):
            self.next = [n for n in self.next if n in self.nodes and not self.nodes[n]["locks"]]

    def _split(self, event: dict[str, Any]) -> None:
        upper, lower = event["node"], self.nodes[event["child"]]
        siblings = self.children[event["parent"]]
        siblings[siblings.index(event["child"])] = upper
        kept = {**lower, "parent": event["parent"], "start": event["start"], "length": event["length"]}
        self.nodes[upper] = {**kept, "edge": event["time"]}
        self.children[upper] = [event["child"]]
        lower.update(
            parent=upper,
            start=event["start"] + event["length"],
            length=lower["length"] - event["length"],
            edge=event["time"],
        )

    def _mark_gone(self, event: dict[str, Any]) -> None:
        rid, last = event.get("for_rid", ""), self.marks[-1] if self.marks else None
        if last and last[1:3] == [event["kind"], rid] and event["time"] - last[0] < 0.01:
            last[3] += event["length"]
            last[4] += 1
        else:
            gone_by = event.get("policy", "")
            self.marks.append([event["time"], event["kind"], rid, event["length"], 1, gone_by])

    # ------------------------------------------------------------ steps and requests

    def _take_stats(self, event: dict[str, Any]) -> None:
        self.stats = event
        if not self.figures or event["time"] - self.figures[-1][0] >= 0.2:
            names = ("running_reqs", "queue_reqs", "used_tokens", "cached_tokens")
            figures = [event["gen_throughput"], *(event[f"num_{name}"] for name in names)]
            # Not the engine's word: what the tree and the slots are now.
            locked = sum(node["length"] for node in self.nodes.values() if node["locks"])
            written = sum(word not in ("free", "cached") for _, word, _ in self.slots)
            bands = {"locked": locked, "flight": written, "evictable": event["num_cached_tokens"]}
            self.figures.append([event["time"], *figures, event["cache_hit_rate"], bands])

    def _take_knob(self, event: dict[str, Any]) -> None:
        self.settings = self.settings | event["knobs"] | {"objective": event["objective"]}
        if "schedule_policy" in event["knobs"]:
            self.policies.append((event["step"], event["knobs"]["schedule_policy"]))
        said = []
        for name, value in event["knobs"].items():
            shown = (
                {True: "on", False: "off"}[value]
                if isinstance(value, bool)
                else "none"
                if value is None
                else value
            )
            said.append(f"{'Policy' if name == 'schedule_policy' else name} is now {shown}")
        self.knobs.append([event["time"], event["step"], said])

    def _take_step(self, event: dict[str, Any]) -> None:
        self.step = event["step"]
        self.steps.append(event)
        for note in event.get("notes", []):
            if note["what"] == "deferred" and note["rid"] in self.requests:
                self.requests[note["rid"]]["waits"] = [note["reason"], event["step"], note.get("leader", "")]

    def _take_request(self, event: dict[str, Any]) -> None:
        rid, state, now = event["rid"], event["state"], event["time"]
        label = event.get("label", {})
        place = ".".join(filter(None, [label.get("cell", ""), label.get("branch", "")]))
        self.names[rid] = " ".join(filter(None, [place, label.get("name", "")])) or rid
        about = self.requests.setdefault(
            rid,
            {
                "rid": rid,
                "client": event["client"],
                "name": self.names[rid],
                "line": label.get("line", 0),
                "queued": now,
                "prompt": 0,
                "cached": 0,
                "completed": 0,
                "finished": 0,
                "reason": "",
                "first": 0,
                "twice": 0,
                "turns": [],
                "matches": [],
                "label": label,
                "compiling": None,
                "waits": None,
            },
        )
        about["state"] = state
        about["prompt"] = event.get("prompt_tokens", about["prompt"])
        about["completed"] = event.get("completion_tokens", about["completed"])
        if state == "finished":
            self.live.pop(rid, None)
        else:
            self.live[rid] = state
        if state in ("finished", "retracted"):
            self.holds.pop(rid, None)
            turn, why = about["turns"][-1] if about["turns"] else None, event.get("reason", "")
            if turn and not turn[1]:
                turn[1:4] = [now, why if state == "finished" else state, why]
            word = (
                "retract" if state == "retracted" else "abort" if event.get("reason") == "abort" else "finish"
            )
            self.marks.append([now, word, rid, 0, 0, ""])
        if state == "finished":
            about.update(finished=now, reason=event.get("reason", ""))
        elif state == "first_token":
            about["first"] = about["first"] or now
            about["twice"] = event.get("duplicate_tokens", 0)
        elif state == "compiling":
            about["compiling"] = [now, 0, event.get("reason", "")]
        elif state == "compiled":
            about["compiling"][1] = now
        elif state == "admitted":
            self._admitted(event, about)

    def _admitted(self, event: dict[str, Any], about: dict[str, Any]) -> None:
        rid, match = event["rid"], event.get("match")
        found = None
        if match:
            why = self.reason({"match": match, "admitted": event["time"], "twice": 0})
            found = [match["matched"], match["cause"], match.get("diverged_at", -1), why]
        about["turns"].append([event["time"], 0, "", "", found])
        about["matches"].append((event["time"], match))
        if match is None:
            return
        if match["node"]:
            self.holds[rid] = match["node"]
        for above in self.path(match["node"]):
            self.nodes[above]["hits"] += 1
        if "match" not in about:
            about.update(match=match, admitted=event["time"], cached=event.get("cached_tokens", 0))
            self.prompts.append(about)

    # ------------------------------------------------------------ what the views say

    def reason(self, about: dict[str, Any]) -> str:
        """The word of the table "Prompts and what they reused"."""
        match = about["match"]
        cause = match["cause"]
        again = match.get("equal_again", 0)
        word = {
            "hit": "last token",
            "flushed": "flushed",
            "disabled": "cache off",
            "namespace": "other name space",
            "retokenized": "tokens differ, text equal",
            "page": f"page of {self.page}",
            "logprobs": f"logprobs from token {match['matched']}",
        }.get(cause, "new text")
        if cause == "diverged" and again >= 8:
            word = f"changed at token {match['diverged_at'] + 1}"
        if cause == "evicted":
            ago = match.get("gone_at", 0.0)  # 0: it went longer ago than the engine remembers
            word = f"evicted {seconds(about['admitted'] - ago)} before" if ago else "evicted"
        if match.get("waited_for"):
            leader = self.names[match["waited_for"]]
            word += f", waited {seconds(match.get('waited', 0.0))} for {leader}"
        if about["twice"]:
            word += ", computed twice"
        return word

    def moment(self, time: float) -> dict[str, Any]:
        """What tree and map show at ``time``, the last event's time or later."""
        count = dict.fromkeys(("free", "prefill", "decode", "cached", "score"), 0)
        for _owner, kind, _step in self.slots:
            count[kind] += 1
        locked = sum(node["length"] for node in self.nodes.values() if node["locks"] > 0)
        whole = sum(node["length"] for node in self.nodes.values())
        fields = ("parent", "start", "length", "locks", "hits", "pins", "used", "edge", "rid")
        locked_slots = min(locked, count["cached"])
        return {
            "seq": self.seq,
            "step": self.step,
            "time": self.time,
            "nodes": [
                [number, *(node[field] for field in fields), self.children.get(number, [])]
                for number, node in sorted(self.nodes.items())
            ],
            "tree": [whole, locked, self.next],
            "gone": [list(node) for node in self.gone if time - 10 < node[3] and node[0] not in self.nodes][
                -12:
            ],
            "slots": log_slots.runs(self),
            "counts": list(count.values()),
            "cached": [locked_slots, count["cached"] - locked_slots],
            "free": log_slots.free_runs(self),
            "live": sorted([rid, state] for rid, state in self.live.items()),
            "holds": sorted([rid, node] for rid, node in self.holds.items()),
            "holders": log_slots.holders(self),
            "paths": log_slots.paths(self),
            "cells": log_slots.cells(self),
            "stats": self.stats,
            "settings": self.settings,
        }

    def lists(self) -> dict[str, Any]:
        """The timeline's steps and requests, the prompts with their reasons, the marks."""
        note = ("rid", "what", "reason", "unit", "needs", "has", "leader")
        times = [f"{part}_seconds" for part in ("schedule", "forward", "sample", "process", "exposed_host")]
        figures = (
            "free",
            "evictable",
            "running",
            "queued",
            "new_token_ratio",
            "drawn",
            "bad_rows",
            "wasted_rows",
        )
        words = {"unit": "", "needs": 0, "has": 0, "leader": ""}
        return {
            "steps": [
                {
                    "step": step["step"],
                    "time": step["time"],
                    "mode": step["mode"],
                    "rows": [[r["rid"], r["kind"], r["tokens"], r["prefix"]] for r in step["rows"]],
                    "notes": [[{**words, **n}[field] for field in note] for n in step.get("notes", [])],
                    "times": [step.get(field, 0) for field in times],
                    "words": [
                        AHEAD.get(step.get("no_overlap", ""), ""),
                        FAILED.get(step.get("failed", ""), ""),
                    ],
                    "under": step.get("schedule_under", 0),
                    "figures": [step.get(field, 0) for field in figures],
                }
                for step in self.steps
            ],
            "requests": [
                {key: value for key, value in about.items() if key not in UNTOLD}
                for about in self.requests.values()
            ],
            "marks": self.marks,
            "figures": self.figures,
            "knobs": self.knobs,
        }


AHEAD = {
    why: f"Not planned ahead: {words}."
    for why, words in {
        "grammar": "a grammar's mask depends on the token before",
        "penalty": "a penalty depends on the token before",
        "scores": "the scores of options decide what follows",
        "slots": "slots are so short that an end would make room",
        "nothing": "nothing could be planned before",
    }.items()
}
FAILED = {"memory": "The step ran out of memory; its requests are tried again in smaller steps."}


def seconds(value: float) -> str:
    """``0.38 s`` from 0.1 s, below that ``31 ms``."""
    if value < 0.0995:
        return f"{math.floor(1000 * value + 0.5)} ms"
    if value < 99.95:
        return f"{value:.2f} s" if value < 9.995 else f"{value:.1f} s"
    return f"{math.floor(value / 60 + 0.5)} min"
