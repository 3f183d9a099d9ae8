"""The side panel in each of its states, driven by a kernel that plays the other side of the comm."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from conftest import RESULTS

SETUP = """
import time, json
from comm import create_comm, get_comm_manager
comms, verbs = [], []
seq = 0
engine = dict(name="main", state="stopped", slots=0, since=0.0, error="", steps=[])
engine.update(dict.fromkeys(["model", "dtype", "device", "attention", "trouble", "policy"], ""))
last = {}
def say(stats=None, log=(), message="", requests=(), more=0, full=None, lost=0, **changes):
    global seq
    seq += 1
    engine.update(changes)
    state = dict(kind="state", seq=seq, engine=dict(engine), stats=stats, log=list(log), message=message)
    state.update(requests=list(requests), more=more, full=full, lost=lost)
    state["engines"] = [dict(name="main", model="Qwen3-0.6B"), dict(name="second", model="smollm2", state="idle")]
    last.update(state)
    for comm in comms:
        comm.send(state)
KNOBS = [dict(name="enable_mixed_chunk", kind="switch", value=False, what="mixes", legal="true or false")]
def heard(message):
    data = message["content"]["data"]
    verbs.append(data.get("verb", data.get("k")))
    if data.get("verb") == "knobs":
        comms[-1].send(dict(kind="answer", id=data["id"], data=KNOBS))
    elif data.get("verb") == "abort":
        verbs.append("abort " + " ".join(data["rids"]))
def opened(comm, message):
    comms.append(comm)
    comm.on_msg(heard)
    global seq
    seq += 1
    comm.send({**last, "seq": seq}) if last else say()
