"""Every word of the views goes through their ``trans``: in a pseudo-locale none is outside of its brackets (``pseudo.js``).

All data is in Greek letters there, so that a word in Latin ones is the view's own. What the kernel says ready-made is data
too: it is English in every language (CONTRIBUTING.md). ``tests/js/test_words.mjs`` reads the sources for words that no
scene here shows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page
from program_page import Script, ends_of, messages_of, open_program, review
from test_browser_axe import two
from view_page import open_view

from sgnb.errors import RequestError
from sgnb.runtime import events as ev
from sgnb.runtime.explain import explain_data

PSEUDO = (Path(__file__).parents[1] / "js" / "pseudo.js").read_text()
SETTLED = """() => {
  document.querySelector('.sgnb-view')?.sgnbView.changed();
  return new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 30))));
}"""
"""What is words is drawn after the pictures, in the same frame when the view itself has changed."""
POLICIES = ["lpm", "fcfs", "dfs-weight", "lof", "priority", "random"]
"""Names of settings: what one writes in a program is the same in every language."""
CALLS = ["select", "join"]
"""What a row is called after: calls of the language."""
REASONS = ["stop", "length", "abort"]
"""Why a request ended, as the API says it."""


def look(page: Page, scene: str, *data: str) -> None:
    """Nothing that is shown now, was drawn or said since the last look is bare."""
    page.evaluate(SETTLED)
    found = page.evaluate("data => window.bareWords(data)", list(data))
    assert found["bare"] == [], scene
    assert found["brackets"] > 10, f"{scene}: the words are those of the pseudo-locale"


def scenes(page: Page, view: str, steps: dict[str, str], *data: str) -> None:
    page.evaluate("() => window.hear(document.querySelector('.sgnb-view').sgnbView.region)")
    look(page, f"{view}: at first", *data)
    for scene, script in steps.items():
        page.evaluate(
            f"async () => {{ const view = document.querySelector('.sgnb-view').sgnbView; {script} }}"
        )
        look(page, f"{view}: {scene}", *data)
    assert page.errors == []  # type: ignore[attr-defined]
    page.close()


def hover(canvas: str, places: str) -> str:
    """Have the pointer rest at ``places`` ([x, y] pairs) of a canvas, one after another."""
    return f"""
      const canvas = document.querySelector('{canvas}');
      const box = canvas.getBoundingClientRect();
      for (const [x, y] of {places}) {{
        canvas.dispatchEvent(new PointerEvent('pointermove', {{clientX: box.left + x, clientY: box.top + y}}));
        await new Promise(done => setTimeout(done, 90));
        for (const line of document.querySelectorAll('.sgnb-tooltip div'))
          document.querySelector('#place').append(line.cloneNode(true)); // it stays for the look
      }}
    """


PLAYHEAD = {
    "at an earlier step": "store.stepBy(-3);",
    "live again": "store.goLive();",
    "keys": "view._help();",
    "no keys": "document.querySelector('dialog.sgnb-help').hidePopover();",
    "copied": "view.copySelected();",
    "of a recording": "store.replaying = {span: [store.oldest, store.live.time], file: 'ρ', end: true, trouble: 'τ'};"
    "store.stepBy(-2); store._tell('state');",
    "live": "store.replaying = null; store.goLive(); store._tell('state');",
    "catching up": "store.gap = true; store._tell('state');",
    "kernel gone": "store.gap = false; store.engineState = 'died'; store._tell('state');",
    "empty": "store.engineState = 'idle'; store.reset(); store.live.seq = 1; store._tell('state');",
    "no engine": "store.engineState = 'none'; store.reset(); store._tell('state');",
}
CHOOSE = "store.select({kind: 'request', id: '%s'});"


def test_words_of_the_tree(browser: Browser) -> None:
    page = open_view(browser, "tree", scenario="greekScript(cast())", before=PSEUDO)
    page.evaluate("() => { document.querySelector('.sgnb-view').sgnbView.options.open = () => {}; }")
    steps = {
        "a request that runs": CHOOSE % "c1.r11",
        "one whose prefix was evicted": CHOOSE % "c1.r31",
        "one that changed": CHOOSE % "c1.r9",
        "one that waited": CHOOSE % "c1.r21",
        "a node": "store.select({kind: 'node', id: [...store.live.nodes.keys()][3]});",
        "a node that went": "store.select({kind: 'node', id: store.live.evicted.at(-1).id});",
        "under the pointer": hover(
            ".sgnb-tree-canvas", "Array.from({length: 8}, (_, i) => [20 + 130 * i, 30 + 45 * i])"
        ),
        "folds under the pointer": "const place = view._places.find(({block}) => block.kind === 'fold');"
        + hover(".sgnb-tree-canvas", "[[place.x + 5, place.y + 5]]"),
        "a flight under the pointer": "const place = view._places.find(({block}) => block.kind === 'flight');"
        + hover(".sgnb-tree-canvas", "[[place.x + 1, place.y + 5]]"),
        "found": "view.find('1'); await new Promise(done => setTimeout(done, 400));",
        "as a tree": "view._switch.choose('links');",
        "as a table": "view._switch.choose('table');",
        **PLAYHEAD,
    }
    scenes(page, "tree", steps)


def test_words_of_the_map(browser: Browser) -> None:
    answers = """window.answers = {
      holders: () => ({sessions: [{sid: 'c1.s7', tokens: 510, cached: 510, node: 2, active: '', cell: '5', text: 'σ'}]}),
      slot: ({slot}) => ({position: slot % 5, output: slot % 2 ? 0 : 3, text: 'τ'}),
    };"""
    page = open_view(browser, "kv", scenario="greekScript(cast())", before=PSEUDO + answers)
    page.evaluate("() => { store.load({...script.picture, slot_bytes: 114688}); feed(); }")
    kinds = "[0, 1, 2, 3].map(kind => [...store.live.kinds].indexOf(kind)).filter(slot => slot >= 0)"
    steps = {
        "a request": CHOOSE % "c1.r11",
        "slots of each kind": f"for (const slot of {kinds}) {{ view._choose(slot);"
        "await new Promise(done => setTimeout(done, 60)); view.region.say(view.words(slot).join(', ')); }",
        "a range": "view.range = [0, 900]; view.changed();",
        "by request": "view._switch.choose('request');",
        "by age": "view._switch.choose('age');",
        "as a table": "view._switch.choose('table');",
        "as states": "view._switch.choose('state');",
        "under the pointer": hover(".sgnb-kv-canvas", "[[70, 4], [90, 40], [300, 60], [500, 150]]"),
        "released": "document.querySelector('.sgnb-kv-holders button').click();",
        "slots unaccounted for": "store.live.counts[0] -= 3; store._tell('data');",
        **PLAYHEAD,
    }
    scenes(page, "kv", steps)


def test_words_of_the_timeline(browser: Browser) -> None:
    answers = """window.answers = {
      record: () => ({recording: true, file: 'ρ', seconds: 3, events: 9}),
      perfetto: () => ({file: 'ρ', events: 9}),
      compare: () => ({job: 'j'}),
      compared: () => ({state: 'done', script: 'σ', settings: [{setting: 'lpm', hit_rate: 0.5}], notes: ['ν']}),
    };"""
    page = open_view(browser, "timeline", scenario="greekScript(batch())", before=PSEUDO + answers)
    form = "document.querySelectorAll('.sgnb-time-act-row button')[%d].click();"
    go = "document.querySelector('.sgnb-time-go').click();"
    steps = {
        "all": "view.look(view.index.steps[0].from, view.latest);",
        "the newest": "view.zoom(0);",
        "recording": "view.acts.update();",
        "a step with decisions": "const told = view.index.steps.findLast(step => step.event.notes?.length > 1);"
        "store.select({kind: 'step', id: told.step});",
        "a step of one row": "store.select({kind: 'step', id: view.index.steps[3].step});",
        **{f"request {name}": CHOOSE % f"c1.{name}" for name in ("t0", "a2", "w", "x", "s", "r", "a1")},
        "a request that runs": "store.goToStep(view.index.steps.at(-12).step);",
        "steps under the pointer": "store.goLive();"
        + hover(".sgnb-time-top", "[[300, 38], [500, 60], [700, 60]]"),
        "lanes under the pointer": hover(
            ".sgnb-time-lanes", "[[400, 10], [500, 33], [600, 55], [700, 77], [800, 120]]"
        ),
        "as a table": "view.switch.choose('table'); view.look(view.index.steps[0].from, view.latest);",
        "as a chart": "view.switch.choose('lanes'); view.zoom(0);",
        "export": form % 1,
        "exported": go,
        "compare": form % 2,
        "compared": go,
        "nothing to compare": form % 2
        + "document.querySelectorAll('.sgnb-time-form input[type=checkbox]').forEach(box => (box.checked = false));"
        + go,
        "record": "window.answers.record = () => ({recording: false, file: ''}); view.acts.update = () => {};"
        "document.querySelector('.sgnb-time-act-row button').click(); await new Promise(done => setTimeout(done, 50));"
        "document.querySelector('.sgnb-time-act-row button').click();",
        **PLAYHEAD,
    }
    scenes(page, "timeline", steps, *POLICIES, *REASONS)


def test_words_of_the_graph(browser: Browser) -> None:
    data: dict[str, Any] = explain_data(two, "tea")
    data |= {"errors": [{"line": 3, "text": "gone"}], "compiled": False, "reason": "host code"}
    page = open_view(browser, "graph", before=PSEUDO, data=greek(browser, data))
    passes = {f"pass {n}": f"view._choose({n});" for n in range(len(data["passes"]))}
    steps = {
        **passes,
        "a line": "document.querySelector('.sgnb-node[data-line]').click();",
        "one graph": "view.show.choose('one');",
        "instructions": "view.show.choose('code');",
        "keys": PLAYHEAD["keys"],
        "narrow": "document.querySelector('#place').style.width = '620px';",
        "of nothing": "view.options.data = {}; view.changed();",
    }
    scenes(page, "graph", steps)


def greek(browser: Browser, data: dict[str, Any]) -> dict[str, Any]:
    """Data in Greek letters."""
    page = browser.new_page()
    page.add_script_tag(content=PSEUDO)
    made: dict[str, Any] = page.evaluate("data => greek(data)", data)
    page.close()
    return made


def open_greek(browser: Browser, script: Script, **more: Any) -> Page:
    """A program view on the run, its words and texts in Greek letters; the kernel's answers too."""
    told = messages_of(script)
    page = open_program(browser, greek(browser, told.snapshot()), ends=ends_of(told), before=PSEUDO, **more)
    page.evaluate(
        "() => { const plain = window.tokenAnswer; window.tokenAnswer = asked => greek(plain(asked)); }"
    )
    return page


