"""Reading a state: text, variables, meta, messages, streams.

Notebook process; the base class of ``runtime.state.State``, which writes what is read here. Every read waits for the one
thing it needs and raises that thing's error. Nothing is appended here.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import AsyncIterator, Iterator
from typing import Any

from sgnb.errors import Cancelled, ProgramTypeError, UnknownVariable
from sgnb.lang.position import internal, place_of, position_of, user_frame
from sgnb.runtime.core import Core
from sgnb.runtime.meta import meta_of_chunks
from sgnb.runtime.scopes import join_pieces
from sgnb.runtime.variables import Deferred, Failure, Samples, Slot, meta_of, read_value, resolved

internal(__name__)

TICK_SECONDS = 0.05
"""Async readers wake this often, so that an interrupt of an awaiting cell is seen (ipykernel does not wake the loop)."""


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

    def __getitem__(self, name: str) -> Any:
        return self.get_var(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self.set_var(name, value)

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def names(self) -> list[str]:
        """Its variables bound so far, in order, those still being generated too."""
        return [name for name in self._values if name]

    def get_var(self, name: str) -> Any:
        """The value of a variable, waited for; raises its error, or UnknownVariable (a KeyError)."""
        return read_value(self.find(name))

    def find(self, name: str) -> Any:
        """The value or the Slot bound to ``name``. While the body still runs elsewhere, waits for it to be bound."""
        core = self.core
        if name not in self._values and core.elsewhere() and (core.names is None or name in core.names):
            core.wait_for_body(lambda: name in self._values)
        try:
            return self._values[name]
        except KeyError:
            raise self._unknown(name) from None

    def _unknown(self, name: object) -> BaseException:
        if self.failure is not None:
            self.failure.throw()
        near = difflib.get_close_matches(str(name), map(str, self._values), 1)
        known = ", ".join(map(repr, self._values)) or "none yet"
        return UnknownVariable(
            f"The state has no variable {name!r}." + (f" Did you mean {near[0]!r}?" if near else ""),
            hint=f"Bound so far: {known}.",
            position=position_of(place_of(user_frame(2))),
        )

    def set_var(self, name: str, value: Any) -> None:
        """Bind a variable to a value of the notebook's."""
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

    # ------------------------------------------------------------ streaming

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """The text (or one variable's) piece by piece as it comes; every reader, early or late, sees all of it."""
        if var_name is not None:
            for text, _ in self._variable_iter(var_name):
                yield text
            return
        index = 0
        while self._more(index):
            piece = self._pieces[index]
            index += 1
            if isinstance(piece, Slot):
                for text, _, _ in self._slot_iter(piece):
                    yield text
            else:
                yield piece
        if self.failure is not None and not self.stopped:
            self.failure.throw()

    def _variable_iter(self, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """The text of one variable in pieces, each with its meta."""
        value = self.find(name)
        if isinstance(value, Samples):
            value = value.slots[0]
        if not isinstance(value, Slot):
            yield str(read_value(value)), {}
            return
        for text, begin, end in self._slot_iter(value):
            with value.core.lock:
                meta = meta_of_chunks(value, begin, end)
            yield text, meta

    def _more(self, index: int) -> bool:
        """Wait until piece ``index`` is there; False when none will come."""
        core = self.core
        if len(self._pieces) <= index and core.elsewhere():
            core.wait_for_body(lambda: len(self._pieces) > index)
        return len(self._pieces) > index

    def _slot_iter(self, slot: Slot) -> Iterator[tuple[str, int, int]]:
        """Pieces of text, each with the chunks it is made of."""
        slot.core.flush()
        shown = 0
        while True:
            slot.core.wait(lambda shown=shown: len(slot.chunks) > shown or slot.settled)  # type: ignore[misc]
            chunks = slot.chunks[shown:]
            if chunks:
                yield "".join(chunks), shown, shown + len(chunks)
                shown += len(chunks)
            elif slot.settled:
                break
        if slot.failure is not None:
            slot.failure.throw()

    async def text_async_iter(
        self, var_name: str | None = None, return_meta_data: bool = False
    ) -> AsyncIterator[Any]:
        """``text_iter`` for ``async for``; with ``return_meta_data`` gives ``(text, meta)`` pairs of the variable.

        The meta counts so far; its log-probabilities are those of this piece.
        """
        if return_meta_data and var_name is None:
            raise ProgramTypeError(
                "text_async_iter(return_meta_data=True) needs the name of a variable.",
                hint='Meta belongs to a generation: text_async_iter("answer", return_meta_data=True).',
                position=position_of(place_of(user_frame())),
            )
        pieces: Iterator[Any] = (
            self._variable_iter(var_name)
            if return_meta_data and var_name is not None
            else self.text_iter(var_name)
        )
        loop = asyncio.get_running_loop()
        while True:
            future = loop.run_in_executor(None, next, pieces, None)
            try:
                while not future.done():
                    await asyncio.wait([future], timeout=TICK_SECONDS)
            except (asyncio.CancelledError, KeyboardInterrupt):
                self.core.stop()  # which frees the executor's thread too
                raise
            piece = future.result()
            if piece is None:
                return
            yield piece
