"""Reading a state: text, variables, meta, messages.

Notebook process; a base class of ``runtime.state.State``, which writes what is read here. Every read waits for the one
thing it needs and raises that thing's error. Nothing is appended here.
"""

from __future__ import annotations

import difflib
from typing import Any, NoReturn

from sgnb.errors import Cancelled, ProgramTypeError, UnknownVariable, a_type_of
from sgnb.lang.expressions import Expr
from sgnb.lang.position import here, internal
from sgnb.runtime.core import Core
from sgnb.runtime.scopes import join_pieces
from sgnb.runtime.variables import Deferred, Failure, Slot, meta_of, read_value, resolved
from sgnb.runtime.waiting import current_core

internal(__name__)


def check_variable_name(name: object) -> None:
    """Refuse what no variable can be called: anything but text."""
    if not isinstance(name, str):
        raise ProgramTypeError(
            f"A variable's name is a text, not {a_type_of(name)}.",
            hint='Write s["x"] = …, or with s.var_scope("x"):',
            position=here(),
        )


class Reading:
    """What a state can be asked."""

    core: Core
    number: int
    branch: str
    failure: Failure | None
    ret: Any
    _pieces: list[str | Slot]
    _turns: list[tuple[str, list[str | Slot]]]
    _values: dict[str, Any]

    # ------------------------------------------------------------ reading

    def _ipython_key_completions_(self) -> list[str]:
        """What ``state["…`` may say, for a notebook's completion; waits for nothing."""
        return list(self._values)

    def __getitem__(self, name: str) -> Any:
        return self.get_var(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self.set_var(name, value)

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __delitem__(self, name: str) -> NoReturn:
        raise ProgramTypeError(
            f"A variable cannot be taken out of a state: {name!r} belongs to what was appended.",
            hint="Bind it to something else, s[…] = None, or go back: s.rewind(mark).",
            position=here(),
        )

    def __add__(self, other: object) -> Any:
        raise ProgramTypeError(
            "A state cannot be added to something: it is appended to.",
            hint="To append write s += ….",
            position=here(),
        )

    def __iter__(self) -> NoReturn:
        raise ProgramTypeError(
            "A state cannot be gone through: it is no list.",
            hint="Its variables are s.names(), its text s.text(), and s.fork(n) gives branches.",
            position=here(),
        )

    def names(self) -> list[str]:
        """Its variables bound so far, in order, those still being generated too."""
        return [name for name in self._values if name]

    def get_var(self, name: str) -> Any:
        """The value of a variable, waited for; raises its error, or UnknownVariable (a KeyError)."""
        return read_value(self.find(name))

    def find(self, name: str) -> Any:
        """The value or the Slot bound to ``name``. While the body still runs elsewhere, waits for it to be bound."""
        if self._to_come(name):
            self.core.wait_for_body(lambda: name in self._values)
        try:
            return self._values[name]
        except KeyError:
            raise self.unknown(name) from None

    def _to_come(self, name: str) -> bool:
        """True when the body, which still runs elsewhere, may bind ``name``."""
        core = self.core
        return name not in self._values and core.elsewhere() and (core.names is None or name in core.names)

    def unknown(self, name: object) -> BaseException:
        """The error of a read of ``name``, which nothing has bound."""
        if self.failure is not None and current_core() is not self.core:
            self.failure.throw()  # the body ended before it came to this name
        # Inside the body a failure may be known yet or not; what was appended behind it has bound its names all the same.
        near = difflib.get_close_matches(str(name), map(str, self._values), 1)
        known = ", ".join(map(repr, self._values)) or "none yet"
        return UnknownVariable(
            f"The state has no variable {name!r}." + (f" Did you mean {near[0]!r}?" if near else ""),
            hint=f"Bound so far: {known}.",
            position=here(),
        )

    def set_var(self, name: str, value: Any) -> None:
        """Bind a variable to a value of the notebook's. ProgramTypeError for an expression: it has no value."""
        check_variable_name(name)
        if isinstance(value, Expr):
            raise ProgramTypeError(
                f"A variable cannot be {value!r}: an expression has no value before it is appended.",
                hint='Append it under a name, s += gen("x"), and s["x"] is its text.',
                position=here(),
            )
        self._values[name] = resolved(value)

    def text(self) -> str:
        """All text appended so far, the template's included, generations waited for; raises the state's error."""
        self.settle()
        return self.text_so_far()

    def text_so_far(self) -> str:
        """The text that is there now; never waits, never raises."""
        return join_pieces(self._pieces)

    def messages(self) -> list[dict[str, str]]:
        """The finished turns as ``{"role", "content"}``, without blanks before the content, as SGLang gives them.

        Generations are waited for; raises the state's error.
        """
        self.settle()
        return [{"role": role, "content": join_pieces(pieces).lstrip()} for role, pieces in self._turns]

    def get_meta_info(self, name: str) -> Any:
        """A generation's meta (SGLang's names), waited for; empty for a variable that was not generated.

        A list, as the value is, for joined variables and for ``gen(n=…)``.
        """
        value = self.find(name)
        if isinstance(value, Slot | Deferred):
            read_value(value)
        return meta_of(value)

    def sync(self) -> None:
        """Wait until all that was appended is done; raises the state's error."""
        self.settle()

    def error(self) -> BaseException | None:
        """Wait until all that was appended is done; the error if there was one, else None."""
        self._drain()
        if self.failure is not None:
            self.failure.seen = True
            return self.failure.error
        return None

    def settle(self) -> None:
        """Wait for this state's generations; raises its error."""
        self._drain()
        if self.failure is not None and not self.stopped:
            self.failure.throw()

    @property
    def stopped(self) -> bool:
        """True when the user stopped the run: the partial text is readable, nothing can be appended."""
        return self.failure is not None and isinstance(self.failure.error, Cancelled)

    def _drain(self) -> None:
        core = self.core
        if core.elsewhere():
            core.wait_for_body(lambda: False)
        core.flush()
        for slot in self.open_slots():
            slot.core.wait(lambda slot=slot: slot.settled)  # type: ignore[misc]

    def open_slots(self) -> list[Slot]:
        """The generations that are still under way."""
        return [piece for piece in self._pieces if isinstance(piece, Slot) and not piece.settled]

    @property
    def ret_value(self) -> Any:
        """What the program returned."""
        return resolved(self.ret)
