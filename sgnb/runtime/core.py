"""The inside of a run: its recorder, its outstanding generations, its end.

Notebook process. States record operations here, drivers flush and wait here, a backend's thread delivers events here.
Two locks: ``lock`` guards data and is never held while a backend or a log listener is called; ``_submit_lock`` keeps
blocks in order. A ``Core`` holds no strong reference to a state, except through generations still under way, so that a
dropped state is released at once. No frames and no generators here: those belong to ``runtime.dispatcher``.
"""

from __future__ import annotations

import copy
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from sgnb.backends.base import Backend, BackendEvent, Delta, Done, Failed, Started
from sgnb.errors import Cancelled, ProgramError, SgnbError
from sgnb.lang.block import ChosenOp, ForkOp, GenOp, HostOp, JoinOp, Op, SelectOp, SharedOp, TextOp, heirs
from sgnb.lang.lower import lower
from sgnb.lang.passes import PASSES, Pass, PassRecord, optimize
from sgnb.lang.passes.commit_prefixes import MIN_CHARS
from sgnb.lang.position import internal, place_of, position_of, user_frame
from sgnb.runtime.collect import release_sessions
from sgnb.runtime.credits import credits_of
from sgnb.runtime.events import (
    Event,
    EventLog,
    GenDelta,
    GenDone,
    GenFailed,
    GenStarted,
    RunFinished,
    RunStarted,
    StateFailed,
)
from sgnb.runtime.meta import as_sgnb, default_seed, meta_info
from sgnb.runtime.sharing import Sharing
from sgnb.runtime.times import split_times
from sgnb.runtime.variables import Failure, Slot

if TYPE_CHECKING:
    from sgnb.runtime.state import State

internal(__name__)

MAX_KEPT_OPS = 4096
"""Operations of a run that are kept for its graph view."""

MAX_BLOCK_OPS = 256
"""A block leaves at this many operations at the latest."""
MAX_OUTSTANDING = 1024
"""Generations under way in one run before recording waits."""
MAX_REFUSED = 4096
"""Operations a poisoned state drops before it raises its cause: an endless loop must end."""

MAX_CANCEL_THROWS = 100
"""How often a program that catches its cancellation is told again before it is dropped."""
STOPPED = "This state was stopped; its text so far is kept."

_numbers = itertools.count(1)


_waits = threading.Lock()
"""Guards ``Core.waits_for`` of all runs."""
_current: ContextVar[Core | None] = ContextVar("sgnb_current_core", default=None)


def current_core() -> Core | None:
    """The run whose program is being executed by the code that asks, or None."""
    return _current.get()


def set_current(core: Core | None) -> None:
    """Say whose program is being executed in this context."""
    _current.set(core)


def chosen(options: tuple[str, ...], event: Done) -> str:
    """The option that a finished choice takes; empty for a generation, and for a choice that was stopped."""
    choice = event.meta.get("choice")
    return options[choice] if options and isinstance(choice, int) else ""


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


class CancelRun(BaseException):
    """Thrown into a program that was cancelled; never leaves the runtime."""


CORES: weakref.WeakSet[Core] = weakref.WeakSet()
"""Every run that somebody holds."""