get_comm_manager().register_target("sgnb.telemetry.v1", opened)
create_comm(target_name="sgnb.announce.v1", data={"version": 1})
"""
# Without the comm that tells of itself: who connects for a moment and goes would leave it half open.
SILENT_SETUP = "".join(
    line for line in SETUP.splitlines(keepends=True) if not line.startswith("create_comm(")
)

STEPS: list[dict[str, Any]] = [
    {"step": "process", "done": 1, "total": 1, "seconds": 0.3},
    {"step": "tokenizer", "done": 1, "total": 1, "seconds": 0.6},
    {"step": "weights", "done": 710_000_000, "total": 1_190_000_000, "seconds": 2.2},
]
STATS = {
    "tokens_per_s": 604.2,
    "running": 6,
    "waiting": 2,
    "kv_used": 15_892,
    "kv_locked": 9_000,
    "kv_total": 16_384,
    "reused": 0.9,
}
IDLE_STATS = dict(STATS, running=0, waiting=0, tokens_per_s=0)
LOG = ["one", "two", "2026-11-29 10:41:09,123 77 WARNING short of slots"]
KILLED = "The engine was killed (signal 9). The machine was low on memory."
STUCK = "No step for 12 s, 3 requests running. The scheduler answers. The forward thread does not."
FULL_STATS = {**STATS, "running": 9, "waiting": 14, "kv_used": 16_384, "kv_locked": 16_371, "reused": 0.04}
FULL = {"waiting": 14, "oldest": 6.2, "holder": "13 summary", "slots": 5210, "cell": "13", "rids": ["c1.r7"]}
REQUESTS = [
    {"rid": "c1.r7", "name": "13 summary", "words": "decode 251"},
    {"rid": "c1.r8", "name": "15.0 tip", "words": "prefill"},
    {"rid": "", "name": "4 answer", "words": "waits for 15.0"},
]
READY = {
    "model": "smollm2-135m-instruct",
    "dtype": "bf16",
    "device": "cpu",
    "attention": "torch_native",
    "slots": 16_384,
}


@pytest.fixture
def script(lab_server: Any) -> str:
    """A notebook whose cells put the panel into one state after the other; returns its name."""
    cells = [
        SETUP,
        f"say(state='starting', since=time.time() - 3, steps={STEPS!r})",
        f"say(state='idle', since=time.time(), stats={IDLE_STATS!r}, **{READY!r})",
        f"say(state='running', since=time.time() - 2460, stats={STATS!r}, log={LOG!r})",
        f"say(stats={STATS!r}, message='Flushed 14 643 tokens.')",
        f"say(state='died', since=time.time(), stats={STATS!r}, lost=3, error={KILLED!r}, log={LOG!r})",
        "print('asleep', flush=True)\ntime.sleep(600)",
        "print(json.dumps(sorted(set(verbs))))",
        "say(state='failed', since=time.time(), error='The engine did not start: KeyError.\\nits log')",
        f"say(state='running', stats={FULL_STATS!r}, full={FULL!r}, requests={REQUESTS!r}, more=2)",
        f"say(state='stuck', stats={STATS!r}, trouble={STUCK!r}, log={LOG!r})",
        f"say(state='running', trouble='', paused=True, policy='fcfs', stats={STATS!r}, requests={REQUESTS!r})",
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    book.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    path = Path(lab_server.folder) / "script.ipynb"
    nbformat.write(book, path)
    return path.name


def test_no_notebook_is_named(lab: Any) -> None:
    lab.open()
    lab.open_panel()
    content = lab.panel_state("no-kernel")
    assert "No notebook is open" in content.inner_text()
    assert "This panel follows the notebook or console you work in." in content.inner_text()
    lab.shot("panel-no-kernel")
    lab.check_clean()


def test_panel_shows_every_state_of_the_engine(lab: Any, script: str) -> None:
    lab.open(script)
    lab.open_panel()
    content = lab.panel_state("not-loaded")
    assert "sgnb is not loaded here" in content.inner_text()
    assert "%load_ext sgnb" in content.inner_text()
    assert content.locator(".sgnb-Panel-title").inner_text() == script
    lab.shot("panel-not-loaded")

    lab.run_cell(0)
    content = lab.panel_state("no-engine")
    assert content.get_by_role("button", name="Start engine").is_enabled()

    lab.run_cell(1)
    content = lab.panel_state("starting")
    text = content.inner_text()
    assert "starting, " in text
    assert "process started" in text
    assert "weights, 0.71 of 1.19 GB" in text
    assert content.locator('[role="progressbar"]').get_attribute("aria-valuenow") == "65"
    lab.shot("panel-starting")

    lab.run_cell(2)
    content = lab.panel_state("idle")
    assert "bf16, cpu, torch_native, 16\u202f384\u00a0slots" in content.inner_text()
    assert content.get_by_role("button", name="Abort all").is_disabled()
    lab.shot("panel-idle")

    lab.run_cell(3)
    content = lab.panel_state("running")
    assert "running, 41 min" in content.inner_text()
    numbers = {
        name: content.locator(f'[data-number="{name}"]').inner_text()
        for name in ("tokens", "running", "waiting", "kv", "reused")
    }
    assert numbers == {"tokens": "604", "running": "6", "waiting": "2", "kv": "97", "reused": "90"}
    assert content.locator(".sgnb-Panel-logText:visible").inner_text() == "two\n10:41:09 ▲ short of slots"
    assert lab.page.locator(".sgnb-Status-button").inner_text() == "sgnb main: 604 tok/s, KV 97 %"
    content.get_by_role("button", name="Flush cache").click()
    content.get_by_role("button", name="Stop engine").click()
    dialog = lab.page.get_by_role("dialog")
    assert "8 requests are running. Stop anyway?" in dialog.inner_text()
    dialog.get_by_role("button", name="Keep running").click()

    lab.run_cell(4)
    content.locator(".sgnb-Panel-message", has_text="Flushed 14 643 tokens.").wait_for()
    content.get_by_text("All knobs").click()
    knob = content.get_by_label("enable mixed chunk")
    knob.wait_for()
    knob.select_option("on")
    content.get_by_label("Policy").select_option("lof")
    content.get_by_role("button", name="Engines and actions").click()
    menu = lab.page.locator(".lm-Menu")
    assert "Attach to second (smollm2)" in menu.inner_text() and "Start another…" in menu.inner_text()
    lab.page.keyboard.press("Escape")
    lab.shot("panel-running")

    lab.run_cell(5)
    content = lab.panel_state("died")
    text = content.inner_text()
    assert KILLED in text and "3 requests failed. Their cells keep the text so far." in text
    assert "The views show the last state before the end." in text
    buttons = ["Start again", "Open log", "Save report…", "Open recording…"]
    assert all(content.get_by_role("button", name=name).is_enabled() for name in buttons)
    boxes = [content.get_by_role("button", name=name).bounding_box() for name in buttons]
    assert boxes[0]["y"] == boxes[1]["y"] < boxes[2]["y"] == boxes[3]["y"], "two and two side by side"
    assert not content.locator(".sgnb-Panel-message").is_visible(), "gone when the kernel says it no more"
    lab.shot("panel-died")

    lab.run_cell(8)
    content = lab.panel_state("failed")
    assert content.locator(".sgnb-Panel-trouble").inner_text() == "The engine did not start: KeyError."
    assert content.get_by_role("button", name="Start again").is_enabled()

    lab.run_cell(9)
    content = lab.panel_state("full")
    sentence = "14 requests wait, the oldest for 6.2\u00a0s. 13 summary holds 5\u202f210 slots."
    assert content.locator(".sgnb-Panel-trouble").inner_text() == sentence
    assert "16\u202f371 of 16\u202f384 slots in use or locked" in content.inner_text()
    rows = content.locator(".sgnb-Panel-request")
    assert rows.all_inner_texts()[0].split("\n") == ["13 summary", "decode 251", "✕"]
    assert content.get_by_role("button", name="Abort 4 answer").is_disabled()
    content.get_by_role("button", name="Abort 15.0 tip").click()
    content.get_by_role("button", name="Abort 13", exact=True).click()
    lab.shot("panel-full")

    lab.run_cell(10)
    content = lab.panel_state("stuck")
    text = content.inner_text()
    assert "no step for 12 s, 3 requests running" in text
    assert "The scheduler answers. The forward thread does not." in text
    assert content.get_by_role("button", name="Restart engine").is_enabled()
    lab.shot("panel-stuck")

    lab.run_cell(11)
    content = lab.panel_state("running")
    assert content.locator(".sgnb-Panel-words").first.inner_text() == "paused"
    assert content.get_by_label("Policy").input_value() == "fcfs"
    assert not content.get_by_role("button", name="Pause").is_visible()
    content.get_by_role("button", name="Step").click()
    content.get_by_role("button", name="Resume").click()
    lab.shot("panel-paused")

    lab.run_cell(7)
    lab.cell_done(7)
    verbs = json.loads(lab.cell(7).locator(".jp-OutputArea-output").inner_text())
    assert {"ack", "flush", "set", "abort", "step", "resume", "abort c1.r8", "abort c1.r7"} <= set(verbs)
    assert "stop" not in verbs
    lab.check_clean()


@pytest.fixture
def comms(lab_server: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    """JupyterLab's setting for comms, put back afterwards."""
    lab_server.set_comms(request.param)
    yield request.param
    lab_server.set_comms("perCommTarget")


