"""Faults of notebooks: awaits and loops that are interrupted, two kernels, extensions loaded over and over (F6, F10–F12).

F5 and the other halves of F6 and F9 are in ``test_life``: kernels killed, restarted and shut down, bursts of interrupts.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kernel_rig import PROMPT_SECONDS, Kernel, kernel_env
from test_life import LONG, alive, gone_within, idle, ready, wait_for_text

STORY = """
import sgnb, asyncio, threading, time
@sgnb.function
def story(s):
    s += "Tell me everything. " + sgnb.gen("x", max_tokens=20000, ignore_eos=True)
"""
WAYS = {
    "await": "run = story.run_async()\nawait run",
    "await in a task": "run = story.run_async()\nasync def wait(): return await run\nawait asyncio.create_task(wait())",
    "gather": "run = story.run_async()\nother = story.run_async()\n"
    "async def wait(run): return await run\nawait asyncio.gather(wait(run), wait(other))",
    "async for": "run = story.run_async()\nasync for piece in run: pass",
    "result": "run = story.run_async()\nrun.result()",
    "run": "run = None\nstory.run().sync()",
}


def interrupted(kernel: Kernel, code: str) -> str:
    """Run a cell, wait until the engine works on it, interrupt; the name of its error. The prompt is back soon."""
    msg_id = kernel.start(code)
    time.sleep(0.8)
    began = time.monotonic()
    kernel.interrupt()
    result = kernel.finish(msg_id)
    took = time.monotonic() - began
    assert result.status == "error", code
    assert took <= PROMPT_SECONDS, f"{took:.2f} s"
    return str(result.of("error")[0]["ename"])


@pytest.mark.kernel_life
def test_f10_interrupt_of_every_way_to_wait_ends_the_run(kernel: Kernel) -> None:
    """The request is aborted as with a cell's own, the loop goes on, and the next cell may await again."""
    pid = ready(kernel)
    kernel.ok(STORY)
    for name, code in WAYS.items():
        assert interrupted(kernel, code) in ("KeyboardInterrupt", "CancelledError"), name
        idle(kernel)
        if name != "run":
            assert kernel.value("run.status") == "stopped", name
            assert len(kernel.value("run.state.text_so_far()")) > len("Tell me everything. "), name
        awaited = kernel.ok(AWAIT)
        assert awaited.stdout == "awaited 3\n", name
    assert kernel.value("engine.pid") == pid and alive(pid)


AWAIT = """
@sgnb.function
def short(s): s += "a" + sgnb.gen("x", max_tokens=3, ignore_eos=True)
state = await short.run_async()
print("awaited", state.get_meta_info("x")["completion_tokens"])
"""


@pytest.mark.kernel_life
def test_f10_interrupt_while_a_thread_holds_a_loop_of_its_own(kernel: Kernel) -> None:
    """The thread is the user's and goes on; nothing is blocked, and its run is stopped by its own handle."""
    ready(kernel)
    kernel.ok(STORY)
    code = (
        "runs, ended = [], threading.Event()\n"
        "async def work():\n"
        "    runs.append(story.run_async())\n"
        "    try:\n        await runs[0]\n    finally:\n        ended.set()\n"
        "def hold():\n    try:\n        asyncio.run(work())\n    except sgnb.errors.Cancelled:\n        pass\n"
        "threading.Thread(target=hold).start()\nended.wait()"
    )
    assert interrupted(kernel, code) == "KeyboardInterrupt"
    assert kernel.value("(ended.is_set(), runs[0].status)") == (False, "running")
    assert kernel.ok(AWAIT).stdout == "awaited 3\n"
    cell = kernel.ok('%%sgl -o out\ns += gen("x", max_tokens=5, ignore_eos=True)')
    assert "Finished" in cell.plain
    kernel.ok("runs[0].cancel()\nended.wait(10)")
    assert kernel.value("(ended.is_set(), runs[0].status)") == (True, "stopped")
    idle(kernel)


