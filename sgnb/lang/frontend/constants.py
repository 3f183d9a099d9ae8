"""Constraints that stand in a program's text are checked before its first instruction runs.

Notebook process; called on a cell's text and on a program's graph. Only what the text alone says is looked at: a pattern,
schema or grammar that the program computes is checked where its ``gen`` is built.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from sgnb.errors import SourcePosition
from sgnb.lang.arguments import CONSTRAINTS, check_shape
from sgnb.lang.frontend.graph_expressions import span_of_node
from sgnb.lang.ir import Graph
from sgnb.lang.position import source_position

_NOTHING = object()


def check_constants(given: Mapping[str, ast.expr], filename: str) -> None:
    """The constraints among the arguments of one call. Raises LimitError or ProgramTypeError at the argument."""
    for key in CONSTRAINTS:
        if key in given:
            _check(key, given[key], source_position(filename, span_of_node(given[key])))


def check_graph(graph: Graph) -> None:
    """The constraints of every generation a program's text shows. Raises as ``check_constants``, at the generation."""
    for part in graph.gens():
        for key, source in part.params:
            if key in CONSTRAINTS:
                expression = ast.parse(source, mode="eval").body
                _check(key, expression, source_position(graph.filename, part.span))


def _check(key: str, node: ast.expr, position: SourcePosition) -> None:
    value = _constant(node)
    if value is not _NOTHING:
        check_shape({key: value}, position)


def _constant(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return _NOTHING
