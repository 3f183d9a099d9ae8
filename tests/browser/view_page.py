"""A bare page with one engine view on scripted events: for pictures, drawing times and drawing itself, without a Lab.

The view is the widget's own joined script; ``tests/js/fake_kernel.js`` answers its questions from ``scenario.mjs``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

from sgnb.widgets.bundle import STATIC, join_modules

ROOT = Path(__file__).parents[2]
LIGHT = {
    "ui-font-color0": "rgba(0,0,0,1)",
    "ui-font-color1": "rgba(0,0,0,0.87)",
    "ui-font-color2": "rgba(0,0,0,0.54)",
    "ui-font-color3": "rgba(0,0,0,0.38)",
    "layout-color1": "white",
    "layout-color2": "#eeeeee",
    "border-color1": "#bdbdbd",
    "border-color2": "#e0e0e0",
    "brand-color1": "#1976d2",
}
DARK = {
    "ui-font-color0": "rgba(255,255,255,1)",
    "ui-font-color1": "rgba(255,255,255,0.87)",
    "ui-font-color2": "rgba(255,255,255,0.54)",
    "ui-font-color3": "rgba(255,255,255,0.38)",
    "layout-color1": "#111111",
    "layout-color2": "#424242",
    "border-color1": "#616161",
    "border-color2": "#424242",
    "brand-color1": "#1976d2",
}

CONTRAST = DARK | {
    "ui-font-color1": "#fff",
    "ui-font-color2": "#fff",
    "ui-font-color3": "#fff",
    "border-color1": "white",
    "border-color2": "#e0e0e0",
    "brand-color1": "#319bf2",
}
THEMES = {"light": LIGHT, "dark": DARK, "high contrast": CONTRAST}
AXE = ROOT / "labextension" / "node_modules" / "axe-core" / "axe.min.js"


def use_theme(page: Page, name: str) -> None:
    """Give the page the colours of one of JupyterLab's themes, or of a system that forces its own (``forced``)."""
    page.emulate_media(
        forced_colors="active" if name == "forced" else "none", color_scheme="light", reduced_motion="reduce"
    )
    colours = THEMES.get(name, LIGHT)
    page.evaluate(
        """([colours, light]) => {
          for (const [name, value] of Object.entries(colours)) document.body.style.setProperty(`--jp-${name}`, value);
          document.body.style.background = colours['layout-color1'];
          document.body.dataset.jpThemeLight = light;
        }""",
        [colours, "true" if colours is LIGHT else "false"],
    )


def axe(page: Page, selector: str, *, colours: bool = False) -> list[str]:
    """What axe finds wrong below ``selector``: rule, and the first place. ``colours``: only what a theme may change."""
    if not page.evaluate("() => 'axe' in window"):
        page.add_script_tag(path=AXE)
    found = page.evaluate(
        """([selector, rules]) => window.axe.run(selector, {resultTypes: ['violations'],
             ...(rules.length ? {runOnly: {type: 'rule', values: rules}} : {})}).then(r => r.violations)""",
        [selector, ["color-contrast"] if colours else []],
    )
    return [f"{one['id']}: {one['nodes'][0]['html'][:200]} {one['nodes'][0]['any'][:1]}" for one in found]


def open_view(
    browser: Browser,
    kind: str,
    *,
    width: int = 1180,
    dark: bool = False,
    scenario: str = "cast()",
    height: int = 900,
    data: dict[str, Any] | None = None,
    before: str = "",
) -> Page:
    """A page that shows the view on the scenario's last moment; ready when it has been drawn. ``data``: of a graph;
    ``before``: a script that runs before the view's."""
    page = browser.new_page(viewport={"width": width, "height": height}, reduced_motion="reduce")
    page.set_default_timeout(20_000)
    page.errors = []  # type: ignore[attr-defined]
    page.on("pageerror", lambda error: page.errors.append(str(error)))  # type: ignore[attr-defined]
    page.on("console", lambda message: message.type == "error" and page.errors.append(message.text))  # type: ignore[attr-defined]
    css = "\n".join(
        (STATIC / name).read_text() for name in ("theme.css", "view.css", "keys.css", f"{kind}.css")
    )
    theme = ";".join(f"--jp-{name}:{value}" for name, value in (DARK if dark else LIGHT).items())
    scripts = [(ROOT / f"tests/js/{name}.mjs").read_text() for name in ("scenario", "timeline_scenario")]
    made = re.sub(r"^export |^import .*\n", "", "\n".join(scripts), flags=re.MULTILINE)
    script = join_modules(f"widget_{kind}.js").replace("export default widget;", "")
    ground = "#111" if dark else "#fff"
    page.set_content(
        f'<!doctype html><meta charset="utf-8"><style>body{{margin:0;background:{ground};{theme};'
        '--jp-ui-font-family:"DejaVu Sans",sans-serif;--jp-code-font-family:"DejaVu Sans Mono",monospace}'
        f'{css}</style><body data-jp-theme-light="{"false" if dark else "true"}"><div id="place"></div>'
    )
    page.evaluate("data => { window.viewData = data; }", data or {})
    if before:
        page.add_script_tag(content=before)
    kernel = (
        (ROOT / "tests/js/fake_kernel.js")
        .read_text()
        .replace("const script = SCENARIO", f"const script = {scenario}")
    )
    page.add_script_tag(content="\n".join([script, made, kernel]), type="module")
    page.wait_for_selector('.sgnb-view[data-ready="1"]')
    return page


