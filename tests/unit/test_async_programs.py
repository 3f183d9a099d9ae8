"""``async def`` and generator functions as programs: they run eagerly, to their end, with the reason shown."""

from __future__ import annotations

import asyncio
import threading
import time
import traceback

import pytest

import sgnb as sgl
from sgnb.backends.mock import HANG, MockBackend
from sgnb.runtime.run import run_cell


@pytest.fixture
def backend():
    mock = MockBackend({"x": "value", "y": "other", "hang": HANG})
    yield mock
    mock.shutdown()


async def tool(word):
    await asyncio.sleep(0.001)
    return f"<{word}>"


@sgl.function
async def researcher(s, topic):
    s += f"About {topic}: " + sgl.gen("x")
    found = await tool(s["x"])
    s += found + sgl.gen("y")
    return found


@sgl.function
def counter(s):
    for name in ("x", "y"):
        s += sgl.gen(name)
        yield s[name]


@sgl.function
async def ticking(s):
    for name in ("x", "y"):
        s += sgl.gen(name)
        yield s[name]


def test_an_async_program_awaits_tools_between_generations(backend):
    state = researcher.run("tea", backend=backend)
    assert state.ret_value == "<value>"
    assert state.text() == "About tea: value<value>other"


def test_the_reason_is_shown(backend):
    run = researcher.run_async("tea", backend=backend)
    assert run.result(20).ret_value == "<value>"
    assert run.log.since(0)[0].event.eager_reason == "it is an async function"
    assert "runs eagerly: it is a generator function" in sgl.explain(counter)


def test_a_generator_program_runs_to_its_end_and_gives_what_it_yields(backend):
    assert counter.run(backend=backend).ret_value == ["value", "other"]
    assert ticking.run(backend=backend).ret_value == ["value", "other"]


def test_an_async_program_runs_where_a_loop_already_runs(backend):
    async def cell():
        state = researcher.run("tea", backend=backend)
        again = await researcher.run_async("tea", backend=backend)
        return state.ret_value, again.ret_value

    assert asyncio.run(cell()) == ("<value>", "<value>")


def test_programs_inside_async_programs_are_awaited_or_called(backend):
    @sgl.function
    async def sub(s, word):
        s += word + sgl.gen("x")
        return await tool(word)

    @sgl.function
    def plain(s):
        s += "plain " + sgl.gen("y")
        return s["y"]

    @sgl.function
    async def main(s):
        first = await sub(s, "a")
        arms = s.fork(2)
        both = await asyncio.gather(*[sub(arm, word) for arm, word in zip(arms, "bc", strict=True)])
        arms.join()
        return [first, *both, plain(s), sub.run("d").ret_value, s["x"]]

    assert main.run(backend=backend).ret_value == [
        "<a>", "<b>", "<c>", "other", "<d>", ["value", "value"]
    ]  # fmt: skip


def test_a_plain_program_calls_an_async_one(backend):
    @sgl.function
    def main(s):
        s += "begin "
        return researcher(s, "tea"), counter(s), researcher.run("milk")["y"]

    assert main.run(backend=backend).ret_value == ("<value>", ["value", "other"], "other")


def test_errors_of_an_async_body_arrive(backend):
    @sgl.function
    async def broken(s):
        await tool("x")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        broken.run(backend=backend)
    with pytest.raises(ValueError, match="no"):
        broken.run_async(backend=backend).result(20)


def test_cancelling_ends_an_async_body_that_awaits(backend):
    began, ended = threading.Event(), threading.Event()

    @sgl.function
    async def slow(s):
        s += sgl.gen("hang")
        try:
            began.set()
            await asyncio.sleep(3600)
        finally:
            ended.set()

    run = slow.run_async(backend=backend)
    assert began.wait(20)
    run.cancel()
    assert ended.wait(20)
    assert run.status == "stopped"


def test_tools_of_async_programs_do_not_stop_other_runs(backend):
    gate = threading.Event()

    @sgl.function
    async def waits(s):
        s += sgl.gen("x")
        while not gate.is_set():
            await asyncio.sleep(0.01)
        return s["x"]

    @sgl.function
    def quick(s):
        s += sgl.gen("y")
        return s["y"]

    runs = [waits.run_async(backend=backend) for _ in range(4)]
    begin = time.monotonic()
    assert [state.ret_value for state in quick.run_batch([{}] * 8, backend=backend)] == ["other"] * 8
    assert time.monotonic() - begin < 20
    gate.set()
    assert [run.result(20).ret_value for run in runs] == ["value"] * 4


# ---------------------------------------------------------------- cells that await


def cell(text, backend, **names):
    return run_cell(text, cell_name="3", user_ns={"tool": tool, "asyncio": asyncio, **names}, backend=backend)


