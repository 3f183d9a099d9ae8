"""The batch timeline on a real run with chunks, forks and retractions, and that run replayed in a fresh kernel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
from playwright.sync_api import Locator

THIN = "\u2009"
RUN = [
    "%load_ext sgnb",
    "%sgl launch --runner stub --max-total-tokens 420 --chunked-prefill-size 48 --schedule-conservativeness 0.05",
    "%sgl view timeline",
    "%sgl record start run",
    """%%sgl
s += "Rules of the house, for everybody who reads this, and they are many and long and wide. " * 2
branches = s.fork(4)
for i, b in enumerate(branches):
    b += f"Question {i} is this:" + gen("answer", max_tokens=70, ignore_eos=True)
branches.join()""",
    "%sgl record stop",
    """import json, sgnb
engine = sgnb.get_default_backend()
events = [numbered["event"] for numbered in engine.history(1, 5000)["events"]]
print(json.dumps([event for event in events if event["t"] in ("step", "request")]))""",
]
REPLAY = [
    "%load_ext sgnb",
    "import sgnb\nsgnb.replay('run.sgnb')",
    "[sgnb.get_default_backend()]",
]


def write(lab_server: Any, name: str, cells: list[str]) -> str:
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    made = [nbformat.v4.new_code_cell(source) for source in cells]
    notebook = nbformat.v4.new_notebook(cells=made, metadata=kernel)
    nbformat.write(notebook, Path(lab_server.folder) / name)
    return name


def rows_of(view: Locator, table: str) -> list[list[str]]:
    return [
        [cell.replace(THIN, "") for cell in row]
        for row in view.locator(f".sgnb-time-{table} tbody").evaluate(
            "body => [...body.rows].map(row => [...row.cells].map(cell => cell.textContent))"
        )
    ]


def show_all(view: Locator) -> None:
    """The table, of a window that holds the whole run."""
    view.get_by_role("radio", name="Table").click()
    view.press("0")
    for _ in range(3):
        view.press("-")
    view.locator(".sgnb-time-steps tbody tr").first.wait_for()


def name_of(label: dict[str, str]) -> str:
    place = f"{label.get('cell', '')}.{label['branch']}" if label.get("branch") else label.get("cell", "")
    return f"{place} {label.get('name', '')}".strip()


def check_tables(view: Locator, events: list[dict[str, Any]]) -> None:
    """Every number and reason of the tables, against a recount of the raw events."""
    steps = [event for event in events if event["t"] == "step"]
    assert len(steps) < 200, "the table shows at most 200"
    shown = rows_of(view, "steps")
    assert [row[:5] for row in shown] == [
        [
            str(step["step"]),
            step["mode"],
            str(len(step["rows"])),
            str(sum(row["tokens"] for row in step["rows"] if row["kind"] != "decode")),
            str(sum(row["tokens"] for row in step["rows"] if row["kind"] == "decode")),
        ]
        for step in steps
    ]
    for row, step in zip(shown, steps, strict=True):
        notes = step.get("notes", [])
        retracted = [n for n in notes if n["what"] == "retracted"]
        for note in retracted:
            assert f"decoding needs {note['needs']} slots, has {note.get('has', 0)}." in row[8]
        for note in notes:
            if note["what"] == "deferred" and note["reason"] == "kv":
                assert f"short of KV, needs {note['needs']} slots, has {note.get('has', 0)}." in row[8]
        assert row[8].count("Retracted") == bool(retracted)
        assert ("Admitted" in row[8]) == any(note["what"] == "admitted" for note in notes)
    requests: dict[str, dict[str, Any]] = {}
    for event in events:
        if event["t"] != "request":
            continue
        about = requests.setdefault(event["rid"], {"name": name_of(event["label"]), "retracted": 0})
        about["retracted"] += event["state"] == "retracted"
        if event["state"] == "admitted":
            about.setdefault("reused", event.get("cached_tokens", 0))
            about.setdefault("prompt", event.get("prompt_tokens", 0))
    for rid, about in requests.items():
        about["decoded"] = sum(
            row["tokens"]
            for step in steps
            for row in step["rows"]
            if row["rid"] == rid and row["kind"] == "decode"
        )
    expected = [
        [about["name"], str(about["reused"]), str(about["decoded"]), str(about["retracted"]), "finished"]
        for about in requests.values()
    ]
    found = [[row[0], row[2], row[4], row[5], row[6]] for row in rows_of(view, "requests")]
    assert sorted(found) == sorted(expected)


def test_a_run_in_the_timeline_and_its_replay(lab_server: Any, lab: Any) -> None:
    lab.open(write(lab_server, "timeline.ipynb", RUN))
    for index in range(3):
        lab.run_cell(index)
        lab.cell_done(index)
    view = lab.cell(2).locator(".sgnb-view")
    view.wait_for()
    view.locator(".sgnb-empty", has_text="Nothing has run yet.").wait_for()
    for index in (3, 4, 5, 6):
        lab.run_cell(index)
        lab.cell_done(index)
    events = json.loads(lab.cell(6).locator(".jp-OutputArea-output pre").inner_text())
    prefills = [
        row["rid"] for e in events if e["t"] == "step" for row in e["rows"] if row["kind"] == "prefill"
    ]
    assert any(prefills.count(rid) > 2 for rid in prefills), "a prompt was computed in chunks"
    assert any(e["t"] == "request" and e["state"] == "retracted" for e in events), "a request was retracted"

    view.scroll_into_view_if_needed()
    lab.page.wait_for_function("() => document.querySelector('.sgnb-view')?.dataset.state === 'ok'")
    show_all(view)
    check_tables(view, events)
    lab.shot("timeline-table")

    # A step, a request and an event by keyboard and by click; the side column has the words.
    view.get_by_role("radio", name="Timeline").click()
    steps = view.locator(".sgnb-time-top")
    steps.focus()
    retracted = next(
        e for e in events if e["t"] == "step" and any(n["what"] == "retracted" for n in e.get("notes", []))
    )
    view.get_by_label("Step", exact=True).fill(str(retracted["step"]))
    view.get_by_label("Step", exact=True).press("Enter")
    view.locator(".sgnb-time-step h3", has_text=f"Step {retracted['step']}, {retracted['mode']}").wait_for()
    assert "Retracted" in view.locator(".sgnb-time-decided").inner_text()
    view.locator(".sgnb-time-batch tr").first.click()
    about = view.locator(".sgnb-time-about")
    about.locator("dl").wait_for()
    assert "reused" in about.inner_text()
    lab.shot("timeline")
    steps.press("Escape")

    # Files: Perfetto's, and what another policy would have done.
    view.get_by_role("button", name="Export Perfetto…").click()
    view.get_by_label("What to export").select_option("all")
    view.get_by_label("File of the export").fill("run.json")
    view.get_by_role("button", name="Export", exact=True).click()
    view.locator(".sgnb-time-answer", has_text="Wrote run.json").wait_for()
    trace = json.loads((Path(lab_server.folder) / "run.json").read_text())
    names = [e["name"] for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == 1 and e["tid"] == 1]
    steps_of = [event for event in events if event["t"] == "step"]
    assert [name for name in names if name.split()[0] in ("extend", "decode", "mixed")] == [
        f"{step['mode']} {step['step']}" for step in steps_of
    ]
    view.get_by_role("button", name="Compare policies…").click()
    view.get_by_role("button", name="Compare", exact=True).click()
    compared = view.locator(".sgnb-time-compared")
    compared.wait_for()
    heads = compared.locator("thead th").all_inner_texts()
    assert heads == ["policy lpm", "policy fcfs"]

    # The same in a fresh kernel, without an engine.
    lab.open(write(lab_server, "replay.ipynb", REPLAY))
    for index in range(3):
        lab.run_cell(index)
        lab.cell_done(index)
    assert lab.cell(2).locator(".jp-OutputArea-output pre").inner_text() == "[None]"
    timeline = lab.cell(1).locator(".sgnb-view-timeline")
    timeline.locator(".sgnb-player").wait_for()
    for kind in ("tree", "kv", "timeline"):  # a view draws when it is seen
        lab.cell(1).locator(f".sgnb-view-{kind}").scroll_into_view_if_needed()
        lab.cell(1).locator(f'.sgnb-view-{kind}[data-state="ok"]').wait_for()
    show_all(timeline)
    recorded = [event for event in events if event["t"] != "step" or event["step"] >= 1]
    check_tables(timeline, recorded)
    timeline.get_by_role("radio", name="Timeline").click()
    timeline.get_by_label("Speed").select_option("0.1")
    timeline.get_by_role("button", name="Play").click()
    timeline.get_by_role("button", name="Pause").click()
    timeline.get_by_label("Step", exact=True).fill(str(retracted["step"]))
    timeline.get_by_label("Step", exact=True).press("Enter")
    lab.shot("replay")
    for kind in ("tree", "kv"):
        other = lab.cell(1).locator(f".sgnb-view-{kind}")
        other.scroll_into_view_if_needed()
        lab.page.wait_for_function(
            "([kind, step]) => document.querySelector(`.sgnb-view-${kind}`).dataset.step === step",
            arg=[kind, str(retracted["step"])],
        )
    lab.check_clean()
