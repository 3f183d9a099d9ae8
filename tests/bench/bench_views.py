"""Script time a frame of the radix tree with 10,000 nodes and of the KV map with a million slots, in a real browser.

Run by hand: ``python tests/bench/bench_views.py``. Prints medians and 95th percentiles in milliseconds, and the bytes kept
for the past. A busy machine shows in the percentile first; compare runs of one machine.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1] / "browser"))
from view_page import open_view

CASES = (("tree", "large(10000, 400000)"), ("kv", "large(10000, 1000000)"), ("kv", "large(10000, 65536)"))
MEASURE = """async () => {
  const host = document.querySelector('.sgnb-view');
  const times = [];
  for (let i = 0; i < 60; i++) {
    script.later(0.02).pass([{rid: 'c1.r1', kind: 'decode', tokens: 1, prefix: i}]);
    store.feedEvents(script.events.slice(-2), {time: script.time});
    store._tell('data');
    await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
    times.push(Number(host.dataset.drawMs));
  }
  times.sort((a, b) => a - b);
  return {p50: times[30], p95: times[57], bytes: store.pastBytes};
}"""


def main() -> None:
    """Print one line a case."""
    path = os.environ.get("SGNB_CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        for kind, scenario in CASES:
            page = open_view(browser, kind, scenario=scenario)
            found = page.evaluate(MEASURE)
            print(
                f"{kind:5} {scenario:24} p50 {found['p50']:5.1f} ms  p95 {found['p95']:5.1f} ms  {found['bytes']:,} bytes"
            )
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
