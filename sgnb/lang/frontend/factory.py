"""Compile one function's tree in the surroundings it had, and make twins of functions.

The tree of a function is compiled inside a factory that is never executed: its parameters are the function's free
variables (so that they are free here too) and, for rewritten trees, the hooks. A class around it keeps ``__x`` mangled.
The factory binds no name of the user's, else a global would turn into a free variable.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType
from typing import Any

from sgnb.lang.frontend.rewrite import HOOKS, LIFTED, rewrite_function
from sgnb.lang.frontend.tree import children

FACTORY = "_sg_factory_"
_TOP: dict[str, Any] = {"lineno": 1, "col_offset": 0, "end_lineno": 1, "end_col_offset": 0}
"""The place of what stands around the function: only the function's own nodes keep theirs."""

FunctionNode = ast.FunctionDef | ast.Lambda


@dataclass(frozen=True, slots=True)
class Compiled:
    """The generator's code. ``make`` gives the twin of any function made from the same original code."""

    code: CodeType

    def make(self, func: FunctionType, hooks: Mapping[str, Any]) -> Callable[..., Any]:
        """A generator function with ``func``'s globals, defaults and closure cells."""
        cells = dict(zip(func.__code__.co_freevars, func.__closure__ or (), strict=True))
        closure = tuple(
            cells[name] if name in cells else CellType(hooks[name]) for name in self.code.co_freevars
        )
        twin = FunctionType(self.code, func.__globals__, func.__name__, func.__defaults__, closure)
        twin.__kwdefaults__ = dict(func.__kwdefaults__) if func.__kwdefaults__ else None
        return twin


def compile_in_factory(
    node: FunctionNode,
    *,
    filename: str,
    flags: int,
    free: tuple[str, ...],
    class_name: str | None,
    imports: tuple[str, ...] = (),
    hooks: tuple[str, ...] = (),
) -> CodeType:
    """The code object of ``node`` as if it stood where it stood. Raises SyntaxError as ``compile`` does.

    ``imports`` are the names the module imports: CPython compiles ``name.f()`` otherwise for them.
    """
    parameters = [ast.arg(arg=name, **_TOP) for name in (*free, *hooks)]
    inner: ast.stmt = ast.Expr(node, **_TOP) if isinstance(node, ast.Lambda) else node
    body: list[ast.stmt] = [inner]
    bound = [] if isinstance(node, ast.Lambda) else [node.name]
    if class_name is not None:
        body = [ast.ClassDef(name=class_name, bases=[], keywords=[], body=[inner], decorator_list=[], **_TOP)]
        bound = [class_name]
    hidden = [name for name in bound if name not in free]
    if hidden:
        body = [ast.Global(names=hidden, **_TOP), *body]
    factory = ast.FunctionDef(
        name=FACTORY,
        args=ast.arguments(posonlyargs=[], args=parameters, kwonlyargs=[], kw_defaults=[], defaults=[]),
        body=body,
        decorator_list=[],
        **_TOP,
    )
    dead: list[ast.stmt] = []
    if imports:
        names = [ast.alias(name="sys", asname=name, **_TOP) for name in imports]
        dead = [
            ast.If(
                test=ast.Constant(False, **_TOP), body=[ast.Import(names=names, **_TOP)], orelse=[], **_TOP
            )
        ]
    module = ast.Module(body=[*dead, factory], type_ignores=[])
    code: CodeType = compile(module, filename, "exec", flags=flags, dont_inherit=True)
    for _ in range(2 if class_name is None else 3):
        code = next(const for const in code.co_consts if isinstance(const, CodeType))
    return code


def imported_names(tree: ast.Module) -> tuple[str, ...]:
    """The names that a module imports in its own scope."""
    names: set[str] = set()
    todo: list[ast.AST] = list(tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            names.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            todo += children(node)
    return tuple(sorted(names - {"*"}))


def bare(node: FunctionNode) -> FunctionNode:
    """The function without decorators, defaults and annotations: they are evaluated outside of it."""
    arguments = node.args
    plain = ast.arguments(
        posonlyargs=[_bare_arg(a) for a in arguments.posonlyargs],
        args=[_bare_arg(a) for a in arguments.args],
        vararg=None if arguments.vararg is None else _bare_arg(arguments.vararg),
        kwonlyargs=[_bare_arg(a) for a in arguments.kwonlyargs],
        kw_defaults=[None] * len(arguments.kwonlyargs),
        kwarg=None if arguments.kwarg is None else _bare_arg(arguments.kwarg),
        defaults=[],
    )
    if isinstance(node, ast.Lambda):
        return ast.copy_location(ast.Lambda(args=plain, body=node.body), node)
    out = ast.FunctionDef(name=node.name, args=plain, body=node.body, decorator_list=[])
    ast.copy_location(out, node)
    if node.decorator_list:
        out.lineno = node.decorator_list[0].lineno  # co_firstlineno is the first decorator's line
    return out


def _bare_arg(arg: ast.arg) -> ast.arg:
    return ast.copy_location(ast.arg(arg=arg.arg), arg)


def compile_twin(
    node: FunctionNode,
    *,
    filename: str,
    flags: int,
    free: tuple[str, ...],
    class_name: str | None,
    imports: tuple[str, ...],
    qualname: str,
    name: str,
) -> Compiled:
    """Rewrite and compile. The tree given is not changed."""
    hooks = tuple(hook for hook in HOOKS if hook not in free)
    code = compile_in_factory(
        rewrite_function(bare(node)),
        filename=filename,
        flags=flags,
        free=free,
        class_name=class_name,
        imports=imports,
        hooks=hooks,
    )
    return Compiled(renamed(code, code.co_qualname, qualname, name))


def renamed(code: CodeType, old: str, new: str, name: str | None = None) -> CodeType:
    """The code with the factory's path out of its names, and lifted comprehensions called as Python calls them."""
    consts = tuple(
        renamed(const, old, new) if isinstance(const, CodeType) else const for const in code.co_consts
    )
    qualname = new + code.co_qualname[len(old) :] if code.co_qualname.startswith(old) else code.co_qualname
    shown = name or code.co_name
    for prefix, kind in LIFTED.items():
        if shown.startswith(prefix):
            shown = kind
            qualname = qualname.rpartition(".")[0] + "." + kind
    return code.replace(co_consts=consts, co_name=shown, co_qualname=qualname)
