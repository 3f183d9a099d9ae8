"""The value of ``gen("x", dtype=…, parse=True)``: the object that the generated text means.

Notebook process; made by ``runtime.state`` when such a generation is recorded. The text is read at the first question, on
the reader's thread, and the outcome is kept: every reader gets the same object, or the same error with the generation's
place. The state itself goes on: its text is there either way. No waiting here.
"""

from __future__ import annotations

from typing import Any

from sgnb.errors import ParseError
from sgnb.lang.position import position_of
from sgnb.lang.schema import Shape
from sgnb.runtime.variables import Deferred, Slot, fresh

_MAX_SHOWN = 200
_MAX_REASONS = 3


class Parsed(Deferred):
    """One object, or with ``gen(n=…)`` a list of them."""

    __slots__ = ("_found", "_many", "shape", "slots")

    def __init__(self, slots: list[Slot], shape: Shape) -> None:
        self.slots = slots
        self.shape = shape
        self._many = len(slots) > 1
        self._found: dict[int, Any] = {}

    def open_slots(self) -> list[Slot]:
        """The generations under way."""
        return [slot for slot in self.slots if not slot.settled]

    def read(self) -> Any:
        """The object. Raises the generation's error, or ParseError."""
        values = [self._value(index) for index in range(len(self.slots))]
        return values if self._many else values[0]

    def _value(self, index: int) -> Any:
        slot = self.slots[index]
        text = slot.core.read(slot)
        if index not in self._found:
            try:
                self._found[index] = self.shape.parse(text)
            except Exception as error:  # pydantic and enums raise what they like
                self._found[index] = _parse_error(slot, text, error)
        found = self._found[index]
        if isinstance(found, ParseError):
            raise fresh(found)
        return found

    def meta(self) -> Any:
        """The meta of the generation, or a list of them."""
        metas = [dict(slot.meta) for slot in self.slots]
        return metas if self._many else metas[0]


def _reason(error: Exception) -> str:
    """In one line what is wrong. Pydantic's own text has many lines, with an address in each and the text once more."""
    errors = getattr(error, "errors", None)
    if callable(errors):
        found = [
            f"{'.'.join(map(str, one.get('loc', ())))}: {one.get('msg', '')}".removeprefix(": ")
            for one in errors()
        ]
        return "; ".join(found[:_MAX_REASONS]) + ("; …" if len(found) > _MAX_REASONS else "")
    return " ".join(str(error).split())


def _parse_error(slot: Slot, text: str, error: Exception) -> ParseError:
    shown = text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"
    cut = slot.meta.get("finish") in ("length", "context", "abort")
    made = ParseError(
        f"The text of {slot.name!r} cannot be parsed: {_reason(error)}; it reads {shown!r}.",
        hint="It was cut: raise max_tokens." if cut else "Read the text with state.text(), or without parse.",
        position=None if slot.place is None else position_of(slot.place),
    )
    made.__cause__ = error
    return made