KERNEL = "window.jupyterapp.shell.currentWidget.sessionContext.session.kernel"
# A message beside the cell has a busy and an idle of its own: JupyterLab then calls the kernel idle.
SAY_IDLE = f"""async () => {{
  const kernel = {KERNEL};
  const idle = new Promise(resolve => kernel.statusChanged.connect((_, status) => status === 'idle' && resolve()));
  const made = await kernel.requestCreateSubshell({{}}).done;
  await kernel.requestDeleteSubshell({{subshell_id: made.content.subshell_id}}).done;
  await idle;
}}"""
# After a new connection nothing is known of the kernel until the cell ends.
CONNECT_ANEW = f"""async () => {{
  const kernel = {KERNEL};
  await kernel.reconnect();
  return kernel.status;
}}"""


@pytest.mark.parametrize("comms", ["disabled", "perComm"], indirect=True)
def test_panel_works_in_the_other_modes_of_comms(lab: Any, script: str, comms: str) -> None:
    lab.open(script)
    lab.page.wait_for_function(f"mode => {KERNEL}.commsOverSubshells === mode", arg=comms)
    lab.run_cell(0)
    lab.cell_done(0)
    lab.run_cell(3)
    lab.cell_done(3)
    lab.open_panel()
    lab.panel_state("running")
    lab.run_cell(6)
    lab.cell(6).locator(".jp-OutputArea-output", has_text="asleep").wait_for()

    def reconnect() -> None:
        lab.page.evaluate("() => window.jupyterapp.commands.execute('sgnb:reconnect')")

    reconnect()
    if comms == "perComm":
        lab.panel_state("running")
    else:
        content = lab.panel_state("busy")
        assert "Waiting for the running cell" in content.inner_text()
        lab.page.evaluate(SAY_IDLE)
        reconnect()
        lab.panel_state("connecting")
        lab.panel_state("busy")
        assert lab.page.evaluate(CONNECT_ANEW) == "unknown"
        reconnect()
        lab.panel_state("connecting")
        lab.panel_state("busy")
        # A view's Stop that gets no answer: its own cell is interrupted, and no other for it.
        ask = (
            "node => node.dispatchEvent(new CustomEvent('sgnb:interrupt', {bubbles: true, cancelable: true}))"
        )
        assert lab.cell(3).evaluate(ask), "this cell does not run"
        assert not lab.cell(6).locator(".jp-OutputArea-output").first.evaluate(ask)
        lab.panel_state("running")
    lab.check_clean()


