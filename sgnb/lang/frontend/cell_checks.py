"""What the text of a ``%%sgl`` cell alone shows to be wrong: names, arguments, nested turns, what is built and dropped.

Notebook process; used by ``runtime.cell`` before anything is queued, and by the panel on a text that is being edited. Only
what is wrong in every run is refused.
"""

from __future__ import annotations

import ast
import builtins
import difflib
from collections.abc import Callable, Collection
from typing import Any, NoReturn

from sgnb.errors import ProgramTypeError, SourcePosition, article
from sgnb.lang.api import DSL_NAMES
from sgnb.lang.arguments import (
    GEN_NAMES,
    LATER_PARAMS,
    check_method,
    check_options,
    legal_arguments,
    unknown_argument,
)
from sgnb.lang.frontend.cells import CellSource, refuse
from sgnb.lang.frontend.constants import check_constants
from sgnb.lang.frontend.graph_expressions import span_of_node
from sgnb.lang.frontend.state_uses import check_state_uses
from sgnb.lang.position import source_position

ROLE_NAMES = ("system", "user", "assistant")


def check_cell(cell: CellSource, known: Collection[str]) -> None:
    """Refuse unknown names and wrong uses of the language. ``known``: names of the notebook."""
    _check_names(cell, known)
    _check_calls(cell)
    _check_blocks(cell.tree.body, cell, None, in_block=False)
    check_state_uses(cell.tree, "s", cell.filename)


def _check_names(cell: CellSource, known: Collection[str]) -> None:
    dynamic = {"exec", "eval", "globals", "locals", "vars", "__import__"} & cell.loaded
    guarded = any(
        isinstance(node, ast.ExceptHandler) and "NameError" in ast.dump(node.type or ast.Constant(None))
        for node in ast.walk(cell.tree)
    )
    if dynamic or guarded:
        return
    legal = {*known, *cell.names, *DSL_NAMES, "s", "function", *dir(builtins), "__name__", "__file__"}
    noted = _annotated(cell.tree)
    for node in ast.walk(cell.tree):
        if (
            isinstance(node, ast.Name)
            and node.id not in legal | noted
            and not _local_somewhere(cell.tree, node.id)
        ):
            near = difflib.get_close_matches(node.id, [*DSL_NAMES, *cell.names, *known], 1)
            hint = (
                f"Did you mean `{near[0]}`?"
                if near
                else "Define it in the notebook, or in this cell before it is used."
            )
            refuse(node, cell.filename, f"The name `{node.id}` is not known.", hint)


def _annotated(tree: ast.Module) -> set[str]:
    """Names in annotations: they may never be evaluated."""
    notes = [
        getattr(node, field)
        for node in ast.walk(tree)
        for field in ("annotation", "returns")
        if getattr(node, field, None) is not None
    ]
    return {part.id for note in notes for part in ast.walk(note) if isinstance(part, ast.Name)}


def _local_somewhere(tree: ast.Module, wanted: str) -> bool:
    """True when some function, class, lambda or comprehension of the cell binds the name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.arg == wanted:
            return True
        if isinstance(node, ast.Name) and node.id == wanted and not isinstance(node.ctx, ast.Load):
            return True
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == wanted:
            return True
        if isinstance(node, ast.alias) and (node.asname or node.name).split(".")[0] == wanted:
            return True
        if isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name == wanted:
            return True
        if isinstance(node, ast.MatchMapping) and node.rest == wanted:
            return True
    return wanted == "__class__"


def _check_calls(cell: CellSource) -> None:
    """Arguments of ``gen`` that are wrong by name, wherever ``gen`` surely means ours."""
    for node in ast.walk(cell.tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            continue
        called = node.func.id
        if called not in DSL_NAMES or called in cell.names or _local_somewhere(cell.tree, called):
            continue
        if called in ("gen", "gen_int", "gen_string"):
            for keyword in node.keywords:
                if keyword.arg is not None:
                    _check_argument(keyword, cell.filename)
            check_constants({k.arg: k.value for k in node.keywords if k.arg}, cell.filename)
        if called in ("gen", "select"):
            _check_options(called, node, cell.filename)
        elif called in (
            "system_begin",
            "user_begin",
            "assistant_begin",
            "system_end",
            "user_end",
            "assistant_end",
        ) and (node.args or node.keywords):
            refuse(node, cell.filename, f"{called}() takes no arguments.")


def _check_options(called: str, node: ast.Call, filename: str) -> None:
    """Options and method that stand in the text are refused there; what a run must compute waits for it."""
    given = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg is not None}
    if called == "select" and len(node.args) > 1:
        given.setdefault("choices", node.args[1])
    checks: tuple[tuple[str, Callable[[Any, SourcePosition], object]], ...] = (
        ("choices", lambda value, at: check_options(called, value, at)),
        ("choices_method", lambda value, at: check_method(called, value, at)),
    )
    for key, check in checks:
        if key not in given:
            continue
        try:
            value = ast.literal_eval(given[key])
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            continue
        if value is not None:
            check(value, source_position(filename, span_of_node(given[key])))


def _check_argument(keyword: ast.keyword, filename: str) -> None:
    name = keyword.arg or ""
    if name not in GEN_NAMES:
        raise ProgramTypeError(
            unknown_argument(name),
            hint=legal_arguments(),
            position=source_position(filename, span_of_node(keyword)),
        )
    value = keyword.value
    if name in LATER_PARAMS and not (
        isinstance(value, ast.Constant) and value.value in (None, LATER_PARAMS[name])
    ):
        refuse(
            keyword,
            filename,
            f"gen({name}=…) comes in a later version of sgnb.",
            "Remove it; it is refused so that the constraint is not dropped in silence.",
        )


def role_of(item: ast.expr) -> str | None:
    """The role that a ``with`` item surely opens: ``user()``, ``s.user()``, ``sgl.user()``."""
    if isinstance(item, ast.Call):
        func = item.func
        found = (
            func.id if isinstance(func, ast.Name) else func.attr if isinstance(func, ast.Attribute) else ""
        )
        return found if found in ROLE_NAMES else None
    return None


def _is_gen(node: ast.expr, cell: CellSource) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("gen", "select")
        and node.func.id not in cell.names
    )


def _is_turn(node: ast.expr, cell: CellSource) -> bool:
    """``user("…")`` and its kin, which only build what ``s +=`` appends."""
    names = {f"{role}{end}" for role in ROLE_NAMES for end in ("", "_begin", "_end")} - cell.names
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names


def _check_blocks(statements: list[ast.stmt], cell: CellSource, role: str | None, *, in_block: bool) -> None:
    """Nested turns, dropped generations, and turns inside turns, as far as the text alone shows them."""
    for node in statements:
        if isinstance(node, ast.Expr) and (
            (_is_gen(node.value, cell) and not in_block) or _is_turn(node.value, cell)
        ):
            text = ast.unparse(node.value)
            refuse(
                node,
                cell.filename,
                f"`{text}` has no effect here: it is built and dropped.",
                f"Append it: s += {text}.",
            )
        if isinstance(node, ast.AugAssign) and role is not None:
            _check_turn_inside(node.value, cell, role)
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
                    block = block or isinstance(getattr(item.context_expr, "func", None), ast.Name)
        for field in ("body", "orelse", "finalbody"):
            _check_blocks(getattr(node, field, []), cell, inner, in_block=block)
        for handler in [*getattr(node, "handlers", []), *getattr(node, "cases", [])]:
            _check_blocks(handler.body, cell, inner, in_block=block)


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
