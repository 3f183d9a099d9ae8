"""``join("best")``: which branch wins, and how its parent goes on as that branch.

Notebook process; used by ``runtime.fork``. The parent takes the winner's session over (a copy of ids and pending text costs
no tokens), unless it went on by itself since the fork: then the winner's text is appended to it. No waiting here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sgnb.errors import ProgramError, UnknownVariable
from sgnb.lang.block import ForkOp
from sgnb.lang.position import Place, internal, line_of, position_of
from sgnb.runtime.events import HostNote
from sgnb.runtime.state import State
from sgnb.runtime.variables import Slot, read_value

internal(__name__)

TAKEN = ("_pieces", "_history", "_turns", "_values", "_turn_start", "_unnamed", "role")
"""What makes a state's text and variables."""


def best_of(states: Sequence[State], by: str | Callable[[State], float] | None, place: Place) -> State:
    """The best of ``states``, all of which have ended. Raises ProgramError without a number."""
    values = [value_of(state, by, place) for state in states]
    return states[max(range(len(values)), key=values.__getitem__)]


def take_best(parent: State, winner: State, states: Sequence[State], place: Place) -> None:
    """Make ``parent`` go on as ``winner``, one of the branches ``states``, all of which have ended."""
    core = parent.writable(place)
    steps = winner.freeze()
    if core is not None and len(parent._history) == winner._forked_at:
        for name in TAKEN:
            value = getattr(winner, name)
            setattr(parent, name, value.copy() if isinstance(value, list | dict) else value)
        parent._template = parent._template or winner._template
        old, sid = parent.sid, parent.backend.new_sid()
        parent.sid = parent._handle.sid = sid
        if winner.core is not core:
            winner.core.flush(everything=True)  # the winner's last text
        core.record(ForkOp(winner.sid, (sid,), place, "none"))
        if winner.core is not core:
            core.flush(everything=True)  # before the other run ends the winner's session
        core.drop(old, ())
        core.append_event(
            HostNote(f"Branch {winner.branch} is the best; its parent goes on as it.", line_of(place))
        )
    elif core is not None:
        parent.repeat(steps, place)
        inherited = winner._inherited
        parent._values.update(
            {
                name: value
                for name, value in winner._values.items()
                if inherited.get(name, inherited) is not value
            }
        )
    for state in states:
        state.freeze()
        state.close()


def value_of(state: State, by: str | Callable[[State], float] | None, place: Place) -> float:
    """The number a branch is compared by."""
    if by is None:
        return mean_logprob(state, place)
    if callable(by):
        found: Any = by(state)
    else:
        if by not in state:
            raise UnknownVariable(
                f"branch {state.branch}: join(by={by!r}) names a variable that this branch has not bound.",
                hint=f"Bound: {', '.join(map(repr, state.names())) or 'none'}.",
                position=position_of(place),
            )
        found = read_value(state.find(by))
    try:
        number = float(found)
    except (TypeError, ValueError):
        number = float("nan")
    if number != number:
        raise ProgramError(
            f"branch {state.branch}: join(by=…) gave {str(found)[:60]!r}, which is no number.",
            hint="Give a function of the branch that returns a number: by=lambda b: float(b['score']).",
            position=position_of(place),
        )
    return number


def mean_logprob(state: State, place: Place) -> float:
    """The mean log-probability of what the branch generated; raises ProgramError where it was not asked for."""
    slots = [
        step for step in state._history[state._forked_at :] if isinstance(step, Slot) and not step.options
    ]
    missing = next((slot for slot in slots if slot.tokens and not slot.logprobs), None)
    if missing is not None or not slots:
        what = f"{missing.name!r} has none" if missing is not None else "it generated nothing"
        raise ProgramError(
            f'branch {state.branch}: join("best") compares log-probabilities, and {what}.',
            hint='Ask for them: gen(…, return_logprob=True), or say what to compare: join("best", by=…).',
            position=position_of(place),
        )
    values = [token.logprob for slot in slots for token in slot.logprobs if token.logprob is not None]
    return sum(values) / len(values) if values else float("-inf")
