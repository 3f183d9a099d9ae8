"""Two tabs, reloads in mid-stream, a lost line, a restarted kernel, another base URL: what was seen is seen again.

Rows F71, F74, F75, B168, B169, B170, B175, B181 of the fault lists.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from typing import Any

import nbformat
import pytest
from conftest import LabPage, LabServer
from playwright.sync_api import Browser

CELLS = [
    "%load_ext sgnb",
    "%sgl launch --runner stub --stub-step-seconds 0.05 --max-total-tokens 4096",
    '%%sgl -o out\ns += user("A long story.")\nforks = s.fork(2)\nfor i, b in enumerate(forks):\n'
    '    b += f"Arm {i}: " + gen("x", max_tokens=TOKENS, ignore_eos=True, temperature=0)\nforks.join()',
    """import json
texts = {}
for entry in out.core.log.since(0):
    event = entry.event
    if type(event).__name__ == "GenQueued":
        texts[event.rid] = ""
    elif type(event).__name__ == "GenDelta":
        texts[event.rid] += event.text
json.dump(list(texts.values()), open("told.json", "w"))""",
    "%sgl view kv",
    "import ipywidgets\nipywidgets.HTML('of somebody else')",
]
TEXTS = """() => [...document.querySelectorAll('.sgnb-program .sgnb-arm')].map(
  arm => [...arm.querySelectorAll('.sgnb-model')].map(node => node.textContent).join(''))"""
KERNEL = "[...window.jupyterapp.shell.widgets('main')].find(one => one.sessionContext)?.sessionContext.session?.kernel"
KV = """() => { const canvas = document.querySelector('.sgnb-view-kv canvas.sgnb-kv-canvas');
  return JSON.stringify([canvas.width, canvas.height, canvas.toDataURL()]); }"""
KV_SUM = "✓ free + cached + in use = 4\u2009096"
REFUSED = "Error displaying widget: model not found"
LAB_SAYS = ("Comm not found for comm id", "widget model not found", "WebSocket", "Kernel connection")


def write(server: LabServer, name: str, tokens: int = 200) -> str:
    """A notebook in the server's folder."""
    cells = [nbformat.v4.new_code_cell(source.replace("TOKENS", str(tokens))) for source in CELLS]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), server.folder / name)
    return name


def save(lab: LabPage) -> None:
    lab.page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save').then(() => null)")


def model_text(lab: LabPage, count: int = 1) -> None:
    """Wait until both branches show some text."""
    lab.page.wait_for_function(
        f"count => {{ const texts = ({TEXTS})(); return texts.length === 2 && texts.every(t => t.length >= count); }}",
        arg=count,
    )


def finished(lab: LabPage) -> list[str]:
    lab.page.locator('.sgnb-program[data-state="finished"]').wait_for()
    return list(lab.page.evaluate(TEXTS))


@pytest.mark.widget
def test_F71_B175_two_tabs_and_reloads_in_mid_stream_show_what_the_kernel_has(
    lab: Any, lab_server: Any, browser: Browser
) -> None:
    """Both tabs are reloaded at random moments, one loses its line; when the run has ended both show the kernel's own text.

    A page that loads beside a busy cell gets its widgets when the cell ends: JupyterLab asks for them on the main shell,
    and sometimes gives up, so that the output wants one more reload.
    """
    name = write(lab_server, "tabs.ipynb")
    lab.open(name)
    for index in (0, 1):
        lab.run_cell(index)
        lab.cell_done(index)
    lab.run_cell(2)
    model_text(lab)
    save(lab)
    context = browser.new_context(viewport={"width": 1280, "height": 860}, reduced_motion="reduce")
    other = LabPage(lab_server, context)
    other.page.goto(f"{lab_server.origin}/lab/workspaces/other/tree/{name}?token={lab_server.token}")
    other.cell(0).wait_for()
    rng = random.Random(7)
    for page in (lab, other, lab):
        page.page.wait_for_timeout(rng.randint(50, 900))
        page.page.reload()
        page.cell(0).wait_for()
    other.page.wait_for_function(f"() => ({KERNEL}) !== undefined")
    other.page.evaluate(
        f"() => ({KERNEL})._ws.close()"  # the line is lost; JupyterLab connects anew by itself
    )
    for page in (lab, other):
        page.page.wait_for_function(f"() => ({KERNEL})?.status === 'idle'")
        if page.page.locator('.sgnb-program[data-state="finished"]').count() == 0:
            page.page.reload()
    shown = [finished(lab), finished(other)]
    lab.run_cell(3)
    lab.cell_done(3)
    kept = json.loads((lab_server.folder / "told.json").read_text())
    assert len(kept) == 2 and all(len(text) > 100 for text in kept)
    assert shown == [kept, kept]
    # What was on its way to a comm that the page did not know yet is JupyterLab's to tell, as is a widget it gave up.
    for page in (lab, other):
        page.errors[:] = [one for one in page.errors if not any(words in one for words in LAB_SAYS)]
    other.check_clean()
    context.close()
    lab.check_clean()


