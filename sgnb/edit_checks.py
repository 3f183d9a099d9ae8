"""What a run of a ``%%sgl`` cell would refuse when it comes there, as far as the cell's text shows it.

Notebook process; used by ``panel_edit`` while a cell is typed. What the text alone proves wrong in every run is refused by
``lang.frontend.cell_checks`` before a run begins; here is the rest: attributes of states, variables that nothing binds, uses
of a state that it refuses. The objects themselves are asked for their errors, blank ones in the place of those a run would
have, so no sentence is written twice. Silent where anything is decided at run time. No cell runs here.
"""

from __future__ import annotations

import ast
import dis
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sgnb import cell_cursor
from sgnb.errors import SgnbError, UnknownAttribute
from sgnb.lang.api import Expr
from sgnb.lang.expressions import as_expr
from sgnb.lang.frontend.cells import CellSource, own_scope
from sgnb.lang.frontend.graph_expressions import span_of_node
from sgnb.lang.frontend.own_names import OwnNames
from sgnb.lang.frontend.trial_calls import DYNAMIC, unguarded, value_of
from sgnb.lang.position import place_of, source_position
from sgnb.runtime.fork import Group
from sgnb.runtime.reading import check_variable_name
from sgnb.runtime.state import State
from sgnb.variables_bound import Bound, bound_variables


@dataclass(slots=True)
class _Cell:
    """A cell and what is known of its names."""

    source: CellSource
    own: OwnNames
    bound: Bound
    states: set[str]
    groups: set[str]
    given: set[str] = field(default_factory=set)
    """Attributes that the cell sets itself."""


def doubtful_uses(
    source: CellSource, own: OwnNames, names: Mapping[str, Any], start: str | None
) -> Iterator[SgnbError]:
    """The errors, in the text's order. ``start``: the name of the state that the cell goes on with."""
    states, groups = sure_states(source.tree)
    bound = bound_variables(source, own, names, start)
    cell = _Cell(source, own, bound, states, groups)
    asked = [node for node in ast.walk(source.tree) if isinstance(node, ast.Attribute)]
    cell.given = {node.attr for node in asked if not isinstance(node.ctx, ast.Load)}
    if start is not None or {"setattr", "exec", "eval"} & source.loaded:
        cell.given |= {node.attr for node in asked}  # an earlier cell may have set it
    scope = {id(node) for node in own_scope(source.tree)}
    found = [node for node in unguarded(source.tree) if id(node) in scope and hasattr(node, "lineno")]
    for node in sorted(found, key=lambda one: span_of_node(one)[:2]):
        for ask in (_attribute, _variable, _use):
            try:
                ask(node, cell)
            except SgnbError as error:
                error.position = source_position(source.filename, span_of_node(_place(node)))
                yield error


def sure_states(tree: ast.Module) -> tuple[set[str], set[str]]:
    """``cell_cursor.states_in`` without names that the cell's own scope binds to something else as well."""
    states, groups = cell_cursor.states_in(tree.body)
    stores: dict[str, int] = {}
    other = {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
    for node in own_scope(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            stores[node.id] = stores.get(node.id, 0) + 1
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            stores[node.target.id] = stores.get(node.target.id, 0) - 1
        elif name := getattr(node, "asname", None) or getattr(node, "name", None):
            other.add(name.split(".")[0])
    other |= {name for name, count in stores.items() if count > (0 if name == "s" else 1)}
    return states - groups - other, groups - states - other


def _place(node: ast.AST) -> ast.AST:
    """Where Python says that an error of this statement is."""
    return (
        node.iter if isinstance(node, ast.For) else node.targets[0] if isinstance(node, ast.Delete) else node
    )


# ---------------------------------------------------------------- attributes


def _attribute(node: ast.AST, cell: _Cell) -> None:
    if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load) or node.attr.startswith("_"):
        return
    owner = node.value
    module = cell.own.module(owner)
    if module is not None and module.__name__ == "sgnb" and node.attr not in cell.given:
        _ask(lambda: getattr(module, node.attr))
    elif isinstance(owner, ast.Call):
        made = value_of(owner, cell.own)
        if isinstance(made, Expr):
            getattr(made, node.attr)
    elif _is_state(owner, cell):
        if node.attr not in cell.given | _set_in(State):
            getattr(_blank(cell.bound.before(node)), node.attr)
    elif _is_group(owner, cell) and node.attr not in cell.given | _set_in(Group):
        getattr(_blank_group(cell.bound.before(node)), node.attr)


def _ask(get: Callable[[], object]) -> None:
    """Python's own error becomes one of ours, with the same words."""
    try:
        get()
    except AttributeError as error:
        raise UnknownAttribute(str(error)) from None
    except ImportError:
        return


def _is_group(node: ast.expr, cell: _Cell) -> bool:
    return isinstance(node, ast.Name) and node.id in cell.groups


def _is_state(node: ast.expr, cell: _Cell) -> bool:
    if isinstance(node, ast.Subscript):
        numbered = isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int)
        return numbered and _is_group(node.value, cell)
    return isinstance(node, ast.Name) and node.id in cell.states


