"""Backends that stand between a cell's run and its engine: one starts it at first use, one remembers what passes.

Notebook process; made by ``magics`` for a cell. They pass everything on unchanged; states of the cell keep them. No
display here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from sgnb.backends.base import Backend, Sink, TemplateInfo
from sgnb.lang.instruction import Block


class LazyBackend(Backend):
    """A backend that is got when it is first needed: a cell with a mistake starts no engine.

    ``get`` is called once, on the thread that first needs it; ``model`` is the name shown before.
    """

    def __init__(self, get: Callable[[], Backend], model: str) -> None:
        self._get: Callable[[], Backend] | None = get
        self._model = model
        self._inner: Backend | None = None

    @property
    def inner(self) -> Backend:
        """The backend behind; raises what ``get`` raises."""
        if self._inner is None and (get := self._get) is not None:
            self._inner = get()
            self._get = None  # states keep this object, and must not keep what started their engine
        assert self._inner is not None, "what gets it is dropped only with one in its place"
        return self._inner

    @property
    def carrier(self) -> Backend:
        """Of the backend behind: cells that reach one engine share its sessions."""
        return self.inner.carrier

    def new_sid(self) -> str:
        """As the backend behind."""
        return self.inner.new_sid()

    def new_rid(self) -> str:
        """As the backend behind."""
        return self.inner.new_rid()

    def template(self) -> TemplateInfo:
        """As the backend behind."""
        return self.inner.template()

    def submit(self, block: Block, sink: Sink) -> None:
        """As the backend behind."""
        self.inner.submit(block, sink)

    def abort(self, rids: Sequence[str] = (), sids: Sequence[str] = ()) -> None:
        """As the backend behind; before there is one there is nothing to abort."""
        if self._inner is not None:
            self._inner.abort(rids, sids)

    def release(self, sids: Sequence[str]) -> None:
        """As the backend behind."""
        if self._inner is not None:
            self._inner.release(sids)

    def note_join(self, branches: int) -> None:
        """As the backend behind."""
        self.inner.note_join(branches)

    def text_of(self, ids: Sequence[int]) -> tuple[str, int]:
        """As the backend behind."""
        return self.inner.text_of(ids)

    def spare_tokens(self) -> int | None:
        """As the backend behind; before there is one nothing is known."""
        return None if self._inner is None else self._inner.spare_tokens()

    @property
    def model_name(self) -> str:
        """Of the backend behind, once there is one."""
        return self._inner.model_name if self._inner is not None else self._model


class Tap(LazyBackend):
    """Keeps (monotonic time, block) of all that passes."""

    def __init__(self, get: Callable[[], Backend], model: str) -> None:
        super().__init__(get, model)
        self.blocks: list[tuple[float, Block]] = []

    def submit(self, block: Block, sink: Sink) -> None:
        """Remember the block and pass it on."""
        self.blocks.append((time.monotonic(), block))
        super().submit(block, sink)