def test_restart_of_the_kernel_is_seen(lab: Any, script: str) -> None:
    lab.open(script)
    lab.run_cell(0)
    lab.open_panel()
    lab.panel_state("no-engine")
    lab.page.evaluate(
        """() => {
          const seen = (window.sgnbSeen = []);
          const content = document.querySelector('.sgnb-Panel-content');
          new MutationObserver(() => seen.push(content.dataset.state)).observe(content, {attributeFilter: ['data-state']});
        }"""
    )
    lab.page.evaluate("() => void window.jupyterapp.commands.execute('kernelmenu:restart')")
    lab.page.get_by_role("dialog").get_by_role("button", name="Confirm Kernel Restart").click()
    lab.panel_state("not-loaded")
    assert "restarting" in lab.page.evaluate("() => window.sgnbSeen")
    lab.forget_late_messages()
    lab.check_clean()


# Milliseconds from `act` until the panel is in `state`, by the page's clock.
TIMED = """async ([act, state]) => {
  const context = window.jupyterapp.shell.currentWidget.sessionContext;
  const content = document.querySelector('.sgnb-Panel-content');
  const began = performance.now();
  let left = content.dataset.state !== state;
  const done = new Promise(resolve => {
    const look = () => {
      left ||= content.dataset.state !== state;
      if (left && content.dataset.state === state) resolve(performance.now() - began);
    };
    new MutationObserver(look).observe(content, {attributeFilter: ['data-state', 'data-seq']});
  });
  await ({
    attach: () => window.jupyterapp.commands.execute('sgnb:reconnect'),
    change: arg => context.changeKernel(arg),
    restart: () => context.restartKernel(),
  })[act[0]](act[1]);
  return await done;
}"""
# A second kernel beside the notebook's, where the same engine of the script runs; its id.
OTHER_KERNEL = """async code => {
  const kernel = await window.jupyterapp.serviceManager.kernels.startNew({name: 'python3'});
  await kernel.requestExecute({code}).done;
  const {id} = kernel;
  kernel.dispose();
  return id;
}"""