@functools.cache
def _set_in(kind: type) -> frozenset[str]:
    """Attributes of the instances: class members, and what ``__init__`` sets."""
    made = [one.__dict__["__init__"] for one in kind.__mro__[:-1] if "__init__" in one.__dict__]
    steps = [step for init in made for step in dis.get_instructions(init)]
    return frozenset({*dir(kind), *(str(step.argval) for step in steps if step.opname == "STORE_ATTR")})


def _blank(variables: list[str]) -> State:
    """A state that has nothing but names of variables: to be asked for errors."""
    state = object.__new__(State)
    state.__dict__.update(_values=dict.fromkeys(variables), failure=None, depth=0)
    return state


def _blank_group(variables: list[str]) -> Group:
    group = object.__new__(Group)
    group.__dict__["states"] = [_blank(variables)]
    return group


# ---------------------------------------------------------------- variables


def _variable(node: ast.AST, cell: _Cell) -> None:
    """``s["x"]``, ``s.get_var("x")`` where nothing can have bound ``x``."""
    name: Any = None
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and _is_state(node.value, cell):
        name = value_of(node.slice, cell.own)
    elif _method(node, cell) in ("get_var", "get_meta_info") and node.args:  # type: ignore[attr-defined]
        name = value_of(node.args[0], cell.own)  # type: ignore[attr-defined]
    if isinstance(name, str) and not cell.bound.may_have(name, node):
        raise _blank(cell.bound.before(node)).unknown(name)


def _method(node: ast.AST, cell: _Cell) -> str:
    """Which method of a state is called, or an empty string."""
    func = node.func if isinstance(node, ast.Call) else None
    return func.attr if isinstance(func, ast.Attribute) and _is_state(func.value, cell) else ""


# ---------------------------------------------------------------- uses of a state


def _use(node: ast.AST, cell: _Cell) -> None:
    blank = _blank([])
    if isinstance(node, ast.Call):
        value = value_of(node.args[0], cell.own) if node.args else DYNAMIC
        called = _method(node, cell) if value is not DYNAMIC else ""
        if called == "fork":
            blank.check_fork(value, place_of(sys._getframe()))
        elif called in ("set_var", "var_scope"):
            check_variable_name(value)
    elif isinstance(node, ast.AugAssign):
        constant = isinstance(node.value, ast.Constant) and isinstance(node.op, ast.Add)
        if constant and _is_state(node.target, cell):
            as_expr(node.value.value)  # type: ignore[attr-defined]
    elif isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.Add) and _is_state(node.left, cell):
            blank.__add__("")
    elif isinstance(node, ast.For):
        if _is_state(node.iter, cell):
            iter(blank)
    elif isinstance(node, ast.Delete):
        target = node.targets[0]
        name = value_of(target.slice, cell.own) if isinstance(target, ast.Subscript) else None
        if isinstance(name, str) and _is_state(target.value, cell):  # type: ignore[attr-defined]
            del blank[name]
    elif isinstance(node, ast.JoinedStr):
        for part in node.values:
            value = value_of(part.value, cell.own) if isinstance(part, ast.FormattedValue) else None
            if isinstance(value, Expr):
                format(value, "")