@pytest.mark.widget
def test_F75_where_the_script_cannot_be_loaded_the_table_streams(lab: Any, lab_server: Any) -> None:
    """An old browser unpacks no script. The panel shows the table that comes with the view and has it renewed."""
    name = write(lab_server, "broken.ipynb", tokens=60)
    lab.open(name)
    lab.page.evaluate("() => { delete window.DecompressionStream; }")
    for index in (0, 1):
        lab.run_cell(index)
        lab.cell_done(index)
    lab.run_cell(2)
    lab.cell(2).locator("table", has_text="Running · 25 of 56 prompt tokens reused").wait_for()
    lab.cell_done(2)
    lab.cell(2).locator("table", has_text="Finished in").wait_for()
    lab.run_cell(4)
    lab.cell_done(4)
    lab.cell(4).get_by_text("The script of the live view could not be loaded. This is its table.").wait_for()
    lab.cell(4).locator(".sgnb-Saved table", has_text="KV map").wait_for()
    assert lab.cell(4).get_by_text("Run the cell again").locator("visible=true").count() == 0


@pytest.mark.widget
def test_F74_a_notebook_with_its_widgets_state_is_drawn_without_their_kernel(
    lab: Any, lab_server: Any
) -> None:
    """Where the state of widgets is saved it holds the core once, and a page that has only that draws every view."""
    name = write(lab_server, "stateful.ipynb", tokens=20)
    path = lab_server.folder / name
    notebook = nbformat.read(path, as_version=4)
    told = "json.dump(ipywidgets.Widget.get_manager_state(), open('state.json', 'w'))"
    notebook.cells[3].source = f"import ipywidgets, json\n{told}"
    nbformat.write(notebook, path)
    lab.open(name)
    for index in (0, 1, 2, 4, 3):
        lab.run_cell(index)
        lab.cell_done(index)
    texts = finished(lab)
    save(lab)
    notebook = nbformat.read(path, as_version=4)
    state = json.loads((lab_server.folder / "state.json").read_text())
    assert sum("packed" in model["state"] for model in state["state"].values()) == 1
    assert sum("_esm" in model["state"] for model in state["state"].values()) == 2
    notebook.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": state}
    nbformat.write(notebook, lab_server.folder / "elsewhere.ipynb")
    trust = [sys.executable, "-m", "jupyter", "trust", str(lab_server.folder / "elsewhere.ipynb")]
    data = {**os.environ, "JUPYTER_DATA_DIR": str(lab_server.home / "data")}
    subprocess.run(trust, env=data, check=True, capture_output=True, timeout=60)
    lab.page.reload()
    lab.open("elsewhere.ipynb")
    assert finished(lab) == texts
    lab.cell(4).locator(".sgnb-view-kv").wait_for()
    assert lab.page.locator(".sgnb-Saved, .sgnb-unloaded").count() == 0


