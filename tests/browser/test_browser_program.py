"""The program view: live in a real JupyterLab, and on a bare page in every width and theme, with keys and hostile text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest
from playwright.sync_api import Browser, Page
from program_page import FINDINGS, Script, ends_of, messages_of, open_program, review, snapshot_of

from sgnb.errors import RequestError, SourcePosition
from sgnb.runtime import events as ev

BAD = (
    '<img src="http://elsewhere.invalid/x.png" onerror="window.broken=1"><svg onload="window.broken=1"></svg>'
    "<script>window.broken=1</script>[a](http://elsewhere.invalid) $\\frac{1}{2}$ \x1b[31mred\x1b[0m \u202egnp"
    "<style>*{background:url(http://elsewhere.invalid/y)}</style>![i](http://elsewhere.invalid/z.png) {{7*7}}"
    '<a href="javascript:window.broken=1">b</a> $\\href{http://elsewhere.invalid}{c}$'
)
PILE = "\u0301\u0323\u0489" * 400
"""Marks on one letter: unbroken they are 2 000 px wide, and as high as the font will have it."""
CELLS = [
    "%load_ext sgnb",
    "%sgl launch --runner stub --max-total-tokens 4096",
    """%%sgl -o review --logprobs 5 --max-tokens 24
s += system("You review pull requests for a Python web service. Be brief and concrete.")
forks = s.fork(3)
for i, f in enumerate(forks):
    f += user("Review the diff for " + ["correctness", "security", "a long " + "tail " * 3000][i])
    f += assistant(gen("finding", ignore_eos=True))
    f += select("severity", ["high", "medium", "low"])""",
    f"""%%sgl -o hostile --max-tokens 6
bad = {BAD!r}
s += system(bad) + user(bad)
s += assistant(gen(bad[:40], ignore_eos=True) + bad)
s += select("pick", [bad, "other"])""",
    """import sgnb as sgl
