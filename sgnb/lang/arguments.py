"""The arguments of ``gen``: which names are legal, which come later, and their check.

Notebook process; used by ``lang.api.gen`` when a program runs and by ``lang.frontend.trial_calls`` on a cell's text. A name
is never ignored: it is carried out, refused as one of a later version, or unknown.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any

from sgnb.config import MAX_N, MAX_OPTIONS
from sgnb.constraints import check_constraint
from sgnb.errors import ConstraintError, LimitError, ProgramError, ProgramTypeError, SourcePosition, a_type_of
from sgnb.lang.choices import METHODS, ChoicesMethod
from sgnb.lang.instruction import ChoicesMethod as MethodName
from sgnb.lang.position import Place, internal, position_of
from sgnb.lang.schema import Shape, dtype_shape, ebnf_shape, regex_shape, schema_shape
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
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "repetition_penalty": "repetition_penalty",
    "logit_bias": "logit_bias",
    "logprob_start_len": "logprob_start_len",
    "return_text_in_logprobs": "return_text_in_logprobs",
}
"""Arguments of ``gen`` that this version carries out, and the sampling parameter each one sets."""
LATER_PARAMS: dict[str, Any] = {
    "stop_regex": None,
}
"""Legal names of later versions with the value that changes nothing; any other value is refused, never ignored."""
CONSTRAINTS: dict[str, Callable[[Any], Shape]] = {
    "regex": regex_shape,
    "json_schema": schema_shape,
    "ebnf": ebnf_shape,
    "dtype": dtype_shape,
}
"""Arguments of ``gen`` that say what the output must be; one of them at most."""
OWN_PARAMS = ("n", "choices", "choices_method", "priority", "parse", *CONSTRAINTS)
"""Arguments of ``gen`` that are no sampling parameters."""
GEN_NAMES = ("name", *GEN_PARAMS, *OWN_PARAMS, *LATER_PARAMS)
MAX_PRIORITY = 1_000_000
MAX_CHECKED = 512
MAX_SHAPES = 128
_checked: set[tuple[tuple[str, type, Any], ...]] = set()
"""Arguments found right before: a ``gen`` in a loop is checked once."""


def gen_params(
    given: Mapping[str, Any], unknown: Mapping[str, Any], place: Place
) -> tuple[tuple[str, Any], ...]:
    """Check the arguments of a ``gen`` and name them as ``SamplingParams`` does. Lists are copied.

    ``given`` has every argument of its signature, None where nothing was said; ``unknown`` what has no place in it.
    """
    for key in unknown:
        raise unknown_argument(key, position_of(place))
    for key, neutral in LATER_PARAMS.items():
        if given[key] is not None and given[key] != neutral:
            raise ProgramError(
                f"gen({key}=…) comes in a later version of sgnb.",
                hint="Remove it; it is refused so that the constraint is not dropped in silence.",
                position=position_of(place),
            )
    out: dict[str, Any] = {}
    for key, param in GEN_PARAMS.items():
        value = given[key]
        if value is not None:
            out[param] = _copied(key, value, place)
    if not out:
        return ()
    given_key = tuple([(name, type(value), value) for name, value in out.items()])
    try:
        if given_key not in _checked:
            # min_new_tokens is checked against the run's max_new_tokens when the generation is recorded.
            SamplingParams.make({k: v for k, v in out.items() if k != "min_new_tokens"})
            if len(_checked) >= MAX_CHECKED:
                _checked.clear()
            _checked.add(given_key)
    except LimitError as error:
        raise as_gen_says(error, position_of(place)) from None
    except TypeError:
        refused = next(name for name, value in out.items() if not isinstance(value, Hashable))
        raise ProgramTypeError(
            f"{refused} cannot be {a_type_of(out[refused])}.", position=position_of(place)
        ) from None
    return tuple(out.items())


def as_gen_says(error: LimitError, position: SourcePosition) -> LimitError:
    """The error of a sampling parameter under the name that ``gen`` has for it, at its place."""
    for ours, param in GEN_PARAMS.items():
        error.message = re.sub(rf"\b{param}\b", ours, error.message)
    error.position = error.position or position
    return error


def shape_of(given: Mapping[str, Any], place: Place) -> Shape | None:
    """What the constraint among ``given`` means; None without one. Its syntax and limits are checked, at its place."""
    for key in CONSTRAINTS:
        if given[key] is not None:
            return check_shape(given, position_of(place))
    return None


def check_shape(given: Mapping[str, Any], position: SourcePosition | None) -> Shape | None:
    """``shape_of`` at a known position: constants of a program are checked before it runs."""
    found = [key for key in CONSTRAINTS if given.get(key) is not None]
    if not found:
        return None
    if len(found) > 1:
        raise ProgramTypeError(
            f"gen() takes one constraint, not {' and '.join(found)}.",
            hint="Keep the one that says it all.",
            position=position,
        )
    key, value = found[0], given[found[0]]
    try:
        shape = _made_shape(key, value) if isinstance(value, Hashable) else CONSTRAINTS[key](value)
        check_constraint(shape.kind, shape.text)
    except ConstraintError as error:
        raise ProgramError(f"gen({key}=…): {error.message}", hint=error.hint, position=position) from None
    except LimitError as error:
        raise LimitError(f"gen({key}=…): {error.message}", hint=error.hint, position=position) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise ProgramTypeError(f"gen({key}=…): {error}.", position=position) from None
    return shape


@functools.lru_cache(MAX_SHAPES, typed=True)
def _made_shape(key: str, value: Any) -> Shape:
    return CONSTRAINTS[key](value)


def priority_of(value: Any, place: Place) -> int | None:
    """Check ``priority``."""
    if value is None:
        return None
    if type(value) is not int:
        raise ProgramTypeError(
            f"gen(priority=…) takes an int, not {type(value).__name__}.", position=position_of(place)
        )
    if abs(value) > MAX_PRIORITY:
        raise LimitError(
            f"priority must be in -{MAX_PRIORITY}..{MAX_PRIORITY}, not {value}", position=position_of(place)
        )
    return value


def sample_count(value: Any, place: Place) -> int:
    """Check ``n``."""
    if type(value) is not int:
        raise ProgramTypeError(
            f"gen(n=…) takes an int, not {type(value).__name__}.", position=position_of(place)
        )
    if not 1 <= value <= MAX_N:
        raise LimitError(f"n must be in 1..{MAX_N}, not {value}", position=position_of(place))
    return value


def options_of(called: str, choices: Any, place: Place) -> tuple[str, ...]:
    """Check and copy the options of a choice."""
    return check_options(called, choices, position_of(place))


def check_options(called: str, choices: Any, position: SourcePosition | None) -> tuple[str, ...]:
    """``options_of`` at a known position: a cell's constants are checked on its text."""
    if choices is None:
        raise ProgramTypeError(
            f"{called} needs choices.", hint='Give a list: ["yes", "no"].', position=position
        )
    if isinstance(choices, str | bytes):
        raise ProgramTypeError(
            f"{called}: choices is a list of texts, not one text.",
            hint=f"Write [{choices!r}, …].",
            position=position,
        )
    try:
        options = tuple(choices)
    except TypeError:
        raise ProgramTypeError(
            f"{called}: choices is a list of texts, not {type(choices).__name__}.", position=position
        ) from None
    if not options:
        raise ProgramError(f"{called} has no options.", hint="Give at least one.", position=position)
    if len(options) > MAX_OPTIONS:
        raise LimitError(
            f"{called} has {len(options)} options, at most {MAX_OPTIONS} are allowed", position=position
        )
    seen: dict[str, int] = {}
    for number, option in enumerate(options):
        _check_option(called, option, number, seen, position)
    return options


