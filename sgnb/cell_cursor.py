"""Where the cursor stands in the text of a ``%%sgl`` cell, and what the names before it are.

Notebook process; used by ``completion``. Pure: text in, facts out, also of a text that cannot be parsed yet. No names of
the language, no IPython, no engine here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass

_PREFIX = re.compile(r"(?<!\w)[fFrRbBuU]{1,2}$")
_BASE = re.compile(r"([A-Za-z_]\w*)\s*((?:\[[^\[\]]*\])?)\s*$")
_OPENERS, _CLOSERS = "([{", ")]}"


@dataclass(frozen=True, slots=True)
class Place:
    """What stands around a cursor. ``kind``: ``code``, ``string`` or ``comment``; ``code``: the code before the cursor, or
    before the string it stands in; ``text``: what of that string stands before it.

    Inside of an f-string's braces it is code, and begins there. Texts of strings and comments in ``code`` are blank.
    """

    kind: str
    code: str
    text: str = ""


@dataclass(slots=True)
class _Open:
    """What is open at a place of the text: code (of the cell, or in an f-string's braces), or a string with its quote."""

    begin: int
    quote: str = ""
    formatted: bool = False
    depth: int = 0


def place_of(before: str) -> Place:
    """The place at the end of ``before``, the body of a cell up to the cursor."""
    masked = list(before)
    stack = [_Open(0)]
    at = 0
    while at < len(before):
        char, top = before[at], stack[-1]
        if top.quote:
            at = _in_string(before, at, masked, stack)
            continue
        if char == "#":
            end = before.find("\n", at)
            if end < 0:
                return Place("comment", "")
            masked[at:end] = " " * (end - at)
            at = end
            continue
        if char in "'\"":
            quote = char * 3 if before.startswith(char * 3, at) else char
            prefix = _PREFIX.search(before[max(0, at - 3) : at])
            at += len(quote)
            stack.append(_Open(at, quote, prefix is not None and "f" in prefix.group().lower()))
            continue
        if char in _OPENERS:
            top.depth += 1
        elif char == "}" and top.depth == 0 and len(stack) > 1:
            stack.pop()
        elif char in _CLOSERS:
            top.depth = max(0, top.depth - 1)
        at += 1
    top = stack[-1]
    if not top.quote:
        return Place("code", "".join(masked[top.begin :]))
    return Place("string", "".join(masked[stack[-2].begin : top.begin - len(top.quote)]), before[top.begin :])


def _in_string(before: str, at: int, masked: list[str], stack: list[_Open]) -> int:
    """Go on by one step in a string."""
    top, char = stack[-1], before[at]
    if before.startswith(top.quote, at):
        stack.pop()
        return at + len(top.quote)
    if char == "\n" and len(top.quote) == 1:  # it was never closed
        stack.pop()
        return at
    twice = top.formatted and before.startswith("{{", at)
    if top.formatted and char == "{" and not twice:
        stack.append(_Open(at + 1))
        return at + 1
    step = 2 if char == "\\" or twice else 1
    for place in range(at, min(at + step, len(masked))):
        masked[place] = "\n" if before[place] == "\n" else " "
    return at + step


def open_call(code: str) -> str:
    """The name of the call whose argument begins at the end of ``code``, without the word that is being typed; else ""."""
    head = re.sub(r"\w*$", "", code).rstrip()
    if not head.endswith(("(", ",")):
        return ""
    at = _opened(head)
    found = re.search(r"([A-Za-z_]\w*)\s*$", head[:at]) if at >= 0 and head[at] == "(" else None
    return found.group(1) if found else ""


def given_before(code: str) -> tuple[int, list[str]]:
    """How many arguments by place the open call has before the cursor, and the names of those given by name."""
    head = re.sub(r"\w*$", "", code).rstrip()
    parts, depth = [""], 0
    for char in head[_opened(head) + 1 :]:
        depth += (char in _OPENERS) - (char in _CLOSERS)
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    named = [found[1] for part in parts if (found := re.match(r"\s*([A-Za-z_]\w*)\s*=(?!=)", part))]
    return len(parts) - 1 - len(named), named


def _opened(code: str) -> int:
    """Where the innermost bracket that is open at the end of ``code`` stands; -1 if none is."""
    depth = 0
    for at in range(len(code) - 1, -1, -1):
        if code[at] in _CLOSERS:
            depth += 1
        elif code[at] in _OPENERS:
            if depth == 0:
                return at
            depth -= 1
    return -1


def base_of(code: str) -> tuple[str, bool] | None:
    """The name that ``code`` ends with, and whether it has a subscript: ``forks[0]`` is ``("forks", True)``."""
    found = _BASE.search(code)
    return (found.group(1), bool(found.group(2))) if found else None


def states_in(statements: Iterable[ast.stmt], state: str = "s") -> tuple[set[str], set[str]]:
    """Names that surely hold a state of the program, and those that hold the branches of a fork, as far as text shows."""
    nodes = [node for statement in statements for node in ast.walk(statement)]
    states, groups = {state}, set[str]()
    for _ in range(2):  # a name may be used above the line that binds it, as in a loop
        for node in nodes:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    _bind(target, node.value, states, groups)
            elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
                _bind_each(node.target, node.iter, states, groups)
    return states, groups


def _is_group(value: ast.expr, groups: set[str]) -> bool:
    if isinstance(value, ast.Name):
        return value.id in groups
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "fork"


def _is_state(value: ast.expr, states: set[str], groups: set[str]) -> bool:
    if isinstance(value, ast.Name):
        return value.id in states
    if isinstance(value, ast.Subscript):
        return _is_group(value.value, groups)
    made = (
        isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "fork_at"
    )
    return made


def _bind(target: ast.expr, value: ast.expr, states: set[str], groups: set[str]) -> None:
    if isinstance(target, ast.Tuple | ast.List) and _is_group(value, groups):
        states |= {one.id for one in target.elts if isinstance(one, ast.Name)}
    elif isinstance(target, ast.Name):
        if _is_group(value, groups):
            groups.add(target.id)
        elif _is_state(value, states, groups):
            states.add(target.id)


def _bind_each(target: ast.expr, over: ast.expr, states: set[str], groups: set[str]) -> None:
    """``for f in forks``, ``for f, a in zip(forks, …)``, ``for i, f in enumerate(forks)``."""
    if _is_group(over, groups):
        if isinstance(target, ast.Name):
            states.add(target.id)
        return
    if not (isinstance(over, ast.Call) and isinstance(over.func, ast.Name) and isinstance(target, ast.Tuple)):
        return
    if over.func.id == "zip":
        for one, each in zip(target.elts, over.args, strict=False):
            _bind_each(one, each, states, groups)
    elif over.func.id == "enumerate" and over.args and len(target.elts) == 2:
        _bind_each(target.elts[1], over.args[0], states, groups)
