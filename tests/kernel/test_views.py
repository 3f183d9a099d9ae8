"""Engine views over a widget's comm, as a page speaks to them: nothing when nothing is shown, few messages, no gap."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from kernel_rig import Kernel
from test_life import LAUNCH

LISTENERS = (
    "[len(x) for x in [engine.client.listeners, engine.client.frame_listeners]]",
    "[t.name for t in __import__('threading').enumerate() if t.name == 'sgnb feed']",
)


class Page:
    """A page that shows one view: subscribes, acknowledges, keeps what came."""

    def __init__(self, kernel: Kernel, shown: list[dict[str, Any]]) -> None:
        self.kernel = kernel
        bundle = shown[-1]["data"]
        self.comm = bundle["application/vnd.jupyter.widget-view+json"]["model_id"]
        self.html, self.plain = bundle["text/html"], bundle["text/plain"]
        self.messages: list[tuple[float, dict[str, Any], list[Any]]] = []
        self.acked = 0

    def say(self, **content: Any) -> None:
        data = {"method": "custom", "content": {"page": "p", **content}}
        message = self.kernel.client.session.msg("comm_msg", {"comm_id": self.comm, "data": data})
        self.kernel.client.shell_channel.send(message)

    def take(self, message: dict[str, Any]) -> None:
        content = message["content"]
        if message["header"]["msg_type"] != "comm_msg" or content["comm_id"] != self.comm:
            return
        if content["data"].get("method") == "custom":
            buffers = [msgspec.msgpack.decode(bytes(buffer)) for buffer in message.get("buffers", [])]
            self.messages.append((time.monotonic(), content["data"]["content"], buffers))

    def listen(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for message in self.kernel.gather(min(0.25, max(0.01, deadline - time.monotonic()))):
                self.take(message)
            self.acknowledge()

    def listen_for(self, kind: str, count: int) -> None:
        """Until so many messages of a kind came; 30 s at most."""
        deadline = time.monotonic() + 30.0
        while len(self.of(kind)) < count:
            assert time.monotonic() < deadline, f"no {kind} came"
            self.listen(0.2)

    def acknowledge(self) -> None:
        newest = max((content.get("n", 0) for _, content, _ in self.messages), default=0)
        if newest > self.acked:
            self.acked = newest
            self.say(k="ack", n=newest)

    def of(self, kind: str) -> list[tuple[dict[str, Any], list[Any]]]:
        return [(content, buffers) for _, content, buffers in self.messages if content["k"] == kind]

    def numbers(self) -> list[int]:
        """Of all events after the snapshot, in the order they came."""
        frames = [frame for _, buffers in self.of("frames") for frame in buffers]
        return [numbered["seq"] for frame in frames for numbered in frame["events"]]


def listen_to_all(kernel: Kernel, pages: list[Page], kind: str) -> None:
    """Until each page has a message of that kind; 30 s at most."""
    deadline = time.monotonic() + 30.0
    while not all(page.of(kind) for page in pages):
        assert time.monotonic() < deadline, f"no {kind} came"
        for message in kernel.gather(0.2):
            for page in pages:
                page.take(message)


@pytest.fixture
def engine_kernel(kernel: Kernel) -> Kernel:
    kernel.ok("%load_ext sgnb")
    kernel.ok(LAUNCH)
    kernel.ok("import sgnb\nengine = sgnb.get_default_backend()")
    return kernel


def show(kernel: Kernel, kind: str) -> Page:
    return Page(kernel, kernel.ok(f"%sgl view {kind}").of("display_data"))


def test_the_core_is_sent_once_and_before_the_first_view(engine_kernel: Kernel) -> None:
    """A page can put the first view together when it comes, whatever it is. Of a core that was closed there is a new one."""
    kernel = engine_kernel
    cells = ("%%sgl\ns += 'abc' + gen('x', max_tokens=3)", "%sgl view tree", "%sgl view graph")
    opened = [
        (content["comm_id"], content["data"]["state"])
        for cell in cells
        for content in kernel.ok(cell).of("comm_open")
    ]
    ((core, state),) = [one for one in opened if "packed" in one[1]]
    views = [state for _, state in opened if "_esm" in state]
    assert [view["core"] for view in views] == [f"IPY_MODEL_{core}"] * 3
    assert next(index for index, one in enumerate(opened) if "_esm" in one[1]) > opened.index((core, state))
    assert sum(one[1]["_model_name"] == "LayoutModel" for one in opened) == 1, "and one layout"
    kernel.ok("from ipywidgets import Widget\nWidget.close_all()")
    again = [content["data"]["state"] for content in kernel.ok(cells[1]).of("comm_open")]
    assert sum("packed" in state for state in again) == 1


def test_nothing_is_subscribed_while_nothing_is_shown(engine_kernel: Kernel) -> None:
    kernel = engine_kernel
    page = show(kernel, "kv")
    assert "KV map: " in page.plain and "<table>" in page.html
    assert [kernel.value(expression) for expression in LISTENERS] == [[0, 0], []]
    page.say(k="sub", **{"from": 0})
    page.listen(1.5)
    assert kernel.value(LISTENERS[0]) == [0, 1]
    ((_, (snapshot,)),) = page.of("snapshot")
    assert snapshot["slots"] > 0 and snapshot["seq"] > 0
    page.say(k="unsub")
    time.sleep(0.3)
    before = len(page.messages)
    page.listen(2.0)
    assert [kernel.value(expression) for expression in LISTENERS] == [[0, 0], []]
    assert len(page.messages) <= before + 1  # one may have been on its way


def test_rate_is_bounded_and_no_event_is_missing(engine_kernel: Kernel) -> None:
    kernel = engine_kernel
    pages = [show(kernel, kind) for kind in ("tree", "kv", "timeline")]
    for number, page in enumerate(pages):
        page.say(k="sub", page=f"p{number}", **{"from": 0})
    # A subscription hears what is published after it has arrived; a page that finds a gap there asks for it (store.js).
    listen_to_all(kernel, pages, "frames")
    kernel.start(
        "%%sgl --background\nfor b in s.fork(4):\n    b += gen('x', max_tokens=400, ignore_eos=True)"
    )
    began = time.monotonic()
    while time.monotonic() < began + 4.0:
        for message in kernel.gather(0.2):
            for page in pages:
                page.take(message)
        for number, page in enumerate(pages):
            newest = max((content.get("n", 0) for _, content, _ in page.messages), default=0)
            page.say(k="ack", page=f"p{number}", n=newest)
    spent = time.monotonic() - began
    assert sum(len(page.messages) for page in pages) <= 30 * spent + 30
    for page in pages:
        ((_, (snapshot,)),) = page.of("snapshot")
        after = [number for number in page.numbers() if number > snapshot["seq"]]
        assert len(after) > 20
        assert after == list(range(snapshot["seq"] + 1, snapshot["seq"] + 1 + len(after)))


def test_a_gap_is_filled_from_history(engine_kernel: Kernel) -> None:
    kernel = engine_kernel
    page = show(kernel, "tree")
    page.say(k="sub", **{"from": 0})
    page.listen(1.0)
    known = page.of("snapshot")[0][1][0]["seq"]
    page.say(k="unsub")
    kernel.ok("%%sgl\ns += 'abc' + gen('x', max_tokens=30, ignore_eos=True)")
    page.messages.clear()
    page.say(k="sub", **{"from": known})
    page.acked = 0
    page.listen(1.5)
    assert not page.of("snapshot")
    numbers = [number for number in page.numbers() if number > known]
    assert sorted(set(numbers)) == list(range(known + 1, max(numbers) + 1)) and len(numbers) > 30


def test_a_page_that_looks_late_gets_the_time_before(engine_kernel: Kernel) -> None:
    kernel = engine_kernel
    kernel.ok("%%sgl\ns += 'abc' + gen('x', max_tokens=30, ignore_eos=True)")
    page = show(kernel, "tree")
    page.say(k="sub", **{"from": 0})
    page.say(k="ask", id="1", verb="past", args={"time": 1.0})
    page.listen_for("answer", 1)
    ((answer, (picture,)),) = page.of("answer")
    assert answer["data"]["seq"] == picture["seq"] and picture["nodes"] == [], "of the engine's beginning"
    page.messages.clear()
    page.say(k="ask", id="2", verb="events", args={"from_seq": picture["seq"] + 1})
    page.listen_for("answer", 1)
    ((answer, (frame,)),) = page.of("answer")
    numbers = [numbered["seq"] for numbered in frame["events"]]
    assert numbers == list(range(picture["seq"] + 1, answer["data"]["last_seq"] + 1)) and len(numbers) > 30
    assert any(numbered["event"]["t"] == "kv" for numbered in frame["events"])
    page.messages.clear()
    page.say(k="ask", id="3", verb="past", args={"time": "never"})
    page.listen_for("answer", 1)
    assert "number of seconds" in page.of("answer")[0][0]["error"]


def test_text_of_nodes_is_given_to_its_owner(engine_kernel: Kernel) -> None:
    kernel = engine_kernel
    kernel.ok("%%sgl\ns += 'the text of mine' + gen('x', max_tokens=3)")
    nodes = kernel.value("[row[0] for row in engine.ask('picture')['nodes']]")
    texts = kernel.value(f"engine.ask('nodes', {{'ids': {nodes}}})['nodes']")
    assert "the text of mine" in "".join(about["text"] for about in texts.values())
    assert "the text of mine" in show(kernel, "tree").plain
    assert "the text of mine" not in repr(kernel.value("engine.history(1, 5000)"))


def test_requests_of_programs_are_called_after_their_cell(kernel: Kernel) -> None:
    kernel.ok("%load_ext sgnb\nimport sgnb\nfrom sgnb import gen")
    kernel.ok(LAUNCH)
    kernel.ok("@sgnb.function\ndef ask(s, q):\n    s += q + gen('x', max_tokens=2)")
    number = kernel.value("len(get_ipython().history_manager.input_hist_parsed)")
    kernel.ok("ask.run(q='one'); ask.run_batch([{'q': 'two'}, {'q': 'three'}]); None")
    text = kernel.value("str(sgnb.timeline())")
    rows = [line.split("  ")[0] for line in text.partition("\nRequests\n")[2].splitlines()[1:]]
    assert rows == [f"{number} x", f"{number}.0 x", f"{number}.1 x"]


def test_static_mode_gives_the_table_alone(make_kernel: Any) -> None:
    kernel = make_kernel(SGNB_DISPLAY="static")
    kernel.ok("%load_ext sgnb")
    kernel.ok(LAUNCH)
    kernel.ok("%%sgl\ns += 'abc' + gen('x', max_tokens=3)")
    for kind, title in (("tree", "Radix tree"), ("kv", "KV map"), ("timeline", "Batch timeline")):
        (shown,) = kernel.ok(f"%sgl view {kind}").of("display_data")
        assert set(shown["data"]) == {"text/plain", "text/html"}
        assert shown["data"]["text/plain"].startswith(title)
