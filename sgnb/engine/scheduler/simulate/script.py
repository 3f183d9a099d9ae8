"""A script: what a simulated scheduler receives, when, and what its requests draw.

Role: made of a recording (``reader``) or of a synthetic workload (``workloads``), played by ``play``. Runs in a
process of its own (``python -m sgnb.engine simulate``) or in a test. Tokens are marks (``scheduler.input_events``): numbers
below 2^30 whose equality is all that matters.

How a recorded end is made to happen again, with nothing but messages and drawn tokens: a request draws the marks it drew;
one that ended by a stop string, a stop id, EOS or its grammar draws ``END`` as its last, its only EOS; where its session
kept less than that, the first token not kept has ``CUT`` set, and its bytes begin a character that is never finished, which
the scheduler never keeps.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from sgnb.config import EngineArgs, with_objective
from sgnb.errors import RecordingError
from sgnb.messages import (
    AbortReqs,
    ClientGone,
    SchedulerControl,
    SchedulerInput,
    SessionClose,
    SessionDecode,
    SessionFork,
    SessionOpen,
    SessionSelect,
    Snapshot,
    StepEvent,
)
from sgnb.sampling_params import SamplingParams

CUT = 1 << 30
END = CUT | 1
_ENDED_BY_TOKEN = frozenset({"eos", "stop", "grammar"})


@dataclass(frozen=True, slots=True)
class Compiled:
    """Not a message: the grammar of a request is there."""

    rid: str


Message = SchedulerInput | Compiled


@dataclass(slots=True)
class Input:
    """One message. It comes at ``at`` seconds or, with ``after``, ``delay`` seconds after the last of those requests ended;
    replayed, once as many passes have begun and landed as had (``place``: their sum)."""

    message: Message
    at: float = 0.0
    after: tuple[str, ...] = ()
    delay: float = 0.0
    place: int = 0
    during: bool = False


@dataclass(slots=True)
class Output:
    """What a request draws. ``ends``: how it ended; empty: the recording ended before, so it goes on to its limit."""

    rid: str
    ids: list[int] = field(default_factory=list)
    ends: str = ""
    ended: float = 0.0
    """When it ended, in seconds from the beginning."""
    step: int = 0
    """The last pass it was in."""
    constrained: bool = False
    waits: bool = False
    """Its grammar had to be compiled."""


@dataclass(slots=True)
class Scores:
    """Of one option: log-probabilities of its tokens, and those without the prompt."""

    tokens: int
    conditional: list[float]
    unconditional: list[float]
    output: Output


@dataclass
class Script:
    """See the module. ``outputs`` are found by a request's seed, ``scores`` by a select's seed and an option's last mark."""

    name: str
    args: EngineArgs
    context_length: int
    max_total_tokens: int
    inputs: list[Input] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    scores: dict[tuple[int, int], Scores] = field(default_factory=dict)
    derived: dict[int, Output] = field(default_factory=dict)
    """Of selects, by the seed that the scheduler gives them."""
    snapshot: Snapshot | None = None
    steps: list[StepEvent] = field(default_factory=list)
    """As recorded, in the part that is played."""
    measured: list[StepEvent] = field(default_factory=list)
    """All that the recording has: what steps cost is read from them."""
    unfinished: int = 0
    """Requests that had not ended when the recording did."""
    notes: list[str] = field(default_factory=list)
    counted_from: float = 0.0
    """Seconds from the beginning: what is asked before is played and not counted."""

    def counted(self) -> frozenset[str]:
        """Requests of which figures are made."""
        return frozenset(
            given.message.rid
            for given in self.inputs
            if isinstance(given.message, SessionDecode | SessionSelect) and given.at >= self.counted_from
        )

    def add_output(self, output: Output) -> int:
        """The seed under which a request finds it."""
        self.outputs.append(output)
        return len(self.outputs) - 1


