"""What simulations have shown, side by side.

Role: figures of each setting (``Figures``), the settings that a command line's lists make, and the table. Pure, but for
``compare``, which plays.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from sgnb.engine.scheduler.simulate.cost import CostModel
from sgnb.engine.scheduler.simulate.play import Played, play
from sgnb.engine.scheduler.simulate.script import Script
from sgnb.errors import LimitError

MAX_SETTINGS = 64


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Of one setting. Times in seconds, of the simulated engine; throughput in generated tokens a second."""

    setting: str
    changes: dict[str, Any]
    requests: int
    failed: int
    seconds: float
    steps: int
    hit_rate: float
    prefill_tokens: int
    generated_tokens: int
    throughput: float
    ttft_p50: float
    ttft_p95: float
    inter_token_p50: float
    inter_token_p95: float
    inter_token_p99: float
    retractions: int
    evicted_tokens: int


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all do not exceed; 0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def figures(setting: str, changes: Mapping[str, Any], played: Played) -> Figures:
    """Of what was played."""
    return Figures(
        setting=setting,
        changes=dict(changes),
        requests=played.requests,
        failed=played.failed,
        seconds=played.seconds,
        steps=played.steps,
        hit_rate=played.cached_tokens / played.prompt_tokens if played.prompt_tokens else 0.0,
        prefill_tokens=played.prefill_tokens,
        generated_tokens=played.generated_tokens,
        throughput=played.generated_tokens / played.seconds if played.seconds else 0.0,
        ttft_p50=percentile(played.first_token, 0.5),
        ttft_p95=percentile(played.first_token, 0.95),
        inter_token_p50=percentile(played.gaps, 0.5),
        inter_token_p95=percentile(played.gaps, 0.95),
        inter_token_p99=percentile(played.gaps, 0.99),
        retractions=played.retractions,
        evicted_tokens=played.evicted_tokens,
    )


def settings(lists: Mapping[str, Sequence[Any]], without: str = "as recorded") -> dict[str, dict[str, Any]]:
    """Every combination of the values given for each knob, named by the knobs that have several; ``without`` any, its
    name. LimitError beyond MAX_SETTINGS."""
    named = {name: values for name, values in lists.items() if values}
    if not named:
        return {without: {}}
    count = 1
    for values in named.values():
        count *= len(values)
    if count > MAX_SETTINGS:
        raise LimitError(
            f"{count} settings are asked for, at most {MAX_SETTINGS} are compared", hint="Give fewer values."
        )
    out = {}
    varied = {name for name, values in named.items() if len(values) > 1} or set(named)
    for combination in itertools.product(*named.values()):
        changes = dict(zip(named, combination, strict=True))
        out[", ".join(_words(name, value) for name, value in changes.items() if name in varied)] = changes
    return out


_SHORT = {
    "schedule_policy": "policy",
    "chunked_prefill_size": "chunk",
    "page_size": "page",
    "enable_mixed_chunk": "mixed",
    "decode_quantum": "quantum",
    "radix_eviction_policy": "eviction",
    "prefill_decode_interval": "interval",
}


def _words(name: str, value: Any) -> str:
    if name == "disable_radix_cache":  # as the flag says it
        name, value = "cache", not value
    shown = {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
    return f"{_SHORT.get(name, name)} {shown}"


def compare(
    script: Script,
    cost: CostModel,
    wanted: Mapping[str, Mapping[str, Any]],
    progress: Callable[[str], None] = lambda setting: None,
) -> list[Figures]:
    """Play each setting; the figures in the order given. LimitError for a setting that is not legal."""
    out = []
    for setting, changes in wanted.items():
        progress(setting)
        out.append(figures(setting, changes, play(script, cost, changes)))
    return out


_ROWS: tuple[tuple[str, Callable[[Figures], str]], ...] = (
    ("requests", lambda f: f"{f.requests:,}" + (f" ({f.failed} failed)" if f.failed else "")),
    ("time", lambda f: f"{f.seconds:,.1f} s"),
    ("steps", lambda f: f"{f.steps:,}"),
    ("hit rate", lambda f: f"{f.hit_rate:.1%}"),
    ("prompt tokens computed", lambda f: f"{f.prefill_tokens:,}"),
    ("generated tokens", lambda f: f"{f.generated_tokens:,}"),
    ("throughput", lambda f: f"{f.throughput:,.1f} tok/s"),
    ("first token p50", lambda f: _milliseconds(f.ttft_p50)),
    ("first token p95", lambda f: _milliseconds(f.ttft_p95)),
    ("between tokens p50", lambda f: _milliseconds(f.inter_token_p50)),
    ("between tokens p95", lambda f: _milliseconds(f.inter_token_p95)),
    ("between tokens p99", lambda f: _milliseconds(f.inter_token_p99)),
    ("retractions", lambda f: f"{f.retractions:,}"),
    ("evicted tokens", lambda f: f"{f.evicted_tokens:,}"),
)


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms"


def table(found: Sequence[Figures]) -> str:
    """A row for each figure, a column for each setting."""
    names = [setting.setting for setting in found]
    columns = [[name, *(show(f) for _, show in _ROWS)] for name, f in zip(names, found, strict=True)]
    left = ["", *(name for name, _ in _ROWS)]
    widths = [max(map(len, column)) for column in columns]
    first = max(map(len, left))
    lines = []
    for at, label in enumerate(left):
        cells = (column[at].rjust(width) for column, width in zip(columns, widths, strict=True))
        lines.append("  ".join([label.ljust(first), *cells]).rstrip())
    return "\n".join(lines)
