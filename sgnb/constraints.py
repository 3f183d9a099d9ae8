"""Constraints as text: regular expression, JSON schema, EBNF; their limits, and what is wrong with one.

A leaf: every package may import it. Checked where a constraint enters (``gen(...)``, ``Engine.generate``) and again at the
engine's door. Everything that can be refused without a compiler is refused here, with its place; what the compiler refuses
comes later, as the error of one request. Nothing is matched against text here, and no grammar library is imported.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
import warnings
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote

from sgnb.errors import ConstraintError, LimitError

MAX_SCHEMA_BYTES = 256 << 10
MAX_SCHEMA_DEPTH = 64
MAX_ENUM = 4096
MAX_REGEX_BYTES = 4 << 10
MAX_REPETITION = 10_000
MAX_EBNF_BYTES = 64 << 10
MAX_EBNF_NESTING = 256

Kind = Literal["regex", "json_schema", "ebnf"]
KINDS: tuple[Kind, ...] = ("regex", "json_schema", "ebnf")
_TYPES = ("string", "number", "integer", "boolean", "null", "array", "object")
_CACHED = 256


class Constraint(NamedTuple):
    """What an output must match, as text: equal ones are compiled once."""

    kind: Kind
    text: str


@functools.lru_cache(_CACHED)
def check_constraint(kind: Kind, text: str) -> None:
    """Refuse a constraint that breaks a limit (LimitError) or is malformed (ConstraintError), with its place in it."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ConstraintError(f"{kind} is not valid Unicode") from None
    most = {"regex": MAX_REGEX_BYTES, "json_schema": MAX_SCHEMA_BYTES, "ebnf": MAX_EBNF_BYTES}[kind]
    if size > most:
        raise LimitError(f"{kind} has {size:,} bytes, at most {most:,} are allowed")
    {"regex": _check_regex, "json_schema": _check_schema, "ebnf": _check_ebnf}[kind](text)


# ---------------------------------------------------------------- regular expressions


_GROUPS = {
    "(?=": "a look-ahead",
    "(?!": "a look-ahead",
    "(?<=": "a look-behind",
    "(?<!": "a look-behind",
    "(?(": "a condition",
    "(?P=": "a back-reference",
    "(?>": "an atomic group",
}


