"""Steps of a program that have not run yet, as rows in secondary text: what is still to come, read off its graph.

Notebook process; used by ``widgets.fold``. The static graph says what the text holds, not which way it will go: a step is
to come while its line lies beyond every line the run has reached. Pure; nothing is executed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from sgnb.lang import ir
from sgnb.widgets import words
from sgnb.widgets.program_rows import scoring_words

MAX_STEPS = 12
MAX_CHARS = 160
SHAPES = {
    "json_schema": "JSON schema",
    "regex": "regex",
    "ebnf": "EBNF grammar",
    "dtype": "type",
    "choices": "choices",
}
IN_PYTHON = "runs in Python"
LOOPS = ("for ", "while ", "async for ")
"""How a loop begins that is a statement."""


class Progress(NamedTuple):
    """How far a run is: the last line it reached, and the branches of its newest fork that are under way.

    ``grammars``: constraints that are compiled, by argument and source as in ``ir.GenPart.params``, with the seconds that
    took; None: times are not shown.
    """

    line: int
    waits: tuple[str, ...] = ()
    grammars: Mapping[tuple[str, str], float | None] = MappingProxyType({})


def steps_after(graph: object, progress: Progress) -> list[dict[str, str]]:
    """Rows (``role, text, note``) for the steps of ``graph`` beyond the progress; at most 12, then one that counts the
    rest."""
    if not isinstance(graph, ir.Graph):
        return []
    rows = [row for at, row in _rows(graph.nodes, progress) if at > progress.line]
    joined = False
    for row in rows:
        if row["role"] == "join":
            joined = True
            row["note"] = words.waiting(progress.waits) if progress.waits else "not started"
        elif joined and row["note"].endswith(IN_PYTHON):
            row["note"] += " after the join"
    if len(rows) > MAX_STEPS:
        rest = len(rows) - MAX_STEPS + 1
        rows = [*rows[: MAX_STEPS - 1], _row("", "", f"{words.count(rest)} more steps")]
    return rows


def _row(role: str, text: str, note: str) -> dict[str, str]:
    shown = text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 1] + "…"
    return {"role": role, "text": words.visible(shown), "note": note}


def _rows(nodes: Iterable[ir.Node], progress: Progress) -> Iterator[tuple[int, dict[str, str]]]:
    for node in nodes:
        line = node.span.line
        if isinstance(node, ir.Append):
            yield from _append_rows(node, progress)
        elif isinstance(node, ir.Host):
            yield line, _row("", _first_line(node.source), f"line {line}, {IN_PYTHON}")
        elif isinstance(node, ir.Fork):
            yield line, _row("fork", f"{node.state}.fork({_first_line(node.size)})", "not started")
        elif isinstance(node, ir.Join):
            yield line, _row("join", "", "")
        elif isinstance(node, ir.Loop):
            inner = list(_rows(node.body, progress))
            if inner:
                yield line, _row("", _first_line(node.head), f"line {line}, repeats what follows")
                yield from inner
            elif node.head.startswith(LOOPS):  # a comprehension stands in the line that it is part of
                yield line, _row("", _first_line(node.head), f"line {line}, {IN_PYTHON}")
        elif isinstance(node, ir.If):
            yield line, _row("", f"if {_first_line(node.test)}", f"line {line}, decided when it is reached")
            yield from _rows((*node.body, *node.orelse), progress)
        elif isinstance(node, ir.Try):
            yield from _rows((*node.body, *node.final), progress)
        elif isinstance(node, ir.Scope):
            yield from _rows(node.body, progress)
        elif isinstance(node, ir.Call):
            yield line, _row("", f"{node.callee}(…)", f"line {line}, a program")


def _append_rows(node: ir.Append, progress: Progress) -> Iterator[tuple[int, dict[str, str]]]:
    """One row a turn of the append; generations stand in it by name."""
    role = ""
    parts: list[ir.Part] = []
    for part in node.parts:
        if isinstance(part, ir.BeginPart):
            role = part.role
        elif isinstance(part, ir.EndPart):
            yield node.span.line, _turn(node.span.line, role, parts, progress)
            role, parts = "", []
        else:
            parts.append(part)
    if parts:
        yield node.span.line, _turn(node.span.line, role, parts, progress)


def _turn(line: int, role: str, parts: list[ir.Part], progress: Progress) -> dict[str, str]:
    """Its text; where a call makes a part of it, what is written there: ``findings(forks) + "Decide."``."""
    called = any(isinstance(part, ir.HolePart) and "(" in part.source for part in parts)
    pieces, notes = [], []
    for part in parts:
        if isinstance(part, ir.TextPart):
            pieces.append(words.quoted(part.text, MAX_CHARS) if called else part.text)
        elif isinstance(part, ir.HolePart):
            pieces.append(part.source if called else "{" + part.source + "}")
        elif isinstance(part, ir.GenPart):
            pieces.append(part.name or "gen")
            said = ("not started", _shape(part, progress), _limit(part))
            notes += [note for note in said if note and note not in notes]
        elif isinstance(part, ir.SelectPart):
            pieces.append(part.name or "select")
            choices = scoring_words(part.options).removeprefix("scoring ") if part.options else ""
            notes += [note for note in ("not started", choices) if note and note not in notes]
    if called:
        notes.append(f"line {line}, {IN_PYTHON}")
    return _row(role, (" + " if called else "").join(pieces), words.DOT.join(notes))


def _shape(part: ir.GenPart, progress: Progress) -> str:
    """``JSON schema Verdict, grammar ready (compiled in 84 ms)``, ``regex``: what the output must be, as the program names
    it, and whether its grammar is compiled."""
    params = dict(part.params)
    for name, word in SHAPES.items():
        if name in params:
            source = params[name]
            said = f"{word} {source}" if source.isidentifier() else word
            return said + _grammar(progress, (name, source))
    return ""


def _grammar(progress: Progress, key: tuple[str, str]) -> str:
    if key not in progress.grammars:
        return ""
    seconds = progress.grammars[key]
    return ", grammar ready" + ("" if seconds is None else f" (compiled in {words.duration(seconds)})")


def _limit(part: ir.GenPart) -> str:
    limit = dict(part.params).get("max_tokens", "")
    return f"≤{words.THIN}{words.count(int(limit))} tok" if limit.isdecimal() else ""


def _first_line(source: str) -> str:
    lines = source.strip().splitlines()
    return lines[0] + (" …" if len(lines) > 1 else "") if lines else ""
