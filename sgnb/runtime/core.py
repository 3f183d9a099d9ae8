"""The inside of a run: its recorder, its outstanding generations, its end.

Notebook process. States record operations here, drivers flush and wait here, a backend's thread delivers events here.
Made in layers: ``runtime.waiting``, ``failing``, ``ending``, and in this module what is recorded, sent and answered. No
frames and no generators here: those belong to ``runtime.dispatcher``.
"""

from __future__ import annotations

import copy
import itertools
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sgnb.backends.base import Backend, BackendEvent, Delta, Done, Failed, Requeued, Started
from sgnb.errors import SgnbError
from sgnb.lang.block import ChosenOp, GenOp, HostOp, Op, SelectOp, SharedOp, TextOp, heirs
from sgnb.lang.lower import lower
from sgnb.lang.passes import PASSES, Pass, PassRecord, optimize
from sgnb.lang.passes.commit_prefixes import MIN_CHARS
from sgnb.lang.position import internal, position_of
from sgnb.runtime.credits import credits_of
from sgnb.runtime.ending import Ending
from sgnb.runtime.events import (
    GenDelta,
    GenDone,
    GenHeld,
    GenRequeued,
    GenStarted,
    RunStarted,
)
from sgnb.runtime.meta import default_seed, meta_info
from sgnb.runtime.variables import Slot
from sgnb.runtime.waiting import current_core

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

_numbers = itertools.count(1)


def chosen(options: tuple[str, ...], event: Done) -> str:
    """The option that a finished choice takes; empty for a generation, and for a choice that was stopped."""
    choice = event.meta.get("choice")
    return options[choice] if options and isinstance(choice, int) else ""


CORES: weakref.WeakSet[Core] = weakref.WeakSet()
"""Every run that somebody holds."""


class Notebook:
    """What a program's run is called after: the cell that runs it. The extension says which that is."""

    cell_number: Callable[[], str] = staticmethod(lambda: "")


