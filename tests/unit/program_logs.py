"""Logs of scripted runs, as a run's driver would have written them, and their folds."""

from __future__ import annotations

from typing import Any

from sgnb.runtime import events as ev
from sgnb.widgets.fold import ProgramFold
from sgnb.widgets.fold_messages import FoldMessages

META = {
    "prompt_tokens": 31,
    "cached_tokens": 20,
    "completion_tokens": 41,
    "e2e_latency": 0.38,
    "finish": "stop",
    "finish_reason": {"type": "stop", "matched": "\n\n"},
}


def a_log(*, ended: bool = True, meta: dict[str, object] | None = None) -> ev.EventLog:
    log = ev.EventLog()
    log.append(ev.RunStarted("[7]", "7", "tiny"))
    log.append(ev.StateOpened(1, ""))
    log.append(ev.RoleBegan(1, "user"))
    log.append(ev.TextAppended(1, "What is ", 2))
    log.append(ev.TextAppended(1, "it?", 2))
    log.append(ev.RoleEnded(1, "user"))
    log.append(ev.RoleBegan(1, "assistant"))
    log.append(ev.TextAppended(1, "It is ", 3))
    log.append(ev.GenQueued(1, "r1", "answer", 3, 120))
    log.append(ev.GenStarted("r1"))
    log.append(ev.GenDelta("r1", "a ", 1))
    log.append(ev.GenDelta("r1", "thing.", 2))
    if ended:
        log.append(ev.GenDone("r1", meta or META))
        log.append(ev.RoleEnded(1, "assistant"))
        log.append(ev.RunFinished("finished", 0.8, None, {"queue": 0.01, "decode": 0.7}))
    return log


def fold_of(log: ev.EventLog, **kwargs: object) -> ProgramFold:
    fold = ProgramFold(**{"times": True, **kwargs})  # type: ignore[arg-type]
    fold.feed(log.since(0))
    return fold


def forked(*, ended: bool = True) -> ev.EventLog:
    """A fork of two; the second branch's generation is under way unless ``ended``."""
    log = ev.EventLog()
    log.append(ev.RunStarted("[7]", "7", "tiny"))
    log.append(ev.StateOpened(1, ""))
    log.append(ev.TextAppended(1, "Both read this. ", 1))
    log.append(ev.StateOpened(2, "0", 1, 1))
    log.append(ev.StateOpened(3, "1", 1, 1))
    for state in (2, 3):
        log.append(ev.TextAppended(state, f"Branch {state - 2}: ", 3))
        log.append(ev.GenQueued(state, f"r{state}", "finding", 3, 120))
        log.append(ev.GenQueued(state, f"s{state}", "severity", 4, 0, options=("high", "low")))
    for state in (2, 3):
        log.append(ev.GenStarted(f"r{state}"))
        log.append(ev.GenDelta(f"r{state}", f"text {state - 2}", 2))
        if state == 2 or ended:
            log.append(ev.GenDone(f"r{state}", META))
    log.append(ev.GenStarted("s2"))
    if ended:
        for state in (2, 3):
            scores = {"choice": state - 2, "normalized_prompt_logprobs": [-0.1, -1.1]}
            log.append(ev.GenDelta(f"s{state}", ("high", "low")[state - 2]))
            log.append(ev.GenDone(f"s{state}", META | scores))
        log.append(ev.TextAppended(1, "After. ", 6))
        log.append(ev.RunFinished("finished", 0.8))
    return log


def messages_of(log: ev.EventLog, **kwargs: object) -> FoldMessages:
    return FoldMessages(fold_of(log, **kwargs))


def snapshot_of(log: ev.EventLog, **kwargs: object) -> dict[str, Any]:
    return messages_of(log, **kwargs).snapshot()
