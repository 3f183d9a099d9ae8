"""Tab completion for ``%sgl`` and ``%%sgl``: subcommands, options, engine arguments, names of the language.

Notebook process; ``magics`` puts ``complete`` into IPython's matchers. Pure but for reading option names; it runs on
every Tab in every cell, so it looks at the first line first. No engine is asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from IPython.core.completer import SimpleCompletion, context_matcher

from sgnb import panel_edit
from sgnb.lang import api

_LINE = re.compile(r"^\s*%sgl\b(.*)$")
_CELL = re.compile(r"^\s*%%sgl\b(.*)$")
_SUBSCRIPT = re.compile(r"\w\[\s*[\"'][^\"']*$")
_OPEN_CALL = re.compile(r"(\w+)\((?:[^()]|\([^()]*\))*$")


def body_names() -> list[str]:
    """Names of the language that a ``%%sgl`` cell has."""
    names = api.DSL_NAMES
    return sorted({"s", *names})


Values = Mapping[tuple[str, str], Sequence[str]]


def make_matcher(
    commands: Mapping[str, Sequence[str]], cell_options: Sequence[str], values: Values | None = None
) -> Callable[[Any], Any]:
    """A matcher for IPython. ``commands``: words that may follow each ``%sgl`` subcommand; ``values``: what may follow a
    subcommand and one of these words."""

    @context_matcher(identifier="sgnb")  # type: ignore[untyped-decorator]
    def sgnb_matcher(context: Any) -> dict[str, Any]:
        found = candidates(
            context.full_text, context.cursor_line, context.line_with_cursor, context.cursor_position,
            commands, cell_options, values,
        )  # fmt: skip
        before = context.line_with_cursor[: context.cursor_position]
        fragment = fragment_of(before)
        hits = [SimpleCompletion(text=name, type="magic") for name in found if name.startswith(fragment)]
        return {
            "completions": hits,
            "matched_fragment": fragment,
            "suppress": bool(hits and _SUBSCRIPT.search(before)),
        }

    return sgnb_matcher  # type: ignore[no-any-return]


def candidates(
    text: str, line_number: int, line: str, column: int,
    commands: Mapping[str, Sequence[str]], cell_options: Sequence[str], values: Values | None = None,
) -> list[str]:  # fmt: skip
    """All names that may stand at the cursor."""
    before = line[:column]
    first = next((one for one in text.splitlines() if one.strip()), "")
    if match := _CELL.match(first):
        if line.lstrip().startswith("%%sgl"):
            return list(cell_options)
        return _body_candidates(text, before)
    if match := _LINE.match(before):
        done = match.group(1).split()
        if not before.endswith(" ") and done:
            done = done[:-1]
        if not done:
            return list(commands)
        after = (done[0], done[-1])
        return list((values or {}).get(after, commands.get(done[0], ())))
    return []


def _body_candidates(text: str, before: str) -> list[str]:
    """Names in the body of a cell: variables within ``s["…``, parameters within a call, the language's and its own."""
    if _SUBSCRIPT.search(before):
        return panel_edit.variable_names(text)
    body = "\n".join(line for line in text.split("\n") if not line.lstrip().startswith("%%sgl"))
    names = [*body_names(), *panel_edit.bound_names(body)]
    call = _OPEN_CALL.search(before)
    parameters = panel_edit.language()["parameters"].get(call.group(1), {}) if call else {}
    if call and call.group(1) == "gen":
        parameters = dict.fromkeys(["name", *api.GEN_PARAMS])
    return [*(f"{name}=" for name in parameters if name != "more"), *names]


def fragment_of(before: str) -> str:
    """The word before the cursor, option dashes included."""
    match = re.search(r"[-\w]*$", before)
    return match.group(0) if match else ""
