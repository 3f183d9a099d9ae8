"""What a page shows, and when: token to DOM, a flood, the kernel's CPU for telemetry, a page that comes back.

    python tests/bench/bench_page.py [stream] [real] [flood] [cpu] [moments]

A real JupyterLab and a real Chromium, as in the browser tests; no part named means all. All times are by the clock of one
machine: a token's begins when the step that drew it ends, and ends when a mutation observer of the
page sees its last character. Messages are those of JupyterLab's own connection to the kernel. Run it on a quiet machine;
the load is printed with the figures. Bars: docs/benchmarks.md. ``SGNB_FLOOD_SECONDS`` shortens the flood;
``SGNB_PAGE_TRACE=1`` traces it, which costs some: what the longest tasks did, and their CPU time.
"""

from __future__ import annotations

import html
import json
import math
import os
import re
import shutil
import statistics
import sys
import tempfile
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nbformat
from playwright.sync_api import Browser, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1] / "browser"))
from conftest import CHROMIUM_FLAGS, LabPage, LabServer
from page_probes import (
    ATTACH,
    CLOSE_PANES,
    DUMP,
    FRAMES,
    HIDE,
    LOAD,
    MARKS,
    OTHER_KERNEL,
    PROGRAM,
    RESTART,
    SEEN,
    WATCH_PAGE,
    WATCH_TEXT,
)
from page_trace import CATEGORIES, long_tasks, total_cpu

FLOOD_RATE, FLOOD_STREAMS = 5000, 64
FLOOD_SECONDS = int(os.environ.get("SGNB_FLOOD_SECONDS", "20"))
FLOOD_STEP = 0.0075
"""Seconds that a step of the stub takes; with what the scheduler takes between steps some 7,000 tokens a second at most."""
VIEWS = ("tree", "kv", "timeline", "graph")
CPU_SECONDS, CPU_ROUNDS = 6.0, 3


def spread(values: Iterable[float], unit: str = "ms") -> str:
    """Median, 95th percentile and most."""
    values = sorted(values)
    p95 = values[min(len(values) - 1, int(len(values) * 0.95))]
    return f"p50 {statistics.median(values):.0f}  p95 {p95:.0f}  max {values[-1]:.0f} {unit}"


def write(server: LabServer, launch: str, *cells: str) -> str:
    """A notebook that loads sgnb, starts an engine and holds ``cells``."""
    sources = ["%load_ext sgnb", f"%sgl {launch}", *cells]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    book.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(book, server.folder / "page.ipynb")
    return "page.ipynb"


def begin(lab: LabPage, server: LabServer, launch: str, *cells: str) -> None:
    """The notebook is open, the panel too, the engine runs."""
    lab.open(write(server, launch, *cells))
    lab.open_panel()
    for index in (0, 1):
        lab.run_cell(index)
        lab.cell_done(index)
    lab.panel_state("idle")


def dock(lab: LabPage) -> None:
    """Four docked views beside the notebook."""
    for kind in VIEWS:
        lab.page.evaluate(
            "kind => window.jupyterapp.commands.execute('sgnb:open-view', {kind}).then(() => null)", kind
        )
    lab.page.evaluate(
        """() => {
          const { shell } = window.jupyterapp;
          const panes = [...shell.widgets('main')].filter(one => one.node.querySelector('.sgnb-pane'));
          panes.slice(1).forEach((pane, at) =>
            shell.add(pane, 'main', { ref: panes[at].id, mode: at === 1 ? 'split-right' : 'split-bottom' }));
        }"""
    )
    for kind in VIEWS:
        lab.page.locator(f".sgnb-pane .sgnb-view-{kind}").wait_for()
    lab.front()


def open_branches(lab: LabPage, count: int) -> None:
    """Of a table of branches, open the first rows in place."""
    buttons = lab.page.locator(".sgnb-arms tbody tr[data-lane] button")
    buttons.nth(count - 1).wait_for()
    for index in range(count):
        buttons.nth(index).click()


def told(lab: LabPage, server: LabServer, index: int) -> dict[str, Any]:
    """What the kernel has of the run: texts, tokens by length of text, moments of steps."""
    lab.run_cell(index)
    lab.cell_done(index)
    return dict(json.loads((server.folder / "told.json").read_text()))


