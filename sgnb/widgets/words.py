"""The words and numbers of every view: one spelling for the page, the static table and the terminal.

Notebook process. Pure functions over plain values; called by the folds, the static form, the magics and the panel.
What a browser shows comes from here, so the live and the static form cannot differ. No HTML, no IPython, no events.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

THIN = "\u2009"
DOT = " · "
UNKNOWN = "–"
MAX_NAMES = 4
"""Names in a sentence; of more their number."""


def deterministic() -> bool:
    """True when outputs must be byte-stable (``SGNB_DETERMINISTIC=1``): times are left out."""
    return os.environ.get("SGNB_DETERMINISTIC", "") not in ("", "0")


def count(number: int | None) -> str:
    """A count in full, thousands parted by a thin space; unknown is ``–``."""
    return UNKNOWN if number is None else f"{number:,}".replace(",", THIN)


def duration(seconds: float | None) -> str:
    """``0.38 s`` from 0.1 s on, ``31 ms`` below it, ``41 min`` from 100 s on; unknown is ``–``."""
    if seconds is None or seconds < 0:
        return UNKNOWN
    if seconds < 0.0995:
        return f"{round(seconds * 1000)} ms"
    if seconds < 9.995:
        return f"{seconds:.2f} s"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{round(minutes / 60)} h"


def split(times: Mapping[str, float]) -> str:
    """``queue 0.01, prefill 0.06, decode 0.71, Python 0.02``: seconds, in the order given."""
    return ", ".join(f"{'Python' if name == 'python' else name} {spent:.2f}" for name, spent in times.items())


def share(part: int, whole: int) -> str:
    """A share without decimals: ``90 %``; of nothing it is ``–``."""
    return f"{round(100 * part / whole)} %" if whole else UNKNOWN


def megabytes(number: int) -> str:
    """A size in MB or GB with the digits people read."""
    return f"{number / 1e9:.2f} GB" if number >= 1e9 else f"{number / 1e6:.0f} MB"


def quoted(text: str, limit: int = 40) -> str:
    """A string as Python would show it in double quotes, cut in the middle of nothing: ``"\\n\\n"``."""
    shown = text if len(text) <= limit else text[: limit - 1] + "…"
    escaped = "".join(_ESCAPES.get(char, char) for char in shown)
    return f'"{visible(escaped)}"'


_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def stop_words(reason: Mapping[str, Any] | None, *, stopped: bool = False, shape: str = "") -> str:
    """Why a generation ended, in the words of the program view. ``stopped``: its user stopped the run.

    ``shape``: what its output had to be.
    """
    reason = reason or {}
    kind, matched = str(reason.get("type", "")), reason.get("matched")
    if kind == "stop" and isinstance(matched, str):
        return f"stop {quoted(matched)}"
    if kind == "stop" and isinstance(matched, int):
        return f"stop token {matched}"
    if kind == "length":
        limit = reason.get("length")
        return f"token limit {count(limit)}" if isinstance(limit, int) else "token limit"
    if kind == "abort":
        return "stopped" if stopped else "aborted"
    return {
        "stop": "end of text",
        "eos": "end of text",
        "context": "context full",
        "grammar": "JSON complete"
        if shape.startswith("JSON")
        else f"{shape.split(' ')[0] or 'grammar'} complete",
        "error": "failed",
    }.get(kind, kind or UNKNOWN)


def reuse_words(cached: int, prompt: int) -> str:
    """``20 of 31 tokens reused``."""
    return f"{count(cached)} of {count(prompt)} tokens reused"


def waiting(branches: Sequence[str]) -> str:
    """``waiting for branches 0 and 2``; of many, how many."""
    if len(branches) > MAX_NAMES:
        return f"waiting for {count(len(branches))} branches"
    shown = [visible(name) for name in branches]
    several = ", ".join(shown[:-1]) + f" and {shown[-1]}" if len(shown) > 1 else shown[0]
    return f"waiting for branch{'es' if len(shown) > 1 else ''} {several}"


def visible(text: str) -> str:
    """Text with every invisible character shown by name: ``[U+001B]``, ``[U+202E]``. Line feed and tab stay.

    Marks beyond the eighth on one letter, which would pile over other lines, are counted: ``[+392 marks]``.
    """
    if not text.isascii():
        text = _PILE.sub(lambda pile: f"{pile[1]}[+{count(len(pile[2]))} marks]", text)
    if text.isascii() and text.isprintable():  # the common case: nothing to show
        return text
    return _HIDDEN.sub(lambda found: f"[U+{ord(found[0]):04X}]", text)


_MARKS = (
    "\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u06d6-\u06ed\u0730-\u074a\u0900-\u0903\u093a-\u094f"
    "\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0f71-\u0f84\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\u302a-\u302f\ufe00-\ufe0f\ufe20-\ufe2f"
    "\U0001d165-\U0001d1ad\U000e0100-\U000e01ef"
)
_PILE = re.compile(f"([{_MARKS}]{{8}})([{_MARKS}]+)")
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164"
    "\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Characters that draw nothing or turn the reading order: control, zero-width, fillers, bidi, tags, surrogates. Some of
them are printable to Python (``\u3164`` is a letter)."""


def is_hidden(code: int) -> bool:
    """True for a character that ``visible`` shows by name."""
    return _HIDDEN.match(chr(code)) is not None


def start_words(step: str, done: int, total: int) -> str:
    """One start step of an engine: ``weights, 71 of 145 MB``, ``KV slots``, ``process started``."""
    name = {"process": "process started", "kv": "KV slots"}.get(step, step)
    if step == "weights" and total:
        whole = megabytes(total)
        unit = whole.rsplit(" ", 1)[1]
        part = f"{done / 1e9:.2f}" if unit == "GB" else f"{done / 1e6:.0f}"
        return f"{name}, {part} of {whole}"
    return name
