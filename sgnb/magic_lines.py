"""The line magic ``%sgl``: its subcommands, what each is given, and what is wrong in a line.

Notebook process; called by ``magics`` when a line runs, by ``edit_lines`` while it is typed: so both refuse the same in the
same words. What only the engine can say (whether there is one, whether it records) is for ``magics``. Nothing runs here.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from IPython.core.error import UsageError

from sgnb import knob_words, views
from sgnb.cell import named_state
from sgnb.magic_options import COMMANDS, LINE_USAGE, parse_launch, parse_record, split_line
from sgnb.runtime.function import SglFunction
from sgnb.runtime.run import Run
from sgnb.runtime.state import State

HELP = ("-h", "--help", "help")
Shown = SglFunction | State | Run


class Line(NamedTuple):
    """A subcommand, or ``help``, and what it was given: see the functions below."""

    command: str
    given: Any = None


def parse(line: str) -> Line:
    """What stands behind ``%sgl``; UsageError or LimitError on a mistake that the line alone shows."""
    words = split_line(line)
    if not words:
        raise UsageError(LINE_USAGE)
    command, rest = words[0], words[1:]
    if command in HELP:
        return Line("help")
    if command not in COMMANDS:
        near = difflib.get_close_matches(command, COMMANDS, 1)
        meant = f". Did you mean {near[0]!r}? " if near else "; "
        raise UsageError(f"%sgl: unknown command {command!r}{meant}{LINE_USAGE}")
    return Line(command, _GIVEN.get(command, _nothing)(command, rest))


def check_names(line: Line, namespace: Mapping[str, Any]) -> None:
    """UsageError where a name of the notebook that the line gives is not what it must be."""
    if line.command == "explain":
        program(namespace, line.given)
    elif line.command == "view" and line.given[1] is not None:
        shown(namespace, line.given[1])
    elif line.command == "states":
        named_states(namespace, line.given or [])


def program(namespace: Mapping[str, Any], name: str) -> SglFunction:
    """The program that ``%sgl explain`` names."""
    found = namespace.get(name)
    if not isinstance(found, SglFunction):
        raise UsageError(f"%sgl explain: {name!r} is not a program (@sgnb.function) of this notebook")
    return found


def shown(namespace: Mapping[str, Any], name: str) -> Shown:
    """What ``%sgl view graph`` names."""
    found = namespace.get(name)
    if not isinstance(found, Shown):
        raise UsageError(
            f"%sgl view graph: {name!r} is not a program (@sgnb.function) of this notebook, nor a state"
        )
    return found


def named_states(namespace: Mapping[str, Any], names: Sequence[str]) -> list[State]:
    """The states that ``%sgl states release`` names."""
    wanted = "%sgl states release takes names of states (%sgl states lists them)"
    return [named_state(namespace, name, wanted) for name in names]


# ---------------------------------------------------------------- what each subcommand is given


def _nothing(command: str, rest: list[str]) -> None:
    if rest:
        raise UsageError(f"%sgl {command}: unrecognized arguments: {' '.join(rest)}")


def _launch(command: str, rest: list[str]) -> tuple[str | None, dict[str, Any]]:
    """The model and the engine's arguments."""
    return parse_launch(rest)


def _stop(command: str, rest: list[str]) -> bool:
    """Whether it is stopped for other notebooks too."""
    _nothing(command, [word for word in rest if word not in ("--yes", "-y")])
    return bool(rest)


def _number(words: str) -> Callable[[str, list[str]], int | None]:
    """A whole number, or None where none is given."""

    def read(command: str, rest: list[str]) -> int | None:
        if len(rest) > 1 or not all(word.isdecimal() for word in rest):
            raise UsageError(
                f"%sgl {command} takes a number of {words}, for example: %sgl {command} {_SOME[command]}"
            )
        return int(rest[0]) if rest else None

    return read


_SOME = {"log": 50, "step": 5}


def _one(words: str) -> Callable[[str, list[str]], str]:
    """One name."""

    def read(command: str, rest: list[str]) -> str:
        if len(rest) != 1:
            raise UsageError(f"%sgl {command} takes {words}")
        return rest[0]

    return read


def _set(command: str, rest: list[str]) -> dict[str, Any]:
    """Values of knobs; none: they are listed."""
    return knob_words.parse_set(rest) if rest else {}


def _states(command: str, rest: list[str]) -> list[str] | None:
    """The states to release, none for all; None: they are listed."""
    if rest[:1] == ["release"]:
        return rest[1:]
    _nothing(command, rest)
    return None


def _record(command: str, rest: list[str]) -> Any:
    """See ``parse_record``."""
    return parse_record(rest)


def _view(command: str, rest: list[str]) -> tuple[str, str | None]:
    """Which view, and what of the notebook it shows."""
    if not rest or len(rest) > (2 if rest[0] == "graph" else 1) or rest[0] not in views.KINDS:
        raise UsageError("%sgl view takes tree, kv, timeline, or graph and the name of a program")
    return rest[0], rest[1] if len(rest) == 2 else None


_GIVEN: dict[str, Callable[[str, list[str]], Any]] = {
    "launch": _launch,
    "stop": _stop,
    "log": _number("lines"),
    "attach": _one("one name; %sgl engines lists them"),
    "set": _set,
    "step": _number("steps"),
    "states": _states,
    "record": _record,
    "explain": _one("the name of one program (@sgnb.function)"),
    "view": _view,
}
