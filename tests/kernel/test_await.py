"""``%%sgl`` cells that await, and an engine that is stopped while cells run, in a real kernel on a stub engine."""

from __future__ import annotations

import time

import pytest
from kernel_rig import PROMPT_SECONDS, Kernel
from test_life import alive, idle, ready

pytestmark = pytest.mark.kernel_life

PROGRAMS = """
import sgnb, asyncio
@sgnb.function
def story(s, tokens=20000):
    s += "Tell me everything. " + sgnb.gen("x", max_tokens=tokens, ignore_eos=True)
async def tool(word):
    await asyncio.sleep(0.01)
    return f"<{word}>"
kept = []
"""
AWAITS = """%%sgl -o told
s += "Once " + gen("a", max_tokens=4, ignore_eos=True)
print("tool:", await tool("word"))
state = await story.run_async(tokens=3)
pieces = [piece async for piece in story.run_async(tokens=5)]
async for piece in story.run_async(tokens=5):
    pieces.append(piece)
print("run:", state.get_meta_info("x")["completion_tokens"])
s += " upon " + gen("b", max_tokens=4, ignore_eos=True)
"""
STOPPED = {
    "a tool": 's += gen("x", max_tokens=20000, ignore_eos=True)\nawait asyncio.sleep(600)',
    "a run": "kept.append(story.run_async())\nawait kept[-1]",
    "a loop over a run": "kept.append(story.run_async())\nasync for piece in kept[-1]: pass",
    "a read": 's += gen("x", max_tokens=20000, ignore_eos=True)\nawait asyncio.sleep(0)\ns["x"]',
}


def test_a_cell_awaits_and_prints_and_may_be_stopped_at_any_await(kernel: Kernel) -> None:
    pid = ready(kernel)
    kernel.ok(PROGRAMS)
    result = kernel.ok(AWAITS)
    assert result.stdout == "tool: <word>\nrun: 3\n"
    assert kernel.value("told.names()") == ["a", "b"]
    for name, text in STOPPED.items():
        kernel.ok("kept.clear()")
        msg_id = kernel.start("%%sgl -o part\n" + text)
        time.sleep(0.8)
        began = time.monotonic()
        kernel.interrupt()
        result = kernel.finish(msg_id)
        assert time.monotonic() - began <= PROMPT_SECONDS, name
        assert result.of("error")[0]["ename"] == "KeyboardInterrupt", f"{name}: {result.error}"
        idle(kernel)
        assert kernel.value("[run.status for run in kept if run.status != 'stopped']") == [], name
    assert kernel.ok("print(await tool('after'))").stdout == "<after>\n"
    assert kernel.value("engine.pid") == pid and alive(pid)


def test_stopping_the_engine_ends_what_runs_in_the_background(kernel: Kernel) -> None:
    pid = ready(kernel)
    kernel.ok(PROGRAMS)
    kernel.ok('%%sgl --background -o behind\nfor n in range(1000):\n    s += gen("x", max_tokens=50)')
    kernel.ok("%%sgl --background -o awaited\nawait story.run_async()")
    kernel.ok("run = story.run_async()")
    time.sleep(0.5)
    began = time.monotonic()
    kernel.ok("%sgl stop")
    for read in ("behind.text()", "awaited.text()", "run.result(5)"):
        error = kernel.run(read).error
        assert "EngineDied" in error and "%sgl launch" in error, f"{read}: {error}"
    assert time.monotonic() - began <= 10.0 and not alive(pid)
