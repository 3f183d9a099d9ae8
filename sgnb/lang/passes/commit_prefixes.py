"""Long text is computed while the program does something else: waits for another state, or runs a tool.

A block that leaves before a wait or before host code ends with a mark that says so. There, each session that has new text
of some length with no generation behind it gets a ``Commit``: the engine computes that text in the background, and the
generation that comes later finds it cached, as do all branches. Text that a generation of this block computes anyway, in
the session or in a branch of it, needs none. Legal because it changes no text and no border: what is committed ends at the
last space that no token crosses, the rest stays pending.
"""

from __future__ import annotations

from collections.abc import Sequence

from sgnb.lang.block import CommitOp, ForkOp, GenOp, HostOp, IdsOp, JoinOp, Op, SelectOp, SharedOp, TextOp
from sgnb.lang.position import Place

MIN_CHARS = 1000
"""Shorter text is computed faster than a step of its own is worth."""


def commit_prefixes(ops: Sequence[Op]) -> list[Op]:
    """The block with its Commits in the place of its mark."""
    if not any(type(op) is HostOp for op in ops):
        return list(ops)
    fresh: dict[str, int] = {}
    """Session → characters of its own text since something was computed for it."""
    places: dict[str, Place | None] = {}
    parents: dict[str, str] = {}

    def computed(sid: str) -> None:
        while sid:
            fresh[sid] = 0
            sid = parents.get(sid, "")

    for op in ops:
        if isinstance(op, TextOp | IdsOp):
            fresh[op.sid] = fresh.get(op.sid, 0) + len(op.text)
            places[op.sid] = op.place
        elif type(op) is ForkOp:
            parents.update(dict.fromkeys(op.children, op.sid))
        elif isinstance(op, GenOp | SelectOp | SharedOp | CommitOp):
            computed(op.sid)
        elif type(op) is JoinOp:
            computed(op.sid)
            fresh.update(dict.fromkeys(op.branches, 0))  # nothing comes after it there
    commits: list[Op] = []
    for sid in reversed(list(fresh)):  # branches first: what they begin with is computed with them
        if fresh[sid] >= MIN_CHARS:
            commits.append(CommitOp(sid, places.get(sid)))
            computed(sid)
    return [*(op for op in ops if type(op) is not HostOp), *commits] if commits else list(ops)
