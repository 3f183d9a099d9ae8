"""Calls of the language whose arguments stand in the text are made, for the error they would raise.

Notebook process; used by ``cell_checks``. The function itself says what is wrong, so no rule here is one that it has not:
here is only the place: the argument that is wrong by itself, else the call. An argument that a run must compute is left
out, and with it what could depend on it. Calls are made outside of any program: they build an expression and drop it.
"""

from __future__ import annotations

import ast
import contextvars
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sgnb.errors import LimitError, ProgramTypeError, SgnbError, SourcePosition
from sgnb.lang.api import DSL_NAMES, Expr, Gen
from sgnb.lang.arguments import GEN_NAMES, LATER_PARAMS, as_gen_says, unknown_argument
from sgnb.lang.frontend.graph_expressions import called_name, span_of_node
from sgnb.lang.frontend.own_names import OwnNames
from sgnb.lang.position import internal, source_position
from sgnb.sampling_params import SamplingParams

internal(__name__)

GENERATING = ("gen", "gen_int", "gen_string")
DYNAMIC: Any = object()
"""What a value is that only a run knows."""
_TYPES = {"int": int, "float": float, "str": str, "bool": bool}
_NEEDED: dict[str, dict[str, Any]] = {
    "select": {"choices": ["yes", "no"]},
    "separate_reasoning": {"expr": Gen("x")},
    "text": {"value": ""},
}
"""What a call must have for another argument of it to be looked at."""
_NEEDED_WITH = {"parse": {"dtype": int}}
_SWALLOWING = ("suppress", "raises", "assertRaises", "assertRaisesRegex", "warns")


def wrong_calls(tree: ast.Module, own: OwnNames, filename: str) -> Iterator[SgnbError]:
    """The errors of all calls that surely are the language's, from the top down, each at its place."""
    calls = [node for node in unguarded(tree) if isinstance(node, ast.Call) and own.called(node.func)]
    for node in sorted(calls, key=lambda one: (one.lineno, one.col_offset)):
        yield from _faults(own.called(node.func), node, own, filename)


