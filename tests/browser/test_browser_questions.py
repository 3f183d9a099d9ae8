"""The questions of docs/workbench.md, each answered in at most two clicks or keys from the view that the page names.

What the engine does now, and whether it is stuck, the panel says without a click: ``test_browser_panel``. What another
policy would do, two clicks, needs an engine's recording: ``test_browser_timeline``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from playwright.sync_api import Browser, Page
from program_page import open_program, review, snapshot_of
from test_browser_axe import open_kind
from view_page import open_view

import sgnb
from sgnb.runtime.explain import explain_data

MOST = 2


@sgnb.function
def plain(s: Any) -> None:
    """Two texts side by side, which one pass makes into one."""
    s += "You are "
    s += "brief. "
    s += sgnb.gen("x", max_tokens=4)


class Hand:
    """Acts on a page and counts; ``see`` waits for words, which must stand there after at most two acts."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.acts = 0

    def click(self, find: Callable[[Page], Any], **how: Any) -> Hand:
        self.acts += 1
        find(self.page).click(**how)
        return self

    def key(self, key: str) -> Hand:
        self.acts += 1
        self.page.keyboard.press(key)
        return self

    def see(self, place: str, *words: str) -> None:
        assert self.acts <= MOST
        for word in words:
            self.page.locator(place, has_text=word).first.wait_for(timeout=20_000)
        self.acts = 0


def button(name: str) -> Callable[[Page], Any]:
    return lambda page: page.get_by_role("button", name=name, exact=True)


def test_questions_to_a_cell(browser: Browser) -> None:
    page = open_program(browser, snapshot_of(review()))
    hand = Hand(page)
    hand.see(".sgnb-cost", "24 tok", "0.38 s")  # What did this gen cost?
    hand.see(".sgnb-cost", "312 of 340 tokens reused")  # How much was cached?
    hand.see(".sgnb-cost", 'stop "\\n\\n"')  # Why did it stop?
    hand.click(lambda page: page.locator(".sgnb-arm .sgnb-model").first, position={"x": 30, "y": 8})
    hand.see(".sgnb-inspector:visible .sgnb-rival", "0.")  # Why this token?
    page.keyboard.press("Escape")
    hand.click(lambda page: page.locator(".sgnb-model").last, position={"x": 30, "y": 8})
    hand.see(".sgnb-inspector:visible", "The grammar allowed 3 of 151\u2009936 tokens")  # What did it forbid?
    page.keyboard.press("Escape")
    hand.click(lambda page: page.get_by_role("radio", name="Forced"))
    hand.see(".sgnb-text .sgnb-forced", '"')  # Which text was forced?
    page.close()


def test_questions_to_the_tree(browser: Browser) -> None:
    page = open_kind(browser, "tree")
    hand = Hand(page)

    def prompt(name: str) -> Callable[[Page], Any]:
        return lambda page: page.locator(".sgnb-tree-prompts tr", has_text=name).first

    hand.click(prompt("9 system"))
    hand.see(".sgnb-tree-why", "Why was 9 system not cached?", "17 of 335")  # Why not more?
    hand.see(".sgnb-tree-why", "Put text that changes")  # What should I change to reuse more?
    hand.click(prompt("11 answer"))
    hand.see(
        ".sgnb-tree-why", "38 tokens were cached and evicted", "9.0 finding"
    )  # What was evicted, for whom?
    hand.click(prompt("9.1 finding"))
    hand.see(".sgnb-side", "Locked by", "9.1 finding")  # Who holds this prefix?
    hand.see(".sgnb-side", "tok also by")  # Which branches share what?
    page.close()


def test_questions_to_the_map(browser: Browser) -> None:
    page = open_kind(browser, "kv")
    hand = Hand(page)
    hand.click(lambda page: page.locator("canvas.sgnb-kv-canvas"), position={"x": 60, "y": 4})
    hand.see(".sgnb-kv-about", "slot ", "node ")  # What is in this slot?
    page.close()


def test_questions_to_the_timeline(browser: Browser) -> None:
    page = open_kind(browser, "timeline")
    hand = Hand(page)
    hand.see(".sgnb-time-split", "forward", "schedule")  # Where did the step's time go?
    hand.click(lambda page: page.get_by_role("radio", name="Table"))
    hand.see(".sgnb-time-steps", "short of KV, needs 680 slots, has 412")  # Why did it wait?
    hand.see(
        ".sgnb-time-steps", "Retracted 15.0: short of KV, decoding needs 9 slots, has 3"
    )  # Who was retracted, why?
    page.get_by_role("radio", name="Timeline").click()
    newest = int(page.evaluate("() => store.step"))
    page.get_by_label("Step", exact=True).fill(str(newest - 20))
    page.keyboard.press("Enter")
    page.wait_for_function(
        "step => Number(document.querySelector('.sgnb-view').dataset.step) === step", arg=newest - 20
    )
    hand.see(".sgnb-time-step", f"Step {newest - 20}")  # What happened at second t?
    page.close()


def test_questions_to_the_graph(browser: Browser) -> None:
    page = open_view(browser, "graph", data=explain_data(plain))
    hand = Hand(page)
    hand.click(lambda page: page.locator(".sgnb-pass", has_text="fold_text"))
    hand.see(
        ".sgnb-foot", "What it did", "Why it is allowed"
    )  # What did this pass change, why was it allowed?
    page.close()