def delays(
    found: dict[str, Any], seen: list[Any], came: list[tuple[float, float]]
) -> list[tuple[float, ...]]:
    """Milliseconds from each token's step to the page, and of those: to the kernel, in it, from there to the page's
    connection, from there to the page; and when the step ended. ``came``: when each message came and was sent; the last one
    before a token was shown had it."""
    out = []
    for rid, text in found["texts"].items():
        marks = next((marks for shown, marks in seen if shown == text), None)
        if marks is None:
            continue
        before = 0
        for tokens, length, heard in found["deltas"][rid]:
            drawn = found["steps"][rid]
            if length > before and tokens <= len(drawn):
                at = next(when for when, shown in marks if shown >= length)
                begun = drawn[tokens - 1] * 1000
                message, sent = came[max(0, bisect_right(came, (at, math.inf)) - 1)]
                out.append((at - begun, heard - begun, sent - heard, message - sent, at - message, begun))
            before = length
    return out


def wait_aside(lab: LabPage, index: int) -> None:
    """Wait until the cell's prompt holds a number, looking five times a second: a locator that waits asks the page for
    every frame there is, and so makes it paint 60 times a second while it is measured."""
    prompt = (
        "index => document.querySelectorAll('.jp-Notebook .jp-Cell')[index]"
        ".querySelector('.jp-InputPrompt').textContent"
    )
    while not re.search(r"\[\d+\]", lab.page.evaluate(prompt, index)):
        time.sleep(0.2)


def stream(lab: LabPage, server: LabServer, launch: str, streams: int, tokens: int) -> None:
    """Token to DOM, the panel open beside it."""
    begin(lab, server, launch, PROGRAM.format(streams=streams, tokens=tokens), DUMP)
    lab.page.evaluate(WATCH_PAGE)
    lab.run_cell(2)
    lab.page.locator(".sgnb-program .sgnb-fork").wait_for()
    lab.page.evaluate(WATCH_TEXT)
    if streams >= 9:
        open_branches(lab, 3)
    wait_aside(lab, 2)
    lab.page.locator('.sgnb-program[data-state="finished"]').wait_for()
    seen = lab.page.evaluate(SEEN)
    messages = lab.page.evaluate(
        "() => window.sgnbMessages.map(([at, ...rest]) => [performance.timeOrigin + at, ...rest])"
    )
    found = delays(
        told(lab, server, 3), seen, [(at, sent) for at, kind, sent in messages if kind == "comm_msg"]
    )
    print(
        f"token to DOM, {launch}, {streams} streams: {spread(one[0] for one in found)} ({len(found)} tokens)"
    )
    there = min(marks[0][0] for _, marks in seen if marks)
    later = [one[:-1] for one in found if one[-1] >= there]
    whole, *hops = zip(*later, strict=True)
    print(f"  of those drawn when the page had the view: {spread(whole)} ({len(later)} tokens)")
    names = ("step to kernel", "in the kernel", "kernel to the page's connection", "from there to the page")
    for name, hop in zip(names, hops, strict=True):
        print(f"  {name}: {spread(hop)}")
    print(f"  messages: {dict(Counter(kind for _, kind, _ in messages))}")


def cpu_times() -> dict[str, float]:
    """CPU seconds so far of each descendant of this process, by what it is."""
    out: Counter[str] = Counter()
    parents, known = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                known[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " "), fields
                parents[int(folder.name)] = int(fields[1])
            except OSError:  # it has ended
                continue
    for pid, (words, fields) in known.items():
        above = pid
        while above > 1 and above != os.getpid():
            above = parents.get(above, 0)
        if above == os.getpid():
            out[name_of(words)] += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return dict(out)


def name_of(words: str) -> str:
    """What a process is, from its command line."""
    marks = {
        "--role scheduler": "scheduler",
        "sgnb.engine": "tokenizer process",
        "ipykernel": "kernel",
        "jupyter": "server",
        "--type=renderer": "page",
        "--type=": "browser",
    }
    return next((name for mark, name in marks.items() if mark in words), "rest")


