"""Start of a ``%%sgl`` cell: its names, its generator, its run.

Notebook process; called by ``runtime.run.run_cell``. The cell's namespace is a copy of the user's, taken here: what the
cell binds stays the run's own.
"""

from __future__ import annotations

import linecache
import weakref
from collections.abc import Mapping, Sequence
from types import CellType, CodeType, FunctionType
from typing import Any

from sgnb.backends.base import Backend
from sgnb.errors import ProgramError, SgnbError, SourcePosition, a_type_of
from sgnb.lang.api import DSL_NAMES
from sgnb.lang.frontend.cell_checks import check_cell
from sgnb.lang.frontend.cells import (
    VALUE_NAME,
    CellSource,
    compile_as_it_stands,
    compile_cell,
    parse_cell,
)
from sgnb.lang.frontend.graph import parse_program
from sgnb.lang.passes import PASSES, Pass
from sgnb.lang.position import CELL_PREFIX, in_magic, internal
from sgnb.runtime.asynchronous import finish_body
from sgnb.runtime.core import Core
from sgnb.runtime.function import function
from sgnb.runtime.program import EAGER, hook_table
from sgnb.runtime.run import Run, begin, note
from sgnb.runtime.state import State
from sgnb.runtime.task import Frame, Result, enter_state, leave_state

internal(__name__)

MAX_CELLS = 2000
"""Texts of cells kept for tracebacks and for programs defined in them."""


def start_cell(
    text: str,
    *,
    cell_name: str,
    user_ns: Mapping[str, Any],
    backend: Backend,
    defaults: dict[str, Any],
    first_line: int,
    start: State | None = None,
    passes: Sequence[Pass] = PASSES,
    priority: int = 0,
    magic: str = "",
    bound: str = "",
) -> Run:
    """See ``runtime.run.run_cell``."""
    filename = f"{CELL_PREFIX}{cell_name}>"
    source = "\n" * (first_line - 1) + text
    if start is not None:
        check_start(start, backend, in_magic(filename, first_line - 1, magic, "--from"))
    keep_text(filename, source)
    cell = parse_cell(source, filename, in_magic(filename, first_line - 1, magic))
    check_cell(cell, user_ns)
    code, reason = _compile(cell)
    core = Core(
        backend,
        title=f"[{cell_name}]",
        cell=cell_name,
        defaults=defaults,
        seed=defaults.pop("seed", None),
        passes=passes,
        priority=priority,
    )
    core.keeps_branches = True
    begin(core, parse_program(cell.tree, filename=filename, name=f"[{cell_name}]") if code else None, reason)
    for name in shadowed(cell, user_ns):
        note(core, f"`{name}` means sgnb's in this cell; your variable of that name is hidden.")
    state = State(core) if start is None else start
    if start is not None:
        start.enter_run(core)
    core.bound = (bound, weakref.ref(state)) if bound else None
    namespace = {**user_ns, **DSL_NAMES, "function": function, "s": state}
    core.on_done([namespace].clear)  # branches in the cell's names finish, joined or not

    def enter() -> Frame | Result:
        if code is None:
            return _run_eagerly(core, cell, state, namespace)
        closure = tuple(CellType(hook_table[name]) for name in code.co_freevars)
        body = FunctionType(code, namespace, "<module>", None, closure)
        return Frame(body(), "the cell", state, own=True)

    return Run(core, state, enter)


def named_start(user_ns: Mapping[str, Any], name: str, line: int, magic: str) -> State:
    """The state that the magic line, ``line`` of its cell, says to go on with. ProgramError when there is none."""
    found = user_ns.get(name)
    if isinstance(found, State):
        return found
    what = "is not defined" if name not in user_ns else f"is {a_type_of(found)}"
    raise ProgramError(
        f"--from takes the name of a state; {name!r} {what}.",
        hint="`%%sgl -o NAME` gives the state of a cell a name; `%sgl states` lists them.",
        position=in_magic(f"{CELL_PREFIX}>", line, magic, "--from"),
    )


def check_start(state: State, backend: Backend, position: SourcePosition | None) -> None:
    """Refuse a state that a cell cannot go on with; ``position``: where the cell names it."""
    why, hint = "", "Fork an earlier state, or begin a new one."
    if state.joined or not state.open:
        why = "was joined or closed"
    elif state.failure is not None:
        error = state.failure.error
        reason = error.message if isinstance(error, SgnbError) else str(error)
        why = f"has failed: {reason.rstrip('.')}"
    elif state.backend.carrier is not backend.carrier:
        why = f"belongs to another engine ({state.backend.model_name})"
        hint = "Save it with state.save(path) and load it on this one with sgnb.load_state(path)."
    elif not state.core.body_done:
        why, hint = "belongs to a program that still runs", "Wait for it: state.sync()."
    if why:
        raise ProgramError(f"This state {why}.", hint=hint, position=position)


def keep_text(filename: str, source: str) -> None:
    """Make the cell's text known to tracebacks and to ``locate``."""
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    kept = [key for key in linecache.cache if key.startswith(CELL_PREFIX)]
    for key in kept[: max(0, len(kept) - MAX_CELLS)]:
        del linecache.cache[key]


def shadowed(cell: CellSource, user_ns: Mapping[str, Any]) -> list[str]:
    """Names of the language the cell uses that hide a variable of the user's."""
    ours = {**DSL_NAMES, "function": function}
    names = [
        name
        for name in (*ours, "s")
        if name in cell.loaded and name in user_ns and user_ns[name] is not ours.get(name)
    ]
    # A state of an earlier cell under the name `s` is no surprise to anybody.
    return [name for name in names if not (name == "s" and isinstance(user_ns["s"], State))]


def _compile(cell: CellSource) -> tuple[CodeType | None, str]:
    if EAGER.get():
        return None, "eager execution was asked for"
    if cell.awaits:
        return None, "it awaits"
    try:
        return compile_cell(cell), ""
    except (SyntaxError, RecursionError) as error:
        return None, f"its rewritten form does not compile ({error})"


def _run_eagerly(core: Core, cell: CellSource, state: State, namespace: dict[str, Any]) -> Result:
    code = compile_as_it_stands(cell)
    saved = enter_state(state, True)
    eager, core.eager = core.eager, True
    try:
        finish_body(core, eval(code, namespace))  # a coroutine, when it awaits
    finally:
        core.eager = eager
        leave_state(saved)
    return Result(namespace.pop(VALUE_NAME, None))
