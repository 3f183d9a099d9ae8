"""Passes over recorded blocks, and their records.

Notebook process; ``optimize`` is called by the recorder at each flush. A pass takes and gives a list of operations, is
legal only under the rule its record names, and moves nothing across a flush. The ordered list is the only configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sgnb.lang.block import Op
from sgnb.lang.passes.fold_text import fold_text


@dataclass(frozen=True, slots=True)
class PassRecord:
    """What one pass did to one block: sizes in operations, and the rule that made it legal or why it did nothing."""

    name: str
    before: int
    after: int
    rule: str


@dataclass(frozen=True, slots=True)
class Pass:
    """A rewriting of blocks. ``run`` gives the new list, which may be the old one."""

    name: str
    run: Callable[[Sequence[Op]], list[Op]]
    rule: str
    idle: str
    """Why it did nothing, when it did nothing."""


PASSES: tuple[Pass, ...] = (
    Pass(
        "fold_text",
        fold_text,
        "neighbouring text of one state is tokenised as one string however it was written",
        "no two texts of one state stand side by side",
    ),
)


def optimize(
    ops: Sequence[Op], passes: Sequence[Pass] = PASSES, records: list[PassRecord] | None = None
) -> list[Op]:
    """Apply ``passes`` in order; each result must still name the same generations in the same order."""
    block = list(ops)
    for step in passes:
        after = step.run(block)
        if records is not None:
            rule = step.rule if len(after) != len(block) else step.idle
            records.append(PassRecord(step.name, len(block), len(after), rule))
        block = after
    return block
