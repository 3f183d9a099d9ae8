"""Find the source of a function, and believe it only if it compiles to the same code.

A file may have changed since it was imported, a cell may have been run through a transformer: the text counts only when
compiling it again gives the function's code object: bytecode, constants with their types, names, the line and column
table. Otherwise the program runs eagerly and the reason is shown.
"""

from __future__ import annotations
import __future__ as futures

import ast
import linecache
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from sgnb.lang.frontend.factory import FunctionNode, bare, compile_in_factory, imported_names
from sgnb.lang.frontend.tree import children

CO_NESTED = 0x10
CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR = 0x20, 0x80, 0x200
FUTURE_FLAGS = 0
for _feature in futures.all_feature_names:
    FUTURE_FLAGS |= getattr(futures, _feature).compiler_flag


class NotCompiled(Exception):
    """Why a function runs eagerly: one phrase, shown as ``Runs without a graph: <phrase>.``"""


@dataclass(frozen=True, slots=True)
class Located:
    """A function's verified source."""

    node: FunctionNode
    class_name: str | None
    filename: str
    flags: int
    imports: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _File:
    """A parsed file: its functions, each with the nearest class around it, and the names it imports."""

    text: str
    functions: list[tuple[FunctionNode, str | None]]
    imports: tuple[str, ...]


_files: dict[str, _File] = {}
"""A file is parsed once as long as its text does not change."""


def locate(func: FunctionType) -> Located:
    """The tree of ``func``; raises NotCompiled with the reason."""
    code = func.__code__
    if code.co_flags & (CO_COROUTINE | CO_ASYNC_GENERATOR):
        raise NotCompiled("it is an async function")
    if code.co_flags & CO_GENERATOR:
        raise NotCompiled("it is a generator function")
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename, func.__globals__)
    if not lines:
        raise NotCompiled("its source is not known")
    flags = code.co_flags & FUTURE_FLAGS
    file = _parsed(code.co_filename, "".join(lines))
    candidates = [
        (node, class_name)
        for node, class_name in file.functions
        if _name(node) == code.co_name and _first_line(node) == code.co_firstlineno
    ]
    if any(getattr(node, "type_params", None) for node, _ in candidates):
        raise NotCompiled("it has type parameters")
    wanted = code_key(code)
    found = []
    for node, class_name in candidates:
        # A call of an imported module's attribute compiles otherwise where the compiler sees the import: in a file it
        # does, in a notebook it does not, since IPython compiles each statement of a cell by itself.
        for imports in dict.fromkeys((file.imports, ())):
            try:
                again = compile_in_factory(
                    bare(node),
                    filename=code.co_filename,
                    flags=flags,
                    free=code.co_freevars,
                    class_name=class_name,
                    imports=imports,
                )
            except SyntaxError:
                continue
            if code_key(again) == wanted:
                found.append(Located(node, class_name, code.co_filename, flags, imports))
                break
    if len(found) != 1:
        raise NotCompiled(
            "its source has changed since it was defined" if not found else "its source is not unique"
        )
    return found[0]


def _parsed(filename: str, text: str) -> _File:
    cached = _files.get(filename)
    if cached is not None and cached.text == text:
        return cached
    try:
        tree = ast.parse(text)
    except SyntaxError:
        raise NotCompiled("its source is not plain Python") from None
    found: list[tuple[FunctionNode, str | None]] = []
    _collect(tree, None, found)
    if len(_files) >= 256:
        _files.clear()
    _files[filename] = _File(text, found, imported_names(tree))
    return _files[filename]


def _collect(tree: ast.AST, class_name: str | None, found: list[tuple[FunctionNode, str | None]]) -> None:
    """All functions with the name of the nearest class around them (for ``__x``)."""
    todo: list[tuple[ast.AST, str | None]] = [(tree, class_name)]
    while todo:
        node, around = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            found.append((node, around))
        inner = node.name if isinstance(node, ast.ClassDef) else around
        todo += [(child, inner) for child in children(node)]


def _name(node: FunctionNode) -> str:
    return "<lambda>" if isinstance(node, ast.Lambda) else node.name


def _first_line(node: FunctionNode) -> int:
    if isinstance(node, ast.FunctionDef) and node.decorator_list:
        return node.decorator_list[0].lineno
    return node.lineno


def code_key(code: CodeType) -> tuple[Any, ...]:
    """What two code objects of the same source have in common (surroundings, file and full name left out)."""
    return (
        code.co_code,
        code.co_name,
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
        code.co_flags & ~CO_NESTED,
        (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount),
        code.co_firstlineno,
        code.co_linetable,
        code.co_exceptiontable,
        tuple(_const_key(const) for const in code.co_consts),
    )


def _const_key(const: Any) -> Any:
    if isinstance(const, CodeType):
        return code_key(const)
    if isinstance(const, tuple):
        return (tuple, tuple(_const_key(item) for item in const))
    if isinstance(const, frozenset):
        return (frozenset, frozenset(_const_key(item) for item in const))
    return (type(const).__name__, repr(const))
