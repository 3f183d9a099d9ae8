"""What states, branches, programs, runs and expressions answer when they are asked for a name they have not, and what Tab
offers behind them.

Notebook process; base classes of the objects users hold. Python asks here only after it has found nothing, so that names
which exist cost nothing. The error is an AttributeError too: ``hasattr`` works. Names that begin with an underscore get
Python's own, since only tools look for them. Nothing is read, sent or waited for here.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from sgnb.errors import UnknownAttribute
from sgnb.lang.api import DSL_NAMES
from sgnb.lang.frontend.state_uses import STATE_METHODS
from sgnb.lang.position import here, internal

internal(__name__)

GROUP_NAMES = ("join", "parent", "states")
PROGRAM_NAMES = ("run", "run_async", "run_batch", "stream", "bind", "trace")
RUN_NAMES = ("result", "cancel", "stream", "state", "value", "status", "done", "error", "log")
_APPENDING = ("append", "add", "extend", "write", "put", "insert", "push")
_READING = {
    "get": 's["x"] reads a variable, and "x" in s asks whether it is bound.',
    **dict.fromkeys(
        ("keys", "values", "items", "variables", "vars"), 's.names() lists the variables, s["x"] reads one.'
    ),
    **dict.fromkeys(("meta", "meta_info"), 'Write s.get_meta_info("x").'),
    **dict.fromkeys(("prompt", "content", "output"), "All that was appended is s.text()."),
    **dict.fromkeys(("history", "turns", "chat"), "The turns are s.messages()."),
    **dict.fromkeys(("stream", "iter", "tokens"), "s.text_iter() gives the text piece by piece as it comes."),
    **dict.fromkeys(("variable", "var", "read"), 's["x"] reads a variable.'),
    **dict.fromkeys(("run", "trace", "bind"), "A program has that, not the state it runs on."),
    **dict.fromkeys(("result", "return_value"), "What the body returned is s.ret_value."),
}


def _nearest(name: str, known: Iterable[str]) -> str:
    return next(iter(difflib.get_close_matches(name, list(known), 1)), "")


def _pass_by(owner: object, name: str) -> None:
    """Raise Python's own error for what no user writes, and the one of a property that failed."""
    if hasattr(type(owner), name):
        object.__getattribute__(owner, name)
    if name.startswith("_"):
        raise AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}")


def _shown(owner: object, names: Iterable[str]) -> list[str]:
    """What Tab offers: what users call, and what Python itself asks for."""
    return sorted({*names, *(name for name in object.__dir__(owner) if name.startswith("__"))})


def _unknown(what: str, name: str, near: str, hint: str) -> UnknownAttribute:
    question = f" Did you mean {near!r}?" if near else ""
    return UnknownAttribute(f"{what} has no attribute {name!r}.{question}", hint=hint, position=here())


def _of_state(name: str, variables: Iterable[str]) -> UnknownAttribute:
    if name in variables:
        return _unknown("A state", name, "", f's["{name}"] reads the variable.')
    if name in _APPENDING:
        return _unknown("A state", name, "", "Append with +=: s += ….")
    if name in DSL_NAMES:
        return _unknown("A state", name, "", f"What is appended is an expression: s += {name}(…).")
    near = "" if name in _READING else _nearest(name, (*STATE_METHODS, "ret_value"))
    listed = f"It has: {', '.join((*STATE_METHODS, 'ret_value'))}."
    return _unknown("A state", name, near, _READING.get(name, listed))


class NamesOfState:
    """For ``State``."""

    def __dir__(self) -> list[str]:
        return _shown(self, (*STATE_METHODS, "ret_value"))

    if not TYPE_CHECKING:  # a checker would take every name for one that exists

        def __getattr__(self, name: str) -> object:
            _pass_by(self, name)
            raise _of_state(name, self.__dict__.get("_values", ()))


class NamesOfGroup:
    """For ``Group``."""

    def __dir__(self) -> list[str]:
        return _shown(self, GROUP_NAMES)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            _pass_by(self, name)
            hint = f"Branches have {', '.join(GROUP_NAMES)}; go through them, or index one."
            if name in _APPENDING or (name in DSL_NAMES and name != "text"):
                hint = "Append to each branch with +=: branches += …."
            elif name in STATE_METHODS or any(name in state.names() for state in self.__dict__["states"]):
                one = f"b.{name}()" if name in STATE_METHODS else f'b["{name}"]'
                hint = f"Ask each branch: [{one} for b in branches]."
            raise _unknown("A group of branches", name, _nearest(name, GROUP_NAMES), hint)


class NamesOfProgram:
    """For ``SglFunction``."""

    def __dir__(self) -> list[str]:
        return _shown(self, PROGRAM_NAMES)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            _pass_by(self, name)
            own = "" if name not in STATE_METHODS else " A run gives a state, which has it."
            raise _unknown(
                "A program", name, _nearest(name, PROGRAM_NAMES), f"It has: {', '.join(PROGRAM_NAMES)}.{own}"
            )


class NamesOfRun:
    """For ``Run``."""

    def __dir__(self) -> list[str]:
        return _shown(self, RUN_NAMES)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            _pass_by(self, name)
            hint = f"It has: {', '.join(RUN_NAMES)}."
            if name in STATE_METHODS:
                hint = f"Its state has: run.result().{name}(…), at the end, or run.state.{name}(…)."
            raise _unknown("A run", name, _nearest(name, RUN_NAMES), hint)

        def __getitem__(self, name: object) -> object:
            raise UnknownAttribute(
                f"A run has no variables, so no {name!r}; its state has.",
                hint=f"Read it at the end: run.result()[{name!r}], or as it comes: run.state[{name!r}].",
                position=here(),
            )
