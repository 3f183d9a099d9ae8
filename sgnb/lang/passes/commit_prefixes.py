"""Text that several branches begin with is computed at once, while the program still records what they add.

Before a fork of which two or more branches generate nothing in this block, and whose session has new text of some length
since its last generation or fork, the block gets a ``Commit``: the engine computes that text in the background and every
branch finds it cached. Branches that generate at once compute it themselves, the first for all. Legal because
it changes no text and no border: what is committed ends at the last space that no token crosses, the rest stays pending.
"""

from __future__ import annotations

from collections.abc import Sequence

from sgnb.lang.block import CommitOp, ForkOp, GenOp, MarkOp, Op, SelectOp, SharedOp, TextOp

MIN_CHARS = 64


def commit_prefixes(ops: Sequence[Op]) -> list[Op]:
    """The block with a Commit before each such fork."""
    out: list[Op] = []
    busy = {op.sid for op in ops if isinstance(op, GenOp | SelectOp | SharedOp)}
    fresh: dict[str, int] = {}
    """Session → characters of its text since something was computed for it."""
    for op in ops:
        if type(op) is TextOp:
            fresh[op.sid] = fresh.get(op.sid, 0) + len(op.text)
        elif type(op) is ForkOp:
            size = fresh.get(op.sid, 0)
            if size >= MIN_CHARS and sum(child not in busy for child in op.children) > 1:
                out.append(CommitOp(op.sid, op.place))
                size = fresh[op.sid] = 0
            fresh.update(dict.fromkeys(op.children, size))
        elif type(op) is not MarkOp:
            fresh[op.sid] = 0
        out.append(op)
    return out
