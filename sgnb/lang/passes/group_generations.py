"""Independent generations with equal parameters stand side by side: they go over as one operation, and the engine admits
them as one batch, with no step between them.

Legal because operations of different states do not see one another: each state keeps its order, and a fork stays before
what its branches do. Generations keep their order among themselves. Seeds may differ: they were given when recorded.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sgnb.lang.block import GenOp, JoinOp, Op
from sgnb.sampling_params import SamplingParams


def group_generations(ops: Sequence[Op]) -> list[Op]:
    """The block with texts of other states moved before generations they do not depend on."""
    out: list[Op] = []
    held: list[GenOp] = []
    sids: set[str] = set()
    shape: SamplingParams | None = None

    def close() -> None:
        out.extend(held)
        held.clear()
        sids.clear()

    for op in ops:
        if op.sid in sids or (type(op) is JoinOp and not sids.isdisjoint(op.branches)):
            close()
        if type(op) is not GenOp:
            out.append(op)
            continue
        own = op.params if op.params.seed is None else msgspec.structs.replace(op.params, seed=None)
        if held and own != shape:
            close()
        shape = own
        held.append(op)
        sids.add(op.sid)
    close()
    return out
