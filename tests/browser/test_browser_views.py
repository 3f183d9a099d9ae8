"""Engine views: live in a real JupyterLab, and drawn from scripted events in every theme and width."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest
from playwright.sync_api import Browser
from view_page import misfits, open_view, use_theme

from sgnb import assistant, function, gen, select, system, user
from sgnb.runtime.explain import explain_data
from sgnb.widgets.bundle import STATIC

BAD = '<img src=x onerror="window.broken=1"><svg onload="window.broken=1">\u202e'
CELLS = [
    "%load_ext sgnb",
    "%sgl launch --runner stub --max-total-tokens 4096",
    "%sgl view tree",
    "%sgl view kv",
    """%%sgl
s += "Rules of the house, for everybody who reads this. "
for i, b in enumerate(s.fork(3)):
    b += f"Question {i}: " + gen("answer", max_tokens=150, ignore_eos=True)""",
    """%%sgl
s += "Rules of the house, for everybody who writes this. " + gen("other", max_tokens=5)""",
]
STATE = "() => [...document.querySelectorAll('.sgnb-view')].map(view => ({...view.dataset}))"


@pytest.fixture
def notebook(lab_server: Any) -> str:
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    made = nbformat.v4.new_notebook(cells=cells, metadata=kernel)
    nbformat.write(made, Path(lab_server.folder) / "views.ipynb")
    return "views.ipynb"


def test_views_are_live_and_share_playhead_and_selection(lab: Any, notebook: str) -> None:
    lab.open(notebook)
    for index in range(4):
        lab.run_cell(index)
        lab.cell_done(index)
    page = lab.page
    words = "() => globalThis[Symbol.for('sgnb.trans')]._n('%2 slot of %3', '%2 slots of %3', 2, 'two', 'it')"
    assert page.evaluate(words) == "two slots of it", (
        "the views' words go through JupyterLab's own translator"
    )
    tree, kv = lab.cell(2).locator(".sgnb-view"), lab.cell(3).locator(".sgnb-view")
    tree.wait_for()
    assert tree.locator(".sgnb-empty").inner_text() == "Nothing has run yet."
    lab.run_cell(4)
    tree.locator("canvas").first.wait_for()
    lab.cell_done(4)
    tree.scroll_into_view_if_needed()  # a view draws when it is seen
    page.locator('.sgnb-view-tree[data-state="ok"]').wait_for()
    lab.run_cell(5)
    lab.cell_done(5)
    kv.scroll_into_view_if_needed()
    page.wait_for_selector('.sgnb-view-kv[data-state="ok"][data-ready="1"]')
    kv.get_by_text("✓ free + cached + in use = 4\u2009096").wait_for()

    # Why was the second prompt not cached?
    tree.scroll_into_view_if_needed()
    row = tree.locator(".sgnb-tree-prompts tr", has_text="6 other")
    row.wait_for()
    row.click()
    why = tree.locator(".sgnb-tree-why")
    why.get_by_text("Why was 6 other not cached?").wait_for()
    page.wait_for_function("() => document.querySelector('.sgnb-tree-aligned') !== null")
    assert "writes this" in why.inner_text() and "reads this" in why.inner_text()

    # A step back in one view is a step back in the other; selection is shared as well.
    newest = int(tree.get_attribute("data-step") or 0)
    tree.get_by_label("Previous step").click()
    for view, kind in ((tree, "tree"), (kv, "kv")):
        view.scroll_into_view_if_needed()
        page.wait_for_function(
            "([kind, step]) => Number(document.querySelector(`.sgnb-view-${kind}`).dataset.step) < step",
            arg=[kind, newest],
        )
    assert "Go live" in kv.inner_text()
    kv.get_by_role("button", name="Go live").click()
    tree.scroll_into_view_if_needed()
    page.wait_for_function(
        "step => Number(document.querySelector('.sgnb-view-tree').dataset.step) >= step", arg=newest
    )
    assert kv.locator("tr.sgnb-chosen").count() <= 1

    # By keyboard: the first node, its child; what is told is a sentence.
    canvas = tree.locator("canvas.sgnb-tree-canvas")
    canvas.focus()
    page.keyboard.press("Escape")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    tree.locator(".sgnb-tree-part").nth(1).wait_for()
    tree.locator(".sgnb-live-region", has_text="Node ").wait_for(state="attached")
    tree.get_by_role("radio", name="Table").click()
    assert tree.locator('[role="treeitem"]').count() >= 4
    page.keyboard.press("Escape")
    lab.shot("views-lab")
    lab.check_clean()


@function
def reviews(s: Any, diff: str) -> None:
    s += system("You review pull requests for a Python web service. Be brief and concrete. " + diff)
    branches = s.fork(3)
    for branch, angle in zip(branches, ["correctness", "security", "performance"], strict=True):
        branch += user("Review the diff above for " + angle + " only.")
        branch += assistant(gen("finding", max_tokens=120, stop="\n\n"))
        branch += select("severity", ["high", "medium", "low"])
    branches.join()
    s += user("Decide: merge, revise or reject.") + assistant(gen("verdict", max_tokens=64))


@pytest.mark.parametrize("kind", ["tree", "kv", "timeline", "graph"])
def test_views_fit_every_width(browser: Browser, kind: str) -> None:
    """Live with a choice, at an earlier step, and as a table; with the drawer where there is one."""
    data = explain_data(reviews, "a diff") if kind == "graph" else None
    page = open_view(browser, kind, scenario="batch()" if kind == "timeline" else "cast()", data=data)
    forms = {
        "live": "() => store.select({kind: 'request', id: 'c1.r11'})",
        "earlier": "() => store.goToStep(store.step - 5)",
        "table": '() => document.querySelector(\'.sgnb-view [data-value="table"], [data-value="code"]\').click()',
    }
    for form, change in forms.items():
        page.evaluate(change)
        for width in (1180, 860, 700, 480, 320):
            page.set_viewport_size({"width": width, "height": 900})
            page.wait_for_function(
                "wide => document.querySelector('.sgnb-view').dataset.width === wide",
                arg="wide" if width >= 900 else "middle" if width >= 560 else "narrow",
            )
            assert misfits(page) == [], (form, width)
            details = page.get_by_role("button", name="Details", exact=True)
            if details.count() and details.is_visible():
                details.click()
                assert misfits(page) == [], (form, width, "drawer")
                side = page.locator(".sgnb-side").bounding_box()
                assert side is None or side["y"] < 900 - min(40, side["height"]), (form, width, "it is seen")
                details.click()
    assert page.errors == []  # type: ignore[attr-defined]
    page.close()


def test_F67_scripts_in_text_stay_text(browser: Browser) -> None:
    scenario = """(() => { const s = new Script(); const bad = BAD;
      const node = s.insert(1, bad, 300, 'c1.r1');
      s.request('c1.r1', bad, '', bad, 300).admit('c1.r1', bad, '', bad, 300, {matched: 2, node, cause: 'short'});
      s.partings['c1.r1'] = {same: bad, prompt: bad, cached: bad, cached_node: node};
      return s.flush().pass([{rid: 'c1.r1', kind: 'decode', tokens: 1, prefix: 300}]); })()"""
    page = open_view(browser, "tree", scenario=scenario.replace("BAD", json.dumps(BAD)))
    page.locator(".sgnb-tree-prompts tr").nth(1).click()
    page.locator(".sgnb-tree-aligned").wait_for()
    assert "<img" in page.locator(".sgnb-tree-why").inner_text()
    page.locator(".sgnb-tree-canvas").hover(position={"x": 60, "y": 30})
    page.locator(".sgnb-tooltip", has_text="<img").wait_for()
    page.locator('.sgnb-view [data-value="table"]').click()
    page.get_by_role("treeitem").filter(has_text="<img").first.wait_for()
    assert page.locator(".sgnb-view img, .sgnb-view svg").count() == 0
    assert page.evaluate("() => window.broken") is None
    assert "[U+202E]" in page.locator(".sgnb-tree-aligned").inner_text()
    page.close()


def test_the_five_empty_states_have_their_words(browser: Browser) -> None:
    page = open_view(browser, "kv")
    cases = {
        "store.engineState = 'none'; store.reset()": (".sgnb-cover", "No engine is running."),
        "store.engineState = 'idle'; store.live.seq = 1": (".sgnb-cover", "Nothing has run yet."),
        "store.load(script.picture); feed(); store.gap = true": (".sgnb-notice", "Catching up …"),
        "store.gap = false; store.engineState = 'died'": (".sgnb-notice", "This is the last state."),
    }
    for action, (place, words) in cases.items():
        page.evaluate(f"() => {{ {action}; store._tell('state'); }}")
        page.locator(place, has_text=words).wait_for()
    page.close()


def test_timeline_answers_by_mouse_and_key(browser: Browser) -> None:
    page = open_view(browser, "timeline", scenario="batch()")
    top, lanes = page.locator("canvas.sgnb-time-top"), page.locator("canvas.sgnb-time-lanes")
    in_view, view = page.locator(".sgnb-time-window"), page.locator(".sgnb-view")

    def chosen(kind: str) -> Any:
        page.wait_for_function("kind => store.selection?.kind === kind", arg=kind)
        return page.evaluate("() => store.selection.id")

    top.click(position={"x": 450, "y": 38})
    step = chosen("step")
    page.locator(".sgnb-time-step", has_text=f"Step {step}").wait_for()
    page.keyboard.press("ArrowRight")
    assert chosen("step") == step + 1
    page.keyboard.press("Enter")
    assert page.evaluate("() => !store.isLive && store.step") in (
        step + 1,
        step + 2,
    )  # with overlap the next is planned
    lanes.click(position={"x": 450, "y": 33})
    second = chosen("request")
    page.keyboard.press("ArrowUp")
    page.wait_for_function("rid => store.selection.id !== rid", arg=second)
    lanes.hover(position={"x": 460, "y": 33})
    page.locator(".sgnb-tooltip", has_text=second).wait_for()

    page.keyboard.press("l")
    page.wait_for_function("() => store.isLive")
    facts = page.locator(".sgnb-viewfacts")
    assert facts.inner_text().startswith("Policy fcfs")
    top.click(position={"x": 300, "y": 6})  # the axis, before the policy was switched
    page.wait_for_function("() => !store.isLive")
    page.wait_for_function(
        "() => document.querySelector('.sgnb-viewfacts').textContent.startsWith('Policy lpm')"
    )
    page.keyboard.press("l")
    page.keyboard.press("0")
    words = in_view.inner_text().split("\n")[0]
    assert words.startswith("In view, ")
    top.hover(position={"x": 450, "y": 38})
    page.mouse.wheel(0, -100)
    page.wait_for_function(
        "words => !document.querySelector('.sgnb-time-window').innerText.includes(words)", arg=words
    )
    page.keyboard.press("0")
    count = view.get_attribute("data-lanes")
    box = lanes.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 200, box["y"] + 33)
    page.mouse.down()
    page.mouse.move(box["x"] + 700, box["y"] + 33, steps=4)
    page.mouse.up()
    page.wait_for_function("count => document.querySelector('.sgnb-view').dataset.lanes !== count", arg=count)
    page.locator("canvas.sgnb-time-overview").click(position={"x": 300, "y": 20})
    page.wait_for_function("() => Number(document.querySelector('.sgnb-view').dataset.lanes) < 3")
    assert page.errors == []  # type: ignore[attr-defined]
    page.close()


def test_prefill_is_seen_in_forced_colours(browser: Browser) -> None:
    """Its fill is then the ground: without lines in it a thin bar is nothing, and the legend's box another thing."""
    page = open_view(browser, "timeline", scenario="batch()")
    use_theme(page, "forced")
    swatch = "getComputedStyle(document.querySelector('.sgnb-swatch-prefill')).backgroundImage"
    assert "gradient" in page.evaluate(f"() => {swatch}")
    # The overview's key: prefill lies above decode, both beside "tokens/s".
    lines = """() => {
      const canvas = document.querySelector('canvas.sgnb-time-overview');
      const {data} = canvas.getContext('2d').getImageData(8, 0, 1, 20);
      return [10, 11, 12, 13, 14, 15, 16, 17].map(y => data[4 * y + 3] > 200 && data[4 * y] < 80);
    }"""
    page.wait_for_function(
        f"() => {{ const key = ({lines})(); return key[1] !== key[2] && key[6] && key[7]; }}"
    )
    page.close()