@sgl.function
def two(s):
    s += "All arms begin with the same text. "
    for i, f in enumerate(s.fork(2)):
        f += f"Arm {i}: " + sgl.gen("x", max_tokens=4)""",
    "%sgl view graph two",
]


@pytest.fixture
def notebook(lab_server: Any) -> str:
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(
        nbformat.v4.new_notebook(cells=cells, metadata=kernel), Path(lab_server.folder) / "program.ipynb"
    )
    return "program.ipynb"


def run(lab: Any, index: int) -> Any:
    lab.run_cell(index)
    lab.cell_done(index)
    return lab.cell(index)


def test_program_and_graph_in_jupyterlab(lab: Any, lab_server: Any, notebook: str) -> None:
    """A fork with a branch that fails, an inspected token, a fork from it, the graph below; then text that means ill."""
    lab.open(notebook)
    for index in (0, 1):
        run(lab, index)
    cell = run(lab, 2)
    view = cell.locator(".sgnb-program")
    view.locator('[data-layout="columns"]').wait_for()
    assert view.locator(".sgnb-summary .sgnb-bound").inner_text() == "review is a state without variables"
    heads = view.locator(".sgnb-arm-head")
    assert heads.count() == 3
    assert [heads.nth(i).locator(".sgnb-arm-title").inner_text() for i in range(3)] == [
        "branch 0",
        "branch 1",
        "branch 2",
    ]
    view.locator(".sgnb-arm-head[data-state=failed]", has_text="branch 2").wait_for()
    assert "failed" in heads.nth(2).inner_text()
    assert view.get_attribute("data-state") == "failed"
    assert view.locator(".sgnb-arm").nth(2).locator('.sgnb-row[data-state="failed"] .sgnb-error').count() == 1
    for branch in range(2):
        arm = view.locator(".sgnb-arm").nth(branch)
        assert arm.locator(".sgnb-cost", has_text="finding").locator(".sgnb-prompt-bar").count() == 1
        assert arm.locator(".sgnb-option").count() == 3
        assert arm.locator(".sgnb-option-chosen").count() == 1
        assert "token limit 24" in arm.inner_text()
    # A token: its rivals, and a state that begins behind it.
    span = view.locator(".sgnb-arm").first.locator(".sgnb-model").first
    span.focus()
    lab.page.keyboard.press("ArrowRight")
    lab.page.keyboard.press("ArrowRight")
    lab.page.keyboard.press("Enter")
    dialog = view.locator(".sgnb-inspector")
    dialog.get_by_text("token 2 of 24").wait_for()
    dialog.locator(".sgnb-rival").nth(3).wait_for()
    assert dialog.locator(".sgnb-option-chosen").count() == 1
    dialog.get_by_role("button", name="Fork from here").click()
    dialog.get_by_text("fork_1 begins after token 2. Go on with %%sgl --from fork_1").wait_for()
    lab.page.keyboard.press("Escape")
    assert not dialog.is_visible()
    # What was reused of the prompts; where a prompt's token is.
    assert "tokens reused" in view.locator(".sgnb-prompt-cost:visible").first.inner_text()
    system = view.locator(".sgnb-row[data-role=system] .sgnb-prompt")
    system.focus()
    lab.page.keyboard.press("ArrowRight")
    lab.page.keyboard.press("Enter")
    dialog.get_by_text("slot").wait_for()
    assert "computed" in dialog.inner_text()
    lab.page.keyboard.press("Escape")
    # A row marks its line of the cell, a line its rows.
    view.locator('.sgnb-row[data-line="2"]').first.hover()
    assert "s += system(" in cell.locator(".cm-line.sgnb-source-line").inner_text()
    cell.locator(".cm-line").nth(4).hover()
    view.locator(".sgnb-at-line").first.wait_for()
    assert set(view.locator(".sgnb-at-line").evaluate_all("rows => rows.map(row => row.dataset.line)")) == {
        "5"
    }
    # An open pane answers to a link, and the text moves with its playhead.
    lab.page.evaluate(
        "() => window.jupyterapp.commands.execute('sgnb:open-view', {kind: 'timeline'}).then(() => null)"
    )
    pane = lab.page.locator('.sgnb-pane .sgnb-view-timeline[data-ready="1"]')
    pane.wait_for()
    view.get_by_role("button", name="Show in timeline").click()
    pane.focus()
    for _ in range(12):
        lab.page.keyboard.press(",")
    view.locator(".sgnb-shown-at", has_text="shown at step").wait_for()
    pane.focus()
    lab.page.keyboard.press("l")
    view.locator(".sgnb-word", has_text="Failed").wait_for()
    assert cell.locator(".sgnb-opened-view").count() == 0, "the pane was there already"
    lab.page.locator(".lm-TabBar-tab", has_text="Batch timeline").locator(".lm-TabBar-tabCloseIcon").click()
    # The graph of this very run, below it.
    view.get_by_role("button", name="Show graph").click()
    cell.locator(".sgnb-view-graph").scroll_into_view_if_needed()
    graph = cell.locator('.sgnb-view-graph[data-ready="1"]')
    graph.wait_for()
    assert graph.locator(".sgnb-pass").count() == 9
    graph.locator(".sgnb-node", has_text="Generate finding").first.wait_for()
    lab.shot("program")
    # Text that means ill makes no element and no request: in the page, in the saved notebook, in the HTML export.
    hostile = run(lab, 3)
    hostile.locator('.sgnb-program[data-state="finished"]').wait_for()
    assert hostile.locator(".sgnb-program").locator("img, script, svg, a, math, mjx-container").count() == 0
    assert "<script>window.broken=1</script>" in hostile.locator(".sgnb-program").inner_text()
    run(lab, 4)
    shown = run(lab, 5)
    shown.locator(".sgnb-view-graph").scroll_into_view_if_needed()  # what is not seen is not drawn
    shown.locator('.sgnb-view-graph[data-ready="1"] .sgnb-node').first.wait_for()
    shown.locator(".sgnb-pass", has_text="fold_text").click()
    shown.locator(".sgnb-pass-chosen", has_text="fold_text").wait_for()
    lab.page.keyboard.press("ArrowDown")
    shown.locator(".sgnb-pass-chosen", has_text="merge_forks").wait_for()
    lab.page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save').then(() => null)")
    saved = nbformat.read(Path(lab_server.folder) / notebook, as_version=4)
    html = next(o.data["text/html"] for o in saved.cells[3].outputs if "text/html" in o.get("data", {}))
    assert "<script" not in html and "<img" not in html and "&lt;script&gt;" in html
    exported = lab_server.request(f"nbconvert/html/{notebook}?download=false").decode()
    page = lab.page.context.new_page()
    strangers: list[str] = []
    page.on("request", lambda request: strangers.append(request.url))
    page.set_content(exported, wait_until="domcontentloaded")
    assert not [url for url in strangers if "elsewhere" in url]
    assert page.evaluate("() => window.broken") is None
    page.close()
    assert lab.page.evaluate("() => window.broken") is None
    lab.check_clean()


# ---------------------------------------------------------------- a bare page


def boxes(page: Page, selector: str) -> list[dict[str, float]]:
    return page.locator(selector).evaluate_all(
        "nodes => nodes.map(node => node.getBoundingClientRect().toJSON())"
    )


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(
    ("width", "layout"), [(1180, "columns"), (760, "columns"), (700, "tabs"), (480, "tabs"), (320, "tabs")]
)
def test_nothing_is_cut_in_any_width(browser: Browser, width: int, layout: str, dark: bool) -> None:
    page = open_program(browser, snapshot_of(review()), width=width, dark=dark)
    assert page.locator(".sgnb-fork").get_attribute("data-layout") == layout
    root = boxes(page, ".sgnb-program")[0]
    for box in boxes(page, ".sgnb-program button:visible, .sgnb-cost-rest:visible, .sgnb-option:visible"):
        assert box["left"] >= root["left"] - 1 and box["right"] <= root["right"] + 1
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    assert page.locator(".sgnb-shade-label").is_visible(), "a choice that reads None alone says nothing"
    dangling = page.locator(".sgnb-cost-rest > .sgnb-item:first-child > .sgnb-dot:visible").evaluate_all(
        """dots => dots.filter(dot => {
          const [at, line] = [dot.getBoundingClientRect(), dot.closest(".sgnb-cost").getBoundingClientRect()];
          const before = dot.closest(".sgnb-cost").querySelector(".sgnb-cost-head").getBoundingClientRect();
          return at.left >= line.left && at.top >= before.bottom;
        }).length"""
    )
    assert dangling == 0, "a dot that begins a line is cut off"
    if width < 700:
        page.get_by_role("radio", name="Probability").or_(
            page.locator(".sgnb-header select")
        ).last.select_option("probability")
        keys = page.locator(".sgnb-program-legend")
        assert keys.is_hidden()
        page.get_by_role("button", name="Legend").click()
        assert keys.is_visible()
    buttons = boxes(page, ".sgnb-header button:visible, .sgnb-header select:visible")
    for i, a in enumerate(buttons):
        for b in buttons[i + 1 :]:
            apart = a["right"] <= b["left"] + 1.5 or b["right"] <= a["left"] + 1.5
            assert apart or a["bottom"] <= b["top"] or b["bottom"] <= a["top"]
    assert page.errors == []
    page.close()


@pytest.mark.parametrize("width", [1180, 480])
def test_a_join_has_a_row_and_the_summary_says_what_the_cell_bound(browser: Browser, width: int) -> None:
    page = open_program(browser, snapshot_of(review()), width=width)
    rows = page.locator(".sgnb-lane").first.locator(":scope > .sgnb-row")
    assert rows.evaluate_all("rows => rows.map(row => row.dataset.role)") == [
        "system",
        "fork",
        "join",
        "user",
        "assistant",
    ]
    join = rows.nth(2)
    assert join.locator(".sgnb-gutter").inner_text() == "join"
    assert join.inner_text().split("\n")[-1].startswith("3 branches, ")
    assert join.get_attribute("data-line") == "7"
    bound = page.locator(".sgnb-summary .sgnb-bound")
    assert bound.inner_text() == "verdict is a state with 3 variables"
    assert bound.locator("code").inner_text() == "verdict"
    if width > 560:
        others = page.locator(".sgnb-summary .sgnb-fact").evaluate_all(
            "all => all.map(one => one.getBoundingClientRect().right)"
        )
        assert max(others[:-1]) < others[-1] >= page.locator(".sgnb-summary").bounding_box()["width"] - 12
        assert not page.locator(".sgnb-arm-head .sgnb-arm-glyph").all_inner_texts()[0]
    page.close()


def test_a_line_is_marked_by_the_pointer_and_not_by_rows_that_scroll_below_it(browser: Browser) -> None:
    """The notebook scrolls to a line that a node of the graph leads to: the pointer, which rests, must not mark another."""
    page = open_program(browser, snapshot_of(review()))
    page.evaluate(
        """() => {
          window.lines = [];
          document.addEventListener('sgnb:line', event => window.lines.push(event.detail.line));
          document.body.style.paddingTop = '400px';
          document.body.style.paddingBottom = '2000px';
        }"""
    )
    page.mouse.move(300, 200)
    rows = page.locator(".sgnb-row[data-line]")
    page.evaluate("() => scrollTo(0, 300)")
    page.wait_for_function("() => document.querySelector('.sgnb-row[data-line]:hover')")
    assert page.evaluate("() => window.lines") == []
    page.mouse.move(302, 202)
    page.wait_for_function("() => window.lines.length === 1")
    assert rows.count() > 1
    page.close()


def test_branches_as_tabs_and_as_a_table(browser: Browser) -> None:
    page = open_program(browser, snapshot_of(review(arms=5)))
    tabs = page.get_by_role("tab")
    assert [tabs.nth(i).get_attribute("aria-label") for i in range(5)] == [
        f"branch {i}, done" for i in range(5)
    ]
    tabs.nth(0).focus()
    page.keyboard.press("ArrowRight")
    assert tabs.nth(1).get_attribute("aria-selected") == "true"
    assert FINDINGS[1][:30] in page.get_by_role("tabpanel").inner_text()
    page.close()
    page = open_program(browser, snapshot_of(review(arms=9)))
    rows = page.locator(".sgnb-arms tbody tr[data-lane]")
    assert rows.count() == 9
    assert "severity high 0.91" in rows.nth(1).inner_text()
    assert "312 of 340 tokens reused" in rows.nth(1).inner_text()
    assert page.locator(".sgnb-model").count() == 1, "what no reader sees is not drawn: only the verdict"
    rows.nth(1).get_by_role("button").click()
    opened = page.locator(".sgnb-opened:visible")
    opened.get_by_text("Review the diff above for security only").wait_for()
    page.set_viewport_size({"width": 320, "height": 900})
    page.wait_for_function("() => document.querySelector('.sgnb-program').dataset.width === 'narrow'")
    assert boxes(page, ".sgnb-arms tr[data-lane] td:nth-child(5)")[0]["width"] > 150, "a row stacks its cells"
    page.set_viewport_size({"width": 1180, "height": 900})
    page.wait_for_function("() => document.querySelector('.sgnb-program').dataset.width === 'wide'")
    assert page.locator(".sgnb-arms .sgnb-model").count() == 2, "its finding and its choice"
    # JupyterLab makes the view anew when the output changes: what was open stays open, and the place is kept.
    page.evaluate("() => { const list = document.querySelector('.sgnb-rows'); list.scrollTop = 40; }")
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    page.evaluate("() => { window.unmount(); window.mount(); }")
    opened.get_by_text("Review the diff above for security only").wait_for()
    page.wait_for_function("() => document.querySelector('.sgnb-rows').scrollTop === 40")
    # At the end of a run the root is taken out of the page first: then the view itself moves to the new one.
    page.evaluate(
        """() => {
          const old = document.querySelector('#place');
          window.before = { host: document.querySelector('.sgnb-program'), unmount: window.unmount };
          const fresh = old.cloneNode(false);
          old.replaceWith(fresh);
          window.mount();
          window.before.unmount(); // the old root is let go of later: that takes nothing from the new one
        }"""
    )
    page.wait_for_function("() => document.querySelector('.sgnb-rows').scrollTop === 40")
    assert page.evaluate("() => document.querySelector('.sgnb-program') === window.before.host")
    # A further view of a run that is shown is one of its own, and leaves the other where it is.
    views = page.evaluate(
        """() => {
          const second = document.querySelector('#place').cloneNode(false);
          document.body.prepend(second); // mount() takes the first
          window.mount();
          const count = document.querySelectorAll('.sgnb-program').length;
          window.unmount();
          return [count, document.querySelectorAll('.sgnb-program').length];
        }"""
    )
    assert views == [2, 1]
    page.close()


def test_nested_forks_are_tabs_inside_their_branch(browser: Browser) -> None:
    script = Script()
    script.fork(2)
    for index in range(2):
        script.turn(2 + index, "user", f"Outer {index}", 3)
        script.fork(2, parent=2 + index, first=10 + 2 * index, prefix=f"{index}.")
        for inner in range(2):
            script.gen(10 + 2 * index + inner, "x", f"inner {index} {inner}", 4, prompt=(3, 9))
    script.finish()
    page = open_program(browser, snapshot_of(script))
    assert page.locator(".sgnb-fork").first.get_attribute("data-layout") == "columns"
    inner = page.locator(".sgnb-arm .sgnb-fork")
    assert [inner.nth(i).get_attribute("data-layout") for i in range(2)] == ["tabs", "tabs"]
    assert inner.nth(1).get_by_role("tab").nth(0).inner_text().startswith("branch 1.0")
    page.close()


def test_shades_legend_and_tokens_by_keyboard(browser: Browser) -> None:
    page = open_program(browser, snapshot_of(review()))
    assert page.locator(".sgnb-program-legend").is_hidden()
    text = page.locator(".sgnb-rows").inner_text()
    page.get_by_role("radio", name="Probability").click()
    legend = page.locator(".sgnb-program-legend").inner_text()
    assert all(
        word in legend for word in ("prompt tokens reused", "computed", "token probability", "< .75", "< .1")
    )
    assert page.locator(".sgnb-unsure4").count() > 0
    assert page.locator(".sgnb-rows").inner_text() == text, "shading changes no character"
    assert not any(t.startswith(" ") for t in page.locator("[class^=sgnb-unsure]").all_inner_texts())
    page.get_by_role("radio", name="Probability").press("ArrowRight")
    page.get_by_role("radio", name="Cached").press("ArrowRight")
    assert page.locator(".sgnb-text .sgnb-forced").count() == 7
    gen = page.locator(".sgnb-model").last
    gen.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    dialog = page.locator(".sgnb-inspector")
    dialog.get_by_text(
        "The grammar allowed 3 of 151\u2009936 tokens. The best token it ruled out was The (0.38)."
    ).wait_for()
    assert dialog.get_by_text("probability 0.71, logprob −0.34").is_visible()
    assert [row.split() for row in dialog.locator(".sgnb-rival").all_inner_texts()][1:] == [
        ["correctness", "0.22"],
        ["performance", "0.07"],
    ]
    page.keyboard.press("ArrowRight")
    dialog.get_by_text("token 4 of 34").wait_for()
    page.keyboard.press("Escape")
    assert dialog.is_hidden()
    assert page.evaluate("() => document.activeElement.classList.contains('sgnb-model')")
    said = page.evaluate("() => window.said.filter(one => one.k === 'token').map(one => one.place)")
    assert said[-2:] == [2, 3]
    page.keyboard.press("?")
    keys = page.get_by_role("dialog", name="Keys")
    keys.get_by_text("Walk the tokens of a text").wait_for()
    page.keyboard.press("Escape")
    assert keys.is_hidden()
    assert page.evaluate("() => document.activeElement.classList.contains('sgnb-model')")
    assert page.errors == []
    page.close()


def test_what_was_reused_of_prompts_is_shaded_and_inspected(browser: Browser) -> None:
    """What branches share has its cost line; with *Cached* every prompt has, and its tokens can be walked."""
    script = Script()
    script.turn(1, "system", "one two three four", 1)
    script.fork(2)
    for state, cached in ((2, 4), (3, 5)):
        script.turn(state, "user", "five six", 4)
        script.gen(state, "x", "said", 5, prompt=(cached, 8))
    script.finish()
    told = messages_of(script)
    page = open_program(browser, told.snapshot(), ends=ends_of(told))
    lines = page.locator(".sgnb-prompt-cost:visible")
    assert [line.split("\n")[0] for line in lines.all_inner_texts()] == ["3 of 4 tokens reused"]
    before = page.locator(".sgnb-rows").inner_text()
    page.get_by_role("radio", name="Cached").click()
    assert page.locator(".sgnb-row[data-role=system] .sgnb-reused-text").inner_text() == "one two three"
    assert page.locator(".sgnb-row[data-role=system] .sgnb-computed-text").inner_text() == "four"
    assert lines.count() == 3
    assert "0 of 2 tokens reused" in lines.nth(1).inner_text()
    page.get_by_role("radio", name="None").click()
    assert page.locator(".sgnb-rows").inner_text() == before
    text = page.locator(".sgnb-row[data-role=system] .sgnb-prompt")
    text.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    dialog = page.locator(".sgnb-inspector:visible")
    dialog.get_by_text("token 1 of 4, id 500").wait_for()
    assert "reused, cached by cell [6]" in dialog.inner_text() and "slot 77" in dialog.inner_text()
    assert dialog.get_by_role("button", name="Fork from here").count() == 0
    page.keyboard.press("Escape")
    assert page.evaluate("() => window.said.filter(one => one.k === 'ends').length") == 1
    assert page.errors == []  # type: ignore[attr-defined]
    page.close()


def test_settings_of_lab_hold_where_the_reader_has_chosen_nothing(browser: Browser) -> None:
    page = open_program(browser, snapshot_of(review()))
    text = page.locator(".sgnb-rows").inner_text()
    told = """shared => {
      globalThis[Symbol.for("sgnb.settings")] = shared;
      document.dispatchEvent(new CustomEvent("sgnb-settings", {detail: shared}));
    }"""
    page.evaluate(told, {"shade": "forced", "showWhitespace": True})
    assert page.get_by_role("radio", name="Forced").get_attribute("aria-checked") == "true"
    assert page.locator(".sgnb-text .sgnb-forced").count() > 0
    signs = page.locator(".sgnb-blank").evaluate_all("nodes => [...new Set(nodes.map(n => n.dataset.sign))]")
    assert set(signs) == {"·", "⏎"}
    page.evaluate(told, {"shade": "none", "showWhitespace": False})
    assert page.locator(".sgnb-blank").count() == 0
    assert page.locator(".sgnb-rows").inner_text() == text
    assert page.errors == []  # type: ignore[attr-defined]
    page.close()


def test_the_text_of_another_moment_and_back(browser: Browser) -> None:
    """While the playhead is not at live an earlier picture stands there; what comes meanwhile is shown at live."""
    live, past = review(), review(finished=False)
    page = open_program(browser, snapshot_of(live))
    text = page.locator(".sgnb-rows").inner_text()
    page.evaluate("past => { window.past = past; }", snapshot_of(past))
    page.evaluate("() => window.scrub(true)")
    page.locator(".sgnb-shown-at", has_text="shown at step 1\u2009171").wait_for()
    assert page.locator(".sgnb-word").inner_text() == "Running"
    assert "JSON" not in page.locator(".sgnb-rows").inner_text()
    assert page.locator(".sgnb-stop").is_hidden(), "the run itself has ended"
    assert FINDINGS[2][:60] in page.locator(".sgnb-arm").nth(2).inner_text()
    page.evaluate("() => window.scrub(false)")
    page.locator(".sgnb-word", has_text="Finished").wait_for()
    assert page.locator(".sgnb-rows").inner_text() == text
    assert page.locator(".sgnb-shown-at").is_hidden()
    assert page.errors == []  # type: ignore[attr-defined]
    page.close()


def test_without_probabilities_the_legend_says_how_to_get_them(browser: Browser) -> None:
    page = open_program(browser, snapshot_of(review(logprobs=False)), shade="probability")
    assert (
        page.locator(".sgnb-program-legend").inner_text()
        == "Run with %%sgl --logprobs 5 to see probabilities."
    )
    page.close()


def test_a_failed_run_keeps_its_text_and_says_what_was_not_run(browser: Browser) -> None:
    script = review(finished=False)
    position = SourcePosition("cell", 10, 0, 5, "s += ...", True)
    error = RequestError(
        'schema Verdict is not valid JSON Schema ("type": "strng").',
        hint='Did you mean "string"?',
        position=position,
    )
    script.log.append(ev.StateFailed(1, error))
    script.finish("failed", error)
    page = open_program(browser, snapshot_of(script))
    row = page.locator('.sgnb-row[data-state="failed"]').last
    assert "schema Verdict is not valid JSON Schema" in row.inner_text()
    assert FINDINGS[2][:60] in page.locator(".sgnb-arm").nth(2).inner_text()
    assert page.locator(".sgnb-word").inner_text() == "Failed"
    assert float(row.evaluate("node => parseFloat(getComputedStyle(node).borderLeftWidth)")) == 3
    page.close()


def held(page: Page) -> tuple[float, float]:
    """Listeners and nodes that the page still holds after its garbage was collected."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    session.send("HeapProfiler.collectGarbage")
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    session.detach()
    return metrics["JSEventListeners"], metrics["Nodes"]


