"""Knobs and figures as people read and write them: ``%sgl set``, ``%sgl status``, the table of the manual.

Notebook process; called by ``magics``, ``panel`` and the test that holds ``docs/engine.md`` to the table. Pure: text in,
text out; no engine is asked here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sgnb.config import OBJECTIVES, default_of
from sgnb.errors import LimitError
from sgnb.knobs import KNOBS, LIVE, Knob, find_knob
from sgnb.widgets import words

_COUNTS = (
    "num_running_reqs",
    "num_queue_reqs",
    "num_grammar_queue_reqs",
    "num_paused_reqs",
    "num_retracted_reqs",
    "num_sessions",
    "instruction_queue_length",
    "num_used_tokens",
    "num_locked_tokens",
    "num_cached_tokens",
    "num_free_tokens",
    "max_total_num_tokens",
    "token_usage",
    "cache_hit_rate",
    "gen_throughput",
    "new_token_ratio",
    "fork_rate",
    "join_rate",
    "forward_steps",
    "prompt_tokens_total",
    "cached_tokens_total",
    "generated_tokens_total",
    "evicted_tokens_total",
)
"""The figures of ``%sgl status``, in their order."""


def parse_set(given: Sequence[str]) -> dict[str, Any]:
    """``KEY VALUE`` or any number of ``KEY=VALUE`` to typed values; LimitError with the legal range."""
    pairs = [tuple(word.split("=", 1)) for word in given] if all("=" in word for word in given) else []
    if not pairs and len(given) == 2:
        pairs = [(given[0], given[1])]
    if not pairs:
        raise LimitError(
            f"set takes KEY VALUE or KEY=VALUE …, not {' '.join(given)!r}", hint=f"Knobs: {', '.join(LIVE)}."
        )
    return {name: find_knob(name, live=True).parse(text) for name, text in pairs}


def show_value(value: Any) -> str:
    """``on``, ``none``, ``512``: a value as it may be typed after ``%sgl set KEY``."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else str(value)


def knob_lines(values: Mapping[str, Any]) -> list[str]:
    """One line for each live knob: its value now, its unit, what it trades; ``*`` marks what is not the objective's."""
    expected = OBJECTIVES.get(str(values.get("objective")), {})
    lines = []
    for name in LIVE:
        knob = KNOBS[name]
        mark = "*" if values.get(name) != expected.get(name, values.get(name)) else " "
        shown = " ".join(filter(None, [show_value(values.get(name)), knob.unit]))
        lines.append(f"{mark} {name:<26} {shown:<16} {knob.what}")
    return lines


def knob_rows(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The live knobs for the side panel: what a form needs to show and check each."""
    return [
        {
            "name": name,
            "kind": knob.kind,
            "value": values.get(name),
            "unit": knob.unit,
            "choices": [*knob.choices, *(value for value, _ in knob.also)],
            "low": knob.low,
            "high": knob.high,
            "legal": knob.legal,
            "what": knob.what,
        }
        for name, knob in KNOBS.items()
        if knob.live
    ]


def status_lines(figures: Mapping[str, Any]) -> list[str]:
    """The engine's figures under SGLang's names, one a line."""
    return [f"  {name:<26} {_figure(figures[name])}" for name in _COUNTS if name in figures]


def _figure(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else words.count(int(value))


def value_words(knob: Knob) -> list[str]:
    """What may be typed as the value, as far as it can be listed (for completion)."""
    if knob.kind == "switch":
        return ["on", "off"]
    return [str(choice) for choice in knob.choices] + [show_value(value) for value, _ in knob.also]


def table() -> str:
    """The knob table of the manual, in Markdown: every engine argument."""
    rows = ["| argument | default | legal | live | what it does, what it trades |", "|---|---|---|---|---|"]
    for knob in KNOBS.values():
        unit = f" [{knob.unit}]" if knob.unit else ""
        default = show_value(default_of(knob.name))
        rows.append(
            f"| `{knob.name}` | `{default}` | {knob.legal}{unit} | {'yes' if knob.live else ''} | {knob.what} |"
        )
    return "\n".join(rows)


def objectives_table() -> str:
    """The named sets of the manual, in Markdown."""
    names = list(OBJECTIVES)
    rows = [f"| knob | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for knob in OBJECTIVES[names[0]]:
        cells = " | ".join(f"`{show_value(OBJECTIVES[name][knob])}`" for name in names)
        rows.append(f"| `{knob}` | {cells} |")
    return "\n".join(rows)
