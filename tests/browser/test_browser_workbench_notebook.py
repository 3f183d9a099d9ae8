"""The workbench notebook in a real JupyterLab: every view shows its run, and stands beside it as a docked pane.

Keeps pictures under ``test-results``; with ``SGNB_PICTURES`` set to a folder, there: those of ``docs/`` are made so.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import nbformat

ROOT = Path(__file__).parents[2]
VIEWS = {
    "tree": "%sgl view tree",
    "kv": "%sgl view kv",
    "timeline": "%sgl view timeline",
    "graph": "sgnb.graph",
}


def place(cells: list[Any], text: str) -> int:
    """The place of the code cell that holds ``text``."""
    return next(i for i, cell in enumerate(cells) if cell.cell_type == "code" and text in cell.source)


def picture(name: str) -> Path:
    """Where a picture of that name goes."""
    folder = Path(os.environ.get("SGNB_PICTURES") or ROOT / "test-results")
    folder.mkdir(exist_ok=True)
    return folder / f"workbench-{name}.png"


def test_every_view_shows_the_run(lab: Any, lab_server: Any) -> None:
    path = Path(lab_server.folder) / "workbench.ipynb"
    shutil.copy(ROOT / "notebooks" / "workbench.ipynb", path)
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    nbformat.write(notebook, path)
    cells = list(notebook.cells)
    lab.page.set_viewport_size({"width": 1480, "height": 900})
    lab.open("workbench.ipynb")
    lab.open_panel()
    for index in range(place(cells, "%sgl view tree")):
        if cells[index].cell_type == "code":
            lab.run_cell(index)
            lab.cell_done(index)
    program = place(cells, "-o review")
    view = lab.cell(program).locator('.sgnb-program[data-state="finished"]')
    view.wait_for()
    assert "branch 2" in view.inner_text() and "tokens reused" in view.inner_text()
    view.scroll_into_view_if_needed()
    view.screenshot(path=picture("program"))
    for kind, source in VIEWS.items():
        index = place(cells, source)
        lab.run_cell(index)
        lab.cell_done(index)
        shown = lab.cell(index).locator(f".sgnb-view-{kind}")
        shown.scroll_into_view_if_needed()  # nothing is drawn while it is not seen
        lab.cell(index).locator(f'.sgnb-view-{kind}[data-ready="1"]').wait_for()
        lab.page.wait_for_timeout(700)
        shown.screenshot(path=picture(kind))
        if kind == "tree":
            text = shown.inner_text()
            assert "Prompts and what they reused" in text and "4.1 finding" in text and "evictable" in text
    lab.page.evaluate("() => window.jupyterapp.commands.execute('sgnb:open-standard-layout')")
    docked = lab.page.locator('.lm-DockPanel .sgnb-view[data-ready="1"]:visible')
    lab.page.wait_for_function(
        """() => ['tree', 'timeline'].every(kind => [...document.querySelectorAll(
          `.lm-DockPanel-widget:not(.jp-NotebookPanel) .sgnb-view-${kind}`)].some(view => view.dataset.ready === '1'))"""
    )
    assert docked.count() >= 2
    lab.cell(program).locator(".sgnb-program").scroll_into_view_if_needed()
    lab.page.wait_for_timeout(900)
    lab.page.screenshot(path=picture("lab"))
    lab.check_clean()