def data_of(page: Page) -> dict[str, Any]:
    """The view's data attributes."""
    return dict(page.evaluate("() => ({...document.querySelector('.sgnb-view').dataset})"))


MISFITS = """() => {
  const host = document.querySelector('.sgnb-view');
  const frame = host.getBoundingClientRect();
  const apart = '.sgnb-live-region, .sgnb-tooltip, dialog'; // over the rest by intent, or never seen
  const controls = ['BUTTON', 'INPUT', 'SELECT'];
  const words = node => [...node.childNodes].some(child => child.nodeType === 3 && child.data.trim());
  const name = node => `${node.className || node.tagName} "${(node.textContent || node.value || '').trim().slice(0, 40)}"`;
  const out = new Set();
  const places = [];
  for (const node of host.querySelectorAll('*')) {
    if (node.closest(apart) || !node.checkVisibility({ visibilityProperty: true })) continue;
    const control = controls.includes(node.tagName);
    if (!control && !words(node)) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const { left, right, top, bottom } = (control ? node : range).getBoundingClientRect();
    if (right - left < 1 || bottom - top < 1) continue;
    const seen = { left, right, top, bottom };
    let scrolls = false;
    for (let box = node; box && box !== document.body; box = box.parentElement) {
      const style = getComputedStyle(box);
      if (style.overflowX === 'visible' && style.overflowY === 'visible') continue;
      const edge = box.getBoundingClientRect();
      scrolls ||= box !== host;
      for (const [side, most] of [['left', Math.max], ['top', Math.max], ['right', Math.min], ['bottom', Math.min]])
        seen[side] = most(seen[side], edge[side]);
    }
    if ((left < frame.left - 1 || right > frame.right + 1) && !scrolls) out.add(`${name(node)} is out of the view`);
    const table = node.closest('td, th')?.closest('.sgnb-view *:has(> table)');
    const ends = own => own.textOverflow === 'ellipsis';
    if (table && right > table.getBoundingClientRect().right + 1 && !ends(getComputedStyle(node)))
      out.add(`${name(node)} is out of its table's place`);
    const own = getComputedStyle(node);
    const short = own.overflowX === 'hidden' && own.textOverflow !== 'ellipsis';
    if ((short || node.tagName === 'BUTTON') && node.scrollWidth > node.clientWidth + 1) out.add(`${name(node)} is cut`);
    const box = node.getBoundingClientRect();
    if (control && (box.width < 20 || box.height < 20)) out.add(`${name(node)} is too small`);
    if (seen.right - seen.left > 1 && seen.bottom - seen.top > 1) places.push([node, seen]);
  }
  places.forEach(([node, a], index) => {
    for (const [other, b] of places.slice(index + 1)) {
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 2 && high > 3 && !node.contains(other)) out.add(`${name(node)} lies over ${name(other)}`);
    }
  });
  if (document.documentElement.scrollWidth > innerWidth) out.add('the page scrolls sideways');
  return [...out];
}"""


def misfits(page: Page) -> list[str]:
    """Words and controls of the view that are cut, out of it, too small to hit, or over one another, once it is drawn."""
    found: list[str] = []
    for _ in range(30):  # a view lays itself out anew a frame or two after its width changed
        found = page.evaluate(MISFITS)
        if not found:
            break
        page.wait_for_timeout(100)
    return found
