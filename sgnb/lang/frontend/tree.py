"""Quick ways through a syntax tree: children, all nodes, a copy, and the places of new nodes.

Notebook process; used by the frontend's modules. A program is compiled while somebody waits for its first run, and the
standard library's ways (``ast.walk``, ``copy.deepcopy``) took half of that: they ask every node for every field, the
contexts of names too. Nothing here knows the language.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeVar

_Node = TypeVar("_Node", bound=ast.AST)
_SHARED = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)
"""Nodes without fields and place, one of each for all trees."""


def children(node: ast.AST) -> list[ast.AST]:
    """The child nodes in the order of their fields; contexts and operators, which hold nothing, are left out."""
    out: list[ast.AST] = []
    values = node.__dict__
    for name in node._fields:
        value = values.get(name)
        if value.__class__ is list:
            out += [item for item in value if isinstance(item, ast.AST) and not isinstance(item, _SHARED)]
        elif isinstance(value, ast.AST) and not isinstance(value, _SHARED):
            out.append(value)
    return out


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """The node and all below it, in no particular order; what ``children`` leaves out too."""
    todo = [node]
    while todo:
        node = todo.pop()
        yield node
        todo += children(node)


def copied(node: _Node) -> _Node:
    """The tree again, for who changes it."""
    out = node.__class__.__new__(node.__class__)
    values = out.__dict__
    for name, value in node.__dict__.items():
        if isinstance(value, ast.AST):
            values[name] = value if isinstance(value, _SHARED) else copied(value)
        elif value.__class__ is list:
            values[name] = [
                copied(v) if isinstance(v, ast.AST) and not isinstance(v, _SHARED) else v for v in value
            ]
        else:
            values[name] = value
    return out


def at(node: ast.AST, new: _Node) -> _Node:
    """``new`` and its parts that have no place yet, at the place of ``node``. A part that has one is complete."""
    todo: list[ast.AST] = [new]
    while todo:
        part = todo.pop()
        if "lineno" in part._attributes:
            if "lineno" in part.__dict__:
                continue
            ast.copy_location(part, node)
        todo += children(part)
    return new