def _check_regex(pattern: str) -> None:
    """Python's parser finds what is malformed; constructs that no grammar can keep are refused by name."""
    for at, construct in _constructs(pattern):
        raise ConstraintError(
            f"regex: {construct} at position {at} cannot be enforced",
            hint="Use classes, groups, alternatives and repetitions only.",
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # [[ may mean something else one day
            re.compile(pattern)
    except re.error as error:
        raise ConstraintError(
            f"regex: {error.msg} at position {error.pos}",
            hint="Correct the pattern there; a sign that is meant as text has a backslash before it.",
        ) from None
    except (RecursionError, OverflowError, MemoryError):
        raise LimitError("regex is nested too deeply or repeats too often") from None


def _constructs(pattern: str) -> Iterator[tuple[int, str]]:
    at, size = 0, len(pattern)
    while at < size:
        char = pattern[at]
        if char == "\\":
            if pattern[at + 1 : at + 2] in set("123456789"):
                yield at, "a back-reference"
            at += 2
            continue
        if char == "[":
            at = _class_end(pattern, at)
            continue
        if char == "(":
            found = next((words for begin, words in _GROUPS.items() if pattern.startswith(begin, at)), "")
            if not found and re.match(r"\(\?[a-zA-Z-]*[:)]", pattern[at : at + 12]):
                found = "" if pattern.startswith("(?:", at) else "a flag"
            if found:
                yield at, found
        bounds = re.match(r"\{(\d*)(?:,(\d*))?\}", pattern[at : at + 64]) if char == "{" else None
        if bounds and max(int(bound or 0) for bound in bounds.groups()) > MAX_REPETITION:
            raise LimitError(
                f"regex: the repetition at position {at} exceeds {MAX_REPETITION:,}",
                hint="Use + or *, and max_tokens to bound the length.",
            )
        at += 1


def _class_end(pattern: str, at: int) -> int:
    """Where the class that begins at ``at`` is over (the end of the text if it is not)."""
    at += 2 if pattern.startswith("[^", at) else 1
    first = True
    while at < len(pattern) and (pattern[at] != "]" or first):
        at += 2 if pattern[at] == "\\" else 1
        first = False
    return at + 1


# ---------------------------------------------------------------- JSON schemas


def _check_schema(text: str) -> None:
    try:
        schema = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise ConstraintError(
            f"json_schema is not JSON: {error.msg} at line {error.lineno}, column {error.colno}",
            hint="Give a JSON Schema as text or dict, or a type (dataclass, TypedDict, pydantic model).",
        ) from None
    except RecursionError:
        raise LimitError(f"json_schema is nested more than {MAX_SCHEMA_DEPTH} deep") from None
    if not isinstance(schema, dict):
        raise ConstraintError(f"json_schema must be an object, not {type(schema).__name__}")
    _check_depth(schema)
    _check_keywords(schema)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in pairs:
        if key in out:
            raise ConstraintError(f"json_schema has the key {key!r} twice in one object")
        out[key] = value
    return out


def _no_constant(name: str) -> None:
    raise ConstraintError(f"json_schema holds {name}, which is no JSON number")


def _check_depth(schema: Any) -> None:
    todo: list[tuple[Any, int]] = [(schema, 1)]
    while todo:
        value, depth = todo.pop()
        if depth > MAX_SCHEMA_DEPTH:
            raise LimitError(f"json_schema is nested more than {MAX_SCHEMA_DEPTH} deep")
        inner = value.values() if isinstance(value, dict) else value
        todo += [(one, depth + 1) for one in inner if isinstance(one, dict | list)]


_ONE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_MANY = ("allOf", "anyOf", "oneOf", "prefixItems")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")


def _check_keywords(root: dict[str, Any]) -> None:
    """Types, enums and references of every sub-schema, by its JSON pointer."""
    todo: list[tuple[str, Any]] = [("", root)]
    while todo:
        at, schema = todo.pop()
        if isinstance(schema, bool):
            continue
        if not isinstance(schema, dict):
            raise ConstraintError(f"json_schema: {at or '/'} must be a schema, found {type(schema).__name__}")
        _check_type(at, schema.get("type", "object"))
        enum = schema.get("enum")
        if enum is not None and (not isinstance(enum, list) or not enum):
            raise ConstraintError(f"json_schema: {at}/enum must be a list with at least one value")
        if enum is not None and len(enum) > MAX_ENUM:
            raise LimitError(
                f"json_schema: {at}/enum has {len(enum):,} values, at most {MAX_ENUM:,} are allowed"
            )
        required = schema.get("required", [])
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise ConstraintError(f"json_schema: {at}/required must be a list of names")
        if "$ref" in schema:
            _check_reference(at, schema, root)
        _check_bounds(at, schema)
        _check_pattern(at, schema.get("pattern", ""))
        todo += _inner(at, schema)


def _check_reference(at: str, schema: dict[str, Any], root: dict[str, Any]) -> None:
    """A reference leads to a schema of this text, and in the end to one that says something."""
    seen: list[str] = []
    found: Any = schema
    while isinstance(found, dict) and "$ref" in found:
        reference = found["$ref"]
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise ConstraintError(
                f"json_schema: {at}/$ref must point into this schema, found {reference!r}",
                hint="Put the definition under $defs, and write #/$defs/NAME; nothing is fetched.",
            )
        if reference in seen:
            raise ConstraintError(f"json_schema: {at}/$ref leads back to itself: {reference!r}")
        seen.append(reference)
        found = _pointed_at(reference, root)
        if not isinstance(found, dict | bool):
            raise ConstraintError(
                f"json_schema: {at}/$ref points at nothing: {reference!r}",
                hint=f"Defined: {', '.join(sorted(root.get('$defs') or root.get('definitions') or ())) or 'nothing'}.",
            )


def _pointed_at(reference: str, root: dict[str, Any]) -> Any:
    """What a JSON pointer leads to; None when there is no such thing."""
    found: Any = root
    for word in reference.split("/")[1:]:
        key = unquote(word).replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(key)
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found


_RANGES = (("minLength", "maxLength"), ("minItems", "maxItems"), ("minProperties", "maxProperties"))


def _check_bounds(at: str, schema: dict[str, Any]) -> None:
    """Bounds are numbers, lengths are none below 0, and something lies between them."""
    for pair in (*_RANGES, ("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum")):
        counts = pair in _RANGES
        for key in pair:
            value = schema.get(key, 0)
            if type(value) not in ((int,) if counts else (int, float)) or (counts and value < 0):
                what = "a whole number from 0 on" if counts else "a number"
                raise ConstraintError(f"json_schema: {at}/{key} must be {what}, found {value!r}")
        low, high = map(schema.get, pair)
        if low is not None and high is not None and low > high:
            raise ConstraintError(f"json_schema: {at}/{pair[0]} is {low}, above {pair[1]}, {high}")


def _check_pattern(at: str, pattern: Any) -> None:
    if not isinstance(pattern, str):
        raise ConstraintError(f"json_schema: {at}/pattern must be a text, found {type(pattern).__name__}")
    try:
        _check_regex(pattern)
    except LimitError as error:
        raise type(error)(f"json_schema: {at}/pattern: {error.message}", hint=error.hint) from None


def _check_type(at: str, given: Any) -> None:
    for name in given if isinstance(given, list) else [given]:
        if name not in _TYPES:
            near = difflib.get_close_matches(str(name), _TYPES, 1)
            meant = f'Did you mean "{near[0]}"? ' if near else ""
            raise ConstraintError(
                f"json_schema: {at}/type is {name!r}", hint=f"{meant}Legal types: {', '.join(_TYPES)}."
            )


def _inner(at: str, schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key in _ONE:
        if key in schema:
            value = schema[key]
            if key == "items" and isinstance(value, list):
                raise ConstraintError(
                    f"json_schema: {at}/items is a list", hint="Use prefixItems, as JSON Schema 2020-12 does."
                )
            yield f"{at}/{key}", value
    for key in _MANY:
        values = schema.get(key, [])
        if not isinstance(values, list):
            raise ConstraintError(f"json_schema: {at}/{key} must be a list")
        if not values and key in schema and key != "prefixItems":
            raise ConstraintError(f"json_schema: {at}/{key} is empty")
        yield from ((f"{at}/{key}/{i}", value) for i, value in enumerate(values))
    for key in _NAMED:
        named = schema.get(key, {})
        if not isinstance(named, dict):
            raise ConstraintError(f"json_schema: {at}/{key} must be an object")
        yield from ((f"{at}/{key}/{name}", value) for name, value in named.items())


# ---------------------------------------------------------------- EBNF


_EBNF_WORDS = re.compile(
    r"""(?P<string>"(?:\\.|[^"\\\n])*")|(?P<class>\[(?:\\.|[^\]\\\n])*\])|(?P<comment>\#[^\n]*)|(?P<open>\()"""
    r"""|(?P<close>\))|(?P<define>(?:^|(?<=\n))[ \t]*(?P<name>[A-Za-z_.-][A-Za-z0-9_.-]*)[ \t\r\n]*::=)|(?P<bad>["\[])"""
    r"""|(?P<word>[A-Za-z_.-][A-Za-z0-9_.-]*)|(?P<late>::=)|(?P<sign>[|*+?{},=0-9]+)|(?P<space>[ \t\r\n]+)|(?P<foreign>.)"""
)
_FOREIGN = {
    "'": 'Texts stand in double quotes: "a".',
    ";": "A rule ends with its line, without a sign.",
    ":": "A rule is written name ::= ….",
    "<": "The name of a rule stands without brackets: name ::= ….",
    "/": "Write a class, [a-z], or a text in double quotes; gen(regex=…) takes a pattern.",
}
"""What people write of other notations, and what is written here."""


def _check_ebnf(text: str) -> None:
    """What the compiler would refuse, as far as words and brackets show it; never what it takes."""
    opened: list[int] = []
    rules: dict[str, int] = {}
    used: dict[str, int] = {}
    for word in _EBNF_WORDS.finditer(text):
        kind, at = word.lastgroup, word.start()
        if kind == "bad":
            sign = {'"': '"', "[": "]"}[word.group()]
            raise ConstraintError(
                f"ebnf: {word.group()!r} at {_line_of(text, at)} is not closed on its line",
                hint=f"End it with {sign} there; a line end in a text is written \\n.",
            )
        if word.group("name"):
            _add_rule(rules, word.group("name"), word.start("name"), text)
        elif kind == "word":
            used.setdefault(word.group(), at)
        elif kind == "late":
            raise ConstraintError(
                f"ebnf: '::=' at {_line_of(text, at)} stands behind no name at the beginning of a line",
                hint="Begin each rule on a line of its own: name ::= …; a name begins with a letter.",
            )
        elif kind == "foreign":
            raise ConstraintError(
                f"ebnf: {word.group()!r} at {_line_of(text, at)} is no sign of a grammar",
                hint=_FOREIGN.get(
                    word.group(), 'Texts stand in double quotes, "a", classes in brackets, [a-z].'
                ),
            )
        elif kind == "open":
            opened.append(at)
        elif kind == "close":
            if not opened:
                raise ConstraintError(
                    f"ebnf: ')' at {_line_of(text, at)} closes nothing", hint='Remove it, or quote it: ")".'
                )
            opened.pop()
        if len(opened) > MAX_EBNF_NESTING:
            raise LimitError(f"ebnf is nested more than {MAX_EBNF_NESTING} deep")
    if opened:
        raise ConstraintError(
            f"ebnf: '(' at {_line_of(text, opened[-1])} is never closed", hint='Close it, or quote it: "(".'
        )
    if "root" not in rules:
        raise ConstraintError("ebnf has no rule named root", hint='Begin with: root ::= "…"')
    _check_used(text, rules, used)


def _add_rule(rules: dict[str, int], name: str, at: int, text: str) -> None:
    if name in rules:
        raise ConstraintError(
            f"ebnf: rule {name!r} at {_line_of(text, at)} is defined already, at {_line_of(text, rules[name])}",
            hint=f"Write its alternatives in one rule: {name} ::= … | ….",
        )
    rules[name] = at


_CALLED = re.compile(r"\s*\(")


def _check_used(text: str, rules: dict[str, int], used: dict[str, int]) -> None:
    """Every name is a rule's. Functions of the compiler's (``TagDispatch(…)``) give words other meanings."""
    unknown = [name for name in used if name not in rules]
    if not unknown or any(_CALLED.match(text, used[name] + len(name)) for name in unknown):
        return
    name = unknown[0]
    near = difflib.get_close_matches(name, rules, 1)
    raise ConstraintError(
        f"ebnf: rule {name!r} at {_line_of(text, used[name])} is not defined"
        + (f"; did you mean {near[0]!r}?" if near else ""),
        hint=f'Define it, {name} ::= …, or quote it, if it is text: "{name}".',
    )


def _line_of(text: str, at: int) -> str:
    before = text[:at]
    return f"line {before.count(chr(10)) + 1}, column {at - (before.rfind(chr(10)) + 1) + 1}"