@pytest.mark.parametrize("kind", ["tree", "kv", "timeline"])
def test_tips_are_whole_and_the_ring_of_what_scrolls_is_inside(browser: Browser, kind: str) -> None:
    page = open_view(browser, kind, scenario="batch()" if kind == "timeline" else "cast()")
    canvas = page.locator(f".sgnb-{'time' if kind == 'timeline' else kind}-scroll canvas")
    canvas.hover(position={"x": 130, "y": 30})
    tip = page.locator(".sgnb-tooltip:visible")
    tip.wait_for()
    cut = "tip => [tip, ...tip.children].some(one => one.scrollWidth > one.clientWidth + 1)"
    tip.evaluate("tip => tip.lastChild.append(' and a text that is longer than a tip is wide'.repeat(3))")
    assert not tip.evaluate(cut)
    page.mouse.move(2, 2)
    page.locator(".sgnb-find").focus()
    page.keyboard.press("Tab")
    canvas.focus()
    ring = canvas.evaluate(
        "one => [one.matches(':focus-visible'), parseFloat(getComputedStyle(one).outlineOffset), "
        "parseFloat(getComputedStyle(one).outlineWidth)]"
    )
    assert ring[0] and ring[1] + ring[2] <= 0, "what scrolls cuts what stands outside of it"
    page.close()


