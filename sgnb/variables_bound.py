"""Which variables the states of a ``%%sgl`` cell can have, as far as the cell's text shows all of them.

Notebook process; used by ``edit_checks`` and ``panel_edit``. A variable is bound by a call of the language, ``s["x"] = …``,
``set_var`` and ``var_scope``. Those are seen where they stand in the cell; a name of the notebook that may bring others (a
helper, a program, an expression) makes the answer "any". Nothing is run here.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import BuiltinFunctionType, ModuleType
from typing import Any

from sgnb.lang.api import DSL_NAMES
from sgnb.lang.choices import METHODS
from sgnb.lang.frontend.cells import CellSource
from sgnb.lang.frontend.own_names import OwnNames
from sgnb.lang.frontend.trial_calls import DYNAMIC, value_of
from sgnb.runtime.function import function
from sgnb.runtime.reasoning import SUFFIX
from sgnb.runtime.state import State

GENERATING = ("gen", "select", "gen_int", "gen_string")
_PLAIN = (str, bytes, int, float, complex, bool, type(None))
_RUNS_TEXT = {"exec", "eval", "globals", "locals", "vars", "__import__", "setattr", "getattr"}
MAX_ITEMS = 1000


@dataclass(frozen=True, slots=True)
class Binding:
    """A place that binds a variable. ``pattern``: a regular expression for names that are partly computed."""

    name: str
    node: ast.AST
    by: str
    pattern: str = ""

    @property
    def line(self) -> int:
        """Where it stands."""
        return int(getattr(self.node, "lineno", 1))

    def covers(self, name: str) -> bool:
        """Whether it may bind this variable."""
        return self.name == name or bool(self.pattern and re.fullmatch(self.pattern, name, re.DOTALL))


@dataclass(slots=True)
class Bound:
    """All of them, in the text's order. ``complete``: there are no others."""

    found: list[Binding] = field(default_factory=list)
    complete: bool = True
    earlier: tuple[str, ...] = ()
    """Those of the state that the cell goes on with."""
    _loops: list[tuple[int, int]] = field(default_factory=list)
    _tests: set[str] = field(default_factory=set)

    def may_have(self, name: str, node: ast.AST) -> bool:
        """Whether ``name`` may be bound when the run comes to ``node`` of the cell's own scope."""
        unnamed = name.endswith(SUFFIX) or re.fullmatch(r"gen_\d+", name)
        if not self.complete or unnamed or name in self.earlier or name in self._tests:
            return True
        return any(one.covers(name) for one in self._reached(node))

    def binding(self, name: str) -> list[Binding]:
        """The places that may bind a variable."""
        return [one for one in self.found if one.covers(name)]

    def before(self, node: ast.AST) -> list[str]:
        """The names that are known there."""
        return [*self.earlier, *dict.fromkeys(one.name for one in self._reached(node) if one.name)]

    def _reached(self, node: ast.AST) -> Iterator[Binding]:
        """What stands above the node, or in the outermost loop around it."""
        last = (node.lineno, node.col_offset)  # type: ignore[attr-defined]
        around = [end for begin, end in self._loops if begin <= last[0] <= end]
        end = max(around, default=0)
        for one in self.found:
            if (one.node.lineno, one.node.col_offset) < last or one.node.lineno <= end:  # type: ignore[attr-defined]
                yield one


def bound_variables(source: CellSource, own: OwnNames, names: Mapping[str, Any], start: str | None) -> Bound:
    """The variables of a cell. ``start``: the state it goes on with."""
    bound = Bound(complete=not _RUNS_TEXT & source.loaded and not _strangers(source, own, names))
    if start is not None:
        state = names.get(start)
        bound.complete &= isinstance(state, State)
        bound.earlier = tuple(state.names()) if isinstance(state, State) else ()
    called = {id(node.func) for node in ast.walk(source.tree) if isinstance(node, ast.Call)}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.For | ast.AsyncFor | ast.While):
            bound._loops.append((node.lineno, node.end_lineno or node.lineno))
        elif isinstance(node, ast.Compare) and isinstance(node.left, ast.Constant):
            bound._tests.add(str(node.left.value))  # "x" in s
        elif isinstance(node, ast.Call):
            _of_call(node, own, bound)
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            _named(node.slice, node, 's["…"] = …', own, bound)
        elif (
            isinstance(node, ast.Name | ast.Attribute)
            and own.called(node) in GENERATING
            and id(node) not in called
        ):
            bound.complete = False  # handed on: map(gen, names)
    bound.found.sort(key=lambda one: (one.node.lineno, one.node.col_offset))  # type: ignore[attr-defined]
    return bound


