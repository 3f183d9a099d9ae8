"""The arguments of ``gen``: which names are legal, which come later, and their check.

Notebook process; used by ``lang.api.gen`` when a program runs and by ``lang.frontend.cells`` on a cell's text. A name is
never ignored: it is carried out, refused as one of a later version, or unknown.
"""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Mapping
from typing import Any

from sgnb.errors import LimitError, ProgramError, ProgramTypeError
from sgnb.lang.position import Place, internal, position_of
from sgnb.sampling_params import SamplingParams

internal(__name__)

GEN_PARAMS: dict[str, str] = {
    "max_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "stop": "stop",
    "stop_token_ids": "stop_token_ids",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "ignore_eos": "ignore_eos",
    "return_logprob": "return_logprob",
    "top_logprobs_num": "top_logprobs_num",
    "seed": "seed",
}
"""Arguments of ``gen`` that this version carries out, and the sampling parameter each one sets."""
LATER_PARAMS: dict[str, Any] = {
    "n": 1,
    "stop_regex": None,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "logprob_start_len": None,
    "return_text_in_logprobs": None,
    "dtype": None,
    "choices": None,
    "choices_method": None,
    "regex": None,
    "json_schema": None,
    "ebnf": None,
    "logit_bias": None,
    "priority": None,
    "extra_key": None,
}
"""Legal names of later versions with the value that changes nothing; any other value is refused, never ignored."""
GEN_NAMES = ("name", *GEN_PARAMS, *LATER_PARAMS)
MAX_CHECKED = 512
_checked: set[tuple[tuple[str, type, Any], ...]] = set()
"""Arguments found right before: a ``gen`` in a loop is checked once."""


def gen_params(given: Mapping[str, Any], place: Place) -> tuple[tuple[str, Any], ...]:
    """Check the arguments of a ``gen`` and name them as ``SamplingParams`` does. Lists are copied."""
    out: dict[str, Any] = {}
    for key, value in given.items():
        if key in LATER_PARAMS:
            if value is not None and value != LATER_PARAMS[key]:
                raise ProgramError(
                    f"gen({key}=…) comes in a later version of sgnb.",
                    hint="Remove it; it is refused so that the constraint is not dropped in silence.",
                    position=position_of(place),
                )
        elif key not in GEN_PARAMS:
            raise ProgramTypeError(unknown_argument(key), hint=legal_arguments(), position=position_of(place))
        elif value is not None:
            out[GEN_PARAMS[key]] = _copied(key, value, place)
    given_key = tuple((name, type(value), value) for name, value in out.items())
    try:
        if given_key not in _checked:
            # min_new_tokens is checked against the run's max_new_tokens when the generation is recorded.
            SamplingParams.make({k: v for k, v in out.items() if k != "min_new_tokens"})
            if len(_checked) >= MAX_CHECKED:
                _checked.clear()
            _checked.add(given_key)
    except LimitError as error:
        error.position = position_of(place)
        raise
    except TypeError:
        refused = next(name for name, value in out.items() if not isinstance(value, Hashable))
        raise ProgramTypeError(
            f"{refused} cannot be a {type(out[refused]).__name__}.", position=position_of(place)
        ) from None
    return tuple(out.items())


def unknown_argument(key: str) -> str:
    """The sentence for an argument ``gen`` does not have, with the nearest legal one."""
    near = difflib.get_close_matches(key, GEN_NAMES, 1)
    return f"gen() has no argument {key!r}." + (f" Did you mean {near[0]!r}?" if near else "")


def legal_arguments() -> str:
    """One sentence with all legal names."""
    return f"Legal arguments: {', '.join(GEN_NAMES)}."


def _copied(key: str, value: Any, place: Place) -> Any:
    if key not in ("stop", "stop_token_ids") or isinstance(value, str):
        return value
    try:
        return tuple(value)
    except TypeError:
        raise ProgramTypeError(
            f"gen({key}=…) takes a list, not {type(value).__name__}.", position=position_of(place)
        ) from None
