"""How a program view is read: numbers whole, choices compared, every fact within reach of keys and of those who listen."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser
from program_page import Script, messages_of, open_program, review, snapshot_of

from sgnb.backends.base import TokenInfo
from sgnb.runtime import events as ev

BOXES = "nodes => nodes.map(node => node.getBoundingClientRect().toJSON())"


def test_the_head_is_not_cut_where_it_does_not_wrap(browser: Browser) -> None:
    """Switches become lists before its numbers are cut, with all buttons that a run has, in every width from 721 px on."""
    head = snapshot_of(review())
    head["head"] |= {
        "word": "Finished",
        "facts": ["1 of 3 branches done", "12\u2009121 tok", "1\u2009288 tok/s"],
    }
    page = open_program(browser, head)
    facts = page.locator(".sgnb-facts")
    page.locator(".sgnb-header .sgnb-stop").evaluate("stop => { stop.hidden = false; }")
    for width in range(1180, 720, -20):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function(
            "width => document.querySelector('.sgnb-program').clientWidth === width", arg=width
        )
        assert facts.evaluate("node => node.scrollWidth <= node.clientWidth"), width
    page.close()


def test_choices_are_compared_and_their_figures_reached_by_keyboard(browser: Browser) -> None:
    """Bars begin at one place, whatever the texts; every stop of the keyboard is seen, and one says what tooltips do."""
    script = Script()
    options = ("no", "yes, and " + "at length " * 4 + "so", "perhaps")
    script.select(1, "pick", 4, (0.1, 0.7, 0.2), options)
    script.finish()
    page = open_program(browser, snapshot_of(script))
    bars = page.locator(".sgnb-share-ground").evaluate_all(BOXES)
    assert len({(bar["left"], bar["width"]) for bar in bars}) == 1, bars
    page.locator(".sgnb-rows").focus()
    said = []
    while page.evaluate("() => document.activeElement !== document.body"):
        [box] = page.locator(":focus").evaluate_all(BOXES)
        assert box["width"] > 0 and box["height"] > 0, page.locator(":focus").evaluate(
            "node => node.outerHTML"
        )
        said.append(page.locator(":focus").inner_text())
        page.keyboard.press("Tab")
    figures = "mean logprobs from the top: −2.303, −0.357, −1.609"
    assert figures in said
    assert page.get_by_text(figures).bounding_box()["height"] == 0, "else it would be read all the time"  # type: ignore[index]
    assert page.errors == []  # type: ignore[attr-defined]
    page.close()


@pytest.mark.parametrize(
    ("arms", "words"),
    [
        (3, "Branch 0 finished, 2 tokens. Branch 1 finished, 2 tokens. Branch 2 finished, 2 tokens."),
        (6, "6 branches ended."),
    ],
)
def test_no_branch_ends_unheard(browser: Browser, arms: int, words: str) -> None:
    """The live region speaks once in two seconds: branches that end meanwhile are all told then."""
    script = Script()
    script.fork(arms)
    rids = [script.start(2 + index, "x", 2) for index in range(arms)]
    later = script.start(1, "after", 3)
    told = messages_of(script)
    page = open_program(browser, told.snapshot())
    for rid in rids:
        script.done(rid, 2, (3, 9))
        told.fold.feed(script.log.since(told.fold.next_seq))
        page.evaluate("delta => window.emit(delta)", told.delta())
        page.wait_for_function(
            f"() => document.querySelector('.sgnb-program').dataset.seq === '{told.fold.version}'"
        )
    assert later in told.fold.generations and told.fold.finished is None
    page.locator(".sgnb-live-region", has_text=words).wait_for(state="attached")
    assert page.errors == []  # type: ignore[attr-defined]
    page.close()


def test_the_parts_of_a_character_have_its_place(browser: Browser) -> None:
    """A token of half a character draws nothing of its own: the character is outlined, and the inspector stands at it."""
    script = Script()
    rid = script.start(1, "x", 2)
    half = "\N{PANDA FACE}".encode()
    for text, raw in (("Here is ", b"Here is "), ("", half[:2]), ("\N{PANDA FACE}", half[2:]), (".", b".")):
        token = TokenInfo(5, -0.1, ((-0.1, 5), (-3.0, 6)), raw, 0, -1, False)
        script.log.append(ev.GenDelta(rid, text, 1, (), (token,)))
    script.done(rid, 4, (3, 9))
    page = open_program(browser, snapshot_of(script))
    page.locator(".sgnb-model").focus()
    marks = []
    for _ in range(3):
        page.keyboard.press("ArrowRight")
        marks.append(page.locator(".sgnb-token-mark").evaluate_all(BOXES))
    assert len(marks[1]) == 1 and marks[1] == marks[2] != marks[0]
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    [box] = page.locator(".sgnb-inspector:visible").evaluate_all(BOXES)
    assert 0 < box["top"] - marks[1][0]["bottom"] < 20, (box, marks[1])
    assert page.locator(".sgnb-inspector-token").inner_text() == "▯"
    assert page.errors == []  # type: ignore[attr-defined]
    page.close()
