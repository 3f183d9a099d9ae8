"""A text that meets a constraint, without a model: what the mock backend says for a constrained generation.

Notebook process; used by ``backends.mock``. Deterministic and short: the first alternative, the fewest repetitions, the
first value of an enum. Good enough to run a program; which text a model would choose is no business of this module. A
constraint it cannot read is a ValueError that says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from sgnb.constraints import Constraint

_MAX_DEPTH = 100
_MAX_PASSES = 1000


def conforming_text(constraint: Constraint) -> str:
    """The text. ValueError for a constraint that allows none, or that this module cannot read."""
    if constraint.kind == "regex":
        return regex_text(constraint.text)
    if constraint.kind == "json_schema":
        schema = json.loads(constraint.text)
        return json.dumps(schema_value(schema, schema), ensure_ascii=False)
    return ebnf_text(constraint.text)


# ---------------------------------------------------------------- regular expressions


class _Regex:
    """A reader of patterns that ``check_constraint`` has passed. It writes as it reads."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0

    def alternatives(self) -> str:
        """The shortest alternative; the reader stands at a ``)`` or at the end afterwards."""
        found = [self._sequence()]
        while self.pattern[self.at : self.at + 1] == "|":
            self.at += 1
            found.append(self._sequence())
        return min(found, key=len)

    def _sequence(self) -> str:
        out = []
        while self.at < len(self.pattern) and self.pattern[self.at] not in "|)":
            atom = self._atom()
            out.append(atom * self._least())
        return "".join(out)

    def _atom(self) -> str:
        char = self.pattern[self.at]
        self.at += 1
        if char == "(":
            prefix = re.compile(r"\?(?::|P?<\w+>)").match(self.pattern, self.at)
            self.at = prefix.end() if prefix else self.at
            inner = self.alternatives()
            self.at += 1
            return inner
        if char == "[":
            return self._class()
        if char == "\\":
            return self._escape()
        if char in "^$":
            return ""
        return "a" if char == "." else char

    def _escape(self) -> str:
        found = re.compile(r"x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.", re.DOTALL)
        word = found.match(self.pattern, self.at)
        if word is None:
            raise ValueError("a backslash ends the pattern")
        self.at = word.end()
        name = word.group()
        if len(name) > 1:
            return chr(int(name[1:], 16))
        kinds = {"d": "0", "w": "a", "s": " ", "D": "a", "W": " ", "S": "a", "n": "\n", "t": "\t", "r": "\r"}
        return "" if name in "bBAZ" else kinds.get(name, name)

    def _class(self) -> str:
        begin = self.at - 1
        negated = self.pattern.startswith("^", self.at)
        self.at += negated
        chars: list[str] = []
        while self.pattern[self.at] != "]" or not chars:
            char = self.pattern[self.at]
            self.at += 1
            chars.append(self._escape() if char == "\\" else char)
        self.at += 1
        if not negated:
            return chars[0]
        matcher = re.compile(self.pattern[begin : self.at])
        return next(c for c in map(chr, (*range(97, 123), *range(32, 127))) if matcher.fullmatch(c))

    def _least(self) -> int:
        quantifier = re.compile(r"([*+?]|\{(\d*),?\d*\})\??").match(self.pattern, self.at)
        if quantifier is None:
            return 1
        self.at = quantifier.end()
        if quantifier.group(2) is not None:
            return int(quantifier.group(2) or 0)
        return int(quantifier.group(1) == "+")


def regex_text(pattern: str) -> str:
    """A short text that the pattern matches whole."""
    text = _Regex(pattern).alternatives()
    if re.fullmatch(pattern, text) is None:
        raise ValueError(f"no text for the regex {pattern!r} was found")
    return text


# ---------------------------------------------------------------- JSON schemas