def _of_call(node: ast.Call, own: OwnNames, bound: Bound) -> None:
    called = own.called(node.func)
    by = called if called in GENERATING else node.func.attr if isinstance(node.func, ast.Attribute) else ""
    if by not in (*GENERATING, "set_var", "var_scope"):
        return
    if any(isinstance(one, ast.Starred) for one in node.args) or any(
        one.arg is None for one in node.keywords
    ):
        bound.complete = False
        return
    name = node.args[0] if node.args else next((k.value for k in node.keywords if k.arg == "name"), None)
    if name is not None:  # else it is called gen_0, gen_1 …
        _named(name, node, by, own, bound)


def _named(name: ast.expr, node: ast.AST, by: str, own: OwnNames, bound: Bound) -> None:
    value = value_of(name, own)
    if isinstance(value, str):
        bound.found.append(Binding(value, node, by))
    elif isinstance(name, ast.JoinedStr):
        parts = [re.escape(str(one.value)) if isinstance(one, ast.Constant) else ".*" for one in name.values]
        bound.found.append(Binding("", node, by, "".join(parts)))
    elif value is DYNAMIC and (
        by in GENERATING or not isinstance(node, ast.Subscript) or _may_be_state(node, own)
    ):
        bound.complete = False


def _may_be_state(node: ast.Subscript, own: OwnNames) -> bool:
    """``d[key] = …`` where the cell makes ``d`` a plain dict or list itself is none of ours."""
    return not (isinstance(node.value, ast.Name) and own.plain(node.value.id))


def _strangers(source: CellSource, own: OwnNames, names: Mapping[str, Any]) -> bool:
    """Whether the cell uses anything from elsewhere that could bind variables of its states."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            if any(not _harmless_module(one.name) for one in node.names):
                return True
        elif isinstance(node, ast.ImportFrom):
            if node.level or not _harmless_module(node.module or ""):
                return True
        elif isinstance(node, ast.Name) and not own.bound[node.id] and node.id not in _KNOWN:
            if node.id not in names or not _harmless(names[node.id]):
                return True
        elif isinstance(node, ast.Attribute) and own.module(node.value) and node.attr not in _OF_SGNB:
            return True
    return False


_KNOWN = {*DSL_NAMES, *dir(builtins), "s", "function"}
_OF_SGNB = {*DSL_NAMES, "function", *METHODS}


def _harmless(value: object) -> bool:
    """Plain data, classes, and modules of Python's own: nothing of that appends to a state. Only exact containers are looked
    into, since others may run code; big ones are not."""
    todo: list[Any] = [value]
    seen = 0
    while todo:
        one = todo.pop()
        kind = type(one)
        seen += 1
        if kind is dict:
            todo += [*one.keys(), *one.values()] if len(one) <= MAX_ITEMS else [_STRANGE]
        elif kind in (list, tuple, set, frozenset):
            todo += list(one) if len(one) <= MAX_ITEMS else [_STRANGE]
        elif issubclass(kind, ModuleType):
            if not _harmless_module(str(vars(one).get("__name__", ""))):
                return False
        elif not issubclass(kind, (*_PLAIN, type, BuiltinFunctionType)) and not any(
            one is own for own in _OWN
        ):
            return False
        if seen > MAX_ITEMS:
            return False
    return True


_STRANGE = object()
_OWN = (*DSL_NAMES.values(), *METHODS.values(), function)


def _harmless_module(name: str) -> bool:
    return name.split(".")[0] in sys.stdlib_module_names or name == "sgnb"