# What a file brings is trusted when its server wrote it; here the test did.
TRUST = "() => { window.jupyterapp.shell.currentWidget.content.model.cells.get(8).trusted = true; }"


def with_saved_view(path: Path, cell: int) -> None:
    """Give a cell the output that a run of ours leaves in a file."""
    book = nbformat.read(path, as_version=4)
    view = {"version_major": 2, "version_minor": 0, "model_id": "0" * 32}
    data = {
        "application/vnd.jupyter.widget-view+json": view,
        "text/html": "<table><tr><td>said before</td></tr></table>",
        "text/plain": "said before",
    }
    metadata = {"sgnb": {"static": "text/html"}}
    book.cells[cell].outputs = [nbformat.v4.new_output("display_data", data=data, metadata=metadata)]
    nbformat.write(book, path)


def test_panel_beside_a_running_cell_after_a_reload_a_switch_of_kernels_and_a_restart(
    lab: Any, lab_server: Any, script: str
) -> None:
    """Each moment's time goes to ``test-results/panel-times.json``; what must hold here is the state alone."""
    times: dict[str, float] = {}
    with_saved_view(Path(lab_server.folder) / script, 8)
    lab.open(script)
    lab.page.evaluate(TRUST)
    lab.cell(8).scroll_into_view_if_needed()
    lab.cell(8).locator(".sgnb-Saved", has_text="the kernel has no live view").wait_for()
    lab.run_cell(0)
    lab.cell_done(0)
    lab.run_cell(3)
    lab.cell_done(3)
    lab.run_cell(6)
    lab.cell(6).locator(".jp-OutputArea-output", has_text="asleep").wait_for()
    lab.open_panel()
    lab.panel_state("running")
    times["attach to a busy kernel"] = lab.page.evaluate(TIMED, [["attach"], "running"])
    first = int(lab.panel_state("running").get_attribute("data-seq"))

    lab.page.reload()
    lab.ready()  # until then the layout may still open the panel itself
    lab.open_panel()
    # The cell still sleeps: a new state now came over a subshell.
    again = lab.panel_state("running")
    times["reload, from the page's first byte"] = lab.page.evaluate("() => performance.now()")
    assert int(again.get_attribute("data-seq")) > first
    lab.page.evaluate(TRUST)
    lab.cell(8).scroll_into_view_if_needed()
    saved = lab.cell(8).locator(".sgnb-Saved", has_text="the live view comes when the kernel is free")
    saved.locator("td", has_text="said before").wait_for()
    lab.shot("panel-saved-beside-a-cell")

    code = f"{SILENT_SETUP}\nsay(state='idle', since=time.time(), stats={IDLE_STATS!r}, **{READY!r})"
    other = lab.page.evaluate(OTHER_KERNEL, code)
    lab.page.wait_for_function(f"() => {KERNEL}?.id")
    times["switch to another kernel"] = lab.page.evaluate(TIMED, [["change", {"id": other}], "idle"])
    assert lab.page.evaluate(f"() => {KERNEL}.id") == other
    assert "smollm2-135m-instruct" in lab.panel.inner_text(), "the other kernel's engine"
    fresh = lab.page.evaluate(TIMED, [["change", {"name": "python3"}], "not-loaded"])
    times["switch to a fresh kernel, its start included"] = fresh
    assert lab.page.evaluate(f"() => {KERNEL}.id") != other
    assert "smollm2-135m-instruct" not in lab.panel.inner_text()
    times["restart, the kernel's start included"] = lab.page.evaluate(TIMED, [["restart"], "not-loaded"])
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "panel-times.json").write_text(
        json.dumps({name: round(ms) for name, ms in times.items()}, indent=1)
    )
    lab.forget_late_messages()
    lab.errors[:] = [one for one in lab.errors if "widget model not found" not in one]  # the manager says so
    lab.check_clean()