class Core:
    """One execution. See the module for who calls what on which thread."""

    def __init__(
        self,
        backend: Backend,
        *,
        title: str = "",
        cell: str = "",
        defaults: Mapping[str, Any] | None = None,
        seed: int | None = None,
        passes: Sequence[Pass] = PASSES,
        extra_key: str = "",
        priority: int = 0,
    ) -> None:
        self.id = f"run{next(_numbers)}"
        CORES.add(self)
        self.backend = backend
        self.title = title
        self.cell = cell
        self.defaults = dict(defaults or {})
        self.seed = default_seed() if seed is None else seed
        self.passes = passes
        self.pass_records: list[list[PassRecord]] | None = None
        """One list a block, for who wants to know what the passes did."""
        self.kept_blocks: list[list[Op]] = []
        """What was recorded, block by block, before the passes: for the graph view; at most ``MAX_KEPT_OPS``."""
        self._room_for_ops = MAX_KEPT_OPS
        self.extra_key = extra_key
        """Requests share cached prefixes with those of the same key only."""
        self.log = EventLog()
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self._submit_lock = threading.RLock()
        self.pending: list[Op] = []
        self.held: list[Op] = []
        """What has been through the passes and waits for credit (``runtime.credits``); before ``pending`` in order."""
        self.begun: set[str] = set()
        """Sessions that have sent a generation since credit counts."""
        self.priority = priority
        self.credits = credits_of(backend)
        self._gens_pending = False
        self._chars = 0
        """Characters of text in ``pending``."""
        self.submitting = False
        """True while a block is being handed over."""
        self.slots: dict[str, Slot] = {}
        self.sharing = Sharing(self)
        self.states: weakref.WeakValueDictionary[int, State] = weakref.WeakValueDictionary()
        self.state_count = 0
        self._roots = 0
        self.eager = False
        self.pins = 0
        self.body_done = False
        self.body_error: BaseException | None = None
        self.cancelled = False
        self.cancel_throws = 0
        self.finished = False
        self.status = "running"
        self.error: BaseException | None = None
        self.failures: list[Failure] = []
        self.messages_sent = 0
        self.started_at = time.monotonic()
        self.on_wake: Callable[[], None] | None = None
        """Set by a pool that has parked this run: called after each change, must return at once."""
        self.help_until: Callable[[Callable[[], bool], float | None], bool] | None = None
        """Set by a pool that drives this run: how another thread waits for it (a pool thread drives it meanwhile)."""
        self.names: frozenset[str] | None = None
        """All variables the program can bind, when its graph shows them for certain."""
        self._done_callbacks: list[Callable[[], None]] = []
        self._cancel_callbacks: list[Callable[[], object]] = []
        self.driving = 0
        """The thread that executes the body now, or did last."""
        self.waits_for: tuple[Core, Callable[[], bool]] | None = None
        """Whose body this one's waits for, on its thread, and until when."""
        self.loops = 0
        """Event loops that ``async`` bodies of this run have open."""

    # ------------------------------------------------------------ recording

    def record(self, op: Op) -> None:
        """Add an operation to the block under construction."""
        with self.lock:
            self.pending.append(op)
            if type(op) is TextOp:
                self._chars += len(op.text)
            self._gens_pending = self._gens_pending or type(op) is GenOp or type(op) is SelectOp
            full = len(self.pending) >= MAX_BLOCK_OPS
        if full:
            self.flush()

    def add_slot(self, slot: Slot) -> None:
        """A generation is under way from now on. Waits while too many are (Cancelled if the run is stopped)."""
        with self.lock:
            crowded = len(self.slots) >= MAX_OUTSTANDING
        if crowded:
            self.flush()
            self.wait(lambda: len(self.slots) < MAX_OUTSTANDING // 2)
        with self.lock:
            self.slots[slot.rid] = slot

    def send(self) -> None:
        """Something else comes first: a wait, or host code. Send what was recorded if a generation waits in it, or text
        so long that it is worth computing meanwhile; shorter text can go with the next one.
        """
        if self._chars >= MIN_CHARS:
            self.record(HostOp())
            self.flush()
        elif self._gens_pending:
            self.flush()

    def flush(self, *, everything: bool = False) -> None:
        """Send what was recorded as one block, as far as there is credit (``everything``: all the same).

        Never raises: a refused block poisons its states.
        """
        if not self.pending and not self.held:
            return
        with self._submit_lock:
            self.submitting = True
            with self.lock:
                ops, self.pending, self._gens_pending, self._chars = self.pending, [], False, 0
                ops, self.held = [*self.held, *self._optimized(ops)], []
                block, self.held = (ops, []) if everything else self.credits.take(self, ops)
            try:
                if block:
                    self.sharing.note(op for op in block if type(op) is SharedOp)
                    self.backend.submit(lower(self.id, block, self.priority), self.on_events)
                    self.messages_sent += 1
            except SgnbError as error:
                gens = [op for op in block if isinstance(op, GenOp | SelectOp)]
                self.credits.refused([op.rid for op in gens])
                places = [op.place for op in gens]
                if len(places) == 1 and places[0] is not None:
                    error.position = error.position or position_of(places[0])
                self.fail_sessions(heirs(ops, [op.sid for op in ops]), error)
                block = []
            finally:
                self.submitting = False
        done = [
            Done(op.rid, {"type": "stop", "matched": None}, {"choice": 0, "scores": [0.0]})
            for op in block
            if type(op) is ChosenOp
        ]
        if done:
            self.on_events(done)

    def _forget(self, sids: Iterable[str]) -> set[str]:
        """Drop what these sessions and their forks have recorded and not sent; all of those. Under the lock."""
        gone = heirs([*self.held, *self.pending], sids)
        self.held = [op for op in self.held if op.sid not in gone]
        self.pending = [op for op in self.pending if op.sid not in gone]
        return gone

    def _optimized(self, ops: list[Op]) -> list[Op]:
        if 0 < len(ops) <= self._room_for_ops:
            self._room_for_ops -= len(ops)
            self.kept_blocks.append(list(ops))
        if self.pass_records is None:
            return optimize(ops, self.passes)
        records: list[PassRecord] = []
        self.pass_records.append(records)
        return optimize(ops, self.passes, records)

    def open_state(self, state: State) -> int:
        """Number a state that records here."""
        with self.lock:
            number = self.state_count
            self.state_count += 1
            self.states[number] = state
        return number

    def recorded(self, state: State) -> None:
        """An append ended: eager runs, and appends from outside this run, send it at once."""
        if self.eager or current_core() is not self:
            self.send()
            self.tell()

    def begin_own(self, state: State) -> None:
        """Become the run of a state that goes on outside any program: there is no body, so it ends when it is idle."""
        self.begin_own_run(state.branch)

    def begin_own_run(self, branch: str) -> None:
        """See ``begin_own``."""
        self.eager = self.body_done = True
        self.append_event(RunStarted(branch or "state", self.cell, self.backend.model_name))

    def end_if_idle(self) -> None:
        """End a run without a body that waits for nothing: a later cell goes on with its states, and shows them."""
        if self.body_done and not self.finished:
            self.flush()
            if not self.pending and not self.held:
                self.finish_if_over()

    def elsewhere(self) -> bool:
        """True when the body is still being executed, and not by the code that asks."""
        return not self.body_done and current_core() is not self

    # ------------------------------------------------------------ the backend's thread

    def on_events(self, events: Sequence[BackendEvent]) -> None:
        """Take a backend's events. The log hears of them before any reader does."""
        self.credits.note(events)
        for event in self.sharing.spread(events):
            if isinstance(event, Failed) and event.sid and not event.rid:
                self.fail_sessions({event.sid}, event.error)
                continue
            slot = self.slots.get(event.rid)
            if slot is None:
                continue
            if isinstance(event, Delta):
                self._on_delta(slot, event)
            elif isinstance(event, Done):
                self._on_done(slot, event)
            elif isinstance(event, Failed):
                self.fail_slot(slot, event.error)
            elif isinstance(event, Started):
                self.log.append(GenStarted(event.rid))
        self.tell()
        self.finish_if_over()

    def _on_delta(self, slot: Slot, event: Delta) -> None:
        if slot.options:
            return  # the winner comes with Done
        logprobs = tuple((t.id, t.logprob, t.top) for t in event.tokens if t.logprob is not None)
        details = event.tokens if logprobs else ()
        self.log.append(GenDelta(event.rid, event.text, len(event.tokens), logprobs, details))
        with self.lock:
            if not slot.settled:
                slot.tokens += len(event.tokens)
                slot.ids += [token.id for token in event.tokens]
                slot.logprobs += logprobs
                if event.text:
                    slot.chunks.append(event.text)
                    slot.marks.append((slot.tokens, len(slot.logprobs)))

    def _on_done(self, slot: Slot, event: Done) -> None:
        meta = meta_info(event.rid, event.finish, event.meta, slot.logprobs)
        winner = chosen(slot.options, event)
        if winner:
            self.log.append(GenDelta(event.rid, winner))
        self.log.append(GenDone(event.rid, meta))
        state = slot.state
        with self.lock:
            self.slots.pop(slot.rid, None)
            if not slot.settled:
                if winner:
                    slot.chunks.append(winner)
                slot.meta = meta
                slot.settle()
                if state is not None:
                    state.joined_kv = meta.get("joined_kv", state.joined_kv)
        self._release_samples([slot])
        if state is not None and state.joined:
            state.close_soon()

    # ------------------------------------------------------------ failures

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

        Not for finalisers: it takes locks.
        """
        with self._submit_lock:
            with self.lock:
                dead = [slot for slot in slots if self.slots.pop(slot.rid, None) is not None]
                for slot in dead:
                    slot.meta = meta_info(slot.rid, {"type": "abort", "matched": None}, {}, slot.logprobs)
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

    # ------------------------------------------------------------ waiting

    def wait(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """Block this thread until ``ready()`` or cancellation; True if ready. An interrupt of a reader outside the
        program stops the run: nobody wants the rest, and nobody else might be left to stop it.
        """
        help_until = self.help_until
        try:
            if help_until is not None and current_core() is not self:
                help_until(lambda: ready() or self.cancelled, timeout)
            else:
                self.wait_plain(lambda: ready() or self.cancelled, timeout)
        except KeyboardInterrupt:
            if current_core() is not self:
                self.stop()
            raise
        return ready()

    def wait_for_body(self, ready: Callable[[], bool]) -> None:
        """Wait until ``ready()`` or the end of the body, which another thread executes.

        Raises ProgramError when that body waits, directly or through others, for the program that asks.
        """
        wanted = lambda: ready() or self.body_done or self.cancelled  # noqa: E731
        mine = current_core()
        if mine is None or mine.driving != threading.get_ident():
            self.wait(wanted)
            return
        with _waits:
            mine.waits_for = (self, wanted)
            other: Core | None = self
            while other is not None and other is not mine:
                found = other.waits_for
                other = None if found is None or found[1]() else found[0]
            if other is mine:
                mine.waits_for = None
                raise ProgramError(
                    "This program and the one it reads from wait for each other: neither can go on.",
                    hint="Read what is bound already, or let one of them end first.",
                    position=position_of(place_of(user_frame())),
                )
        try:
            self.wait(wanted)
            mine.check_cancelled()
        finally:
            mine.waits_for = None

    def wait_plain(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """Block this thread until ``ready()``, cancelled or not; True if ready."""
        with self.lock:
            return self.changed.wait_for(ready, timeout)

    def tell(self) -> None:
        """Something changed: wake who waits on a thread, and the pool."""
        with self.lock:
            self.changed.notify_all()
        self._wake()

    def read(self, slot: Slot) -> str:
        """The text of a generation, waited for on this thread; raises its error."""
        if not slot.settled:
            self.flush()
            self.wait(lambda: slot.settled)
            self.check_cancelled()
        return slot.value()

    def check_cancelled(self) -> None:
        """End the program that asks if it was cancelled; its readers outside may go on."""
        if self.cancelled and current_core() is self:
            raise CancelRun

    def _wake(self) -> None:
        wake = self.on_wake
        if wake is not None:
            wake()

    # ------------------------------------------------------------ the end

    def end_body(self, error: BaseException | None) -> None:
        """The program's body returned or raised. What it left under way goes on unless it raised."""
        if error is not None:
            self.stop_generations()
        self.flush()
        with self.lock:
            if error is not None and self.body_error is None:
                self.body_error = self.error = error
                root = self.states.get(0)
                if root is not None and (root.failure is None or not self.cancelled):
                    root.failure = Failure(error)
                    root.failure.seen = True
            self.body_done = True
            self.changed.notify_all()
        self.finish_if_over()

    def stop_generations(self) -> None:
        """Abort all that is under way, keeping partial text. Does not wait for the backend."""
        with self.lock:
            dead = list(self.slots.values())
            self.slots.clear()
            sids = sorted({slot.sid for slot in dead})
            self._forget(sids)
            for slot in dead:
                slot.meta = meta_info(slot.rid, {"type": "abort", "matched": None}, {}, slot.logprobs)
                slot.meta["completion_tokens"] = slot.tokens
                state = slot.state
                if state is not None and state.failure is None:
                    state.failure = Failure(Cancelled(STOPPED, hint="Start the program again."))
                slot.settle()
            self.changed.notify_all()
        if dead:
            self._abort([*(slot.rid for slot in dead), *self.sharing.late()], sids)
            self._release_samples(dead)
        for slot in dead:
            self.log.append(GenDone(slot.rid, slot.meta))
        self._wake()

    def finish_if_over(self) -> None:
        """Log the end once the body has ended and nothing is under way."""
        with self.lock:
            over = self.body_done and not self.slots and not self.finished
            if over:
                self.finished = True
                self.status = self._final_status()
                self.changed.notify_all()
                callbacks, self._done_callbacks = self._done_callbacks, []
        if not over:
            return
        ended = time.monotonic()
        times = split_times(self.log.since(0), self.started_at, ended)
        self.append_event(RunFinished(self.status, ended - self.started_at, self.error, times))
        self._wake()
        self.on_wake = self.help_until = (
            None  # the driver knows the root state: a state must not keep itself alive
        )
        for callback in callbacks:
            callback()

    def cancel(self) -> None:
        """Mark the run as stopped and abort what is under way. The driver then throws into the program."""
        with self.lock:
            if self.finished or self.cancelled:
                return
            self.cancelled = True
            for state in list(self.states.values()):
                if state.failure is None:
                    state.failure = Failure(Cancelled(STOPPED, hint="Start the program again."))
            self.changed.notify_all()
            callbacks = list(self._cancel_callbacks)
        for callback in callbacks:
            callback()
        self.stop_generations()

    def stop(self) -> None:
        """``cancel`` by somebody who only waits: a body under way ends on its own driver."""
        self.cancel()
        self.finish_if_over()

    def end_cancelled(self) -> None:
        """End a cancelled run although its program still stands in host code; what it does later is refused."""
        with self.lock:
            self.body_done = True
        self.stop_generations()
        self.finish_if_over()

    def _final_status(self) -> str:
        if self.cancelled or isinstance(self.body_error, KeyboardInterrupt):
            self.error = self.error or Cancelled("The run was stopped; its text so far is kept.")
            return "stopped"
        if self.body_error is not None:
            return "failed"
        unread = [failure.error for failure in self.failures if not failure.seen]
        self.error = unread[0] if unread else None  # what the program read and survived is its own affair
        return "failed" if unread else "finished"

    def on_done(self, callback: Callable[[], None]) -> None:
        """Call ``callback()`` when the run has finished (at once if it has), on whichever thread ends it."""
        with self.lock:
            if not self.finished:
                self._done_callbacks.append(callback)
                return
        callback()

    def on_cancel(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call ``callback()`` when the run is cancelled (at once if it was); returns the function that ends it."""
        with self.lock:
            self._cancel_callbacks.append(callback)
            late = self.cancelled
        if late:
            callback()

        def forget() -> None:
            with self.lock:
                self._cancel_callbacks.remove(callback)

        return forget

    def append_event(self, event: Event) -> None:
        """Log an event."""
        self.log.append(event)

    def new_root(self) -> str:
        """The seed path of a further root state: numbered in the order in which programs are called."""
        with self.lock:
            self._roots += 1
            return f"0.{self._roots}"
