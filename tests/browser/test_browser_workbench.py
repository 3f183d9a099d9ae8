"""The workbench in a real JupyterLab on a stub engine: docked views, editing help, playhead, restoring, accessibility."""

from __future__ import annotations

import contextlib
import gzip
import json
from pathlib import Path
from typing import Any

import nbformat
import pytest
from playwright.sync_api import TimeoutError

ROOT = Path(__file__).parents[2]
AXE = ROOT / "labextension" / "node_modules" / "axe-core" / "axe.min.js"
CELLS = [
    "%load_ext sgnb",
    "%sgl launch --runner stub --stub-step-seconds 0.01",
    '%%sgl -o tips\ns += user("Two tips for tea?")\nforks = s.fork(2)\nfor f in forks:\n'
    '    f += assistant(gen("tip", max_tokens=12))\nforks.join()',
    '%%sgl\ns += user("x")\ns += assistant(gen("long", max_tokens=4000, ignore_eos=True))',
    '%%sgl\ns += user("a")\ns += assistant(gen("t", max_tokenz=3))',
    "import time; time.sleep(600)",
    '%%sgl\ntopic = "tea"\ns += assistant(gen("t", m',
    "topic = 1\n%sgl view treee",
]
NOTEBOOK_ERRORS = (
    "Cannot read properties of undefined (reading 'schema')",
    "Command 'filebrowser:open-path' not registered.",
)
THEMES = ["JupyterLab Light", "JupyterLab Dark", "JupyterLab Dark High Contrast"]


@pytest.fixture
def bench(lab_server: Any) -> str:
    """The notebook's name."""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    book.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(book, Path(lab_server.folder) / "bench.ipynb")
    return "bench.ipynb"


def view(lab: Any, kind: str) -> Any:
    """A docked view that has drawn something."""
    found = lab.page.locator(f'.sgnb-pane .sgnb-view[data-kind="{kind}"][data-ready="1"]')
    found.wait_for()
    return found


def axe(lab: Any, selector: str) -> list[str]:
    """What axe finds wrong below ``selector``: rule, and the first place."""
    if not lab.page.evaluate("() => 'axe' in window"):
        lab.page.add_script_tag(path=AXE)
    found = lab.page.evaluate(
        "selector => window.axe.run(selector, {resultTypes: ['violations']}).then(r => r.violations)",
        selector,
    )
    return [f"{one['id']}: {one['nodes'][0]['html'][:200]} {one['nodes'][0]['any'][:1]}" for one in found]


def test_the_panel_is_small() -> None:
    """All that Lab loads of us, views included; the browser's suite runs on a release build."""
    scripts = sorted((ROOT / "sgnb" / "labextension" / "static").glob("*.js"))
    assert scripts
    packed = sum(len(gzip.compress(script.read_bytes(), 9)) for script in scripts)
    assert packed <= 120_000, f"{packed:,} bytes"


def test_views_dock_share_a_playhead_and_come_back(lab: Any, bench: str) -> None:
    lab.open(bench)
    lab.open_panel()
    for index in (0, 1, 2):
        lab.run_cell(index)
        lab.cell_done(index)
    panel = lab.panel_state("idle")
    panel.get_by_role("button", name="Open standard layout").click()
    tree, timeline = view(lab, "tree"), view(lab, "timeline")
    boxes = [found.bounding_box() for found in (tree, timeline)]
    assert boxes[0]["x"] == boxes[1]["x"] and boxes[0]["y"] < boxes[1]["y"]
    panel.get_by_role("button", name="KV map").click()
    assert view(lab, "kv").bounding_box()["y"] < boxes[1]["y"]
    panel.get_by_role("button", name="Radix tree").click()
    assert lab.page.locator('.sgnb-pane .sgnb-view[data-kind="tree"]').count() == 1
    assert "tokens in" in tree.inner_text()
    lab.shot("workbench")

    tree.get_by_role("button", name="Previous step").click()
    for found in (tree, timeline):
        found.get_by_role("button", name="Go live").wait_for()
    timeline.get_by_role("button", name="Go live").click()
    tree.get_by_role("button", name="● Live").wait_for()

    lab.front()
    lab.run_cell(3)
    lab.panel_state("running")
    panel = lab.panel
    row = panel.locator(".sgnb-Panel-request")
    row.first.wait_for()
    panel.get_by_role("button", name="Pause").click()
    panel.get_by_role("button", name="Step").wait_for()
    panel.get_by_role("button", name="Resume").click()
    panel.get_by_role("button", name="Pause").wait_for()
    row.get_by_role("button").click()
    lab.panel_state("idle")
    assert "aborted" in lab.cell(3).locator(".jp-OutputArea").inner_text()

    lab.page.evaluate(
        "() => { window.jupyterapp.shell.activateById(window.jupyterapp.shell.currentWidget.id) }"
    )
    lab.page.wait_for_timeout(
        1500
    )  # JupyterLab saves its layout a second after the last change, and tells nobody
    lab.page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save-all').then(() => null)")
    lab.page.reload()
    lab.page.locator("#jp-main-dock-panel").wait_for()
    view(lab, "tree")
    lab.open_panel()
    lab.panel_state("idle")
    lab.check_clean()


