"""Uses of the state that a program's text alone shows to be mistakes: a method without its brackets, a state that is lost.

Notebook process; asked of a ``%%sgl`` cell and of a program's tree before anything runs. ``s.messages`` alone, in an
f-string, compared or gone through is legal Python that does nothing or says nothing, and so is ``s = "text"`` before
``s += gen("x")``: all are refused. A method that is handed on (``map(s.get_var, names)``) is not. Only names that surely
mean the state, or its branches, are looked at.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from sgnb.errors import ProgramTypeError
from sgnb.lang.frontend.cells import own_scope
from sgnb.lang.frontend.graph_expressions import span_of_node
from sgnb.lang.frontend.tree import walk
from sgnb.lang.position import source_position

STATE_METHODS: tuple[str, ...] = (
    "text", "messages", "text_so_far", "get_var", "set_var", "names", "get_meta_info", "text_iter", "text_async_iter",
    "sync", "error", "system", "user", "assistant", "var_scope", "fork", "fork_at", "copy", "mark", "rewind", "save",
    "close",
)  # fmt: skip
"""What users call on a state."""


def check_state_uses(tree: ast.AST, state: str, filename: str) -> None:
    """Refuse, in the tree's own scope: ProgramTypeError at the first one. A name that is bound anew is left alone."""
    nodes = list(own_scope(tree))
    bound = Counter(
        node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    )
    bound.update(
        name
        for node in nodes
        for name in (getattr(node, "asname", None) or getattr(node, "name", None),)
        if name
    )
    kept = Counter(
        node.target.id
        for node in nodes
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
    )
    methods: dict[str, tuple[str, ...]] = {} if bound[state] > kept[state] else {state: STATE_METHODS}
    methods |= {name: ("join",) for name in _forks(nodes, state) if bound[name] == kept[name] + 1}
    faults = [_lost(node, state, filename) for node in _losses(nodes, state)]
    for node in nodes:
        for part in _useless(node):
            if isinstance(part, ast.Attribute) and part.attr in methods.get(_owner(part), ()):
                text = f"{_owner(part)}.{part.attr}"
                faults.append(
                    ProgramTypeError(
                        f"`{text}` without brackets is the method itself, not what it gives.",
                        hint=f"Call it: {text}(…)." if part.attr in _NEEDS else f"Call it: {text}().",
                        position=source_position(filename, span_of_node(part)),
                    )
                )
        for target in _targets(node):
            if (
                isinstance(target, ast.Attribute)
                and state in methods
                and _owner(target) == state
                and (target.attr in STATE_METHODS or _is_expression(node))
            ):
                hides = target.attr in STATE_METHODS
                faults.append(
                    ProgramTypeError(
                        f"`{state}.{target.attr} = …` "
                        + (
                            "hides a method of the state."
                            if hides
                            else "appends nothing and binds no variable."
                        ),
                        hint="Take another name."
                        if hides
                        else f'Append under that name: {state} += gen("{target.attr}").',
                        position=source_position(filename, span_of_node(target)),
                    )
                )
    if faults:
        raise min(faults, key=_place)


def _place(fault: ProgramTypeError) -> tuple[int, int]:
    return (0, 0) if fault.position is None else (fault.position.line, fault.position.col)


def _losses(nodes: list[ast.AST], state: str) -> list[ast.Assign]:
    """``s = "text"`` and behind it ``s += gen("x")``, where ``s`` is not read any more: nothing is ever generated."""
    texts = [node for node in nodes if isinstance(node, ast.Assign) and _is_text(node.value)]
    texts = [node for node in texts if any(isinstance(t, ast.Name) and t.id == state for t in node.targets)]
    if len(texts) != 1:
        return []
    line = texts[0].lineno
    later = [node for node in nodes if getattr(node, "lineno", 0) > line]
    appended = any(
        isinstance(node, ast.AugAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id == state
        and any(_called(part) in _GENERATING for part in walk(node.value))
        for node in later
    )
    read = any(isinstance(n, ast.Name) and n.id == state and isinstance(n.ctx, ast.Load) for n in later)
    return texts if appended and not read else []


def _is_text(value: ast.expr) -> bool:
    return isinstance(value, ast.JoinedStr) or (
        isinstance(value, ast.Constant) and isinstance(value.value, str)
    )


def _lost(node: ast.Assign, state: str, filename: str) -> ProgramTypeError:
    return ProgramTypeError(
        f"`{state}` is the state; from here on it is a text, and what is appended to it is generated nowhere.",
        hint=f"To append write {state} += …; give the text another name.",
        position=source_position(filename, span_of_node(node)),
    )


_GENERATING = ("gen", "gen_int", "gen_string", "select")


def _called(node: ast.AST | None) -> str:
    func = node.func if isinstance(node, ast.Call) else None
    return func.id if isinstance(func, ast.Name) else func.attr if isinstance(func, ast.Attribute) else ""


def _is_expression(node: ast.AST) -> bool:
    """An assignment of ``gen(…)`` or its kin: it appends nothing. Other attributes are the program's own business."""
    return _called(getattr(node, "value", None)) in _GENERATING


def _owner(node: ast.expr) -> str:
    """``s`` of ``s.text``."""
    return node.value.id if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) else ""


def _forks(nodes: list[ast.AST], state: str) -> Iterator[str]:
    """Names that ``state.fork(…)`` is bound to."""
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and len(node.targets) == 1:
            func, target = node.value.func, node.targets[0]
            if isinstance(target, ast.Name) and _owner(func) == state and func.attr == "fork":  # type: ignore[attr-defined]
                yield target.id


_NEEDS = ("get_var", "set_var", "get_meta_info", "var_scope", "fork_at", "rewind", "save")


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign) else []


def _useless(node: ast.AST) -> Iterator[ast.expr]:
    """The parts of a node whose value must be more than a bound method."""
    if isinstance(node, ast.Expr | ast.FormattedValue | ast.Subscript):
        yield node.value
    elif isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert):
        yield node.test
    elif isinstance(node, ast.BoolOp):
        yield from node.values
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, ast.BinOp):
        yield from (node.left, node.right)
    elif isinstance(node, ast.Compare):
        yield from (node.left, *node.comparators)
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        yield node.iter
    elif isinstance(node, ast.withitem):
        yield node.context_expr
    elif isinstance(node, ast.AugAssign):
        yield node.value
