"""What is told only while somebody records: the scheduler's input and output in marks, and a recorder's own tokens.

Made in the scheduler process; read by the recorder and by the simulator, which feeds it again. The tokens go to the owner
of their request alone, by request.
"""

from __future__ import annotations

from typing import Any, Literal

from sgnb.messages.parts import FinishType, Label, Wire
from sgnb.sampling_params import SamplingParams

InputKind = Literal[
    "open",
    "extend",
    "decode",
    "fork",
    "select",
    "commit",
    "join",
    "close",
    "abort",
    "gone",
    "compiled",
    "set",
    "flush_cache",
    "pin",
    "unpin",
]


class InputEvent(Wire, frozen=True, kw_only=True, tag="input"):
    """What the scheduler received, so that a simulation can feed it again. Published only while somebody records.

    ``ids`` and ``options`` are no token ids but *marks*, one a token: salted hashes of the whole prefix that ends there,
    little-endian int32 below 2^30. Equal prefixes have equal marks, and nothing else can be read from them.
    """

    time: float
    step: int
    """Forward passes begun before."""
    kind: InputKind
    landed: int = 0
    """Forward passes whose results were known; with ``during`` the last of them is not taken yet, or not known."""
    during: bool = False
    """It came while results were waited for, and was handled before they were taken."""
    client: int = 0
    sid: str = ""
    rid: str = ""
    names: list[str] = []
    """Sessions of ``fork`` (children), ``join`` (branches) and ``close``; requests of ``abort``."""
    skips: list[int] = []
    """Of ``join``, for each branch: ids behind its fork that are left out. ``options`` are what is put in their place."""
    ids: bytes = b""
    options: list[bytes] = []
    method: str = ""
    keep: int | None = None
    constrained: bool = False
    """A grammar says what may be drawn. If it had to be compiled, ``compiled`` follows when it was."""
    params: SamplingParams | None = None
    """Without stop texts, stop ids and biases: they are the user's text."""
    priority: int = 0
    label: Label = Label()
    extra_key: str = ""
    """A salted hash of the name space."""
    knobs: dict[str, Any] = {}
    """Of ``set``."""


class OutputEvent(Wire, frozen=True, kw_only=True, tag="output"):
    """How a request ended, in marks. Published only while somebody records."""

    time: float
    rid: str
    type: FinishType
    step: int = 0
    """The last pass it was in; -1: none."""
    ids: bytes = b""
    """A mark for each token that was drawn."""
    kept: int = 0
    """How many of them its session keeps."""
    scores: list[list[float]] = []
    """Of a select, for each option: log-probabilities of its tokens; ``unconditional``: those without the prompt."""
    unconditional: list[list[float]] = []


class OwnTokens(Wire, frozen=True, kw_only=True, tag="tokens"):
    """Token ids of a finished request, for its owner alone: its whole prompt, and what it drew (of a select: the winner).
    Little-endian int32."""

    rid: str
    sid: str
    prompt_ids: bytes
    output_ids: bytes


class OwnTokensPart(Wire, frozen=True, kw_only=True):
    """Answer to ``recorded_tokens``: what has come since the last answer, at most some 4 MB; and the bytes of the ids in it
    that this client was not told before. ``lost``: requests whose ids were dropped because nobody asked in time."""

    tokens: list[OwnTokens]
    table: dict[int, bytes]
    more: bool = False
    lost: int = 0
