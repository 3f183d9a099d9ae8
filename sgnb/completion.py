"""Tab completion for ``%sgl`` and ``%%sgl``: subcommands, options, engine arguments, names of the language.

Notebook process; ``magics`` puts ``complete`` into IPython's matchers. Pure but for reading option names; it runs on
every Tab in every cell, so it looks at the first line first. No engine is asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from IPython.core.completer import SimpleCompletion, context_matcher

from sgnb import cell_cursor, panel_edit
from sgnb.lang import api
from sgnb.lang.frontend.state_uses import STATE_METHODS
from sgnb.runtime.wrong_names import GROUP_NAMES

_LINE = re.compile(r"^\s*%sgl\b(.*)$")
_CELL = re.compile(r"^\s*%%sgl\b(.*)$")
_OPEN_KEY = re.compile(r"\[\s*[rRbBuU]*$")


def body_names() -> list[str]:
    """Names of the language that a ``%%sgl`` cell has."""
    names = api.DSL_NAMES
    return sorted({"s", *names})


Values = Mapping[tuple[str, str], Sequence[str]]
Answers = Callable[[], Sequence[str]]


class Found(NamedTuple):
    """Names that may stand at the cursor. ``whole``: nothing else may, so that other matchers are not heard."""

    names: Sequence[str]
    whole: bool = False


def make_matcher(
    commands: Mapping[str, Sequence[str]],
    cell_options: Sequence[str],
    values: Values | None = None,
    answers: Mapping[str, Answers] | None = None,
) -> Callable[[Any], Any]:
    """A matcher for IPython. ``commands``: words that may follow each ``%sgl`` subcommand; ``values``: what may follow a
    subcommand and one of these words; ``answers``: what may follow an option of ``%%sgl``, asked when it is needed."""

    @context_matcher(identifier="sgnb")  # type: ignore[untyped-decorator]
    def sgnb_matcher(context: Any) -> dict[str, Any]:
        found = candidates(
            context.full_text, context.cursor_line, context.line_with_cursor, context.cursor_position,
            commands, cell_options, values, answers,
        )  # fmt: skip
        before = context.line_with_cursor[: context.cursor_position]
        fragment = fragment_of(before)
        hits = [
            SimpleCompletion(text=name, type="magic") for name in found.names if name.startswith(fragment)
        ]
        return {"completions": hits, "matched_fragment": fragment, "suppress": bool(hits and found.whole)}

    return sgnb_matcher  # type: ignore[no-any-return]


def candidates(
    text: str, line_number: int, line: str, column: int,
    commands: Mapping[str, Sequence[str]], cell_options: Sequence[str], values: Values | None = None,
    answers: Mapping[str, Answers] | None = None,
) -> Found:  # fmt: skip
    """All names that may stand at the cursor."""
    before = line[:column]
    first = next((one for one in text.splitlines() if one.strip()), "")
    if _CELL.match(first):
        if line.lstrip().startswith("%%sgl"):
            return _option_candidates(before, cell_options, answers or {})
        return _body_candidates(text, line_number, before)
    if match := _LINE.match(before):
        done = match.group(1).split()
        if not before.endswith(" ") and done:
            done = done[:-1]
        if not done:
            return Found(list(commands))
        after = (done[0], done[-1])
        return Found(list((values or {}).get(after, commands.get(done[0], ()))))
    return Found(())


def _option_candidates(before: str, options: Sequence[str], answers: Mapping[str, Answers]) -> Found:
    """Options of the magic's line, or what may follow the one before the cursor."""
    done = before.split()
    last = done[-1] if before[-1:].isspace() else done[-2] if len(done) > 1 else ""
    if last in answers:
        return Found(answers[last](), whole=True)
    return Found(options, whole=True)


def _body_candidates(text: str, line_number: int, before: str) -> Found:
    """Names in the body of a cell: variables within ``s["…``, methods behind ``s.``, parameters within a call, the names of
    the language and the cell's own; none within a text or a comment."""
    lines = text.split("\n")
    start = next(number for number, line in enumerate(lines) if line.strip()) + 1
    place = cell_cursor.place_of("\n".join([*lines[start:line_number], before]))
    body = "\n".join(lines[start:])
    if place.kind == "comment":
        return Found(())
    states, groups = cell_cursor.states_in(panel_edit.statements_of(body))

    def is_state(code: str) -> bool:
        name, picked = cell_cursor.base_of(code) or ("", False)
        return name in (groups if picked else states)

    key = _OPEN_KEY.search(place.code)
    if key and is_state(place.code[: key.start()]):
        names = panel_edit.variable_names(body)
        return Found(names if place.kind == "string" else [f'"{name}"' for name in names], whole=True)
    if place.kind == "string":
        return Found(())
    code = re.sub(r"\w*$", "", place.code)
    if code.rstrip().endswith("."):
        code = code.rstrip()[:-1]
        if is_state(code):
            return Found(STATE_METHODS, whole=True)
        base = cell_cursor.base_of(code)
        return Found(GROUP_NAMES if base in [(name, False) for name in groups] else (), whole=True)
    call = cell_cursor.open_call(place.code)
    parameters = panel_edit.language()["parameters"].get(call, {})
    if call == "gen":
        parameters = dict.fromkeys(["name", *api.GEN_PARAMS])
    given = [f"{name}=" for name in parameters if name != "more"]
    names = [*given, *body_names(), *panel_edit.bound_names(body)]
    return Found(
        names, whole=bool(given) and code == place.code
    )  # nothing is typed yet: what may be given, not all there is


def fragment_of(before: str) -> str:
    """The word before the cursor, option dashes of the magic's line included."""
    match = re.search(r"[-\w]*$" if before.lstrip().startswith("%") else r"\w*$", before)
    return match.group(0) if match else ""
