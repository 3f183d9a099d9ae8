"""Identical deterministic generations become one: branches that would write the same text write it once.

``fork p → a b c; a: X gen; b: X gen; c: X gen`` becomes ``fork p → a; a: X gen; fork a → b c``, and the generations of b
and c take the result of a's. The parent may be the one that generates (``gen(n=3, temperature=0)``). Legal where the
generations start from the same ids (nothing but equal text and marks since the fork), have equal parameters, and the
outcome is fixed by them: greedy, or the same seed. The one that stands first in the block generates, so that the others
never wait for something behind them; nor for one of lower priority: theirs are equal.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from sgnb.lang.block import ForkOp, GenOp, MarkOp, Op, SharedOp, TextOp
from sgnb.lang.instruction import ForkBase


class _Head(NamedTuple):
    """Where a session's beginning since a fork stands in the block; ``gen``: its first generation."""

    sid: str
    before: tuple[int, ...]
    gen: int


def share_generations(ops: Sequence[Op]) -> list[Op]:
    """The block with each such generation once."""
    block = list(ops)
    done: set[int] = set()
    while True:
        fork = next((op for op in block if type(op) is ForkOp and id(op) not in done), None)
        if fork is None:
            return block
        done.add(id(fork))
        block = _share(block, fork, done)


def fixed(op: GenOp) -> bool:
    """True when text and parameters alone say what comes out."""
    return op.params.greedy or op.params.seed is not None


def _share(block: list[Op], fork: ForkOp, done: set[int]) -> list[Op]:
    at = next(index for index, op in enumerate(block) if op is fork)
    groups: dict[Hashable, list[_Head]] = {}
    for head in _heads(block, at, (fork.sid, *fork.children)):
        groups.setdefault(_key(block, head), []).append(head)
    moved: dict[str, str] = {}
    out = block
    replaced: dict[int, list[Op]] = {}
    for heads in groups.values():
        heads.sort(key=lambda head: head.gen)
        lead, followers = heads[0], [head for head in heads[1:] if head.sid != fork.sid]
        if not followers:
            continue
        moved.update(dict.fromkeys((head.sid for head in followers), lead.sid))
        gen = block[lead.gen]
        assert type(gen) is GenOp
        # Behind the parent's own generation nobody knows any more where its branches began.
        base: ForkBase = "none" if lead.sid == fork.sid else "same"
        again = ForkOp(lead.sid, tuple(head.sid for head in followers), fork.place, base)
        done.add(id(again))
        replaced[lead.gen] = [gen, again]
        for head in followers:
            replaced.update({index: [] for index in head.before})
            other = block[head.gen]
            assert type(other) is GenOp
            replaced[lead.gen].append(
                SharedOp(other.sid, other.rid, gen.rid, other.name, other.params, other.branch)
            )
            replaced[head.gen] = []
    if not moved:
        return block
    children = tuple(child for child in fork.children if child not in moved)
    first = fork._replace(children=children)
    done.add(id(first))
    replaced[at] = [first] if children else []
    out = []
    for index, op in enumerate(block):
        out += replaced.get(index, (op,))
    return out


def _heads(block: list[Op], at: int, sids: tuple[str, ...]) -> list[_Head]:
    """The sessions of the fork that reach a fixed generation with nothing but text and marks before it."""
    before: dict[str, list[int]] = {sid: [] for sid in sids}
    found: list[_Head] = []
    for index in range(at + 1, len(block)):
        op = block[index]
        own = before.get(op.sid)
        if own is None:
            continue
        if type(op) is TextOp or type(op) is MarkOp:
            own.append(index)
            continue
        if type(op) is GenOp and fixed(op):
            found.append(_Head(op.sid, tuple(own), index))
        del before[op.sid]
        if not before:
            break
    return found


def _key(block: list[Op], head: _Head) -> Hashable:
    """Equal for sessions that generate the same: their text as one string a run, their marks, parameters and priority."""
    parts: list[tuple[object, str]] = []
    for index in head.before:
        op = block[index]
        if type(op) is MarkOp:
            parts.append(("mark", f"{op.role} {op.begin}"))
        elif type(op) is TextOp:
            if parts and parts[-1][0] is op.literal:
                parts[-1] = (op.literal, parts[-1][1] + op.text)
            else:
                parts.append((op.literal, op.text))
    gen = block[head.gen]
    assert type(gen) is GenOp
    return tuple(parts), gen.params, gen.priority
