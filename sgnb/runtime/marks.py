"""Marks: places in a state that can be gone back to.

Notebook process; used through ``State.mark`` and ``State.rewind``. A mark is a session of its own, copied where the mark was
made: it costs no tokens until it is used, and going back is one more copy. It ends with the mark, or with the state.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from sgnb.errors import ProgramError
from sgnb.lang.block import ForkOp
from sgnb.lang.position import Place, internal, position_of
from sgnb.runtime.collect import SessionHandle
from sgnb.runtime.core import Core
from sgnb.runtime.events import HostNote
from sgnb.runtime.variables import Slot

if TYPE_CHECKING:
    from sgnb.runtime.state import State

internal(__name__)


class Mark:
    """A place in a state. Kept by the user; its session ends when nobody holds it any more, and with its state."""

    __slots__ = ("__weakref__", "_finalizer", "characters", "handle", "sid", "snapshot", "state")

    def __init__(self, state: State, core: Core, sid: str) -> None:
        self.state = state
        self.sid = sid
        self.handle = SessionHandle(core, sid)
        self._finalizer = weakref.finalize(self, self.handle.collected)
        self._finalizer.atexit = False
        state._marks.add(self)
        self.characters = len(state.text_so_far())
        self.snapshot: dict[str, Any] = {
            "_pieces": list(state._pieces),
            "_history": list(state._history),
            "_turns": list(state._turns),
            "_values": dict(state._values),
            "_turn_start": state._turn_start,
            "_unnamed": state._unnamed,
            "_gens": state._gens,
            "role": state.role,
        }

    def close(self) -> None:
        """End its session: the state was closed."""
        if self._finalizer.detach() is not None:
            self.handle.close()

    def close_soon(self) -> None:
        """``close`` for callers that must return at once."""
        if self._finalizer.detach() is not None:
            self.handle.close_soon()

    def __repr__(self) -> str:
        return f"<mark after {self.characters} characters of {self.state!r}>"


def make_mark(state: State, core: Core, place: Place) -> Mark:
    """Mark the place where ``state`` is now."""
    sid = state.backend.new_sid()
    core.record(ForkOp(state.sid, (sid,), place, "same"))
    return Mark(state, core, sid)


def rewind(state: State, mark: Mark, place: Place) -> None:
    """Put ``state`` back: text, variables, turns and role. What was appended since is stopped and forgotten."""
    position = position_of(place)
    if not isinstance(mark, Mark) or mark.state is not state:
        raise ProgramError(
            "rewind() takes a mark of this state.", hint="Make one: m = s.mark().", position=position
        )
    if state.joined or not state._finalizer.alive:
        raise ProgramError("A state that was joined or closed cannot be rewound.", position=position)
    before = set(map(id, mark.snapshot["_pieces"]))
    for slot in state.open_slots():
        if id(slot) in before:
            slot.core.flush()
            slot.core.wait(lambda slot=slot: slot.settled)  # type: ignore[misc]
    for slot in mark.snapshot["_pieces"]:
        if isinstance(slot, Slot):
            slot.value()  # the mark stands behind it: what failed there failed here
            if slot.cut:
                raise ProgramError(
                    f"This mark stands behind {slot.name!r}, which was stopped: the engine was ahead of the text.",
                    hint="Go back to an earlier mark.",
                    position=position,
                )
    state.core.drop(state.sid, [s for s in state._pieces if isinstance(s, Slot) and id(s) not in before])
    for name, value in mark.snapshot.items():
        setattr(state, name, value.copy() if isinstance(value, list | dict) else value)
    state.failure = None
    state.rewound += 1
    core = state.writable(place)
    assert core is not None
    state.sid = state._handle.sid = state.backend.new_sid()
    mark.handle.core = core  # what is recorded there needs the mark's session
    core.record(ForkOp(mark.sid, (state.sid,), place, "same"))
    core.append_event(HostNote(f"Went back to the mark after {mark.characters} characters."))
