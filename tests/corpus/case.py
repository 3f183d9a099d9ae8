"""A program of the corpus: what to run and what the scripted backend answers. ``note()`` records host effects."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Case:
    """One program with its arguments."""

    name: str
    program: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    script: Any
    eager: str
    """Part of the reason when it is known to run eagerly, else empty."""


@dataclass
class Notes:
    """What host code of the running program did, in order."""

    lines: list[str] = field(default_factory=list)


CASES: list[Case] = []
MODULES = ("straight", "control", "calls", "failures", "hosts", "branches", "shapes")
notes = Notes()


def note(*values: object) -> None:
    """Host code with an effect that a test can see."""
    notes.lines.append(" ".join(map(str, values)))


def load() -> list[Case]:
    """Every program of the corpus."""
    for module in MODULES:
        importlib.import_module(f"corpus.{module}")
    return CASES


def case(*args: Any, script: Any = None, eager: str = "", **kwargs: Any) -> Callable[[Any], Any]:
    """Add the program to the corpus."""

    def add(program: Any) -> Any:
        name = f"{program.__module__.rpartition('.')[2]}.{program.__name__}"
        CASES.append(Case(name, program, args, kwargs, script, eager))
        return program

    return add
