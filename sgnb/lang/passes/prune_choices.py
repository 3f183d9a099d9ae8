"""A choice with one option needs no model: it becomes text.

Legal where a marker, a generation or another choice of the same state follows at once in the block: program text that
followed would be tokenised together with the option, while after a choice it starts a new run (design, rule 7).
"""

from __future__ import annotations

from collections.abc import Sequence

from sgnb.lang.block import ChosenOp, GenOp, MarkOp, Op, SelectOp


def prune_choices(ops: Sequence[Op]) -> list[Op]:
    """The block without choices that are none."""
    out = list(ops)
    following: dict[str, Op] = {}
    for index in range(len(out) - 1, -1, -1):
        op = out[index]
        if type(op) is SelectOp and len(op.options) == 1:
            after = following.get(op.sid)
            if isinstance(after, MarkOp | GenOp | SelectOp | ChosenOp):
                out[index] = op = ChosenOp(op.sid, op.rid, op.options[0], op.place)
        following[op.sid] = op
    return out
