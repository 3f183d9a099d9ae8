"""What the views say in words of a log of engine events, worked out anew: reasons, decisions, waits, figures of a window.

Plain Python over what ``log_truth`` has folded; shares no code with the page. Written from the views' specification: the
sentences of the causes, what was decided before a step, what a lane waited for, what a step changed.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Any

from log_truth import POLICIES, LogTruth, seconds

ORDERS = {"lpm": "longest cached prefix", "fcfs": "first come"}
BACK = {
    "kv_full": "retracted",
    "priority": "made way for a higher priority",
    "quantum": "its time slice is over",
}
ENDS = {"abort": "aborted", "context": "finished, context full"} | dict.fromkeys(
    ("stop", "length", "eos", "grammar"), "finished"
)


def count(number: float) -> str:
    """Thousands parted by a thin space."""
    return f"{number:,.0f}".replace(",", "\u2009")


def plural(number: int, one: str, many: str = "") -> str:
    """``1 node``, ``3 nodes``."""
    return f"{count(number)} {one if number == 1 else many or one + 's'}"


def fine(value: float) -> str:
    """``9.1 ms``, from 0.1 s on as everywhere."""
    return f"{value * 1000:.1f} ms" if value < 0.0995 else seconds(value)


class LogWords:
    """Of a whole log: ``truth`` has taken all its events."""

    def __init__(self, truth: LogTruth) -> None:
        self.truth = truth
        self.times = [step["time"] for step in truth.steps]
        self.spans: list[tuple[float, float, float]] = []
        """Of each step when it computed, when its forward pass ended, when its tokens were drawn."""
        for step in truth.steps:
            begin = max(step["time"], self.spans[-1][2] if self.spans else 0.0)
            computed = begin + step.get("forward_seconds", 0)
            self.spans.append((begin, computed, computed + step.get("sample_seconds", 0)))
        self.latest = self.spans[-1][2] if self.spans else 0.0

    def step_at(self, time: float) -> int:
        """The place of the last step that began by then, or -1."""
        return bisect_right(self.times, time) - 1

    def place(self, rid: str) -> str:
        """``15.0``: the request without its variable."""
        label = self.truth.requests[rid]["label"]
        whole = ".".join(filter(None, (label.get("cell", ""), label.get("branch", ""))))
        return whole if label.get("cell") else self.truth.names[rid]

    # ------------------------------------------------------------ why not more was reused

    def why(self, about: dict[str, Any], match: dict[str, Any], admitted: float, twice: int) -> list[str]:
        """The sentences."""
        matched, prompt = match["matched"], about["prompt"]
        left, again = max(0, prompt - matched), match.get("equal_again", 0)
        out = {
            "hit": ["The last token of a prompt is always computed."],
            "flushed": ["The rest was cached until the cache was flushed."],
            "disabled": ["The engine keeps no prefix cache."],
            "page": [f"{plural(match.get('half_page') or left, 'token does', 'tokens do')} not fill a page."],
            "logprobs": ["Prompt logprobs were asked for; from there on nothing can be reused."],
            "namespace": ["Cached under another cache salt or adapter."],
            "retokenized": ["Same text, cut into other tokens at the join of two parts."],
        }.get(match["cause"], [f"Nothing after token {count(matched)} was ever computed."])
        if match["cause"] == "diverged" and again >= 8:
            reach = f"up to token {count(matched)} of {count(prompt)}"
            same = f"It is the same as the nearest cached path {reach}. Then they differ."
            other = "It differs from the nearest cached path from its first token on."
            equal = f"After the difference {count(again)} tokens are equal again, but a prefix cache cannot reuse them."
            out = [same if matched else other, equal]
        if match["cause"] == "evicted":
            out = [self._gone(match, left)]
        if match.get("waited_for"):
            waited = seconds(match.get("waited", 0.0))
            waiting = f"The same prefix was being computed. It waited {waited}, then reused {count(matched)}."
            out = [waiting, *out]
        return [*out, "Both computed it; one copy was freed."] if twice else out

    def _gone(self, match: dict[str, Any], left: int) -> str:
        said = f"{plural(match.get('gone_tokens') or left, 'token was', 'tokens were')} cached and evicted"
        if match.get("gone_at") and (place := self.step_at(match["gone_at"])) >= 0:
            said += f" at step {count(self.truth.steps[place]['step'])}"
        if whom := match.get("gone_for"):
            said += f" for {self.truth.names[whom]}"
        policy = POLICIES.get(match.get("gone_policy", ""))
        return said + (f" ({policy})." if policy else ".")

    def prompts(self) -> list[list[Any]]:
        """``[name, prompt, reused, word, sentences, node]`` of each prompt."""
        return [
            [
                about["name"],
                about["prompt"],
                about["cached"],
                self.truth.reason(about),
                self.why(about, about["match"], about["admitted"], about["twice"]),
                about["match"]["node"],
            ]
            for about in self.truth.prompts
        ]

    def again(self, about: dict[str, Any]) -> list[list[str] | None]:
        """The sentences of later turns."""
        return [self.why(about, match, when, 0) if match else None for when, match in about["matches"][1:]]

    # ------------------------------------------------------------ steps

    def steps(self) -> list[dict[str, Any]]:
        """Of each step: facts, rows, decisions."""
        return [self._step(place) for place in range(len(self.truth.steps))]

    def _step(self, place: int) -> dict[str, Any]:
        step, (begin, _, drawn) = self.truth.steps[place], self.spans[place]
        tokens = sum(row["tokens"] for row in step["rows"])
        facts = [plural(len(step["rows"]), "request"), plural(tokens, "token"), fine(drawn - begin)]
        return {
            "step": step["step"],
            "words": ", ".join(facts),
            "rows": [self._row(row) for row in step["rows"]],
            "decided": self._decided(place),
        }

    def _row(self, row: dict[str, Any]) -> list[str]:
        about = self.truth.requests[row["rid"]]
        if row["kind"] == "decode":
            token = row["prefix"] + 1 - about["prompt"]
            return ["decode", f"token {count(token)}" if token > 0 else plural(row["tokens"], "token")]
        said = f"{count(row['tokens'])} {'scored' if row['kind'] == 'score' else 'new'}"
        if row["prefix"]:
            match = about.get("match")
            reused = match is not None and row["prefix"] == match["matched"]
            said += f", {count(row['prefix'])} {'reused' if reused else 'before'}"
        return [row["kind"], said]

    def _decided(self, place: int) -> list[str]:
        step = self.truth.steps[place]
        out = [
            f"{said}." for _, number, words in self.truth.knobs if number == step["step"] for said in words
        ]
        policy = [name for number, name in self.truth.policies if number <= step["step"]][-1]
        groups: dict[tuple[str, str], list[str]] = {}
        for note in step.get("notes", []):
            if note["what"] != "evicted":
                groups.setdefault(self._note(note, step, policy), []).append(note["rid"])
        order = ["Admitted", "Joined", "Computed anew", "Not admitted", "Suspended", "Retracted"]
        for (verb, said), rids in sorted(groups.items(), key=lambda item: order.index(item[0][0])):
            out.append(f"{verb} {listed([self.place(rid) for rid in rids])}: {said}.")
        before = self.times[place - 1] if place else step["time"] - 1
        for time, kind, rid, tokens, nodes, gone_by in self.truth.marks:
            if kind == "evict" and before < time <= step["time"]:
                whom = f" for {self.place(rid)}" if rid else ""
                by = f" ({POLICIES[gone_by]})" if gone_by in POLICIES else ""
                out.append(f"Evicted {plural(tokens, 'token')} in {plural(nodes, 'node')}{whom}{by}.")
        return out

    def _note(self, note: dict[str, Any], step: dict[str, Any], policy: str) -> tuple[str, str]:
        needs, has, unit = note.get("needs", 0), note.get("has", 0), note.get("unit", "")
        lack = f"needs {count(needs)} {unit}, has {count(has)}"
        if note["what"] == "admitted":
            return "Admitted", self._admitted(note, step, policy)
        if note["what"] == "retracted":
            return "Retracted", f"short of KV, decoding {lack}"
        assert note["what"] == "deferred", "this log has no other"
        about = self.truth.requests[note["rid"]]
        since = about["compiling"][0] if about["compiling"] else about["queued"]
        return "Not admitted", {
            "grammar": f"its grammar is compiling, {seconds(max(0, step['time'] - since))} so far",
            "leader": f"{self.place(note['leader']) if note.get('leader') else ''} is computing the same prefix",
            "kv": f"short of KV, {lack}",
            "rows": "no row is free, as many requests run as may",
            "chunk": f"the step's chunk is full, {lack}",
            "input": f"too much input for one step, {lack}",
        }[note["reason"]]

    def _admitted(self, note: dict[str, Any], step: dict[str, Any], policy: str) -> str:
        about, first = self.truth.requests[note["rid"]], f"{ORDERS[policy]}, "
        turns = [(when, match) for when, match in about["matches"] if when <= step["time"]]
        if len(turns) > 1:
            when, match = turns[-1]
            if match is None:
                return f"{first}{plural(note.get('needs', 0), 'token')} to compute"
            said = f"{first}resumed, {plural(match['matched'], 'token')} still cached"
            told = {"match": match, "admitted": when, "twice": 0}
            return said if match["cause"] == "hit" else f"{said}, the rest was {self.truth.reason(told)}"
        if "match" not in about:
            return f"{first}{plural(note.get('needs', 0), 'token')} to compute"
        matched = about["match"]["matched"]
        share = f"{count(matched)} of {count(about['prompt'])}"
        return f"{first}{share}" if policy == "lpm" and matched else f"{first}{share} cached"

    # ------------------------------------------------------------ lanes and the window

    def lanes(self) -> list[dict[str, Any]]:
        """Requests in order of arrival: end, waits in words, pieces."""
        pieces, waits = self._pieces(), self._deferred()
        number = [step["step"] for step in self.truth.steps]
        out = []
        for about in sorted(self.truth.requests.values(), key=lambda about: about["queued"]):
            rid = about["rid"]
            if about["queued"] > self.latest or (about["finished"] and about["finished"] < self.spans[0][0]):
                continue
            out.append(
                {
                    "rid": rid,
                    "end": ENDS.get(about["reason"], "failed") if about["finished"] else about["state"],
                    "waits": self._waits(about, pieces.get(rid, []), waits.get(rid, [])),
                    "pieces": [
                        [p["kind"], number[p["first"]], number[p["last"]], p["tokens"], p["reused"]]
                        for p in pieces.get(rid, [])
                    ],
                }
            )
        return out

    def _pieces(self) -> dict[str, list[dict[str, Any]]]:
        """Stretches of decode steps, and chunks."""
        found: dict[str, list[dict[str, Any]]] = {}
        for place, step in enumerate(self.truth.steps):
            for row in step["rows"]:
                lane = found.setdefault(row["rid"], [])
                last = lane[-1] if lane else None
                if row["kind"] == "decode" and last and (last["kind"], last["last"]) == ("decode", place - 1):
                    last["last"] = place
                    last["tokens"] += row["tokens"]
                    continue
                on = last and row["kind"] == "prefill" == last["kind"]
                goes_on = on and last and last["prefix"] + last["tokens"] == row["prefix"]
                reused = 0 if row["kind"] == "decode" or goes_on else row["prefix"]
                piece = {"from": self.spans[place][0], "first": place, "last": place, "reused": reused}
                lane.append(piece | {key: row[key] for key in ("kind", "tokens", "prefix")})
        return found

    def _deferred(self) -> dict[str, list[dict[str, Any]]]:
        """Notes of requests that were not admitted; those alike in a row as one, with the last numbers."""
        found: dict[str, list[dict[str, Any]]] = {}
        for step in self.truth.steps:
            for note in step.get("notes", []):
                if note["what"] != "deferred":
                    continue
                lane = found.setdefault(note["rid"], [])
                key, numbers = (
                    (note["reason"], note.get("leader", "")),
                    (note.get("needs", 0), note.get("has", 0)),
                )
                if lane and lane[-1]["key"] == key:
                    lane[-1]["numbers"] = numbers
                else:
                    lane.append({"from": step["time"], "key": key, "numbers": numbers})
        return found

    def _waits(self, about: dict[str, Any], pieces: list[Any], waits: list[Any]) -> list[list[Any]]:
        starts = [(about["queued"], "")]
        starts += [(turn[1], turn[3] or "kv_full") for turn in about["turns"] if turn[2] == "retracted"]
        out = []
        for begin, back in starts:
            behind = [piece["from"] for piece in pieces if piece["from"] >= begin - 1e-9]
            end = behind[0] if behind else about["finished"] or self.latest
            if end <= begin:
                continue
            inside = [wait for wait in waits if begin - 1e-9 <= wait["from"] <= end]
            out.append([end - begin, self._waited(about, inside[-1] if inside else None, back)])
        return out

    def _waited(self, about: dict[str, Any], wait: dict[str, Any] | None, back: str) -> str:
        if wait is None:
            return BACK[back] if back else "compiling grammar" if about["compiling"] else ""
        (reason, leader), (needs, has) = wait["key"], wait["numbers"]
        if back and reason != "kv":
            return BACK[back]
        numbers = f"needs {count(needs)}, has {count(has)}"
        return {
            "grammar": "compiling grammar",
            "leader": f"same prefix as {self.place(leader)}" if leader else "",
            "kv": f"{'retracted, ' if back else ''}short of KV: {numbers}",
            "rows": "no row is free",
            "chunk": "the step's chunk is full",
            "input": f"too much input: {numbers}",
        }[reason]

    def whole(self) -> list[Any]:
        """The log as one window: modes, gaps between two tokens of a request, share in which nothing was computed."""
        modes = [step["mode"] for step in self.truth.steps]
        said = [
            f"{count(modes.count(mode))} {mode}"
            for mode in ("decode", "mixed", "extend", "score")
            if mode in modes
        ]
        one = len(modes) == 1 or (said[-1].startswith("1 ") and len(said) > 1)
        gaps, last = [], dict[str, float]()
        for step, (_, _, drawn) in zip(self.truth.steps, self.spans, strict=True):
            for row in step["rows"]:
                if row["kind"] == "decode" and row["rid"] in last:
                    gaps.append(drawn - last[row["rid"]])
                last[row["rid"]] = drawn
                if row["kind"] == "score":
                    del last[row["rid"]]
        gaps.sort()
        at = [gaps[min(len(gaps) - 1, math.floor(share * len(gaps)))] for share in (0.5, 0.95)]
        busy = sum(drawn - begin for begin, _, drawn in self.spans)
        known = self.latest - self.spans[0][0]
        waited = sum(step.get("exposed_host_seconds", 0) for step in self.truth.steps)
        return [
            f"{', '.join(said)} {'step' if one else 'steps'}",
            len(gaps),
            *at,
            max(0, 1 - busy / known),
            waited,
        ]

    def bins(self) -> list[list[int]]:
        """Tokens computed in each tenth of a second: prefill and scored, decoded."""
        found: dict[int, list[int]] = {}
        for step, (begin, _, _) in zip(self.truth.steps, self.spans, strict=True):
            tokens = found.setdefault(math.floor(begin * 10), [0, 0])
            for row in step["rows"]:
                tokens[row["kind"] == "decode"] += row["tokens"]
        return [[tenth, *tokens] for tenth, tokens in sorted(found.items())]

    # ------------------------------------------------------------ what a step changed

    def changes(self, time: float) -> list[list[str]]:
        """The KV map's "Changed in step", of the step that computes at ``time``."""
        place = self.step_at(time)
        if place < 0:
            return []
        step, names = self.truth.steps[place], self.truth.names
        decodes = [row["rid"] for row in step["rows"] if row["kind"] == "decode"]
        out = []
        if decodes:
            several = f"decode, one for each of {count(len(decodes))} requests"
            out.append(
                [f"+{count(len(decodes))}", several if len(decodes) > 1 else f"decode {names[decodes[0]]}"]
            )
        for row in step["rows"]:
            if row["kind"] != "decode":
                said = f"{row['kind']} {names[row['rid']]}{self._chunk(place, row)}"
                out.append(
                    [
                        f"+{count(row['tokens'])}",
                        f"{said}, after {count(row['prefix'])} reused or computed before",
                    ]
                )
        before = self.times[place - 1] if place else 0
        behind = self.times[place + 1] if place + 1 < len(self.times) else math.inf
        for when, kind, rid, tokens, *_ in self.truth.marks:
            if before < when <= min(step["time"] + 1, behind):
                out += {
                    "evict": [[f"−{count(tokens)}", f"evicted for {names.get(rid, rid)}"]],
                    "retract": [["", f"retracted {names.get(rid, rid)}"]],
                    "finish": [["", f"{names.get(rid, rid)} finished"]],
                }.get(kind, [])
        return out[:8]

    def _chunk(self, place: int, row: dict[str, Any]) -> str:
        about = self.truth.requests[row["rid"]]
        begun = [turn[0] for turn in about["turns"] if turn[0] <= self.times[place]]
        since = begun[-1] if begun else math.inf
        earlier = [
            other
            for time, step in zip(self.times[:place], self.truth.steps, strict=False)
            if time >= since
            for other in step["rows"]
            if (other["rid"], other["kind"]) == (row["rid"], row["kind"])
        ]
        whole = not earlier and row["prefix"] + row["tokens"] >= about["prompt"]
        return "" if whole or row["kind"] != "prefill" else f", chunk {len(earlier) + 1}"


def listed(names: list[str]) -> str:
    """``a, b and c``; of more than six the first five."""
    shown = names if len(names) <= 6 else [*names[:5], f"{count(len(names) - 5)} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
