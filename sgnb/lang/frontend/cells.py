"""The text of a ``%%sgl`` cell: checks that need no run, and its generator.

Names the cell binds are the run's own and behave as at module level: the body is compiled as a function in which all of
them are declared global, over a namespace that the runtime copies from the user's. What can be known from the text is
refused here, before anything is queued.
"""

from __future__ import annotations
import __future__ as futures

import ast
import builtins
import copy
import difflib
import linecache
import symtable
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any, NoReturn

from sgnb.errors import ProgramError, ProgramTypeError, SourcePosition, article
from sgnb.lang.api import DSL_NAMES
from sgnb.lang.arguments import (
    GEN_NAMES,
    LATER_PARAMS,
    check_method,
    check_options,
    legal_arguments,
    unknown_argument,
)
from sgnb.lang.frontend.constants import check_constants
from sgnb.lang.frontend.factory import compile_in_factory, imported_names, renamed
from sgnb.lang.frontend.graph_expressions import span_of_node
from sgnb.lang.frontend.rewrite import HOOKS, Rewriter
from sgnb.lang.frontend.source import CO_COROUTINE
from sgnb.lang.position import source_position

CELL_FUNCTION = "_sg_cell_"
ROLE_NAMES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class CellSource:
    """A checked cell. ``names`` are what it binds; ``awaits``: it is a coroutine's body."""

    tree: ast.Module
    filename: str
    names: frozenset[str]
    loaded: frozenset[str]
    awaits: bool = False


def parse_cell(source: str, filename: str, magic: SourcePosition | None = None) -> CellSource:
    """Parse and check ``source`` (its magic line, which stands at ``magic``, is empty in it). Raises ProgramError."""
    if not source.strip():
        raise ProgramError(
            "The cell is empty.",
            hint='Write a program below it, for example: s += "Hello" + gen("x").',
            position=magic,
        )
    try:
        tree = ast.parse(source, filename)
        _refuse_statements(tree, filename)
        code = compile(source, filename, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        table = symtable.symtable(source, filename, "exec")
    except SyntaxError as error:
        raise _syntax_error(error, filename) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ProgramError(f"The cell cannot be parsed: {error}.", position=magic) from None
    if not tree.body:
        raise _only_comments(source, filename)
    names = frozenset(_bound_names(tree, table))
    loaded = frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    return CellSource(tree, filename, names, loaded, bool(code.co_flags & CO_COROUTINE))


def _only_comments(source: str, filename: str) -> ProgramError:
    lines = source.splitlines()
    number = next(index for index, line in enumerate(lines) if line.strip())
    text = lines[number]
    col = len(text) - len(text.lstrip())
    position = SourcePosition(filename, number + 1, col, len(text.rstrip()), text, in_cell=True)
    return ProgramError(
        "The cell holds only comments.", hint="Write a program below them.", position=position
    )


def _syntax_error(error: SyntaxError, filename: str) -> ProgramError:
    line = error.lineno or 1
    col = max(0, (error.offset or 1) - 1)
    text = (error.text or linecache.getline(filename, line)).rstrip("\n")
    end = error.end_offset - 1 if error.end_offset and error.end_lineno == line else None
    message = (error.msg or "invalid syntax").rstrip(".")
    hint = "Correct the text at the caret."
    if "outside function" in message:
        hint = "A cell is a module: use `return` only inside a function. The last expression of the cell is its value."
    elif "outside async function" in message:
        hint = "A cell may await, a plain function may not: write `async def`, and await its call."
    position = SourcePosition(filename, line, col, end if end and end > col else None, text, in_cell=True)
    return ProgramError(f"{message[0].upper()}{message[1:]}.", hint=hint, position=position)


def refuse(node: ast.AST, filename: str, message: str, hint: str = "") -> NoReturn:
    """Raise a ProgramError at ``node``."""
    raise ProgramError(message, hint=hint, position=source_position(filename, span_of_node(node)))


def own_scope(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes that are executed in the tree's own scope: bodies of functions and classes are left out."""
    todo = list(ast.iter_child_nodes(tree))
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            todo += ast.iter_child_nodes(node)


def _refuse_statements(tree: ast.Module, filename: str) -> None:
    for node in own_scope(tree):
        if isinstance(node, ast.Yield | ast.YieldFrom):
            refuse(node, filename, "A %%sgl cell cannot yield.", "Collect the values in a list.")
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
            refuse(
                node,
                filename,
                "`import *` is not possible in a %%sgl cell: its names must be known before it runs.",
                "Name what you import, or import it in an ordinary cell.",
            )


def _bound_names(tree: ast.Module, table: symtable.SymbolTable) -> Iterator[str]:
    for symbol in table.get_symbols():
        if symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace() or symbol.is_annotated():
            yield symbol.get_name()
    for node in ast.walk(tree):
        if isinstance(node, ast.NamedExpr) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Global):
            yield from node.names


# ---------------------------------------------------------------- checks


def check_cell(cell: CellSource, known: Collection[str]) -> None:
    """Refuse unknown names and wrong uses of the language. ``known``: names of the notebook."""
    _check_names(cell, known)
    _check_calls(cell)
    _check_blocks(cell.tree.body, cell, None, in_block=False)


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


# ---------------------------------------------------------------- what runs


VALUE_NAME = "_sg_value_"
"""Where a cell that runs as it stands leaves the value of its last expression."""


def compile_as_it_stands(cell: CellSource) -> CodeType:
    """The cell for an eager run: ``eval`` runs it over the cell's namespace, or gives a coroutine when it awaits."""
    tree = copy.deepcopy(cell.tree)
    last = tree.body[-1]
    if isinstance(last, ast.Expr):
        target = ast.Name(id=VALUE_NAME, ctx=ast.Store())
        tree.body[-1] = ast.copy_location(ast.Assign(targets=[target], value=last.value), last)
        ast.copy_location(target, last)
    code: CodeType = compile(tree, cell.filename, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    return code


def compile_cell(cell: CellSource) -> CodeType:
    """The cell's generator: a function without parameters over the cell's namespace."""
    rewriter = Rewriter(global_names=cell.names, module_scope=True)
    flags = 0
    statements: list[ast.stmt] = []
    for statement in copy.deepcopy(cell.tree).body:
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            for alias in statement.names:  # legal only at the top of a module: its effect is a flag
                flags |= getattr(futures, alias.name).compiler_flag
        else:
            statements.append(statement)
    last = statements[-1] if statements else ast.Pass(lineno=1, col_offset=0)
    statements = statements or [last]
    if isinstance(last, ast.Expr):
        statements[-1] = ast.copy_location(ast.Return(last.value), last)
    body = rewriter.body(statements)
    if cell.names:
        body = [ast.Global(names=sorted(cell.names)), *body]
    function = ast.FunctionDef(
        name=CELL_FUNCTION,
        args=ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[]),
        body=body,
        decorator_list=[],
    )
    function.lineno = function.end_lineno = 1
    function.col_offset = function.end_col_offset = 0
    code = compile_in_factory(
        function,
        filename=cell.filename,
        flags=flags,
        free=(),
        class_name=None,
        imports=imported_names(cell.tree),
        hooks=HOOKS,
    )
    return renamed(code, code.co_qualname, "<module>", "<module>")