@pytest.mark.widget
def test_F73_F72_a_view_that_is_made_again_and_again_leaves_nothing(browser: Browser) -> None:
    """A cell that runs over and over, an output that is cloned or cleared while its run goes on."""
    page = open_program(browser, snapshot_of(review(finished=False)))
    page.evaluate("() => window.scrub(false)")
    # F72: no answer comes, so comms do not run beside this cell, and here no panel interrupts the kernel instead.
    stop, words = page.locator(".sgnb-stop"), page.get_by_text("Interrupt the kernel to stop.")
    assert words.is_hidden()
    stop.click()
    words.wait_for()
    assert stop.is_hidden()
    cycle = """count => { for (let i = 0; i < count; i++) {
      window.unmount(); window.mount();
      window.emit({k: 'delta', base: -1, seq: -1, rows: [], lanes: []});
      document.querySelector('.sgnb-rows').dispatchEvent(new Event('scroll'));
    } }"""
    page.evaluate(cycle, 10)
    before = held(page)
    page.evaluate(cycle, 200)
    after = held(page)
    assert page.locator(".sgnb-program").count() == 1
    assert after[0] - before[0] < 100 and after[1] - before[1] < 1000, (before, after)
    assert page.errors == []  # type: ignore[attr-defined]
    page.close()


