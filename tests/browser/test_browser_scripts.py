"""The widgets' scripts as they are packaged: packed, with one core for all of them."""

from __future__ import annotations

from playwright.sync_api import Browser

from sgnb.widgets.bundle import packed_core, script_of
from sgnb.widgets.engine_view import TITLES

PACKED = """async ([scripts, core]) => {
  window.shown = {};
  window.arrived = false;
  const get_model = async id => {
    if (id !== "c1" || !arrived) throw new Error("widget model not found");
    return { get: () => core };
  };
  window.show = async (name, script, manager = { get_model }) => {
    const place = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
    const { default: widget } = await import(place);
    const traits = { core: "IPY_MODEL_c1", key: "k/e.1", engine: "e", data: {}, snapshot: {} };
    const model = { get: trait => traits[trait], on() {}, off() {}, send() {}, widget_manager: manager };
    widget.initialize({ model });
    const el = document.createElement("div");
    el.id = name;
    document.body.append(el);
    return { widget, model, el, done: widget.render({ model, el }) };
  };
  for (const [name, script] of Object.entries(scripts)) shown[name] = await show(name, script);
}"""


PAGE_SLOTS = """kind => Object.getOwnPropertySymbols(window)
  .filter(one => Symbol.keyFor(one)?.startsWith(`sgnb.${kind}.`)).length"""


def test_packed_scripts_are_the_views_with_one_core(browser: Browser) -> None:
    """The core comes late, as in a page that is loaded beside its kernel: each view says that it waits, then it is there."""
    page = browser.new_page()
    failed: list[str] = []
    page.on("pageerror", lambda error: failed.append(str(error)))
    scripts = {kind: script_of(f"widget_{kind}.js") for kind in TITLES} | {"program": script_of("program.js")}
    assert packed_core(), "the side panel of this checkout is not built: make setup"
    page.set_content("<p>")
    page.evaluate(PACKED, [scripts, packed_core()])
    page.get_by_text("The script of this view is on its way.").nth(4).wait_for()
    assert page.evaluate(PAGE_SLOTS, "core") == 0 and page.locator(".sgnb-view, .sgnb-program").count() == 0
    page.evaluate("() => { window.arrived = true; }")
    for kind in scripts:
        page.locator(f"#{kind} .sgnb-program" if kind == "program" else f"#{kind} .sgnb-view").wait_for()
    assert page.get_by_role("status").filter(has_text="on its way").count() == 0
    assert (page.evaluate(PAGE_SLOTS, "core"), page.evaluate(PAGE_SLOTS, "view")) == (1, 5)
    # What is in the page serves other models too, also of a kernel whose core never comes; and at once from then on.
    page.evaluate(
        """async script => { const { widget, model, done } = await show("again", script, {});
          await done;
          const el = document.createElement("div");
          widget.render({ model, el });
          window.atOnce = !!el.querySelector(".sgnb-view"); }""",
        scripts["tree"],
    )
    assert page.evaluate("() => window.atOnce")
    assert page.evaluate(PAGE_SLOTS, "view") == 5 and not failed
    # Freed as views of any widget are.
    page.evaluate("async () => { (await shown.tree.done)(); }")
    assert page.locator("#tree .sgnb-view").count() == 0 and not failed
    page.close()


def test_a_packed_script_whose_core_does_not_come_says_so(browser: Browser) -> None:
    page = browser.new_page()
    page.set_content("<p>")
    page.clock.install()
    page.evaluate(PACKED, [{"kv": script_of("widget_kv.js")}, packed_core()])
    page.clock.run_for(1000)
    page.get_by_text("The script of this view is on its way.").wait_for()
    lacks = page.locator("#kv .sgnb-unloaded", has_text="The script of this view could not be loaded.")
    for _ in range(30):  # ten seconds: promises run between the ticks
        page.clock.run_for(500)
    lacks.wait_for()
    # Whoever shows it once more tries again.
    page.evaluate(
        """() => { window.arrived = true; const { widget, model, el } = shown.kv; el.replaceChildren();
          widget.render({ model, el }); }"""
    )
    page.locator("#kv .sgnb-view").wait_for()
    assert lacks.count() == 0
    page.close()
