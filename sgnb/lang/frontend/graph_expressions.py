"""What stands inside a statement of a program, as parts and nodes of the static graph.

Notebook process; the base of ``graph``'s reader, which follows statements and with them which names are states and
branches. Nothing here changes what a name means.
"""

from __future__ import annotations

import ast

from sgnb.lang.frontend.tree import children
from sgnb.lang.ir import (
    Append,
    BeginPart,
    Call,
    EndPart,
    Fork,
    GenPart,
    HolePart,
    HostCall,
    Join,
    Loop,
    Node,
    Part,
    Read,
    SelectPart,
    TextPart,
)
from sgnb.lang.position import Span

ROLES = ("system", "user", "assistant")
WAITING_METHODS = ("text", "sync", "messages", "get_var", "get_meta_info", "error", "text_iter")


def span_of_node(node: ast.AST) -> Span:
    """The node's lines and columns."""
    line, col = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
    end_line = getattr(node, "end_lineno", None) or line
    return Span(line, col, end_line, getattr(node, "end_col_offset", None) or col + 1)


class ExpressionReader:
    """Expressions to parts and nodes. ``states``: name → what the state is called in the graph."""

    def __init__(self, states: dict[str, str]) -> None:
        self.states = states
        self.groups: dict[str, str] = {}
        """Names that surely are branches, and what they are called in the graph."""

    def branches(self, node: ast.expr) -> str | None:
        """What ``forks`` or ``forks[i]`` is called, or None."""
        if isinstance(node, ast.Name) and node.id in self.groups:
            return f"{self.groups[node.id]}[*]"
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            group = self.groups.get(node.value.id)
            if group is not None:
                return f"{group}[{ast.unparse(node.slice)}]"
        return None

    def fork_call(self, node: ast.expr, group: str) -> Fork | None:
        """``s.fork(n)`` whose branches are called ``group``, or None."""
        state = self.owner(node)
        if state is None or not isinstance(node, ast.Call) or called_name(node) != "fork":
            return None
        size = node.args[0] if node.args else next((k.value for k in node.keywords if k.arg == "size"), None)
        return Fork(span_of_node(node), state, group, "1" if size is None else ast.unparse(size))

    def join_call(self, node: ast.expr) -> Join | None:
        """``forks.join(...)`` as a statement."""
        if not (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id in self.groups
            and node.func.attr == "join"
        ):
            return None
        mode = node.args[0] if node.args else next((k.value for k in node.keywords), None)
        words = "gather_variable" if mode is None else ast.unparse(mode).strip("'\"")
        return Join(span_of_node(node), self.groups[node.func.value.id], words)

    def turn_call(self, node: ast.expr) -> list[Node] | None:
        """``s.user("text")`` as a statement."""
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id in self.states
            and node.func.attr in ROLES
            and node.args
        ):
            span, role = span_of_node(node), node.func.attr
            parts = (BeginPart(span, role), *self.parts(node.args[0]), EndPart(span, role))
            return [
                *self.expressions(node.args[0]),
                Append(span, self.states[node.func.value.id], parts),
            ]
        return None

    def owner(self, node: ast.expr) -> str | None:
        """The state whose method is called, or None."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            value = node.func.value
            if isinstance(value, ast.Name):
                return self.states.get(value.id)
        return None

    def expressions(self, node: ast.AST) -> list[Node]:
        """The reads and calls inside an expression, inner before outer."""
        out: list[Node] = []
        for child in children(node):
            if not isinstance(child, ast.Lambda | ast.FunctionDef | ast.ClassDef | ast.stmt):
                out += self.expressions(child)
        if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            return [Loop(span_of_node(node), ast.unparse(node), tuple(out))] if out else []
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.ctx, ast.Load)
            and isinstance(node.value, ast.Name)
        ):
            if node.value.id in self.states:
                out.append(Read(span_of_node(node), self.states[node.value.id], ast.unparse(node.slice)))
        elif isinstance(node, ast.Call):
            out += self.call(node)
        return out

    def call(self, node: ast.Call) -> list[Node]:
        """What a call does: a read that may wait, another program, or host code; nothing where it only builds a part."""
        called = called_name(node)
        state = self.owner(node)
        if state is not None:
            if called in WAITING_METHODS:
                return [Read(span_of_node(node), state, f"{called}()")]
            return []
        if called in _DSL:
            return []
        gets = [a for a in node.args if isinstance(a, ast.Name) and a.id in self.states]
        if gets:
            return [Call(span_of_node(node), ast.unparse(node.func), "inline")]
        if isinstance(node.func, ast.Attribute) and node.func.attr == "run":
            return [Call(span_of_node(node), ast.unparse(node.func.value), "own")]
        return [HostCall(span_of_node(node), ast.unparse(node))]

    def parts(self, node: ast.expr) -> tuple[Part, ...]:
        """What an appended expression adds."""
        span = span_of_node(node)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return (TextPart(span, node.value),)
        if isinstance(node, ast.JoinedStr):
            return tuple(part for value in node.values for part in self.parts(value)) or (TextPart(span, ""),)
        if isinstance(node, ast.FormattedValue):
            return (HolePart(span, ast.unparse(node.value), text=True),)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return (*self.parts(node.left), *self.parts(node.right))
        if isinstance(node, ast.Call):
            called = called_name(node)
            if called in ("gen", "select"):
                return (_gen(node),)
            if called in ROLES:
                inner = self.parts(node.args[0]) if node.args else ()
                return (BeginPart(span, called), *inner, EndPart(span, called))
            for role in ROLES:
                if called == f"{role}_begin":
                    return (BeginPart(span, role),)
                if called == f"{role}_end":
                    return (EndPart(span, role),)
        read = (
            isinstance(node, ast.Subscript)
            and isinstance(node.value, ast.Name)
            and node.value.id in self.states
        )
        return (HolePart(span, ast.unparse(node), text=read),)


_DSL = frozenset(
    ("gen", "select", "text", *ROLES, *(f"{r}_begin" for r in ROLES), *(f"{r}_end" for r in ROLES))
)


def called_name(node: ast.expr) -> str:
    """The last name of what is called, or an empty string."""
    if not isinstance(node, ast.Call):
        return ""
    func = node.func
    return func.id if isinstance(func, ast.Name) else func.attr if isinstance(func, ast.Attribute) else ""


def _gen(node: ast.Call) -> GenPart | SelectPart:
    keywords = {k.arg: k.value for k in node.keywords if k.arg}
    first = node.args[0] if node.args else keywords.pop("name", None)
    name = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None
    choices = keywords.get("choices")
    if called_name(node) == "select":
        choices = choices or (node.args[1] if len(node.args) > 1 else None)
    if choices is not None or called_name(node) == "select":
        return SelectPart(span_of_node(node), name, _constants(choices))
    params = tuple((key, ast.unparse(value)) for key, value in keywords.items())
    return GenPart(span_of_node(node), name, params)


def _constants(node: ast.expr | None) -> tuple[str, ...]:
    """The texts of a constant list, else nothing."""
    items = node.elts if isinstance(node, ast.List | ast.Tuple) else []
    out = [item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)]
    return tuple(out) if len(out) == len(items) else ()
