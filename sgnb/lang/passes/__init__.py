"""Passes over recorded blocks, and their records.

Notebook process; ``optimize`` is called by the recorder at each flush. A pass takes and gives a list of operations, is
legal only under the rule its record names, and moves nothing across a flush. The ordered list is the only configuration:
leave a pass out to switch it off. A result that does not mean the same is thrown away, and the record says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sgnb.lang.block import ForkOp, GenOp, HostOp, Op, SelectOp, TextOp
from sgnb.lang.passes.commit_prefixes import commit_prefixes
from sgnb.lang.passes.fold_text import fold_text
from sgnb.lang.passes.group_generations import group_generations
from sgnb.lang.passes.hoist_prefix import hoist_prefix
from sgnb.lang.passes.merge_forks import merge_forks
from sgnb.lang.passes.prune_choices import prune_choices
from sgnb.lang.passes.share_generations import share_generations
from sgnb.lang.passes.validate import same


@dataclass(frozen=True, slots=True)
class PassRecord:
    """What one pass did to one block: sizes in operations, and the rule that made it legal or why it did nothing."""

    name: str
    before: int
    after: int
    rule: str
    changed: bool = False


@dataclass(frozen=True, slots=True)
class Pass:
    """A rewriting of blocks. ``run`` gives the new list, which may be the old one."""

    name: str
    run: Callable[[Sequence[Op]], list[Op]]
    rule: str
    idle: str
    """Why it did nothing, when it did nothing."""
    needs: tuple[type[Op], int] | None = None
    """A kind of operation and how many of it a block must have for the pass to do anything; None: it looks itself."""


PASSES: tuple[Pass, ...] = (
    Pass(
        "prune_choices",
        prune_choices,
        "a choice with one option is text, since a marker, generation or choice follows it",
        "no choice has a single option with a border behind it",
        (SelectOp, 1),
    ),
    Pass(
        "fold_text",
        fold_text,
        "neighbouring text of one state is tokenised as one string however it was written",
        "no two texts of one state stand side by side",
        (TextOp, 2),
    ),
    Pass(
        "merge_forks",
        merge_forks,
        "forks of one state with nothing of it between them begin alike",
        "no state is forked twice at one place",
        (ForkOp, 2),
    ),
    Pass(
        "share_generations",
        share_generations,
        "generations that start from equal text with equal parameters, greedy or of one seed, have one outcome",
        "no two branches of a fork begin with the same text and the same deterministic generation",
        (ForkOp, 1),
    ),
    Pass(
        "hoist_prefix",
        hoist_prefix,
        "nothing stands before the arms' common beginning, and forks copy pending text",
        "no fork has arms with a long common beginning in this block",
        (ForkOp, 1),
    ),
    Pass(
        "commit_prefixes",
        commit_prefixes,
        "computing text early changes none of it: the tail that a token may cross stays pending",
        "no state has long new text that waits for code of the program",
        (HostOp, 1),
    ),
    Pass(
        "group_generations",
        group_generations,
        "operations of different states do not see one another",
        "no independent generations of equal parameters stand apart",
        (GenOp, 2),
    ),
)
BY_NAME = {step.name: step for step in PASSES}
REFUSED = "thrown away: the result would not have meant the same"


def optimize(
    ops: Sequence[Op], passes: Sequence[Pass] = PASSES, records: list[PassRecord] | None = None
) -> list[Op]:
    """Apply ``passes`` in order; each result must still do the same, or it is thrown away.

    Meaning is compared once, over all of them; pass by pass only when that fails, or when records are wanted.
    """
    block = list(ops)
    if records is None:
        kinds = list(map(type, block))
        for step in passes:
            needs = step.needs
            if needs is None or kinds.count(needs[0]) >= needs[1]:
                block = step.run(block)
                kinds = list(map(type, block))
        if block == ops or same(ops, block):
            return block
        block = list(ops)
    for step in passes:
        after = step.run(block)
        changed = after != block
        legal = not changed or same(block, after)
        if records is not None:
            rule = (step.rule if changed else step.idle) if legal else REFUSED
            kept = len(after) if legal else len(block)
            records.append(PassRecord(step.name, len(block), kept, rule, changed and legal))
        if legal:
            block = after
    return block
