"""Does a rewritten block still mean the same?

Notebook process; ``optimize`` asks after every pass that changed something. Each session's history (text runs, marks,
generations, choices) is followed through forks; a block means the same when every generation and choice stands after the
same history in the same session, and every session ends with the same one. A generation whose outcome text and parameters
fix is known by those, so that one may stand for another that starts from the same text. Independent of how passes work.
"""

from __future__ import annotations

from collections.abc import Sequence

from sgnb.lang.block import (
    ChosenOp,
    ForkOp,
    GenOp,
    HostOp,
    IdsOp,
    InitOp,
    JoinOp,
    MarkOp,
    Op,
    SelectOp,
    SharedOp,
    TextOp,
)

Text = tuple[tuple[bool, str], ...]
History = tuple[int, Text]
"""What came before the last border, as a hash, and the run of text since."""


def _text(history: History, literal: bool, text: str) -> History:
    done, run = history
    if run and run[-1][0] == literal:
        return done, (*run[:-1], (literal, run[-1][1] + text))
    return done, (*run, (literal, text))


def _border(history: History, what: object) -> History:
    return hash((history, what)), ()


def _outcome(op: GenOp | SharedOp) -> object:
    """What a generation adds: known by its parameters where they fix it, else by the request alone."""
    return op.params if op.params.greedy or op.params.seed is not None else op.rid


def meaning(ops: Sequence[Op]) -> tuple[dict[str, object], dict[str, History]]:
    """For each request what it is and what stands before it; for each session how it ends."""
    sessions: dict[str, History] = {}
    requests: dict[str, object] = {}
    starts: dict[str, History] = {}
    for op in ops:
        if type(op) is HostOp:
            continue
        history = sessions.get(op.sid) or (hash(op.sid), ())
        if type(op) is TextOp:
            history = _text(history, op.literal, op.text) if op.text else history
        elif type(op) is IdsOp:
            history = _border(history, op.ids)
        elif type(op) is MarkOp:
            history = _border(history, (op.role, op.begin))
        elif type(op) is GenOp:
            requests[op.rid] = (op.sid, history, op.params, op.name, op.branch)
            starts[op.rid] = history
            history = _border(history, _outcome(op))
        elif type(op) is SharedOp:
            start = starts.get(op.of)
            led = None if start is None else _border(start, _outcome(op))
            # It must stand where its session has just been forked behind the generation whose result it takes.
            requests[op.rid] = (op.sid, start if led == history else None, op.params, op.name, op.branch)
        elif type(op) is SelectOp:
            single = len(op.options) == 1
            requests[op.rid] = (op.sid, history, op.options[0] if single else op.options)
            history = _border(history, op.rid)
        elif type(op) is ChosenOp:
            requests[op.rid] = (op.sid, history, op.text)
            history = _border(history, op.rid)
        elif type(op) is ForkOp:
            for child in op.children:
                sessions[child] = history
        elif type(op) is JoinOp:
            history = _border(history, ("join", *map(sessions.get, op.branches)))
        elif type(op) is InitOp:
            history = _border(history, ("init", op.extra_key))
        sessions[op.sid] = history
    return requests, sessions


def same(before: Sequence[Op], after: Sequence[Op]) -> bool:
    """True when both blocks do the same."""
    return meaning(before) == meaning(after)
