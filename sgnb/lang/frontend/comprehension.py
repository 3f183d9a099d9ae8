"""Lift a comprehension into a local generator function.

A comprehension cannot hold ``yield``, so one with a call or a read in it becomes what CPython 3.11 makes of it itself: a
function of its first iterable, here a generator that is run with ``yield from``. Evaluation order and scopes stay.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from sgnb.lang.frontend.tree import at, children, walk

if TYPE_CHECKING:
    from sgnb.lang.frontend.rewrite import Comprehension, Rewriter

LIFTED = {"_sg_listcomp_": "<listcomp>", "_sg_setcomp_": "<setcomp>", "_sg_dictcomp_": "<dictcomp>",
          "_sg_lambda_": "<lambda>"}  # fmt: skip
"""Names of functions the rewriter makes, and what tracebacks call them."""
_ACC, _FIRST, _KEY = "_sg_acc_", "_sg_first_", "_sg_key_"


class Lifter:
    """Collects the lifted functions of one scope."""

    def __init__(self, rewriter: Rewriter) -> None:
        self._rewriter = rewriter
        self.functions: list[ast.stmt] = []
        self.walrus: set[str] = set()
        """Names a walrus inside a comprehension binds in this scope."""

    def lift(self, node: Comprehension) -> Any:
        """``yield from c0(first iterable)``, or the comprehension itself when nothing in it can wait."""
        first = node.generators[0]
        if not _can_wait(node) or any(g.is_async for g in node.generators):
            return node
        kind = {"ListComp": "_sg_listcomp_", "SetComp": "_sg_setcomp_"}.get(
            type(node).__name__, "_sg_dictcomp_"
        )
        iterable = self._rewriter.visit(first.iter)
        own = f"{kind}{len(self.functions)}"  # after the iterable, which may hold a comprehension that is lifted first
        self.functions.append(self._function(own, node))
        call = ast.Call(func=ast.Name(own, ast.Load()), args=[iterable], keywords=[])
        return at(node, ast.YieldFrom(call))

    def _function(self, own: str, node: Comprehension) -> ast.stmt:
        outer = self._rewriter
        walrus = _walrus_names(node)
        self.walrus |= walrus
        inner = type(outer)(
            global_names=outer.global_names, nonlocal_names=outer.nonlocal_names, module_scope=False
        )
        statements: list[ast.stmt] = [_store(node, inner)]
        for generator in reversed(node.generators):
            for test in reversed(generator.ifs):
                statements = [ast.If(test=inner.visit(test), body=statements, orelse=[])]
            iterable = (
                ast.Name(_FIRST, ast.Load())
                if generator is node.generators[0]
                else inner.visit(generator.iter)
            )
            loop = ast.For(target=generator.target, iter=_hooked(iterable), body=statements, orelse=[])
            statements = [at(generator.target, loop)]
        empty: ast.expr = ast.List([], ast.Load())
        if isinstance(node, ast.SetComp):
            empty = ast.Set([ast.Starred(ast.Tuple([], ast.Load()), ast.Load())])  # no name of the user's
        elif isinstance(node, ast.DictComp):
            empty = ast.Dict([], [])
        body: list[ast.stmt] = []
        for names, kind in (
            (walrus & outer.global_names, ast.Global),
            (walrus - outer.global_names, ast.Nonlocal),
        ):
            if names:
                body.append(kind(names=sorted(names)))
        body.append(ast.Assign(targets=[ast.Name(_ACC, ast.Store())], value=empty))
        body += statements
        body.append(ast.Return(ast.Name(_ACC, ast.Load())))
        function = ast.FunctionDef(
            name=own,
            args=ast.arguments(
                posonlyargs=[], args=[ast.arg(_FIRST)], kwonlyargs=[], kw_defaults=[], defaults=[]
            ),
            body=inner.with_lifted(body, node),
            decorator_list=[],
        )
        return at(node, function)


def _store(node: Comprehension, inner: Rewriter) -> ast.stmt:
    acc = ast.Name(_ACC, ast.Load())
    if isinstance(node, ast.DictComp):
        key = ast.Assign(targets=[ast.Name(_KEY, ast.Store())], value=inner.visit(node.key))
        item = ast.Subscript(value=acc, slice=ast.Name(_KEY, ast.Load()), ctx=ast.Store())
        value = ast.Assign(targets=[item], value=inner.visit(node.value))
        return at(node, ast.If(test=ast.Constant(True), body=[key, value], orelse=[]))
    method = "append" if isinstance(node, ast.ListComp) else "add"
    call = ast.Call(
        func=ast.Attribute(value=acc, attr=method, ctx=ast.Load()), args=[inner.visit(node.elt)], keywords=[]
    )
    return at(node, ast.Expr(call))


def _hooked(iterable: ast.expr) -> ast.expr:
    return ast.Call(func=ast.Name("_sg_it_", ast.Load()), args=[iterable], keywords=[])


def _can_wait(node: ast.AST) -> bool:
    return any(isinstance(part, ast.Call | ast.Subscript) for part in walk(node))


def _walrus_names(node: ast.AST) -> set[str]:
    """Names a walrus in the comprehension (or in one inside it) binds; nested functions keep their own."""
    names: set[str] = set()
    todo = children(node)
    while todo:
        child = todo.pop()
        if isinstance(child, ast.Lambda):
            continue
        if isinstance(child, ast.NamedExpr) and isinstance(child.target, ast.Name):
            names.add(child.target.id)
        todo += children(child)
    return names
