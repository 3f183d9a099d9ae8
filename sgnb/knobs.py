"""The table of knobs: what each engine argument is, what is legal, what it trades, and whether it may change live.

A leaf: imports errors only. Read in all processes: ``EngineArgs`` checks its values by it, ``%sgl set``, completion, the
side panel and ``docs/engine.md`` are made from it. One row for each field of ``EngineArgs``; the default is that field's,
nowhere else. No value of a running engine is kept here.
"""

from __future__ import annotations

import difflib
import math
from typing import Any, Literal

import msgspec

from sgnb.errors import LimitError

Kind = Literal["whole", "number", "switch", "choice", "text"]
MOST = (1 << 31) - 1
"""The largest whole number of a knob or parameter without a smaller bound: what the engine counts, it counts in 32 bits."""
MAX_SEED = (1 << 63) - 1
_WORDS: dict[str, Any] = {"none": None, "true": True, "on": True, "false": False, "off": False}


class Knob(msgspec.Struct, frozen=True, kw_only=True):
    """One row. ``low`` and ``high`` are inclusive; ``also`` are legal values outside of them, each with its meaning."""

    name: str
    kind: Kind
    what: str
    """What it does and what it trades, for people."""
    unit: str = ""
    live: bool = False
    """May change while the engine runs; else it is fixed at start."""
    low: float | None = None
    high: float | None = None
    choices: tuple[Any, ...] = ()
    also: tuple[tuple[Any, str], ...] = ()

    @property
    def legal(self) -> str:
        """The legal values in words: ``a whole number of at least 1, or -1 (no chunking)``."""
        if self.kind == "switch":
            text = "true or false"
        elif self.kind == "choice":
            text = "one of " + ", ".join(str(choice) for choice in self.choices)
        elif self.kind == "text":
            text = "a text"
        else:
            text = "a whole number" if self.kind == "whole" else "a number"
            if self.low is not None and self.high is not None:
                text += f" in {_figure(self.low)}..{_figure(self.high)}"
            elif self.low is not None:
                text += f" of at least {_figure(self.low)}"
        return text + "".join(f", or {value} ({meaning})" for value, meaning in self.also)

    def check(self, value: Any) -> None:
        """Raise LimitError, with the legal range, unless ``value`` is legal."""
        if not self._is_legal(value):
            unit = f" [{self.unit}]" if self.unit else ""
            huge = f", at most {self._most:,}" if type(value) is int and abs(value) > self._most else ""
            raise LimitError(f"{self.name} must be {self.legal}{unit}{huge}, not {value!r}", hint=self.what)

    @property
    def _most(self) -> float:
        """The largest whole number; what has no bound at all is a seed."""
        return self.high if self.high is not None else MOST if self.low is not None else MAX_SEED

    def _is_legal(self, value: Any) -> bool:
        if any(type(value) is type(other) and value == other for other, _ in self.also):
            return True
        if self.kind == "switch":
            return type(value) is bool
        if self.kind == "choice":
            return any(type(value) is type(choice) and value == choice for choice in self.choices)
        if self.kind == "text":
            return isinstance(value, str)
        if type(value) is not int and not (self.kind == "number" and type(value) is float):
            return False
        if self.kind == "whole" and abs(value) > self._most:
            return False
        over = self.high is not None and value > self.high
        return math.isfinite(value) and not over and (self.low is None or value >= self.low)

    def parse(self, text: str) -> Any:
        """The value that ``text`` names, checked; LimitError with the legal range."""
        value: Any = text
        word = text.strip().lower()
        if self.kind == "switch":
            value = {"1": True, "0": False, "yes": True, "no": False}.get(word, _WORDS.get(word, text))
        elif self.kind != "text" and word == "none":
            value = None
        elif self.kind in ("whole", "number") or (self.choices and isinstance(self.choices[0], int)):
            value = _number(word, text, whole=self.kind != "number")
        self.check(value)
        return value


def _number(word: str, text: str, *, whole: bool) -> Any:
    """A number if it is one, else the text, which the check then refuses by its legal range."""
    try:
        return int(word) if whole else float(word)
    except ValueError:
        return text


def _figure(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:g}"


