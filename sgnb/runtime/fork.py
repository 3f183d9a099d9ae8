"""Branches of a state as a group, and what comes back from them.

Notebook process; made by ``State.fork`` and ``State.copy``. A join never waits for ``gather_variable`` (its lists are read
later), and waits for the branches' texts for ``concate_and_append``. The sessions of joined branches end when they are idle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn, overload

from sgnb.errors import ProgramError, ProgramTypeError, SgnbError, UnknownAttribute
from sgnb.lang import api
from sgnb.lang.position import Place, here, internal, line_of, place_of, position_of, user_frame
from sgnb.runtime.best import best_of, take_best
from sgnb.runtime.events import BranchesJoined
from sgnb.runtime.kv_join import join_kv, refuse_kv
from sgnb.runtime.state import State
from sgnb.runtime.variables import Deferred, Slot, meta_of, open_slots_of, read_value
from sgnb.runtime.wrong_names import NamesOfGroup

internal(__name__)

MODES = ("gather_variable", "concate_and_append", "best")
METHODS = ("text", "kv")
By = str | Callable[[State], float] | None
"""How ``join("best")`` compares: a variable's name, a function of the branch, or its log-probability."""
_MISSING = object()


class Group(NamesOfGroup):
    """The branches of one fork: index it, go through it, append to all, join."""

    def __init__(self, parent: State, states: list[State]) -> None:
        self.parent = parent
        self.states = states
        self.told = True
        """Its join is an event of the run."""

    def __len__(self) -> int:
        return len(self.states)

    def __iter__(self) -> Iterator[State]:
        return iter(self.states)

    @overload
    def __getitem__(self, key: int) -> State: ...
    @overload
    def __getitem__(self, key: slice) -> list[State]: ...
    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, int | slice):
            return self.states[key]
        raise ProgramTypeError(
            f"Branches are numbered; {key!r} is no number.",
            hint=f"Write [b[{key!r}] for b in branches], or join and read the list from the parent.",
            position=here(),
        )

    def __setitem__(self, key: int, value: State) -> None:
        # `branches[i] += e` stores what `+=` gave: the same state.
        if self.states[key] is not value:
            raise ProgramError("A branch cannot be replaced.", position=here())

    def __delitem__(self, key: object) -> NoReturn:
        raise ProgramError(
            "A branch cannot be taken out of its group.",
            hint="Close it: branches[i].close(); a join has None for what it lacks.",
            position=here(),
        )

    def __iadd__(self, other: Any) -> Group:
        place = place_of(user_frame())
        if isinstance(other, list | tuple):
            if len(other) != len(self.states):
                raise ProgramError(
                    f"{len(other)} expressions for {len(self.states)} branches.",
                    hint="Give one for each branch, or one for all.",
                    position=position_of(place),
                )
            for state, expr in zip(self.states, other, strict=True):
                state.append_expr(api.as_expr(expr), place)
        elif callable(other) and not isinstance(other, api.Expr):
            for number, state in enumerate(self.states):
                state.append_expr(api.as_expr(other(number)), place)
        else:
            expr = api.as_expr(other)
            for state in self.states:
                state.append_expr(expr, place)
        return self

    if not TYPE_CHECKING:  # to a checker it would have to fit `+=`

        def __add__(self, other: object) -> Any:
            raise ProgramTypeError(
                "Branches cannot be added to something: they are appended to.",
                hint="To append to each write branches += ….",
                position=here(),
            )

    # ------------------------------------------------------------ the join

    def join(self, mode: str = "gather_variable", *, by: By = None, method: str = "text") -> None:
        """End the branches; they stay readable.

        ``gather_variable``: each variable bound since the fork becomes a list in the parent, one value a branch (None
        where a branch has not bound it); reading it raises the error of a failed branch. ``concate_and_append``: the
        texts of the branches since the fork are appended to the parent, in order, generations waited for; ``method="text"``
        is exact, ``method="kv"`` copies the branches' KV instead of computing them again, which is approximate (see
        ``joined_kv``) and works on an engine only. ``best``: the parent goes on as the branch of the highest value,
        with its text and variables; the others are released at once. ``by`` names a variable that holds a number, or
        is a function of a branch; without it the mean log-probability of the branch's generated tokens decides, which needs
        ``gen(return_logprob=True)``. Equal values: the first branch.
        """
        place = place_of(user_frame())
        for slot in self.waits_for(mode):
            slot.core.flush()
            slot.core.wait(lambda slot=slot: slot.settled)  # type: ignore[misc]
        self.join_at(mode, place, by=by, method=method)

    def waits_for(self, mode: str) -> list[Slot]:
        """What must have ended before the join can be carried out."""
        if mode not in ("concate_and_append", "best"):
            return []
        return [slot for state in self.states if not state.joined for slot in state.open_slots()]

    def join_at(self, mode: str, place: Place, *, by: By = None, method: str = "text") -> None:
        """``join`` when nothing has to be waited for."""
        self._check_join(mode, by, method, place)
        if mode == "gather_variable":
            self._passed(place)
            self._gather()
            for state in self.states:
                state.freeze()
        else:
            for state in self.states:
                if state.failure is not None and not state.stopped:
                    try:
                        state.failure.throw()
                    except SgnbError as error:
                        raise of_branch(error, state.branch) from None
            if mode == "best":
                winner = best_of(self.states, by, place)
                self._passed(place)
                take_best(self.parent, winner, self.states, place)
                return
            self._passed(place)
            if method == "kv":
                join_kv(self.parent, self.states, place)
            else:
                for state in self.states:
                    self.parent.repeat(state.freeze(), place)
        for state in self.states:
            for slot in state.open_slots():
                slot.hold()
            state.close_when_idle()
        self.parent.backend.carrier.note_join(len(self.states))

    def _passed(self, place: Place) -> None:
        """Tell the reader of the run; that a copy's block ended is none of their joins."""
        if self.told:
            core = self.parent.core
            numbers = tuple(state.number for state in self.states if state.core is core)
            core.append_event(BranchesJoined(self.parent.number, len(self.states), numbers, line_of(place)))

    def _check_join(self, mode: str, by: By, method: str, place: Place) -> None:
        position = position_of(place)
        if mode not in MODES:
            raise ProgramError(
                f"join(mode={mode!r}) is unknown.", hint=f"Modes: {', '.join(MODES)}.", position=position
            )
        if by is not None and mode != "best":
            raise ProgramError(
                f"join(by=…) has no meaning with mode={mode!r}.",
                hint='Write join("best", by=…), or leave it out.',
                position=position,
            )
        if by is not None and not isinstance(by, str) and not callable(by):
            raise ProgramTypeError(
                f"join(by=…) takes a variable's name or a function of the branch, not {by!r}.",
                hint="Write by='score', or by=lambda b: float(b['score']).",
                position=position,
            )
        if method not in METHODS:
            raise ProgramError(
                f"join(method={method!r}) is unknown.",
                hint=f"Methods: {', '.join(METHODS)}.",
                position=position,
            )
        if method == "kv":
            refuse_kv(self.parent, self.states, mode, position)
        if any(state.joined for state in self.states):
            raise ProgramError(
                "These branches were joined already.",
                hint="Fork again; what was joined is in the parent.",
                position=position,
            )

    def _gather(self) -> None:
        names: dict[str, None] = {}
        for state in self.states:
            for name, value in state._values.items():
                if state._inherited.get(name, _MISSING) is not value:
                    names[name] = None
        for name in names:
            items = []
            for state in self.states:
                value = state._values.get(name)
                fresh = value is not None and state._inherited.get(name, _MISSING) is not value
                items.append((state.branch, value if fresh else None))
            self.parent._values[name] = Joined(items)

    def __repr__(self) -> str:
        return f"<{len(self.states)} branches of {self.parent!r}>"


