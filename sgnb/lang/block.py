"""The recorded block: what a run did to its states between two flushes.

Notebook process. ``runtime`` records operations one by one, ``lang.passes`` rewrite the list, ``lang.lower`` turns it into
instructions. Tuples, because a program may record many; each keeps its place in the user's source. No behaviour.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sgnb.lang.instruction import ChoicesMethod, ForkBase
from sgnb.lang.position import Place
from sgnb.sampling_params import SamplingParams


class InitOp(NamedTuple):
    """A session is opened."""

    sid: str
    place: Place | None
    extra_key: str = ""


class TextOp(NamedTuple):
    """Text was appended."""

    sid: str
    text: str
    literal: bool
    place: Place | None


class IdsOp(NamedTuple):
    """Token ids were appended."""

    sid: str
    ids: tuple[int, ...]
    text: str
    place: Place | None


class MarkOp(NamedTuple):
    """A turn began or ended."""

    sid: str
    role: str
    begin: bool
    place: Place | None


class GenOp(NamedTuple):
    """A generation was appended; parameters, seed and ids are settled."""

    sid: str
    rid: str
    name: str
    params: SamplingParams
    place: Place | None
    cell: str
    branch: str
    priority: int | None = None
    """None: the run's."""


class SelectOp(NamedTuple):
    """A choice was appended; which option wins is the engine's to say."""

    sid: str
    rid: str
    name: str
    options: tuple[str, ...]
    method: ChoicesMethod
    place: Place | None
    cell: str
    branch: str
    priority: int | None = None
    """None: the run's."""


class ForkOp(NamedTuple):
    """Sessions were opened as copies of ``sid``."""

    sid: str
    children: tuple[str, ...]
    place: Place | None
    base: ForkBase = "new"


class JoinOp(NamedTuple):
    """Sessions forked from ``sid`` were appended to it by their KV."""

    sid: str
    branches: tuple[str, ...]
    place: Place | None


class ChosenOp(NamedTuple):
    """A choice that needed no model (made by a pass)."""

    sid: str
    rid: str
    text: str
    place: Place | None


class SharedOp(NamedTuple):
    """A generation that takes the result of another one, ``of`` (made by a pass): its session was forked behind that."""

    sid: str
    rid: str
    of: str
    name: str
    params: SamplingParams
    branch: str


class CommitOp(NamedTuple):
    """What the session has pending is computed now (made by a pass)."""

    sid: str
    place: Place | None


class HostOp(NamedTuple):
    """The program now waits, or runs code of its own, which may take long. The last of a block; never an instruction."""

    sid: str = ""
    place: Place | None = None


Op = (
    InitOp
    | TextOp
    | IdsOp
    | MarkOp
    | GenOp
    | SelectOp
    | ForkOp
    | JoinOp
    | ChosenOp
    | SharedOp
    | CommitOp
    | HostOp
)


def heirs(ops: Sequence[Op], sids: Iterable[str]) -> set[str]:
    """``sids`` and all sessions that ``ops`` fork from them or join them into, directly or not."""
    found = set(sids)
    for op in ops:
        if type(op) is ForkOp and op.sid in found:
            found.update(op.children)
        elif type(op) is JoinOp and not found.isdisjoint(op.branches):
            found.add(op.sid)
    return found