def test_words_of_a_program(browser: Browser) -> None:
    for arms, finished in ((3, True), (3, False), (5, False), (9, True)):
        page = open_greek(browser, review(arms=arms, finished=finished))
        page.evaluate("() => window.hear(document.querySelector('.sgnb-program').sgnbProgram.region)")
        scene = f"program: {arms} branches, {finished=}"
        look(page, scene, *CALLS)
        for shade in ("probability", "cached", "forced"):
            page.locator(f'[role="radio"][data-value="{shade}"]').evaluate("node => node.click()")
            look(page, f"{scene}, {shade}", *CALLS)
        if finished:
            for text in (page.locator(".sgnb-model").last, page.locator(".sgnb-prompt").first):
                text.focus()
                page.keyboard.press("ArrowRight")
                page.keyboard.press("Enter")
                page.locator(".sgnb-inspector:visible").wait_for()
                look(page, f"{scene}, a token", *CALLS)
                page.keyboard.press("Escape")
        page.locator(".sgnb-rows").focus()
        page.keyboard.press("?")
        look(page, f"{scene}, keys", *CALLS)
        page.keyboard.press("Escape")
        page.evaluate("() => { window.past = null; window.scrub(true); }")
        look(page, f"{scene}, at an earlier step", *CALLS)
        assert page.errors == []  # type: ignore[attr-defined]
        page.close()


