"""Read the static graph out of a function's or a cell's tree: its statements.

A small abstract interpreter over names: it follows which names surely are states (the first parameter, ``s`` in a cell,
plain aliases) and turns the rest into host nodes. A wrong guess here can change what is shown, never what runs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from sgnb.lang.frontend.graph_expressions import ROLES, ExpressionReader, called_name, span_of_node
from sgnb.lang.ir import (
    Append,
    BeginPart,
    EndPart,
    Fork,
    Graph,
    Host,
    If,
    Loop,
    Node,
    Part,
    Return,
    Scope,
    Try,
)
from sgnb.lang.position import Span


def parse_program(
    node: ast.FunctionDef | ast.Lambda | ast.Module, *, filename: str, name: str, state: str | None = None
) -> Graph:
    """The graph of a program (``state``: the state's name in a cell, else the first parameter)."""
    if isinstance(node, ast.Module):
        params: list[str] = []
        state = state or "s"
        span = Span(1, 0, max((s.end_lineno or s.lineno for s in node.body), default=1), 1 << 20)
        body: Iterable[ast.stmt] = node.body
    else:
        arguments = node.args
        params = [a.arg for a in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]]
        state = state or (params[0] if params else "")
        span = span_of_node(node)
        body = [ast.Return(node.body)] if isinstance(node, ast.Lambda) else node.body
        if isinstance(node, ast.Lambda):
            body = [ast.copy_location(ast.Return(node.body), node.body)]
    reader = _Reader({state: state} if state else {})
    return Graph(name, filename, state, tuple(params), reader.block(body), span)


