"""The language: expressions that a program appends to its state.

Notebook process; imported by users (``import sgnb as sgl``) and put into ``%%sgl`` cells. Everything here checks arguments
and builds the values of ``lang.expressions``; nothing is sent anywhere. Mutable arguments are copied, since a block leaves
later than the line that built it. Runtime classes (states, programs) do not belong here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import FrameType
from typing import Any, NoReturn, TypeVar

from msgspec.structs import replace

from sgnb.errors import ProgramError, ProgramTypeError
from sgnb.lang import context
from sgnb.lang.arguments import GEN_PARAMS as GEN_PARAMS
from sgnb.lang.arguments import gen_params, method_of, options_of, priority_of, sample_count, shape_of
from sgnb.lang.choices import greedy_token_selection as greedy_token_selection
from sgnb.lang.choices import token_length_normalized as token_length_normalized
from sgnb.lang.choices import (
    unconditional_likelihood_normalized as unconditional_likelihood_normalized,
)
from sgnb.lang.expressions import Expr as Expr
from sgnb.lang.expressions import ExprList as ExprList
from sgnb.lang.expressions import Gen as Gen
from sgnb.lang.expressions import RoleBegin as RoleBegin
from sgnb.lang.expressions import RoleEnd as RoleEnd
from sgnb.lang.expressions import Select as Select
from sgnb.lang.expressions import Text as Text
from sgnb.lang.expressions import Tokens as Tokens
from sgnb.lang.expressions import Turn as Turn
from sgnb.lang.expressions import as_expr as as_expr
from sgnb.lang.expressions import flatten as flatten
from sgnb.lang.instruction_after import use_of_call
from sgnb.lang.position import Place, here, internal, place_of, position_of, user_frame
from sgnb.lang.schema import Shape
from sgnb.reasoning import FAMILIES

internal(__name__)

ROLES = ("system", "user", "assistant")
_Kept = TypeVar("_Kept", bound=Expr)


def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | Iterable[str] | None = None,
    stop_token_ids: Iterable[int] | None = None,
    stop_regex: str | Iterable[str] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
    dtype: object = None,
    choices: list[str] | None = None,
    choices_method: object = None,
    regex: object = None,
    json_schema: object = None,
    seed: int | None = None,
    ebnf: str | None = None,
    parse: bool = False,
    priority: int | None = None,
    repetition_penalty: float | None = None,
    logit_bias: Mapping[int | str, float] | None = None,
    **more: Any,
) -> Any:
    """A generation that is bound to variable ``name`` (``gen_0``, ``gen_1`` … when it has none).

    Without a value a parameter takes the run's (``run(temperature=…)``), which is 128 new tokens at temperature 1.0 if
    the run says nothing either. Lengths are in tokens. Inside ``with user():`` a bare or assigned ``gen`` appends itself
    and gives its lazy value.

    ``regex``, ``json_schema``, ``ebnf`` or ``dtype`` constrain the output: a pattern, a schema (text, dict, dataclass,
    TypedDict, pydantic model), a grammar with a rule ``root``, a type. With ``parse`` the variable is the object that the
    text means; a text that means none (cut by ``max_tokens``) raises ParseError where the variable is read.

    Raises ProgramTypeError (a TypeError) for an unknown name or a wrong type, ProgramError for a constraint that is
    malformed, LimitError for a value out of range.
    """
    return _generation(user_frame(), locals())


def _generation(frame: FrameType, given: Mapping[str, Any]) -> Any:
    """``gen`` with its arguments by name; None is one that was not given."""
    place = place_of(frame)
    name, choices = given["name"], given["choices"]
    _check_name("gen", name, place)
    params = gen_params(given, given["more"], place)
    shape = shape_of(given, place)
    if shape is not None:
        params = (*params, (shape.kind, shape.text))
    level = priority_of(given["priority"], place)
    _check_parse(given["parse"], shape, choices, place)
    count = None if given["n"] is None else sample_count(given["n"], place)
    method = method_of("gen", given["choices_method"], place)
    if choices is None:
        return _place_gen(Gen(name, params, place, count, level, shape, given["parse"]), frame, place)
    if count not in (None, 1):
        raise ProgramError("gen(choices=…) takes no n: the best option is one.", position=position_of(place))
    return _place_gen(Select(name, options_of("gen", choices, place), method, place, level), frame, place)


def select(
    name: str | None = None,
    choices: Iterable[str] | None = None,
    temperature: float = 0.0,
    choices_method: object = None,
) -> Any:
    """The likeliest of ``choices`` after all that went before, bound to ``name``; exactly one of them, as written.

    ``choices_method``: ``token_length_normalized`` (the default), ``greedy_token_selection`` or
    ``unconditional_likelihood_normalized``. Nothing is sampled, so ``temperature`` must be 0. ``get_meta_info(name)`` has
    the scores. Raises ProgramError for an empty list, an empty or repeated option; LimitError beyond 1,024 options.
    """
    frame = user_frame()
    place = place_of(frame)
    _check_name("select", name, place)
    if not isinstance(temperature, int | float) or not 0 <= temperature <= 1e-5:
        raise ProgramError(
            f"select(temperature={temperature!r}): a choice is not sampled.",
            hint="Remove temperature.",
            position=position_of(place),
        )
    options = options_of("select", choices, place)
    return _place_gen(Select(name, options, method_of("select", choices_method, place), place), frame, place)


def _check_parse(parse: object, shape: Shape | None, choices: object, place: Place) -> None:
    if not isinstance(parse, bool):
        raise ProgramTypeError(
            f"gen(parse=…) takes True or False, not {type(parse).__name__}.", position=position_of(place)
        )
    if choices is not None and (shape is not None or parse):
        raise ProgramError(
            "gen(choices=…) takes neither a constraint nor parse: its value is one of the choices.",
            position=position_of(place),
        )
    if parse and shape is None:
        raise ProgramError(
            "gen(parse=True) does not say what to make of the text.",
            hint="Give dtype= or json_schema= with it.",
            position=position_of(place),
        )


def _check_name(called: str, name: object, place: Place) -> None:
    if name is not None and not isinstance(name, str):
        raise ProgramTypeError(
            f"{called}'s name must be a str, not {type(name).__name__}.", position=position_of(place)
        )
    if name is not None and not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ProgramError(
                f"{called}({name!r}): the name is not valid Unicode.", position=position_of(place)
            ) from None


def _place_gen(expr: Gen | Select, frame: FrameType, place: Place) -> Any:
    """Rule 1: inside a ``with user():`` block an assigned or bare generation appends itself."""
    target = context.open_turn.get()
    if target is not None:
        return target.append_expr(expr, place) if use_of_call(frame) != "used" else expr
    return _kept(expr, frame)


def _kept(expr: _Kept, frame: FrameType | None = None) -> _Kept:
    """The expression; in a program it is refused where nothing takes it."""
    if context.current_state.get() is not None:
        frame = frame or user_frame()
        if use_of_call(frame) == "dropped":
            raise ProgramError(
                f"{expr!r} has no effect here: it is built and dropped.",
                hint=f"Append it: s += {expr!r}.",
                position=position_of(place_of(frame)),
            )
    return expr


def system(expr: object = None) -> Turn:
    """A system turn: ``s += system("…")`` or ``with system():``."""
    return _kept(Turn("system", expr))


def user(expr: object = None) -> Turn:
    """A user turn: ``s += user("…")`` or ``with user():``."""
    return _kept(Turn("user", expr))


def assistant(expr: object = None) -> Turn:
    """An assistant turn: ``s += assistant(gen("x"))`` or ``with assistant():``."""
    return _kept(Turn("assistant", expr))


def system_begin() -> RoleBegin:
    """Begin a system turn."""
    return _kept(RoleBegin("system"))


def system_end() -> RoleEnd:
    """End the system turn."""
    return _kept(RoleEnd("system"))


def user_begin() -> RoleBegin:
    """Begin a user turn."""
    return _kept(RoleBegin("user"))


def user_end() -> RoleEnd:
    """End the user turn."""
    return _kept(RoleEnd("user"))


def assistant_begin() -> RoleBegin:
    """Begin an assistant turn."""
    return _kept(RoleBegin("assistant"))


def assistant_end() -> RoleEnd:
    """End the assistant turn."""
    return _kept(RoleEnd("assistant"))


def text(value: str) -> Text:
    """Text in which nothing becomes a special token, wherever it stands."""
    if not isinstance(value, str):
        raise ProgramTypeError(f"text() takes a str, not {type(value).__name__}.", position=here())
    return _kept(Text(value, literal=True))


def gen_int(
    name: str | None = None,
    max_tokens: int | None = None,
    n: int | None = None,
    stop: str | Iterable[str] | None = None,
    **kwargs: Any,
) -> Any:
    """``gen(dtype=int)``: a whole number, as SGLang writes one; all other arguments are those of ``gen``."""
    return gen(name, max_tokens, n=n, stop=stop, dtype=int, **kwargs)


def gen_string(
    name: str | None = None,
    max_tokens: int | None = None,
    n: int | None = None,
    stop: str | Iterable[str] | None = None,
    **kwargs: Any,
) -> Any:
    """``gen(dtype=str)``: words in double quotes, as SGLang has it; all other arguments are those of ``gen``."""
    return gen(name, max_tokens, n=n, stop=stop, dtype=str, **kwargs)


def _no_vision(name: str) -> Any:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise ProgramError(
            f"{name}() needs a model with vision; the models of this version have none.",
            hint="Describe it in words.",
            position=here(),
        )

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = f"``{name}`` is refused: no model here can see."
    return refuse


image = _no_vision("image")
video = _no_vision("video")


def separate_reasoning(expr: object = None, model_type: str = "qwen3") -> ExprList:
    """``expr`` with the model's thoughts told apart: each ``gen("x")`` in it binds its answer to ``x`` and its thought
    to ``x_reasoning_content``. The state goes on with the answer alone: its text and later prompts lack the thought.

    ``model_type`` is SGLang's name of the model family, which says how thoughts are marked. Raises ProgramError for
    another name and for a ``gen`` with ``n``, ProgramTypeError when there is no expression.
    """
    position = here()
    if expr is None:
        raise ProgramTypeError(
            "separate_reasoning() needs an expression.",
            hint='Write separate_reasoning(gen("answer"), model_type="qwen3").',
            position=position,
        )
    if model_type not in FAMILIES:
        raise ProgramError(
            f"separate_reasoning(model_type={model_type!r}) is unknown.",
            hint=f"Model families: {', '.join(FAMILIES)}.",
            position=position,
        )
    parts = flatten(as_expr(expr))
    if not any(isinstance(part, Gen) for part in parts):
        raise ProgramError(
            "separate_reasoning() has no gen in it: only what is generated holds a thought.",
            hint='Write separate_reasoning(gen("answer"), model_type="qwen3").',
            position=position,
        )
    if any(isinstance(part, Gen) and part.parse for part in parts):
        raise ProgramError(
            "separate_reasoning() takes no gen with parse: its text is a thought and an answer.",
            position=position,
        )
    if any(isinstance(part, Gen) and part.n is not None and part.n > 1 for part in parts):
        raise ProgramError(
            "separate_reasoning() takes no gen with n: each sample has a thought of its own.",
            hint="Fork the state and generate once in each branch.",
            position=position,
        )
    return ExprList(
        tuple(replace(part, reasoning=model_type) if isinstance(part, Gen) else part for part in parts)
    )


DSL_NAMES: dict[str, Any] = {
    "gen": gen, "select": select, "gen_int": gen_int, "gen_string": gen_string,
    "system": system, "user": user, "assistant": assistant,
    "system_begin": system_begin, "system_end": system_end, "user_begin": user_begin, "user_end": user_end,
    "assistant_begin": assistant_begin, "assistant_end": assistant_end, "text": text,
    "separate_reasoning": separate_reasoning, "image": image, "video": video,
}  # fmt: skip
"""What a ``%%sgl`` cell finds without an import (``s`` and ``function`` besides)."""
