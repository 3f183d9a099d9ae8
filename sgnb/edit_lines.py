"""Editing help for ``%sgl`` lines in a cell of Python: what is wrong in one, and what its words mean.

Notebook process; called by ``panel_edit`` and ``edit_about``, on a comm's thread beside a running cell. ``magic_lines``
judges a line as it does when the line runs; which lines of a cell are magics is for IPython to say. No line runs here, no
engine is asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from IPython.core.error import UsageError
from IPython.core.inputtransformer2 import TransformerManager

from sgnb import knob_words, magic_lines, magic_options
from sgnb.config import default_of
from sgnb.errors import SgnbError
from sgnb.knobs import KNOBS, LIVE
from sgnb.widgets import words
from sgnb.widgets.engine_view import TITLES

LINE = re.compile(r"^[ \t]*(%{1,2}sgl)\b")
"""A line that may be a magic of ours."""
_WORD = re.compile(r"\S+")
_CALL = "get_ipython().run_line_magic("


def check(source: str, names: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The mistakes of the magics in a cell that is no ``%%sgl`` cell, as ``panel_edit.check_source`` gives them. A name that
    the notebook does not have is a warning: another cell may bind it."""
    marks: list[dict[str, Any]] = []
    for number, line, magic in magics_of(source):
        if magic == "%%sgl":
            said = "Line magic function `%%sgl` not found. It begins its cell: nothing stands above it, no comment either."
            at = len(line) - len(line.lstrip())
            return [*marks, _mark(number, at, len(line), "error", said)]
        marks += _check_line(number, line, names)
    return marks


def magics_of(source: str) -> Iterator[tuple[int, str, str]]:
    """The magics of ours that IPython would run as lines of their own: number from 1, the line, ``%sgl`` or ``%%sgl``."""
    if not re.search(LINE.pattern, source, re.MULTILINE):
        return
    try:
        read = TransformerManager().transform_cell(source).split("\n")
    except SyntaxError:  # IPython cannot cut it into lines
        return
    blank = len(source[: len(source) - len(source.lstrip())].split("\n")) - 1  # IPython takes these off
    for number, line in enumerate(source.split("\n")):
        made = read[number - blank].lstrip() if 0 <= number - blank < len(read) else ""
        found = LINE.match(line)
        if found and made.startswith(f"{_CALL}{found[1][1:]!r},"):
            yield number + 1, line, found[1]


def _check_line(number: int, line: str, names: Mapping[str, Any]) -> list[dict[str, Any]]:
    magic, _, given = line.partition("%sgl")
    severity = "error"
    try:
        parsed = magic_lines.parse(given)
        severity = "warning"
        magic_lines.check_names(parsed, names)
        return []
    except SgnbError as error:
        said = " ".join(filter(None, [error.message, error.hint]))
    except (UsageError, ValueError, SystemExit) as error:
        said = str(error)
    said = words.visible(said)
    start = len(magic) + len("%sgl")
    given = given.rstrip()
    if not given.strip():
        return [_mark(number, len(magic), start, severity, said)]
    behind = _behind_the_command(given)
    col, end = blamed(given[behind:], said)
    return [_mark(number, start + behind + col, start + behind + end, severity, said)]


def _behind_the_command(given: str) -> int:
    """Where what a subcommand is given begins; the subcommand itself where it is what is wrong."""
    found = list(_WORD.finditer(given))
    spoken = [word[0] for word in found[:2]]
    count = 2 if spoken in (["view", "graph"], ["states", "release"]) else 1
    if spoken[0] not in magic_options.COMMANDS:
        return 0
    return found[count - 1].end() if len(found) > count else 0


def _mark(line: int, col: int, end: int, severity: str, said: str) -> dict[str, Any]:
    return {"line": line, "col": col, "end_col": end, "severity": severity, "message": said}


def blamed(options: str, said: str) -> tuple[int, int]:
    """The words of a magic's line that a mistake is about, an option with its value; all of them if it names none."""
    given = list(_WORD.finditer(options))
    spoken = said.split()
    named = {_name(word.strip("'\":;,.")) for word in spoken[spoken[0].startswith("%") :]}
    found = [
        number for number, word in enumerate(given) if _name(word[0].strip("'\"").partition("=")[0]) in named
    ]
    if not found:
        return len(options) - len(options.lstrip()), max(1, len(options.rstrip()))
    last = found[-1]
    if given[last][0].startswith("-") and last + 1 < len(given) and not given[last + 1][0].startswith("--"):
        last += "unrecognized" not in said
    return given[found[0]].start(), given[last].end()


def _name(word: str) -> str:
    """An option as the argument that it sets is called: ``--page-size`` is ``page_size``."""
    return word[2:].replace("-", "_") if word.startswith("--") else word


# ---------------------------------------------------------------- what a word means


def about(source: str, line: int, col: int) -> dict[str, Any] | None:
    """What a word of a ``%sgl`` line means, as ``edit_about.about`` gives it; None where nothing is to be said."""
    text = next(
        (text for number, text, magic in magics_of(source) if number == line and magic == "%sgl"), None
    )
    if text is None:
        return None
    found = list(_WORD.finditer(text))
    at = next((number for number, word in enumerate(found) if word.start() <= col <= word.end()), None)
    if at is None:
        return None
    word, before = found[at][0].partition("=")[0], [one[0] for one in found[:at]]
    said = _meaning(word, before)
    if said is None:
        return None
    place = {"line": line, "col": found[at].start(), "end_col": found[at].start() + len(word)}
    return {**place, "signature": words.visible(said[0]), "text": words.visible(said[1])}


def _meaning(word: str, before: list[str]) -> tuple[str, str] | None:
    """Signature and text of a word behind these."""
    if not before:
        return "%sgl", magic_options.LINE_USAGE
    command = before[1] if len(before) > 1 else word
    if len(before) == 1 and command in magic_options.COMMANDS:
        given, _, text = magic_options.COMMANDS[command].rpartition(": ")
        return f"%sgl {command} {given}".rstrip(), f"{text[0].upper()}{text[1:]}."
    if command == "launch":
        name = magic_options.engine_flags().get(word)
        return None if name is None else _about_knob(word, name)
    if command == "set" and word in LIVE:
        return _about_knob(word, word)
    if command == "view" and len(before) == 2 and word in TITLES:
        return f"%sgl view {word}", f"{TITLES[word]}."
    if command == "record":
        options = magic_options.record_parser()._actions
        action = next((one for one in options if word in one.option_strings), None)
        return None if action is None else (f"{word} {action.metavar or ''}".rstrip(), action.help or "")
    return None


def _about_knob(word: str, name: str) -> tuple[str, str] | None:
    knob = KNOBS.get(name)
    if knob is None:
        return None
    unit = f" [{knob.unit}]" if knob.unit else ""
    default = knob_words.show_value(default_of(name))
    return f"{word} {knob.legal}{unit}", f"{knob.what}. Unless given: {default}."