def test_the_ring_of_the_list_of_passes_is_inside(browser: Browser) -> None:
    page = open_view(browser, "graph", data=explain_data(reviews, "a diff"))
    page.keyboard.press("Tab")
    passes = page.locator(".sgnb-passes")
    passes.focus()
    style = "one => parseFloat(getComputedStyle(one).outlineOffset)"
    assert passes.evaluate("one => one.matches(':focus-visible')") and passes.evaluate(style) == -2
    page.close()


def test_a_tree_that_was_opened_later_names_the_cell_of_the_nearest_path(browser: Browser) -> None:
    page = open_view(browser, "tree")
    page.evaluate(
        "() => { script.partings['c1.r9'].by = '8'; store.select({kind: 'request', id: 'c1.r9'}); }"
    )
    page.get_by_text(
        "It is the same as the nearest cached path, from cell [8], up to token 17 of 335."
    ).wait_for()
    page.get_by_text("cached, [8]").wait_for()
    page.close()


def test_a_legend_keeps_its_shapes_beside_other_views(browser: Browser) -> None:
    """Each widget brings the common styles again, behind those of the views that came before it."""
    page = open_view(browser, "tree")
    page.add_style_tag(path=STATIC / "view.css")
    for swatch, size in (("next", [14, 14]), ("age", [24, 10])):
        box = page.locator(f".sgnb-swatch-tree-{swatch}").bounding_box()
        assert box is not None and [box["width"], box["height"]] == size
    page.close()