@pytest.mark.security
def test_F66_F68_hostile_text_makes_no_element_and_no_request(browser: Browser) -> None:
    script = Script()
    script.turn(1, BAD, BAD, 1)
    script.fork(2, prefix=BAD)
    script.gen(2, BAD, BAD, 2, prompt=(1, 9), stop=BAD)
    script.select(3, BAD, 3, (0.9, 0.1), (BAD, "other"))
    script.log.append(ev.HostNote(BAD))
    for text in ("one\nabc\nthree", f"one\na{PILE}bc\nthree"):
        script.turn(1, "user", text, 7)
    script.log.append(ev.StateFailed(3, RequestError(BAD)))
    script.finish("failed", RequestError(BAD))
    page = open_program(browser, snapshot_of(script), shade="probability")
    page.locator(".sgnb-model").first.focus()
    page.keyboard.press("Enter")
    page.locator(".sgnb-inspector:visible").wait_for()
    assert page.locator(".sgnb-program").locator("img, script, svg, a, iframe, math, style").count() == 0
    assert page.evaluate("() => window.broken") is None
    assert page.requests == []
    shown = page.locator(".sgnb-program").inner_text()
    assert "\u202e" not in shown and "\x1b" not in shown and "U+202E" in shown
    page.keyboard.press("Escape")
    calm, piled = (page.locator(".sgnb-row", has_text=words) for words in ("abc", "+1\u2009192 marks"))
    assert piled.bounding_box()["height"] == calm.bounding_box()["height"]  # type: ignore[index]
    assert page.locator(".sgnb-rows").evaluate("rows => rows.scrollWidth <= rows.clientWidth")
    page.close()


