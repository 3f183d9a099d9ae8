"""The arguments of ``run``: which are its own, which are the program's, and what is wrong with one.

Notebook process; used by ``runtime.function``. Pure: nothing is started here, and no program is known but by its names.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from sgnb.config import MAX_N
from sgnb.errors import LimitError, ProgramError, ProgramTypeError, a_type_of
from sgnb.lang.arguments import GEN_PARAMS, LATER_PARAMS, MAX_PRIORITY
from sgnb.lang.passes import BY_NAME, PASSES, Pass
from sgnb.lang.position import here, internal
from sgnb.sampling_params import SamplingParams

internal(__name__)

RUN_DEFAULTS: dict[str, Any] = {
    "max_new_tokens": 128,
    "n": 1,
    "stop": None,
    "stop_token_ids": None,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "ignore_eos": False,
    "return_logprob": None,
    "top_logprobs_num": None,
    "logprob_start_len": None,
    "return_text_in_logprobs": None,
    "frequency_penalty": None,
    "presence_penalty": None,
    "repetition_penalty": None,
    "logit_bias": None,
}
"""Sampling arguments of ``run`` (SGLang's names and defaults)."""
RUN_ONLY: dict[str, Any] = {
    "seed": None,
    "stream": False,
    "backend": None,
    "use_thread": True,
    "extra_key": None,
    "passes": None,
    "priority": None,
}


def split_arguments(
    given: Mapping[str, Any], program: str, own: Collection[str], *, takes_any: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the arguments of ``run``, the program's); ``own``: what the program can be given by name, which goes first.

    ``takes_any``: the program takes other names too. Raises ProgramTypeError for a name that nobody has, ProgramError for
    one of a later version.
    """
    options: dict[str, Any] = {**RUN_DEFAULTS, **RUN_ONLY}
    rest: dict[str, Any] = {}
    for key, value in given.items():
        if key in own:
            rest[key] = value
        elif key in RUN_DEFAULTS or key in RUN_ONLY:
            options[key] = value
        elif key in LATER_PARAMS:
            neutral = LATER_PARAMS[key]
            if value is not None and value != neutral and not (key == "stop_regex" and not value):
                raise ProgramError(
                    f"run({key}=…) comes in a later version of sgnb.", hint="Remove it.", position=here()
                )
        elif takes_any:
            rest[key] = value
        else:
            raise _unknown(key, program, own)
    return options, rest


def _unknown(key: str, program: str, own: Collection[str]) -> ProgramTypeError:
    """``run`` was given a name that neither it nor the program has."""
    ours = GEN_PARAMS.get(key, "")
    legal = [*own, *RUN_DEFAULTS, *RUN_ONLY]
    near = ours if ours in RUN_DEFAULTS else next(iter(difflib.get_close_matches(key, legal, 1)), "")
    return ProgramTypeError(
        f"{program} has no argument {key!r}." + (f" Did you mean {near!r}?" if near else ""),
        hint=f"Its own: {', '.join(own) or 'none'}. Of run(): {', '.join((*RUN_DEFAULTS, *RUN_ONLY))}.",
        position=here(),
    )


def defaults_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling defaults of a run, checked and copied."""
    defaults = {k: options[k] for k in RUN_DEFAULTS if options[k] is not None}
    try:
        given = {key: value for key, value in defaults.items() if key != "n"}
        SamplingParams.make(
            {**given, "seed": options["seed"]}
        )  # the seed is the run's: its gens draw theirs from it
        if type(defaults["n"]) is not int or not 1 <= defaults["n"] <= MAX_N:
            raise LimitError(f"n must be in 1..{MAX_N}, not {defaults['n']!r}")
    except LimitError as error:
        error.message = f"run(): {error.message}"
        error.position = here()
        raise
    for key in ("stop", "stop_token_ids"):
        if isinstance(defaults.get(key), list):
            defaults[key] = tuple(defaults[key])
    return defaults


def extra_key_of(options: Mapping[str, Any]) -> str:
    """The name space of cached prefixes, checked."""
    key = options["extra_key"]
    if key is not None and not isinstance(key, str):
        raise ProgramTypeError(f"run(extra_key=…) takes a str, not {type(key).__name__}.", position=here())
    try:
        (key or "").encode()
    except UnicodeEncodeError:
        raise ProgramError(f"run(extra_key={key!r}) is not valid Unicode.", position=here()) from None
    return key or ""


def passes_of(options: Mapping[str, Any]) -> tuple[Pass, ...]:
    """The passes a run's blocks go through, in their order; given as passes or by their names."""
    given = options["passes"]
    if given is None:
        return PASSES
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ProgramTypeError(
            f"run(passes=…) takes a list of passes, not {a_type_of(given)}.",
            hint=f"Passes: {', '.join(BY_NAME)}; () is none.",
            position=here(),
        )
    found: list[Pass] = []
    for each in given:
        step = BY_NAME.get(each, each) if isinstance(each, str) else each
        if not isinstance(step, Pass):
            near = difflib.get_close_matches(str(step), BY_NAME, 1)
            raise ProgramTypeError(
                f"run(passes=…): {step!r} is no pass." + (f" Did you mean {near[0]!r}?" if near else ""),
                hint=f"Passes: {', '.join(BY_NAME)}; () is none.",
                position=here(),
            )
        found.append(step)
    return tuple(found)


def threads_of(given: object, default: int) -> int:
    """How many items of a batch may run at once (``num_threads``)."""
    if given == "auto":
        return default
    if type(given) is not int:
        raise ProgramTypeError(
            f"run_batch(num_threads=…) takes a number or 'auto', not {given!r}.", position=here()
        )
    if given < 1:
        raise LimitError(
            f"run_batch: num_threads must be at least 1, not {given}",
            hint="It is how many items run at once.",
            position=here(),
        )
    return given


def priority_of(options: Mapping[str, Any]) -> int:
    """The run's priority, checked: higher goes first, among runs here and among requests in the engine."""
    given = options["priority"]
    if given is not None and type(given) is not int:
        raise ProgramTypeError(f"run(priority=…) takes an int, not {type(given).__name__}.", position=here())
    if given is not None and abs(given) > MAX_PRIORITY:
        raise LimitError(
            f"run(): priority must be in -{MAX_PRIORITY}..{MAX_PRIORITY}, not {given}", position=here()
        )
    return given or 0
