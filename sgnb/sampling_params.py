"""Sampling parameters with SGLang's names, their ranges and their check.

A leaf: every package may import it. The same record is made in the notebook (from ``gen(...)``), crosses the wire and
is read by scheduler and sampler. Everything that can be refused without a model is refused in ``make``; what needs the
vocabulary or context size is refused in ``check_model``. No sampling code here.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from sgnb.config import MAX_STOP_BYTES, MAX_STOPS
from sgnb.constraints import KINDS, Constraint, check_constraint
from sgnb.errors import LimitError
from sgnb.knobs import MAX_SEED, MOST

MAX_BIASED = 1024
LEGAL = {
    "max_new_tokens": "a whole number in 0..2^31-1",
    "min_new_tokens": "a whole number in 0..max_new_tokens",
    "stop": f"a text or a list of at most {MAX_STOPS} texts",
    "stop_token_ids": f"a list of at most {MAX_STOPS} token ids",
    "temperature": "a number in 0..100",
    "top_p": "a number in (0, 1]",
    "top_k": "a whole number in 1..2^31-1, or -1 (all)",
    "min_p": "a number in 0..1",
    "frequency_penalty": "a number in -2..2",
    "presence_penalty": "a number in -2..2",
    "repetition_penalty": "a number in (0, 2]",
    "seed": "a whole number in 0..2^63-1",
    "ignore_eos": "true or false",
    "return_logprob": "true or false",
    "top_logprobs_num": "a whole number in 0..20",
    "logprob_start_len": "a whole number in -1..2^31-1",
    "return_text_in_logprobs": "true or false",
    "regex": "a text",
    "json_schema": "a text or a dict",
    "ebnf": "a text",
}
"""What each parameter may be, in words; ``logit_bias`` has sentences of its own."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one generation samples. Lengths in tokens. Defaults are SGLang's."""

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    temperature: float = 1.0
    """Below 1e-6 means greedy."""
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    """Taken off a token's score for each time the output has it."""
    presence_penalty: float = 0.0
    """Taken off the score of every token the output has."""
    repetition_penalty: float = 1.0
    """Divides the scores above 0 (multiplies those below) of every token that the output has so far."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, what is added to its score); ``make`` takes SGLang's dict."""
    seed: int | None = None
    ignore_eos: bool = False
    return_logprob: bool = False
    top_logprobs_num: int = 0
    logprob_start_len: int = -1
    """With ``return_logprob``: from which prompt token on they are wanted of the prompt too; -1: of none."""
    return_text_in_logprobs: bool = False
    regex: str | None = None
    """The whole output matches it. At most one of the three constraints is given."""
    json_schema: str | None = None
    """The output is JSON that this schema (as text; ``make`` takes a dict too) allows."""
    ebnf: str | None = None
    """The output is derived from rule ``root``."""
    reasoning: str | None = None
    """The model family whose thought is cut out of what the session keeps; set by ``separate_reasoning`` alone."""

    @property
    def penalised(self) -> bool:
        """True when scores depend on the tokens so far."""
        return bool(self.frequency_penalty or self.presence_penalty) or self.repetition_penalty != 1.0

    @property
    def greedy(self) -> bool:
        """True when the highest logit is taken, without randomness."""
        return self.temperature < 1e-6 or self.top_k == 1

    @property
    def constraint(self) -> Constraint | None:
        """What the output must match."""
        for kind in KINDS:
            text: str | None = getattr(self, kind)
            if text is not None:
                return Constraint(kind, text)
        return None

    def unconstrained(self) -> SamplingParams:
        """Without the constraint's text: what a step needs to know."""
        if self.constraint is None:
            return self
        return msgspec.structs.replace(self, regex=None, json_schema=None, ebnf=None)

    @classmethod
    def make(cls, values: Mapping[str, Any] | None = None) -> SamplingParams:
        """Build from SGLang's names, refusing unknown names, wrong types and values out of range (LimitError)."""
        given = {k: v for k, v in dict(values or {}).items() if v is not None}
        if "sampling_seed" in given:
            given["seed"] = given.pop("sampling_seed")
        if given.pop("n", 1) != 1:
            raise LimitError("n is not supported by one request", hint="Engine.generate and gen take it.")
        if isinstance(given.get("json_schema"), Mapping):
            given["json_schema"] = _schema_text(given["json_schema"])
        for key in given:
            if key not in LEGAL and key != "logit_bias":
                raise _unknown(key)
        if isinstance(given.get("stop"), str):
            given["stop"] = (given["stop"],)
        for key in ("stop", "stop_token_ids"):
            if isinstance(given.get(key), list):
                given[key] = tuple(given[key])
        if "logit_bias" in given:
            given["logit_bias"] = _bias(given["logit_bias"])
        for key in (
            *("temperature", "top_p", "min_p", "frequency_penalty"),
            *("presence_penalty", "repetition_penalty"),
        ):
            if type(given.get(key)) is int:
                given[key] = float(given[key])
        try:
            return msgspec.convert(given, cls, strict=True).check()
        except msgspec.ValidationError as error:
            raise _wrong_type(given, str(error)) from None

    def check(self) -> SamplingParams:
        """Refuse values out of range, naming parameter, value and range. Returns self."""
        if not 0 <= self.max_new_tokens <= MOST:
            raise self._refused("max_new_tokens")
        if not 0 <= self.min_new_tokens <= max(self.max_new_tokens, 0):
            raise self._refused("min_new_tokens")
        if not (math.isfinite(self.temperature) and 0 <= self.temperature <= 100):
            raise self._refused("temperature")
        if not 0 < self.top_p <= 1:
            raise self._refused("top_p")
        if not 0 <= self.min_p <= 1:
            raise self._refused("min_p")
        for key in ("frequency_penalty", "presence_penalty"):
            if not -2 <= getattr(self, key) <= 2:
                raise self._refused(key)
        if not 0 < self.repetition_penalty <= 2:
            raise self._refused("repetition_penalty")
        if len(self.logit_bias) > MAX_BIASED:
            raise LimitError(f"logit_bias has {len(self.logit_bias)} ids, at most {MAX_BIASED} are allowed")
        for token, bias in self.logit_bias:
            if not -1000 <= bias <= 1000:
                raise LimitError(f"logit_bias of id {token} must be in -1000..1000, not {bias}")
        if self.top_k != -1 and not 1 <= self.top_k <= MOST:
            raise self._refused("top_k")
        if self.seed is not None and not 0 <= self.seed <= MAX_SEED:
            raise self._refused("seed")
        if not 0 <= self.top_logprobs_num <= 20:
            raise self._refused("top_logprobs_num")
        if not -1 <= self.logprob_start_len <= MOST:
            raise self._refused("logprob_start_len")
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(given) > 1:
            raise LimitError(f"{' and '.join(given)} are given; an output has one constraint")
        for kind in given:
            check_constraint(kind, getattr(self, kind))
        for key in ("stop", "stop_token_ids"):
            if len(getattr(self, key)) > MAX_STOPS:
                raise LimitError(f"{key} must be {LEGAL[key]}, not {len(getattr(self, key))} of them")
        for text in self.stop:
            try:
                size = len(text.encode())
            except UnicodeEncodeError:
                raise LimitError(f"stop string {text!r} is not valid Unicode") from None
            if not size:
                raise LimitError(
                    'a stop string is empty; "" would stop every generation at once', hint="Remove it."
                )
            if size > MAX_STOP_BYTES:
                raise LimitError(f"a stop string has {size} bytes, at most {MAX_STOP_BYTES} are allowed")
        return self

    def _refused(self, key: str) -> LimitError:
        return LimitError(f"{key} must be {LEGAL[key]}, not {getattr(self, key)}")

    def check_model(self, vocab_size: int) -> None:
        """Refuse token ids outside ``0..vocab_size-1`` (LimitError), before anything is queued."""
        for token in self.stop_token_ids:
            if not 0 <= token < vocab_size:
                raise LimitError(f"stop_token_ids holds {token}; legal ids are 0..{vocab_size - 1}")
        for token, _ in self.logit_bias:
            if not 0 <= token < vocab_size:
                raise LimitError(f"logit_bias holds id {token}; legal ids are 0..{vocab_size - 1}")


