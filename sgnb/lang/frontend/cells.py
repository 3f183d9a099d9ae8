"""The text of a ``%%sgl`` cell: its tree, and its generator.

Names the cell binds are the run's own and behave as at module level: the body is compiled as a function in which all of
them are declared global, over a namespace that the runtime copies from the user's. What is no program is refused here, what
is a wrong one in ``cell_checks``.
"""

from __future__ import annotations
import __future__ as futures

import ast
import linecache
import symtable
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import NoReturn

from sgnb.errors import ProgramError, SourcePosition
from sgnb.lang.frontend.factory import compile_in_factory, imported_names, renamed
from sgnb.lang.frontend.graph_expressions import span_of_node
from sgnb.lang.frontend.rewrite import HOOKS, Rewriter
from sgnb.lang.frontend.source import CO_COROUTINE
from sgnb.lang.frontend.tree import at, children, copied, walk
from sgnb.lang.position import source_position

CELL_FUNCTION = "_sg_cell_"


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
    loaded = frozenset(node.id for node in walk(tree) if isinstance(node, ast.Name))
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
    todo = children(tree)
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            todo += children(node)


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
    for node in walk(tree):
        if isinstance(node, ast.NamedExpr) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Global):
            yield from node.names


# ---------------------------------------------------------------- what runs


VALUE_NAME = "_sg_value_"
"""Where a cell that runs as it stands leaves the value of its last expression."""


def compile_as_it_stands(cell: CellSource) -> CodeType:
    """The cell for an eager run: ``eval`` runs it over the cell's namespace, or gives a coroutine when it awaits."""
    tree = copied(cell.tree)
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
    for statement in copied(cell.tree).body:
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
        body = [at(last, ast.Global(names=sorted(cell.names))), *body]
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