# ---------------------------------------------------------------- two kernels, one user


def of_same_user(make_kernel: Callable[..., Kernel], owner: Kernel) -> Kernel:
    """A second notebook that sees the same run folders."""
    return make_kernel(JUPYTER_RUNTIME_DIR=owner.env["JUPYTER_RUNTIME_DIR"])


@pytest.mark.kernel_life
def test_f11_two_kernels_have_their_own_engines_unless_attached_by_name(
    make_kernel: Callable[..., Kernel], find_engines: Callable[..., list[int]]
) -> None:
    one = make_kernel()
    two = of_same_user(make_kernel, one)
    first, second = ready(one), ready(two)
    assert first != second
    assert (one.value("engine.name"), two.value("engine.name")) == ("main", "main-2")
    assert len(find_engines(one.env["JUPYTER_RUNTIME_DIR"])) == 4
    assert two.ok("%sgl stop").stdout == "Stopped engine main-2.\n"
    assert gone_within([second], 2.0) and alive(first)
    one.ok('%%sgl\ns += gen("x", max_tokens=5, ignore_eos=True)')


@pytest.mark.kernel_life
def test_f11_a_crash_of_a_guest_frees_its_requests_only(make_kernel: Callable[..., Kernel]) -> None:
    one = make_kernel()
    pid = ready(one)
    guest = of_same_user(make_kernel, one)
    guest.ok("%load_ext sgnb\n%sgl attach main")
    guest.ok("import sgnb; engine = sgnb.get_default_backend()")
    assert guest.value("engine.pid") == pid and not guest.value("engine.owner")
    mine = one.start("%%sgl -o mine\n" + LONG)
    wait_for_text(one, mine)
    theirs = guest.start("%%sgl\n" + LONG)
    wait_for_text(guest, theirs)
    os.kill(guest.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    text = len("Tell me everything. ")
    # The owner's cell runs: ask beside it, as another client of the same user.
    code = (
        "from sgnb.backends.engine import attach\ne = attach('main')\ns = e.stats()\n"
        "print(len(e.clients()) - 1, s['num_running_reqs'])"
    )
    env = one.env | {"PYTHONPATH": str(Path(__file__).parents[2])}
    while True:
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=True
        )
        if done.stdout.split() == ["1", "1"]:
            break
        assert time.monotonic() < deadline, done.stdout
    one.interrupt()
    one.finish(mine)
    assert len(one.value("mine.text()")) > text
    stats = idle(one)
    assert (
        stats["num_used_tokens"] + stats["num_cached_tokens"] + stats["num_free_tokens"]
        == (stats["max_total_num_tokens"])
    )
    assert "Stopped engine main." in one.ok("%sgl stop").stdout, "nobody is attached any more"


# ---------------------------------------------------------------- the extension, over and over


HOOKS = """
def hooks():
    ip = get_ipython()
    import comm, threading
    return (
        len(ip.Completer.custom_matchers),
        sorted(name for name in comm.get_comm_manager().targets if name.startswith("sgnb")),
        {name: len(found) for name, found in ip.events.callbacks.items()},
        len(ip.input_transformers_post) + len(ip.input_transformers_cleanup) + len(ip.ast_transformers),
        sorted(kind for kind, found in ip.magics_manager.magics.items() if "sgl" in found),
        sorted(t.name for t in threading.enumerate() if t.name in ("sgnb-io", "sgnb panel", "sgnb publisher")),
    )
"""


PROGRAM = """
import sgnb
@sgnb.function
def said(s):
    s += "{}" + sgnb.gen("x", max_tokens=3)
    s += s["x"]
"""


