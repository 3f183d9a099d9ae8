"""The kernel side of the side panel over its comm, as JupyterLab speaks to it."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Callable
from typing import Any

from kernel_rig import MOCK, Kernel
from test_life import LAUNCH, LONG, alive, ready
from test_magics import new_subshell


class Panel:
    """A panel's comm. With ``subshell`` its messages go there, as JupyterLab's do."""

    def __init__(self, kernel: Kernel, *, subshell: str | None = None, client: str = "a-page") -> None:
        self.kernel = kernel
        self.subshell = subshell
        self.comm_id = uuid.uuid4().hex
        self.times: list[float] = []
        self._send(
            "comm_open",
            {"comm_id": self.comm_id, "target_name": "sgnb.telemetry.v1", "data": {"client": client}},
        )

    def _send(self, kind: str, content: dict[str, Any]) -> None:
        message = self.kernel.client.session.msg(kind, content)
        if self.subshell:
            message["header"]["subshell_id"] = self.subshell
        self.kernel.client.shell_channel.send(message)

    def say(self, verb: str, **args: Any) -> None:
        self._send("comm_msg", {"comm_id": self.comm_id, "data": {"verb": verb, **args}})

    def ask(self, verb: str, **args: Any) -> Any:
        """A question's answer."""
        self.asked = getattr(self, "asked", 0) + 1
        self.say(verb, id=self.asked, **args)
        while (answer := self.next()).get("kind") != "answer" or answer["id"] != self.asked:
            assert "closed" not in answer
        assert "error" not in answer, answer["error"]
        return answer["data"]

    def next(self, timeout: float = 30.0) -> dict[str, Any]:
        """The next message for this panel; ``{"closed": True}`` when the kernel closes it."""
        deadline = time.monotonic() + timeout
        while True:
            message = self.kernel.client.get_iopub_msg(timeout=max(0.05, deadline - time.monotonic()))
            content = message["content"]
            if content.get("comm_id") != self.comm_id:
                continue
            if message["header"]["msg_type"] == "comm_close":
                return {"closed": True}
            self.times.append(time.monotonic())
            return dict(content["data"])

    def until(self, ready: Callable[[dict[str, Any]], bool], timeout: float = 60.0) -> dict[str, Any]:
        deadline = time.monotonic() + timeout
        while True:
            message = self.next(deadline - time.monotonic())
            if message.get("kind") == "state" and ready(message):
                return message


def state_of(message: dict[str, Any]) -> str:
    return message["engine"]["state"] if message["engine"] else "none"


def test_without_the_extension_the_comm_is_closed(kernel: Kernel) -> None:
    assert Panel(kernel).next() == {"closed": True}


def test_load_announces_itself(kernel: Kernel) -> None:
    opened = kernel.ok("%load_ext sgnb").of("comm_open")
    assert [c["target_name"] for c in opened] == ["sgnb.announce.v1"]


def test_a_line_is_judged_while_it_is_typed_as_when_it_runs(kernel: Kernel) -> None:
    kernel.ok("%load_ext sgnb")
    panel = Panel(kernel)
    panel.next()
    for line in ("%sgl view treee", "%sgl engine start --polcy lpm", "%sgl launch --schedule-policy lpn"):
        (mark,) = panel.ask("check", source=f"x = 1\n{line}")
        said = kernel.run(f"x = 1\n{line}").stderr
        assert mark["line"] == 2 and said.strip() == f"UsageError: {mark['message']}"
    word = panel.ask("about", source="x = 1\n%sgl view tree", line=2, col=6)
    assert word["signature"].startswith("%sgl view") and (word["col"], word["end_col"]) == (5, 9)


