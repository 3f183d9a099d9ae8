"""What the tests of runs share: two programs, and looks at logs and blocks."""

from __future__ import annotations

import time

import sgnb as sgl
from sgnb.lang.instruction import Decode

LONG = 20.0


@sgl.function
def chat(s, question):
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("answer", max_tokens=64))
    return s["answer"]


@sgl.function
def lazy_chat(s, question):
    s += question + sgl.gen("answer")


def events_of(log, kind):
    return [entry.event for entry in log.since(0) if isinstance(entry.event, kind)]


def wait_until(ready, seconds=LONG):
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.002)


def decodes(backend):
    return [op for block in backend.log for op in block.instructions if isinstance(op, Decode)]
