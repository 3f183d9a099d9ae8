"""What a word of a ``%%sgl`` cell means: a name of the language, a parameter, a variable and what binds it, an option.

Notebook process; called by ``panel`` for the page's hover texts, on a comm's thread beside a running cell. The cell is read,
never run. No comm here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sgnb
from sgnb import edit_lines, magic_options, panel_edit
from sgnb.edit_checks import sure_states
from sgnb.errors import SgnbError, a_type_of
from sgnb.lang.frontend.cells import CellSource, parse_cell
from sgnb.lang.frontend.own_names import OwnNames
from sgnb.variables_bound import Bound, bound_variables
from sgnb.widgets import words


@dataclass(slots=True)
class _Read:
    """A cell that was read."""

    source: CellSource
    own: OwnNames
    bound: Bound
    states: set[str]
    groups: set[str]
    names: Mapping[str, Any]
    start: str | None
    lines: list[str]


def about(source: str, line: int, col: int, names: Mapping[str, Any]) -> dict[str, Any] | None:
    """What stands at a place (line from 1, column from 0 in characters): ``signature`` and ``text``, with ``line``, ``col``
    and ``end_col`` of the word. None where nothing is to be said; ``{"unread": True}`` for a text that cannot be parsed.
    """
    lines = source.split("\n")
    if len(source) > panel_edit.MAX_SOURCE or not 1 <= line <= len(lines):
        return None
    if not panel_edit.is_cell(source):
        return edit_lines.about(source, line, col)
    if lines[line - 1].lstrip().startswith("%%sgl"):
        return _option(lines[line - 1], line, col)
    try:
        read = _read(source, names)
    except SgnbError:
        return {"unread": True}
    at = (line, len(lines[line - 1][:col].encode()))
    for node in _around(read.source.tree, at):
        said = _say(node, at, read)
        if said is not None:
            (begin, end), signature, text = said
            here = lines[line - 1].encode()
            return {
                "line": line, "col": len(here[:begin].decode(errors="ignore")),
                "end_col": len(here[:end].decode(errors="ignore")),
                "signature": words.visible(signature), "text": words.visible(text),
            }  # fmt: skip
    return None


def _read(source: str, names: Mapping[str, Any]) -> _Read:
    text, magic = panel_edit.split_magic(source)
    with panel_edit.text_known(text):
        cell = parse_cell(text, panel_edit.CELL_NAME)
    try:
        start = magic_options.parse_cell(magic).start
    except Exception:  # what is wrong in the magic's line has a squiggle there
        start = None
    own = OwnNames(cell.tree, names)
    states, groups = sure_states(cell.tree)
    return _Read(
        cell, own, bound_variables(cell, own, names, start), states, groups, names, start, source.split("\n")
    )


def _around(tree: ast.AST, at: tuple[int, int]) -> Iterator[ast.AST]:
    """The nodes that cover a place, the innermost first."""
    found: list[ast.AST] = []
    for node in ast.walk(tree):
        begin = (getattr(node, "lineno", 0), getattr(node, "col_offset", 0))
        end = (getattr(node, "end_lineno", 0) or 0, getattr(node, "end_col_offset", 0) or 0)
        if begin <= at <= end and begin[0]:
            found.append(node)
    yield from reversed(found)


_Said = tuple[tuple[int, int], str, str]


def _say(node: ast.AST, at: tuple[int, int], read: _Read) -> _Said | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _variable(node, read)
    if isinstance(node, ast.Name):
        place = (node.col_offset, node.col_offset + len(node.id.encode()))
        return _name(node, place, read)
    if isinstance(node, ast.Attribute) and node.end_lineno == at[0]:
        end = node.end_col_offset or 0
        place = (end - len(node.attr.encode()), end)
        return _attribute(node, place, read) if place[0] <= at[1] <= end else None
    if isinstance(node, ast.keyword) and node.arg is not None and node.lineno == at[0]:
        place = (node.col_offset, node.col_offset + len(node.arg.encode()))
        return _parameter(node, place, read) if at[1] <= place[1] else None
    return None


def _known(entry: Mapping[str, str] | None, place: tuple[int, int]) -> _Said | None:
    return (place, entry["signature"], entry["text"]) if entry else None


def _name(node: ast.Name, place: tuple[int, int], read: _Read) -> _Said | None:
    language = panel_edit.language()
    if called := read.own.called(node):
        return _known(language["names"][called], place)
    if node.id in ("s", "function") and not read.own.bound[node.id] - (
        node.id == "s" and node.id in read.states
    ):
        return _known(language["names"][node.id], place)
    if node.id in read.states:
        return place, f"{node.id}: State", _lines_that_bind(node.id, read)
    if node.id in read.groups:
        return place, f"{node.id}: branches of a state", _lines_that_bind(node.id, read)
    if read.own.bound[node.id]:
        return place, node.id, _lines_that_bind(node.id, read)
    if node.id in read.names:
        return place, node.id, f"A name of the notebook: {a_type_of(read.names[node.id])}."
    return None


def _attribute(node: ast.Attribute, place: tuple[int, int], read: _Read) -> _Said | None:
    language = panel_edit.language()
    if called := read.own.called(node):
        return _known(language["names"][called], place)
    if read.own.module(node.value) is sgnb and node.attr in sgnb.__all__:
        return _known(panel_edit.about_value(node.attr, getattr(sgnb, node.attr)), place)
    owner = node.value.value if isinstance(node.value, ast.Subscript) else node.value
    if isinstance(owner, ast.Name) and owner.id in read.states | read.groups:
        return _known(language["methods"].get(node.attr), place)
    return None


def _parameter(node: ast.keyword, place: tuple[int, int], read: _Read) -> _Said | None:
    for call in ast.walk(read.source.tree):
        if isinstance(call, ast.Call) and node in call.keywords:
            called = read.own.called(call.func)
            func = call.func
            if not called and isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name):
                called = func.attr if func.value.id in read.states | read.groups else ""
            parameters = panel_edit.language()["parameters"]
            kind = "gen" if called in ("gen_int", "gen_string") else called
            return _known(
                parameters.get(called, {}).get(node.arg) or parameters.get(kind, {}).get(node.arg), place
            )
    return None


def _variable(node: ast.Constant, read: _Read) -> _Said | None:
    """The text is a variable's name where it reads, tests or binds one."""
    for parent in ast.walk(read.source.tree):
        if isinstance(parent, ast.Subscript) and parent.slice is node:
            owner = parent.value
        elif isinstance(parent, ast.Call) and node in parent.args[:1]:
            owner = parent.func.value if isinstance(parent.func, ast.Attribute) else parent.func
            if read.own.called(parent.func) not in ("gen", "select", "gen_int", "gen_string"):
                method = parent.func.attr if isinstance(parent.func, ast.Attribute) else ""
                if method not in ("get_var", "set_var", "var_scope", "get_meta_info", "fork_at"):
                    continue
            else:
                owner = ast.Name("s", ast.Load())
        elif isinstance(parent, ast.keyword) and parent.arg == "name" and parent.value is node:
            owner = ast.Name("s", ast.Load())
        else:
            continue
        while isinstance(owner, ast.Subscript):
            owner = owner.value
        if isinstance(owner, ast.Name) and owner.id in read.states | read.groups | {"s"}:
            place = (node.col_offset, node.end_col_offset or node.col_offset)
            return place, f"{owner.id}[{node.value!r}]", _bindings(str(node.value), read)
    return None


