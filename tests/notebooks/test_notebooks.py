"""Every notebook of the project runs from top to bottom, and the stored outputs are the ones that come.

Strict: static display, deterministic engine, each output compared (cells tagged ``nbval-ignore-output`` show times or
the state of the machine). Lax: with widgets, as a reader runs it. The stored outputs can be the same on every machine
only where the model does not hesitate between two tokens, so that is measured too.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
CELL_SECONDS = 180
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
    for step in meta["output_top_logprobs"]:
        best, second = sorted((float(top[0]) for top in step), reverse=True)[:2]
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
def test_notebook_runs_with_widgets(path: Path) -> None:
    nbval("--nbval-lax", path)


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


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_model_never_hesitates_between_two_tokens(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGNB_DISPLAY", "static")
    monkeypatch.setenv("SGNB_DETERMINISTIC", "1")
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.source = cell.source.replace(
            "temperature=0", "temperature=0, return_logprob=True, top_logprobs_num=2"
        )
    notebook.cells.insert(0, nbformat.v4.new_code_cell(SPY))
    notebook.cells.append(nbformat.v4.new_code_cell(REPORT))
    NotebookClient(notebook, timeout=CELL_SECONDS, kernel_name="python3").execute()
    gaps = [float(line) for line in notebook.cells[-1].outputs[0].text.split()]
    assert len(gaps) >= 20
    assert min(gaps) > LEAST_GAP
