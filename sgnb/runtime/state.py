"""A state: text, variables and the engine session behind them.

Notebook process; what users hold and append to. Every operation is recorded in the state's run (``runtime.core``); reads
wait for the one thing they need. A state outlives its run: an append in a later cell is recorded in that cell's run, or
in one of its own. When a state is collected its session is released. No scheduling here.
"""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sgnb.backends.base import Backend, TemplateInfo
from sgnb.config import MAX_FORK_DEPTH, MAX_FORK_WIDTH
from sgnb.errors import LimitError, ProgramError, ProgramTypeError
from sgnb.lang import api
from sgnb.lang.block import ForkOp, InitOp
from sgnb.lang.position import Place, internal, place_of, position_of, user_frame
from sgnb.runtime.appending import Appending, check_unicode
from sgnb.runtime.collect import SessionHandle, start_collector
from sgnb.runtime.core import MAX_REFUSED, Core
from sgnb.runtime.events import StateOpened
from sgnb.runtime.turns import Step
from sgnb.runtime.variables import Failure, Lazy, Slot
from sgnb.runtime.waiting import current_core
from sgnb.runtime.wrong_names import NamesOfState
from sgnb.sampling_params import SamplingParams

if TYPE_CHECKING:
    from sgnb.runtime.fork import CopyScope, Group
    from sgnb.runtime.marks import Mark

internal(__name__)

LIVE: weakref.WeakSet[State] = weakref.WeakSet()
"""Every state that somebody holds."""
_serials = itertools.count(1)


