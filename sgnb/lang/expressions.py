"""What a program appends: expressions, as frozen values.

Notebook process; built by ``lang.api``'s calls and by ``+``, read by ``runtime`` when they are appended. Nothing is sent
anywhere, and arguments are checked before they come here. Runtime classes (states, programs) do not belong here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from sgnb.errors import ProgramError, ProgramTypeError, UnknownAttribute
from sgnb.lang import context
from sgnb.lang.instruction import ChoicesMethod as MethodName
from sgnb.lang.position import Place, here, internal, place_of, position_of, user_frame
from sgnb.lang.schema import Shape

internal(__name__)


class Expr:
    """Something that can be appended to a state. Built with ``+``; never evaluated on its own."""

    __slots__ = ()

    def __add__(self, other: object) -> ExprList:
        return ExprList((*flatten(self), *flatten(as_expr(other))))

    def __radd__(self, other: object) -> ExprList:
        return ExprList((*flatten(as_expr(other)), *flatten(self)))

    def __str__(self) -> str:
        raise ProgramTypeError(
            f"{self!r} cannot be made a text: its text does not exist yet.",
            hint='Append it with +, for example: s += "Answer: " + gen("x"), and read it then: s["x"].',
            position=here(),
        )

    def __bool__(self) -> bool:
        raise ProgramTypeError(
            f"{self!r} is neither true nor false: its text does not exist yet.",
            hint='Append it, and ask for what was said: if s["x"]: …',
            position=here(),
        )

    def __format__(self, spec: str) -> NoReturn:
        raise ProgramTypeError(
            f"{self!r} cannot stand inside an f-string: its text does not exist yet.",
            hint='Append it with +, for example: s += "Answer: " + gen("x").',
            position=here(),
        )

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str | int | float):
            raise ProgramTypeError(
                f"{self!r} cannot be compared with {other!r}: its text does not exist yet.",
                hint='Append it, and compare what was said: if s["x"] == …',
                position=here(),
            )
        return super().__eq__(other)

    def __hash__(self) -> int:
        return super().__hash__()

    if not TYPE_CHECKING:  # a checker would take every name for one that exists

        def __getattr__(self, name: str) -> object:
            if name.startswith("_"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            variable = self.name if isinstance(self, Gen | Select) and self.name else "x"
            raise UnknownAttribute(
                f"{self!r} has no attribute {name!r}: its text does not exist yet.",
                hint=f'Append it, and ask what was said: s["{variable}"].{name}.',
                position=here(),
            )


class Text(Expr, msgspec.Struct, frozen=True):
    """Program text; ``literal``: nothing in it becomes a special token."""

    value: str
    literal: bool = False

    def __repr__(self) -> str:
        return f"text({self.value!r})" if self.literal else repr(self.value)

    def __str__(self) -> str:
        return self.value

    def __bool__(self) -> bool:
        return bool(self.value)


class Tokens(Expr, msgspec.Struct, frozen=True):
    """Token ids that were generated before, and their text; never tokenised again (made by the runtime)."""

    ids: tuple[int, ...]
    value: str

    def __repr__(self) -> str:
        return f"tokens({len(self.ids)})"


class Gen(Expr, msgspec.Struct, frozen=True):
    """A generation. ``params`` holds only what was given, under ``SamplingParams`` names."""

    name: str | None
    params: tuple[tuple[str, Any], ...] = ()
    place: Place | None = None
    n: int | None = None
    priority: int | None = None
    shape: Shape | None = None
    """What the output must be."""
    parse: bool = False
    """The variable is the object that the text means, not the text."""
    reasoning: str | None = None
    """The model family whose thoughts are told apart from the answer (``separate_reasoning``)."""

    def __repr__(self) -> str:
        return f"gen({self.name!r})" if self.name else "gen()"


class Select(Expr, msgspec.Struct, frozen=True):
    """A choice among options."""

    name: str | None
    options: tuple[str, ...]
    method: MethodName = "token_length_normalized"
    place: Place | None = None
    priority: int | None = None

    def __repr__(self) -> str:
        return f"select({self.name!r}, {list(self.options)!r})"


class RoleBegin(Expr, msgspec.Struct, frozen=True):
    """Begin of a turn."""

    role: str

    def __repr__(self) -> str:
        return f"{self.role}_begin()"


class RoleEnd(Expr, msgspec.Struct, frozen=True):
    """End of a turn."""

    role: str

    def __repr__(self) -> str:
        return f"{self.role}_end()"


class ExprList(Expr, msgspec.Struct, frozen=True):
    """Expressions one after another, flat."""

    parts: tuple[Expr, ...]

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.parts))


class Turn(Expr):
    """What ``user(...)`` gives: a whole turn as an expression, or a block with ``with user():``."""

    __slots__ = ("_target", "_token", "expr", "role")

    def __init__(self, role: str, expr: object) -> None:
        self.role = role
        self.expr: Expr | None = None if expr is None else as_expr(expr)
        self._target: context.Target | None = None
        self._token: Any = None

    def __repr__(self) -> str:
        return f"{self.role}({'' if self.expr is None else repr(self.expr)})"

    @property
    def parts(self) -> tuple[Expr, ...]:
        """Begin, content, end."""
        inner = () if self.expr is None else flatten(self.expr)
        return (RoleBegin(self.role), *inner, RoleEnd(self.role))

    def __enter__(self) -> Turn:
        place = place_of(user_frame())
        target = context.current_state.get()
        if target is None:
            raise ProgramError(
                f"`with {self.role}():` stands outside a program.",
                hint="Put it into a function decorated with @sgnb.function, or into a %%sgl cell.",
                position=position_of(place),
            )
        if self.expr is not None:
            raise ProgramError(
                f"`with {self.role}(...)` takes no text in its brackets.",
                hint=f"Write `s += {self.role}(...)`, or put the text into the block.",
                position=position_of(place),
            )
        target.open_role(self.role, place)
        self._target = target
        self._token = context.open_turn.set(target)
        return self

    def __exit__(self, *_: object) -> None:
        context.open_turn.reset(self._token)
        assert self._target is not None
        self._target.close_role(self.role, place_of(user_frame()))
        self._target = None


def as_expr(value: object) -> Expr:
    """``value`` as an expression; anything but text and expressions is a ProgramTypeError."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, str):
        return Text(value)
    lazy = getattr(type(value), "sgl_text", None)
    if lazy is not None:
        return Text(str(lazy(value)))
    kind = type(value).__name__
    if value is None:
        message, hint = "None cannot be appended to a state.", "Did a function forget to return its text?"
    else:
        message = f"A value of type {kind} cannot be appended to a state; text or an expression is needed."
        hint = _way_on(value)
    raise ProgramTypeError(message, hint=hint, position=here())


def _way_on(value: object) -> str:
    kind = type(value).__name__
    if kind == "State":
        return 'To append write s += …; of another state append text: other.text() or other["name"].'
    if kind == "CopyScope":
        return "Write with s.copy() as c: …; what c binds comes back when the block ends."
    if kind == "Group":
        return "Append to its branches: forks += …; join() gives the parent their variables."
    if callable(value):
        return f"Call it: {getattr(value, '__name__', kind)}(…)."
    if isinstance(value, (bytes, bytearray)):
        return "Decode it: value.decode()."
    if isinstance(value, (list, tuple)):
        return 'Append its parts one after another, or join its texts: "".join(…).'
    return "Convert it with str(...) or put it into an f-string."


def flatten(expr: Expr) -> tuple[Expr, ...]:
    """The Text, Gen, Select, RoleBegin and RoleEnd of an expression, in order."""
    return expr.parts if isinstance(expr, _LISTS) else (expr,)


_LISTS = (ExprList, Turn)
