"""Editing help for ``%%sgl`` cells: what is wrong in a cell's text, and what its names mean.

Notebook process; called by ``panel`` for the page's editor, on a comm's thread beside a running cell, so nothing here
runs a cell, asks an engine or changes anything. Completion is IPython's way, in ``completion``. No comm here.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import linecache
import re
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from IPython.core.error import UsageError

from sgnb import edit_lines, magic_options
from sgnb.cell import core_of
from sgnb.edit_checks import doubtful_uses
from sgnb.errors import ProgramError, SgnbError, SourcePosition
from sgnb.lang.api import DSL_NAMES, ROLES
from sgnb.lang.frontend.cell_checks import unknown_names, wrong_uses
from sgnb.lang.frontend.cells import parse_cell
from sgnb.lang.frontend.graph import parse_program
from sgnb.lang.frontend.own_names import OwnNames
from sgnb.lang.frontend.state_uses import STATE_METHODS
from sgnb.lang.position import CELL_PREFIX
from sgnb.parameter_words import about_parameter
from sgnb.runtime.cell import named_start
from sgnb.runtime.explain import explain_data, run_data, text_data
from sgnb.runtime.fork import Group
from sgnb.runtime.function import SglFunction, function
from sgnb.runtime.state import State
from sgnb.widgets import words

MAX_SOURCE = 100_000
"""Characters; longer cells are not checked while they are typed."""
_QUOTED = re.compile(r": '([^']*)'")
"""An annotation that is kept as text."""
_MAGIC = re.compile(r"\s*%%sgl\b")
WORD = re.compile(r"\S+")
_QUESTION = re.compile(r"\s*%%sgl\?{1,2}\s*")
"""It asks IPython for help."""
CELL_NAME = f"{CELL_PREFIX}editor>"
_NO_MODULE = re.escape(CELL_NAME)
_lock = threading.Lock()


def check_source(source: str, names: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The mistakes of a cell: ``{"line", "col", "end_col", "severity", "message"}``, lines from 1 in the whole cell, columns
    from 0 in characters. ``names``: the notebook's. Empty for a cell of another kind, or an empty one.

    An error is refused before the cell runs. What only a run that comes there would refuse is a warning, and so is a name
    that is not known: a cell that did not run yet may bind it. In a cell of Python the lines of ``%sgl`` are looked at.
    """
    if len(source) > MAX_SOURCE or _QUESTION.fullmatch(source):
        return []
    if not _MAGIC.match(source):
        return edit_lines.check(source, names)
    blank = len(source[: len(source) - len(source.lstrip())].split("\n")) - 1
    lines = source.split("\n")
    start, marks = _check_options(lines[blank], blank + 1, names)
    text, _ = split_magic(source)
    if not text.strip():
        return marks
    with text_known(text):
        try:
            cell = parse_cell(text, CELL_NAME)
        except SgnbError as error:
            return [*marks, _mark(error, "error", lines)]
        own = OwnNames(cell.tree, names)
        marks += [_mark(error, "error", lines) for error in wrong_uses(cell, own)]
        doubts = itertools.chain(unknown_names(cell, names, own), doubtful_uses(cell, own, names, start))
        return [*marks, *(_mark(error, "warning", lines) for error in doubts)]


def is_cell(source: str) -> bool:
    """Whether a text is a ``%%sgl`` cell that is not too long to be read while it is typed."""
    return len(source) <= MAX_SOURCE and _MAGIC.match(source) is not None


def split_magic(source: str) -> tuple[str, str]:
    """The program of a cell, with empty lines in the place of what stands above it, and the options of its magic."""
    blank = source[: len(source) - len(source.lstrip())].count("\n")
    lines = source.split("\n")
    return "\n".join(["" for _ in lines[: blank + 1]] + lines[blank + 1 :]), lines[blank].partition("%%sgl")[
        2
    ]


@contextmanager
def text_known(text: str) -> Iterator[None]:
    """Positions in characters need the text's lines, which are looked up by file name. Python's warnings about a text that
    is being typed (``"a"(3)``) are not printed into the notebook: the filter is for this file name, for no other thread's.
    """
    with _lock:
        if not any(getattr(module, "pattern", "") == _NO_MODULE for *_, module, _ in warnings.filters):
            warnings.filterwarnings("ignore", module=_NO_MODULE)
        linecache.cache[CELL_NAME] = (len(text), None, text.splitlines(True), CELL_NAME)
        try:
            yield
        finally:
            linecache.cache.pop(CELL_NAME, None)


