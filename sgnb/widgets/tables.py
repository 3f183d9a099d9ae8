"""The static form of the engine views: one table of the moment they were shown, as HTML and as text.

Notebook process. Called by ``engine_view`` with answers of the engine (``picture``, ``history``, ``nodes``) and, for the
graph, with ``explain_data``. Same numbers and words as the live view; only ``table tr th td br code`` and no style that
carries meaning. Pure functions: no engine, no IPython.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sgnb.widgets import words
from sgnb.widgets.reasons import Past, decisions, name_of, plural, reason_of

ROWS = 200
"""Rows of a table at most; the rest is counted in its last line."""
TEXT = 80
LINE = 100
"""Characters of a line of sentences in plain text."""
LEFT = ' style="text-align:left"'
"""Of a cell of words: notebooks put the text of tables to the right, where lines of it cannot be read. No meaning."""
PROMPTS = 50
"""Prompts of which it is told what they reused."""


@dataclass(slots=True)
class Table:
    """A title, a sentence of facts, columns (those in ``numbers`` are right-aligned in text) and rows of words."""

    title: str
    facts: str = ""
    columns: Sequence[str] = ()
    rows: list[Sequence[str]] = field(default_factory=list)
    numbers: frozenset[int] = frozenset()
    code: frozenset[int] = frozenset()
    below: frozenset[int] = frozenset()
    """Columns of sentences: in text each stands below its row, with the column's name; left out where none has one."""
    more: str = ""
    then: Table | None = None
    """A second table below this one."""


def html_of(table: Table) -> str:
    """The table as HTML; every word escaped."""
    kept = [i for i in range(len(table.columns)) if i not in table.below or any(row[i] for row in table.rows)]
    span = max(1, len(kept))
    lines = [f"<tr><th colspan={span}{LEFT}>{_escape(_heading(table))}</th></tr>"]
    sides = ["" if i in table.numbers else LEFT for i in range(len(table.columns))]
    if kept and table.rows:
        lines.append(
            f"<tr>{''.join(f'<th{sides[i]}>{html.escape(table.columns[i])}</th>' for i in kept)}</tr>"
        )
    for row in table.rows:
        cells = (
            f"<td{sides[i]}>{'<code>' * (i in table.code)}{_escape(row[i])}{'</code>' * (i in table.code)}</td>"
            for i in kept
        )
        lines.append(f"<tr>{''.join(cells)}</tr>")
    if table.more:
        lines.append(f"<tr><td colspan={span}{LEFT}>{_escape(table.more)}</td></tr>")
    return f"<table>{''.join(lines)}</table>{html_of(table.then) if table.then is not None else ''}"


def text_of(table: Table) -> str:
    """The same lines as plain text, columns aligned."""
    lines = [_heading(table)]
    if table.rows:
        rows = [list(map(words.visible, row)) for row in [list(table.columns), *table.rows]]
        beside = [i for i in range(len(table.columns)) if i not in table.below]
        widths = {i: max(len(row[i]) for row in rows) for i in beside}
        for number, row in enumerate(rows):
            cells = (
                row[i].rjust(widths[i]) if i in table.numbers else row[i].ljust(widths[i]) for i in beside
            )
            lines.append("  ".join(cells).rstrip())
            for i in sorted(table.below) if number else ():
                lines += _paragraph(f"{table.columns[i]}: {row[i]}") if row[i] else []
    if table.more:
        lines.append(words.visible(table.more))
    if table.then is not None:
        lines += ["", text_of(table.then)]
    return "\n".join(lines)


def _paragraph(text: str) -> list[str]:
    """Sentences of a row in lines that a terminal has room for."""
    return textwrap.wrap(text, LINE, initial_indent="     ", subsequent_indent="       ")


def _heading(table: Table) -> str:
    return words.visible(f"{table.title}: {table.facts}" if table.facts else table.title)


def _escape(text: str) -> str:
    return html.escape(words.visible(text)).replace("\n", "<br>")