def test_cells_are_checked_completed_and_explained_while_a_cell_runs(lab: Any, bench: str) -> None:
    lab.open(bench)
    lab.open_panel()
    lab.run_cell(0)
    lab.cell_done(0)
    lab.panel_state("no-engine")
    cell = lab.cell(6)
    editor = cell.locator(".cm-content")
    editor.click()
    lab.page.keyboard.press("Control+End")
    found = lab.page.locator(".jp-Completer-item", has_text="max_tokens=").first
    for _ in range(12):  # the kernel's first answer may come too late for JupyterLab
        lab.page.keyboard.press("Tab")
        with contextlib.suppress(TimeoutError):
            found.wait_for(timeout=3000)
            break
    found.wait_for(timeout=3000)
    lab.page.keyboard.press("Escape")

    lab.run_cell(5)
    lab.cell(5).locator(".jp-InputPrompt", has_text="[*]").wait_for()
    wrong = lab.cell(4)
    wrong.locator(".cm-content").click()
    lab.page.keyboard.press("Control+End")
    lab.page.keyboard.type(" ")
    mark = wrong.locator(".cm-lintRange-error")
    mark.wait_for()
    assert mark.inner_text() == "max_tokenz=3"
    mark.hover()
    lab.page.locator(".cm-tooltip-lint", has_text="Did you mean 'max_tokens'?").wait_for()
    assert wrong.locator(".sgnb-magic").inner_text() == "%%sgl"
    assert wrong.locator(".sgnb-name").all_inner_texts() == ["user", "assistant", "gen"]
    wrong.locator(".sgnb-name", has_text="gen").hover()
    lab.page.locator(".sgnb-Hover", has_text="A generation that is bound to variable").wait_for()
    lab.shot("editing")
    lab.page.mouse.move(5, 5)
    lab.page.keyboard.press("F8")
    lab.page.keyboard.press("F1")
    told = lab.page.locator("#sgnb-explained[role=tooltip]", has_text="gen() has no argument 'max_tokenz'.")
    told.wait_for()
    assert wrong.locator(".cm-content").get_attribute("aria-describedby") == "sgnb-explained"
    lab.page.keyboard.press("Escape")
    told.wait_for(state="detached")
    assert wrong.locator(".cm-content").evaluate("editor => document.activeElement === editor")
    lab.page.keyboard.press("Control+End")
    for _ in range(6):  # from "z=3)) " to the mistake's end: without it nothing is marked
        lab.page.keyboard.press("ArrowLeft")
    lab.page.keyboard.press("Delete")
    lab.page.keyboard.type("s")
    mark.wait_for(state="detached")
    line = lab.cell(7)
    line.locator(".cm-content").click()
    lab.page.keyboard.press("Control+End")
    lab.page.keyboard.type(" ")
    mark = line.locator(".cm-lintRange-error")
    mark.wait_for()
    assert mark.inner_text() == "treee" and line.locator(".sgnb-magic").inner_text() == "%sgl"
    lab.page.keyboard.press("F8")
    lab.page.keyboard.press("F1")
    lab.page.locator(
        "#sgnb-explained[role=tooltip]", has_text="%sgl view takes tree, kv, timeline,"
    ).wait_for()
    lab.page.keyboard.press("Control+End")
    for _ in range(2):  # the blank, and one letter too many
        lab.page.keyboard.press("Backspace")
    mark.wait_for(state="detached")
    lab.page.keyboard.press("ArrowLeft")
    lab.page.keyboard.press("F1")
    lab.page.locator(".sgnb-Explained", has_text="%sgl view tree").wait_for()
    lab.page.evaluate("() => void window.jupyterapp.commands.execute('notebook:interrupt-kernel')")
    lab.check_clean()