class Core(Ending):
    """One execution. See the module for who calls what on which thread."""

    def __init__(
        self,
        backend: Backend,
        *,
        title: str = "",
        cell: str = "",
        item: str = "",
        defaults: Mapping[str, Any] | None = None,
        seed: int | None = None,
        passes: Sequence[Pass] = PASSES,
        extra_key: str = "",
        priority: int = 0,
    ) -> None:
        super().__init__(backend)
        self.id = f"run{next(_numbers)}"
        CORES.add(self)
        self.title = title
        self.cell = cell
        self.item = item
        """Which one of a batch it is, for its requests' names: ``12.3 label``."""
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
        self.begun: set[str] = set()
        """Sessions that have sent a generation since credit counts."""
        self._told_held: set[str] = set()
        self.owed: dict[str, int] = {}
        """Tokens of text that left without a generation, about, by session."""
        self.priority = priority
        asked = time.monotonic()
        self.credits = credits_of(backend)
        self.backend_seconds = time.monotonic() - asked
        """Waited for the backend: the one of a cell may start an engine when it is asked for the first time, here."""
        self._chars = 0
        """Characters of text in ``pending``."""
        self.submitting = False
        """True while a block is being handed over."""
        self.kept_states: list[State] | None = None
        """States opened from now on are kept here, where a view wants to fork them later; None: nobody does."""
        self.keeps_branches = False
        """True for a cell, whose reader sees every branch: one that no name holds any more goes on to its end."""
        self.state_count = 0
        self._roots = 0
        self.eager = False
        self.pins = 0
        self.messages_sent = 0
        self.names: frozenset[str] | None = None
        """All variables the program can bind, when its graph shows them for certain."""
        self.loops = 0
        """Event loops that ``async`` bodies of this run have open."""

    def branch_label(self, branch: str) -> str:
        """A branch in the name of its requests; of a batch, below its item."""
        return ".".join(filter(None, (self.item, branch)))

    # ------------------------------------------------------------ recording

    def record(self, op: Op) -> None:
        """Add an operation to the block under construction."""
        with self.lock:
            self.pending.append(op)
            if type(op) is TextOp:
                self._chars += len(op.text)
            elif type(op) is GenOp or type(op) is SelectOp:
                self._gens_pending = True
            full = len(self.pending) >= MAX_BLOCK_OPS
        if full:
            self.flush()

    def add_slot(self, slot: Slot) -> None:
        """A generation is under way from now on. Waits while too many are (Cancelled if the run is stopped)."""
        if len(self.slots) >= MAX_OUTSTANDING:
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
            block: list[Op] = []
            with self.lock:
                ops, self.pending, self._gens_pending, self._chars = self.pending, [], False, 0
                ops, self.held = self.held + self._optimized(ops), []
            try:
                with self.lock:
                    block, self.held = (ops, []) if everything else self.credits.take(self, ops)
                self._tell_held()
                if block:
                    self.sharing.note([op for op in block if type(op) is SharedOp])
                    self.backend.submit(lower(self.id, block, self.priority), self.on_events)
                    self.messages_sent += 1
            except SgnbError as error:
                gens = [op for op in block if isinstance(op, GenOp | SelectOp)]
                self.credits.refused([op.rid for op in gens])
                places = [op.place for op in gens]
                if len(places) == 1 and places[0] is not None and error.position is None:
                    error = copy.copy(error)  # it may be the engine's end, which is not of this place alone
                    error.position = position_of(places[0])
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

    def _tell_held(self) -> None:
        """Tell once of each generation that waits for KV, or behind one that does."""
        for op in [*self.held]:
            if isinstance(op, GenOp | SelectOp) and op.rid not in self._told_held:
                self._told_held.add(op.rid)
                self.log.append(GenHeld(op.rid))

    def abort_held(self) -> int:
        """End the generations that wait for credit as if the engine had aborted them; how many."""
        with self._submit_lock, self.lock:
            dead = [op for op in self.held if isinstance(op, GenOp | SelectOp | SharedOp)]
            rids = {op.rid for op in dead}
            self.held = [op for op in self.held if getattr(op, "rid", None) not in rids]
        if dead:
            self.on_events([Done(op.rid, {"type": "abort", "matched": None}, {}) for op in dead])
            self.flush()  # what is left costs nothing
            if not self.held:
                self.credits.forget(self)
        return len(dead)

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
            if self.kept_states is not None:
                self.kept_states.append(state)
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
        if self.body_done and not self.over:
            self.flush()
            if not self.pending and not self.held:
                self.finish_if_over()

    # ------------------------------------------------------------ the backend's thread

    def on_events(self, events: Sequence[BackendEvent]) -> None:
        """Take a backend's events. The log hears of them before any reader does."""
        self.credits.note(events)
        for event in self.sharing.spread(events):
            if event.__class__ is Failed and event.sid and not event.rid:
                self.fail_sessions({event.sid}, event.error)
                continue
            slot = self.slots.get(event.rid)
            if slot is None:
                continue
            if event.__class__ is Delta:
                self._on_delta(slot, event)
            elif event.__class__ is Done:
                self._on_done(slot, event)
            elif event.__class__ is Failed:
                self.fail_slot(slot, event.error)
            elif event.__class__ is Started:
                self.log.append(GenStarted(event.rid, event.prompt, event.cached, event.text))
            elif event.__class__ is Requeued:
                self.log.append(GenRequeued(event.rid))
        self.tell()
        self.finish_if_over()

    def _on_delta(self, slot: Slot, event: Delta) -> None:
        if slot.options:
            return  # the winner comes with Done
        scored = [token for token in event.tokens if token.logprob is not None]
        logprobs = tuple([(token.id, token.logprob, token.top) for token in scored])
        details = event.tokens if logprobs else ()
        self.log.append(GenDelta(event.rid, event.text, len(event.tokens), logprobs, details))
        with self.lock:
            if not slot.settled:
                slot.tokens += len(event.tokens)
                slot.ids += [token.id for token in event.tokens]
                slot.logprobs += scored
                if event.text:
                    slot.chunks.append(event.text)
                    slot.marks.append((slot.tokens, len(slot.logprobs)))

    def _on_done(self, slot: Slot, event: Done) -> None:
        meta = meta_info(event.rid, event.finish, event.meta, slot.logprobs)
        winner = chosen(slot.options, event)
        if winner:
            self.log.append(GenDelta(event.rid, winner))
        self.log.append(GenDone(event.rid, meta, event.prompt))
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
        if slot.sample:
            self._release_samples([slot])
        if state is not None and state.joined:
            state.close_soon()

    def read(self, slot: Slot) -> str:
        """The text of a generation, waited for on this thread; raises its error."""
        if not slot.settled:
            self.flush()
            self.wait(lambda: slot.settled)
            self.check_cancelled()
        return slot.value()

    def new_root(self) -> str:
        """The seed path of a further root state: numbered in the order in which programs are called."""
        with self.lock:
            self._roots += 1
            return f"0.{self._roots}"


def abort_held(backend: Backend) -> int:
    """Abort what the runs of a backend hold back until KV is free; how many generations that were."""
    books = credits_of(backend)
    return sum(core.abort_held() for core in list(CORES) if core.credits is books)
