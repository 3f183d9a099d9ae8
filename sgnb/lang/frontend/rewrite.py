"""Rewrite a function's body into a generator.

Appends are ordinary method calls and stay as they are. Only the places where a wait can happen are touched, and what
happens there is decided at run time by the object's type through hooks (``runtime.hooks``):

    x[k] (read, k not an int constant, slice or tuple)   (yield t) if (t := get(x, k)).__class__ is Pause else t
    f(args)                                              (yield t) if (t := pre(f, *names)(args)).__class__ is Pause else t
    y = f(args)   f(args)                                t = pre(f)(args); if t.__class__ is Pause: t = yield t; y = t
    x[k] += v                                            load, get, +=, store in the same order
    for i in e                                           for i in it(e)
    with e                                               with ctx(e)
    [.. for ..] with a call or a read in it              yield from a local generator function
    import                                               flush() before it

Bodies of nested functions, lambdas, classes and generator expressions stay Python: their reads block. All new nodes take
the position of the node they replace, so errors and recorded operations point at the user's text.
"""

from __future__ import annotations

import ast
from typing import Any

from sgnb.lang.frontend.comprehension import LIFTED as LIFTED
from sgnb.lang.frontend.comprehension import Lifter
from sgnb.lang.frontend.tree import at, children, copied

ADDED = "_sg_"
"""Every name that the rewriting adds begins so."""
GET, PRE, ITER, CTX, FLUSH, PAUSE = "_sg_get_", "_sg_pre_", "_sg_it_", "_sg_ctx_", "_sg_flush_", "_sg_pause_"
HOOKS = (GET, PRE, ITER, CTX, FLUSH, PAUSE)
TEMP = "_sg_t_"
DROPPED = "_sg_dropped_"
"""Takes the value of a statement that is only a call: ``lang.instruction_after`` knows it as dropped."""

Comprehension = ast.ListComp | ast.SetComp | ast.DictComp
Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef


def rewrite_function(node: Any) -> Any:
    """The generator of a function's tree (decorators, defaults and annotations already removed). Copies it first."""
    node = copied(node)
    global_names, nonlocal_names = _declared(node)
    rewriter = Rewriter(global_names=global_names, nonlocal_names=nonlocal_names)
    if isinstance(node, ast.Lambda):
        node.body = rewriter.visit(node.body)
        return _lambda_generator(node, rewriter)
    node.body = rewriter.body(node.body)
    return node


def _lambda_generator(node: ast.Lambda, rewriter: Rewriter) -> ast.FunctionDef:
    """A lambda with lifted comprehensions needs statements, so its twin is a function of the same name for people."""
    out = ast.FunctionDef(
        name="_sg_lambda_",
        args=node.args,
        body=rewriter.with_lifted([ast.copy_location(ast.Return(node.body), node.body)], node),
        decorator_list=[],
    )
    return ast.copy_location(out, node)


def _declared(node: ast.AST) -> tuple[frozenset[str], frozenset[str]]:
    """Names that the function's own scope declares global, and nonlocal."""
    global_names: set[str] = set()
    nonlocal_names: set[str] = set()
    todo = children(node)
    while todo:
        child = todo.pop()
        if isinstance(child, ast.Global):
            global_names.update(child.names)
        elif isinstance(child, ast.Nonlocal):
            nonlocal_names.update(child.names)
        elif isinstance(child, ast.stmt | ast.excepthandler | ast.match_case) and not isinstance(
            child, Scope
        ):
            todo += children(child)
    return frozenset(global_names), frozenset(nonlocal_names)


def name(id: str, ctx: ast.expr_context | None = None) -> ast.Name:
    """A name node without a position."""
    return ast.Name(id=id, ctx=ctx or ast.Load())