def _unknown(key: str) -> LimitError:
    """What is said of a name that no parameter has."""
    if key == "stop_regex":
        return LimitError(
            "stop_regex is not supported: a generation stops at texts (stop) and token ids (stop_token_ids)",
            hint="To say what the whole output must be, use regex.",
        )
    names = [name for name in SamplingParams.__struct_fields__ if name != "reasoning"]
    near = difflib.get_close_matches(key, names, 1)
    return LimitError(
        f"unknown sampling parameter {key!r}" + (f". Did you mean {near[0]!r}?" if near else ""),
        hint=f"Legal: {', '.join(names)}.",
    )


def _wrong_type(given: Mapping[str, Any], said: str) -> LimitError:
    """``said`` is msgspec's sentence; it ends with the path of what was wrong, for example ``$.stop[0]``."""
    path = re.search(r"\$\.(\w+)(?:\[(\d+)\])?", said)
    if path is None or path[1] not in LEGAL:
        return LimitError(f"sampling parameters: {said}")
    name, value = path[1], given[path[1]]
    if path[2]:
        found = list(value)[int(path[2])]
        return LimitError(f"{name} must be {LEGAL[name]}, but {name}[{path[2]}] is {found!r}")
    return LimitError(f"{name} must be {LEGAL[name]}, not {value!r}")


def _schema_text(schema: Mapping[str, Any]) -> str:
    try:
        return json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise LimitError(f"json_schema cannot be written as JSON: {error}") from None


def _bias(value: Any) -> tuple[tuple[int, float], ...]:
    """Ids as whole numbers or, as SGLang writes them, strings of digits."""
    if isinstance(value, tuple):  # made from a dict before
        value = dict(value)
    if not isinstance(value, Mapping):
        raise LimitError(f"logit_bias must be a dict of token id to bias, not {type(value).__name__}")
    out = {}
    for token, bias in value.items():
        text = str(token) if not isinstance(token, bool) else ""
        if not text.lstrip("-").isdecimal() or isinstance(bias, bool) or not isinstance(bias, int | float):
            raise LimitError(f"logit_bias must map token ids to numbers, not {token!r} to {bias!r}")
        out[int(text)] = float(bias)
    return tuple(out.items())