def test_find_is_seen_in_the_node_link_form_and_a_zoomed_tree_follows_the_keys(browser: Browser) -> None:
    page = open_view(browser, "tree")
    view = "document.querySelector('.sgnb-view').sgnbView"
    page.get_by_role("radio", name="Tree", exact=True).click()
    page.evaluate(
        """() => {
          const { prototype } = CanvasRenderingContext2D;
          const { fillRect } = prototype;
          window.alphas = new Set();
          prototype.fillRect = function (...box) { window.alphas.add(this.globalAlpha); fillRect.apply(this, box); };
        }"""
    )
    page.get_by_label("Find text or request").fill("Classify the issue")
    page.wait_for_function("() => window.alphas.has(0.4) && window.alphas.has(1)")
    page.get_by_label("Find text or request").fill("")
    page.get_by_role("radio", name="Icicle").click()
    page.evaluate(
        f"() => {{ store.select({{kind: 'node', id: 2}}); {view}._domain = [0, 40]; {view}.changed(); }}"
    )
    page.locator("canvas.sgnb-tree-canvas").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function(
        f"""() => {{
          const node = store.shown.nodes.get(store.selection.id);
          return node.start >= 312 && {view}._domain[0] <= node.start && {view}._domain[1] > node.start;
        }}"""
    )
    page.close()


