"""Forks of one state at the same place become one: a common subexpression that is computed once.

Legal because nothing of that state stands between them, so that all branches begin with the same ids and text.
"""

from __future__ import annotations

from collections.abc import Sequence

from sgnb.lang.block import ForkOp, Op


def merge_forks(ops: Sequence[Op]) -> list[Op]:
    """The block with one fork for each place."""
    out: list[Op] = []
    last: dict[str, int] = {}
    """Session → where in ``out`` its last operation is, if that is a fork."""
    for op in ops:
        if type(op) is ForkOp:
            at = last.get(op.sid)
            first = None if at is None else out[at]
            if at is not None and type(first) is ForkOp and first.base == op.base:
                out[at] = first._replace(children=(*first.children, *op.children))
                continue
            last[op.sid] = len(out)
        else:
            last.pop(op.sid, None)
        out.append(op)
    return out
