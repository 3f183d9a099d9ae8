"""Small facts about generations: seeds, meta with SGLang's names, lines.

Notebook process; used by ``runtime.core`` and ``runtime.state``. Pure functions.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any

from sgnb.backends.base import TokenInfo
from sgnb.errors import SgnbError
from sgnb.lang.position import line_of
from sgnb.runtime.variables import Slot
from sgnb.sampling_params import SamplingParams

MAX_TITLED = 8192
"""Characters of a schema that is searched for its title."""


def gen_seed(seed: int, path: str, ordinal: int, sample: int = 0) -> int:
    """The seed of a generation: of the run's seed, the state's path and the ordinal in that state and the sample."""
    where = f"{seed}/{path}/{ordinal}/{sample}" if sample else f"{seed}/{path}/{ordinal}"
    digest = hashlib.blake2b(where.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def default_seed() -> int:
    """0 in the deterministic mode, else a new random one."""
    return 0 if os.environ.get("SGNB_DETERMINISTIC") == "1" else secrets.randbits(62)


def meta_info(
    rid: str, finish: Mapping[str, object], meta: Mapping[str, object], logprobs: Sequence[TokenInfo]
) -> dict[str, Any]:
    """A generation's meta with SGLang's names; ``finish`` is our own word for why it ended."""
    kind = finish.get("type")
    reason: dict[str, object] = {"type": kind, "matched": finish.get("matched")}
    if kind in ("eos", "grammar"):
        reason["type"] = "stop"
    elif kind in ("length", "context"):
        reason = {"type": "length", "length": meta.get("completion_tokens", 0)}
    out: dict[str, Any] = {**meta, "id": rid, "finish_reason": reason, "finish": kind}
    if logprobs and "output_token_logprobs" not in out:
        out |= scored(logprobs)
    return out


def scored(tokens: Sequence[TokenInfo]) -> dict[str, Any]:
    """SGLang's shape: (log-probability, id, text or None), and as many lists of such where likeliest ones were asked for."""
    out: dict[str, Any] = {
        "output_token_logprobs": [(token.logprob, token.id, token.text) for token in tokens]
    }
    if any(token.top for token in tokens):
        out["output_top_logprobs"] = [
            [
                (value, other, text)
                for (value, other), text in zip(token.top, token.top_texts or repeat(None), strict=False)
            ]
            for token in tokens
        ]
    return out


def meta_of_chunks(slot: Slot, begin: int, end: int) -> dict[str, Any]:
    """The meta that goes with chunks ``begin`` to ``end`` of a stream: counts so far, log-probabilities of these alone.

    With the last chunk comes the final meta (finish reason, times).
    """
    over = slot.settled and end == len(slot.chunks)
    tokens, known = slot.marks[end - 1] if end <= len(slot.marks) else (slot.tokens, len(slot.logprobs))
    if over:
        tokens, known = slot.tokens, len(slot.logprobs)
    out = {**(slot.meta if over else {}), "id": slot.rid, "completion_tokens": tokens}
    if known:
        rows = slot.logprobs[slot.marks[begin - 1][1] if begin else 0 : known]
        out |= scored(rows)
        out["output_token_logprobs_length"] = known
    return out


def as_sgnb(error: BaseException) -> SgnbError:
    """The error as one of ours (an exception of the program keeps its words)."""
    return error if isinstance(error, SgnbError) else SgnbError(f"{type(error).__name__}: {error}")


def shape_words(params: SamplingParams) -> str:
    """What a generation's output must be, for people: ``JSON schema Verdict``, ``regex``, ``EBNF grammar``, or nothing."""
    if params.json_schema is not None:
        return f"JSON schema {_title_of(params.json_schema)}".rstrip()
    return "regex" if params.regex is not None else "EBNF grammar" if params.ebnf is not None else ""


@functools.lru_cache(maxsize=64)
def _title_of(schema: str) -> str:
    """The title a schema gives itself, when it is a word."""
    try:
        found = json.loads(schema) if len(schema) <= MAX_TITLED else {}
    except ValueError:
        return ""
    title = found.get("title") if isinstance(found, dict) else ""
    return title if isinstance(title, str) and title.isidentifier() else ""


def event_line(slot: Slot) -> int:
    """The line a generation stands at, 0 when unknown."""
    return 0 if slot.place is None else line_of(slot.place)