def graph_of(source: str, names: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the docked graph shows for the cell the reader works in: of a ``%%sgl`` cell its own program, of another one the
    last program that it names; None for a cell without. Of a cell that ran as it stands: what its run recorded.
    """
    if not is_cell(source):
        return _named_program(source, names)
    text, _ = split_magic(source)
    if (core := core_of(text)) is not None:
        return run_data(core)
    with text_known(text):
        try:
            cell = parse_cell(text, CELL_NAME)
            graph = parse_program(cell.tree, filename=CELL_NAME, name="this cell")
        except SgnbError as error:
            return text_data("this cell", None, error)
        return text_data("this cell", graph)


def _named_program(source: str, names: Mapping[str, Any]) -> dict[str, Any] | None:
    for word in reversed(re.findall(r"[A-Za-z_]\w*", source[:MAX_SOURCE])):
        if isinstance(program := names.get(word), SglFunction):
            return explain_data(program)
    return None


def _check_options(
    line: str, number: int, names: Mapping[str, Any]
) -> tuple[str | None, list[dict[str, Any]]]:
    """The state that the magic's line goes on with, and what is wrong in the line."""
    magic, _, options = line.partition("%%sgl")
    state: str | None = None
    try:
        state = magic_options.parse_cell(options).start
        if state is not None:
            named_start(names, state, number, line)
        return state, []
    except ProgramError as error:  # another cell may give the name
        return state, [_mark(error, "warning", [""] * number)]
    except (UsageError, SgnbError, ValueError, SystemExit) as error:  # --help would end the caller
        start = len(magic) + len("%%sgl")
        said = words.visible(str(error))
        col, end = edit_lines.blamed(options, said)
        mark = {
            "line": number,
            "col": start + col,
            "end_col": start + end,
            "severity": "error",
            "message": said,
        }
        return None, [mark]


def _mark(error: SgnbError, severity: str, lines: list[str]) -> dict[str, Any]:
    place = error.position or SourcePosition(CELL_NAME, 1, 0)
    line = min(max(1, place.line), len(lines))
    end = place.end_col if place.end_col is not None and place.end_col > place.col else place.col + 1
    message = " ".join(filter(None, [error.message, error.hint]))
    return {
        "line": line,
        "col": place.col,
        "end_col": end,
        "severity": severity,
        "message": words.visible(message),
    }


def bound_names(source: str) -> list[str]:
    """Names that a program of this text binds, also while it cannot be parsed whole."""
    names: dict[str, None] = {}
    for statement in statements_of(source):
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names[node.id] = None
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names[node.name] = None
            elif isinstance(node, ast.arg):
                names[node.arg] = None
            elif isinstance(node, ast.alias) and node.name != "*":
                names[(node.asname or node.name).split(".")[0]] = None
    return list(names)


_VARIABLE = re.compile(r"\b(?:gen|select|gen_int|gen_string)\(\s*(?:name\s*=\s*)?([\"'])(\w+)\1")


def variable_names(source: str) -> list[str]:
    """Names of the generations and choices in this text: what ``s["…"]`` may say."""
    return list(dict.fromkeys(match[2] for match in _VARIABLE.finditer(source)))


UNREAD = (SyntaxError, ValueError, RecursionError, MemoryError)
"""What ``ast.parse`` raises of texts: the last where brackets stand too deep."""


def statements_of(source: str) -> list[ast.stmt]:
    """The statements of a text; of one that cannot be parsed whole, those that stand on a line of their own."""
    try:
        return ast.parse(source).body
    except UNREAD:
        pass
    found: list[ast.stmt] = []
    for line in source.split("\n"):  # the line that is being typed spoils no other
        text = line.strip()
        try:
            found += ast.parse(text + " pass" if text.endswith(":") else text).body
        except UNREAD:
            continue
    return found


@functools.cache
def language() -> dict[str, Any]:
    """What each name of the language means, for the editor: ``names`` and ``methods`` (of a state) with ``signature`` and
    ``text``, and so ``parameters`` by name of the function.
    """
    names: dict[str, Any] = {name: about_value(name, value) for name, value in DSL_NAMES.items()}
    names["function"] = about_value("function", function)
    names["s"] = {
        "signature": "s: State",
        "text": "The program's state: its text, its variables, its place on the engine.",
    }
    methods = {name: about_value(name, getattr(State, name)) for name in STATE_METHODS}
    methods["join"] = about_value("join", Group.join)
    calls = {name: getattr(State, name) for name in STATE_METHODS if name not in ROLES} | {"join": Group.join}
    calls |= {
        name: DSL_NAMES[name] for name in ("gen", "select", "gen_int", "gen_string", "separate_reasoning")
    }
    parameters = {
        name: {one.name: _about_parameter(name, one) for one in _signature(call)}
        for name, call in calls.items()
    }
    return {"names": names, "methods": methods, "parameters": parameters}


def _about_parameter(called: str, parameter: inspect.Parameter) -> dict[str, str]:
    text = (
        "" if called not in DSL_NAMES or called == "separate_reasoning" else about_parameter(parameter.name)
    )
    return {"signature": f"{called}(… {_plain(parameter)})", "text": text}


def _signature(value: Any) -> list[inspect.Parameter]:
    try:
        return [one for one in inspect.signature(value).parameters.values() if one.name != "self"]
    except (TypeError, ValueError):
        return []


def _plain(parameter: inspect.Parameter) -> str:
    return _QUOTED.sub(r": \1", str(parameter))


MANY = 6
"""From more parameters on a signature has their names and defaults alone: each has a text of its own."""
_WRAPPED = re.compile(r"(?<=\S)\n(?=[\w`(])")
"""A line end inside of a paragraph."""


def about_value(name: str, value: Any) -> dict[str, str]:
    """The signature and the documentation of a value."""
    parameters = [one for one in _signature(value) if one.kind is not one.VAR_KEYWORD or one.name == "kwargs"]
    if len(parameters) > MANY:
        parameters = [one.replace(annotation=one.empty) for one in parameters]
        shown = ", ".join(one.name if one.default is None else _plain(one) for one in parameters)
    else:
        shown = ", ".join(_plain(one) for one in parameters)
    text = _WRAPPED.sub(" ", inspect.getdoc(value) or "").replace("``", "`")
    return {"signature": f"{name}({shown})", "text": text}
