"""Every notebook of the project runs from top to bottom, and the stored outputs are the ones that come.

Strict: static display, deterministic engine, each output compared (cells tagged ``nbval-ignore-output`` show times or
the state of the machine). With widgets: all in one kernel on one engine, where it is also measured that the model never
hesitates between two tokens or two options: only then are the stored outputs the same on every machine. As a reader has it,
in JupyterLab and in the usual precision, the quickstart runs in ``tests/browser``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
ON_A_STUB = {"scheduler"}
"""Notebooks about the engine itself: an engine of their own without a model, so there is nothing to hesitate between."""
CELL_SECONDS = 180
TAG = re.compile("<[^>]*>")
LEAST_GAP = 1e-3

SPY = """
import sgnb.runtime.core as core

metas, meta_info = [], core.meta_info

def spy(*args, **kwargs):
    metas.append(meta_info(*args, **kwargs))
    return metas[-1]

core.meta_info = spy
"""
REPORT = """
for meta in metas:
    rows = [[float(top[0]) for top in step] for step in meta.get("output_top_logprobs", [])]
    for row in [*rows, meta.get("scores", [])]:
        if len(row) > 1:
            best, second = sorted(row, reverse=True)[:2]
            print(best - second)
"""


def nbval(mode: str, path: Path, **env: str) -> None:
    """Run one notebook under nbval in a process of its own; what it prints is the failure's text."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("SGNB_D", "PYTEST_"))}
    command = [sys.executable, "-m", "pytest", "-q", "-c", str(ROOT / "tests/notebooks/nbval.ini"), mode]
    command += ["--nbval-current-env", f"--nbval-cell-timeout={CELL_SECONDS}", str(path)]
    done = subprocess.run(command, cwd=ROOT, env=clean | env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_outputs_are_the_ones_that_come(path: Path) -> None:
    nbval("--nbval", path, SGNB_DISPLAY="static", SGNB_DETERMINISTIC="1")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_stored_clean(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert "widgets" not in notebook.metadata, "saved widget state belongs in no committed notebook"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), (
        "run once, from top to bottom"
    )
    for cell in code:
        for output in cell.outputs:
            assert output.output_type != "error"
            if output.output_type in ("display_data", "execute_result"):
                assert {"text/html", "text/plain"} <= set(output.data), "readable without a kernel"
                assert "application/vnd.jupyter.widget-view+json" not in output.data


def test_model_never_hesitates_and_all_run_with_widgets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGNB_DETERMINISTIC", "1")
    monkeypatch.setenv("SGNB_DISPLAY", "widget")  # as a page would have it
    cells = [nbformat.v4.new_code_cell(SPY)]
    with_model = [path for path in NOTEBOOKS if path.stem not in ON_A_STUB]
    for path in with_model:
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type != "code" or cell.source.startswith("%sgl stop"):
                continue  # one engine serves them all; a second %sgl launch finds it running
            # what a notebook asks of its engine beside the model is no matter of what the model says
            cell.source = re.sub(r"^%sgl launch .*$", "%sgl launch", cell.source, flags=re.MULTILINE)
            cell.source = cell.source.replace(
                "temperature=0", "temperature=0, return_logprob=True, top_logprobs_num=2"
            )
            cells.append(nbformat.v4.new_code_cell(cell.source))
        cells.append(nbformat.v4.new_code_cell(REPORT + "metas.clear()"))
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=CELL_SECONDS, kernel_name="python3").execute()
    reports = [cell for cell in notebook.cells if cell.source.startswith(REPORT)]
    for path, report in zip(with_model, reports, strict=True):
        gaps = [float(line) for line in report.outputs[0].text.split()]
        assert len(gaps) >= 20, path.stem
        assert min(gaps) > LEAST_GAP, path.stem
    assert has_widgets(notebook)


@pytest.mark.parametrize("name", sorted(ON_A_STUB))
def test_notebook_on_a_stub_runs_with_widgets(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGNB_DISPLAY", "widget")  # as a page would have it
    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    NotebookClient(notebook, timeout=CELL_SECONDS, kernel_name="python3").execute()
    assert has_widgets(notebook)


def test_a_notebook_run_with_no_page_keeps_what_every_reader_can_show(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """nbconvert --execute --to html: exporters prefer a widget's view, and have no script of it."""
    monkeypatch.delenv("SGNB_DISPLAY", raising=False)
    cells = [
        "%load_ext sgnb\n%sgl launch --runner stub",
        "%%sgl\ns += 'abc' + gen('x', max_tokens=4, ignore_eos=True)",
        "%sgl view tree",
        "%sgl view kv",
        "%sgl view timeline",
        "%sgl stop",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=CELL_SECONDS, kernel_name="python3").execute()
    page, _ = HTMLExporter().from_notebook_node(notebook)
    assert "application/vnd.jupyter.widget-view+json" not in page
    for cell in notebook.cells[1:5]:
        (html,) = [output.data["text/html"] for output in cell.outputs if "data" in output]
        assert "".join(TAG.split(html)) in "".join(TAG.split(page)), "the exporter writes tags in its own way"


def has_widgets(notebook: nbformat.NotebookNode) -> bool:
    shown = [output for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
    return any("application/vnd.jupyter.widget-view+json" in output.data for output in shown)
