"""Fold neighbouring texts of one session into one operation.

Legal because a maximal run of program text is tokenised as one string however it was written (design, rule 7). Texts of
different kinds (literal and parsed) stay apart, and so do texts of different sessions.
"""

from __future__ import annotations

from collections.abc import Sequence

from sgnb.lang.block import Op, TextOp


def fold_text(ops: Sequence[Op]) -> list[Op]:
    """The block with adjacent texts joined; the place of the first one stays."""
    out: list[Op] = []
    pieces: list[str] = []
    first: TextOp | None = None

    def close() -> None:
        if first is not None:
            out.append(first if len(pieces) == 1 else first._replace(text="".join(pieces)))

    for op in ops:
        if type(op) is TextOp:
            if first is not None and op.sid == first.sid and op.literal == first.literal:
                pieces.append(op.text)
                continue
            close()
            first, pieces = op, [op.text]
        else:
            close()
            first = None
            out.append(op)
    close()
    return out
