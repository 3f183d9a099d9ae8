"""``join("concate_and_append", method="kv")``: branches appended by the KV they have, not computed again.

Notebook process; called by ``runtime.fork``. The parent's text, turns and history are what a join as text gives; the
engine is told to append the branches' sessions, and copies their keys and values (rotated to their new positions)
when the parent generates next. No copying and no positions here.
"""

from __future__ import annotations

from collections.abc import Sequence

from sgnb.errors import ProgramError, SourcePosition
from sgnb.lang.block import JoinOp
from sgnb.lang.position import Place, internal
from sgnb.runtime.state import State

internal(__name__)

HINT = 'Leave out method="kv": the texts are appended, which is exact.'


def refuse_kv(parent: State, branches: Sequence[State], mode: str, position: SourcePosition) -> None:
    """ProgramError where branches cannot be joined by their KV."""
    why = ""
    if mode != "concate_and_append":
        raise ProgramError(
            f"join(method='kv') has no meaning with mode={mode!r}.",
            hint='Write join("concate_and_append", method="kv"), or leave out the method.',
            position=position,
        )
    if any(branch.began_empty for branch in branches):
        why = "The state was empty when it was forked."
    elif any(branch.backend.carrier is not parent.backend.carrier for branch in branches):
        why = "The branches are on another backend."
    else:
        why = parent.backend.carrier.refuse_kv_join()
    if why:
        raise ProgramError(f'No join(method="kv"): {why}', hint=HINT, position=position)


def join_kv(parent: State, branches: Sequence[State], place: Place) -> None:
    """Append the branches, which have ended, to the parent."""
    core = parent.writable(place)
    for branch in branches:
        if branch.core is not core:
            branch.core.flush(everything=True)
    parent.sent = False
    try:
        for branch in branches:
            parent.repeat(branch.freeze(), place)
    finally:
        parent.sent = True
    if core is not None:
        core.record(JoinOp(parent.sid, tuple(branch.sid for branch in branches), place))
        if any(branch.core is not core for branch in branches):
            core.flush(everything=True)  # before those runs end the branches' sessions
        core.recorded(parent)
        parent.joined_kv = "approximate"