class _Reader(ExpressionReader):
    """Statements to nodes."""

    def __init__(self, states: dict[str, str]) -> None:
        super().__init__(states)
        self.turn: str | None = None
        """The state a module-level ``with user():`` block appends to, inside such a block."""

    def block(self, statements: Iterable[ast.stmt]) -> tuple[Node, ...]:
        return tuple(node for statement in statements for node in self.statement(statement))

    def statement(self, node: ast.stmt) -> list[Node]:
        method = getattr(self, f"on_{type(node).__name__}", None)
        if method is not None:
            found: list[Node] = method(node)
            return found
        if isinstance(node, ast.Pass | ast.Break | ast.Continue | ast.Global | ast.Nonlocal):
            return []
        inner = self.expressions(node)
        return inner or [Host(span_of_node(node), ast.unparse(node))]

    # ------------------------------------------------------------ statements

    def on_AugAssign(self, node: ast.AugAssign) -> list[Node]:
        if isinstance(node.target, ast.Name) and node.target.id in self.states:
            before = self.expressions(node.value)
            return [*before, Append(span_of_node(node), self.states[node.target.id], self.parts(node.value))]
        branches = self.branches(node.target)
        if branches is not None:
            value = node.value.body if isinstance(node.value, ast.Lambda) else node.value
            return [*self.expressions(value), Append(span_of_node(node), branches, self.parts(value))]
        return [*self.expressions(node), Host(span_of_node(node), ast.unparse(node))]

    def on_fork(self, node: ast.Assign, target: ast.expr) -> list[Node] | None:
        """``forks = s.fork(n)``, ``a, b = s.fork(2)``, ``other = forks``, ``b = forks[0]``."""
        name = target.id if isinstance(target, ast.Name) else ""
        if isinstance(node.value, ast.Name) and node.value.id in self.groups and name:
            self.groups[name] = self.groups[node.value.id]
            return []
        branch = self.branches(node.value) if isinstance(node.value, ast.Subscript) else None
        if branch is not None and name:
            self.states[name] = branch
            return []
        fork = self.fork_call(node.value, name or f"fork@{node.lineno}")
        if fork is None:
            return None
        if name:
            self.groups[name] = name
        elif isinstance(target, ast.Tuple | ast.List):
            for index, item in enumerate(target.elts):
                if isinstance(item, ast.Name):
                    self.states[item.id] = f"{fork.group}[{index}]"
        return [*self.expressions(node.value), Fork(span_of_node(node), fork.state, fork.group, fork.size)]

    def on_Assign(self, node: ast.Assign) -> list[Node]:
        target = node.targets[0]
        if len(node.targets) == 1 and isinstance(target, ast.Name):
            if isinstance(node.value, ast.Name) and node.value.id in self.states:
                self.states[target.id] = self.states[node.value.id]
                return []
            self.states.pop(target.id, None)
            self.groups.pop(target.id, None)
        forked = self.on_fork(node, target) if len(node.targets) == 1 else None
        if forked is not None:
            return forked
        if self.turn is not None and called_name(node.value) in ("gen", "select"):
            return [Append(span_of_node(node), self.turn, self.parts(node.value))]
        return [*self.expressions(node.value), Host(span_of_node(node), ast.unparse(node))]

    def on_Expr(self, node: ast.Expr) -> list[Node]:
        if isinstance(node.value, ast.Constant):
            return []
        if self.turn is not None and called_name(node.value) in ("gen", "select"):
            return [Append(span_of_node(node), self.turn, self.parts(node.value))]
        joined = self.join_call(node.value)
        if joined is not None:
            return [joined]
        turn = self.turn_call(node.value)
        if turn is not None:
            return turn
        inner = self.expressions(node.value)
        return inner or [Host(span_of_node(node), ast.unparse(node))]

    def on_Return(self, node: ast.Return) -> list[Node]:
        inner = [] if node.value is None else self.expressions(node.value)
        source = "" if node.value is None else ast.unparse(node.value)
        return [*inner, Return(span_of_node(node), source)]

    def on_If(self, node: ast.If) -> list[Node]:
        before = self.expressions(node.test)
        saved = dict(self.states)
        body = self.block(node.body)
        after, self.states = self.states, dict(saved)
        orelse = self.block(node.orelse)
        self.states = _join(after, self.states)
        return [*before, If(span_of_node(node), ast.unparse(node.test), body, orelse)]

    def on_Match(self, node: ast.Match) -> list[Node]:
        before = self.expressions(node.subject)
        cases: list[Node] = []
        saved = dict(self.states)
        for case in node.cases:
            self.states = dict(saved)
            body = self.block(case.body)
            first, last = case.pattern, case.body[-1]
            span = Span(first.lineno, first.col_offset, *span_of_node(last)[2:])
            cases.append(If(span, f"case {ast.unparse(case.pattern)}", body))
        self.states = saved
        return [*before, If(span_of_node(node), f"match {ast.unparse(node.subject)}", tuple(cases))]

    def on_For(self, node: ast.For) -> list[Node]:
        before = self.expressions(node.iter)
        head = f"for {ast.unparse(node.target)} in {ast.unparse(node.iter)}"
        for part in ast.walk(node.target):
            if isinstance(part, ast.Name):
                self.states.pop(part.id, None)
                self.groups.pop(part.id, None)
        self.loop_variable(node)
        body = self.block([*node.body, *node.orelse])
        return [*before, Loop(span_of_node(node), head, body)]

    def loop_variable(self, node: ast.For) -> None:
        """``for b in forks`` and ``for i, b in enumerate(forks)``."""
        over, target = node.iter, node.target
        if isinstance(over, ast.Call) and called_name(over) == "enumerate" and over.args:
            over = over.args[0]
            pair = isinstance(target, ast.Tuple) and len(target.elts) == 2
            target = target.elts[1] if pair and isinstance(target, ast.Tuple) else node.iter
        if isinstance(target, ast.Name):
            fork = self.fork_call(over, f"fork@{over.lineno}")
            branches = f"{fork.group}[*]" if fork is not None else None
            if isinstance(over, ast.Name):
                branches = self.branches(over)
            if branches is not None:
                self.states[target.id] = branches

    def on_While(self, node: ast.While) -> list[Node]:
        test = tuple(self.expressions(node.test))
        body = self.block([*node.body, *node.orelse])
        return [Loop(span_of_node(node), f"while {ast.unparse(node.test)}", test + body)]

    def on_With(self, node: ast.With) -> list[Node]:
        before: list[Node] = []
        kinds = []
        turn = self.turn
        begins: list[Part] = []
        state = ""
        for item in node.items:
            expr = item.context_expr
            role = called_name(expr)
            owner = self.owner(expr)
            if role in ROLES:
                kinds.append(role)
                state = owner or next(iter(self.states.values()), "")
                self.turn = None if owner else state
                begins.append(BeginPart(span_of_node(expr), role))
            elif role == "var_scope":
                kinds.append(ast.unparse(expr))
            else:
                before += self.expressions(expr)
                kinds.append(ast.unparse(expr))
        body = self.block(node.body)
        if begins:
            first = begins[0]
            assert isinstance(first, BeginPart)
            body = (
                Append(first.span, state, (first,)),
                *body,
                Append(first.span, state, (EndPart(first.span, first.role),)),
            )
        self.turn = turn
        return [*before, Scope(span_of_node(node), ", ".join(kinds), body)]

    def on_Try(self, node: ast.Try) -> list[Node]:
        body = self.block([*node.body, *node.orelse])
        handlers = tuple(n for h in node.handlers for n in self.block(h.body))
        return [Try(span_of_node(node), body, handlers, self.block(node.finalbody))]

    on_TryStar = on_Try

    def on_FunctionDef(self, node: ast.FunctionDef) -> list[Node]:
        return [Host(span_of_node(node), f"def {node.name}({ast.unparse(node.args)})")]

    def on_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> list[Node]:
        return [Host(span_of_node(node), f"async def {node.name}")]

    def on_ClassDef(self, node: ast.ClassDef) -> list[Node]:
        return [Host(span_of_node(node), f"class {node.name}")]


def _join(one: dict[str, str], other: dict[str, str]) -> dict[str, str]:
    """Names that are the same state on both ways."""
    return {key: value for key, value in one.items() if other.get(key) == value}