def test_launch_numbers_flush_log_and_stop(kernel: Kernel) -> None:
    kernel.ok("%load_ext sgnb")
    panel = Panel(kernel)
    first = panel.next()
    assert first["engine"] is None and first["stats"] is None and first["seq"] == 1
    panel.say("launch", args={"runner": "stub", "max_total_tokens": 512})
    panel.until(lambda m: state_of(m) in ("starting", "idle"))  # a stub may be ready between two messages
    idle = panel.until(lambda m: state_of(m) == "idle" and m["stats"])
    engine = idle["engine"]
    assert engine["name"] == "main" and engine["slots"] == 512 and engine["device"] == "cpu"
    assert abs(engine["since"] - time.time()) < 60
    assert [one["name"] for one in idle["engines"]] == ["main"]
    figures = {"tokens_per_s", "running", "waiting", "kv_used", "kv_locked", "kv_total", "reused"}
    assert set(idle["stats"]) == figures
    kernel.ok('%%sgl\ns += "abc" + gen("x", max_tokens=5, ignore_eos=True)')
    panel.until(lambda m: m["stats"] and m["stats"]["kv_used"] > 0)
    panel.say("flush")
    assert "Flushed " in panel.until(lambda m: m["message"].startswith("Flushed"))["message"]
    panel.say("log", lines=5)
    while (answer := panel.next())["kind"] != "log":
        pass
    assert answer["lines"]
    panel.say("no_such_verb")
    panel.until(lambda m: "Unknown command" in m["message"])
    panel.say("stop")
    panel.until(lambda m: m["engine"] is None and "Stopped engine main." in m["message"])
    panel.say("launch")  # with the arguments it had
    assert panel.until(lambda m: state_of(m) == "idle")["engine"]["slots"] == 512
    panel.say("stop")
    panel.until(lambda m: m["engine"] is None)


def test_F72_launch_and_abort_while_a_cell_runs(kernel: Kernel) -> None:
    """The panel's verbs work on a subshell beside a busy cell."""
    kernel.ok("%load_ext sgnb")
    panel = Panel(kernel, subshell=new_subshell(kernel))
    panel.next()
    busy = kernel.start("import time\nfor _ in range(3000): time.sleep(0.01)")
    time.sleep(0.3)
    began = time.monotonic()
    panel.say("launch", args={"runner": "stub", "stub_step_seconds": 0.02})
    panel.until(lambda m: state_of(m) == "idle", timeout=25)
    assert time.monotonic() - began < 25
    kernel.interrupt()
    kernel.finish(busy)
    msg_id = kernel.start("%%sgl\n" + LONG)
    panel.until(lambda m: m["stats"] and m["stats"]["running"] == 1)
    panel.say("abort_all")
    result = kernel.finish(msg_id)
    assert "aborted" in result.plain


def test_states_come_at_most_twice_a_second(kernel: Kernel) -> None:
    ready(kernel)
    panel = Panel(kernel, subshell=new_subshell(kernel))
    panel.next()
    msg_id = kernel.start("%%sgl\n" + LONG)
    panel.times.clear()
    end = time.monotonic() + 3.0
    while time.monotonic() < end:
        panel.next()
    assert 3 <= len(panel.times) <= 8
    # Collapsed, with the figures in the status bar; then behind another tab of the browser; then in view again.
    panel.say("show", what="figures")
    panel.until(lambda m: m["stats"]["running"] == 1 and m["requests"] == [])
    panel.say("show", what="nothing")
    panel.until(lambda m: m["stats"]["running"] == 1 and m["requests"] == [])
    panel.times.clear()
    panel.next()
    panel.next()
    assert panel.times[1] - panel.times[0] > 2.0
    panel.say("show", what="all")
    panel.until(lambda m: m["requests"] != [])
    kernel.interrupt()
    kernel.finish(msg_id)


def test_died_engine_is_shown_with_its_reason(kernel: Kernel) -> None:
    pid = ready(kernel)
    panel = Panel(kernel)
    panel.until(lambda m: state_of(m) == "idle")
    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    died = panel.until(lambda m: state_of(m) == "died")
    assert time.monotonic() - began <= 5.0
    assert died["engine"]["error"]
    panel._send("comm_close", {"comm_id": panel.comm_id, "data": {}})
    panel = Panel(kernel)
    again = panel.until(lambda m: state_of(m) == "died")["engine"]
    assert again["since"] == died["engine"]["since"], (
        "a page that is loaded anew shows when it ended, not when it came"
    )
    for key, state in ((again["key"], "died"), ("another/main.1", "stopped")):
        panel._send(
            "comm_msg", {"comm_id": panel.comm_id, "data": {"k": "sub", "page": "p", "from": 3, "key": key}}
        )
        while (told := panel.next()).get("k") != "engine":
            pass
        assert (told["key"], told["page"], told["state"]) == (key, "p", state)
        assert told["at"] == again["since"] or state == "stopped"
    panel.say("restart")
    panel.until(lambda m: state_of(m) == "idle")
    assert not alive(pid)