def flood(lab: LabPage, server: LabServer) -> None:
    """5,000 tokens a second with all views open: messages, long tasks, the text."""
    tokens = FLOOD_RATE * FLOOD_SECONDS // FLOOD_STREAMS
    launch = f"launch --runner stub --stub-step-seconds {FLOOD_STEP} --max-total-tokens 200000 --max-running-requests 64"
    begin(lab, server, launch, PROGRAM.format(streams=FLOOD_STREAMS, tokens=tokens), DUMP)
    dock(lab)
    lab.page.evaluate(WATCH_PAGE)
    used = cpu_times()
    began = time.monotonic()
    traced = lab.page.context.browser if os.environ.get("SGNB_PAGE_TRACE") else None
    if traced is not None:
        traced.start_tracing(page=lab.page, categories=CATEGORIES)
    lab.run_cell(2)
    open_branches(lab, 3)
    wait_aside(lab, 2)
    seconds = time.monotonic() - began
    took = Counter({name: now - used.get(name, 0.0) for name, now in cpu_times().items()})
    lab.page.locator('.sgnb-program[data-state="finished"]').wait_for()
    lab.page.wait_for_timeout(500)  # what comes at the end of a run is in it
    messages, tasks = lab.page.evaluate("() => [window.sgnbMessages.slice(), window.sgnbTasks.slice()]")
    raw = traced.stop_tracing() if traced is not None else b""
    lab.shot("bench-flood")  # which is itself a long task
    shown = lab.page.locator(".sgnb-opened:visible .sgnb-model").all_text_contents()
    saved = lab.page.evaluate(
        """() => window.jupyterapp.shell.currentWidget.content.model.cells.get(2).outputs.toJSON()
             .map(one => [].concat(one.data?.['text/html'] ?? '').join('')).join('')"""
    )
    found = told(lab, server, 3)
    texts = list(found["texts"].values())
    plain = "".join(html.unescape(re.sub(r"<[^>]*>", "", saved)).split())
    whole = sum("".join(text.split()) in plain for text in texts)
    counted = [kind for _, kind, _ in messages if kind != "status"]
    kinds = {kind: round(counted.count(kind) / seconds, 1) for kind in sorted(set(counted))}
    print(
        f"flood: {sum(d[-1][0] for d in found['deltas'].values()) / seconds:,.0f} tokens/s for {seconds:.1f} s"
    )
    print(f"  CPU seconds: {', '.join(f'{name} {value:.1f}' for name, value in took.most_common(6))}")
    print(f"  messages/s {len(counted) / seconds:.1f} {kinds}, with status {len(messages) / seconds:.1f}")
    print(f"  long tasks: {len(tasks)}, longest {max((d for _, d in tasks), default=0):.0f} ms")
    if raw:
        print_tasks(raw)
    print(
        f"  whole in the page: {sum(text in texts for text in shown)} of {len(shown)} opened, {whole} of {len(texts)} saved"
    )
    warned = "rate exceeded" in server.log.read_text() or "rate exceeded" in saved
    print(f"  rate warning: {'YES' if warned else 'none'}")
    print(f"  script a frame, ms: {lab.page.evaluate(FRAMES)}")


def print_tasks(raw: bytes) -> None:
    """The longest tasks of a trace, by the clock and by CPU."""
    tasks = long_tasks(raw, 20.0)
    print(f"  CPU ms of the page's main thread: {total_cpu(raw)}")
    by_cpu = sorted(tasks, key=lambda task: -task["cpu"])
    for title, some in (("by the clock", tasks), ("by CPU", by_cpu)):
        print(f"  tasks, longest {title}:")
        for task in some[:5]:
            print(f"    {task['ms']:.0f} ms, CPU {task['cpu']:.0f} ms: {task['parts']}")


def cpu_of(pid: int, seconds: float) -> float:
    """Share of a core that a process takes over some seconds, in per cent."""

    def used() -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before, began = used(), time.monotonic()
    time.sleep(seconds)
    return 100 * (used() - before) / (time.monotonic() - began)


