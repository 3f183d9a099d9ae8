"""Tab completion for ``%sgl`` and ``%%sgl``: subcommands, options, engine arguments, names of the language.

Notebook process; ``magics`` puts ``complete`` into IPython's matchers. Pure but for reading option names; it runs on
every Tab in every cell, so it looks at the first line first. No engine is asked.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from IPython.core.completer import SimpleCompletion, context_matcher

import sgnb
from sgnb import cell_cursor, panel_edit
from sgnb.lang import api
from sgnb.lang.choices import METHODS
from sgnb.lang.frontend.own_names import OwnNames
from sgnb.lang.frontend.state_uses import STATE_METHODS
from sgnb.runtime.fork import MODES
from sgnb.runtime.state import State
from sgnb.runtime.wrong_names import GROUP_NAMES

_LINE = re.compile(r"^\s*%sgl\b(.*)$")
_CELL = re.compile(r"^\s*%%sgl\b(.*)$")
_OPEN_KEY = re.compile(r"\[\s*[rRbBuU]*$")
_FROM = re.compile(r"\s--from[\s=]+(\S+)")
_OPEN_VALUE = re.compile(r"([A-Za-z_]\w*)\s*=\s*$")
_REPEATED = ("--stop",)
_SHORT = {"-o": "--out"}
_YES_OR_NO = ("True", "False")

Answers = Callable[[], Sequence[str]]
Values = Mapping[tuple[str, str], Sequence[str] | Answers]


def body_names() -> list[str]:
    """Names of the language that a ``%%sgl`` cell has."""
    return sorted({"s", "function", *api.DSL_NAMES})


class Found(NamedTuple):
    """Names that may stand at the cursor, in their order. ``whole``: nothing else may, so that other matchers are not heard;
    ``kind``: what they all are, where their texts do not tell."""

    names: Sequence[str]
    whole: bool = False
    kind: str = ""


def make_matcher(
    commands: Mapping[str, Sequence[str]],
    cell_options: Sequence[str],
    values: Values | None = None,
    answers: Mapping[str, Answers] | None = None,
    namespace: Mapping[str, Any] | None = None,
) -> Callable[[Any], Any]:
    """A matcher for IPython. ``commands``: words that may follow each ``%sgl`` subcommand; ``values``: what may follow a
    subcommand and one of these words; ``answers``: what may follow an option of ``%%sgl``, asked when it is needed;
    ``namespace``: the notebook's."""

    @context_matcher(identifier="sgnb")  # type: ignore[untyped-decorator]
    def sgnb_matcher(context: Any) -> dict[str, Any]:
        found = candidates(
            context.full_text, context.cursor_line, context.line_with_cursor, context.cursor_position,
            commands, cell_options, values, answers, namespace,
        )  # fmt: skip
        before = context.line_with_cursor[: context.cursor_position]
        fragment = fragment_of(before)
        hits = [
            SimpleCompletion(text=name, type=found.kind or kind_of(name))
            for name in dict.fromkeys(found.names)
            if name.startswith(fragment)
        ]
        whole = bool(hits and found.whole)
        return {"completions": hits, "matched_fragment": fragment, "suppress": whole, "ordered": True}

    return sgnb_matcher  # type: ignore[no-any-return]


def kind_of(name: str) -> str:
    """What a front end shows beside a name, in the words of IPython's other matchers."""
    if name.endswith("=") or name.startswith("-"):
        return "param"
    known = name in api.DSL_NAMES or name in STATE_METHODS or name in ("join", "function")
    return "function" if known else "instance"


def candidates(
    text: str, line_number: int, line: str, column: int,
    commands: Mapping[str, Sequence[str]], cell_options: Sequence[str], values: Values | None = None,
    answers: Mapping[str, Answers] | None = None, namespace: Mapping[str, Any] | None = None,
) -> Found:  # fmt: skip
    """All names that may stand at the cursor."""
    before = line[:column]
    first = next((one for one in text.splitlines() if one.strip()), "")
    if _CELL.match(first):
        if line.lstrip().startswith("%%sgl"):
            return _option_candidates(before, cell_options, answers or {})
        return _body_candidates(text, line_number, before, namespace or {})
    if match := _LINE.match(before):
        done = match.group(1).split()
        if not before[-1:].isspace() and done:
            done = done[:-1]
        return _line_candidates(done, commands, values or {})
    return Found(())


def _line_candidates(done: list[str], commands: Mapping[str, Sequence[str]], values: Values) -> Found:
    """What may follow these words of ``%sgl``: a subcommand, then one word of it or any of its options."""
    if not done:
        return Found(list(commands), whole=True, kind="magic")
    after = values.get((done[0], done[-1]))
    if after is not None:
        return Found(after() if callable(after) else list(after), whole=True)
    words = [word for word in commands.get(done[0], ()) if word not in done]
    return Found([word for word in words if len(done) == 1 or word.startswith("-")], whole=True)


def _option_candidates(before: str, options: Sequence[str], answers: Mapping[str, Answers]) -> Found:
    """Options of the magic's line, or what may follow the one before the cursor."""
    done = before.split()
    if not before[-1:].isspace():
        done = done[:-1]
    last = done[-1] if done else ""
    if last in answers:
        return Found(answers[last](), whole=True)
    taken = {_SHORT.get(one, one) for one in done} - {*_REPEATED}
    return Found([one for one in options if _SHORT.get(one, one) not in taken], whole=True)


