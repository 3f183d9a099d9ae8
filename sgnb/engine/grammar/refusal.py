"""What the grammar library says against a constraint, as our errors say it: the place in the text, and the way on.

Scheduler process; called by ``xgrammar_backend`` with the worker's answer. Only what passes ``sgnb.constraints`` comes here,
whose checks know words and brackets and no structure. An answer that is not known keeps the library's words.
"""

from __future__ import annotations

import re

from sgnb.constraints import Constraint
from sgnb.engine.grammar.base import GrammarError

_EBNF = re.compile(r"EBNF (?:parser|lexer) error at line (\d+), column (\d+): ?(.*)", re.DOTALL)
_MAX_LINE = 60
_ELEMENT = 'Here stands a text "a", a class [a-z], a rule\'s name or a group in brackets; nothing at all is written "".'
_REPETITION = "A repetition is written {2}, {2,} or {2,5}, the smaller bound first."
_EBNF_WAYS: tuple[tuple[str, str], ...] = (
    ("Expect element", _ELEMENT),
    ("Expect rule name", _ELEMENT),
    ("is not defined", "Define the rule, or quote its name, if it is text."),
    ("integer", _REPETITION),
    ("repetition", _REPETITION),
    ("upper bound: ", _REPETITION),
    ("character class", "Write the smaller end first: [a-z]."),
    ("escape", 'A backslash is written \\\\, a quote \\", a line end \\n, any character \\u0041.'),
)
_WAYS = {
    "ebnf": "Correct the grammar there: a rule is name ::= …, on a line of its own.",
    "regex": "Write it with classes, groups, alternatives and repetitions only.",
    "json_schema": "Leave out what is named there, and check such values yourself.",
}


def refusal(constraint: Constraint, said: str) -> GrammarError:
    """The error of a constraint that the library refuses with ``said``."""
    kind = constraint.kind
    found = _EBNF.match(said) if kind == "ebnf" else None
    if found is None:
        return GrammarError(f"{kind}: {said}", code="grammar", hint=_WAYS[kind])
    line, column, what = int(found[1]), int(found[2]), found[3].strip()
    hint = next((way for words, way in _EBNF_WAYS if words in what), _WAYS["ebnf"])
    if what.endswith("but got"):
        what += " nothing"
    lines = constraint.text.splitlines()
    text = lines[line - 1].strip() if 0 < line <= len(lines) else ""
    shown = text if len(text) <= _MAX_LINE else text[: _MAX_LINE - 1] + "…"
    where = f"line {line}, column {column}" + (f", in `{shown}`" if shown else "")
    return GrammarError(f"ebnf: {what[:1].lower()}{what[1:]}, at {where}", code="grammar", hint=hint)