@pytest.mark.kernel_life
def test_f12_load_reload_unload_and_autoreload_keep_one_engine_and_one_set_of_hooks(
    kernel: Kernel, find_engines: Callable[..., list[int]], tmp_path: Path
) -> None:
    kernel.ok(HOOKS)
    bare = kernel.value("hooks()")
    pid = ready(kernel)
    mark = kernel.env["JUPYTER_RUNTIME_DIR"]
    short = '%%sgl -o out\ns += gen("x", max_tokens=5, ignore_eos=True)'
    kernel.ok(short)
    loaded = kernel.value("hooks()")
    kernel.ok("%load_ext sgnb")
    kernel.ok("%load_ext autoreload\n%autoreload 2")
    with_autoreload = kernel.value("hooks()[2]")
    for code in ("%load_ext sgnb", "%reload_ext sgnb", "%unload_ext sgnb\n%load_ext sgnb"):
        kernel.ok(code)
        result = kernel.ok(short)
        assert len(result.of("display_data")) == 1, code
        now = kernel.value("hooks()")
        assert (now[:2], now[3:]) == (loaded[:2], loaded[3:]), code
        assert now[2] == with_autoreload, code
    module = tmp_path / "f12_program.py"  # the user's own module with a program in it is edited
    module.write_text(PROGRAM.format("old"))
    kernel.ok(f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nimport f12_program")
    assert kernel.value("f12_program.said.run().text()").startswith("old")
    module.write_text(PROGRAM.format("new text"))
    os.utime(module, (time.time() + 5, time.time() + 5))
    kernel.ok("pass")
    assert kernel.value("f12_program.said.run().text()").startswith("new text")
    kernel.ok(short)
    assert kernel.value("(hooks()[:2], hooks()[3:])") == (loaded[:2], loaded[3:])
    assert kernel.value("engine.pid") == pid and len(find_engines(mark)) == 2
    kernel.ok("%unload_ext sgnb")
    unloaded = kernel.value("hooks()")
    assert unloaded[:2] == bare[:2] and unloaded[3:5] == bare[3:5]
    assert alive(pid), "the engine stays"
    kernel.ok("%load_ext sgnb")
    assert "Engine main, idle" in kernel.ok("%sgl status").stdout
    assert "Stopped engine main." in kernel.ok("%sgl stop").stdout
    assert gone_within([pid], 2.0)


# ---------------------------------------------------------------- a notebook is closed


@pytest.mark.kernel_life
def test_f6_a_closed_notebook_leaves_the_engine_to_its_kernel(kernel: Kernel) -> None:
    """No front end any more: the run goes on to its end, then the engine idles; a new front end finds all."""
    pid = ready(kernel)
    msg_id = kernel.start('%%sgl -o out\ns += gen("x", max_tokens=100, ignore_eos=True)')
    wait_for_text(kernel, msg_id)
    kernel.client.stop_channels()
    time.sleep(3.5)
    kernel.client = kernel.manager.client()
    kernel.client.start_channels()
    kernel.client.wait_for_ready(timeout=60)
    assert kernel.value("out.get_meta_info('x')['completion_tokens']") == 100
    idle(kernel)
    assert alive(pid)


SERVER = r"""
import sys, time
from jupyter_client import KernelManager
manager = KernelManager(kernel_name="python3")
manager.start_kernel()
client = manager.client()
client.start_channels()
client.wait_for_ready(timeout=60)
client.execute_interactive("%load_ext sgnb\nimport sgnb\nengine = sgnb.launch(runner='stub')", timeout=60)
print(manager.provisioner.process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.kernel_life
def test_f6_killed_server_takes_kernel_and_engine_along(
    tmp_path: Path, runtime_dir: Path, find_engines: Callable[..., list[int]]
) -> None:
    """The kernel sees that its server is gone and ends; the engine follows the kernel within 2 s."""
    env = kernel_env(tmp_path, runtime_dir)
    mark = env["JUPYTER_RUNTIME_DIR"]
    server = subprocess.Popen([sys.executable, "-c", SERVER], env=env, stdout=subprocess.PIPE, text=True)
    try:
        kernel_pid = next(int(line) for line in server.stdout if line.strip().isdigit())
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
    assert gone_within([kernel_pid], 30.0)
    deadline = time.monotonic() + 2.0
    while find_engines(mark) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not find_engines(mark)