def _body_candidates(text: str, line_number: int, before: str, namespace: Mapping[str, Any]) -> Found:
    """Names in the body of a cell: variables within ``s["…``, methods behind ``s.``, parameters within a call, the names of
    the language and the cell's own; none within a text or a comment."""
    lines = text.split("\n")
    start = next(number for number, line in enumerate(lines) if line.strip()) + 1
    place = cell_cursor.place_of("\n".join([*lines[start:line_number], before]))
    if place.kind == "comment":
        return Found(())
    body = "\n".join(lines[start:])
    statements = panel_edit.statements_of(body)
    states, groups = cell_cursor.states_in(statements)

    def is_state(code: str) -> bool:
        name, picked = cell_cursor.base_of(code) or ("", False)
        return name in (groups if picked else states)

    key = _OPEN_KEY.search(place.code)
    if key and is_state(place.code[: key.start()]):
        names = [*_names_before(lines[start - 1], namespace), *panel_edit.variable_names(body)]
        return Found(names if place.kind == "string" else [f'"{name}"' for name in names], whole=True)
    if place.kind == "string":
        return Found(())
    code = re.sub(r"\w*$", "", place.code)
    if code.rstrip().endswith("."):
        code = code.rstrip()[:-1]
        if is_state(code):
            return Found(STATE_METHODS, whole=True)
        base = cell_cursor.base_of(code)
        if base is not None and not base[1] and base[0] in groups:
            return Found(GROUP_NAMES, whole=True)
        return _of_module(code, statements, namespace)
    if value := _OPEN_VALUE.search(code):
        call = cell_cursor.open_call(code[: value.start()])
        return (
            Found(_values_of(call, value[1], namespace), whole=True)
            if call
            else _anything(code, body, namespace)
        )
    return _in_call(place.code, code, body, namespace)


def _anything(typed: str, body: str, namespace: Mapping[str, Any]) -> Found:
    """Where a word is not begun the cell's and the notebook's names alone: Python's own would be hundreds. Behind a part of
    one Python's are wanted too."""
    names = [*api.DSL_NAMES, "s", "function", *panel_edit.bound_names(body)]
    if typed[-1:].isalnum() or typed.endswith("_"):
        return Found(names)
    return Found([*names, *(name for name in namespace if not name.startswith("_"))], whole=True)


def _in_call(typed: str, code: str, body: str, namespace: Mapping[str, Any]) -> Found:
    """Parameters first, where a call is open; then all that may be an argument."""
    call = cell_cursor.open_call(typed)
    parameters = panel_edit.language()["parameters"].get(call, {})
    if call in ("gen", "gen_int", "gen_string"):
        parameters = dict.fromkeys(["name", *api.GEN_PARAMS, *_SHAPING])
    places, taken = cell_cursor.given_before(typed)
    left = [name for name in list(parameters)[places:] if name not in (*taken, "more", "kwargs")]
    given = [f"{name}=" for name in left]
    if not parameters:
        return _anything(typed, body, namespace)
    names = [*given, *body_names(), *panel_edit.bound_names(body)]
    if (
        code != typed
    ):  # a word is begun: the notebook's names too, but no magics, and what may be given stands first
        names += [name for name in (*namespace, "True", "False", "None") if not name.startswith("_")]
    return Found(names, whole=True)


_SHAPING = ("n", "choices", "choices_method", "dtype", "regex", "json_schema", "ebnf", "parse", "priority")


def _names_before(magic: str, namespace: Mapping[str, Any]) -> list[str]:
    """Variables of the state that the cell goes on with."""
    found = _FROM.search(magic)
    state = namespace.get(found[1]) if found else None
    return state.names() if isinstance(state, State) else []


def _of_module(code: str, statements: list[ast.stmt], namespace: Mapping[str, Any]) -> Found:
    """Public names behind ``sgl.``, if that means sgnb."""
    base = cell_cursor.base_of(code)
    if base is None or base[1] or code.rstrip()[: -len(base[0])].rstrip().endswith("."):
        return Found(())
    module = OwnNames(ast.Module(statements, []), namespace).module(ast.Name(base[0], ast.Load()))
    if module is not sgnb:
        return Found(())
    first = [name for name in (*api.DSL_NAMES, "function") if name in sgnb.__all__]
    return Found([*first, *(name for name in sgnb.__all__ if name not in first)], whole=True)


def _values_of(call: str, parameter: str, namespace: Mapping[str, Any]) -> list[str]:
    """What may be given to a parameter, as far as it can be listed."""
    if parameter == "choices_method":
        return [f'"{name}"' for name in METHODS]
    if parameter == "mode" and call == "join":
        return [f'"{name}"' for name in MODES]
    own = [name for name, value in namespace.items() if isinstance(value, type) and not name.startswith("_")]
    if parameter in ("dtype", "json_schema"):
        return [*(("int", "float", "str", "bool") if parameter == "dtype" else ()), *own]
    if parameter in ("parse", "ignore_eos", "return_logprob", "return_text_in_logprobs"):
        return list(_YES_OR_NO)
    return []


def fragment_of(before: str) -> str:
    """The word before the cursor, option dashes of the magic's line included."""
    match = re.search(r"[-\w]*$" if before.lstrip().startswith("%") else r"\w*$", before)
    return match.group(0) if match else ""