def schema_value(schema: Any, root: Any, depth: int = 0) -> Any:
    """A small JSON value of the schema; ``root`` holds its definitions."""
    if depth > _MAX_DEPTH:
        raise ValueError("the schema has no finite value")
    if not isinstance(schema, dict):
        return None
    if "$ref" in schema:
        return schema_value(_resolve(schema["$ref"], root), root, depth + 1)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return _first_value(schema[key], root, depth)
    kind = schema.get("type", "object" if "properties" in schema else "null")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        wanted = schema.get("required", [])
        parts = schema.get("properties", {})
        return {key: schema_value(parts.get(key, True), root, depth + 1) for key in wanted}
    if kind == "array":
        items = [schema_value(one, root, depth + 1) for one in schema.get("prefixItems", [])]
        while len(items) < schema.get("minItems", 0):
            items.append(schema_value(schema.get("items", True), root, depth + 1))
        return items
    if kind == "string":
        text = regex_text(schema["pattern"]) if "pattern" in schema else "text"
        return text.ljust(schema.get("minLength", 0), "x")[: schema.get("maxLength", len(text) + 1_000_000)]
    if kind in ("integer", "number"):
        return _number(schema)
    return kind == "boolean" or None


def _first_value(choices: list[Any], root: Any, depth: int) -> Any:
    """Of a recursive choice one branch ends sooner than the others."""
    for choice in choices:
        try:
            return schema_value(choice, root, depth + 1)
        except ValueError:
            continue
    raise ValueError("the schema has no finite value")


def _number(schema: dict[str, Any]) -> Any:
    low = schema.get("minimum", schema.get("exclusiveMinimum", 0) + ("exclusiveMinimum" in schema))
    high = schema.get("maximum", low)
    return min(max(0, low), max(high, low))


def _resolve(reference: str, root: Any) -> Any:
    value = root
    for word in reference.removeprefix("#").split("/")[1:]:
        value = value[word.replace("~1", "/").replace("~0", "~")]
    return value


# ---------------------------------------------------------------- EBNF


_WORD = re.compile(
    r'\s+|\#[^\n]*|(?P<string>"(?:\\.|[^"\\])*")|(?P<class>\[(?:\\.|[^\]\\])*\])|(?P<name>[A-Za-z_][\w.-]*)'
    r"|(?P<mark>::=|[|()*+?])|(?P<repeat>\{\d*,?\d*\})"
)


def _words(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        word = _WORD.match(text, at)
        if word is None:
            raise ValueError(f"ebnf: {text[at : at + 10]!r} is not understood")
        at = word.end()
        if word.lastgroup:
            yield word.group()


class _Rules:
    """The rules as lists of words; texts are found by repeated passes, so that recursion ends."""

    def __init__(self, text: str) -> None:
        words = list(_words(text))
        starts = [i for i in range(len(words) - 1) if words[i + 1] == "::="]
        ends = [*starts[1:], len(words)]
        self.bodies = {words[i]: words[i + 2 : end] for i, end in zip(starts, ends, strict=True)}
        self.known: dict[str, str] = {}
        self._todo: list[str] = []

    def text(self) -> str:
        for _ in range(min(_MAX_PASSES, len(self.bodies) + 1)):
            for name, body in self.bodies.items():
                if name not in self.known:
                    self._todo = list(reversed(body))
                    found = self._alternatives()
                    if found is not None:
                        self.known[name] = found
            if "root" in self.known:
                return self.known["root"]
        raise ValueError("ebnf: root has no finite text")

    def _alternatives(self) -> str | None:
        found = [self._sequence()]
        while self._todo and self._todo[-1] == "|":
            self._todo.pop()
            found.append(self._sequence())
        return min((one for one in found if one is not None), key=len, default=None)

    def _sequence(self) -> str | None:
        out: str | None = ""
        while self._todo and self._todo[-1] not in ("|", ")"):
            one = self._atom(self._todo.pop())
            least = self._least()
            one = "" if not least else None if one is None else one * least
            out = None if out is None or one is None else out + one
        return out

    def _atom(self, word: str) -> str | None:
        if word == "(":
            inner = self._alternatives()
            self._todo.pop()
            return inner
        if word[0] == '"':
            return str(json.loads(word))
        return regex_text(word) if word[0] == "[" else self.known.get(word)

    def _least(self) -> int:
        mark = self._todo[-1] if self._todo else ""
        if mark in ("*", "+", "?") or mark.startswith("{"):
            self._todo.pop()
            return int(mark[1:-1].split(",")[0] or 0) if mark.startswith("{") else int(mark == "+")
        return 1


def ebnf_text(text: str) -> str:
    """A short text of rule ``root``."""
    return _Rules(text).text()