@pytest.mark.widget
@pytest.mark.security
def test_F74_B168_B169_B170_what_is_saved_is_shown_without_its_kernel(lab: Any, lab_server: Any) -> None:
    """The map's bytes come again after a reload; without the kernel's models the table stands in their place, and an
    untrusted notebook shows its text and runs nothing."""
    name = write(lab_server, "saved.ipynb", tokens=20)
    lab.page.set_viewport_size({"width": 1280, "height": 1700})  # what is not seen is not drawn
    lab.open(name)
    for index in (0, 1, 2, 4, 5):
        lab.run_cell(index)
        lab.cell_done(index)
    kv = lab.cell(4).locator('.sgnb-view-kv[data-state="ok"][data-ready="1"]')
    kv.get_by_text(KV_SUM).wait_for()
    before = lab.page.evaluate(KV)
    save(lab)
    lab.page.reload()
    lab.ready(name)
    kv.get_by_text(KV_SUM).wait_for()
    lab.page.wait_for_function(f"before => ({KV})() === before", arg=before)
    texts = finished(lab)
    saved = json.loads((lab_server.folder / name).read_text())
    assert "widgets" not in saved["metadata"], "no state of widgets is kept: it would hold their scripts"

    # Restarted: nothing knows the models any more.
    kernel = lab.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.id")
    lab_server.request(f"api/kernels/{kernel}/restart", method="POST", body={})
    lab.page.reload()
    lab.ready(name)
    table = lab.cell(2).locator(".sgnb-Saved table")
    table.wait_for()
    lab.cell(2).locator(".sgnb-Saved-note", has_text="Run the cell again to see it live.").wait_for()
    assert "Finished in" in table.inner_text() and all(text in table.inner_text() for text in texts)
    lab.cell(4).locator(".sgnb-Saved table", has_text="KV map").wait_for()
    lab.cell(5).get_by_text(REFUSED).wait_for()
    assert lab.cell(5).locator(".sgnb-Saved").count() == 0, "another's output is the manager's"
    assert lab.page.get_by_text(REFUSED).locator("visible=true").count() == 1
    assert lab.page.locator("[data-mime-type='application/vnd.jupyter.stderr']").count() == 0
    lab.shot("saved-restarted")

    # The live view again when its cell has run again; and a second view of an output that has none.
    for index in (0, 1, 4):
        lab.run_cell(index)
        lab.cell_done(index)
    lab.cell(4).locator(".sgnb-view-kv").get_by_text("Nothing has run yet.").wait_for()
    assert lab.cell(4).locator(".sgnb-Saved").count() == 0
    assert lab.cell(2).locator(".sgnb-Saved").count() == 1
    lab.page.evaluate(
        """() => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = 2;
          return window.jupyterapp.commands.execute('notebook:create-output-view').then(() => null); }"""
    )
    lab.page.locator(".jp-LinkedOutputView .sgnb-Saved table", has_text="Finished in").wait_for()

    # Written by somebody else: the same text, and no script.
    output = next(o for o in saved["cells"][2]["outputs"] if "text/html" in o.get("data", {}))
    whole = "".join(output["data"]["text/html"])
    output["data"]["text/html"] = (
        whole + "<script>window.broken = 1</script><img src=x onerror='window.broken = 2'>"
    )
    (lab_server.folder / "foreign.ipynb").write_text(json.dumps(saved))
    lab.open("foreign.ipynb")
    assert not lab.page.evaluate(
        "() => window.jupyterapp.shell.currentWidget.content.model.cells.get(2).trusted"
    )
    table = lab.cell(2).locator(".jp-OutputArea table")
    table.wait_for()
    assert all(text in table.inner_text() for text in texts)
    assert lab.cell(2).locator(".sgnb-program, .sgnb-Saved").count() == 0
    # Trusted now, and no model: what stands in is not trusted with it.
    lab.page.evaluate(
        "() => { window.jupyterapp.shell.currentWidget.content.model.cells.get(2).trusted = true; }"
    )
    lab.cell(2).locator(".sgnb-Saved table").wait_for()
    lab.page.wait_for_function("() => document.querySelector('.sgnb-Saved img')?.complete")
    assert lab.page.evaluate("() => window.broken") is None
    # The manager tells the console what it did not find, and the browser that there is no such picture.
    lab.errors[:] = [one for one in lab.errors if LAB_SAYS[1] not in one and "/files/x?" not in one]
    lab.check_clean()


@pytest.mark.panel
def test_B181_the_panel_and_the_views_work_under_another_base_url(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    server = LabServer(tmp_path_factory.mktemp("proxied"), base="/user/ada")
    context = browser.new_context(viewport={"width": 1280, "height": 860}, reduced_motion="reduce")
    try:
        page = LabPage(server, context)
        page.open(write(server, "ada.ipynb", tokens=5))
        page.open_panel()
        for index in (0, 1, 2):
            page.run_cell(index)
            page.cell_done(index)
        panel = page.panel_state("idle")
        finished(page)
        panel.get_by_role("button", name="Radix tree").click()
        page.page.locator('.sgnb-pane .sgnb-view[data-kind="tree"][data-ready="1"]').wait_for()
        assert "/user/ada/" in page.page.url
        page.check_clean()
    finally:
        context.close()
        server.stop()
