"""Recorded operations to instructions.

Notebook process; called by the recorder at each flush, after the passes. Adjacent text and marks of one session become
one Extend; nothing is moved past another operation of the same session. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from sgnb.lang.block import (
    ChosenOp,
    CommitOp,
    ForkOp,
    GenOp,
    IdsOp,
    InitOp,
    JoinOp,
    MarkOp,
    Op,
    SelectOp,
    TextOp,
)
from sgnb.lang.instruction import (
    Block,
    Commit,
    Decode,
    Extend,
    Fork,
    IdsPart,
    Init,
    Instruction,
    Join,
    MarkPart,
    Part,
    Select,
    TextPart,
)
from sgnb.lang.position import position_of


def lower(run: str, ops: Sequence[Op], priority: int = 0) -> Block:
    """The block that a backend carries out; ``priority`` is the run's."""
    out: list[Instruction] = []
    parts: list[Part] = []
    sid = ""

    def close() -> None:
        if parts:
            out.append(Extend(sid, tuple(parts)))
            parts.clear()

    for op in ops:
        if op.sid != sid:
            close()
            sid = op.sid
        if type(op) is TextOp:
            parts.append(TextPart(op.text, op.literal))
        elif type(op) is MarkOp:
            parts.append(MarkPart(op.role, op.begin))
        elif type(op) is IdsOp:
            parts.append(IdsPart(op.ids, op.text))
        elif type(op) is GenOp:
            close()
            position = None if op.place is None else position_of(op.place)
            own = priority if op.priority is None else op.priority
            out.append(Decode(op.rid, op.sid, op.name, op.params, position, op.cell, op.branch, own))
        elif type(op) is SelectOp:
            close()
            position = None if op.place is None else position_of(op.place)
            own = priority if op.priority is None else op.priority
            where = (position, op.cell, op.branch, own)
            out.append(Select(op.rid, op.sid, op.name, op.options, op.method, *where))
        elif type(op) is ChosenOp:
            parts.append(TextPart(op.text, literal=True))
        elif type(op) is ForkOp:
            close()
            out.append(Fork(op.sid, op.children, op.base))
        elif type(op) is JoinOp:
            close()
            out.append(Join(op.sid, op.branches))
        elif type(op) is CommitOp:
            close()
            out.append(Commit(op.sid))
        elif type(op) is InitOp:
            out.append(Init(op.sid, op.extra_key))
    close()
    return Block(run, tuple(out))