class EndlessTable(Sequence[bytes]):
    """Bytes of every mark: none, but for the first token that a session did not keep."""

    def __len__(self) -> int:
        return 1 << 31

    def __getitem__(self, token: int) -> bytes:  # type: ignore[override]
        return b"\xf0" if token & CUT and token != END else b""


def unpack(marks: bytes) -> list[int]:
    """Marks of an event. RecordingError for a part of one."""
    if len(marks) % 4:
        raise RecordingError("the recording has marks that are not whole numbers of four bytes")
    return list(struct.unpack(f"<{len(marks) // 4}i", marks))


def plain_params(
    max_new_tokens: int, seed: int, constrained: bool = False, scored_from: int = -1
) -> SamplingParams:
    """Of a simulated request: only its limit matters to the scheduler, that it has a grammar, and from which token on the
    log-probabilities of its prompt are wanted (-1: none are); its seed names its output."""
    return SamplingParams(
        max_new_tokens=max_new_tokens,
        temperature=0.0,
        seed=seed,
        regex="." if constrained else None,
        return_logprob=scored_from >= 0,
        logprob_start_len=scored_from,
    )


def freely(inputs: Iterable[Input], outputs: Iterable[Output]) -> Iterator[Input]:
    """The inputs as they would come to an engine of another speed: what ended a request early does so after as many tokens
    (the runner sees to that), so only aborts of requests that had drawn nothing stay; sessions close one by one, after their
    last request; a client that left closes its sessions."""
    known = {output.rid: output for output in outputs}
    asked: dict[str, Input] = {}
    last: dict[str, str] = {}
    owner: dict[str, int] = {}

    def follow(given: Input, rid: str, message: Message) -> Input:
        """As long after the request's end as it was; or after its beginning, if this is what ends it."""
        output, begun = known.get(rid), asked.get(rid)
        if output is None or begun is None:
            return _with_message(given, message)
        if output.ends == "abort" and not output.ids:
            return Input(message, given.at, begun.after, begun.delay + max(0.0, given.at - begun.at))
        return Input(message, given.at, (rid,), max(0.0, given.at - output.ended))

    for given in inputs:
        message = given.message
        if isinstance(message, SessionOpen):
            owner[message.sid] = message.client
        elif isinstance(message, SessionFork):
            owner.update(dict.fromkeys(message.children, owner.get(message.sid, 0)))
        elif isinstance(message, SessionDecode | SessionSelect):
            last[message.sid], asked[message.rid] = message.rid, given
        if isinstance(message, SessionDecode) and not message.sid:
            continue  # was refused
        if isinstance(message, Compiled):
            begun = asked.get(message.rid)
            if begun is not None:
                yield Input(message, given.at, begun.after, begun.delay + max(0.0, given.at - begun.at))
        elif isinstance(message, AbortReqs):
            for rid in message.rids:
                if rid in known and not known[rid].ids:
                    yield follow(given, rid, AbortReqs(rids=[rid]))
        elif isinstance(message, SessionClose | ClientGone):
            gone = [sid for sid, client in owner.items() if client == getattr(message, "client", None)]
            for sid in message.sids if isinstance(message, SessionClose) else gone:
                owner.pop(sid, None)
                yield follow(given, last.get(sid, ""), SessionClose(sids=[sid]))
        else:
            yield given


def _with_message(given: Input, message: Message) -> Input:
    """The same place and time, another message."""
    return Input(message, given.at, given.after, given.delay, given.place, given.during)


def without_knobs(given: Input, fixed: frozenset[str]) -> Input | None:
    """A recorded change of knobs without those that this simulation sets itself; None when nothing is left of it."""
    message = given.message
    if not isinstance(message, SchedulerControl) or message.verb != "set" or not fixed:
        return given
    left = {name: value for name, value in with_objective(message.args).items() if name not in fixed}
    left.pop("objective", None)
    return _with_message(given, msgspec.structs.replace(message, args=left)) if left else None
