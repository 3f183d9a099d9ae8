"""How a file of peer programs collects them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Case = tuple[str, Any, tuple[Any, ...], dict[str, Any], Any, list[Any] | None]
"""Name, program, its arguments, answers of the model (end of prompt → text), a list of arguments for ``run_batch``."""


def collect() -> tuple[list[Case], Callable[..., Callable[[Any], Any]]]:
    """An empty list, and the decorator ``@case(arguments…, answers=…, batch=…)`` that adds a program to it."""
    cases: list[Case] = []

    def case(
        *args: Any, answers: Any = None, batch: list[Any] | None = None, **kwargs: Any
    ) -> Callable[[Any], Any]:
        def add(program: Any) -> Any:
            name = getattr(program, "__name__", "") or program.func.__name__
            cases.append((name, program, args, kwargs, answers or {}, batch))
            return program

        return add

    return cases, case