class State(NamesOfState, Appending):
    """What a program appends to. Made by the runtime; ``state["x"]`` and ``state.text()`` wait for what they give."""

    def __init__(
        self,
        core: Core,
        branch: str = "",
        path: str = "0",
        *,
        defaults: Mapping[str, Any] | None = None,
        seed: int | None = None,
        parent: State | None = None,
    ) -> None:
        self.core = core
        self.branch = branch
        self.path = path
        self.backend: Backend = core.backend
        self.defaults = dict(core.defaults if defaults is None else defaults)
        self.samples: int = self.defaults.pop("n", 1)
        """How many samples a generation has that does not say."""
        self.seed = core.seed if seed is None else seed
        self._template: TemplateInfo | None = None
        self.sid = self.backend.new_sid()
        self.ret: Any = None
        self.failure: Failure | None = None
        self.role: str | None = None
        self._pieces: list[str | Slot] = []
        self._turn_start = 0
        self._turns: list[tuple[str, list[str | Slot]]] = []
        self._values: dict[str, Any] = {}
        self._gens = 0
        self._made: dict[tuple[tuple[str, Any], ...], SamplingParams] = {}
        self._unnamed = 0
        self._refused = 0
        self._history: list[Step] = []
        self.is_branch = parent is not None
        self.joined = False
        """True after a join: it can be read, nothing can be appended."""
        self.joined_kv = ""
        """``approximate`` after a join with ``method="kv"``; ``exact`` once nothing of the copied KV is left, and what was
        joined has been computed."""
        self.sent = True
        """False while what is appended is in the session already: a join by KV."""
        self.depth = 0
        self._forks = 0
        self.rewound = 0
        """How often it went back to a mark: what comes then has other seeds."""
        self.serial = next(_serials)
        self._forked_at = 0
        """Where in the history a branch begins."""
        self._inherited: dict[str, Any] = {}
        start_collector()
        self._handle = SessionHandle(core, self.sid)
        self._marks: weakref.WeakSet[Mark] = weakref.WeakSet()
        """Those that somebody holds: they end with the state."""
        if parent is not None:
            self._copy(parent)
        self.number = core.open_state(self)
        if parent is None:
            core.append_event(StateOpened(self.number, branch))
        else:
            core.append_event(StateOpened(self.number, branch, parent.number, parent._forks))
        if parent is None:
            core.record(InitOp(self.sid, None, core.extra_key))
        self._finalizer = weakref.finalize(self, self._handle.collected)
        LIVE.add(self)
        self._finalizer.atexit = False  # the engine forgets the sessions of a process that ends

    def _copy(self, parent: State) -> None:
        """Take over what a branch begins with."""
        self._template = parent._template
        self.samples = parent.samples
        self.role = parent.role
        self.failure = parent.failure
        self._pieces = list(parent._pieces)
        self._history = list(parent._history)
        self._forked_at = len(self._history)
        self._turns = list(parent._turns)
        self._turn_start = parent._turn_start
        self._values = dict(parent._values)
        self._inherited = dict(parent._values)
        self._unnamed = parent._unnamed
        self._made = parent._made
        self.depth = parent.depth + 1
        self.joined_kv = parent.joined_kv

    # ------------------------------------------------------------ appending

    def __iadd__(self, other: object) -> State:
        self.append_expr(api.as_expr(other), place_of(user_frame()))
        return self

    def append_expr(self, expr: api.Expr, place: Place) -> Any:
        """Record an expression; for a single generation its lazy value is returned."""
        parts = api.flatten(expr)
        self._check_roles(parts, place)
        check_unicode(parts, place)
        core = self.writable(place)
        while core is not None and core is not current_core() and not core.enter_append():
            core = self.writable(place)  # it ended at this moment
        if core is None:
            slot = Slot(self.core, self, "", "", place)
            slot.settle(self.failure)
            for part in parts:
                if isinstance(part, api.Gen | api.Select):
                    self._values[part.name or self._auto_name()] = slot
            return Lazy(slot)
        try:
            return self._append_parts(core, parts, place)
        finally:
            if core is not current_core():
                core.leave_append()

    def _append_parts(self, core: Core, parts: Sequence[api.Expr], place: Place) -> Any:
        lazy = None
        for part in parts:
            if isinstance(part, api.Text):
                self._add_text(core, part, place)
            elif isinstance(part, api.Tokens):
                self._add_tokens(core, part, place)
            elif isinstance(part, api.Gen):
                lazy = self._add_gen(core, part, place)
            elif isinstance(part, api.Select):
                lazy = Lazy(self._add_select(core, part, place))
            elif isinstance(part, api.RoleBegin):
                self._begin(core, part.role, place)
            elif isinstance(part, api.RoleEnd):
                self._end(core, place)
        core.recorded(self)
        return lazy

    def writable(self, place: Place) -> Core | None:
        """The run that records the next operation; None when the state is poisoned and drops it."""
        if self.joined:
            raise ProgramError(
                f"Branch {self.branch} was joined; nothing can be appended to it any more.",
                hint="Append to the parent, or append before the join.",
                position=position_of(place),
            )
        if not self._finalizer.alive:
            raise ProgramError(
                "This state was closed; its text can be read, nothing can be appended to it.",
                hint="Save it with state.save(path): sgnb.load_state(path) gives one that goes on.",
                position=position_of(place),
            )
        if self.failure is not None:
            self._refused += 1
            if self._refused > MAX_REFUSED:
                self.failure.throw()
            return None
        running = current_core()
        if running is not None and running is not self.core:
            self.core.end_if_idle()
        if self.core.over:
            if running is None or running.backend.carrier is not self.backend.carrier:
                running = Core(self.backend, title="state", defaults=self.core.defaults)
            self._move(running)
        return self.core

    def enter_run(self, core: Core) -> None:
        """Go on in the run of a later cell, which appends to it from now on; its sampling defaults come on top."""
        self.core.flush(everything=True)  # what this run held would come after what the next one sends
        self.defaults.update(core.defaults)
        self.samples = self.defaults.pop("n", self.samples)
        self._made = {}
        self.core = self._handle.core = core
        self.number = core.open_state(self)
        core.append_event(StateOpened(self.number, self.branch))

    def _move(self, core: Core) -> None:
        """Go on in another run: the one of a later cell, or one of the state's own."""
        if core is self.core:
            return
        own = core is not current_core()
        self.core.flush()  # text behind its last generation
        self.core = self._handle.core = core
        self.number = core.open_state(self)
        if own:
            core.begin_own(self)
        core.append_event(StateOpened(self.number, self.branch))

    def _slot(
        self, core: Core, name: str, place: Place, sid: str = "", options: tuple[str, ...] = ()
    ) -> Slot:
        return Slot(core, self, self.backend.new_rid(), name, place, sid=sid, options=options)

    # ------------------------------------------------------------ the end

    @property
    def open(self) -> bool:
        """True while it has a session: until it is closed, or joined and idle."""
        return self._finalizer.alive

    def inherit(self, slot: Slot) -> None:
        """A generation that this state was forked behind, whose own state is gone: it ends when this one is closed."""
        self._handle.add(slot)

    def close(self) -> None:
        """Stop what is under way and release the engine's session now; the text stays readable. Idempotent."""
        if self._finalizer.detach() is not None:
            self._handle.close()
            for mark in list(self._marks):
                mark.close()

    def close_soon(self) -> None:
        """``close`` for a backend's thread, if nothing is under way any more."""
        if not self.open_slots() and self._finalizer.detach() is not None:
            self._handle.close_soon()
            for mark in list(self._marks):
                mark.close_soon()

    def close_when_idle(self) -> None:
        """Release the session as soon as nothing is under way: a joined branch is only read."""
        if not self.open_slots():
            self.close()

    def __enter__(self) -> State:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------ branches

    def fork(self, size: int = 1, position_ids_offset: list[int] | None = None) -> Group:
        """``size`` branches that begin with this state's text and variables; then all go their own ways.

        At most 1,024 wide and 32 deep. ``position_ids_offset`` is SGLang's; it changes nothing there, nor here.
        """
        from sgnb.runtime.fork import Group  # noqa: PLC0415  a group is made of states

        place = place_of(user_frame())
        self.check_fork(size, place)
        core = self.writable(place)
        number, self._forks = self._forks, self._forks + 1
        children = [self._branch(core or self.core, number, index) for index in range(size)]
        if core is not None:
            core.record(ForkOp(self.sid, tuple(child.sid for child in children), place))
            self._bequeath(core, children)
            core.recorded(self)
        return Group(self, children)

    def check_fork(self, size: object, place: Place) -> None:
        """Refuse what is no number of branches, or too many or too deep."""
        if type(size) is not int:
            raise ProgramTypeError(
                f"fork() takes a number of branches, not {type(size).__name__}.", position=position_of(place)
            )
        if not 1 <= size <= MAX_FORK_WIDTH:
            raise LimitError(
                f"A fork has 1 to {MAX_FORK_WIDTH} branches, not {size}.",
                hint="Give another number, or fork the branches again.",
                position=position_of(place),
            )
        if self.depth >= MAX_FORK_DEPTH:
            raise LimitError(
                f"Forks are nested {MAX_FORK_DEPTH} deep already.",
                hint="Join, or go on in a program with a state of its own.",
                position=position_of(place),
            )

    def _branch(self, core: Core, number: int, index: int) -> State:
        """A branch: its name for people counts branches, its seed path also the forks."""
        name = f"{self.branch}.{index}" if self.is_branch else str(index)
        path = f"{self.path}~{self.rewound}" if self.rewound else self.path
        path = f"{path}/{number}.{index}"
        return State(core, name, path, defaults=self.defaults, seed=self.seed, parent=self)

    def _bequeath(self, core: Core, children: Sequence[State]) -> None:
        """What is still under way here ends for the branches as it ends for this state, and is not dropped."""
        for slot in self.open_slots():
            with slot.core.lock:
                if not slot.settled:
                    slot.hold()
                    slot.also += (self, children[0])  # a pass may fork the others from the first
                    slot.heirs += map(weakref.ref, children)
        failure = self.failure
        if failure is not None:
            for child in children:
                if child.failure is None:
                    core.poison(child, failure.error, None, failure)

    def copy(self) -> CopyScope:
        """``with s.copy() as c:`` is a fork of one branch, joined at the end of the block."""
        from sgnb.runtime.fork import CopyScope  # noqa: PLC0415

        return CopyScope(self)

    def mark(self) -> Mark:
        """This place, to come back to with ``rewind``. Raises the state's error if it has failed."""
        from sgnb.runtime.marks import make_mark  # noqa: PLC0415

        place = place_of(user_frame())
        core = self.writable(place)
        if core is None:
            assert self.failure is not None
            self.failure.throw()
        return make_mark(self, core, place)

    def rewind(self, mark: Mark) -> None:
        """Go back to a mark: text, variables and turns are as they were; the same mark can be used again.

        What is under way since then is stopped, and an error since then is forgotten.
        """
        from sgnb.runtime.marks import rewind  # noqa: PLC0415

        rewind(self, mark, place_of(user_frame()))

    def fork_at(self, name: str, tokens: int) -> State:
        """A new state that begins as this one up to token ``tokens`` of the finished generation ``name``.

        It has the very token ids (none is tokenised again), so the engine finds them cached as long as they are; it is
        nobody's branch, and has no variables. A token that ends inside a character is left out, with a note.
        """
        from sgnb.runtime.tokens import fork_at  # noqa: PLC0415  it makes states

        return fork_at(self, name, tokens, place_of(user_frame()))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write text, variables, messages and meta to a JSON file; ``sgnb.load_state`` reads it."""
        from sgnb.runtime.saved import save_state  # noqa: PLC0415

        save_state(self, path)

    def repeat(self, steps: Sequence[Step], place: Place) -> None:
        """Append what another state had appended; texts it generated are literal."""
        for step in steps:
            if isinstance(step, Slot):
                self.append_expr(api.Text(step.text, literal=True), place)
            else:
                self.append_expr(step, place)

    @property
    def began_empty(self) -> bool:
        """A branch of a state without text."""
        return not self._history[: self._forked_at]

    def freeze(self) -> list[Step]:
        """End a branch: nothing more is appended. Returns what was, since it began."""
        self.joined = True
        return self._history[self._forked_at :]

    def __str__(self) -> str:
        return f"ProgramState({self.text()})"  # as SGLang's, whose programs cut the text out of it

    def __repr__(self) -> str:
        names = ", ".join(map(repr, self._values))
        return f"<State {self.branch or 'root'}: {len(self.text_so_far())} characters, variables {names or 'none'}>"
