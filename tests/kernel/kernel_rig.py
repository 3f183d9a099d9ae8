"""A real kernel through jupyter_client, and what the tests read of its messages."""

from __future__ import annotations

import itertools
import os
import queue
import re
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client import BlockingKernelClient, KernelManager

TIMEOUT = 90.0
PROMPT_SECONDS = 5.0
"""The prompt is back after an interrupt, at most: on a loaded machine. The promise is 1 s when nothing else runs."""
_numbers = itertools.count(1)


@dataclass
class Result:
    """One executed cell: its reply and its IOPub messages in order, with arrival times."""

    reply: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    @property
    def status(self) -> str:
        return self.reply["content"]["status"]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [m["content"] for m in self.messages if m["header"]["msg_type"] == kind]

    @property
    def kinds(self) -> list[str]:
        return [m["header"]["msg_type"] for m in self.messages]

    @property
    def stdout(self) -> str:
        return "".join(c["text"] for c in self.of("stream") if c["name"] == "stdout")

    @property
    def stderr(self) -> str:
        return "".join(c["text"] for c in self.of("stream") if c["name"] == "stderr")

    @property
    def error(self) -> str:
        text = "\n".join("\n".join(c["traceback"]) for c in self.of("error"))
        return re.sub(r"\x1b\[[0-9;]*m", "", text)

    @property
    def plain(self) -> str:
        """text/plain of the last display."""
        shown = [*self.of("display_data"), *self.of("update_display_data")]
        return shown[-1]["data"]["text/plain"] if shown else ""

    @property
    def html(self) -> str:
        shown = [*self.of("display_data"), *self.of("update_display_data")]
        return shown[-1]["data"]["text/html"] if shown else ""


class Kernel:
    """A kernel and its client. ``run`` waits for the end of a cell; ``start``/``finish`` allow to act meanwhile."""

    def __init__(self, env: dict[str, str]) -> None:
        self.env = env
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(env=env)
        self.client: BlockingKernelClient = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=TIMEOUT)

    @property
    def pid(self) -> int:
        return int(self.manager.provisioner.process.pid)

    def start(self, code: str, **kwargs: Any) -> str:
        return str(self.client.execute(code, **kwargs))

    def finish(self, msg_id: str, timeout: float = TIMEOUT) -> Result:
        result = Result()
        deadline = time.monotonic() + timeout
        while True:
            message = self.client.get_iopub_msg(timeout=max(0.1, deadline - time.monotonic()))
            if message["parent_header"].get("msg_id") != msg_id:
                continue
            kind = message["header"]["msg_type"]
            if kind == "status":
                if message["content"]["execution_state"] == "idle":
                    break
                continue
            result.messages.append(message)
            result.times.append(time.monotonic())
        while True:
            reply = self.client.get_shell_msg(timeout=max(0.1, deadline - time.monotonic()))
            if reply["parent_header"].get("msg_id") == msg_id:
                result.reply = reply
                return result

    def run(self, code: str, timeout: float = TIMEOUT, **kwargs: Any) -> Result:
        return self.finish(self.start(code, **kwargs), timeout)

    def ok(self, code: str, timeout: float = TIMEOUT) -> Result:
        result = self.run(code, timeout)
        assert result.status == "ok", result.error or result.stderr
        return result

    def value(self, expression: str) -> Any:
        """The value of an expression, through its repr of plain data."""
        import ast

        result = self.ok(f"print(repr({expression}))")
        return ast.literal_eval(result.stdout)

    def interrupt(self) -> None:
        os.kill(self.pid, signal.SIGINT)

    def gather(self, seconds: float) -> list[dict[str, Any]]:
        """Every IOPub message of the next seconds, whatever its parent."""
        out = []
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                out.append(self.client.get_iopub_msg(timeout=left))
            except queue.Empty:
                break
        return out

    def close(self) -> None:
        self.client.stop_channels()
        if self.manager.has_kernel:
            self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()


def kernel_env(home: Path, runtime: Path, **extra: str) -> dict[str, str]:
    """An environment of its own: configuration, history and run folders of this test only."""
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JUPYTER_CONFIG", "SGNB", "IPYTHON")) or name == "SGNB_CACHE"
    }
    env |= {
        "JUPYTER_RUNTIME_DIR": str(runtime / f"k{next(_numbers)}"),
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "IPYTHONDIR": str(home / "ipython"),
        "OMP_NUM_THREADS": "1",
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }
    return env | extra


MOCK = """
from sgnb.backends.base import set_default_backend
from sgnb.backends.mock import MockBackend
def use_mock(script, **kw):
    global backend
    backend = MockBackend(script, **kw)
    set_default_backend(backend)
"""
