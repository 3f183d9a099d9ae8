"""Script time of the batch timeline: ten minutes of data at 100 steps a second, then 100 more steps a second, in Chromium.

    python tests/bench/bench_timeline.py [--streams 8] [--check]

The view is the widget's own script on a bare page. For each window (1 s, 10 s, 60 s, the table) it draws as it does live:
three new steps, then a frame, 60 times; given are the median and the 95th percentile of a frame's script, and what the page
holds. Bar: 16 ms a frame. Chromium rasterises in software here; only script is measured.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1] / "browser"))
from view_page import open_view

BAR = 16.0
WINDOWS = {"1 s": 1, "10 s": 10, "60 s": 60}
MEASURE = """([span, frames, table]) => {
  const view = document.querySelector('.sgnb-view').sgnbView;
  view.mode = table ? 'table' : 'lanes';
  view.span = span;
  view.right = null;
  const spent = [];
  for (let i = 0; i < frames; i++) {
    window.more(3);
    const began = performance.now();
    view._dirty = view._detailsDirty = true;
    if (i % 8 === 0) view._detailsAt = -Infinity;
    view._render();
    spent.push(performance.now() - began);
  }
  spent.sort((a, b) => a - b);
  return [spent[Math.floor(frames / 2)], spent[Math.floor(frames * 0.95)], spent.at(-1)];
}"""
MORE = """() => {
  const all = scenarios.long(72000, STREAMS).events;
  const from = store.live.seq;
  let at = all.findIndex(one => one.seq === from + 1);
  window.more = steps => {
    const part = [];
    while (steps && at < all.length) {
      if (all[at].event.t === 'step') steps--;
      part.push(all[at++]);
    }
    store.feedEvents(part, { time: part.at(-1).event.time });
  };
}"""


def main() -> int:
    """Print each window's times and the memory; 1 with ``--check`` when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--frames", type=int, default=60)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    chromium = os.environ.get("SGNB_CHROMIUM") or shutil.which("chromium")
    missed = False
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--enable-precise-memory-info"]
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        page = open_view(browser, "timeline", scenario=f"long(60000, {options.streams})")
        page.evaluate(MORE.replace("STREAMS", str(options.streams)))
        for name, span in [*WINDOWS.items(), ("table", 60)]:
            median, high, most = page.evaluate(MEASURE, [span, options.frames, name == "table"])
            print(f"{name:>6}: p50 {median:5.1f} ms, p95 {high:5.1f} ms, most {most:5.1f} ms a frame")
            missed |= name != "table" and high > BAR
        held = page.evaluate("() => [performance.memory.usedJSHeapSize / 2**20, store.pastBytes / 2**20]")
        print(f"page: {held[0]:.0f} MB of JavaScript, {held[1]:.0f} MB of it for the past")
        browser.close()
    return int(missed and options.check)


if __name__ == "__main__":
    sys.exit(main())