def test_telemetry_is_subscribed_only_while_a_panel_is_attached(kernel: Kernel) -> None:
    ready(kernel)
    kernel.ok('%%sgl\ns += gen("x", max_tokens=3)')
    listeners = "len(engine.client.listeners)"
    before = kernel.value(listeners)
    panel = Panel(kernel)
    panel.until(lambda m: m["stats"] is not None)
    assert kernel.value(listeners) == before + 1
    panel._send("comm_close", {"comm_id": panel.comm_id, "data": {}})
    time.sleep(1.0)
    assert kernel.value(listeners) == before
    threads = "[t.name for t in __import__('threading').enumerate() if t.name == 'sgnb publisher']"
    time.sleep(2.5)
    assert kernel.value(threads) == []


def test_the_same_page_attaches_once(kernel: Kernel) -> None:
    kernel.ok("%load_ext sgnb")
    kernel.ok(MOCK)
    first = Panel(kernel, client="page 1")
    first.next()
    second = Panel(kernel, client="page 1")
    second.next()
    third = Panel(kernel, client="page 2")
    third.next()
    kernel.ok("from comm import get_comm_manager as cm")
    comms = kernel.value("[c.comm_id for c in cm().comms.values() if c.target_name == 'sgnb.telemetry.v1']")
    assert sorted(comms) == sorted([second.comm_id, third.comm_id])


def test_unload_closes_the_panel(kernel: Kernel) -> None:
    kernel.ok("%load_ext sgnb")
    panel = Panel(kernel)
    panel.next()
    kernel.start("%unload_ext sgnb")
    message = panel.next()
    while "closed" not in message:
        message = panel.next()


def test_attach_by_name(make_kernel: Callable[..., Kernel]) -> None:
    owner = make_kernel()
    owner.ok("%load_ext sgnb")
    owner.ok(LAUNCH)
    guest = make_kernel(JUPYTER_RUNTIME_DIR=owner.env["JUPYTER_RUNTIME_DIR"])
    guest.ok("%load_ext sgnb")
    panel = Panel(guest)
    assert [one["name"] for one in panel.next()["engines"]] == ["main"]
    panel.say("attach", name="main")
    attached = panel.until(lambda m: state_of(m) == "idle")
    assert attached["engine"]["owner"] is False
    panel.say("attach", name="nobody")
    panel.until(lambda m: "nobody" in m["message"])


def test_knobs_and_pause_from_the_panel(kernel: Kernel) -> None:
    kernel.ok("%load_ext sgnb")
    kernel.ok("%sgl launch --runner stub")
    panel = Panel(kernel)
    panel.next()
    rows = {row["name"]: row for row in panel.ask("knobs")}
    assert rows["schedule_policy"]["value"] == "lpm" and "fcfs" in rows["schedule_policy"]["choices"]
    assert "page_size" not in rows
    panel.say("set", knobs={"schedule_policy": "fcfs"})
    panel.until(lambda m: m["message"] == "Policy is now fcfs." and m["engine"]["policy"] == "fcfs")
    panel.say("set", knobs={"enable_mixed_chunk": "on", "chunked_prefill_size": "64"})
    panel.until(lambda m: m["message"] == "Set enable_mixed_chunk on, chunked_prefill_size 64.")
    panel.say("set", knobs={"decode_quantum": -1})
    panel.until(lambda m: "at least 0" in m["message"])
    panel.say("pause")
    panel.until(lambda m: m["message"].startswith("Paused") and m["engine"]["paused"])
    panel.say("resume")
    panel.until(lambda m: m["message"] == "Resumed." and not m["engine"]["paused"])
    panel.say("stop")
    panel.until(lambda m: m["engine"] is None)
