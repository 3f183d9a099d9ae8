"""What a log of engine events says of the slots: runs, holders, paths and cells in words, worked out anew.

Plain Python over what ``log_truth`` has folded so far; shares no code with the page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from log_truth import LogTruth


def runs(truth: LogTruth) -> list[list[Any]]:
    """Slots in runs of one owner, kind and step: ``[from, count, owner, kind, step]``."""
    found: list[list[Any]] = []
    for slot, words in enumerate(truth.slots):
        if found and tuple(found[-1][2:]) == words:
            found[-1][1] += 1
        else:
            found.append([slot, 1, *words])
    return found


def pieces(truth: LogTruth, *owners: str) -> int:
    """In how many stretches these owners' slots lie, taken together."""
    mine = [owner in owners for owner, *_ in truth.slots]
    return sum(here and not before for before, here in zip([False, *mine], mine, strict=False))


def paths(truth: LogTruth) -> list[list[Any]]:
    """Of each request that holds a path: who locks its end, who reads a part of it, its slots."""
    held = {rid: truth.path(number) for rid, number in truth.holds.items()}
    found = []
    for rid, path in sorted(held.items()):
        facts = []
        if path:
            locked = [truth.names[other] for other, others in held.items() if path[0] in others]
            facts.append(["Locked by", shortened(locked)])
        for number in path[1:]:
            also = [
                truth.names[other]
                for other, others in held.items()
                if other != rid and number in others and path[0] not in others
            ]
            if also:
                end = truth.nodes[number]["start"] + truth.nodes[number]["length"]
                facts.append([f"First {end:,} tok also by".replace(",", "\u2009"), shortened(also)])
                break
        owners = [rid, *(f"node:{number}" for number in path)]
        size, several = sum(owner in owners for owner, *_ in truth.slots), pieces(truth, *owners)
        facts.append(
            ["Slots", f"{size:,} in {several:,} run{'' if several == 1 else 's'}".replace(",", "\u2009")]
        )
        found.append([rid, facts])
    return found


def cells(truth: LogTruth) -> list[list[str]]:
    """What the first slot of each run is, in words."""
    return [cell(truth, slot, owner, kind, step) for slot, _, owner, kind, step in runs(truth)]


def cell(truth: LogTruth, slot: int, owner: str, kind: str, step: int) -> list[str]:
    """What a slot is, in words."""
    if kind == "free":
        return [f"slot {slot}  free"]
    if kind == "cached":
        node = truth.nodes.get(number := int(owner.removeprefix("node:")))
        if node is None:  # it went a moment before its slots
            return [f"slot {slot}  cached"]
        locks, hits = node["locks"], node["hits"]
        use = f"locked by {locks} request{'' if locks == 1 else 's'}" if locks else "evictable"
        span = f"tokens {node['start']} to {node['start'] + node['length']}"
        by = f", first computed for {truth.names[node['rid']]}" if node["rid"] else ""
        read = f"reused by {hits} request{'' if hits == 1 else 's'}"
        return [f"slot {slot}  cached, {use}", f"node {number}, {span}{by}", read]
    word = "scoring" if kind == "score" else kind
    when = f", written in step {step}" if step else ""
    return [f"slot {slot}  {word}{when}", truth.names[owner], "not in the tree yet"]


def free_runs(truth: LogTruth) -> list[int]:
    """How many runs of free slots, and the longest."""
    lengths, length = [], 0
    for owner, *_ in [*truth.slots, ("end", "", 0)]:
        if owner == "":
            length += 1
        elif length:
            lengths.append(length)
            length = 0
    return [len(lengths), max(lengths, default=0)]


def flight(truth: LogTruth, rid: str) -> tuple[int, int]:
    """Own slots of a request: (prefill or scoring, decode)."""
    decode = sum(owner == rid and kind == "decode" for owner, kind, _ in truth.slots)
    return sum(owner == rid for owner, *_ in truth.slots) - decode, decode


def holders(truth: LogTruth) -> list[list[Any]]:
    """Requests that hold slots, largest first: rid, name, state, own, shared, prefill, decode."""
    found = []
    for rid, state in truth.live.items():
        prefill, decode = flight(truth, rid)
        node = truth.nodes.get(truth.holds.get(rid, 0))
        shared = node["start"] + node["length"] if node else 0
        if prefill + decode + shared:
            word = (
                "waiting"
                if state in ("queued", "compiled")
                else "compiling grammar"
                if state == "compiling"
                else "decode"
                if decode or state == "first_token"
                else "prefill"
            )
            about = truth.requests[rid]
            new, computed = about["prompt"] - about["cached"], shared + prefill - about["cached"]
            if word == "prefill" and prefill and len(about["turns"]) == 1 and 0 < computed <= new:
                word = "prefill, " + f"{computed:,} of {new:,} new".replace(",", "\u2009")
            own = [rid, *(f"node:{number}" for number in truth.path(truth.holds.get(rid, 0)))]
            several = sum(pieces(truth, owner) for owner in own)
            found.append([rid, truth.names[rid], word, prefill + decode, shared, prefill, decode, several])
    return sorted(found, key=lambda row: (-row[3] - row[4], row[0]))[:12]


def shortened(names: list[str]) -> str:
    """The first six, and how many more."""
    return ", ".join(names[:6] + ([f"{len(names) - 6} more"] if len(names) > 6 else []))