def unguarded(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those whose errors the program itself may catch."""
    todo = [tree]
    while todo:
        node = todo.pop()
        yield node
        skipped: list[ast.stmt] = []
        if _catches(node):
            skipped = node.body  # type: ignore[attr-defined]
        todo += [child for child in ast.iter_child_nodes(node) if child not in skipped]


def _catches(node: ast.AST) -> bool:
    """``try`` with handlers, or ``with suppress(…)`` and its kin."""
    if isinstance(node, ast.Try | ast.TryStar):
        return bool(node.handlers)
    items = node.items if isinstance(node, ast.With | ast.AsyncWith) else []
    return any(called_name(item.context_expr) in _SWALLOWING for item in items)


def _faults(called: str, node: ast.Call, own: OwnNames, filename: str) -> list[SgnbError]:
    """The wrong arguments of a call; where each is right by itself, what is wrong with the call."""
    function = DSL_NAMES[called]

    def at(part: ast.AST) -> SourcePosition:
        return source_position(filename, span_of_node(part))

    parameters = inspect.signature(function).parameters
    named = [name for name, one in parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
    if not parameters and (node.args or node.keywords):
        return [ProgramTypeError(f"{called}() takes no arguments.", position=at(node))]
    said = "gen" if called in GENERATING else called
    legal = GEN_NAMES if called in GENERATING else named
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()) and called not in GENERATING:
        legal = [one.arg for one in node.keywords if one.arg is not None]
    faults: list[SgnbError] = [
        unknown_argument(one.arg, at(one), said, legal)
        for one in node.keywords
        if one.arg is not None and one.arg not in legal
    ]
    given, complete = _given(node, named)
    if not faults and complete and (miscounted := _miscounted(function, node, at(node))):
        return [miscounted]
    values = {name: value_of(part, own) for name, part in given.items() if name in legal}
    known = {name: value for name, value in values.items() if value is not DYNAMIC}
    needed = _NEEDED.get(called, {})
    for name, value in known.items():
        place = given[name]
        if name in LATER_PARAMS:
            place = next(one for one in node.keywords if one.arg == name)  # type: ignore[assignment]
        faults += _refused(function, {**needed, **_NEEDED_WITH.get(name, {}), name: value}, at(place))
    if faults:
        return faults
    if complete and len(known) == len(values):
        return _refused(function, known, at(node)) or _wrong_lengths(function, known, at(node))
    # what depends on an argument that is not known must wait for it
    rest = {name: value for name, value in known.items() if name not in _NEEDED_WITH}
    return _refused(function, {**needed, **rest}, at(node))


def _given(node: ast.Call, names: list[str]) -> tuple[dict[str, ast.expr], bool]:
    """The arguments by name, and whether those are all: ``*args`` and ``**kwargs`` may hold others."""
    starred = next((i for i, one in enumerate(node.args) if isinstance(one, ast.Starred)), None)
    given = dict(zip(names, node.args[:starred], strict=False))
    given |= {one.arg: one.value for one in node.keywords if one.arg is not None}
    return given, starred is None and all(one.arg is not None for one in node.keywords)


def _miscounted(function: Callable[..., Any], node: ast.Call, position: SourcePosition) -> SgnbError | None:
    """Too many, too few or twice the same: Python refuses that before the function begins."""
    keywords = {one.arg: None for one in node.keywords if one.arg is not None}
    try:
        inspect.signature(function).bind(*[None] * len(node.args), **keywords)
    except TypeError:
        return next(iter(_refused(function, keywords, position, len(node.args))), None)
    return None


def _refused(
    function: Callable[..., Any], given: Mapping[str, Any], position: SourcePosition, positional: int = 0
) -> list[SgnbError]:
    """Make a call, outside of any program: the error it raises, at ``position``, if it raises one."""
    try:
        contextvars.Context().run(function, *[None] * positional, **given)
    except SgnbError as error:
        error.position = position
        return [error.with_traceback(None)]
    except TypeError as error:
        return [ProgramTypeError(f"{str(error).rpartition('api.')[2]}.", position=position)]
    return []


def _wrong_lengths(
    function: Callable[..., Any], known: Mapping[str, Any], position: SourcePosition
) -> list[SgnbError]:
    """``min_tokens`` above ``max_tokens``: a run refuses that when the generation is recorded."""
    if known.get("min_tokens") is None or known.get("max_tokens") is None:
        return []
    made = contextvars.Context().run(function, **known)
    try:
        SamplingParams.make(dict(made.params) if isinstance(made, Gen) else {})
    except LimitError as error:
        return [as_gen_says(error, position)]
    return []


def value_of(node: ast.expr, own: OwnNames) -> Any:
    """What an expression surely is in every run: constants, plain types, calls of the language over such; else DYNAMIC."""
    if isinstance(node, ast.Name) and node.id in _TYPES and own.builtin(node.id):
        return _TYPES[node.id]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = value_of(node.left, own), value_of(node.right, own)
        both = isinstance(left, str | Expr) and isinstance(right, str | Expr)
        return left + right if both else _literal(node)
    if isinstance(node, ast.Call):
        return _made(node, own)
    return _literal(node)


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return DYNAMIC


def _made(node: ast.Call, own: OwnNames) -> Any:
    """What a call of the language builds; one that is wrong is found by itself."""
    called = own.called(node.func)
    if not called or any(isinstance(one, ast.Starred) for one in node.args):
        return DYNAMIC
    args = [value_of(one, own) for one in node.args]
    kwargs = {one.arg: value_of(one.value, own) for one in node.keywords if one.arg is not None}
    if len(kwargs) < len(node.keywords) or any(value is DYNAMIC for value in (*args, *kwargs.values())):
        return DYNAMIC
    try:
        return contextvars.Context().run(DSL_NAMES[called], *args, **kwargs)
    except (SgnbError, TypeError):
        return DYNAMIC
