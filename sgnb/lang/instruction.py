"""Instructions: what a recorded block is lowered to, and what a backend carries out.

Pure data of the notebook process; made by ``lang.lower``, read by every backend. A backend translates them to its own
wire. No I/O, no behaviour.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from sgnb.errors import SourcePosition
from sgnb.sampling_params import SamplingParams


class TextPart(msgspec.Struct, frozen=True):
    """Program text; ``literal``: added tokens in it stay text (always so inside roles)."""

    text: str
    literal: bool = False


class MarkPart(msgspec.Struct, frozen=True):
    """Begin or end of a turn of ``role``."""

    role: str
    begin: bool


class IdsPart(msgspec.Struct, frozen=True):
    """Token ids with the text they stand for (a backend without tokens takes that)."""

    ids: tuple[int, ...]
    text: str


Part = TextPart | MarkPart | IdsPart


class Init(msgspec.Struct, frozen=True):
    """Open session ``sid``."""

    sid: str
    extra_key: str = ""


class Extend(msgspec.Struct, frozen=True):
    """Append parts to the session's pending text."""

    sid: str
    parts: tuple[Part, ...]


class Decode(msgspec.Struct, frozen=True):
    """Generate into variable ``name``; ``cell``, ``branch``, ``name`` and the position make the request's label."""

    rid: str
    sid: str
    name: str
    params: SamplingParams
    position: SourcePosition | None = None
    cell: str = ""
    branch: str = ""
    priority: int = 0
    """Higher goes first, and may suspend lower ones that run."""


ChoicesMethod = Literal[
    "token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized"
]


class Select(msgspec.Struct, frozen=True):
    """Score ``options`` after all that is pending, keep the winner in the session as variable ``name``."""

    rid: str
    sid: str
    name: str
    options: tuple[str, ...]
    method: ChoicesMethod = "token_length_normalized"
    position: SourcePosition | None = None
    cell: str = ""
    branch: str = ""
    priority: int = 0
    """Higher goes first, and may suspend lower ones that run."""


ForkBase = Literal["new", "same", "none"]
"""What a join by KV takes for a branch's own: all since this fork; what is ``sid``'s own, and all since (a branch in
its place); or nothing, since it can be joined as text only."""


class Fork(msgspec.Struct, frozen=True):
    """Open ``children`` as copies of session ``sid``: ids and pending text; then all are independent."""

    sid: str
    children: tuple[str, ...]
    base: ForkBase = "new"


class Join(msgspec.Struct, frozen=True):
    """Append what ``branches``, forks of session ``sid``, have since their fork, by ids and KV and not as text."""

    sid: str
    branches: tuple[str, ...]


class Commit(msgspec.Struct, frozen=True):
    """Compute what is pending of ``sid`` up to the last safe space, so that others find it cached."""

    sid: str


Instruction = Init | Extend | Decode | Select | Fork | Join | Commit


class Block(msgspec.Struct, frozen=True):
    """All instructions between two flushes of one run, in order."""

    run: str
    instructions: tuple[Instruction, ...] = ()