def _bindings(name: str, read: _Read) -> str:
    found = [
        f"Line {one.line}, by {one.by}: {read.lines[one.line - 1].strip()}"
        for one in read.bound.binding(name)
    ]
    if name in read.bound.earlier:
        found.insert(0, f"A variable of {read.start}, with which the cell goes on.")
    return "\n".join(found) or "Nothing in this cell binds it."


def _lines_that_bind(name: str, read: _Read) -> str:
    kept = {id(node.target) for node in ast.walk(read.source.tree) if isinstance(node, ast.AugAssign)}
    numbers = sorted(
        {
            node.lineno
            for node in ast.walk(read.source.tree)
            if (
                isinstance(node, ast.Name)
                and node.id == name
                and isinstance(node.ctx, ast.Store)
                and id(node) not in kept
            )
            or (isinstance(node, ast.arg) and node.arg == name)
            or (isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == name)
            or (
                isinstance(node, ast.Import | ast.ImportFrom)
                and any((a.asname or a.name) == name for a in node.names)
            )
        }
    )
    return "\n".join(f"Line {number}: {read.lines[number - 1].strip()}" for number in numbers[:6])


def _option(line: str, number: int, col: int) -> dict[str, Any] | None:
    """An option of the magic's line, or the magic itself."""
    for found in panel_edit.WORD.finditer(line):
        if not found.start() <= col <= found.end():
            continue
        flag = found[0].partition("=")[0]
        place = {"line": number, "col": found.start(), "end_col": found.start() + len(flag)}
        if flag == "%%sgl":
            return {**place, "signature": "%%sgl", "text": magic_options.CELL_USAGE}
        for action in magic_options.cell_parser()._actions:
            if flag in action.option_strings:
                given = f" {action.metavar}" if action.metavar else ""
                return {
                    **place,
                    "signature": f"{', '.join(action.option_strings)}{given}",
                    "text": action.help or "",
                }
    return None
