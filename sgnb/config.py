"""What an engine is started with, and the limits of the design in one place.

A leaf: every package may import it, it imports leaves only. Read in all processes. ``EngineArgs`` crosses to the
engine as JSON in its run folder, so it holds plain values only. No defaults that depend on hardware are resolved here:
``auto`` stays ``auto`` until the model runner looks at the machine.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from sgnb.errors import LimitError
from sgnb.knobs import KNOBS, find_knob

DEFAULT_MODEL = "smollm2-135m-instruct"

# Limits. Each has a clear error where the input enters.
MAX_PROMPT_BYTES = 4 << 20
MAX_STOPS = 16
MAX_STOP_BYTES = 256
MAX_OPTIONS = 1024
MAX_N = 64
MAX_FORK_WIDTH = 1024
MAX_FORK_DEPTH = 32
MAX_FRAME_BYTES = 16 << 20
MAX_UNACKED_BYTES = 4 << 20
MAX_UNACKED_SECONDS = 10.0
MAX_WAITING = 4096
MAX_STATES = 8192
MAX_SHOWN_CHARS = 200_000
LEASE_SECONDS = 10.0
HEARTBEAT_SECONDS = 0.25
OWNER_GONE_SECONDS = 2.0
STUCK_SECONDS = 10.0
"""Without the end of a step for so long, while requests run, an engine is shown as stuck."""

ENGINE_NAME = re.compile(r"[a-z0-9-]{1,32}")

OBJECTIVES: dict[str, dict[str, Any]] = {
    "balanced": {
        "schedule_policy": "lpm",
        "schedule_conservativeness": 1.0,
        "chunked_prefill_size": 512,
        "prefill_decode_interval": 1,
        "enable_mixed_chunk": False,
        "decode_quantum": 0,
    },
    "throughput": {
        "schedule_policy": "lpm",
        "schedule_conservativeness": 0.5,
        "chunked_prefill_size": 2048,
        "prefill_decode_interval": 8,
        "enable_mixed_chunk": True,
        "decode_quantum": 0,
    },
    "latency": {
        "schedule_policy": "lpm",
        "schedule_conservativeness": 1.0,
        "chunked_prefill_size": 128,
        "prefill_decode_interval": 1,
        "enable_mixed_chunk": True,
        "decode_quantum": 64,
    },
}
"""Named sets of knobs: many requests in the least time; the defaults; each request's tokens soon and evenly."""


class EngineArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The knobs of one engine. Units are tokens, slots or seconds; ``None`` and ``"auto"`` mean *decide at start*."""

    model: str = DEFAULT_MODEL
    """The embedded model's name, a ``.gguf`` file, a safetensors folder, or a hub id."""
    name: str = "main"
    runner: Literal["torch", "transformers", "stub"] = "torch"
    """``torch``: our model code. ``transformers``: the reference. ``stub``: next token is a hash of the prefix (tests)."""
    device: str = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    attention_backend: Literal["auto", "torch_native", "triton", "flashinfer"] = "auto"
    context_length: int | None = None
    max_total_tokens: int | None = None
    """KV slots; ``None``: from free memory."""
    objective: Literal["balanced", "throughput", "latency"] = "balanced"
    """The named set of knobs (``OBJECTIVES``) that those not given are taken from."""
    max_running_requests: int = 64
    max_queued_requests: int = MAX_WAITING
    chunked_prefill_size: int = 512
    """New prompt tokens a step; -1: no chunking."""
    max_prefill_tokens: int = 16_384
    schedule_policy: Literal["lpm", "fcfs", "random", "dfs-weight", "lof", "priority"] = "lpm"
    schedule_conservativeness: float = 1.0
    prefill_decode_interval: int = 1
    """Most prefill steps in a row while streams run: then they all draw a token."""
    enable_mixed_chunk: bool = False
    """Running streams draw their token in the same step as a prefill, not in one of their own."""
    decode_quantum: int = 0
    """Tokens a stream draws before it may be suspended for one that waits; 0: until it ends."""
    runner_driver: Literal["auto", "inline", "thread", "process"] = "auto"
    """Where the model computes: the scheduler's thread (``auto``), another thread, or a process of its own."""
    enable_overlap: bool = False
    """Plan the next step while one is computed; its results come one step late."""
    watchdog_seconds: float = 60.0
    """A step that takes longer gets the stacks of all threads into the engine's log."""
    grammar_backend: Literal["xgrammar", "none"] = "xgrammar"
    """What makes masks of ``regex``, ``json_schema`` and ``ebnf``; ``none`` refuses them."""
    disable_radix_cache: bool = False
    radix_cache_size: int | None = None
    """Most slots of cached prefixes that nobody locks; ``None``: all there are."""
    radix_eviction_policy: Literal["lru", "lfu", "slru", "fifo", "priority"] = "lru"
    allocator_order: Literal["lifo", "lowest"] = "lifo"
    """Which free KV slots are taken first: the last freed, or the lowest numbers."""
    defragment_above: float | None = None
    """Fragmentation (0..1) above which an idle engine moves its KV together. Off: attention reads slots one by one or by
    pages, so order saves it next to nothing, while the move copies everything that is cached."""
    page_size: int = 1
    random_seed: int = 0
    threads: int | None = None
    deterministic: bool = False
    """fp32 and fixed kernels: the same text on any x86-64 CPU (``SGNB_DETERMINISTIC=1`` sets it)."""
    stub_step_seconds: float = 0.0
    """Only with ``runner="stub"``: how long a step takes."""

    @property
    def shown_model(self) -> str:
        """What to show as the model before it is loaded: the stub runner loads none."""
        return "stub" if self.runner == "stub" else self.model

    def check(self) -> EngineArgs:
        """Refuse values that can never work, naming the argument and the legal range. Returns self."""
        if not ENGINE_NAME.fullmatch(self.name):
            raise LimitError(f"engine name {self.name!r} must match [a-z0-9-]{{1,32}}")
        for field in self.__struct_fields__:
            if field in KNOBS:
                KNOBS[field].check(getattr(self, field))
        if self.max_total_tokens is not None and self.max_total_tokens < self.page_size:
            raise LimitError(
                f"max_total_tokens must be at least one page, which page_size makes {self.page_size} slots, "
                f"not {self.max_total_tokens}"
            )
        return self

    @classmethod
    def make(cls, **values: Any) -> EngineArgs:
        """Build from keyword arguments, with the knobs of ``objective`` where it is given and they are not.

        An unknown name, a wrong type or an illegal value is a LimitError that names the legal range.
        """
        legal = cls.__struct_fields__
        for key, value in values.items():
            if key not in legal:
                raise LimitError(f"unknown engine argument {key!r}", hint=f"Legal: {', '.join(legal)}.")
            if key in KNOBS:
                KNOBS[key].check(value)
        values = with_objective(values)
        try:
            return msgspec.convert(values, cls, strict=True).check()
        except msgspec.ValidationError as error:
            raise LimitError(f"engine arguments: {error}") from None


def with_objective(values: dict[str, Any]) -> dict[str, Any]:
    """``values`` with the knobs that their ``objective`` stands for; what is given beside it wins."""
    objective = values.get("objective")
    if objective is None:
        return values
    find_knob("objective").check(objective)
    return {**OBJECTIVES[objective], **values}


def default_of(name: str) -> Any:
    """The default of an engine argument."""
    return getattr(_DEFAULTS, name)


_DEFAULTS = EngineArgs()