def cpu(lab: LabPage, server: LabServer) -> None:
    """The kernel's CPU while another kernel works the engine: with four views, the panel alone, nothing."""
    launch = "launch --runner stub --stub-step-seconds 0.03 --max-total-tokens 40000"
    begin(lab, server, launch, "import os; open('pid', 'w').write(str(os.getpid()))")
    lab.run_cell(2)
    lab.cell_done(2)
    pid = int((server.folder / "pid").read_text())
    lab.page.evaluate(WATCH_PAGE)
    print(f"kernel CPU, the engine idle, panel open: {cpu_of(pid, CPU_SECONDS):.1f} %")
    print("load:", lab.page.evaluate(OTHER_KERNEL, LOAD))
    lab.panel_state("running")
    rounds: dict[str, list[float]] = {
        "four views and the panel": [],
        "the panel alone": [],
        "the panel closed, its item in the status bar": [],
        "the page hidden": [],
    }
    for _ in range(CPU_ROUNDS):
        dock(lab)
        lab.page.wait_for_timeout(1500)
        counted = lab.page.evaluate("() => window.sgnbMessages.length")
        rounds["four views and the panel"].append(cpu_of(pid, CPU_SECONDS))
        more = lab.page.evaluate("() => window.sgnbMessages.filter(one => one[1] !== 'status').length")
        print(f"  messages since the start {counted} -> {more} without status")
        lab.page.evaluate(CLOSE_PANES)
        lab.page.wait_for_timeout(1500)
        rounds["the panel alone"].append(cpu_of(pid, CPU_SECONDS))
        lab.page.evaluate("() => window.jupyterapp.shell.collapseLeft()")
        lab.page.wait_for_timeout(1500)
        rounds["the panel closed, its item in the status bar"].append(cpu_of(pid, CPU_SECONDS))
        lab.page.evaluate(HIDE, "hidden")
        lab.page.wait_for_timeout(1500)
        rounds["the page hidden"].append(cpu_of(pid, CPU_SECONDS))
        lab.page.evaluate(HIDE, "visible")
        lab.page.evaluate("() => window.jupyterapp.shell.expandLeft()")
    for name, values in rounds.items():
        print(
            f"kernel CPU, engine at work for another kernel, {name}: {min(values):.1f} to {max(values):.1f} %"
        )
    lab.page.goto("about:blank")
    time.sleep(20)  # a page that is silent for 15 s is forgotten
    print(f"kernel CPU, engine at work, no page: {cpu_of(pid, CPU_SECONDS):.1f} %")


def moments(lab: LabPage, server: LabServer) -> None:
    """Attach to a busy kernel, reload beside it, restart: each with JupyterLab's own share of the time."""
    launch = "launch --runner stub --stub-step-seconds 0.03 --max-total-tokens 40000"
    begin(lab, server, launch, PROGRAM.format(streams=3, tokens=40), "import time\ntime.sleep(120)")
    lab.run_cell(2)
    lab.cell_done(2)
    lab.page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save').then(() => null)")
    lab.run_cell(3)
    lab.page.wait_for_timeout(500)
    times = lab.page.evaluate(ATTACH)
    print(f"attach to a busy kernel: {spread(times)}")
    lab.page.wait_for_timeout(2500)  # JupyterLab saves its layout a second after the last change
    lab.page.add_init_script(MARKS)
    for _ in range(3):
        lab.page.reload()
        lab.page.wait_for_function("() => window.sgnbMarks?.['the panel is right']")
        lab.page.wait_for_timeout(1500)
        print(
            f"reload beside a busy kernel, ms from the first byte: {lab.page.evaluate('() => window.sgnbMarks')}"
        )
    lab.shot("bench-reload")
    lab.page.evaluate("() => void window.jupyterapp.commands.execute('notebook:interrupt-kernel')")
    lab.front()
    for _ in range(3):
        lab.page.wait_for_timeout(2000)
        print(f"restart, ms: {lab.page.evaluate(RESTART)}")


PARTS = {
    "stream": lambda lab, server: stream(
        lab, server, "launch --runner stub --stub-step-seconds 0.05 --max-total-tokens 4096", 3, 200
    ),
    "real": lambda lab, server: stream(lab, server, "launch smollm2-135m-instruct", 16, 60),
    "flood": flood,
    "cpu": cpu,
    "moments": moments,
}


def run_part(browser: Browser, server: LabServer, part: str) -> None:
    """One part on a fresh page."""
    context = browser.new_context(viewport={"width": 1600, "height": 1000}, reduced_motion="reduce")
    lab = LabPage(server, context)
    try:
        PARTS[part](lab, server)
        print(f"  load {os.getloadavg()[0]:.1f}; console: {lab.errors or 'clean'}", flush=True)
    except BaseException:
        print(f"{part} failed, see {lab.shot(f'bench-{part}')}; console: {lab.errors}", flush=True)
        raise
    finally:
        context.close()
        server.end_kernels()


def main() -> None:
    """Run the parts named on the command line, or all."""
    path = os.environ.get("SGNB_CHROMIUM") or shutil.which("chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        server = LabServer(Path(folder) / "lab")
        browser = playwright.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS, headless=True)
        try:
            for part in sys.argv[1:] or list(PARTS):
                run_part(browser, server, part)
        finally:
            browser.close()
            server.stop()


if __name__ == "__main__":
    main()
