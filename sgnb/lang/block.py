"""The recorded block: what a run did to its states between two flushes.

Notebook process. ``runtime`` records operations one by one, ``lang.passes`` rewrite the list, ``lang.lower`` turns it into
instructions. Tuples, because a program may record many; each keeps its place in the user's source. No behaviour.
"""

from __future__ import annotations

from typing import NamedTuple

from sgnb.lang.position import Place
from sgnb.sampling_params import SamplingParams


class InitOp(NamedTuple):
    """A session is opened."""

    sid: str
    place: Place | None


class TextOp(NamedTuple):
    """Text was appended."""

    sid: str
    text: str
    literal: bool
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


Op = InitOp | TextOp | MarkOp | GenOp