def test_a_cell_awaits_tools_runs_and_loops(backend):
    run = cell(
        """s += "a " + gen("x")
found = await tool(s["x"])
state = await ask.run_async("q")
async for piece in ask.run_async("z"):
    s += f"[{piece}]"
texts = [text async for text in state.text_async_iter("y")]
async with asyncio.Semaphore(1):
    with user():
        gen("u")
    s += found
await asyncio.gather(tool(1), tool(2))""",
        backend,
        ask=researcher,
    )
    run.drive(20)
    assert run.log.since(0)[0].event.eager_reason == "it awaits"
    assert run.value == ["<1>", "<2>"]
    text = run.state.text()
    assert text.startswith("a value[About z: ][value]")
    assert text.endswith("<|im_start|>user\n<u><|im_end|>\n<value>")


def test_a_cell_awaits_where_a_loop_already_runs(backend):
    async def notebook():
        run = cell("s += gen('x')\nawait tool(s['x'])", backend)
        run.drive(20)
        return run.value

    assert asyncio.run(notebook()) == "<value>"


def test_an_error_of_a_cell_that_awaits_has_the_cells_frames_alone(backend):
    run = cell("s += 'a'\nword = await tool(1)\nraise ValueError(word)", backend)
    with pytest.raises(ValueError, match="<1>") as caught:
        run.drive(20)
    files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert files[-1] == "<sgl 3>" and not any("asyncio" in name for name in files)


def test_cancelling_a_cell_ends_what_it_awaits(backend):
    ended = threading.Event()
    began = threading.Event()

    async def slow():
        try:
            began.set()
            await asyncio.sleep(3600)
        finally:
            ended.set()

    run = cell("s += gen('hang')\nawait slow()", backend, slow=slow).start()
    assert began.wait(20)
    run.cancel()
    assert ended.wait(20) and run.status == "stopped"


@sgl.function
def one_gen(s, number):
    s += f"{number}:" + sgl.gen("x") + sgl.gen("y")


def test_any_number_of_streams_need_no_threads():
    """Each is waited for by the loop: a default executor has a few threads, and others want them."""
    slow = MockBackend({"x": "a b c d", "y": "e f g h"}, delay=0.002)

    async def read(run):
        return [piece async for piece in run.state.text_async_iter()]

    async def main():
        held = MockBackend(HANG)
        waits = [one_gen.run_async(number, backend=held) for number in range(60)]
        early = [asyncio.ensure_future(read(run)) for run in waits]
        await asyncio.sleep(0)
        runs = [one_gen.run_async(number, backend=slow) for number in range(60)]
        found = await asyncio.wait_for(asyncio.gather(*map(read, runs)), 30)
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "free"), 30) == "free"
        threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("asyncio_")]
        for run in waits:
            run.cancel()
        await asyncio.wait_for(asyncio.gather(*early, return_exceptions=True), 30)
        held.shutdown()
        return found, threads

    found, threads = asyncio.run(main())
    assert ["".join(pieces) for pieces in found] == [f"{number}:a b c de f g h" for number in range(60)]
    assert len(threads) <= 1
    slow.shutdown()


@pytest.mark.parametrize("name", ["x", None])
def test_an_async_program_streams_its_own_text(backend, name):
    @sgl.function
    async def prog(s):
        s += "p" + sgl.gen("x")
        return [piece async for piece in s.text_async_iter(name)]

    run = prog.run_async(backend=backend)
    pieces = run.result(20).ret_value
    assert "".join(pieces) == ("value" if name else "pvalue")


def test_a_stream_that_is_cancelled_stops_its_run(backend):
    held = MockBackend({"x": HANG})
    run = one_gen.run_async(1, backend=held)

    async def main():
        task = asyncio.ensure_future(anext(run.state.text_async_iter("x")))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert run.core.wait_plain(lambda: run.core.finished, 20) and run.status == "stopped"
    held.shutdown()


def test_streams_of_joined_values_and_samples_and_of_failures(backend):
    @sgl.function
    def prog(s):
        f = s.fork(2)
        f += sgl.gen("x")
        f.join()
        s += sgl.gen("y", n=2)

    async def read(state, name):
        return [piece async for piece in state.text_async_iter(name)]

    state = prog.run(backend=backend)
    assert asyncio.run(read(state, "x")) == ["['value', 'value']"]
    assert "".join(asyncio.run(read(state, "y"))) == "other"
    broken = MockBackend({"x": RuntimeError("boom")})
    with pytest.raises(sgl.errors.SgnbError, match="boom"):
        asyncio.run(read(one_gen.run(1, backend=broken), "x"))
    broken.shutdown()


@sgl.function
def hanging(s):
    s += sgl.gen("hang")


def test_a_cancellation_that_comes_with_news_is_not_forgotten(backend):
    """Up to Python 3.11 ``asyncio.wait_for`` swallows it then; an interrupted cell that streamed went on for ever."""

    async def cancelled(turn: int) -> bool:
        core = hanging.run_async(backend=backend).core
        task = asyncio.create_task(core.wait_async(lambda: False))
        for _ in range(2 + turn % 3):
            await asyncio.sleep(0)
        with core.lock:
            core.notify()  # its call is one of the loop's next
        for _ in range(turn % 5):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task}, timeout=5)
        return task.done() and task.cancelled()

    async def rounds() -> list[bool]:
        return [await cancelled(turn) for turn in range(30)]

    assert all(asyncio.run(rounds()))
