"""The KV map on a bare page: mouse and keys, what a slot is, the sum that must hold, the last minute below it."""

from __future__ import annotations

import json
from pathlib import Path

from playwright.sync_api import Browser
from view_page import data_of, open_view


def test_map_answers_by_mouse_and_key(browser: Browser) -> None:
    page = open_view(browser, "kv")
    canvas = page.locator("canvas.sgnb-kv-canvas")
    canvas.click(position={"x": 60, "y": 4})
    page.locator(".sgnb-kv-about").get_by_text("slot ").wait_for()
    assert "node " in page.locator(".sgnb-kv-about").inner_text()
    page.locator(".sgnb-kv-holders tr", has_text="9.1 finding").click()
    assert page.evaluate("() => store.selection") == {"kind": "request", "id": "c1.r11"}
    page.get_by_role("button", name="Release").click()
    page.wait_for_function("() => window.said.some(message => message.verb === 'release')")
    page.get_by_role("radio", name="Table").click()
    page.locator(".sgnb-kv-twin table").wait_for()
    page.locator(".sgnb-view").focus()
    page.keyboard.press(",")
    page.wait_for_function("() => !store.isLive")
    page.keyboard.press("l")
    page.wait_for_function("() => store.isLive")
    page.set_viewport_size({"width": 900, "height": 420})
    page.locator(".sgnb-view").evaluate(
        "view => view.closest('body').append(Object.assign(document.createElement('div'), {style: 'height: 2000px'}))"
    )
    page.mouse.wheel(0, 180)
    page.wait_for_function("() => scrollY > 0")
    page.keyboard.press("?")
    keys = page.locator("dialog.sgnb-help:popover-open")
    keys.wait_for()
    box = keys.bounding_box()
    assert box and box["y"] >= 0 and box["y"] + box["height"] <= 420, (
        "it is seen whole, however far one has scrolled"
    )
    page.keyboard.press("Escape")
    keys.wait_for(state="hidden")
    assert data_of(page)["state"] == "ok"
    page.evaluate("() => window.unmount()")
    assert page.evaluate("() => window.said.at(-1).k") == "unsub"
    page.close()


def test_a_slot_names_its_token_and_the_legend_folds(browser: Browser) -> None:
    page = open_view(browser, "kv", width=640)
    page.evaluate("() => { window.answers = {slot: () => ({position: 389, output: 27, text: ' under'})}; }")
    page.locator("canvas.sgnb-kv-canvas").focus()
    page.evaluate(
        """() => {
          const view = document.querySelector('.sgnb-view').sgnbView, { live } = store;
          const decoded = (place, slot) => live.ownerNames[place] === 'c1.r11' && live.kinds[slot] === 2;
          view.cursor = [...live.owners].findIndex(decoded);
          view.changed();
        }"""
    )
    page.keyboard.press("Enter")
    page.locator(".sgnb-kv-about", has_text='9.1 finding, token 27 " under"').wait_for()
    legend = page.locator(".sgnb-legend.sgnb-folding")
    assert not legend.is_visible()
    page.get_by_role("button", name="Legend").click()
    legend.wait_for()
    page.close()


def test_slots_that_are_unaccounted_for_can_be_reported(browser: Browser) -> None:
    page = open_view(browser, "kv")
    report = page.get_by_role("button", name="Save report…")
    assert not report.is_visible()
    page.evaluate("() => { store.live.counts[0] -= 3; store._tell('data'); }")
    page.get_by_text("✕ 3 slots unaccounted for.").wait_for()
    with page.expect_download() as download:
        report.click()
    saved = json.loads(Path(download.value.path()).read_text())
    assert saved["slots"] and sum(run[1] for run in saved["slots"]) == 16384
    page.close()


