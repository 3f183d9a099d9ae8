"""What fails, is stopped or dropped in a run: its states are poisoned, what they have under way is settled.

Notebook process; the layer of ``runtime.core.Core`` that ends generations early. It holds what is under way and what is
not sent yet. No strong reference to a state here, except through generations under way, so that a dropped one is released.
"""

from __future__ import annotations

import copy
import threading
import time
import weakref
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from sgnb.backends.base import Backend
from sgnb.errors import Cancelled, SgnbError
from sgnb.lang.block import ForkOp, GenOp, JoinOp, Op, SelectOp, SharedOp, heirs
from sgnb.lang.position import internal, position_of
from sgnb.runtime.collect import release_sessions
from sgnb.runtime.events import EventLog, GenDone, GenFailed, StateFailed
from sgnb.runtime.meta import as_sgnb, meta_info
from sgnb.runtime.sharing import Sharing
from sgnb.runtime.times import times_so_far
from sgnb.runtime.variables import Failure, Slot
from sgnb.runtime.waiting import Waiting

if TYPE_CHECKING:
    from sgnb.runtime.state import State

internal(__name__)

STOPPED = "This state was stopped; its text so far is kept."


def without_child(op: Op, sid: str) -> Op | None:
    """A fork without one of its children (None: it has no other); any other operation as it is."""
    if type(op) is ForkOp and sid in op.children:
        children = tuple(child for child in op.children if child != sid)
        return op._replace(children=children) if children else None
    return op


def without_session(ops: Sequence[Op], sid: str) -> list[Op]:
    """The operations that are left when nobody holds the session any more."""
    kept = (without_child(op, sid) for op in ops if op.sid != sid)
    return [op for op in kept if op is not None]


