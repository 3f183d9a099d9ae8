"""Generations of a run that take the result of another one (``lang.passes.share_generations``).

Notebook process; each ``Core`` has one. The one that leads is a request of the engine; what comes for it comes for its
followers too. Whoever closes the leader's state early does not take it from them: its request and session last until it
has ended, or until no follower is left.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from sgnb.backends.base import BackendEvent, Done, Failed, Started
from sgnb.lang.block import SharedOp
from sgnb.lang.position import internal
from sgnb.runtime.collect import release_sessions

if TYPE_CHECKING:
    from sgnb.runtime.failing import Failing

internal(__name__)


class Sharing:
    """Who follows whom. Written by whoever flushes, read on the backend's thread; single dict operations only."""

    __slots__ = ("_core", "_followers", "_late")

    def __init__(self, core: Failing) -> None:
        self._core = weakref.ref(core)
        self._followers: dict[str, list[str]] = {}
        """Leader's rid → rids that take its result."""
        self._late: dict[str, str] = {}
        """Leader's rid → its session, to be released when it ends: its state was closed."""

    def note(self, ops: Sequence[SharedOp]) -> None:
        """These are in the block that leaves now. A follower's state fails with the leader's."""
        if not ops:
            return
        core = self._core()
        for op in ops:
            self._followers.setdefault(op.of, []).append(op.rid)
            lead, follower = (None, None) if core is None else (core.slots.get(op.of), core.slots.get(op.rid))
            if lead is not None and follower is not None:
                state = follower.state
                if lead.state is not None:
                    follower.also.append(lead.state)
                if state is not None:
                    lead.heirs.append(weakref.ref(state))

    def spread(self, events: Sequence[BackendEvent]) -> Sequence[BackendEvent]:
        """The events with a copy for each follower."""
        if not self._followers:
            return events
        out: list[BackendEvent] = []
        for event in events:
            out.append(event)
            rid = event.rid
            followers = self._followers.get(rid) if rid else None
            if followers is None:
                continue
            out += [_for(event, follower) for follower in followers]
            if isinstance(event, Done | Failed):
                del self._followers[rid]
                self._release(rid)
        return out

    def unwanted(self, rids: Sequence[str], sid: str) -> tuple[list[str], bool]:
        """Of a closed state's requests those that nobody else waits for; and whether session ``sid`` must last until
        the others have ended. Leaders kept so far whose last follower these were are among the first."""
        core = self._core()
        slots = {} if core is None else core.slots

        def followed(rid: str) -> bool:
            return any(follower in slots for follower in self._followers.get(rid, ()))

        kept = [rid for rid in rids if followed(rid)]
        self._late.update(dict.fromkeys(kept, sid))
        lost = [rid for rid in self._late if not followed(rid)]
        return [rid for rid in rids if rid not in kept] + lost, bool(kept)

    def late(self) -> list[str]:
        """Requests whose own state was closed, still under way for their followers."""
        return list(self._late)

    def _release(self, rid: str) -> None:
        sid, core = self._late.pop(rid, None), self._core()
        if sid is not None and core is not None:
            release_sessions(core.backend, (sid,))


def _for(event: BackendEvent, rid: str) -> BackendEvent:
    """The event of the leader as one of a follower, which computed nothing."""
    if isinstance(event, Done):
        return replace(event, rid=rid, meta={**event.meta, "shared_with": event.rid})
    return Started(rid) if isinstance(event, Started) else replace(event, rid=rid)
