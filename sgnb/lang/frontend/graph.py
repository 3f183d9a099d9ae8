"""Read the static graph out of a function's or a cell's tree.

A small abstract interpreter over names: it follows which names surely are states (the first parameter, ``s`` in a cell,
plain aliases) and turns the rest into host nodes. A wrong guess here can change what is shown, never what runs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from sgnb.lang.ir import (
    Append,
    BeginPart,
    Call,
    EndPart,
    Fork,
    GenPart,
    Graph,
    HolePart,
    Host,
    HostCall,
    If,
    Join,
    Loop,
    Node,
    Part,
    Read,
    Return,
    Scope,
    SelectPart,
    TextPart,
    Try,
)
from sgnb.lang.position import Span

ROLES = ("system", "user", "assistant")
WAITING_METHODS = ("text", "sync", "messages", "get_var", "get_meta_info", "error", "text_iter")


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


def span_of_node(node: ast.AST) -> Span:
    """The node's lines and columns."""
    line, col = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
    end_line = getattr(node, "end_lineno", None) or line
    return Span(line, col, end_line, getattr(node, "end_col_offset", None) or col + 1)


class _Reader:
    """Statements to nodes. ``states``: name → what the state is called in the graph."""

    def __init__(self, states: dict[str, str]) -> None:
        self.states = states
        self.groups: dict[str, str] = {}
        """Names that surely are branches, and what they are called in the graph."""
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
        if state is None or not isinstance(node, ast.Call) or _called(node) != "fork":
            return None
        size = node.args[0] if node.args else next((k.value for k in node.keywords if k.arg == "size"), None)
        return Fork(span_of_node(node), state, group, "1" if size is None else ast.unparse(size))

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
        if self.turn is not None and _called(node.value) in ("gen", "select"):
            return [Append(span_of_node(node), self.turn, self.parts(node.value))]
        return [*self.expressions(node.value), Host(span_of_node(node), ast.unparse(node))]

    def on_Expr(self, node: ast.Expr) -> list[Node]:
        if isinstance(node.value, ast.Constant):
            return []
        if self.turn is not None and _called(node.value) in ("gen", "select"):
            return [Append(span_of_node(node), self.turn, self.parts(node.value))]
        joined = self.join_call(node.value)
        if joined is not None:
            return [joined]
        turn = self.turn_call(node.value)
        if turn is not None:
            return turn
        inner = self.expressions(node.value)
        return inner or [Host(span_of_node(node), ast.unparse(node))]

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
        if isinstance(over, ast.Call) and _called(over) == "enumerate" and over.args:
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
            role = _called(expr)
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

    # ------------------------------------------------------------ expressions

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
        for child in ast.iter_child_nodes(node):
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
        called = _called(node)
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
            called = _called(node)
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


def _called(node: ast.expr) -> str:
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
    if _called(node) == "select":
        choices = choices or (node.args[1] if len(node.args) > 1 else None)
    if choices is not None or _called(node) == "select":
        return SelectPart(span_of_node(node), name, _constants(choices))
    params = tuple((key, ast.unparse(value)) for key, value in keywords.items())
    return GenPart(span_of_node(node), name, params)


def _constants(node: ast.expr | None) -> tuple[str, ...]:
    """The texts of a constant list, else nothing."""
    items = node.elts if isinstance(node, ast.List | ast.Tuple) else []
    out = [item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)]
    return tuple(out) if len(out) == len(items) else ()


def _join(one: dict[str, str], other: dict[str, str]) -> dict[str, str]:
    """Names that are the same state on both ways."""
    return {key: value for key, value in one.items() if other.get(key) == value}
