"""The quickstart in a real JupyterLab: tokens stream, the panel follows, a reload loses nothing."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
WATCH = """index => {
  const cell = document.querySelector(`.jp-Notebook .jp-Cell[data-windowed-list-index="${index}"]`);
  const record = (window.sgnbWatch = {seqs: [], states: [], texts: []});
  const look = () => {
    const view = cell.querySelector('.sgnb-program');
    if (!view) return;
    const seq = Number(view.dataset.seq);
    if (record.seqs[record.seqs.length - 1] === seq) return;
    record.seqs.push(seq);
    record.states.push(view.dataset.state);
    record.texts.push(view.innerText);
  };
  new MutationObserver(look).observe(cell, {subtree: true, childList: true, attributeFilter: ['data-seq']});
}"""
LONG = """%%sgl
s += user("Tell a long story.")
s += assistant(gen("story", max_tokens=2000, ignore_eos=True, temperature=0))"""
PANEL_WATCH = """() => {
  const content = document.querySelector('.sgnb-Panel-content');
  const seen = (window.sgnbPanel = [content.dataset.state]);
  new MutationObserver(() => {
    if (seen[seen.length - 1] !== content.dataset.state) seen.push(content.dataset.state);
  }).observe(content, {attributeFilter: ['data-state']});
}"""


def find(cells: list[Any], text: str) -> int:
    """The place of the code cell that holds ``text``."""
    return next(i for i, cell in enumerate(cells) if cell.cell_type == "code" and text in cell.source)


@pytest.fixture
def quickstart(lab_server: Any) -> list[Any]:
    """The notebook in the server's folder, without stored outputs; returns its cells."""
    path = Path(lab_server.folder) / "quickstart.ipynb"
    shutil.copy(ROOT / "notebooks" / "quickstart.ipynb", path)
    notebook = nbformat.read(path, as_version=4)
    stop = find(notebook.cells, "%sgl stop")
    notebook.cells.insert(stop, nbformat.v4.new_code_cell(LONG))
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
            cell.execution_count = None
    nbformat.write(notebook, path)
    return list(notebook.cells)


def test_quickstart_streams_and_the_panel_follows(lab: Any, quickstart: list[Any]) -> None:
    lab.open("quickstart.ipynb")
    lab.open_panel()
    lab.panel_state("not-loaded")
    lab.page.evaluate(PANEL_WATCH)

    lab.run_cell(find(quickstart, "%load_ext"))
    lab.panel_state("no-engine")
    lab.run_cell(find(quickstart, "%sgl launch"))
    lab.panel_state("starting")
    lab.panel_state("idle")
    states = lab.page.evaluate("() => window.sgnbPanel")
    assert [state for state in states if state in ("not-loaded", "no-engine", "starting", "idle")] == [
        "not-loaded",
        "no-engine",
        "starting",
        "idle",
    ]
    assert "smollm2-135m-instruct" in lab.panel.inner_text()

    lab.run_cell(find(quickstart, 'country = "France"'))
    first = find(quickstart, "-o capital")
    lab.page.evaluate(WATCH, first)
    lab.run_cell(first)
    view = lab.cell(first).locator('.sgnb-program[data-state="finished"]')
    view.wait_for()
    assert "Paris" in view.inner_text()
    watched = lab.page.evaluate("() => window.sgnbWatch")
    assert watched["seqs"] == sorted(watched["seqs"])
    assert len(watched["seqs"]) >= 3, "the text came in several pieces"
    answers = [text for text in watched["texts"] if "The capital" in text]
    assert any("Paris" not in text for text in answers), "a part of the answer was shown before the whole"

    last = find(quickstart, "capital.messages()")
    for index in range(first + 1, last + 1):
        if quickstart[index].cell_type == "code":
            lab.run_cell(index)
            lab.cell_done(index)
    assert (
        "assistant: The capital of France is Paris." in lab.cell(last).locator(".jp-OutputArea").inner_text()
    )
    lab.panel_state("idle", "running")
    assert int(lab.panel.locator('[data-number="reused"]').inner_text()) > 0

    lab.cell(first).scroll_into_view_if_needed()
    picture = lab.shot("quickstart")
    if os.environ.get("SGNB_KEEP_PICTURES"):
        shutil.copy(picture, ROOT / "docs" / "quickstart.png")
    lab.page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save').then(() => null)")
    lab.page.reload()
    lab.ready("quickstart.ipynb")
    lab.open_panel()
    lab.panel_state("idle")
    lab.cell(first).locator(".jp-OutputArea", has_text="Paris").wait_for()

    story = find(quickstart, "Tell a long story.")
    lab.run_cell(story)
    lab.panel_state("running")
    lab.page.evaluate("() => void window.jupyterapp.commands.execute('notebook:interrupt-kernel')")
    lab.panel_state("idle")
    lab.cell(story).locator('.sgnb-program[data-state="stopped"]').wait_for()

    lab.run_cell(find(quickstart, "%sgl stop"))
    lab.panel_state("no-engine")
    lab.check_clean()


def test_panel_starts_flushes_and_stops_an_engine(lab: Any, lab_server: Any) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("%load_ext sgnb")])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, Path(lab_server.folder) / "empty.ipynb")
    lab.open("empty.ipynb")
    content = lab.open_panel()
    lab.panel_state("not-loaded")
    content.get_by_role("button", name="Load extension").click()
    lab.panel_state("no-engine")
    content.get_by_role("button", name="Start engine").click()
    lab.panel_state("starting")
    lab.panel_state("idle")
    content.get_by_role("button", name="Flush cache").click()
    content.locator(".sgnb-Panel-message", has_text="Flushed").wait_for()
    content.get_by_role("button", name="Open log").click()
    lab.page.locator(".sgnb-Log pre", has_text="client 1").wait_for()
    lab.shot("panel-log")
    content.get_by_role("button", name="Stop engine").click()
    lab.panel_state("no-engine")
    kernels = json.loads(lab_server.request("api/kernels"))
    assert [kernel["execution_state"] for kernel in kernels] == ["idle"]
    lab.check_clean()