def test_panel_and_views_have_no_accessibility_faults(lab: Any, bench: str) -> None:
    lab.open(bench)
    lab.open_panel()
    assert not axe(lab, "#sgnb-panel")
    for index in (0, 1, 2):
        lab.run_cell(index)
        lab.cell_done(index)
    panel = lab.panel_state("idle")
    for name in ("Radix tree", "KV map", "Timeline", "Graph"):
        panel.get_by_role("button", name=name).click()
    kinds = ["tree", "kv", "timeline", "graph"]
    lab.front()
    lab.run_cell(3)
    lab.panel_state("running")
    lab.panel.locator(".sgnb-Panel-request").first.wait_for()
    lab.panel.get_by_text("All knobs").click()
    lab.panel.get_by_label("enable mixed chunk").wait_for()
    faults: dict[str, list[str]] = {}
    for theme in THEMES:
        lab.page.evaluate(
            """theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme}).then(() => null)""",
            theme,
        )
        lab.page.wait_for_function("theme => document.body.dataset.jpThemeName === theme", arg=theme)
        faults[f"panel, {theme}"] = axe(lab, "#sgnb-panel")
        for kind in kinds:
            lab.page.evaluate("kind => window.jupyterapp.shell.activateById(`sgnb-view-${kind}`)", kind)
            view(lab, kind)
            faults[f"{kind}, {theme}"] = axe(lab, f'.sgnb-pane .sgnb-view[data-kind="{kind}"]')
        lab.shot(f"axe-{theme.split()[1].lower()}-{len(theme)}")
    assert not {name: found for name, found in faults.items() if found}, json.dumps(faults, indent=1)
    lab.check_clean()


def test_notebook_7_shows_cells_views_and_the_panel(lab: Any, lab_server: Any, bench: str) -> None:
    page = lab.page
    page.goto(f"{lab_server.origin}/notebooks/{bench}?token={lab_server.token}")
    lab.cell(0).wait_for()
    page.locator(".jp-Notebook-ExecutionIndicator[data-status='idle']").wait_for(state="attached")
    for index in (0, 1, 2):
        fresh = lab.cell(index).locator(".jp-InputPrompt", has_text="[ ]")
        for _ in range(6):  # keys pressed before the session stands are dropped by Notebook 7
            lab.cell(index).locator(".cm-content").click()
            page.keyboard.press("Shift+Enter")
            with contextlib.suppress(TimeoutError):
                fresh.wait_for(state="detached", timeout=4000)
                break
        lab.cell_done(index)
    lab.cell(2).locator('.sgnb-program[data-state="finished"]').wait_for()
    page.get_by_role("menuitem", name="View", exact=True).click()
    page.locator(".lm-Menu-item", has_text="Left Sidebar").hover()
    page.locator(".lm-Menu-item", has_text="sgnb: engine of this notebook").click()
    panel = lab.panel_state("idle")
    panel.get_by_role("button", name="Radix tree").click()
    assert "tokens in" in view(lab, "tree").inner_text()
    lab.shot("notebook-7")
    # Notebook 7's own, while it starts: no script of ours is in their stack, and none names that command.
    lab.errors[:] = [one for one in lab.errors if one not in NOTEBOOK_ERRORS]
    lab.check_clean()
