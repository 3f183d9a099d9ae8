"""``%%sgl --debug``: every instruction of a run as a table, with its state, tokens, reused tokens and milliseconds.

Notebook process; called by ``magics`` after the run. Joins the blocks that passed a ``tap.Tap`` with the run's log.
"""

from __future__ import annotations

import html
from typing import Any

from sgnb.lang.instruction import Decode, Extend, Init, MarkPart, TextPart
from sgnb.runtime import events as ev
from sgnb.runtime.events import EventLog
from sgnb.tap import Tap
from sgnb.widgets import words

SHOWN_TEXT = 60


HEADER = ("block", "instruction", "state", "ids", "cached", "ms")


def table(tap: Tap, log: EventLog) -> list[tuple[str, ...]]:
    """One row an instruction: block, what, state, prompt and new ids, cached ids, milliseconds."""
    done: dict[str, dict[str, Any]] = {}
    for entry in log.since(0):
        if isinstance(entry.event, ev.GenDone):
            done[entry.event.rid] = entry.event.meta
    rows: list[tuple[str, ...]] = []
    for number, (_, block) in enumerate(tap.blocks):
        for one in block.instructions:
            if isinstance(one, Init):
                rows.append((str(number), "Init", one.sid, "", "", ""))
            elif isinstance(one, Extend):
                rows.append((str(number), f"Extend {_parts(one)}", one.sid, "", "", ""))
            elif isinstance(one, Decode):
                rows.append((str(number), f"Decode {one.name}", one.sid, *_costs(done.get(one.rid))))
    return rows


def _parts(extend: Extend) -> str:
    out = []
    for part in extend.parts:
        if isinstance(part, MarkPart):
            out.append(f"[{'' if part.begin else '/'}{part.role}]")
        elif isinstance(part, TextPart):
            out.append(words.quoted(part.text, SHOWN_TEXT))
    return " ".join(out)


def _costs(meta: dict[str, Any] | None) -> tuple[str, str, str]:
    if not meta:
        return words.UNKNOWN, words.UNKNOWN, words.UNKNOWN
    prompt, new, spent = meta.get("prompt_tokens"), meta.get("completion_tokens"), meta.get("e2e_latency")
    ids = f"{words.count(prompt)} + {words.count(new)}"
    shown = (
        words.count(round(float(spent) * 1000))
        if spent is not None and not words.deterministic()
        else words.UNKNOWN
    )
    return ids, words.count(meta.get("cached_tokens")), shown


def show(shell: Any, tap: Tap, log: EventLog) -> None:
    """Display the table as HTML and plain text."""
    rows = [tuple(words.visible(cell) for cell in row) for row in table(tap, log)]
    widths = [max(len(row[i]) for row in [HEADER, *rows]) for i in range(len(HEADER))]
    plain = "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in [HEADER, *rows]
    )
    if getattr(shell, "kernel", None) is None:
        print(plain)
        return
    out = ["<table>", "<tr>" + "".join(f"<th>{name}</th>" for name in HEADER) + "</tr>"]
    out += ["<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows]
    shell.display_pub.publish({"text/html": "\n".join([*out, "</table>"]), "text/plain": plain}, metadata={})
