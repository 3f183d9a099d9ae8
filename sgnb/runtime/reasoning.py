"""The two variables of ``separate_reasoning(gen("x"))``: the answer as ``x``, the thought as ``x_reasoning_content``.

Notebook process; made by ``runtime.appending`` when such a generation is recorded. Both are read from what was generated;
the state's text and the session go on with the answer alone (``engine.scheduler.output``). No waiting here.
"""

from __future__ import annotations

from typing import Any

from sgnb.reasoning import split_reasoning
from sgnb.runtime.variables import Deferred, Slot

SUFFIX = "_reasoning_content"
"""SGLang's: variable ``x`` has its thought in ``x_reasoning_content``."""


class ReasoningPart(Deferred):
    """One half of a generation's text."""

    __slots__ = ("family", "slot", "thought")

    def __init__(self, slot: Slot, family: str, *, thought: bool) -> None:
        self.slot = slot
        self.family = family
        self.thought = thought

    def open_slots(self) -> list[Slot]:
        """The generation, while it is under way."""
        return [] if self.slot.settled else [self.slot]

    def read(self) -> str:
        """The text of this half; raises the generation's error."""
        answer = self.slot.core.read(self.slot)
        return split_reasoning(self.slot.generated, self.family)[0] if self.thought else answer

    def meta(self) -> dict[str, Any]:
        """The generation's."""
        return dict(self.slot.meta)