def _check_option(called: str, option: Any, number: int, seen: dict[str, int], position: Any) -> None:
    if not isinstance(option, str):
        raise ProgramTypeError(
            f"{called}: option {number} is {a_type_of(option)}; options are texts.",
            hint="Convert it with str(...).",
            position=position,
        )
    if not option:
        raise ProgramError(
            f"{called}: option {number} is empty, so there is nothing to score.",
            hint="Give it a text, for example a space or a full stop.",
            position=position,
        )
    try:
        option.encode()
    except UnicodeEncodeError:
        raise ProgramError(f"{called}: option {number} is not valid Unicode.", position=position) from None
    if option in seen:
        raise ProgramError(
            f"{called}: options {seen[option]} and {number} are the same: {option!r}.",
            hint="Remove one of them.",
            position=position,
        )
    seen[option] = number


def method_of(called: str, method: Any, place: Place) -> MethodName:
    """The name of a choices method; None means the default."""
    if method is None:
        return "token_length_normalized"
    return check_method(called, method, position_of(place))


def check_method(called: str, method: Any, position: SourcePosition | None) -> MethodName:
    """``method_of`` at a known position."""
    if method is None:
        return "token_length_normalized"
    if isinstance(method, ChoicesMethod):
        return method.name
    if isinstance(method, str) and method in METHODS:
        return METHODS[method].name
    raise ProgramTypeError(
        f"{called}: {method!r} is no choices method.",
        hint=f"Methods: {', '.join(METHODS)}.",
        position=position,
    )


def unknown_argument(
    key: str, position: SourcePosition, called: str = "gen", legal: Collection[str] = GEN_NAMES
) -> ProgramTypeError:
    """The error for an argument that a function of the language does not have, with the nearest legal one."""
    if key == "extra_key" and called == "gen":
        return ProgramTypeError(
            "gen() has no extra_key: a state has one name space for all its text.",
            hint="Give it to the run: program.run(extra_key=…).",
            position=position,
        )
    near = difflib.get_close_matches(key, legal, 1)
    return ProgramTypeError(
        f"{called}() has no argument {key!r}." + (f" Did you mean {near[0]!r}?" if near else ""),
        hint=f"Legal arguments: {', '.join(legal)}.",
        position=position,
    )


def _copied(key: str, value: Any, place: Place) -> Any:
    if key == "logit_bias" and isinstance(value, Mapping):
        return tuple(value.items())
    if key not in ("stop", "stop_token_ids") or isinstance(value, str):
        return value
    try:
        return tuple(value)
    except TypeError:
        raise ProgramTypeError(
            f"gen({key}=…) takes a list, not {type(value).__name__}.", position=position_of(place)
        ) from None