_ROWS = (
    # ---- what runs, fixed at start
    Knob(name="model", kind="text", what="a known name, a .gguf file, a safetensors folder, or a hub id"),
    Knob(name="name", kind="text", what="the engine's name: [a-z0-9-], up to 32 characters"),
    Knob(
        name="runner",
        kind="choice",
        choices=("torch", "transformers", "stub"),
        what="torch is sgnb's own model code; transformers is the slower reference; stub draws a hash of the prefix",
    ),
    Knob(name="device", kind="text", what="where the model runs; auto takes the fastest that is there"),
    Knob(
        name="dtype",
        kind="choice",
        choices=("auto", "float32", "bfloat16", "float16"),
        what="number format of weights and KV: float32 is exact, the others take half the memory and time",
    ),
    Knob(
        name="attention_backend",
        kind="choice",
        choices=("auto", "torch_native", "triton", "flashinfer"),
        what="who computes attention; torch_native is the reference and runs everywhere",
    ),
    Knob(
        name="runner_driver",
        kind="choice",
        choices=("auto", "inline", "thread", "process"),
        what="where the model computes: the scheduler's own thread (auto, inline), another thread, or a process of its own",
    ),
    Knob(
        name="context_length",
        kind="whole",
        unit="tokens",
        low=1,
        also=((None, "the model's"),),
        what="most tokens of prompt and output together; less saves nothing but guards against runaways",
    ),
    Knob(
        name="max_total_tokens",
        kind="whole",
        unit="slots",
        low=1,
        also=((None, "from free memory"),),
        what="size of the KV pool: more caches and runs more at once, less takes less memory",
    ),
    Knob(
        name="page_size",
        kind="choice",
        choices=(1, 2, 4, 16),
        unit="slots",
        what="KV slots are given in pages of this size: larger ones mean shorter tables but shared prefixes end at a page",
    ),
    Knob(
        name="threads",
        kind="whole",
        low=1,
        also=((None, "chosen by measured cost"),),
        what="CPU threads of the runner",
    ),
    Knob(name="random_seed", kind="whole", what="seed of requests without one, and of the policy random"),
    Knob(
        name="deterministic",
        kind="switch",
        what="fp32 and fixed kernels: the same text on any x86-64 CPU, at the cost of speed",
    ),
    Knob(
        name="watchdog_seconds",
        kind="number",
        unit="seconds",
        low=0.5,
        what="a step that takes longer gets the stacks of all threads into the engine's log",
    ),
    Knob(
        name="stub_step_seconds",
        kind="number",
        unit="s",
        low=0,
        what="only with runner=stub: how long a step takes",
    ),
    # ---- live
    Knob(
        name="objective",
        kind="choice",
        live=True,
        choices=("balanced", "throughput", "latency"),
        what="a named set of the knobs below; knobs given beside it win",
    ),
    Knob(
        name="schedule_policy",
        kind="choice",
        live=True,
        choices=("lpm", "fcfs", "random", "dfs-weight", "lof", "priority"),
        what="order of the queue: lpm and dfs-weight reuse most, fcfs is fairest, lof starts long outputs first",
    ),
    Knob(
        name="schedule_conservativeness",
        kind="number",
        live=True,
        low=0.01,
        high=10,
        what="share of the allowed output that is reserved at admission: less runs more at once, more avoids retractions",
    ),
    Knob(
        name="max_running_requests",
        kind="whole",
        live=True,
        unit="requests",
        low=1,
        what="most requests in a batch: more is throughput, fewer is speed of each; live up to the number at start",
    ),
    Knob(
        name="max_queued_requests",
        kind="whole",
        live=True,
        unit="requests",
        low=1,
        what="most waiting requests; the next one is refused at once, it does not hang",
    ),
    Knob(
        name="chunked_prefill_size",
        kind="whole",
        live=True,
        unit="tokens",
        low=1,
        also=((-1, "no chunking"),),
        what="new prompt tokens a step: small keeps running streams smooth, large starts a long prompt sooner",
    ),
    Knob(
        name="max_prefill_tokens",
        kind="whole",
        live=True,
        unit="tokens",
        low=1,
        what="new prompt tokens that are admitted in one pass: bounds the step's length where chunking is off",
    ),
    Knob(
        name="prefill_decode_interval",
        kind="whole",
        live=True,
        unit="steps",
        low=1,
        what="most prefill steps in a row while streams run: more fills the batch faster, 1 keeps streams smooth",
    ),
    Knob(
        name="enable_mixed_chunk",
        kind="switch",
        live=True,
        what="running streams draw in the same step as a prefill: fewer steps, each a little longer",
    ),
    Knob(
        name="enable_overlap",
        kind="switch",
        live=True,
        what="the next step is planned while one is computed: hides the host's time, results come one step late",
    ),
    Knob(
        name="decode_quantum",
        kind="whole",
        live=True,
        unit="tokens",
        low=0,
        what="tokens a stream draws before it may be suspended for one that waits: fair when rows are short; 0: never",
    ),
    Knob(
        name="grammar_backend",
        kind="choice",
        choices=("xgrammar", "none"),
        what="what turns regex, json_schema and ebnf into masks; none refuses them",
    ),
    Knob(
        name="disable_radix_cache",
        kind="switch",
        live=True,
        what="nothing is reused: every prompt is computed whole (to see what the cache saves)",
    ),
    Knob(
        name="radix_cache_size",
        kind="whole",
        live=True,
        unit="slots",
        low=0,
        also=((None, "all there are"),),
        what="most slots of cached prefixes that nobody uses now: fewer are evicted sooner; 0 keeps none",
    ),
    Knob(
        name="radix_eviction_policy",
        kind="choice",
        live=True,
        choices=("lru", "lfu", "slru", "fifo", "priority"),
        what="who makes room: least recently used, least often, used once first, oldest, lowest priority",
    ),
    Knob(
        name="allocator_order",
        kind="choice",
        live=True,
        choices=("lifo", "lowest"),
        what="free slots are taken last freed first (fast), or lowest numbers first (less scattered)",
    ),
    Knob(
        name="defragment_above",
        kind="number",
        live=True,
        low=0,
        high=1,
        also=((None, "only on request"),),
        what="when idle, KV is moved together once more than this share of the free slots lies outside their longest run",
    ),
)

KNOBS: dict[str, Knob] = {knob.name: knob for knob in _ROWS}
LIVE = tuple(knob.name for knob in _ROWS if knob.live)


def find_knob(name: str, *, live: bool = False) -> Knob:
    """The row of a knob; ``live``: LimitError for one that is fixed at start, too."""
    knob = KNOBS.get(name)
    if knob is None:
        names = LIVE if live else tuple(KNOBS)
        near = difflib.get_close_matches(name, names, 1) or [one for one in names if name and name in one]
        raise LimitError(
            f"there is no knob {name!r}" + (f". Did you mean {near[0]!r}?" if near else ""),
            hint=f"Knobs: {', '.join(names)}.",
        )
    if live and not knob.live:
        raise LimitError(f"{name} is fixed at start", hint=f"Live knobs: {', '.join(LIVE)}.")
    return knob
