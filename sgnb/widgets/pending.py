"""Steps of a program that have not run yet, as rows in secondary text: what is still to come, read off its graph.

Notebook process; used by ``widgets.fold``. The static graph says what the text holds, not which way it will go: a step is
to come while its line lies beyond every line the run has reached. Pure; nothing is executed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sgnb.lang import ir
from sgnb.widgets import words

MAX_STEPS = 12
MAX_CHARS = 160


def steps_after(graph: object, line: int) -> list[dict[str, str]]:
    """Rows (``role, text, note``) for the steps of ``graph`` beyond ``line``; at most 12, then one that counts the rest."""
    if not isinstance(graph, ir.Graph):
        return []
    rows = [row for at, row in _rows(graph.nodes) if at > line]
    if len(rows) > MAX_STEPS:
        rest = len(rows) - MAX_STEPS + 1
        rows = [*rows[: MAX_STEPS - 1], _row("", "", f"{words.count(rest)} more steps")]
    return rows


def _row(role: str, text: str, note: str) -> dict[str, str]:
    shown = text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 1] + "…"
    return {"role": role, "text": words.visible(shown), "note": note}


def _rows(nodes: Iterable[ir.Node]) -> Iterator[tuple[int, dict[str, str]]]:
    for node in nodes:
        line = node.span.line
        if isinstance(node, ir.Append):
            yield from _append_rows(node)
        elif isinstance(node, ir.Host):
            yield line, _row("", _first_line(node.source), f"line {line}, runs in Python")
        elif isinstance(node, ir.Loop):
            yield line, _row("", _first_line(node.head), f"line {line}, repeats what follows")
            yield from _rows(node.body)
        elif isinstance(node, ir.If):
            yield line, _row("", f"if {_first_line(node.test)}", f"line {line}, decided when it is reached")
            yield from _rows((*node.body, *node.orelse))
        elif isinstance(node, ir.Try):
            yield from _rows((*node.body, *node.final))
        elif isinstance(node, ir.Scope):
            yield from _rows(node.body)
        elif isinstance(node, ir.Call):
            yield line, _row("", f"{node.callee}(…)", f"line {line}, a program")


def _append_rows(node: ir.Append) -> Iterator[tuple[int, dict[str, str]]]:
    """One row a turn of the append; generations stand in it by name."""
    line = node.span.line
    role, text, notes = "", "", []
    for part in node.parts:
        if isinstance(part, ir.BeginPart):
            role = part.role
        elif isinstance(part, ir.TextPart):
            text += part.text
        elif isinstance(part, ir.HolePart):
            text += "{" + part.source + "}"
        elif isinstance(part, ir.GenPart):
            text += part.name or "gen"
            notes += [note for note in ("not started", _limit(part)) if note and note not in notes]
        elif isinstance(part, ir.EndPart):
            yield line, _row(role, text, words.DOT.join(notes))
            role, text, notes = "", "", []
    if text:
        yield line, _row(role, text, words.DOT.join(notes))


def _limit(part: ir.GenPart) -> str:
    limit = dict(part.params).get("max_tokens", "")
    return f"≤{words.THIN}{words.count(int(limit))} tok" if limit.isdecimal() else ""


def _first_line(source: str) -> str:
    lines = source.strip().splitlines()
    return lines[0] + (" …" if len(lines) > 1 else "") if lines else ""