class Rewriter(ast.NodeTransformer):
    """See the module. One per function scope, lifted comprehensions included (they get their own)."""

    def __init__(
        self,
        *,
        global_names: frozenset[str] = frozenset(),
        nonlocal_names: frozenset[str] = frozenset(),
        module_scope: bool = False,
    ) -> None:
        self.global_names = global_names
        self.nonlocal_names = nonlocal_names
        self.module_scope = module_scope
        """True for the body of a cell, which stands for module level."""
        self.lifter = Lifter(self)
        self._plain = False

    # ------------------------------------------------------------ statements

    def body(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """The rewritten body of the function, a generator whatever it holds."""
        out: list[ast.stmt] = []
        for statement in statements:
            result = self.visit(statement)
            out += result if isinstance(result, list) else [result]
        return self.with_lifted(out, statements[0])

    def with_lifted(self, statements: list[ast.stmt], where: ast.AST) -> list[ast.stmt]:
        """Put the lifted comprehensions and a dead ``yield`` before the statements."""
        doc = _docstring(statements)
        dead = ast.If(test=ast.Constant(False), body=[ast.Expr(ast.Yield(None))], orelse=[])
        dead.body += [
            ast.Assign(targets=[name(walrus, ast.Store())], value=ast.Constant(None))
            for walrus in sorted(self.lifter.walrus - self.global_names - self.nonlocal_names)
        ]
        return [*statements[:doc], at(where, dead), *self.lifter.functions, *statements[doc:]]

    def visit_Expr(self, node: ast.Expr) -> Any:
        """A statement that is only a call keeps a store after the call (rule 1 looks at it)."""
        if isinstance(node.value, ast.Call):
            return self._statement(node, node.value, DROPPED)
        return self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> Any:
        """``x = f(…)``."""
        target = node.targets[0]
        if isinstance(node.value, ast.Call) and len(node.targets) == 1 and isinstance(target, ast.Name):
            return [
                *self._statement(node, node.value, TEMP),
                at(node, ast.Assign(targets=[target], value=name(TEMP))),
            ]
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        """``x: T = f(…)``: the annotation of a local is never evaluated; at module level it is dropped."""
        if node.value is None:
            return at(node, ast.Pass()) if self.module_scope else node
        if isinstance(node.target, ast.Name) and (isinstance(node.value, ast.Call) or self.module_scope):
            return self.visit_Assign(
                ast.copy_location(ast.Assign(targets=[node.target], value=node.value), node)
            )
        node.target = self.visit(node.target)
        node.value = self.visit(node.value)
        return node

    def _statement(self, node: ast.stmt, call: ast.Call, temp: str) -> list[ast.stmt]:
        value = self._call(call)
        wait = ast.If(
            test=self._is_pause(name(temp)),
            body=[ast.Assign(targets=[name(temp, ast.Store())], value=ast.Yield(name(temp)))],
            orelse=[],
        )
        return [
            at(node, ast.Assign(targets=[name(temp, ast.Store())], value=value)),
            at(call, wait),
        ]

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        """``x[k] += v`` reads through the hook."""
        target = node.target
        if not isinstance(target, ast.Subscript) or _constant_key(target.slice):
            return self.generic_visit(node)
        obj, key, val = "_sg_o_", "_sg_k_", "_sg_v_"
        read = self._yielding(ast.Call(func=name(GET), args=[name(obj), name(key)], keywords=[]))
        return [
            at(node, ast.Assign(targets=[name(obj, ast.Store())], value=self.visit(target.value))),
            at(node, ast.Assign(targets=[name(key, ast.Store())], value=self.visit(target.slice))),
            at(target, ast.Assign(targets=[name(val, ast.Store())], value=at(target, read))),
            at(node, ast.AugAssign(target=name(val, ast.Store()), op=node.op, value=self.visit(node.value))),
            at(
                node,
                ast.Assign(
                    targets=[ast.Subscript(value=name(obj), slice=name(key), ctx=ast.Store())],
                    value=name(val),
                ),
            ),
        ]

    def visit_For(self, node: ast.For) -> Any:
        """The iterable goes through ``it``."""
        self.generic_visit(node)
        node.iter = at(node.iter, ast.Call(func=name(ITER), args=[node.iter], keywords=[]))
        return node

    def visit_With(self, node: ast.With) -> Any:
        """Each manager goes through ``ctx``."""
        self.generic_visit(node)
        for item in node.items:
            expr = item.context_expr
            item.context_expr = at(expr, ast.Call(func=name(CTX), args=[expr], keywords=[]))
        return node

    def visit_Import(self, node: ast.Import) -> Any:
        """An import may take long: send what was recorded first."""
        return [at(node, ast.Expr(ast.Call(func=name(FLUSH), args=[], keywords=[]))), node]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> Any:
        """As ``import``."""
        return [at(node, ast.Expr(ast.Call(func=name(FLUSH), args=[], keywords=[]))), node]

    # ------------------------------------------------------------ nested scopes: only what is evaluated here

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        """Decorators and defaults."""
        node.decorator_list = [self.visit(d) for d in node.decorator_list]
        self._defaults(node.args)
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> Any:
        """Decorators and defaults."""
        node.decorator_list = [self.visit(d) for d in node.decorator_list]
        self._defaults(node.args)
        return node

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        """Defaults."""
        self._defaults(node.args)
        return node

    def _defaults(self, arguments: ast.arguments) -> None:
        arguments.defaults = [self.visit(d) for d in arguments.defaults]
        arguments.kw_defaults = [None if d is None else self.visit(d) for d in arguments.kw_defaults]

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        """Decorators and bases."""
        node.decorator_list = [self.visit(d) for d in node.decorator_list]
        node.bases = [self.visit(b) for b in node.bases]
        for keyword in node.keywords:
            keyword.value = self.visit(keyword.value)
        return node

    # ------------------------------------------------------------ expressions

    def visit_Call(self, node: ast.Call) -> Any:
        """A call that may park or enter a program."""
        return self._yielding(self._call(node))

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        """A read that may park."""
        if not isinstance(node.ctx, ast.Load) or _constant_key(node.slice):
            return self.generic_visit(node)
        value, key = self.visit(node.value), self.visit(node.slice)
        return self._yielding(at(node, ast.Call(func=name(GET), args=[value, key], keywords=[])))

    def visit_ListComp(self, node: ast.ListComp) -> Any:
        """Lifted when it holds a call or a read."""
        return self.lifter.lift(node)

    def visit_SetComp(self, node: ast.SetComp) -> Any:
        """Lifted when it holds a call or a read."""
        return self.lifter.lift(node)

    def visit_DictComp(self, node: ast.DictComp) -> Any:
        """Lifted when it holds a call or a read."""
        return self.lifter.lift(node)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> Any:
        """Only its first iterable is evaluated here; a walrus is illegal there, so it yields always."""
        plain, self._plain = self._plain, True
        node.generators[0].iter = self.visit(node.generators[0].iter)
        self._plain = plain
        return node

    def _call(self, node: ast.Call) -> ast.Call:
        """``pre(F, names)(args)`` in the place of ``F(args)``: the call itself stays in the user's frame."""
        if self.module_scope:
            _module_level(node)
        names = _early_names(node)
        func = self.visit(node.func)
        node.args = [self.visit(a) for a in node.args]
        for keyword in node.keywords:
            keyword.value = self.visit(keyword.value)
        node.func = at(node, ast.Call(func=name(PRE), args=[func, *names], keywords=[]))
        return node

    def _yielding(self, value: ast.expr) -> ast.expr:
        if self._plain:
            return ast.copy_location(ast.Yield(value), value)
        test = self._is_pause(ast.NamedExpr(target=name(TEMP, ast.Store()), value=value))
        out = ast.IfExp(test=test, body=ast.Yield(name(TEMP)), orelse=name(TEMP))
        return out if not hasattr(value, "lineno") else at(value, out)

    @staticmethod
    def _is_pause(value: ast.expr) -> ast.Compare:
        return ast.Compare(
            left=ast.Attribute(value=value, attr="__class__", ctx=ast.Load()),
            ops=[ast.Is()],
            comparators=[name(PAUSE)],
        )


def _docstring(statements: list[ast.stmt]) -> int:
    """How many leading statements must stay first: a docstring, and global or nonlocal declarations."""
    count = 0
    for statement in statements:
        string = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not string and not isinstance(statement, ast.Global | ast.Nonlocal):
            break
        count += 1
    return count


def _constant_key(key: ast.expr) -> bool:
    """Keys that can never name a variable of a state."""
    if isinstance(key, ast.UnaryOp):
        key = key.operand
    return isinstance(key, ast.Slice | ast.Tuple) or (
        isinstance(key, ast.Constant) and not isinstance(key.value, str)
    )


def _early_names(node: ast.Call) -> list[ast.expr]:
    """The arguments that are plain names and can be read before the others without a difference.

    ``pre`` looks whether one of them is a state. A name behind a call or a walrus may not be bound yet, so it is left out.
    """
    out: list[ast.expr] = []
    for value in [*node.args, *(keyword.value for keyword in node.keywords)]:
        if isinstance(value, ast.Name):
            out.append(ast.copy_location(name(value.id), value))
        elif not isinstance(value, ast.Constant | ast.Attribute | ast.Lambda):
            break
    return out


def _module_level(node: ast.Call) -> None:
    """``locals()``, ``vars()`` and ``exec(text)`` of a cell mean its globals, as at module level."""
    if not isinstance(node.func, ast.Name) or node.keywords:
        return
    if node.func.id in ("locals", "vars", "dir") and not node.args:
        if node.func.id == "dir":
            node.args = [at(node, ast.Call(func=name("globals"), args=[], keywords=[]))]
            node.func = at(node.func, name("sorted"))
        else:
            node.func = at(node.func, name("globals"))
    elif node.func.id in ("exec", "eval") and len(node.args) == 1:
        node.args.append(at(node, ast.Call(func=name("globals"), args=[], keywords=[])))