class Failing(Waiting):
    """What is under way, and its early ends."""

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self.backend = backend
        self.log = EventLog()
        self._submit_lock = threading.RLock()
        """Keeps blocks in order."""
        self.pending: list[Op] = []
        self.held: list[Op] = []
        """What has been through the passes and waits for credit (``runtime.credits``); before ``pending`` in order."""
        self._gens_pending = False
        self.slots: dict[str, Slot] = {}
        self.sharing = Sharing(self)
        self.states: weakref.WeakValueDictionary[int, State] = weakref.WeakValueDictionary()
        self.failures: list[Failure] = []

    @abstractmethod
    def flush(self, *, everything: bool = False) -> None:
        """Send what was recorded."""

    @abstractmethod
    def finish_if_over(self) -> None:
        """End the run if nothing is under way any more."""

    def _forget(self, sids: Iterable[str]) -> set[str]:
        """Drop what these sessions and their forks have recorded and not sent; all of those. Under the lock."""
        gone = heirs([*self.held, *self.pending], sids)
        self.held = [op for op in self.held if op.sid not in gone]
        self.pending = [op for op in self.pending if op.sid not in gone]
        return gone

    def _forget_stopped(self, sids: Iterable[str]) -> None:
        """Drop what these sessions have not sent from their next generation on; marks made before it can be gone back
        to. Under the lock."""
        stopped, gone = frozenset(sids), set[str]()
        for unsent in (self.held, self.pending):
            kept = []
            for op in unsent:
                if op.sid in gone or (op.sid in stopped and isinstance(op, GenOp | SelectOp | SharedOp)):
                    gone |= heirs([op], [op.sid])
                else:
                    kept.append(op)
            unsent[:] = kept

    def fail_sessions(self, sids: set[str], error: SgnbError) -> None:
        """Poison every state of these sessions and settle what they had under way."""
        with self.lock:
            states = [state for state in self.states.values() if state.sid in sids]
        for state in states:
            self.poison(state, error, None)
        self.tell()
        self.finish_if_over()

    def fail_slot(self, slot: Slot, error: SgnbError) -> None:
        """A generation failed: its state is poisoned, and so is what the state has queued behind it."""
        if slot.place is not None and error.position is None:
            error = copy.copy(error)  # one error may end many requests: each has its own place
            error.position = position_of(slot.place)
        state = slot.state
        if state is not None:
            self.poison(state, error, slot)
        elif self.slots.pop(slot.rid, None) is not None:  # a branch that nobody holds any more
            self.log.append(GenFailed(slot.rid, error))
            slot.settle(Failure(error))

    def poison(
        self, state: State, error: BaseException, first: Slot | None, cause: Failure | None = None
    ) -> None:
        """Mark ``state`` as failed; its first cause stays. Settles all its outstanding generations.

        ``cause``: the failure it inherits from the state it was forked from, which is reported once.
        """
        with self.lock:
            new = state.failure is None
            failure = state.failure = state.failure or cause or Failure(error)
            dead = [slot for slot in self.slots.values() if slot.state is state]
            for slot in dead:
                del self.slots[slot.rid]
                slot.settle(failure)
            sids = self._forget({state.sid, *(slot.sid for slot in dead)})
            inherited = [ref() for slot in dead for ref in slot.heirs]
            inherited += [other for other in self.states.values() if other.sid in sids]
            if new and cause is None:
                self.failures.append(failure)
        for slot in dead:
            self.log.append(GenFailed(slot.rid, as_sgnb(failure.error)))
        if new:
            self.log.append(StateFailed(state.number, error))
        others = [slot.rid for slot in dead if slot is not first]
        if others:
            self._abort(others, ())
        for heir in inherited:
            if heir is not None and heir is not state and heir.failure is None:
                heir.core.poison(heir, failure.error, None, failure)
        self._release_samples(dead)

    def drop(self, sid: str, slots: Sequence[Slot]) -> None:
        """Nobody holds the state of ``sid`` any more: stop what it has under way and release its session.

        What branches were forked behind goes on for them; the engine keeps the session until they are open.
        Not for finalisers: it takes locks.
        """
        with self._submit_lock:
            with self.lock:
                dead = [slot for slot in slots if slot.rid in self.slots and not slot.pass_on()]
                for slot in dead:
                    del self.slots[slot.rid]
                    slot.meta = meta_info(slot.rid, {"type": "abort", "matched": None}, {}, slot.logprobs)
                    slot.cut = True
                    slot.settle()
                unsent = [*self.held, *self.pending]
                needed = any(
                    (type(op) is ForkOp and op.sid == sid) or (type(op) is JoinOp and sid in op.branches)
                    for op in unsent
                )
                if not needed:
                    self.held = without_session(self.held, sid)
                    self.pending = without_session(self.pending, sid)
                    self._gens_pending = any(isinstance(op, GenOp | SelectOp) for op in self.pending)
            if needed:
                self.flush(everything=True)
            ended, lasts = self.sharing.unwanted([slot.rid for slot in dead], sid)
            if ended:
                self._abort(ended, ())
            if not lasts:
                release_sessions(self.backend, (sid,))
        for slot in dead:
            self.log.append(GenDone(slot.rid, slot.meta))
        if dead:
            self.tell()
            self.finish_if_over()

    def stop_generations(self) -> None:
        """Abort all that is under way, keeping partial text. Does not wait for the backend."""
        times = times_so_far(self.log.since(0), time.monotonic()) if self.slots else {}
        with self.lock:
            dead = list(self.slots.values())
            self.slots.clear()
            sids = sorted({slot.sid for slot in dead})
            self._forget_stopped(sids)
            for slot in dead:
                slot.meta = meta_info(
                    slot.rid, {"type": "abort", "matched": None}, times.get(slot.rid, {}), slot.logprobs
                )
                slot.meta["completion_tokens"] = slot.tokens
                slot.cut = True
                state = slot.state
                if state is not None and state.failure is None:
                    state.failure = Failure(Cancelled(STOPPED, hint="Start the program again."))
                slot.settle()
            self.notify()
        if dead:
            self._abort([*(slot.rid for slot in dead), *self.sharing.late()], sids)
            self._release_samples(dead)
        for slot in dead:
            self.log.append(GenDone(slot.rid, slot.meta))
        self._wake()

    def _release_samples(self, slots: Sequence[Slot]) -> None:
        """Further samples of a generation have sessions of their own, which end with them."""
        sids = [slot.sid for slot in slots if slot.sample]
        if sids:
            release_sessions(self.backend, sids)

    def _abort(self, rids: Sequence[str], sids: Sequence[str]) -> None:
        try:
            self.backend.abort(rids, sids)
        except SgnbError:
            pass  # the engine is gone: there is nothing left to abort