class Joined(Deferred):
    """A variable gathered from branches."""

    __slots__ = ("items",)

    def __init__(self, items: list[tuple[str, Any]]) -> None:
        self.items = items

    def open_slots(self) -> list[Slot]:
        """What is under way in any branch."""
        return [slot for _, value in self.items for slot in open_slots_of(value)]

    def read(self) -> list[Any]:
        """The values, in the order of the branches; raises the error of the first failed branch."""
        out = []
        for branch, value in self.items:
            try:
                out.append(read_value(value))
            except SgnbError as error:
                raise of_branch(error, branch) from None
        return out

    def meta(self) -> list[Any]:
        """One meta for each branch."""
        return [meta_of(value) for _, value in self.items]


def of_branch(error: SgnbError, branch: str) -> SgnbError:
    """The error (a copy made for this reader) with the branch's name."""
    if not error.message.startswith("branch "):
        error.message = f"branch {branch}: {error.message}"
    return error


class CopyScope:
    """``with s.copy() as c:``."""

    __slots__ = ("_group", "_state")

    def __init__(self, state: State) -> None:
        self._state = state
        self._group: Group | None = None

    def __enter__(self) -> State:
        self._group = self._state.fork(1)
        self._group.told = False
        return self._group.states[0]

    def __exit__(self, *_: object) -> None:
        assert self._group is not None
        if not self._group.states[0].joined:
            self._group.join_at("gather_variable", place_of(user_frame()))

    def __iadd__(self, other: object) -> Any:
        raise ProgramTypeError(
            "copy() is a block; nothing can be appended to it.",
            hint="Write `with s.copy() as c:` and use c; or fork: c = s.fork()[0].",
            position=here(),
        )

    if not TYPE_CHECKING:  # a checker would take every name for one that exists

        def __getattr__(self, name: str) -> object:
            if name.startswith("_"):
                raise AttributeError(name)
            raise UnknownAttribute(
                f"copy() is a block; it has no {name!r}.",
                hint="Write `with s.copy() as c:` and use c.",
                position=here(),
            )
