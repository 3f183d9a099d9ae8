"""Renders whole conversations with a model's chat template, in a worker process that is kept.

Tokenizer process, on the thread of the lane ``render`` (``steps.py``), never on the loop's: a template may take seconds.
Only for templates whose turns cannot be put together from strings. The worker (``template_worker.py``) has a sandbox and
limits of its own; here it is killed when it does not answer in time, and a template that kills it again and again is not
tried any more. No tokens, no sessions here.
"""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import threading
from collections.abc import Mapping

from sgnb.config import MAX_PROMPT_BYTES
from sgnb.engine.tokenizer.chat_template import TemplateFault, worker_command, worker_request

log = logging.getLogger(__name__)

RENDER_SECONDS = 10.0
"""By the clock, for one conversation; the worker's start counts for the first. Its CPU time is bound more tightly."""
MAX_DEATHS = 3


class TemplateRenderer:
    """One template's worker, started when it is first needed. ``close`` may be called from any thread."""

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        self._first = worker_request(source, variables, 2 * MAX_PROMPT_BYTES)
        self._process: subprocess.Popen[bytes] | None = None
        self._deaths = 0
        self._lock = threading.Lock()
        self._closed = False

    def render(self, messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
        """The text of a conversation. TemplateFault, in a few seconds at most, when the template does not give one."""
        if self._deaths >= MAX_DEATHS:
            raise TemplateFault(f"it ended its process {self._deaths} times and is not tried any more")
        process = self._start()
        watch = threading.Timer(RENDER_SECONDS, process.kill)
        watch.start()
        try:
            answer = _exchange(
                process, {"messages": messages, "add_generation_prompt": add_generation_prompt}
            )
        finally:
            watch.cancel()
        if answer is None:
            self._deaths += 1
            raise TemplateFault(f"its process {self._bury(process)}")
        if "text" not in answer:
            raise TemplateFault(answer["error"])
        return answer["text"]

    def close(self) -> None:
        """End the worker. Idempotent; a rendering in flight fails."""
        with self._lock:
            self._closed = True
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            _reap(process)

    def _start(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._closed:
                raise TemplateFault("the engine is ending")
            if self._process is None:
                self._process = subprocess.Popen(
                    worker_command("serve"),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
                _write(self._process, self._first)
            return self._process

    def _bury(self, process: subprocess.Popen[bytes]) -> str:
        with self._lock:
            if self._process is process:
                self._process = None
        process.kill()
        _reap(process)
        code = process.returncode
        how = f"was stopped by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        log.warning("chat template: the worker %s", how)
        return f"{how}: more than {RENDER_SECONDS:g} s, or too much memory"


def _write(process: subprocess.Popen[bytes], message: object) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.flush()
    except OSError:
        pass  # it has ended: no answer will come, and that is seen


def _exchange(process: subprocess.Popen[bytes], conversation: object) -> dict[str, str] | None:
    """One conversation's answer, or None when the worker ended instead."""
    assert process.stdout is not None
    _write(process, conversation)
    try:
        line = process.stdout.readline()
        answer: dict[str, str] = json.loads(line)
    except (OSError, ValueError):
        return None
    return answer


def _reap(process: subprocess.Popen[bytes]) -> None:
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:
                pass  # what was not written yet has nobody to read it
