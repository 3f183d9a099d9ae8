"""Accessibility of every view by itself: axe in three themes and under forced colours, keys for everything, no motion.

The panel and the docked views in JupyterLab's own themes are in ``test_browser_workbench``.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.sync_api import Browser, Page
from program_page import Script, open_program, review, snapshot_of
from view_page import THEMES, axe, open_view, use_theme

import sgnb
from sgnb.errors import RequestError
from sgnb.runtime import events as ev
from sgnb.runtime.explain import explain_data

NAMES = [*THEMES, "forced"]


@sgnb.function
def two(s: Any, topic: str) -> None:
    """A fork with two arms that begin with the same text."""
    s += sgnb.system("You are brief.")
    forks = s.fork(2)
    for i, f in enumerate(forks):
        f += sgnb.user(f"Tip {i} for {topic}?") + sgnb.assistant(sgnb.gen("tip", max_tokens=8))
    forks.join()


def open_kind(browser: Browser, kind: str) -> Page:
    """A view with something to see in every part."""
    if kind == "graph":
        return open_view(browser, kind, data=explain_data(two, "tea"))
    return open_view(browser, kind, scenario="batch()" if kind == "timeline" else "cast()")


def faults_in_themes(page: Page, selector: str) -> dict[str, list[str]]:
    """Every rule in one theme; in the others, and under forced colours, those that colours decide."""
    found = {}
    for name in reversed(NAMES):
        use_theme(page, name)
        found[name] = axe(page, selector, colours=name != "light")
    return {name: faults for name, faults in found.items() if faults}


@pytest.mark.parametrize("kind", ["tree", "kv", "timeline", "graph"])
def test_views_have_no_accessibility_faults(browser: Browser, kind: str) -> None:
    """In their picture and as a table, with something chosen, wide and narrow, with their keys shown."""
    page = open_kind(browser, kind)
    found = {}
    if kind == "graph":
        page.locator(".sgnb-pass").nth(2).click()
        found["a pass"] = faults_in_themes(page, ".sgnb-view")
        page.set_viewport_size({"width": 860, "height": 900})
        page.wait_for_function("() => document.querySelector('.sgnb-view').dataset.mode === 'one'")
        assert page.get_by_role("radio", name="One graph").get_attribute("aria-checked") == "true"
        assert page.get_by_role("radio", name="Side by side").is_disabled()
        page.evaluate("() => { store.gap = true; store._tell('state'); }")
        page.locator(".sgnb-pass").nth(1).click()
        page.wait_for_function("() => document.querySelector('.sgnb-pass-chosen').dataset.pass === '1'")
        assert page.locator(".sgnb-content.sgnb-old").count() == 0, "its data are not the engine's"
        assert page.locator(".sgnb-topbar").evaluate("bar => bar.offsetHeight") < 40, "it wraps"
        page.get_by_role("radio", name="Instructions").click()
    else:
        page.evaluate("() => store.select({kind: 'request', id: store.history.requests.keys().next().value})")
        found["chosen"] = faults_in_themes(page, ".sgnb-view")
        page.get_by_role("radio", name="Table").click()
    page.set_viewport_size({"width": 480, "height": 900})
    page.wait_for_function("() => document.querySelector('.sgnb-view').dataset.width === 'narrow'")
    page.locator(".sgnb-view").evaluate("view => view.focus()")
    page.keyboard.press("?")
    page.locator("dialog.sgnb-help:popover-open").wait_for()
    found["table, narrow, keys"] = faults_in_themes(page, ".sgnb-view")
    assert not {where: faults for where, faults in found.items() if faults}, json.dumps(found, indent=1)
    assert page.errors == []  # type: ignore[attr-defined]
    page.close()


def failed_run() -> Script:
    script = review(finished=False)
    error = RequestError("The context is full.", hint="Shorten the prompt.")
    script.log.append(ev.StateFailed(1, error))
    script.finish("failed", error)
    return script


@pytest.mark.parametrize("form", ["columns", "tabs", "table", "running", "failed"])
def test_the_program_view_has_no_accessibility_faults(browser: Browser, form: str) -> None:
    arms = {"tabs": 5, "table": 9}.get(form, 3)
    script = failed_run() if form == "failed" else review(arms=arms, finished=form != "running")
    page = open_program(browser, snapshot_of(script), shade="probability")
    found = {"shaded": faults_in_themes(page, ".sgnb-program")}
    if form != "table":
        page.locator(".sgnb-model:visible").first.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        page.locator(".sgnb-inspector:visible").wait_for()
        found["inspector"] = faults_in_themes(page, ".sgnb-program")
    else:
        page.locator(".sgnb-open").first.click()
        found["opened"] = faults_in_themes(page, ".sgnb-program")
    assert not {where: faults for where, faults in found.items() if faults}, json.dumps(found, indent=1)
    assert page.errors == []  # type: ignore[attr-defined]
    page.close()


STOPS = """() => {
  const root = document.querySelector('.sgnb-view, .sgnb-program');
  return [...root.querySelectorAll('button, input, select, [tabindex], a[href], summary')]
    .filter(node => node.offsetParent && !node.disabled)
    .map(node => [node.tagName, node.className, node.textContent.slice(0, 30), node.tabIndex]);
}"""
CLICKABLE = """() => {
  const root = document.querySelector('.sgnb-view, .sgnb-program');
  return [...root.querySelectorAll('*')].filter(node => {
    if (!node.offsetParent || getComputedStyle(node).cursor !== 'pointer') return false;
    if (node.parentElement && getComputedStyle(node.parentElement).cursor === 'pointer') return false; // its parent is it
    const key = node.closest('button, input, select, summary, label, [tabindex], [role="option"], [role="treeitem"]');
    return !key && !node.matches('canvas');
  }).map(node => `${node.tagName}.${node.className}: ${node.textContent.slice(0, 40)}`);
}"""


@pytest.mark.parametrize("kind", ["tree", "kv", "timeline", "graph", "program"])
def test_what_a_pointer_reaches_a_key_reaches(browser: Browser, kind: str) -> None:
    """Every thing that answers a click is a control of its own, or lies in one that takes keys; each is named."""
    page = (
        open_program(browser, snapshot_of(review(arms=9))) if kind == "program" else open_kind(browser, kind)
    )
    page.emulate_media(reduced_motion="reduce")
    if kind not in ("graph", "program"):
        page.evaluate("() => store.select({kind: 'request', id: store.history.requests.keys().next().value})")
        page.wait_for_timeout(300)  # details are drawn four times a second
    assert page.evaluate(CLICKABLE) == []
    stops = page.evaluate(STOPS)
    assert [stop for stop in stops if stop[3] >= 0], "nothing can be reached by Tab"
    moving = page.evaluate(
        """() => [...document.querySelectorAll('.sgnb-view *, .sgnb-program *')].filter(node => {
          const style = getComputedStyle(node);
          return node.offsetParent && (style.animationName !== 'none' && style.animationDuration !== '0s'
            || style.transitionDuration.split(',').some(one => parseFloat(one) > 0.01) || style.scrollBehavior === 'smooth');
        }).map(node => node.className)"""
    )
    assert moving == [], "something moves though reduced motion is asked for"
    page.close()