def empty_table(title: str, sentence: str) -> Table:
    """What stands for a view with nothing to show (``No engine is running.``)."""
    return Table(title, sentence)


# ---------------------------------------------------------------- radix tree


def tree_table(
    snapshot: Mapping[str, Any], texts: Mapping[str, Any], events: Iterable[Mapping[str, Any]] = ()
) -> Table:
    """One row a node, indented, as text is read; below it what the prompts of ``events`` reused, and why not more.

    ``texts``: the ``nodes`` answer for those whose text may be read.
    """
    nodes = {row[0]: row for row in snapshot["nodes"]}
    children: dict[int, list[int]] = {}
    for number, row in nodes.items():
        children.setdefault(row[1], []).append(number)
    locked = sum(row[3] for row in nodes.values() if row[4])
    whole = sum(row[3] for row in nodes.values())
    following = {number: place for place, number in enumerate(snapshot.get("next", []), 1)}
    table = Table(
        "Radix tree",
        f"{words.count(whole)} tokens in {plural(len(nodes), 'node')}, {words.count(locked)} locked, "
        f"{words.count(whole - locked)} evictable",
        ["node", "tokens", "from", "locks", "hits", "evicted next", "text"],
        numbers=frozenset({1, 2, 3, 4}),
        code=frozenset({6}),
    )
    stack = [(number, 0) for number in sorted((n for n in nodes if nodes[n][1] not in nodes), reverse=True)]
    while stack and len(table.rows) < ROWS:
        number, depth = stack.pop()
        row = nodes[number]
        text = (texts.get(str(number)) or {}).get("text")
        table.rows.append(
            [
                f"{'· ' * depth}{number}",
                words.count(row[3]),
                words.count(row[2]),
                words.count(row[4]),
                words.count(row[5]),
                str(following.get(number, "")),
                short(text) if text is not None else words.UNKNOWN,
            ]
        )
        stack += [(child, depth + 1) for child in sorted(children.get(number, ()), reverse=True)]
    if len(nodes) > len(table.rows):
        table.more = f"{plural(len(nodes) - len(table.rows), 'more node')} not shown."
    table.then = _prompts(Past(events, snapshot))
    return table


def _prompts(past: Past) -> Table | None:
    """The last prompts, the newest first: what of each was reused, and what the rest was."""
    matched = [
        one for one in past.requests.values() if one.match is not None and not one.name.startswith("@")
    ]
    if not matched:
        return None
    table = Table(
        "Prompts and what they reused",
        columns=["request", "prompt", "reused", "the rest was", "why"],
        numbers=frozenset({1, 2}),
        below=frozenset({4}),
    )
    for request in sorted(matched, key=lambda one: -one.admitted)[:PROMPTS]:
        reason = reason_of(request, past)
        plain = reason.word in {"new text", "last token"}  # says it all
        row = [request.name, words.count(request.prompt), words.count(request.cached), reason.word]
        table.rows.append([*row, "" if plain else str(reason)])
    return table


# ---------------------------------------------------------------- KV map


def kv_table(snapshot: Mapping[str, Any]) -> Table:
    """The five states, the invariant, and the largest holders."""
    size = int(snapshot["slots"])
    kinds = {"prefill": 0, "decode": 0, "score": 0}
    owners: dict[str, int] = {}
    runs_of: dict[str, int] = {}
    cached = 0
    for owner, _start, number, kind in snapshot["runs"]:
        if owner.startswith("node:"):
            cached += number
            continue
        kinds[kind or "score"] += number
        owners[owner] = owners.get(owner, 0) + number
        runs_of[owner] = runs_of.get(owner, 0) + 1
    locked = min(cached, sum(row[3] for row in snapshot["nodes"] if row[4]))  # as the map counts them
    flight = sum(kinds.values())
    free = size - cached - flight
    table = Table(
        "KV map",
        f"{words.share(size - free, size)} used, {words.count(size - free)} of {words.count(size)} slots, "
        f"page {snapshot['page_size']}",
        ["state or holder", "slots", "share", "runs"],
        numbers=frozenset({1, 2, 3}),
    )
    states = [
        ("cached, locked", locked),
        ("prefill, in flight", kinds["prefill"] + kinds["score"]),
        ("decode, in flight", kinds["decode"]),
        ("cached, evictable", cached - locked),
        ("free", free),
    ]
    table.rows += [[name, words.count(number), words.share(number, size), ""] for name, number in states]
    labels = {req["rid"]: name_of(req.get("label") or {}, req["rid"]) for req in snapshot["requests"]}
    for owner in sorted(owners, key=lambda rid: -owners[rid])[:50]:
        number = owners[owner]
        table.rows.append(
            [labels.get(owner, owner), words.count(number), words.share(number, size), str(runs_of[owner])]
        )
    sound = free >= 0 and not snapshot.get("runs_left_out")
    table.more = f"{'✓' if sound else '✕'} free + cached + in use = {words.count(size)}"
    return table


