"""The static form's words for causes and decisions: those of the page, and what its tables make of them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sgnb.widgets import tables
from sgnb.widgets.reasons import Past, decisions, reason_of
from sgnb.widgets.tables import kv_table

DUMP = Path(__file__).parents[1] / "js" / "dump_words.mjs"


@pytest.fixture(scope="module")
def told() -> list[dict[str, Any]]:
    node = shutil.which("node")
    assert node, "Node 20 or newer is needed, as for make setup"
    done = subprocess.run([node, str(DUMP)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return list(json.loads(done.stdout))


def test_causes_are_told_as_the_page_tells_them(told: list[dict[str, Any]]) -> None:
    seen = set()
    for part in told:
        past = Past(part["events"], part["picture"])
        assert len(part["reasons"]) >= 10
        for rid, said in part["reasons"]:
            request = past.requests[rid]
            reason = reason_of(request, past)
            assert (reason.word, list(reason.sentences), reason.advice) == (
                said["word"],
                said["sentences"],
                said["advice"],
            )
            assert request.match is not None
            seen.add(request.match["cause"])
    assert len(seen) == 11, "each cause of a Match"


def test_decisions_are_told_as_the_page_tells_them(told: list[dict[str, Any]]) -> None:
    said = 0
    for part in told:
        past = Past(part["events"], part["picture"])
        for step, (number, sentences) in zip(past.steps, part["decisions"], strict=True):
            assert step["step"] == number
            assert decisions(step, past) == sentences
            said += len(sentences)
    assert said > 150


def test_evictions_for_a_request_are_counted_by_the_pass_that_made_them() -> None:
    note = {"rid": "c1.r2", "what": "evicted", "reason": "lru", "unit": "slots", "needs": 30, "has": 1200}
    label = {"cell": "9", "branch": "1", "name": "finding"}
    event = {"t": "request", "time": 1.0, "rid": "c1.r2", "client": 1, "label": label, "state": "queued"}
    step = {"t": "step", "time": 2.0, "step": 4, "rows": [], "notes": [note]}
    past = Past([{"seq": 1, "event": event}, {"seq": 2, "event": step}])
    assert decisions(step, past) == ["Evicted 1\u2009200 tokens for 9.1 (least recently used)."]


def test_tables_tell_reuse_requests_and_decisions(told: list[dict[str, Any]]) -> None:
    part = told[1]
    text = tables.text_of(tables.timeline_table(part["events"], part["picture"]))
    assert "decided before: Admitted 15.0 and 15.1: longest cached prefix, 312 of 432." in text
    assert "Not admitted 17: short of KV, needs 680 slots, has 412." in text
    rows = [line.split() for line in text.partition("\nRequests\n")[2].splitlines()]
    assert ["16", "reply", "13", "ms", "500", "340", "40", "aborted"] in rows
    assert ["17", "answer", "0.14", "s", "680", "0", "–", "admitted"] in rows
    shown = tables.html_of(tables.tree_table({**part["picture"], "runs": []}, {}, part["events"]))
    shown = shown.replace(tables.LEFT, "")
    assert "<th colspan=4>Prompts and what they reused</th>" in shown
    assert "<td>15.0 tip</td><td>432</td><td>312</td><td>new text</td></tr>" in shown


def test_no_state_of_the_map_has_fewer_slots_than_none() -> None:
    """Of a large pool the picture leaves runs out: what is locked can be more than what it shows as cached."""
    nodes = [[1, 0, 0, 10, 1, 0, 0, 0, 0.0, 0]]
    shown = {
        "slots": 100,
        "page_size": 1,
        "nodes": nodes,
        "runs": [["node:1", 0, 6, ""]],
        "runs_left_out": 1,
        "requests": [],
    }
    rows = {row[0]: row[1] for row in kv_table(shown).rows}
    assert rows == {
        "cached, locked": "6",
        "prefill, in flight": "0",
        "decode, in flight": "0",
        "cached, evictable": "0",
        "free": "94",
    }
