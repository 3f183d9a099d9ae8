"""Constraints that stand in a program's text: checked before its first instruction runs, and known before they are needed.

Notebook process; called on a program's graph (of a cell's text ``trial_calls`` looks at every argument). For the check
only what the text alone says is looked at: what the program computes is checked where its ``gen`` is built.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from sgnb.constraints import Constraint
from sgnb.errors import SourcePosition
from sgnb.lang.arguments import CONSTRAINTS, check_shape
from sgnb.lang.ir import Append, GenPart, Graph, Host, Loop
from sgnb.lang.position import source_position

_NOTHING = object()


def check_graph(graph: Graph) -> None:
    """The constraints of every generation a program's text shows. Raises LimitError or ProgramTypeError at the
    generation."""
    for part in graph.gens():
        for key, source in part.params:
            if key in CONSTRAINTS:
                expression = ast.parse(source, mode="eval").body
                _check(key, expression, source_position(graph.filename, part.span))


def _begins_in_python(graph: Graph) -> bool:
    """Whether Python stands before the first generation that the graph shows: its first may be there, unseen."""
    for node in graph.walk():
        if isinstance(node, Host):
            return True
        if isinstance(node, Append) and any(isinstance(part, GenPart) for part in node.parts):
            return False
    return False


def constraints_ahead(graph: Graph, names: Mapping[str, Any]) -> dict[tuple[str, str], Constraint]:
    """What generations behind the first one must match, as far as it is known now: by argument and its source.

    A constant, or a name of the notebook that no Python of the program mentions. What is malformed is left out: its
    ``gen`` will say so.
    """
    python = "\n".join(
        node.source if isinstance(node, Host) else node.head
        for node in graph.walk()
        if isinstance(node, Host | Loop)
    )
    mentioned = set(re.findall(r"\w+", python))
    found: dict[tuple[str, str], Constraint] = {}
    for part in graph.gens()[0 if _begins_in_python(graph) else 1 :]:
        for key, source in part.params:
            if key not in CONSTRAINTS or (key, source) in found or source in mentioned:
                continue
            value = names.get(source, _NOTHING)
            if value is _NOTHING:
                value = _constant(ast.parse(source, mode="eval").body)
            if value is _NOTHING:
                continue
            try:
                shape = check_shape({key: value}, None)
            except Exception:  # of a type of the user's too, which is asked for its schema
                continue
            if shape is not None:
                found[key, source] = Constraint(shape.kind, shape.text)
    return found


def _check(key: str, node: ast.expr, position: SourcePosition) -> None:
    value = _constant(node)
    if value is not _NOTHING:
        check_shape({key: value}, position)


def _constant(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return _NOTHING
