"""What all arms of a fork begin with is appended and computed once.

The first arm takes the common beginning and the other arms are forked from it: ``fork p → a b c; a: XY; b: XZ; c: XW``
becomes ``fork p → a; a: X; fork a → b c; a: Y; b: Z; c: W``. Legal because nothing else of an arm stands before
its common beginning, forks copy pending text, and a run of text is tokenised as one string however it was written (design,
rule 7). The parent is not touched: it may go on. Not worth it below ``MIN_CHARS`` characters of text.
"""

from __future__ import annotations

from collections.abc import Sequence

from sgnb.lang.block import ForkOp, MarkOp, Op, TextOp

MIN_CHARS = 64


def hoist_prefix(ops: Sequence[Op]) -> list[Op]:
    """The block with common beginnings of arms hoisted."""
    block = list(ops)
    for fork in [op for op in block if type(op) is ForkOp and len(op.children) > 1]:
        block = _hoist(block, fork)
    return block


def common_beginning(texts: Sequence[str]) -> str:
    """The longest text that all of ``texts`` begin with."""
    low, high = min(texts), max(texts)
    length = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
    return low[:length]


def _hoist(block: list[Op], fork: ForkOp) -> list[Op]:
    at = block.index(fork)
    heads = _heads(block, at, fork.children)
    common = _common([[block[i] for i in head] for head in heads])
    if sum(len(op.text) for op in common if type(op) is TextOp) < MIN_CHARS:
        return block
    first, *others = fork.children
    hoisted = [op._replace(sid=first) for op in common]
    replaced: dict[int, Op | None] = {}
    for head in heads:
        for index, op in zip(head, common, strict=False):
            old = block[index]
            rest = old.text[len(op.text) :] if type(old) is TextOp and type(op) is TextOp else ""
            replaced[index] = old._replace(text=rest) if type(old) is TextOp and rest else None
    out = [*block[:at], fork._replace(children=(first,)), *hoisted]
    out.append(ForkOp(first, tuple(others), fork.place, "same"))
    for index in range(at + 1, len(block)):
        op_or_none = replaced.get(index, block[index])
        if op_or_none is not None:
            out.append(op_or_none)
    return out


def _heads(block: list[Op], at: int, children: tuple[str, ...]) -> list[list[int]]:
    """For each arm the places of the texts and marks it begins with."""
    heads: dict[str, list[int]] = {child: [] for child in children}
    begun = set(children)
    for index in range(at + 1, len(block)):
        op = block[index]
        if op.sid in begun:
            if type(op) is TextOp or type(op) is MarkOp:
                heads[op.sid].append(index)
            else:
                begun.discard(op.sid)
    return list(heads.values())


def _common(heads: list[list[Op]]) -> list[TextOp | MarkOp]:
    """The longest common beginning; its last text may be a part of the arms' texts."""
    out: list[TextOp | MarkOp] = []
    for column in zip(*heads, strict=False):
        op = column[0]
        if type(op) is MarkOp and all(
            type(o) is MarkOp and (o.role, o.begin) == (op.role, op.begin) for o in column
        ):
            out.append(op)
            continue
        texts = [o for o in column if type(o) is TextOp]
        if type(op) is not TextOp or len(texts) < len(column) or len({o.literal for o in texts}) > 1:
            break
        text = common_beginning([o.text for o in texts])
        if text:
            out.append(op._replace(text=text))
        if any(o.text != text for o in texts):
            break
    return out
