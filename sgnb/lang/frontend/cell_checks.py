"""What the text of a ``%%sgl`` cell alone shows to be wrong: names, arguments, nested turns, what is built and dropped.

Notebook process; used by ``runtime.cell`` before anything is queued, and by the panel on a text that is being edited. Only
what is wrong in every run is refused.
"""

from __future__ import annotations

import ast
import builtins
import difflib
import itertools
from collections.abc import Callable, Collection, Iterator
from typing import NoReturn

from sgnb.errors import ProgramError, SgnbError, article
from sgnb.lang.api import DSL_NAMES
from sgnb.lang.frontend.cells import CellSource, refuse
from sgnb.lang.frontend.graph_expressions import span_of_node
from sgnb.lang.frontend.own_names import OwnNames
from sgnb.lang.frontend.state_uses import check_state_uses
from sgnb.lang.frontend.trial_calls import wrong_calls
from sgnb.lang.position import source_position

ROLE_NAMES = ("system", "user", "assistant")
_GENERATING = ("gen", "select", "gen_int", "gen_string")


def check_cell(cell: CellSource, names: Collection[str]) -> None:
    """Refuse unknown names and wrong uses of the language. ``names``: the notebook's, with their values as a mapping."""
    own = OwnNames(cell.tree, names)
    for fault in itertools.chain(unknown_names(cell, names, own), wrong_uses(cell, own)):
        raise fault


def unknown_names(cell: CellSource, names: Collection[str], own: OwnNames) -> Iterator[SgnbError]:
    """Names that neither the cell nor the notebook, the language or Python has."""
    dynamic = {"exec", "eval", "globals", "locals", "vars", "__import__"} & cell.loaded
    guarded = any(
        isinstance(node, ast.ExceptHandler) and "NameError" in ast.dump(node.type or ast.Constant(None))
        for node in ast.walk(cell.tree)
    )
    if dynamic or guarded:
        return
    legal = {*names, *cell.names, *DSL_NAMES, *own.bound, *dir(builtins), *_annotated(cell.tree)}
    legal |= {"s", "function", "__name__", "__file__", "__class__"}
    for node in ast.walk(cell.tree):
        if isinstance(node, ast.Name) and node.id not in legal:
            near = difflib.get_close_matches(node.id, [*DSL_NAMES, *cell.names, *names], 1)
            yield ProgramError(
                f"The name `{node.id}` is not known.",
                hint=f"Did you mean `{near[0]}`?"
                if near
                else "Define it in the notebook, or in this cell before it is used.",
                position=source_position(cell.filename, span_of_node(node)),
            )


def wrong_uses(cell: CellSource, own: OwnNames) -> Iterator[SgnbError]:
    """What is wrong in every run, in the order in which it is looked for."""
    yield from wrong_calls(cell.tree, own, cell.filename)
    checks: tuple[Callable[[], None], ...] = (
        lambda: _check_blocks(cell.tree.body, cell, own, None, in_block=False),
        lambda: check_state_uses(cell.tree, "s", cell.filename),
    )
    for check in checks:
        try:
            check()
        except SgnbError as error:
            yield error


def _annotated(tree: ast.Module) -> set[str]:
    """Names in annotations: they may never be evaluated."""
    notes = [
        getattr(node, field)
        for node in ast.walk(tree)
        for field in ("annotation", "returns")
        if getattr(node, field, None) is not None
    ]
    return {part.id for note in notes for part in ast.walk(note) if isinstance(part, ast.Name)}


def role_of(item: ast.expr) -> str | None:
    """The role that a ``with`` item surely opens: ``user()``, ``s.user()``, ``sgl.user()``."""
    if isinstance(item, ast.Call):
        func = item.func
        found = (
            func.id if isinstance(func, ast.Name) else func.attr if isinstance(func, ast.Attribute) else ""
        )
        return found if found in ROLE_NAMES else None
    return None


def _is_gen(node: ast.expr, own: OwnNames) -> bool:
    return isinstance(node, ast.Call) and own.called(node.func) in _GENERATING


def _is_turn(node: ast.expr, own: OwnNames) -> bool:
    """``user("…")`` and its kin, which only build what ``s +=`` appends."""
    names = {f"{role}{end}" for role in ROLE_NAMES for end in ("", "_begin", "_end")}
    return isinstance(node, ast.Call) and own.called(node.func) in names


def _check_blocks(
    statements: list[ast.stmt], cell: CellSource, own: OwnNames, role: str | None, *, in_block: bool
) -> None:
    """Nested turns, dropped generations, and turns inside turns, as far as the text alone shows them."""
    for node in statements:
        if isinstance(node, ast.Expr) and (
            (_is_gen(node.value, own) and not in_block) or _is_turn(node.value, own)
        ):
            text = ast.unparse(node.value)
            refuse(
                node,
                cell.filename,
                f"`{text}` has no effect here: it is built and dropped.",
                f"Append it: s += {text}.",
            )
        if isinstance(node, ast.AugAssign):
            _check_turns(node.value, cell, own, role)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        inner, block = role, in_block
        if isinstance(node, ast.With):
            for item in node.items:
                opened = role_of(item.context_expr)
                if opened is not None:
                    if inner is not None:
                        _nested(item.context_expr, cell.filename, opened, inner)
                    inner = opened
                    block = block or own.called(item.context_expr.func) == opened  # type: ignore[attr-defined]
        for field in ("body", "orelse", "finalbody"):
            _check_blocks(getattr(node, field, []), cell, own, inner, in_block=block)
        for handler in [*getattr(node, "handlers", []), *getattr(node, "cases", [])]:
            _check_blocks(handler.body, cell, own, inner, in_block=block)


def _check_turns(value: ast.expr, cell: CellSource, own: OwnNames, role: str | None) -> None:
    """Turns inside the open one, or inside each other: ``s += user(user("a"))``."""
    if role is not None:
        _check_turn_inside(value, cell, role)
        return
    for node in ast.walk(value):
        if isinstance(node, ast.Lambda):
            return
        if isinstance(node, ast.Call) and (called := own.called(node.func)) in ROLE_NAMES:
            for inner in node.args:
                _check_turn_inside(inner, cell, called)


def _check_turn_inside(value: ast.expr, cell: CellSource, role: str) -> None:
    for node in ast.walk(value):
        if isinstance(node, ast.Lambda):
            return
        opened = role_of(node) if isinstance(node, ast.expr) else None
        if opened is not None and isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            _nested(node, cell.filename, opened, role)


def _nested(node: ast.AST, filename: str, inner: str, outer: str) -> NoReturn:
    refuse(
        node,
        filename,
        f"{article(inner).capitalize()} {inner} turn begins inside {article(outer)} {outer} turn; turns cannot be nested.",
        f"End the {outer} turn first.",
    )