def test_words_of_a_program_that_failed(browser: Browser) -> None:
    script = review(finished=False, logprobs=False)
    script.turn(1, "user", "word " * 20_000, 8)
    error = RequestError("It is not so.", hint="Do so.")
    script.log.append(ev.StateFailed(1, error))
    script.finish("failed", error)
    page = open_greek(browser, script, shade="probability")
    look(page, "program: failed, without probabilities", *CALLS)
    page.evaluate("() => { document.querySelector('.sgnb-program').sgnbProgram.showIn('tree', null); }")
    page.evaluate("() => { document.querySelector('.sgnb-program').sgnbProgram.pressStop(); }")
    look(page, "program: stopping", *CALLS)
    page.close()


def test_a_bare_word_is_found(browser: Browser) -> None:
    """The look itself: words beside brackets, in attributes and on canvases, and no others."""
    holders = "window.answers = {holders: () => ({sessions: []})};"
    page = open_view(browser, "kv", scenario="greekScript(cast())", before=PSEUDO + holders)
    look(page, "as it is")
    page.evaluate(
        """() => {
          const add = (attributes, text) => {
            const node = Object.assign(document.createElement('p'), attributes);
            node.append(text);
            document.querySelector('#place').append(node);
          };
          add({}, '⟦3 slots⟧ and 5 slots ⟦(%2 ⟦free⟧)⟧');
          add({title: 'of it, 12 ms'}, 'c1.r7, 5.0 GiB');
          document.querySelector('canvas').getContext('2d').fillText('now', 0, 0);
        }"""
    )
    found = page.evaluate("() => window.bareWords(['of'])")["bare"]
    assert sorted(one.split(" in ")[0].split(": ", 1)[1] for one in found) == ["and", "it", "now", "slots"]
    page.close()