def test_five_thousand_tokens_a_second_stay_within_the_frame(browser: Browser) -> None:
    """Thirty flushes a second of 167 tokens each, for four seconds' worth: the text is complete, a frame is short."""
    script = Script(logprobs=False)
    rid = script.start(1, "story", 2, limit=100_000)
    told = messages_of(script)
    page = open_program(browser, told.snapshot())
    deltas = []
    for number in range(120):
        words = " ".join(f"w{number}.{i}" for i in range(166)) + "\n"
        script.log.append(ev.GenDelta(rid, words, 167))
        told.fold.feed(script.log.since(told.fold.next_seq))
        deltas.append(told.delta())
    spent = page.evaluate(
        """async deltas => {
          const spent = [];
          const view = document.querySelector('.sgnb-program');
          for (const delta of deltas) {
            window.emit(delta);
            await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
            spent.push(Number(view.dataset.drawMs));
          }
          return spent.sort((a, b) => a - b);
        }""",
        deltas,
    )
    text = "".join(segment.text() for row in told.fold.rows for segment in row.segments)
    assert page.locator(".sgnb-model").evaluate_all("nodes => nodes.map(n => n.textContent).join('')") == text
    print(json.dumps({"p50": spent[60], "p95": spent[114], "max": spent[-1]}))
    assert spent[60] < 16, "twice over on a busy machine; docs/benchmarks.md has the figures"
    assert page.locator(".sgnb-run").count() > 10
    page.close()
