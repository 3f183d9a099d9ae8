"""Streams of a state: its text, or one variable's, piece by piece as it comes.

Notebook process; a base class of ``runtime.state.State``. What comes next, and what must be waited for before, is said
once, by generators of pieces and ``Need``s; a plain iterator waits on its thread, an asynchronous one in its event loop,
so that any number of streams need no threads. Every reader, early or late, sees all. Nothing is appended here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from sgnb.errors import ProgramTypeError
from sgnb.lang.position import here, internal
from sgnb.runtime.core import Core
from sgnb.runtime.meta import meta_of_chunks
from sgnb.runtime.reading import Reading
from sgnb.runtime.variables import Samples, Slot, open_slots_of, read_value

internal(__name__)


@dataclass(frozen=True, slots=True)
class Need:
    """Nothing comes before ``ready()``, or before the run is stopped; ``body``: or before its body ends."""

    core: Core
    ready: Callable[[], bool]
    body: bool = False

    def wait(self) -> None:
        """Wait on this thread."""
        if self.body:
            self.core.wait_for_body(self.ready)
        else:
            self.core.wait(self.ready)

    async def wait_async(self) -> None:
        """Wait in this event loop."""
        core, ready = self.core, self.ready
        await core.wait_async((lambda: ready() or core.body_done) if self.body else ready)


Steps = Iterator[Need | tuple[str, int, int]]
"""Pieces, each with the chunks of its generation that it is made of (0, 0: it was not generated)."""


class Streaming(Reading):
    """What a state can be asked for piece by piece."""

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """The text (or one variable's) piece by piece as it comes; every reader, early or late, sees all of it."""
        for step in self._text_steps() if var_name is None else self._variable_steps(var_name):
            if isinstance(step, Need):
                step.wait()
            else:
                yield step[0]

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
                position=here(),
            )
        for step in self._text_steps() if var_name is None else self._variable_steps(var_name):
            if isinstance(step, Need):
                await step.wait_async()
            else:
                text, begin, end = step
                yield (text, self._meta_of(var_name, begin, end)) if return_meta_data else text

    def _text_steps(self) -> Steps:
        index = 0
        while True:
            if len(self._pieces) <= index and self.core.elsewhere():
                yield Need(self.core, lambda: len(self._pieces) > index, body=True)  # noqa: B023  waited for at once
            if len(self._pieces) <= index:
                break
            piece = self._pieces[index]
            index += 1
            if isinstance(piece, Slot):
                yield from _slot_steps(piece)
            else:
                yield piece, 0, 0
        if self.failure is not None and not self.stopped:
            self.failure.throw()

    def _variable_steps(self, name: str) -> Steps:
        if self._to_come(name):
            yield Need(self.core, lambda: name in self._values, body=True)
        value = self.find(name)
        slot = _slot_of(value)
        if slot is not None:
            yield from _slot_steps(slot)
            return
        for piece in open_slots_of(value):
            piece.core.flush()
            yield Need(piece.core, lambda piece=piece: piece.settled)  # type: ignore[misc]
        yield str(read_value(value)), 0, 0

    def _meta_of(self, name: str | None, begin: int, end: int) -> dict[str, Any]:
        slot = _slot_of(self._values.get(name or ""))
        if slot is None:
            return {}
        with slot.core.lock:
            return meta_of_chunks(slot, begin, end)


def _slot_of(value: Any) -> Slot | None:
    """The generation whose text a variable is; the first of several samples."""
    if isinstance(value, Samples):
        return value.slots[0]
    return value if isinstance(value, Slot) else None


def _slot_steps(slot: Slot) -> Steps:
    slot.core.flush()
    shown = 0
    while True:
        yield Need(slot.core, lambda: len(slot.chunks) > shown or slot.settled)  # noqa: B023  waited for at once
        chunks = slot.chunks[shown:]
        if chunks:
            yield "".join(chunks), shown, shown + len(chunks)
            shown += len(chunks)
        elif slot.settled:
            break
    if slot.failure is not None:
        slot.failure.throw()