def test_figures_of_a_long_window_are_those_of_its_last_step(browser: Browser) -> None:
    """They are counted once a second; the last count must not be left out where a run ends within that second."""
    page = open_view(browser, "timeline", scenario="batch()")
    view = "document.querySelector('.sgnb-view').sgnbView"
    steps = "() => document.querySelector('.sgnb-time-window p').innerText"
    page.evaluate(f"() => {{ {view}.span = 60; {view}.changed(); }}")
    page.locator(".sgnb-time-window h3", has_text="60.0 s").wait_for()
    before = page.evaluate(steps)
    page.evaluate(
        """() => {
          const known = script.events.length;
          script.later(0.01).pass([{ rid: 'c1.w', kind: 'decode', tokens: 1, prefix: 900 }]);
          store.feedEvents(script.events.slice(known), { time: script.time });
          store._tell('data');
        }"""
    )
    page.wait_for_function(f"before => ({steps})() !== before", arg=before, timeout=5000)
    page.close()


def test_find_reads_the_texts_it_does_not_know_and_a_selection_is_explained(browser: Browser) -> None:
    page = open_view(browser, "tree")
    page.get_by_label("Find text or request").fill("Worker pool 3 never")  # its node is in a fold
    page.wait_for_function("() => document.querySelector('.sgnb-view').sgnbView.hits?.size === 1")
    page.locator(".sgnb-live-region", has_text="1 node found.").wait_for(state="attached")
    # JupyterLab's body has no height and hides what runs over; the tooltip stands below the pointer all the same.
    page.evaluate("() => document.body.setAttribute('style', 'height: 0; overflow: hidden')")
    canvas = page.locator(".sgnb-tree-canvas")
    canvas.hover(position={"x": 60, "y": 30})
    tip = page.locator(".sgnb-tooltip:visible")
    tip.wait_for()
    assert tip.bounding_box()["y"] > canvas.bounding_box()["y"] + 30  # type: ignore[index]
    # A request selected elsewhere ("Why not 29?" of a cell) is the one the tree explains; not the newest.
    page.evaluate("() => store.select({kind: 'request', id: 'c1.r11'})")
    page.get_by_text("Why was 9.1 finding not cached?").wait_for()
    page.close()


def test_pictures_follow_a_dragged_playhead_and_words_come_after(browser: Browser) -> None:
    page = open_view(browser, "kv")
    told = page.evaluate(
        """async () => {
          const view = document.querySelector('.sgnb-view').sgnbView;
          const frame = () => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
          const words = [], pictures = [];
          const { _tellDetails: tell, draw } = view;
          view._tellDetails = () => { words.push(store.time); tell.call(view); };
          view.draw = () => { pictures.push(store.time); draw.call(view); };
          const times = store.history.steps.slice(0, 5).map(step => step.time + 1e-6);
          await new Promise(done => setTimeout(done, 400));
          words.length = pictures.length = 0;
          const began = performance.now();
          for (const time of times) { store.goTo(time); await frame(); }
          const [soon, took] = [words.length, performance.now() - began];
          await new Promise(done => setTimeout(done, 700));
          return {times, pictures, soon, took, words};
        }"""
    )
    assert told["pictures"] == told["times"], "every moment is drawn in its frame"
    assert told["words"][0] == told["times"][0], "one move is told at once"
    assert told["soon"] < len(told["times"]) or told["took"] > 250 * len(told["times"]) / 2, (
        "four times a second"
    )
    assert told["words"][-1] == told["times"][-1]
    page.close()


def test_what_was_evicted_in_a_recording_has_its_text(browser: Browser) -> None:
    page = open_view(browser, "tree")
    gone = page.locator(".sgnb-view [role=treeitem]").filter(has_text=" ago for ")
    gone.first.wait_for(state="attached")
    assert "what it said" not in gone.first.inner_text(), "an engine has forgotten it"
    page.evaluate(
        """() => {
          window.answers = {nodes: ({ids}) => ({nodes: Object.fromEntries(ids.map(id => [id, {
            tokens: store.shown.evicted.find(node => node.id === id)?.length, text: `what it said: ${id}`}]))})};
          store.replaying = {span: [0, store.live.time], file: "a.sgnb", end: true, trouble: ""};
          store._tell("data");
        }"""
    )
    gone.filter(has_text="what it said").first.wait_for(state="attached")
    page.close()
