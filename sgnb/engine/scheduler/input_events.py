"""What the scheduler receives and how requests end, told so that a simulation can feed it again.

Role: behind the controls ``record_start``, ``record_stop`` and ``recorded_tokens``. Scheduler process; ``Intake`` calls
``received`` before each message is carried out, ``Scheduler`` calls ``finished`` at each end; both do nothing while nobody
records. What is published names no token: a token's *mark* is a salted hash of the whole prefix that ends there, so equal
prefixes look equal and nothing else can be read. Token ids are kept for their owner alone, until they are asked for.
Decides nothing and changes nothing.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from sgnb.engine.mem_cache.base import IntArray
from sgnb.engine.scheduler.admission import MAX_SCORED
from sgnb.messages import (
    AbortReqs,
    ClientGone,
    InputEvent,
    OutputEvent,
    OwnTokens,
    OwnTokensPart,
    SchedulerControl,
    SchedulerInput,
    SessionClose,
    SessionCommit,
    SessionDecode,
    SessionExtend,
    SessionFork,
    SessionJoin,
    SessionOpen,
    SessionSelect,
    TelemetryEvent,
)
from sgnb.sampling_params import SamplingParams

if TYPE_CHECKING:
    from sgnb.engine.scheduler.req import Req
    from sgnb.engine.scheduler.scheduler import Scheduler

MARK_BITS = 30
_ZERO, _HALF, _MIX = np.uint64(0), np.uint64(32), np.uint64(0xD6E8FEB86659FD93)
_KEPT_BYTES = 32 << 20
"""Token ids of one client that wait to be asked for."""
_PART_BYTES = 4 << 20
_TOLD_CONTROLS = frozenset({"set", "flush_cache", "pin", "unpin"})


class Marks:
    """Marks of one engine: unlike those of any other, since the salt is drawn at its start."""

    def __init__(self, salt: bytes | None = None) -> None:
        self._salt = salt if salt is not None else os.urandom(16)
        self._random = np.random.default_rng(int.from_bytes(self._salt, "little"))
        self._factors: npt.NDArray[np.uint64] = np.empty(0, dtype=np.uint64)

    def of(self, ids: IntArray) -> IntArray:
        """A mark for each token of a whole prefix, 0 ≤ mark < 2^30."""
        return self.go_on(0, _ZERO, ids)[0]

    def go_on(self, start: int, state: np.uint64, ids: IntArray) -> tuple[IntArray, np.uint64]:
        """Marks of ``ids`` at position ``start`` behind a prefix with this ``state`` (0: empty); the state after them."""
        end = start + len(ids)
        while len(self._factors) < end:
            more = self._random.integers(0, 1 << 63, max(1024, len(self._factors)), dtype=np.uint64)
            self._factors = np.concatenate([self._factors, more * np.uint64(2) + np.uint64(1)])
        # A sum of secret multiples hashes each prefix; the mixing after it hides that it is a sum.
        sums = np.cumsum((ids.astype(np.uint64) + np.uint64(1)) * self._factors[start:end], dtype=np.uint64)
        sums += state
        after = sums[-1] if len(sums) else state
        mixed = (sums ^ (sums >> _HALF)) * _MIX
        mixed = (mixed ^ (mixed >> _HALF)) * _MIX
        return (mixed >> np.uint64(64 - MARK_BITS)).astype(np.int32), after

    def of_name(self, name: str) -> str:
        """A hash of a name space; the common one, which has no name, stays without."""
        return hashlib.blake2b(name.encode(), key=self._salt, digest_size=8).hexdigest() if name else ""


@dataclass(slots=True)
class _Owner:
    """What is kept for one client that records with token ids."""

    kept: deque[OwnTokens] = field(default_factory=deque)
    size: int = 0
    lost: int = 0
    told: set[int] = field(default_factory=set)
    """Ids whose bytes this client has."""


class InputRecorder:
    """One scheduler's. ``active`` while at least one client records."""

    def __init__(self, scheduler: Scheduler, publish: Callable[[TelemetryEvent], None]) -> None:
        self.marks = Marks()
        self._scheduler = scheduler
        self._publish = publish
        self._recording: set[int] = set()
        self._owners: dict[int, _Owner] = {}
        self._handlers: dict[type, Callable[[Any], dict[str, Any] | None]] = {
            SessionOpen: lambda m: {
                "kind": "open",
                "client": m.client,
                "sid": m.sid,
                "extra_key": self.marks.of_name(m.extra_key),
            },
            SessionExtend: lambda m: {"kind": "extend", "sid": m.sid, "ids": self._after(m.sid, m.ids)},
            SessionDecode: self._decode,
            SessionFork: lambda m: {"kind": "fork", "sid": m.sid, "names": m.children},
            SessionSelect: self._select,
            SessionCommit: lambda m: {"kind": "commit", "sid": m.sid, "ids": self._after(m.sid, m.ids)},
            SessionJoin: self._join,
            SessionClose: lambda m: {"kind": "close", "names": m.sids},
            AbortReqs: lambda m: {"kind": "abort", "names": m.rids},
            ClientGone: lambda m: {"kind": "gone", "client": m.client},
            SchedulerControl: self._control,
        }

    @property
    def active(self) -> bool:
        """Somebody records."""
        return bool(self._recording)

    def start(self, client: int, tokens: bool) -> None:
        """A client records from now on; ``tokens``: with the ids of its own requests."""
        self._recording.add(client)
        if tokens:
            self._owners[client] = _Owner()

    def stop(self, client: int) -> None:
        """Undo ``start``. What is kept for it stays until it is taken, or the client is gone."""
        self._recording.discard(client)

    def forget(self, client: int) -> None:
        """Undo ``start`` and drop what is kept."""
        self._recording.discard(client)
        self._owners.pop(client, None)

    # ------------------------------------------------------------ inputs

    def received(self, msg: SchedulerInput) -> None:
        """Tell of a message that is about to be carried out."""
        handler = self._handlers.get(type(msg)) if self._recording else None
        told = handler(msg) if handler is not None else None
        if told is not None:
            self._tell(told)

    def compiled(self, req: Req) -> None:
        """Tell that a request's grammar is there: it need wait for it no longer."""
        if self._recording:
            self._tell({"kind": "compiled", "rid": req.rid})

    def _tell(self, told: dict[str, Any]) -> None:
        scheduler = self._scheduler
        self._publish(
            InputEvent(
                time=scheduler.clock(),
                step=scheduler.meter.forward_steps,
                landed=scheduler.meter.forward_steps - len(scheduler.flights),
                during=scheduler.recorder.between,
                **told,
            )
        )

    def _before(self, sid: str, keep: int | None) -> IntArray:
        session = self._scheduler.sessions.get(sid)
        ids = session.prompt_with([]) if session is not None else np.empty(0, dtype=np.int32)
        return ids if keep is None else ids[: max(0, keep)]

    def _after(self, sid: str, ids: list[int], keep: int | None = None) -> bytes:
        return self.after(self._before(sid, keep), ids)

    def after(self, before: IntArray, ids: list[int] | IntArray) -> bytes:
        """Marks of ``ids`` behind a prefix, as they are sent; none of what is refused anyway: ids that no vocabulary has,
        or more than fit."""
        if (
            not len(ids)
            or len(before) + len(ids) > self._scheduler.max_len + 1
            or not 0 <= max(ids) < 1 << 31
        ):
            return b""
        whole = np.concatenate([before, np.asarray(ids, dtype=np.int64).astype(np.int32)])
        return self.marks.of(whole)[len(before) :].tobytes()

    def _decode(self, msg: SessionDecode) -> dict[str, Any]:
        return {
            "kind": "decode",
            "client": msg.client,
            "sid": msg.sid,
            "rid": msg.rid,
            "ids": self._after(msg.sid, msg.ids, msg.keep),
            "keep": msg.keep,
            "constrained": msg.params.constraint is not None,
            "params": bare(msg.params),
            "priority": msg.priority,
            "label": msg.label,
        }

    def _select(self, msg: SessionSelect) -> dict[str, Any]:
        before = self._before(msg.sid, msg.keep)
        prompt = np.concatenate([before, np.asarray(msg.ids, dtype=np.int64).astype(np.int32)])
        return {
            "kind": "select",
            "client": msg.client,
            "sid": msg.sid,
            "rid": msg.rid,
            "ids": self.after(before, msg.ids),
            "options": [self.after(prompt, option) for option in msg.options]
            if sum(map(len, msg.options)) <= MAX_SCORED
            else [],  # it is refused
            "method": msg.method,
            "keep": msg.keep,
            "priority": msg.priority,
            "label": msg.label,
        }

    def _join(self, msg: SessionJoin) -> dict[str, Any]:
        before = self._before(msg.sid, None)
        marks = self.after(before, msg.ids)
        before = np.concatenate([before, np.asarray(msg.ids, dtype=np.int64).astype(np.int32)])
        options = []
        for part in msg.parts:
            options.append(self.after(before, part.ids))
            branch = self._scheduler.sessions.get(part.sid)
            cut = branch.forked_at + part.skip if branch is not None else 0
            own = self._before(part.sid, None)[cut:]
            before = np.concatenate([before, np.asarray([*part.ids, *own], dtype=np.int64).astype(np.int32)])
        return {
            "kind": "join",
            "sid": msg.sid,
            "names": [part.sid for part in msg.parts],
            "skips": [part.skip for part in msg.parts],
            "ids": marks,
            "options": options,
        }

    def _control(self, msg: SchedulerControl) -> dict[str, Any] | None:
        if msg.verb not in _TOLD_CONTROLS:
            return None
        sid = str(msg.args.get("sid", ""))
        return {
            "kind": msg.verb,
            "client": msg.client,
            "sid": sid,
            "knobs": dict(msg.args) if msg.verb == "set" else {},
        }

    # ------------------------------------------------------------ ends

    def finished(self, req: Req, kept: list[int]) -> None:
        """Tell how a request ended, and keep its ids if its owner records them."""
        if not self._recording or req.finish_reason is None:
            return
        choice = req.selection.choice if req.selection is not None else None
        self._publish(
            OutputEvent(
                time=self._scheduler.clock(),
                rid=req.rid,
                type=req.finish_reason.type,
                step=req.last_step,
                ids=self.after(req.prompt, req.output_ids),
                kept=len(kept),
                scores=[option.logprobs for option in choice.options] if choice is not None else [],
                unconditional=[option.unconditional for option in choice.options]
                if choice is not None and choice.options[0].unconditional
                else [],
            )
        )
        owner = self._owners.get(req.client) if req.client in self._recording else None
        if owner is not None and not req.background:
            self._keep(owner, req, kept)

    def _keep(self, owner: _Owner, req: Req, kept: list[int]) -> None:
        output = kept if req.selection is not None else req.output_ids
        tokens = OwnTokens(
            rid=req.rid,
            sid=req.session.sid if req.session is not None else "",
            prompt_ids=req.prompt.astype("<i4").tobytes(),
            output_ids=np.array(output, dtype="<i4").tobytes(),
        )
        owner.kept.append(tokens)
        owner.size += len(tokens.prompt_ids) + len(tokens.output_ids)
        while owner.size > _KEPT_BYTES and len(owner.kept) > 1:
            gone = owner.kept.popleft()
            owner.size -= len(gone.prompt_ids) + len(gone.output_ids)
            owner.lost += 1

    def take(self, client: int) -> OwnTokensPart:
        """What is kept for a client, some 4 MB of it, and the bytes of ids it does not know yet."""
        owner = self._owners.get(client)
        if owner is None:
            return OwnTokensPart(tokens=[], table={})
        part: list[OwnTokens] = []
        size = 0
        while owner.kept and (not part or size < _PART_BYTES):
            tokens = owner.kept.popleft()
            size += len(tokens.prompt_ids) + len(tokens.output_ids)
            part.append(tokens)
        owner.size -= size
        found = [np.frombuffer(data, dtype="<i4") for t in part for data in (t.prompt_ids, t.output_ids)]
        fresh = set(np.unique(np.concatenate(found)).tolist()) - owner.told if found else set()
        owner.told |= fresh
        table = self._scheduler.table
        lost, owner.lost = owner.lost, 0
        if not owner.kept and client not in self._recording:
            del self._owners[client]
        return OwnTokensPart(
            tokens=part,
            table={id: table[id] for id in sorted(fresh) if id < len(table)},
            more=bool(owner.kept),
            lost=lost,
        )


def bare(params: SamplingParams) -> SamplingParams:
    """Parameters without what is the user's text: stops, ids, grammars."""
    defaults = SamplingParams()
    keep = (
        *("max_new_tokens", "min_new_tokens", "temperature", "top_p", "top_k", "min_p", "ignore_eos"),
        *("return_logprob", "top_logprobs_num", "logprob_start_len"),
    )
    return msgspec.structs.replace(defaults, **{name: getattr(params, name) for name in keep})