def test_the_map_zooms_at_the_pointer_and_copies_what_is_selected(browser: Browser) -> None:
    page = open_view(browser, "kv")
    canvas = page.locator("canvas.sgnb-kv-canvas")
    canvas.click(position={"x": 646, "y": 42})
    slot = page.evaluate("() => document.querySelector('.sgnb-view').sgnbView.cursor")
    box = canvas.bounding_box()
    assert box is not None
    pointer = {"clientX": box["x"] + 646, "clientY": box["y"] + 42}
    wide = "document.querySelector('.sgnb-kv-spacer').offsetWidth"
    for _ in range(3):
        before = page.evaluate(wide)
        page.mouse.wheel(0, -100)
        page.wait_for_function(
            f"""([before, pointer, slot]) => {wide} > before
              && document.querySelector('.sgnb-view').sgnbView._slotAt(pointer) === slot""",
            arg=[before, pointer, slot],
            timeout=5000,
        )
    copied = "() => document.querySelector('.sgnb-view').sgnbView.copy()"
    page.evaluate("() => store.select({kind: 'request', id: 'c1.r11'})")
    page.locator(".sgnb-kv-holders tr.sgnb-chosen").wait_for()
    assert page.evaluate(copied).startswith("9.1 finding, decode: ")
    node = page.evaluate("() => store.shown.holds.get('c1.r11')")
    page.evaluate("id => store.select({kind: 'node', id})", node)
    assert f"node {node}, " in page.evaluate(copied)
    page.mouse.down()
    page.mouse.move(300, 120, steps=3)
    page.mouse.up()
    page.locator(".sgnb-kv-about h3", has_text="Slots ").wait_for()
    assert page.evaluate(copied).startswith("Slots ")
    page.keyboard.press("Escape")
    page.wait_for_function("() => document.querySelector('.sgnb-kv-about').innerText === ''")
    assert page.evaluate(copied) == ""
    page.close()


def test_below_the_map_of_a_recording_is_the_whole_of_it(browser: Browser) -> None:
    page = open_view(browser, "kv")
    head, past = page.locator(".sgnb-kv-head h3"), page.locator("canvas.sgnb-kv-past")
    assert head.inner_text() == "Slots over the last 60 s"
    page.evaluate(
        """() => {
          store.replaying = {span: [store.oldest, store.live.time], file: 'a.sgnb', end: true, trouble: ''};
          store._tell('state');
        }"""
    )
    page.locator(".sgnb-kv-head h3", has_text="Slots over the recording").wait_for()
    assert page.evaluate("() => store.live.time - store.oldest") > 90
    past.click(position={"x": 47, "y": 40})
    page.wait_for_function("() => !store.isLive && store.time - store.oldest < 2")
    page.close()


PAST = """old => {
  const [slots, time] = [store.live.slots, store.live.time];
  const figure = {t: 'stats', num_used_tokens: slots / 2, num_locked_tokens: slots / 4, num_cached_tokens: slots / 4};
  if (old) delete figure.num_locked_tokens;
  store.history.figures = [time - 50, time - 0.5].map(at => ({...figure, time: at}));
  const view = document.querySelector('.sgnb-view').sgnbView;
  view.draw();
  const canvas = document.querySelector('canvas.sgnb-kv-past');
  const ratio = window.devicePixelRatio;
  const at = share => [canvas.width * 0.66, (96 - 88 * share) * ratio, 1, 1];
  const seen = share => [...canvas.getContext('2d').getImageData(...at(share)).data].slice(0, 3);
  const bytes = colour => [1, 3, 5].map(from => parseInt(colour.slice(from, from + 2), 16));
  const named = pixel => ['locked', 'decode', 'evictable'].find(name => `${bytes(view.colours[name])}` === `${pixel}`) ?? '';
  return [0.12, 0.38, 0.62, 0.88].map(share => named(seen(share)));
}"""


def test_slots_in_flight_are_no_locked_ones_below_the_map(browser: Browser) -> None:
    page = open_view(browser, "kv")
    assert page.evaluate(PAST, False) == ["locked", "decode", "evictable", ""]
    assert page.evaluate(PAST, True) == ["locked", "locked", "evictable", ""], (
        "a recording without the figure"
    )
    label = page.locator("canvas.sgnb-kv-past").get_attribute("aria-label")
    assert label is not None
    assert label.startswith("Slots over the last 60 s: KV map: ")
    assert all(f" {part}" in label for part in ("slots used", "locked", "in flight", "evictable"))
    page.close()