# ---------------------------------------------------------------- timeline


def timeline_table(events: Iterable[Mapping[str, Any]], snapshot: Mapping[str, Any] | None = None) -> Table:
    """The last steps: mode, requests, tokens, times, and what was decided before each; below them the requests."""
    past = Past(events, snapshot)
    table = Table(
        "Batch timeline",
        f"the last {plural(min(ROWS, len(past.steps)), 'step')}" if past.steps else "Nothing has run yet.",
        ["step", "mode", "requests", "tokens", "schedule", "forward", "sample", "decided before"],
        numbers=frozenset({0, 2, 3}),
        below=frozenset({7}),
    )
    quiet = words.deterministic()
    for step in past.steps[-ROWS:]:
        times = [step.get(f"{part}_seconds", 0.0) for part in ("schedule", "forward", "sample")]
        table.rows.append(
            [
                words.count(step["step"]),
                step["mode"],
                str(len(step["rows"])),
                words.count(sum(row["tokens"] for row in step["rows"])),
                *("" if quiet else f"{1000 * spent:.1f} ms" for spent in times),
                " ".join(decisions(step, past)),
            ]
        )
    table.then = _requests(past)
    return table


def _requests(past: Past) -> Table | None:
    """The last requests in order of arrival: how long each waited, what it computed, how it ended."""
    if not past.requests:
        return None
    table = Table(
        "Requests",
        columns=["request", "waited", "prompt", "reused", "generated", "state"],
        numbers=frozenset({2, 3, 4}),
    )
    for request in list(past.requests.values())[-ROWS:]:
        known = request.admitted and request.queued and not words.deterministic()
        table.rows.append(
            [
                request.name,
                words.duration(request.admitted - request.queued) if known else words.UNKNOWN,
                words.count(request.prompt),
                words.count(request.cached) if request.match is not None else words.UNKNOWN,
                words.count(request.completed) if request.state == "finished" else words.UNKNOWN,
                request.end,
            ]
        )
    return table


# ---------------------------------------------------------------- graph


def graph_table(data: Mapping[str, Any]) -> Table:
    """The passes of a program, in order: what each did and why that is allowed, or why it did nothing."""
    facts = "runs compiled" if data.get("compiled") else f"runs eagerly: {data.get('reason', '')}"
    table = Table(
        "Graph",
        f"{data.get('name', '')}, {facts}",
        ["", "pass", "nodes", "what it did", "why it is allowed"],
        numbers=frozenset({0}),
        below=frozenset({3, 4}),
    )
    for number, record in enumerate(data.get("passes", [])):
        table.rows.append([str(number), record["name"], record["note"], record["did"], record["why"]])
    table.more = "; ".join(
        f"Line {error['line']}: {error['text']}" if error["line"] else error["text"]
        for error in data.get("errors", [])
    )
    return table


def short(text: str) -> str:
    """Text on one line, cut."""
    line = text.replace("\n", "⏎").replace("\t", "→")
    return line if len(line) <= TEXT else line[: TEXT - 1] + "…"
