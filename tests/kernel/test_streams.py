"""Many streams at once: few messages, whole text."""

from __future__ import annotations

import time

from kernel_rig import Kernel
from test_magics import replay

STREAMS = 64
BAR = 40


def busiest_second(times: list[float]) -> int:
    """Most messages within any one second."""
    most = 0
    for index, first in enumerate(times):
        most = max(most, sum(1 for other in times[index:] if other - first < 1.0))
    return most


def test_64_streams_in_the_background(kernel: Kernel) -> None:
    """64 cells with a view each: at most 40 IOPub messages in any second, and every view ends with the whole text."""
    kernel.ok("%load_ext sgnb")
    kernel.ok("%sgl launch --runner stub --stub-step-seconds 0.03 --max-total-tokens 40000")
    source = (
        "import time\n"
        "for i in range(64):\n"
        '    body = f\'s += "{i}: " + gen("x", max_tokens=120, ignore_eos=True)\'\n'
        "    get_ipython().run_cell_magic('sgl', f'--background -o r{i}', body)\n"
        "    time.sleep(0.12)"
    )
    began = time.monotonic()
    msg_id = kernel.start(source)
    opens, messages, updates, times = [], [], [], []
    while len({c["transient"]["display_id"] for c in updates}) < STREAMS and time.monotonic() - began < 120:
        message = kernel.client.get_iopub_msg(timeout=30)
        content, kind = message["content"], message["header"]["msg_type"]
        times.append(time.monotonic())
        if kind == "comm_open":
            opens.append(content)
        elif kind == "comm_msg":
            messages.append(content)
        elif kind == "update_display_data":
            updates.append(content)
        assert kind != "error", content
        assert kind != "update_display_data" or message["parent_header"]["msg_id"] == msg_id
    assert len({c["transient"]["display_id"] for c in updates}) == STREAMS
    # Opening a view costs two messages of its own (comm, display); what streams is what the bar is about.
    streaming = [at for at in times if at > times[0] + 0.12 * STREAMS + 1.0] or times
    assert busiest_second(streaming) <= BAR, busiest_second(streaming)
    finals = {str(number): kernel.value(f"r{number}['x']") for number in (0, 1, 31, 63)}
    views = [c for c in opens if "snapshot" in c["data"].get("state", {})]
    assert len(views) == STREAMS
    for number, final in finals.items():
        shown = replay(
            [views[int(number)]], [m for m in messages if m["comm_id"] == views[int(number)]["comm_id"]]
        )
        segments = [seg for row in shown["rows"] for seg in row["segs"] if seg["model"]]
        assert [seg["text"] for seg in segments] == [final]
        assert len(final) > 100


def test_64_streams_in_one_cell(kernel: Kernel) -> None:
    """The stated bar: 64 generations of one program streaming at once."""
    kernel.ok("%load_ext sgnb")
    kernel.ok("%sgl launch --runner stub --stub-step-seconds 0.03 --max-total-tokens 40000")
    result = kernel.ok(
        "%%sgl -o out\n"
        "import sgnb\n"
        "@sgnb.function\n"
        "def one(s, i):\n"
        "    s += f'{i}: '\n"
        "    s += sgnb.gen('x', max_tokens=120, ignore_eos=True)\n"
        "states = one.run_batch([{'i': i} for i in range(64)], progress_bar=False)\n"
        "s += ' '.join(t['x'] for t in states)\n",
        timeout=120,
    )
    assert busiest_second(result.times) <= BAR


FLOODS = {
    "one line of 10 MB": ("['x' * 10_000_000]", 10_000_000),
    "5 000 tokens a second": ("'word ' * 15_000, delay=0.0002", 75_000),
}


def test_F69_a_flood_is_capped_on_the_page_and_whole_in_the_kernel(kernel: Kernel) -> None:
    """At most a message in 33 ms, of all that is shown together; the page shows 200 000 characters, the kernel has all."""
    kernel.ok("%load_ext sgnb")
    from kernel_rig import MOCK

    kernel.ok(MOCK)
    for name, (script, length) in FLOODS.items():
        kernel.ok(f"use_mock({script})")
        result = kernel.ok('%%sgl -o out\ns += gen("x", max_tokens=400_000)', timeout=120)
        assert busiest_second(result.times) <= BAR, name
        assert kernel.value("len(out['x'])") == length, name
        more = f"{length - 200_000:,}".replace(",", "\u2009")
        if length > 200_000:
            assert f"{more} more characters are not shown; x holds them." in result.plain, name
        else:
            assert result.plain.count("word") == 15_000, name
        assert len(result.html) < 210_000 and len(result.plain) < 450_000, name
        sent = [len(str(message)) for message in result.of("comm_msg")]
        assert sum(sent) < 2_000_000 and max(sent) < 500_000, (name, sum(sent), max(sent))
