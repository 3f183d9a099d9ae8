"""Interrupts, restarts and deaths around a running cell, with a stub engine in a real kernel (F1, F3, F5, F6, F8, F9).

The rest of F6, and F10 to F12, are in ``test_faults``.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable

import pytest
from kernel_rig import PROMPT_SECONDS, Kernel

STEP = 0.02
LONG = 's += "Tell me everything. "\ns += gen("x", max_tokens=20000, ignore_eos=True)'
LAUNCH = (
    f"%sgl launch --runner stub --stub-step-seconds {STEP} --context-length 30000 --max-total-tokens 60000"
)
STUB = "import sgnb, time\nengine = sgnb.get_default_backend()"


def ready(kernel: Kernel) -> int:
    """Load the extension, start a stub engine; its pid."""
    kernel.ok("%load_ext sgnb")
    kernel.ok(LAUNCH)
    kernel.ok(STUB)
    return int(kernel.value("engine.pid"))


def idle(kernel: Kernel, seconds: float = 5.0) -> dict[str, int]:
    """Wait until nothing runs in the engine; its numbers."""
    deadline = time.monotonic() + seconds
    while True:
        stats = kernel.value("{k: v for k, v in engine.stats().items() if isinstance(v, int)}")
        if not stats["num_running_reqs"] and not stats["num_queue_reqs"] and not stats["num_used_tokens"]:
            return dict(stats)
        assert time.monotonic() < deadline, stats
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def gone_within(pids: list[int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(alive, pids)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def wait_for_text(kernel: Kernel, msg_id: str) -> None:
    """Wait until the page of the running cell got model text."""
    while True:
        message = kernel.client.get_iopub_msg(timeout=60)
        if message["parent_header"].get("msg_id") != msg_id or message["header"]["msg_type"] != "comm_msg":
            continue
        if "tok" in str(message["content"]["data"]):
            return


def interrupt_rounds(kernel: Kernel, rounds: int, seed: int) -> None:
    pid = ready(kernel)
    dice = random.Random(seed)
    slowest = 0.0
    for turn in range(rounds):
        msg_id = kernel.start("%%sgl -o part\n" + LONG)
        time.sleep(dice.uniform(0.0, 1.0))
        began = time.monotonic()
        kernel.interrupt()
        result = kernel.finish(msg_id)
        took = time.monotonic() - began
        slowest = max(slowest, took)
        assert result.status == "error", f"round {turn}"
        assert len(result.of("error")) == 1
        assert result.of("error")[0]["ename"] == "KeyboardInterrupt", result.error
        assert took <= PROMPT_SECONDS, f"round {turn} took {took:.2f} s"
        stats = idle(kernel)
        held = stats["num_used_tokens"] + stats["num_cached_tokens"] + stats["num_free_tokens"]
        assert held == stats["max_total_num_tokens"], stats
        assert kernel.value("engine.pid") == pid
    assert alive(pid)
    kernel.ok('%%sgl -o after\ns += gen("x", max_tokens=3)')
    print(f"slowest interrupt: {slowest:.3f} s of {rounds}")


def test_f8_interrupt_at_random_moments(kernel: Kernel) -> None:
    interrupt_rounds(kernel, 3, seed=1)


@pytest.mark.soak
def test_f8_interrupt_at_random_moments_50(kernel: Kernel) -> None:
    interrupt_rounds(kernel, 50, seed=2)


def test_f8_interrupt_keeps_the_text(kernel: Kernel) -> None:
    ready(kernel)
    msg_id = kernel.start("%%sgl -o part\n" + LONG)
    wait_for_text(kernel, msg_id)
    kernel.gather(0.3)
    kernel.interrupt()
    result = kernel.finish(msg_id)
    assert result.error.startswith("KeyboardInterrupt: stopped, ")
    assert result.error.count("\n") == 0
    assert "Stopped" in result.plain.splitlines()[-1]
    text = kernel.value("part.text()")
    assert len(text) > len("Tell me everything. ")
    assert text.strip() in result.plain.replace("\n    ", "\n")


@pytest.mark.abort
def test_B139_after_an_interrupted_turn_nothing_goes_on_by_accident(kernel: Kernel) -> None:
    """The documented rule: the interrupted state keeps its text and refuses; the turn before it goes on as if nothing was;
    a new one sees exactly what was shown. The stub draws a hash of the prefix: equal text means an equal prefix."""
    ready(kernel)
    kernel.ok("params = {'max_new_tokens': 9, 'temperature': 0, 'ignore_eos': True}")
    kernel.ok("ask = lambda text: engine.generate(text, sampling_params=params)['text']")
    turn = "s += {!r} + gen({!r}, max_tokens=9, temperature=0, ignore_eos=True)"
    kernel.ok("%%sgl -o chat\n" + turn.format("One. ", "first"))
    kernel.ok("before = chat.fork(1)[0]")
    msg_id = kernel.start("%%sgl --from chat\ns += ' Two. ' + gen('x', max_tokens=20000, ignore_eos=True)")
    wait_for_text(kernel, msg_id)
    kernel.gather(0.3)
    kernel.interrupt()
    assert kernel.finish(msg_id).status == "error"
    assert kernel.value("chat.text().startswith('One. ' + chat['first'] + ' Two. ')")
    refused = kernel.run("%%sgl --from chat\n" + turn.format(" Three? ", "third"))
    assert "This state has failed: This state was stopped" in refused.error and ".." not in refused.error
    kernel.ok("%%sgl --from before\n" + turn.format(" Three? ", "third"))
    assert kernel.value("before['third'] == ask('One. ' + chat['first'] + ' Three? ')")
    kernel.ok(
        "%%sgl -o anew\n" + turn.format("{shown}", "third").replace("'{shown}'", "chat.text() + ' Three? '")
    )
    assert kernel.value("anew['third'] == ask(chat.text() + ' Three? ')")


@pytest.mark.kernel_life
def test_B154_f9_two_interrupts_within_200_ms(kernel: Kernel) -> None:
    pid = ready(kernel)
    for gap in (0.0, 0.05, 0.15):
        msg_id = kernel.start("%%sgl\n" + LONG)
        wait_for_text(kernel, msg_id)
        kernel.interrupt()
        time.sleep(gap)
        kernel.interrupt()
        assert kernel.finish(msg_id).status == "error"
        idle(kernel)
    kernel.ok('%%sgl -o third\ns += gen("x", max_tokens=5, ignore_eos=True)')
    assert len(kernel.value("third['x']")) > 0
    assert alive(pid)


def test_f9_a_burst_of_interrupts(kernel: Kernel) -> None:
    pid = ready(kernel)
    msg_id = kernel.start("%%sgl\n" + LONG)
    wait_for_text(kernel, msg_id)
    for _ in range(10):
        kernel.interrupt()
        time.sleep(0.01)
    kernel.finish(msg_id)
    idle(kernel)
    kernel.ok('%%sgl\ns += gen("x", max_tokens=5, ignore_eos=True)')
    assert alive(pid)


def test_f8_interrupt_of_host_code_in_a_cell(kernel: Kernel) -> None:
    ready(kernel)
    msg_id = kernel.start('%%sgl -o part\ns += "a"\nimport time\nwhile True: time.sleep(0.01)')
    time.sleep(0.7)
    began = time.monotonic()
    kernel.interrupt()
    result = kernel.finish(msg_id)
    assert time.monotonic() - began <= PROMPT_SECONDS
    assert result.of("error")[0]["ename"] == "KeyboardInterrupt"


def test_f9_interrupt_while_the_engine_starts(kernel: Kernel) -> None:
    kernel.ok("%load_ext sgnb")
    for _ in range(5):
        msg_id = kernel.start(LAUNCH)
        while True:  # its first line stands there when the engine has begun to start
            message = kernel.client.get_iopub_msg(timeout=60)
            if message["header"]["msg_type"] == "stream" and message["parent_header"].get("msg_id") == msg_id:
                break
        kernel.interrupt()
        result = kernel.finish(msg_id)
        if result.status == "error":
            break
        kernel.ok("%sgl stop")  # the engine was up already
    assert result.status == "error"
    assert "Traceback" not in result.error
    kernel.ok("import sgnb")
    kernel.ok(LAUNCH)
    kernel.ok('%%sgl\ns += gen("x", max_tokens=5, ignore_eos=True)')


@pytest.mark.kernel_life
def test_B153_await_works_after_an_interrupt(kernel: Kernel) -> None:
    ready(kernel)
    msg_id = kernel.start("%%sgl\n" + LONG)
    wait_for_text(kernel, msg_id)
    kernel.interrupt()
    kernel.finish(msg_id)
    result = kernel.ok("import asyncio\nawait asyncio.sleep(0.01)\nprint('awaited')")
    assert result.stdout == "awaited\n"


def end_rounds(make: Callable[..., Kernel], find_engines: Callable[..., list[int]], rounds: int) -> None:
    """The kernel ends in every way, mid-stream: no engine process after 2 s, and after a restart a new one starts."""
    for turn in range(rounds):
        kernel = make()
        ready(kernel)
        mark = kernel.env["JUPYTER_RUNTIME_DIR"]
        msg_id = kernel.start("%%sgl\n" + LONG)
        wait_for_text(kernel, msg_id)
        pids = find_engines(mark)
        assert len(pids) == 2, pids
        way = ("kill", "restart", "shutdown")[turn % 3]
        if way == "kill":
            os.kill(kernel.pid, signal.SIGKILL)
        elif way == "restart":
            kernel.manager.restart_kernel(now=True)
        else:
            kernel.interrupt()
            kernel.finish(msg_id)
            kernel.manager.shutdown_kernel()
        assert gone_within(pids, 2.0), f"{way}: {[pid for pid in pids if alive(pid)]} still run"
        if way == "restart":
            kernel.client.wait_for_ready(timeout=60)
            ready(kernel)
            assert kernel.value("engine.name") == "main"
        kernel.close()


def test_f5_f6_engine_ends_with_the_kernel(
    make_kernel: Callable[..., Kernel], find_engines: Callable[..., list[int]]
) -> None:
    end_rounds(make_kernel, find_engines, 3)


@pytest.mark.soak
def test_f5_f6_engine_ends_with_the_kernel_20(
    make_kernel: Callable[..., Kernel], find_engines: Callable[..., list[int]]
) -> None:
    end_rounds(make_kernel, find_engines, 20)


@pytest.mark.kernel_life
def test_B151_f5_f7_restart_while_the_engine_starts(
    make_kernel: Callable[..., Kernel], find_engines: Callable[..., list[int]]
) -> None:
    kernel = make_kernel()
    kernel.ok("%load_ext sgnb")
    kernel.ok("import sgnb; engine = sgnb.launch(runner='stub', wait=False)")
    mark = kernel.env["JUPYTER_RUNTIME_DIR"]
    time.sleep(0.2)
    kernel.manager.restart_kernel(now=True)
    deadline = time.monotonic() + 2.0
    while find_engines(mark) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not find_engines(mark)
    kernel.client.wait_for_ready(timeout=60)
    kernel.ok("%load_ext sgnb")
    kernel.ok(LAUNCH)
    assert kernel.value("__import__('sgnb').get_default_backend().name") == "main"


def death_rounds(kernel: Kernel, rounds: int) -> None:
    kernel.ok("%load_ext sgnb")
    for turn in range(rounds):
        kernel.ok(LAUNCH if turn == 0 else "%sgl restart")
        kernel.ok(STUB)
        pid = int(kernel.value("engine.pid"))
        msg_id = kernel.start("%%sgl -o part\n" + LONG)
        wait_for_text(kernel, msg_id)
        kernel.gather(0.3)
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        result = kernel.finish(msg_id)
        took = time.monotonic() - began
        assert took <= PROMPT_SECONDS, f"round {turn} took {took:.2f} s"
        assert result.status == "error"
        assert len(result.of("error")) == 1
        assert result.of("error")[0]["ename"] == "EngineDied", result.error
        assert "signal 9" in result.error and "ran out of memory" in result.error
        assert "Failed" in result.plain.splitlines()[-1]
        assert "Tell me everything." in result.plain
        kept = [line for line in result.plain.splitlines() if line.startswith("    [x: ")]
        assert kept and "failed" in kept[0]
        after = kernel.run('%%sgl\ns += gen("x", max_tokens=5, ignore_eos=True)')
        assert "%sgl restart" in after.error


def test_f1_f3_engine_killed_mid_stream(kernel: Kernel) -> None:
    death_rounds(kernel, 3)


@pytest.mark.soak
def test_f1_f3_engine_killed_mid_stream_20(kernel: Kernel) -> None:
    death_rounds(kernel, 20)


def test_reload_keeps_the_engine(kernel: Kernel) -> None:
    pid = ready(kernel)
    kernel.ok("%reload_ext sgnb")
    assert "Engine main, idle" in kernel.ok("%sgl status").stdout
    kernel.ok('%%sgl\ns += gen("x", max_tokens=5, ignore_eos=True)')
    assert kernel.value("engine.pid") == pid
    assert alive(pid)


def test_stop_frees_and_a_cell_starts_anew(kernel: Kernel) -> None:
    pid = ready(kernel)
    assert kernel.ok("%sgl stop").stdout == "Stopped engine main.\n"
    assert gone_within([pid], 2.0)
    assert "No engine is running" in kernel.ok("%sgl status").stdout
    assert "No engine" in kernel.run("%sgl stop").error


def test_f11_two_notebooks_share_an_engine(make_kernel: Callable[..., Kernel]) -> None:
    owner, guest = make_kernel(), make_kernel()
    # both notebooks see the same run folders
    guest.close()
    guest = make_kernel(JUPYTER_RUNTIME_DIR=owner.env["JUPYTER_RUNTIME_DIR"])
    pid = ready(owner)
    guest.ok("%load_ext sgnb")
    assert "main" in guest.ok("%sgl engines").stdout
    assert guest.ok("%sgl attach main").stdout.startswith("Engine main is ready: "), "nothing was waited for"
    guest.ok('%%sgl -o out\ns += gen("x", max_tokens=5, ignore_eos=True)')
    refused = owner.run("%sgl stop")
    assert "1 other notebook uses engine main." in refused.error
    assert "--yes" in refused.error
    assert "Left engine main" in guest.ok("%sgl stop").stdout
    assert alive(pid)
    assert "Stopped engine main." in owner.ok("%sgl stop --yes").stdout


def test_a_cell_without_an_engine_starts_the_default_one_and_says_so(kernel: Kernel) -> None:
    """The real model as everybody starts it: the cell shows the start, then the answer."""
    kernel.ok("%load_ext sgnb")
    bad = kernel.run("%%sgl\ns += user('a'\n")
    assert bad.kinds == ["execute_input", "error"]
    assert kernel.value("__import__('sgnb').get_default_backend()") is None, "a mistake started an engine"
    result = kernel.ok(
        '%%sgl -o out --temperature 0\ns += user("What is the capital of France?")\n'
        's += assistant(gen("answer", max_tokens=12))',
        timeout=300,
    )
    assert "No engine was running: started main (smollm2-135m-instruct)." in result.plain
    assert "Paris" in kernel.value("out['answer']")
    heads = [str(c["data"]) for c in result.of("comm_msg")]
    assert any("Starting engine" in head for head in heads)
    assert "Stopped engine main." in kernel.ok("%sgl stop").stdout
